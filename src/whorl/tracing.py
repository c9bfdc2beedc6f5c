"""Tracing: whether a compiler, a tracer, a mode, a transform or autograd is at work.

Code that looks at numbers, reads memory by its address, keeps a tensor or goes past torch's dispatcher asks here first.
First come the questions about one thing at work, then what code may do under all of them, then derivatives.

A decoding step waits for these answers, hence the functions of torch by their short names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from whorl.graphs import Function, constant_in_graphs, held

_functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
_forward_ad = torch.autograd.forward_ad
_innermost_transform = _functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_is_jit_tracing = torch._C._is_tracing
_mode_count = torch._C._len_torch_dispatch_stack
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch

# What has its numbers in memory of its own, where kernels read them.
PLAIN = (Tensor, torch.nn.Parameter)


def making_graph() -> bool:
    """Whether torch.compile or torch.export is turning the code that runs into a graph."""
    return _is_compiling()


def making_own_graph() -> bool:
    """Whether torch.compile makes a graph that this process runs, and no program that goes elsewhere."""
    return _is_dynamo_compiling() and not _exporting()


@constant_in_graphs  # torch 2.11 says so inside of any graph, and the truth to a function that it calls
def _exporting() -> bool:
    return torch.compiler.is_exporting()


def in_mode() -> bool:
    """Whether a dispatch mode sees every operator: fake tensors, a counter of FLOPs.

    Ask ``making_graph`` first: a compiler cannot trace this one.
    """
    return _mode_count() > 0


def in_functorch() -> bool:
    """Whether the code runs inside vmap, grad or another transform of torch.func."""
    return _innermost_transform() is not None


@constant_in_graphs  # the compiler guards on the transforms around a graph by itself
def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    return _forward_ad._current_level >= 0 or _innermost_transform() is not None


def is_symbol(number: float | None) -> bool:
    """Whether a graph has a number as a symbol, which stands for many values, and not as a constant.

    >>> is_symbol(3), is_symbol(None)
    (False, False)
    """
    if number is None or not (_is_compiling() or isinstance(number, torch.SymInt)):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # late: it imports sympy

    return not has_static_value(number)


def values_are_hidden() -> bool:
    """Whether tensors have no numbers to look at: in a graph, or inside torch.func."""
    return _is_compiling() or _innermost_transform() is not None


def operators_are_watched() -> bool:
    """Whether a compiler, a tracer, a mode or a transform sees operators: it would miss a kernel called directly."""
    return _is_compiling() or _mode_count() > 0 or _is_jit_tracing() or _is_included(_PRE_DISPATCH) or is_transformed()


def may_read_values(x: Tensor) -> bool:
    """Whether Python may look at the numbers of x: a plain tensor on the CPU, outside graphs and torch.func."""
    return type(x) is Tensor and x.device.type == "cpu" and not values_are_hidden()


def may_read_memory(x: Tensor) -> bool:
    """Whether the memory of x holds its numbers, as a kernel reads them.

    Not that of a subclass, nor where torch adds a sign or a zero when it reads, nor of many tensors in one, as
    gradients are with ``is_grads_batched``.
    """
    return type(x) is Tensor and not x.is_neg() and not x._is_zerotensor() and not _functorch.is_legacy_batchedtensor(x)


def may_read_addresses(*tensors: Tensor | None) -> bool:
    """Whether every tensor given has an address, and no tracer or mode would miss a kernel that uses it."""
    return not operators_are_watched() and all(x is None or type(x) in PLAIN for x in tensors)


def may_keep_tensors() -> bool:
    """Whether a tensor that is made now is a plain one, which later calls may use."""
    return not values_are_hidden() and not in_mode()


def kept_where_plain(function: Function) -> Function:
    """As ``held``, where tensors are plain ones; graphs, fake modes and transforms compute their own."""
    constant = held(function)

    @wraps(function)
    def constant_or_computed(*given: Hashable) -> Any:
        return constant(*given) if may_keep_tensors() else function(*given)

    vars(constant_or_computed)["cache_clear"] = vars(constant)["cache_clear"]
    return constant_or_computed  # pyright: ignore[reportReturnType]


def kept_in_graphs(function: Function) -> Function:
    """As ``kept_where_plain``, and graphs that this process runs take the tensor as a constant of theirs.

    A program that goes elsewhere computes its own. What is given must be constants where a graph is made.
    """
    constant = held(function)

    # A compiler names a constant tensor by the function that made it, and refuses two of one name in a graph. What a
    # weak reference leads to gets a name of its own. The compiler keeps that, and the tensor goes with its graph.
    @constant_in_graphs
    def whorl_constant(*given: Hashable) -> Callable[[], Tensor]:
        return ref(constant(*given))  # pyright: ignore[reportReturnType]  # there as long as it is held

    @wraps(function)
    def constant_or_computed(*given: Hashable) -> Any:
        if may_keep_tensors():
            return constant(*given)
        if not making_own_graph():
            return function(*given)
        # what is computed of a constant would be a constant of its own at each place, and no two of them equal
        return whorl_constant(*given)().detach()

    vars(constant_or_computed)["cache_clear"] = vars(constant)["cache_clear"]
    return constant_or_computed  # pyright: ignore[reportReturnType]


def takes_gradients(*tensors: Tensor | None) -> bool:
    """Whether a backward pass through one of the tensors may follow."""
    return _is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def takes_derivatives(*tensors: Tensor) -> bool:
    """Whether derivatives are taken, in reverse or in forward mode: then nothing is written into given memory."""
    return _forward_ad._current_level >= 0 or takes_gradients(*tensors)


@constant_in_graphs
def takes_further_derivatives() -> bool:
    """Whether derivatives are taken forward, or of derivatives, which only torch's own operations have."""
    if _forward_ad._current_level >= 0:
        return True
    levels = [level.key() for level in _functorch.get_interpreter_stack() or ()]
    kinds = _functorch.TransformType
    return kinds.Jvp in levels or levels.count(kinds.Grad) > 1
