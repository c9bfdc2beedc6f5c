"""Positions that a cache keeps: those that are given, by row, and those that go on from the tokens so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whorl.attend.padding import EXACT, tamed
from whorl.errors import WhorlError, invalid
from whorl.memory import check_dense
from whorl.position_checks import FLOATS, INTEGERS, bounds_of, check_precision, check_reach
from whorl.position_ids import within_reach
from whorl.tracing import may_read_values


class NewPositions(NamedTuple):
    """Positions of new tokens (batch, new), axes in front, and what comes ``after`` them: None where they are given."""

    new: Tensor
    after: Tensor | int | None


def following(
    before: Tensor | int, batch: int, count: int, device: torch.device, key_mask: Tensor | None
) -> NewPositions:
    """The positions of ``count`` new tokens where none are given: ``before`` is that of the first real one."""
    if key_mask is None:
        return NewPositions((torch.arange(count, device=device) + before).expand(batch, -1), before + count)
    counted = key_mask.cumsum(-1)
    return NewPositions((counted - 1).clamp(min=0) + before, counted[:, -1:] + before)


def by_row(call: str, positions: Tensor, axes: int, batch: int, count: int) -> Tensor:
    """Given positions with one for each row of the batch, or a WhorlError: (batch, count), axes in front."""
    wanted = (batch, count) if axes == 1 else (axes, batch, count)
    if isinstance(positions, Tensor):
        check_dense(call, "positions", positions, "a tensor")
    if isinstance(positions, Tensor) and positions.dtype in INTEGERS + FLOATS and 1 <= positions.ndim <= len(wanted):
        rows = positions.unsqueeze(1) if positions.ndim == 2 and axes > 1 else positions
        if (
            rows.shape[-1] == count
            and (rows.ndim == 1 or rows.shape[-2] in (1, batch))
            and rows.shape[:-2] in ((), wanted[:-2])
        ):
            return rows.expand(wanted)
    check_precision(call, "positions", positions)
    front = "" if axes == 1 else f"{axes}, "
    raise invalid(
        call,
        "positions",
        f"int32, int64, float32 or float64 of shape ({count},) or ({front}{batch}, {count})",
        positions,
        "There is one for each token of the call.",
    )


def as_kept(positions: Tensor, kept: torch.dtype = torch.int64, real: Tensor | None = None) -> Tensor:
    """Positions as int64, or as float64 where there are fractions here or among those kept; no real one changes.

    ``real`` (batch, tokens) is False for padding, whose positions mean nothing.
    """
    positions = positions if real is None else tamed(positions, real)
    if not positions.is_floating_point() and kept == torch.int64:
        check_reach("KVCache", "positions", bounds_of(positions))
        return within_reach(positions.long())
    check_exact(positions)
    if positions.is_floating_point() and may_read_values(positions) and not bool(positions.isfinite().all()):
        raise invalid("KVCache", "positions", "finite", positions, "Later positions go on from them.")
    return positions.double()


def check_exact(positions: Tensor) -> None:
    """Raises a WhorlError where float64 would round whole positions; on a device, looking would wait for it."""
    if not positions.is_floating_point() and any(abs(bound) > EXACT for bound in bounds_of(positions) or ()):
        raise WhorlError(
            "KVCache: whole positions beyond 2^53 and fractional ones have no exact form together. "
            "Count from a later start, or pass all positions as integers."
        )
