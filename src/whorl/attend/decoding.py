"""A decoding step by kernels on a GPU: few new tokens behind a text that a cache keeps.

    one launch    turns queries and keys, and puts keys and values into their slots
    one launch    attends to all filled slots

Both read on the device how many slots are filled. A kind of step is checked and prepared once; after that a step is
its two launches, at any length of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.slots import Slots
from whorl.encodings.base import Encoding
from whorl.encodings.made_of import MadeOf
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    Branches,
    OutputTerm,
    Placement,
    QueryScale,
    Reach,
    ScoreTerm,
    Visibility,
    first,
    hides_by_reach,
    lone_rotation,
)
from whorl.encodings.rotary import Counted
from whorl.graphs import held
from whorl.kernels.append import Step
from whorl.kernels.decode import Kept, Rules
from whorl.kernels.launches import prepared
from whorl.kernels.refusals import why_not_here
from whorl.rotary.rotation import Rotation
from whorl.tracing import operators_are_watched

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_QUERIES = 16
MOST_ROWS = 128  # of queries that share keys
LARGEST_DIM = 256

Place = Callable[[Tensor, Tensor, Tensor, Slots, Tensor], Tensor]
BiasOf = Callable[[Slots, Tensor], Tensor | None]


class Asked(NamedTuple):
    """What a step was asked for, beside its tensors."""

    length: int | None
    scale: float
    softcap: float | None


class DecodingStep:
    """A kind of step, ready to run: encoding, shapes and strides are those it was made for."""

    def __init__(
        self, place: Place, bias: BiasOf, asked: Asked, *, window: tuple[int, int] | None, reads_positions: bool
    ) -> None:
        self._place, self._bias, self._asked = place, bias, asked
        self._window, self._reads_positions = window, reads_positions
        self._attend: Any = None  # made ready by the first step
        self._memory: tuple[Tensor, ...] = ()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, slots: Slots, following: Tensor | None = None) -> Tensor:
        """The attention output of the next tokens, which are kept; the slot of the first may be on the device."""
        numbers, count = slot_numbers(slots.room, q.device), q.shape[2]
        if following is None:
            now = numbers[slots.filled : slots.filled + count]
        else:
            now = following if count == 1 else following + numbers[:count]
        q = self._place(q, k, v, slots, now)
        positions, real = slots.positions if self._reads_positions else None, slots.real if slots.padded else None
        kept = Kept(slots.keys, slots.values, now, self._bias(slots, now), positions, real)
        if self._attend is None:
            from whorl.kernels.decode_triton import ready

            rules = Rules(self._asked.scale, self._asked.softcap, self._window)
            decode: Any = prepared(("decode", rules), (q, *kept), lambda: ready(q, kept, rules))
            self._attend, self._memory = decode, decode.memory(q.device)
        out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
        self._attend(q, kept, out, *self._memory)
        return out


def why_not_decode(encoding: Encoding, slots: Slots | None, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """What keeps the kernels from this step, or None."""
    missing = why_not_here("triton", q.device.type)
    if missing is not None:
        return missing
    if operators_are_watched() or not all(type(x) is Tensor and not x.is_neg() for x in (q, k, v)):
        return "a compiler, a mode or a tensor of another class needs torch's own operations"
    if q.dtype not in DTYPES:
        return f"the kernels have no {q.dtype}"
    _, heads, queries, dim = q.shape
    if queries > MOST_QUERIES or queries * (heads // k.shape[1]) > MOST_ROWS:
        return f"the kernels take up to {MOST_QUERIES} new tokens and {MOST_ROWS} queries of heads that share keys"
    if max(dim, v.shape[3]) > LARGEST_DIM:
        return f"the kernels have heads of up to {LARGEST_DIM} dimensions"
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        return "dimensions do not lie side by side in memory"
    if slots is None or not slots.filled:
        return "the cache is empty"
    if slots.filled + queries > slots.room:
        return "the cache has to grow"
    if not slots.follows or slots.positions.dtype != torch.int64:
        return "positions were given, which torch's operations go by"
    return _why_not_parts(encoding, slots)


def _why_not_parts(encoding: Encoding, slots: Slots) -> str | None:
    name, term = type(encoding).__name__, first(encoding, ScoreTerm, OutputTerm, Branches)
    if term:
        return f"{name} uses {term.hook}"
    if not hides_by_reach(encoding):
        return f"{name} has a mask that is no window"
    if encoding.axes > 1 and first(encoding, Visibility, Bias):
        return f"{name} has positions of {encoding.axes} axes"
    if first(encoding, BiasByDistance) and not slots.counted:
        return f"{name} has a bias by distance, and positions were given"
    return None


def decoding_step(encoding: Encoding, slots: Slots, q: Tensor, asked: Asked) -> DecodingStep:
    """The step for tensors that ``why_not_decode`` has let pass, and others of their kinds."""
    bias, reach = first(encoding, Bias), encoding.reach
    by_distance = bias if isinstance(bias, BiasByDistance) and bias.formula else None
    if by_distance is not None:
        bias_of = _bias_by_distance(by_distance)
    else:
        bias_of = _no_bias if bias is None else _bias_by_pair(encoding, asked.length)
    return DecodingStep(
        _place(encoding, slots, q.device, asked.length),
        bias_of,
        asked,
        window=_window(reach),
        reads_positions=(by_distance is not None or reach is not None) and (slots.padded or not slots.counted),
    )


def _window(reach: Reach | None) -> tuple[int, int] | None:
    # beyond 2^30 positions no cache has slots, and the kernel counts in 32 bits
    return None if reach is None else (min(reach.before, 2**30), min(reach.first, 2**30))


def _place(encoding: Encoding, slots: Slots, device: torch.device, length: int | None) -> Place:
    """The function of (q, k, v, slots, now) that puts keys and values into their slots and returns placed queries."""
    copy = _copy()
    if first(encoding, Placement, QueryScale) is None:
        return copy
    rotary = lone_rotation(encoding)
    tables = None if rotary is None or not slots.counted else rotary.counted_tables(slots.room, length, device)
    if rotary is not None and tables is not None:
        return _turn(rotary.rotation(), tables)

    @torch.no_grad()
    def by_hook(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor) -> Tensor:
        here = slots.positions.index_select(-1, now)
        q, k = encoding.transform_qk(q, k, here, here, length)
        return copy(q if q.stride(-1) == 1 else q.contiguous(), k, v, slots, now)

    return by_hook


def _turn(rotation: Rotation, tables: Counted) -> Place:
    from whorl.kernels.append_triton import ready

    run: Callable[[Step, Tensor], None] | None = None

    def turn(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor) -> Tensor:
        nonlocal run
        rows = slots.positions if slots.positions.ndim == 2 else slots.positions[0]  # counted: alike on every axis
        step, out = Step(q, k, v, tables.cos, tables.sin, rows, slots.keys, slots.values, now), torch.empty_like(q)
        if run is None:
            run = prepared(
                ("append by slot", rotation), (*step, out), lambda: ready(step, out, rotation, rows_by_slot=True)
            )
        run(step, out)
        return out

    return turn


def _copy() -> Place:
    from whorl.kernels.append_triton import ready_copy

    run: Callable[..., None] | None = None

    def copy(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor) -> Tensor:
        nonlocal run
        moved = k, v, slots.keys, slots.values, now
        if run is None:
            run = prepared(("copy",), moved, lambda: ready_copy(*moved))
        run(*moved)
        return q

    return copy


def _no_bias(slots: Slots, now: Tensor) -> None:
    return None


def _bias_by_pair(encoding: Encoding, length: int | None) -> BiasOf:
    """A bias of both positions, formed at every step."""

    @torch.no_grad()
    def bias(slots: Slots, now: Tensor) -> Tensor:
        here = slots.positions.index_select(-1, now)
        formed = encoding.score_bias(here, slots.positions, length)
        assert formed is not None
        return formed.float().expand(here.shape[0], -1, -1, -1)

    return bias


class TableByDistance:
    """A table of a bias by distance, made anew when what it was learned changes, and shared by all layers."""

    def __init__(self, part: BiasByDistance) -> None:
        self._part = part

    def __call__(self, room: int, device: torch.device) -> Tensor:
        """The bias (heads, distances) in float32, for as many distances as there is room, or more."""
        part, calls, key = self._part, self._part.encoding._calls, ("table by distance", device)
        kept = calls.get(key)
        if kept is None or kept[0] < room:
            distances = slot_numbers(room, device)[:room]
            kept = calls[key] = room, MadeOf(part.encoding, lambda: part.table(distances).contiguous())
        return kept[1]()


def _bias_by_distance(part: BiasByDistance) -> BiasOf:
    table = TableByDistance(part)
    return lambda slots, now: table(slots.room, now.device)


def slot_numbers(room: int, device: torch.device) -> Tensor:
    """0, 1, 2, …, at least so many, on the device: a view of it tells a kernel where it is, without a copy."""
    return _numbers(1 << (room - 1).bit_length(), device)


@held
def _numbers(count: int, device: torch.device) -> Tensor:
    # 16 bytes apart: a kernel is compiled anew for pointers that are aligned otherwise
    return torch.arange(count, device=device)[:, None].repeat(1, 2)[:, 0]
