"""The rotation written in torch: on every device, and where tables need gradients or torch.func transforms the call."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.rotary.rotation import Order, Rotation, inverse_tables, turn_pairs


def turn_by_torch(x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, rotation: Rotation) -> Tensor:
    """x turned, everything checked."""
    if rows is not None:
        cos, sin = _taken(cos, rows), _taken(sin, rows)
    cos, sin = _aligned(cos, x, rotation.order), _aligned(sin, x, rotation.order)
    if rotation.divide:
        cos, sin = inverse_tables(cos, sin)
    if rotation.divide != rotation.conjugate:
        sin = -sin
    return turn_pairs(x, cos, sin, rotation.reads, rotation.writes, start=rotation.start, blocks=rotation.blocks)


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype the rotation of x runs in, and that of tables that lose nothing on it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """The rows of a table, NaN for those it does not have."""
    count = table.shape[-2]
    known = (rows >= 0) & (rows < count)
    rows = rows.clamp(0, max(count - 1, 0)).long()
    if table.ndim == 2 and count:
        taken = table[rows]
    elif count:
        batch = max(rows.shape[0] if rows.ndim > 1 else 1, table.shape[0])
        index = rows.expand(batch, rows.shape[-1])
        table = table.expand(batch, *table.shape[1:])
        index = index[:, None, :, None] if table.ndim == 4 else index[..., None]
        taken = table.gather(-2, index.expand(*table.shape[:-2], rows.shape[-1], table.shape[-1]))
    else:
        taken = table.new_zeros(*rows.shape, table.shape[-1])
    known = known[:, None, :, None] if taken.ndim == 4 and known.ndim > 1 else known[..., None]
    return torch.where(known, taken, float("nan"))


def _aligned(table: Tensor, x: Tensor, order: Order) -> Tensor:
    """The table with axes in x's order, in the dtype the rotation runs in."""
    table = table.to(wide_dtype(x))
    if table.ndim == 2:
        return table if order == "bhld" else table.unsqueeze(-2)
    if table.ndim == 3:
        return table.unsqueeze(1) if order == "bhld" else table.unsqueeze(2)
    return table if order == "bhld" else table.transpose(1, 2)
