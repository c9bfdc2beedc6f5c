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
    bias_by_distance,
    first,
    hides_by_reach,
)
from whorl.encodings.rotary import Counted
from whorl.graphs import held
from whorl.kernels.append import Step
from whorl.kernels.decode import Kept, Rules
from whorl.kernels.refusals import why_not_here
from whorl.plans import plan_of, weakly
from whorl.rotary.rotation import Rotation
from whorl.tracing import operators_are_watched

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_QUERIES = 16
MOST_ROWS = 128  # of queries that share keys
LARGEST_DIM = 256

# of (q, k, v, slots, now, what the encoding remembers of the tokens)
Place = Callable[[Tensor, Tensor, Tensor, Slots, Tensor, Tensor | None], Tensor]
BiasOf = Callable[[Slots, Tensor], Tensor]


class Asked(NamedTuple):
    """What a step was asked for, beside its tensors."""

    length: int | None
    scale: float
    softcap: float | None


class DecodingStep:
    """The plan of a kind of step: encoding, shapes and strides are those it was made for.

    ``unfit`` is what kept the kernels of a GPU from it, which is nothing.
    """

    unfit: str | None = None

    def __init__(
        self,
        place: Place,
        bias: BiasOf | TablesOf[Tensor] | None,
        terms: Terms,
        turns: Turns | None,
        factors: TablesOf[Tensor] | None,
        rules: Rules,
        counted: Counted | None,
    ) -> None:
        self._place, self._bias, self._terms, self._counted = place, bias, terms, counted
        self._turns, self._factors, self._rules = turns, factors, rules
        self._reads_positions = rules.by_place and not rules.counted
        self._attend: Any = None  # found by the first step

    @property
    def bytes(self) -> int:
        """Memory of the tables that the steps so far have made."""
        turned = None if self._turns is None else self._turns.shared
        owned = self._bias, self._terms.tables, self._factors, turned, self._counted
        return sum(tables.bytes for tables in owned if isinstance(tables, (TablesOf, Counted)))

    def working_memory(self) -> list[Any]:
        """Memory that the steps of one cache work in; the first step fills it, and they run one after another."""
        return []

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slots: Slots,
        following: Tensor | None,
        hidden: Tensor | None,
        memory: list[Any],
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
        remembered = None if terms.reader is None else slots.memory
        bias, factors = self._bias, None if self._factors is None else self._factors()
        if bias is not None:
            bias = bias() if isinstance(bias, TablesOf) else bias(slots, now)
        kept = Kept(slots.keys, slots.values, now, bias, positions, real, cos, sin, fades, *added, remembered, factors)
        if self._attend is None:
            from whorl.kernels.decode_triton import ready

            self._attend = plan_of(("decode", rules), (q, *kept), lambda: ready(q, kept, rules))
        if not memory:
            memory += self._attend.memory(q.device)
        out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
        self._attend(q, kept, out, *memory)
        return out

    def _remembered(self, hidden: Tensor | None) -> Tensor | None:
        reader = None if self._terms.reader is None else self._terms.reader()
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
    bias, reach, lines, bias_of = first(encoding, Bias), encoding.reach, 0, None
    by_place = reach is not None
    if bias is None:
        pass
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
    scaled, counted = None if factors is not None else scaled_queries(encoding, asked.length), None
    if policy == "raw" or (placement is None and scaled is None):
        place = _raw(terms, scaled)
    else:
        place = _hooked(encoding, asked.length)
        if rotary is not None and scaled is None and slots.counted:
            counted = rotary.counted_tables(slots.room, asked.length, q.device)
            place = place if counted is None else _turn(rotary.rotation(), counted)
    return DecodingStep(place, bias_of, terms, turns, factors, rules, counted)


def _window(reach: Reach | None) -> tuple[int, int] | None:
    # beyond 2^30 positions no cache has slots, and the kernel counts in 32 bits
    return None if reach is None else (min(reach.before, 2**30), min(reach.first, 2**30))


def _hooked(encoding: Encoding, length: int | None) -> Place:
    """The function that puts keys, placed by ``transform_qk``, and values into their slots, and returns queries."""
    copy, own = _copy(), weakly(encoding)

    @torch.no_grad()
    def place(q: Tensor, k: Tensor, v: Tensor, slots: Slots, now: Tensor, new: Tensor | None) -> Tensor:
        here = _positions(slots, now)
        q, k = own().transform_qk(q, k, here, here, length)
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
            run = plan_of(
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
            run = plan_of(("copy",), moved, lambda: ready_copy(*moved))
        run(*moved)

    return copy


def _bias_by_pair(encoding: Encoding, length: int | None) -> BiasOf:
    """A bias of both positions, formed at every step."""
    own = weakly(encoding)

    @torch.no_grad()
    def bias(slots: Slots, now: Tensor) -> Tensor:
        here = _positions(slots, now)
        formed = own().score_bias(here, slots.positions, length)
        return formed.float().expand(here.shape[0], -1, -1, -1)

    return bias


def _lines(part: BiasByPair, room: int, device: torch.device) -> TablesOf[Tensor]:
    """The numbers of a bias of straight lines, with those of queries at every position there is room for."""
    ids = slot_numbers(room, device)[:room]
    return tables_of(part.encoding, ("lines", room, device), lambda own: own.line_numbers(ids, room).contiguous())


def _bias_by_distance(part: BiasByDistance, room: int, device: torch.device) -> TablesOf[Tensor]:
    """A bias by distance, (heads, distances), for as many distances as there is room for."""
    distances = slot_numbers(room, device)[:room]
    return tables_of(
        part.encoding, ("bias", room, device), lambda own: bias_by_distance(own).table(distances).contiguous()
    )


def slot_numbers(room: int, device: torch.device) -> Tensor:
    """0, 1, 2, …, at least so many, on the device: a view of it tells a kernel where it is, without a copy."""
    return _numbers(1 << (room - 1).bit_length(), device)


@held
def _numbers(count: int, device: torch.device) -> Tensor:
    return _apart(torch.arange(count, device=device))


def _apart(numbers: Tensor) -> Tensor:
    """The numbers 16 bytes apart: a kernel is compiled anew for pointers that are aligned otherwise."""
    return numbers[:, None].repeat(1, 2)[:, 0]
