"""Axes of the tensors that a rotation takes: where batch, heads and tokens lie, and the strides between them."""

from __future__ import annotations

from torch import Tensor

from whorl.rotary.rotation import Order

# Counted from the end: a tensor without a batch, or without heads, lacks the first axes.
LENGTH_AXIS = {"bhld": -2, "blhd": -3, "thd": -3}
HEADS_AXIS = {"bhld": -3, "blhd": -2, "thd": -2}


def length_of(x: Tensor, order: Order) -> int:
    """The number of tokens of x."""
    return x.shape[LENGTH_AXIS[order]]


def sizes_of(x: Tensor, order: Order) -> tuple[int, ...]:
    """Batch, length, heads and dimensions of x, 1 for an axis that is not there."""
    return _by_token(x.shape, order, 1)


def strides_of(x: Tensor, order: Order) -> tuple[int, ...]:
    """The strides of the same axes, 0 for one that is not there."""
    return _by_token(x.stride(), order, 0)


def _by_token(axes: tuple[int, ...], order: Order, missing: int) -> tuple[int, ...]:
    if len(axes) < 4:
        axes = (missing,) * (4 - len(axes)) + axes
    if order != "bhld":
        return axes
    batch, heads, length, dim = axes
    return batch, length, heads, dim


def table_strides(table: Tensor) -> tuple[int, int, int]:
    """The strides of batch, rows and heads of a table (n, pairs), (batch, n, pairs) or (batch, heads, n, pairs).

    0 for an axis that is not there, or serves all with one entry.
    """
    strides, sizes = table.stride(), table.shape
    batch = strides[0] if table.ndim > 2 and sizes[0] > 1 else 0
    heads = strides[1] if table.ndim == 4 and sizes[1] > 1 else 0
    return batch, strides[-2], heads


def row_strides(rows: Tensor | None) -> tuple[int, int]:
    """The strides of batch and tokens of the rows (length,) or (batch, length) that tokens take; 0 as above."""
    if rows is None:
        return 0, 0
    return rows.stride(0) if rows.ndim > 1 and len(rows) > 1 else 0, rows.stride(-1)
