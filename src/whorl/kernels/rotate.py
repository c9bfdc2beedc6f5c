"""``rotate`` and ``rotate_qk``: the public calls that check a rotation and run it by the implementation asked for.

triton   one launch for queries and keys, on a CUDA device
numba    one pass over memory, on the CPU
torch    everywhere, and where tables need gradients or torch.func transforms the call
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid
from whorl.kernels.axes import HEADS_AXIS
from whorl.kernels.choose import Impl, check_impl
from whorl.kernels.ops import Tensors, direct_launch, like, mark_written, ready_kernel, turn_by_operator
from whorl.kernels.refusals import AUTO, choose_rotate, why_not_memory, why_not_rotate
from whorl.kernels.rotate_checks import (
    FROM_TABLES,
    check_into,
    check_out,
    check_pair,
    check_tensors,
    checked_rotation,
)
from whorl.kernels.rotate_torch import turn_by_torch, wide_dtype
from whorl.memory import check_floating
from whorl.plans import PLANS, Plan, kind
from whorl.rotary.rotation import Layout, Order, Rotation
from whorl.tracing import may_read_addresses, takes_gradients

Written = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # out, x, cos, sin, rows


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: Layout = "half",
    *,
    inverse: bool = False,
    start: int = 0,
    blocks: int = 1,
    heads: Sequence[int] | None = None,
    order: Order = "bhld",
    rows: Tensor | None = None,
    out: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """x with its pairs turned by the angles whose cos and sin are given, in x's dtype.

    Dimensions [start, start + 2 * pairs) of the last axis are rotated, the rest is passed through.
    ``cos`` and ``sin`` have shape (length, pairs), (batch, length, pairs), or (batch, heads, length,
    pairs) for angles that differ by head, whatever the order of x. ``rows`` (length,) or (batch, length)
    says which row of the tables each token takes; a row that is not there gives NaN.
    ``inverse=True`` undoes the rotation, an attention factor inside the tables included. With ``blocks`` > 1
    the rotated dimensions are that many heads side by side, each with a layout of its own. ``heads`` limits
    the rotation to some heads. ``out`` is memory to write into: x itself to rotate in place, or memory apart from x
    and the tables.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=4, layout="interleaved")
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = rope.tables(torch.tensor([2]))
    >>> whorl.rotate(x, cos, sin, layout="interleaved")
    tensor([[-2.2347,  0.0770,  2.9194,  4.0592]])
    """
    if out is not None:
        return _rotate_into(out, x, cos, sin, rows, heads, layout, inverse, start, blocks, order, impl)
    if heads is not None:
        turned = rotate(
            x, cos, sin, layout, inverse=inverse, start=start, blocks=blocks, order=order, rows=rows, impl=impl
        )
        return torch.where(_turning_heads(x, heads, order), turned, x)
    key = kind(("rotate", layout, inverse, start, blocks, order, impl), x, cos, sin, rows)
    plan = PLANS.get(key)
    if plan is None:
        rotation = checked_rotation("rotate", layout, inverse, start, blocks, order)
        check_tensors("rotate", "x", x, cos, sin, rows, rotation)
        kernel = choose_rotate(impl, x, cos, sin)
        plan = PLANS.keep(key, plan_for((x,), cos, sin, rows, rotation, kernel, direct=key is not None))
    return plan((x,), cos, sin, rows)[0]


def rotate_qk(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: Layout = "half",
    *,
    inverse: bool = False,
    start: int = 0,
    blocks: int = 1,
    order: Order = "bhld",
    rows: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the same tokens turned as ``rotate`` does, in one launch on a GPU.

    Their numbers of heads may differ.

    >>> import torch, whorl
    >>> cos, sin = whorl.Rope(head_dim=64).tables(whorl.positions(10))
    >>> q, k = whorl.rotate_qk(torch.randn(2, 8, 10, 64), torch.randn(2, 2, 10, 64), cos, sin)
    >>> q.shape, k.shape
    (torch.Size([2, 8, 10, 64]), torch.Size([2, 2, 10, 64]))
    """
    key = kind(("rotate_qk", layout, inverse, start, blocks, order, impl), q, k, cos, sin, rows)
    plan = PLANS.get(key)
    if plan is None:
        rotation = checked_rotation("rotate_qk", layout, inverse, start, blocks, order)
        check_pair("rotate_qk", q, k, cos, sin, rows, rotation)
        kernel = choose_rotate(impl, q, cos, sin)
        plan = PLANS.keep(key, plan_for((q, k), cos, sin, rows, rotation, kernel, direct=key is not None))
    turned_q, turned_k = plan((q, k), cos, sin, rows)
    return turned_q, turned_k


def plan_for(
    xs: Tensors, cos: Tensor, sin: Tensor, rows: Tensor | None, rotation: Rotation, kernel: str, *, direct: bool
) -> Plan:
    """The function of (xs, cos, sin, rows) that turns one or two checked tensors, and others of their kinds."""
    if kernel == "torch" or why_not_memory("k", xs[-1]):
        return lambda xs, cos, sin, rows: tuple(turn_by_torch(x, cos, sin, rows, rotation) for x in xs)
    wide = wide_dtype(xs[0])
    if direct and cos.dtype == sin.dtype == wide:
        return direct_launch(ready_kernel(xs, cos, sin, like(*xs), rows, rotation, kernel), rotation, kernel)
    return lambda xs, cos, sin, rows: turn_by_operator(xs, cos.to(wide), sin.to(wide), rows, rotation, kernel)


# Tokens up to which every head computes its angles anew, which costs less than a launch that makes tables.
FEW_TOKENS = 256


def ready_turn(
    q: Tensor, k: Tensor, positions: Tensor, frequencies: Tensor, factor: float, rotation: Rotation
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The function of (q, k, positions) that turns checked tensors of these kinds on a GPU, gradients included.

    Their angles are positions times frequencies; ``factor`` multiplies cos and sin.
    """
    from whorl.kernels.rotate_triton import ready_at
    from whorl.kernels.tables_triton import exact

    if takes_gradients(q, k):  # the backward pass reads the tables
        tables = exact(positions, frequencies, factor)
        plan = plan_for((q, k), *tables, None, rotation, "triton", direct=True)
        return lambda q, k, positions: plan((q, k), *exact(positions, frequencies, factor), None)
    if positions.numel() <= FEW_TOKENS and q[..., 0].numel() <= FEW_TOKENS * q.shape[HEADS_AXIS[rotation.order]]:
        return ready_at(q, k, positions, frequencies, factor, rotation)
    run = ready_kernel((q, k), *exact(positions, frequencies, factor), like(q, k), None, rotation, "triton")

    def turn(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        outs = torch.empty_like(q), torch.empty_like(k)
        run((q, k), *exact(positions, frequencies, factor), outs, None)
        return outs

    return turn


def _rotate_into(
    out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, heads: Sequence[int] | None, *settings: Any
) -> Tensor:
    """``rotate`` with memory to write into."""
    key, given = None, (out, x, cos, sin, rows)
    if heads is None:
        key = kind(("rotate", *settings, "in place" if out is x else "into"), *given)
    plan = PLANS.get(key)
    if plan is None:
        layout, inverse, start, blocks, order, impl = settings
        rotation = checked_rotation("rotate", layout, inverse, start, blocks, order)
        check_tensors("rotate", "x", x, cos, sin, rows, rotation)
        check_out(x, out, rotation)
        kernel = choose_rotate(impl, x, cos, sin)
        turns = None if heads is None else _turning_heads(x, heads, order)
        plan = PLANS.keep(key, _plan_into(given, rotation, kernel, turns, direct=key is not None))
    if takes_gradients(x, out, cos, sin):
        raise WhorlError("rotate: out= keeps no gradient. Leave it out, or call under torch.no_grad().")
    if key is not None or may_read_addresses(out, x, cos, sin, rows):
        check_into(out, x, cos, sin, rows, moves=settings[0] == "interleaved_to_half")
    plan(*given)
    return out


def _plan_into(given: Written, rotation: Rotation, kernel: str, turns: Tensor | None, *, direct: bool) -> Plan:
    """The function of (out, x, cos, sin, rows) that writes checked x, turned, into out; ``turns`` marks its heads."""
    out, x, cos, sin, rows = given
    if kernel == "torch" or turns is not None:
        turn = plan_for((x,), cos, sin, rows, rotation, kernel, direct=direct)

        def copy(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None) -> None:
            (turned,) = turn((x,), cos, sin, rows)
            out.copy_(turned if turns is None else torch.where(turns, turned, x))

        return copy
    wide = wide_dtype(x)
    if not direct or cos.dtype != wide or sin.dtype != wide:
        return lambda out, x, cos, sin, rows: torch.ops.whorl.rotate_into(
            out, x, cos.to(wide), sin.to(wide), rows, *rotation, kernel
        )
    run = ready_kernel((x,), cos, sin, (out,), rows, rotation, kernel)

    def write(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None) -> None:
        run((x,), cos, sin, (out,), rows)
        mark_written(out)

    return write


def explain_rotate(x: Tensor, cos: Tensor, sin: Tensor, *, impl: Impl = "auto") -> str:
    """Which implementation the same call of ``rotate`` takes, and why where it is not the kernel of the device.

    >>> import torch, whorl
    >>> cos, sin = (t.requires_grad_() for t in whorl.Rope(head_dim=4).tables(whorl.positions(3)))
    >>> whorl.explain_rotate(torch.randn(3, 4), cos, sin)
    'torch: numba cannot run here, the tables need gradients'
    """
    for name, tensor, remedy in (("x", x, ""), ("cos", cos, FROM_TABLES), ("sin", sin, FROM_TABLES)):
        check_floating("explain_rotate", name, tensor, remedy)
    check_impl(impl, "explain_rotate")
    if impl != "auto":
        return choose_rotate(impl, x, cos, sin)
    kernel = AUTO.get(x.device.type)
    if kernel is None:
        return f"torch: there is no kernel for {x.device.type}"
    reason = why_not_rotate(kernel, x, cos, sin)
    return kernel if reason is None else f"torch: {kernel} cannot run here, {reason}"


def _turning_heads(x: Tensor, heads: Sequence[int], order: Order) -> Tensor:
    """Which heads of x turn, as bools that broadcast against it."""
    axis = HEADS_AXIS[order]
    if x.ndim < 3:
        raise invalid(
            "rotate", "x", "a tensor with an axis of heads where only some turn", x, "Pass x of shape (1, length, dim)."
        )
    count = x.shape[axis]
    try:
        named = None if isinstance(heads, Tensor) else {index(head) for head in heads}
    except TypeError:
        named = None
    if named is None:  # a tensor neither: its numbers may be on a device
        raise invalid("rotate", "heads", "a sequence of head indices", heads, "Use None for all heads.")
    if not all(0 <= head < count for head in named):
        raise invalid("rotate", "heads", f"between 0 and {count - 1}", tuple(heads))
    shape = [1] * x.ndim
    shape[axis] = count
    return torch.tensor([head in named for head in range(count)], device=x.device).view(shape)
