"""Causal linear attention as operators of torch: ``whorl::linear_forward`` and ``whorl::linear_backward``.

Compiled graphs see them whole, and their kernels are imported when they first run. Nothing is checked here;
``linear_attention`` is the public call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.kernels.ops import Tensors, gradient, no_second_gradient, operator

# What both operators take first and last: queries, keys, values, tables (1 or batch, length, pairs) for the dimensions
# from ``start`` on, a mask of keys; and ``denominator``, which is "plain" for unrotated products, "own" for those of
# the numerator, "norm" for the root of a mean square.
GIVEN = "Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor? key_mask"
SETTINGS = "bool interleaved, int start, int blocks, str feature, str denominator, float eps"


def linear_forward(*given: Any) -> Tensors:
    """The output (batch, heads, length, value dim), and two tensors for the backward pass."""
    return torch.ops.whorl.linear_forward(*given)


def features_are_written(q: Tensor, v: Tensor) -> bool:
    """Whether products read features from memory; those of narrow heads are computed where they are needed.

    Of narrow heads Triton 3.6 makes code of those products that reads beyond shared memory.
    """
    return q.dtype == torch.bfloat16 and min(q.shape[3], v.shape[3]) > 64


def _outputs(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> Tensors:
    from whorl.kernels.linear import passes
    from whorl.kernels.linear_triton_forward import outputs_of

    if features_are_written(q, v):
        return passes.outputs_of(q, k, v, settings[-2])
    return outputs_of(q, k, v)


@operator(f"linear_forward({GIVEN}, {SETTINGS}) -> (Tensor out, Tensor scale, Tensor states)", _outputs)
def run_forward(*given: Any) -> Tensors:
    """The same past the dispatcher: without gradients, where nobody would miss it."""
    from whorl.kernels.linear import passes
    from whorl.kernels.linear_triton import TurningPairs
    from whorl.kernels.linear_triton_forward import forward

    q, k, v, cos, sin, key_mask, interleaved, start, blocks, *settings = given
    given = (q, k, v, TurningPairs(cos, sin, interleaved, start, blocks), key_mask, *settings)
    with torch.cuda.device_of(q):
        if features_are_written(q, v):
            return passes.forward(*given)
        return forward(*given)


def _gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensors:
    from whorl.kernels.linear_triton_backward import gradients_of

    return gradients_of(q, k, v)


@operator(
    f"linear_backward(Tensor grad, {GIVEN}, Tensor out, Tensor scale, Tensor states, {SETTINGS}) "
    "-> (Tensor dq, Tensor dk, Tensor dv)",
    _gradients,
)
def _backward(*given: Any) -> Tensors:
    from whorl.kernels.linear import passes
    from whorl.kernels.linear_triton import TurningPairs
    from whorl.kernels.linear_triton_backward import backward

    grad, q, k, v, cos, sin, key_mask, out, scale, states, interleaved, start, blocks, *settings = given
    pairs = TurningPairs(cos, sin, interleaved, start, blocks)
    with torch.cuda.device_of(q):
        if features_are_written(q, v):
            return passes.backward(grad, q, k, v, out, scale, states, pairs, key_mask, *settings)
        return backward(grad, q, k, v, pairs, key_mask, out, scale, states, *settings)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.settings = inputs[6:]
    ctx.set_materialize_grads(False)


def _back(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 12
    return *torch.ops.whorl.linear_backward(grad, *ctx.saved_tensors, *ctx.settings), *(None,) * 9


gradient("linear_forward", _back, _keep)
gradient("linear_backward", no_second_gradient("linear_attention"))
