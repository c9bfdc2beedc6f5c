"""The rotation: every pair (a, b) of a head becomes (a cos - b sin, b cos + a sin).

Su et al. 2021, RoFormer, equation 34. Which two dimensions make a pair is the layout:
    half                 (i, i + d/2)      GPT-NeoX, Llama in transformers
    interleaved          (2i, 2i + 1)      RoFormer, GPT-J, Meta's Llama
    interleaved_to_half  reads (2i, 2i + 1), writes (i, i + d/2)      DeepSeek-V3
The three rotate by the same angles and differ by a permutation of dimensions only. Arithmetic is in
float32 for half-precision input and in float64 for float64 input, and is rounded once at the end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Layout = Literal["half", "interleaved", "interleaved_to_half"]

LAYOUTS: tuple[str, ...] = get_args(Layout)

Order = Literal["bhld", "blhd", "thd"]

ORDERS: tuple[str, ...] = get_args(Order)


class Rotation(NamedTuple):
    """A rotation but for its angles, which are in tables: what a call of ``rotate`` asks of every implementation.

    order      the axes of a tensor: b batch, h heads, l length, t tokens of all documents, d dimensions of a head
    reads      which two dimensions make a pair before the rotation, "half" or "interleaved"
    writes     which two make it afterwards
    start      the first rotated dimension
    blocks     how many equal parts of the rotated dimensions have a layout of their own
    conjugate  turns the other way: sin is negated
    divide     undoes a factor inside the tables: both are divided by cos² + sin²
    """

    order: Order
    reads: str
    writes: str
    start: int = 0
    blocks: int = 1
    conjugate: bool = False
    divide: bool = False

    def transposed(self) -> Rotation:
        """The rotation that carries gradients back: it turns the other way, and reads what this one wrote."""
        order, reads, writes, start, blocks, conjugate, divide = self
        return Rotation(order, writes, reads, start, blocks, not conjugate, divide)


def layout_ends(layout: Layout) -> tuple[str, str]:
    """How a layout pairs the dimensions it reads and those it writes."""
    return ("interleaved", "half") if layout == "interleaved_to_half" else (layout, layout)


def inverse_tables(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The tables that undo a rotation, whatever factor is inside them."""
    scale = cos * cos + sin * sin
    return cos / scale, -sin / scale


def quotient_tables(new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The tables of the rotation that follows ``old`` to end where ``new`` would: angles subtract, factors divide."""
    (cos, sin), (back_cos, back_sin) = new, inverse_tables(*old)
    return cos * back_cos - sin * back_sin, sin * back_cos + cos * back_sin


def turn_pairs(
    x: Tensor, cos: Tensor, sin: Tensor, reads: str, writes: str | None = None, *, start: int = 0, blocks: int = 1
) -> Tensor:
    """x with dimensions [start, start + 2 * pairs) turned; cos and sin broadcast against x's leading axes.

    ``reads`` and ``writes`` are "half" or "interleaved", and alike unless ``writes`` is given.
    """
    dim = 2 * cos.shape[-1]
    turned = _turn(x[..., start : start + dim], cos, sin, reads, writes or reads, blocks)
    if dim == x.shape[-1]:
        return turned
    parts = (x[..., :start], turned, x[..., start + dim :])
    return torch.cat([part for part in parts if part.shape[-1]], dim=-1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, reads: str, writes: str, blocks: int) -> Tensor:
    wide = x.to(cos.dtype)
    if blocks > 1:
        wide, cos, sin = (t.unflatten(-1, (blocks, -1)) for t in (wide, cos, sin))
    a, b = wide.chunk(2, dim=-1) if reads == "half" else wide.unflatten(-1, (-1, 2)).unbind(-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    out = torch.cat((first, second), -1) if writes == "half" else torch.stack((first, second), -1).flatten(-2)
    return (out.flatten(-2) if blocks > 1 else out).to(x.dtype)
