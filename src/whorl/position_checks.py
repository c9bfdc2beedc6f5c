"""Checks of positions and embeddings: the dtypes and shapes that they may have, and steps of 1."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid
from whorl.graphs import equals_any
from whorl.memory import check_dense
from whorl.position_ids import FARTHEST
from whorl.tracing import may_read_values

INTEGERS = (torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)
TOO_COARSE = "Half precision cannot tell neighbouring positions apart; convert with positions.long()."


def check_positions(call: str, positions: Tensor, axes: int) -> Tensor:
    """The positions with their axes in front, (axes, …), or a WhorlError.

    One-dimensional positions serve every axis of a multi-axis encoding (text among images).
    """
    check_dense(call, "positions", positions, "a tensor", "Make one with whorl.positions(length).")
    if positions.dtype not in INTEGERS + FLOATS:
        raise invalid(call, "positions", "int32, int64, float32 or float64", positions, TOO_COARSE)
    if axes == 1:
        if positions.ndim not in (1, 2):
            raise invalid(call, "positions", "of shape (length,) or (batch, length)", positions)
        return positions.unsqueeze(0)
    if positions.ndim == 1:
        return positions.expand(axes, -1)
    if positions.ndim not in (2, 3) or positions.shape[0] != axes:
        shapes = f"of shape (length,), ({axes}, length) or ({axes}, batch, length)"
        remedy = "Axes come first, as whorl.grid and whorl.multimodal return them."
        raise invalid(call, "positions", shapes, positions, remedy)
    return positions


def check_one_axis(call: str, positions: Tensor, *, whole: bool = False) -> None:
    """Raises a WhorlError unless positions are of one axis, (length,) or (batch, length); integers where ``whole``."""
    dtypes = INTEGERS if whole else INTEGERS + FLOATS
    if not isinstance(positions, Tensor) or positions.dtype not in dtypes or positions.ndim not in (1, 2):
        kinds = "int32 or int64" if whole else "int32, int64, float32 or float64"
        shapes = f"{kinds} of shape (length,) or (batch, length)"
        coarse = isinstance(positions, Tensor) and positions.dtype in HALVES
        remedy = TOO_COARSE if coarse else "Make them with whorl.positions(length)."
        raise invalid(call, "positions", shapes, positions, remedy)


def check_precision(call: str, name: str, positions: Tensor) -> None:
    """Raises a WhorlError where positions are in half precision, whether or not the encoding reads them."""
    if isinstance(positions, Tensor) and positions.dtype in HALVES:
        raise invalid(call, name, "int32, int64, float32 or float64", positions, TOO_COARSE)


def bounds_of(positions: Tensor) -> tuple[float, float] | None:
    """The least and the greatest position; None where there is none, or where looking would wait for a device."""
    if not positions.numel() or not may_read_values(positions):
        return None
    least, greatest = torch.aminmax(positions)
    return least.item(), greatest.item()


def beyond_reach(bounds: tuple[float, float] | None) -> bool:
    """Whether whole positions within these bounds lie beyond 2^61, so that their distances are not int64."""
    return bounds is not None and not -FARTHEST <= bounds[0] <= bounds[1] <= FARTHEST


def check_reach(call: str, name: str, bounds: tuple[float, float] | None) -> None:
    """Raises a WhorlError where whole positions within these bounds lie beyond 2^61."""
    if bounds is not None and beyond_reach(bounds):
        farthest = max(bounds, key=abs)
        raise invalid(call, name, "between -2^61 and 2^61", farthest, "Count from a nearer start.")


def first_of_consecutive(ids: Tensor) -> int | None:
    """The first of positions on the CPU that have one axis and follow each other by steps of 1, else None."""
    if ids.ndim != 1 or not ids.numel():
        return None
    first, count = int(ids[0]), ids.numel()
    if count == 1:
        return first
    if int(ids[-1]) - first != count - 1:
        return None
    return first if torch.equal(ids, torch.arange(first, first + count, dtype=ids.dtype, device="cpu")) else None


def check_embeddings(call: str, x: Tensor, positions: Tensor, width: int) -> None:
    """Raises a WhorlError unless x is (…, length, width), floating, and positions are those of its tokens."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        raise invalid(call, "x", "a floating tensor of shape (…, length, width)", x)
    if x.shape[-1] != width:
        raise WhorlError(
            f"{call}: width is {width}, got embeddings of {x.shape[-1]} dimensions. Build {call} with "
            f"width={x.shape[-1]}, or check the order of the axes."
        )
    if not isinstance(positions, Tensor):
        raise invalid(call, "positions", "a tensor", positions, "Make one with whorl.positions(length).")
    if positions.ndim not in (1, 2) or positions.shape[-1] != x.shape[-2]:
        raise WhorlError(
            f"{call}: positions must be of shape (length,) or (batch, length) for x of shape {tuple(x.shape)}, "
            f"got {tuple(positions.shape)}. Each token needs one."
        )
    if positions.ndim == 2 and (x.ndim != 3 or not equals_any(positions.shape[0], 1, x.shape[0])):
        raise WhorlError(
            f"{call}: positions are for a batch of {positions.shape[0]}, x has shape {tuple(x.shape)}. "
            "Pass x as (batch, length, width), or positions that serve every row, of shape (length,)."
        )
    if positions.device != x.device:
        raise WhorlError(
            f"{call}: positions are on {positions.device} and x on {x.device}. "
            f"Make them there: whorl.positions({x.shape[-2]}, device={str(x.device)!r})."
        )
