"""Positions of padding: they mean nothing, may be any number or none, and must count nowhere.

A key that is padding is hidden, yet it has a position, and so has the query of that token. What is computed from the
positions of a whole row, how far its tokens reach or where the last one stands, goes by the real tokens alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.position_checks import beyond_reach, bounds_of, check_reach
from whorl.position_ids import FARTHEST, difference, wide, within_reach
from whorl.tracing import may_read_values

# Whole numbers up to here are the same in float64.
EXACT = 2**53


def real_tokens(key_mask: Tensor, positions: Tensor, axes: int) -> Tensor:
    """Which positions are those of real tokens, from a mask (batch, tokens): with a batch axis where they have one.

    A position that rows share is that of a real token where any row has one there.
    """
    return key_mask if positions.ndim == (2 if axes == 1 else 3) else key_mask.any(0)


def settled(
    call: str, name: str, positions: Tensor, key_mask: Tensor | None, axes: int, apart: int | None = None
) -> Tensor:
    """Given positions, checked, with padding where it does no harm: the tensor itself, where there is nothing to do.

    All of a row are within ``apart`` of each other where that is given and those of real tokens are. Where nobody may
    look, positions beyond 2^61 stand there, so that no distance wraps around.
    """
    real, bounds = None if key_mask is None else real_tokens(key_mask, positions, axes), None
    if positions.is_floating_point():
        positions = positions if real is None else tamed(positions, real)
    elif positions.dtype == torch.int64 and may_read_values(positions):
        bounds = bounds_of(positions)
        if real is not None and beyond_reach(bounds):
            positions = tamed(positions, real)
            bounds = bounds_of(positions)
        check_reach(call, name, bounds)
    else:
        positions = within_reach(positions)
    if real is None or apart is None or (bounds is not None and bounds[1] - bounds[0] <= apart):
        return positions
    return near_real(positions, real, apart)


def tamed(positions: Tensor, real: Tensor) -> Tensor:
    """The positions, with 0 for padding where it has NaN, infinity or a number that float64 cannot hold.

    The score of a hidden key must still be a number: minus infinity added to NaN is NaN.
    """
    number = (positions >= -EXACT) & (positions <= EXACT)
    return torch.where(real | number, positions, 0)


def near_real(positions: Tensor, real: Tensor, apart: int) -> Tensor:
    """The positions of one axis, all of a row within ``apart`` of each other if those of its real tokens are.

    Padding that lies too far off stands where the real token before it does, or the first one. Rows of padding alone
    stand at 0.
    """
    ids = wide(positions).expand(real.shape)
    least = ids.masked_fill(~real, FARTHEST).amin(-1, keepdim=True)
    most = ids.masked_fill(~real, -FARTHEST).amax(-1, keepdim=True)
    room = torch.div(apart - difference(most, least), 2, rounding_mode="floor")
    near = (ids >= least - room) & (ids <= most + room)
    order = torch.arange(ids.shape[-1], device=ids.device)
    before = torch.where(real, order, -1).cummax(-1).values.maximum(real.int().argmax(-1, keepdim=True))
    settled = torch.where(real | near, ids, ids.gather(-1, before))
    return settled.masked_fill(~real.any(-1, keepdim=True), 0)


def in_order(positions: Tensor, real: Tensor) -> Tensor:
    """Positions of one axis, int64 or float64, that do not decrease in a row if those of its real tokens do not.

    Padding stands between the real tokens around it, and beside the first and the last one by no more than there are
    tokens. Rows of padding alone stay as they are.
    """
    count = positions.shape[-1]
    least = positions.masked_fill(~real, FARTHEST).amin(-1, keepdim=True) - count
    most = positions.masked_fill(~real, -FARTHEST).amax(-1, keepdim=True) + count
    low = torch.where(real, positions, least).cummax(-1).values
    high = torch.where(real, positions, most).flip(-1).cummin(-1).values.flip(-1)
    padding = ~real & real.any(-1, keepdim=True)
    return torch.where(padding, positions.maximum(low).minimum(high), positions)
