"""``rotate``: the public call that checks a rotation and runs it by the implementation asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.kernels.choose import Impl, choose
from whorl.rotary.rotation import LAYOUTS, Layout, inverse_tables, turn_pairs

Order = Literal["bhld", "blhd", "thd"]

ORDERS: tuple[str, ...] = get_args(Order)


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
    impl: Impl = "auto",
) -> Tensor:
    """x with its pairs turned by the angles whose cos and sin are given, in x's dtype.

    Dimensions [start, start + 2 * pairs) of the last axis are rotated, the rest is passed through.
    ``cos`` and ``sin`` have shape (length, pairs), (batch, length, pairs), or (batch, heads, length,
    pairs) for angles that differ by head, whatever the order of x. ``inverse=True`` undoes the
    rotation, an attention factor inside the tables included. With ``blocks`` > 1 the rotated
    dimensions are that many heads side by side, each with a layout of its own. ``heads`` limits the
    rotation to some heads.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=4, layout="interleaved")
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = rope.tables(torch.tensor([2]))
    >>> whorl.rotate(x, cos, sin, layout="interleaved")
    tensor([[-2.2347,  0.0770,  2.9194,  4.0592]])
    """
    choose(impl, "rotate")
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS, call="rotate")
    check_input(x, order)
    _check_tables(x, cos, sin, order, start, blocks)
    cos, sin = _aligned(cos, x, order), _aligned(sin, x, order)
    if inverse:
        cos, sin = inverse_tables(cos, sin)
    out = turn_pairs(x, cos, sin, layout, start=start, blocks=blocks, reverse=inverse)
    return out if heads is None else _only_heads(x, out, heads, order)


def check_input(x: Tensor, order: Order, call: str = "rotate") -> None:
    """Raises a WhorlError unless x is a floating tensor of the named order."""
    if order not in ORDERS:
        raise unknown("order", order, ORDERS, call=call)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise invalid(call, "x", "a floating tensor", x)
    if (order == "blhd" and x.ndim != 4) or (order == "thd" and x.ndim != 3) or x.ndim < 2:
        shape = {
            "bhld": "(batch, heads, length, head_dim)",
            "blhd": "(batch, length, heads, head_dim)",
            "thd": "(tokens, heads, head_dim)",
        }[order]
        raise invalid(call, "x", f"of shape {shape} for order={order!r}", x, f"Orders: {', '.join(ORDERS)}.")


def length_of(x: Tensor, order: Order) -> int:
    """The number of positions of x."""
    return x.shape[{"bhld": -2, "blhd": 1, "thd": 0}[order]]


def _check_tables(x: Tensor, cos: Tensor, sin: Tensor, order: Order, start: int, blocks: int) -> None:
    if cos.shape != sin.shape or not 2 <= cos.ndim <= 4:
        raise WhorlError(
            f"rotate: cos and sin must have one shape (…, length, pairs), got {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}. Take both from one call of tables()."
        )
    if cos.device != x.device:
        raise WhorlError(
            f"rotate: tables are on {cos.device} and x on {x.device}. Make the positions on the device of x."
        )
    dim, pairs = x.shape[-1], cos.shape[-1]
    if start < 0 or start + 2 * pairs > dim:
        raise WhorlError(
            f"rotate: tables of {pairs} pairs from dimension {start} need {start + 2 * pairs} dimensions, x has {dim}. "
            "Use tables of fewer pairs or a smaller start."
        )
    if blocks < 1 or pairs % blocks:
        raise invalid("rotate", "blocks", f"a divisor of the {pairs} pairs", blocks)
    if cos.shape[-2] != length_of(x, order):
        raise WhorlError(
            f"rotate: tables are for {cos.shape[-2]} positions, x has {length_of(x, order)} in order {order!r}. "
            "Pass one position per token, or name the order of x."
        )
    if cos.ndim > 2 and order == "thd":
        raise WhorlError("rotate: order='thd' takes tables of shape (tokens, pairs). Flatten the batch into tokens.")
    if cos.ndim > 2 and (x.ndim != 4 or cos.shape[0] not in (1, x.shape[0])):
        raise WhorlError(
            f"rotate: tables are for a batch of {cos.shape[0]}, x has shape {tuple(x.shape)}. "
            "Pass positions of shape (length,) or (batch, length)."
        )


def _aligned(table: Tensor, x: Tensor, order: Order) -> Tensor:
    """The table with axes in x's order, in the dtype the rotation runs in."""
    table = table.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if table.ndim == 2:
        return table if order == "bhld" else table.unsqueeze(-2)
    if table.ndim == 3:
        return table.unsqueeze(1) if order == "bhld" else table.unsqueeze(2)
    return table if order == "bhld" else table.transpose(1, 2)


def _only_heads(x: Tensor, out: Tensor, heads: Sequence[int], order: Order) -> Tensor:
    axis = -3 if order == "bhld" else -2
    count = x.shape[axis]
    if not all(0 <= head < count for head in heads):
        raise invalid("rotate", "heads", f"between 0 and {count - 1}", tuple(heads))
    turns = [head in set(heads) for head in range(count)]
    shape = [1] * x.ndim
    shape[axis] = count
    return torch.where(torch.tensor(turns, device=x.device).view(shape), out, x)
