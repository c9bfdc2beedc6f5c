"""A decoding step by kernels on a GPU: few new tokens behind a text that a cache keeps.

    one launch    turns queries and keys, and puts keys and values into their slots
    one launch    attends to all filled slots

Keys that are kept raw are turned by the second one, as it reads them. What else an encoding adds to scores is read off
its parts: a bias (here), terms of content and sums (``decoding_terms.py``). CoPE counts its gates in a launch between.
All read on the device how many slots are filled. A kind of step is checked and prepared once; after that a step is
its launches, at any length of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.decoding_terms import (
    Terms,
    Turns,
    factors_of,
    scaled_queries,
    turns_of,
    why_not_terms,
    why_not_turns,
)
from whorl.attend.slots import Policy, Slots
from whorl.encodings.base import Encoding
from whorl.encodings.made_of import TablesOf, tables_of
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    BiasByPair,
    Placement,
    Reach,
    Visibility,
    first,
    hides_by_reach,
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

# of (q, k, v, slots, now, what the encoding remembers of the tokens)
Place = Callable[[Tensor, Tensor, Tensor, Slots, Tensor, Tensor | None], Tensor]
BiasOf = Callable[[Slots, Tensor], Tensor | None]


class Asked(NamedTuple):
    """What a step was asked for, beside its tensors."""

    length: int | None
    scale: float
    softcap: float | None


class DecodingStep:
    """A kind of step, ready to run: encoding, shapes and strides are those it was made for."""

    def __init__(
        self,
        place: Place,
        bias: BiasOf,
        terms: Terms,
        turns: Turns | None,
        factors: TablesOf[Tensor] | None,
        rules: Rules,
    ) -> None:
        self._place, self._bias, self._terms = place, bias, terms
        self._turns, self._factors, self._rules = turns, factors, rules
        self._reads_positions = rules.by_place and not rules.counted
        self._attend: Any = None  # made ready by the first step
        self._memory: tuple[Tensor, ...] = ()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Slots, following: Tensor | None, hidden: Tensor | None
    ) -> Tensor:
        """The attention output of the next tokens, which are kept; the slot of the first may be on the device."""
        numbers, count = slot_numbers(slots.room, q.device), q.shape[2]
        if following is None:
            now = numbers[slots.filled : slots.filled + count]
        else:  # as far apart in memory as those of the numbers: a step made ready for one takes the other
            now = following if count == 1 else _apart(following + numbers[:count])
        terms, turns, rules = self._terms, self._turns, self._rules
        added = terms(q)
        q = self._place(q, k, v, slots, now, self._remembered(hidden))
        positions = real = cos = sin = fades = None
        if slots.padded:
            real = slots.real
        if slots.padded or self._reads_positions:
            positions = slots.positions if slots.positions.ndim == 2 else slots.positions[0]
        if turns is not None:
            cos, sin, fades = turns[:3]
        memory = None if terms.reader is None else slots.memory
        bias, factors = self._bias(slots, now), None if self._factors is None else self._factors()
        kept = Kept(slots.keys, slots.values, now, bias, positions, real, cos, sin, fades, *added, memory, factors)
        if self._attend is None:
            from whorl.kernels.decode_triton import ready

            decode: Any = prepared(("decode", rules), (q, *kept), lambda: ready(q, kept, rules))
            self._attend, self._memory = decode, decode.memory(q.device)
        out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
        self._attend(q, kept, out, *self._memory)
        return out

    def _remembered(self, hidden: Tensor | None) -> Tensor | None:
        reader = self._terms.reader
        if reader is None:
            return None
        assert hidden is not None
        with torch.no_grad():
            return reader.remember(hidden)


def why_not_decode(
    encoding: Encoding, slots: Slots | None, q: Tensor, k: Tensor, v: Tensor, *, asked: Asked, policy: Policy,
    hidden: Tensor | None,
) -> str | None:  # fmt: skip
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
    if _too_large(q, queries * (heads // k.shape[1]), v.shape[3]):
        return "the queries leave no room for keys in the device's shared memory"
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        return "dimensions do not lie side by side in memory"
    if slots is None or not slots.filled:
        return "the cache is empty"
    if slots.filled + queries > slots.room:
        return "the cache has to grow"
    if not slots.follows or slots.positions.dtype != torch.int64:
        return "positions were given, which torch's operations go by"
    return (
        _why_not_parts(encoding, slots)
        or why_not_terms(encoding, slots, hidden)
        or (why_not_turns(encoding, slots, asked.length) if policy == "raw" else None)
    )


def _too_large(q: Tensor, rows: int, value_dim: int) -> bool:
    from whorl.kernels import decode_triton  # late: it needs Triton

    memory = decode_triton.shared_memory(q.device)
    return decode_triton.too_large(rows, q.shape[3], value_dim, q.dtype, memory)


def _why_not_parts(encoding: Encoding, slots: Slots) -> str | None:
    name = type(encoding).__name__
    if not hides_by_reach(encoding):
        return f"{name} has a mask that is no window"
    if encoding.axes > 1 and first(encoding, Visibility, Bias):
        return f"{name} has positions of {encoding.axes} axes"
    if first(encoding, BiasByDistance) and not slots.counted:
        return f"{name} has a bias by distance, and positions were given"
    return None


def decoding_step(encoding: Encoding, slots: Slots, q: Tensor, v: Tensor, asked: Asked, policy: Policy) -> DecodingStep:
    """The step for tensors that ``why_not_decode`` has let pass, and others of their kinds."""
    bias, reach, lines = first(encoding, Bias), encoding.reach, 0
    by_place = reach is not None
    if bias is None:
        bias_of = _no_bias
    elif isinstance(bias, BiasByDistance) and bias.formula:
        bias_of, by_place = _bias_by_distance(bias, slots.room, q.device), True
    elif isinstance(bias, BiasByPair) and bias.lines > 0 and slots.counted:
        bias_of, by_place, lines = _lines(bias, slots.room, q.device), True, bias.lines
    else:
        bias_of = _bias_by_pair(encoding, asked.length)
    terms = Terms(encoding, slots, q, v, asked.scale)
    turns = turns_of(encoding, slots.room, asked.length, q.device) if policy == "raw" else None
    factors = factors_of(encoding, slots, q.device)
    placement = first(encoding, Placement)
    rotary = None if placement is None else placement.rotary
    rules = Rules(
        asked.scale,
        asked.softcap,
        _window(reach),
        by_place=by_place or terms.by_place or turns is not None or factors is not None,
        counted=slots.counted,
        lines=lines,
        rotation=None if turns is None or rotary is None else rotary.rotation(),
        near=0 if turns is None else turns.near,
        sums=terms.sums,
    )
    scaled = None if factors is not None else scaled_queries(encoding, asked.length)
    if policy == "raw" or (placement is None and scaled is None):
        place = _raw(terms, scaled)
    else:
        place = _hooked(encoding, asked.length)
        if rotary is not None and scaled is None and slots.counted:
            tables = rotary.counted_tables(slots.room, asked.length, q.device)
            place = place if tables is None else _turn(rotary.rotation(), tables)
    return DecodingStep(place, bias_of, terms, turns, factors, rules)


def _window(reach: Reach | None) -> tuple[int, int] | None:
    # beyond 2^30 positions no cache has slots, and the kernel counts in 32 bits
    return None if reach is None else (min(reach.before, 2**30), min(reach.first, 2**30))


def _hooked(encoding: Encoding, length: int | None) -> Place:
    """The function that puts keys, placed by ``transform_qk``, and values into their slots, and returns queries."""
    copy = _copy()

    @torch.no_grad()
    def place(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor, new: Tensor | None) -> Tensor:
        here = _positions(slots, now)
        q, k = encoding.transform_qk(q, k, here, here, length)
        copy(k, v, slots, now, new)
        return q if q.stride(-1) == 1 else q.contiguous()

    return place


def _positions(slots: Slots, now: Tensor) -> Tensor:
    """The positions of new tokens. One beyond the room is not kept, and its output is NaN wherever it is placed."""
    return slots.positions.index_select(-1, now.clamp(max=slots.room - 1))


def _raw(terms: Terms, scaled: Callable[[Tensor, Tensor], Tensor] | None) -> Place:
    """The function that puts keys and values into their slots as they are, and returns queries as keys meet them."""
    copy = _copy()

    def place(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor, new: Tensor | None) -> Tensor:
        copy(k, v, slots, now, new)
        with torch.no_grad():
            if scaled is not None:
                q = scaled(q, _positions(slots, now))
            return terms.on_queries(q)

    return place


def _turn(rotation: Rotation, tables: Counted) -> Place:
    from whorl.kernels.append_triton import ready

    run: Callable[[Step, Tensor], None] | None = None

    def turn(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor, new: Tensor | None) -> Tensor:
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


def _copy() -> Callable[[Tensor, Tensor, Slots, Tensor, Tensor | None], None]:
    """The function that puts keys and values, and what is remembered of tokens, into their slots."""
    from whorl.kernels.append_triton import ready_copy

    run: Callable[..., None] | None = None

    def copy(k: Tensor, v: Tensor, slots: Slots, now: Tensor, new: Tensor | None) -> None:
        nonlocal run
        moved = k, v, slots.keys, slots.values, now, new, None if new is None else slots.memory
        if run is None:
            run = prepared(("copy",), moved, lambda: ready_copy(*moved))
        run(*moved)

    return copy


def _no_bias(slots: Slots, now: Tensor) -> None:
    return None


def _bias_by_pair(encoding: Encoding, length: int | None) -> BiasOf:
    """A bias of both positions, formed at every step."""

    @torch.no_grad()
    def bias(slots: Slots, now: Tensor) -> Tensor:
        here = _positions(slots, now)
        formed = encoding.score_bias(here, slots.positions, length)
        assert formed is not None
        return formed.float().expand(here.shape[0], -1, -1, -1)

    return bias


def _lines(part: BiasByPair, room: int, device: torch.device) -> BiasOf:
    """The numbers of a bias of straight lines, with those of queries at every position there is room for."""
    source: Any = part.encoding
    ids = slot_numbers(room, device)[:room]
    numbers = tables_of(source, ("lines", room, device), lambda: source.line_numbers(ids, room).contiguous())
    return lambda slots, now: numbers()


def _bias_by_distance(part: BiasByDistance, room: int, device: torch.device) -> BiasOf:
    """A bias by distance, (heads, distances), for as many distances as there is room for."""
    distances = slot_numbers(room, device)[:room]
    table = tables_of(part.encoding, ("bias", room, device), lambda: part.table(distances, torch.float32).contiguous())
    return lambda slots, now: table()


def slot_numbers(room: int, device: torch.device) -> Tensor:
    """0, 1, 2, …, at least so many, on the device: a view of it tells a kernel where it is, without a copy."""
    return _numbers(1 << (room - 1).bit_length(), device)


@held
def _numbers(count: int, device: torch.device) -> Tensor:
    return _apart(torch.arange(count, device=device))


def _apart(numbers: Tensor) -> Tensor:
    """The numbers 16 bytes apart: a kernel is compiled anew for pointers that are aligned otherwise."""
    return numbers[:, None].repeat(1, 2)[:, 0]
