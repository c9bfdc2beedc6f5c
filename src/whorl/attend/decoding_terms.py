"""What a decoding step's kernel adds to scores and values beside a bias, made of an encoding's parts.

Tables that the learned numbers decide are made once, and anew when those change. What a step makes itself is small: the
products of its queries with the rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.branches import places_by_branch
from whorl.attend.slots import Slots
from whorl.autocast import without_autocast
from whorl.encodings.base import Encoding
from whorl.encodings.content import RowsByDistance
from whorl.encodings.made_of import TablesOf, tables_of
from whorl.encodings.parts import Branches, Fade, OutputTerm, Placement, QueryScale, ScoreTerm, every, first
from whorl.encodings.rotary import Counted
from whorl.kernels.decode import Sums
from whorl.plans import weakly

SUMS: dict[str | None, Sums] = {"sums": "kept", "counts": "gates"}


class Added(NamedTuple):
    """What a kernel adds, as ``kernels.decode.Kept`` has it."""

    rows: Tensor | None = None
    key_rows: Tensor | None = None
    value_rows: Tensor | None = None


NOTHING = Added()


class Terms:
    """The terms of an encoding on scores and values, for steps of one scale.

    sums      what the kernel sums from a key to the query
    by_place  whether they go by distance
    reader    the encoding that remembers hidden states, held weakly, or None
    tables    what the learned numbers decide, or None
    """

    def __init__(self, encoding: Encoding, slots: Slots, q: Tensor, v: Tensor, scale: float) -> None:
        term, value = first(encoding, ScoreTerm), first(encoding, OutputTerm)
        self.sums: Sums = "none" if term is None else SUMS.get(term.form, "none")
        self.by_place = value is not None or (term is not None and term.form == "rows")
        self.reader = weakly(term.encoding) if term is not None and term.form == "sums" else None
        self.tables: TablesOf[RowsByDistance] | None = None
        source: Any = None if term is None else term.encoding
        if self.by_place:
            # a query that is neither turned nor scaled meets raw keys: so can content
            folds = first(encoding, Placement, QueryScale) is None
            room, key = slots.room, ("rows by distance", slots.room, scale, v.dtype, q.device, folds)
            self.tables = tables_of(source, key, lambda own: _by_distance(own, room, scale, v.dtype, folds))
        elif self.sums == "gates":
            key = "rows by count", q.device
            self.tables = tables_of(source, key, lambda own: RowsByDistance(query=own.rows_by_count().float()[None]))

    def __call__(self, q: Tensor) -> Added:
        """What raw queries make of them."""
        if self.tables is None:
            return NOTHING
        tables = self.tables()
        return Added(None if tables.query is None else _products(q, tables), tables.key, tables.value)

    def on_queries(self, q: Tensor) -> Tensor:
        """Queries that meet keys, with what else meets them alike."""
        content = None if self.tables is None else self.tables().content
        if content is None:
            return q
        return torch.add(q, content, out=torch.empty_like(q))  # in float32, rounded once


def _by_distance(source: Any, room: int, scale: float, dtype: torch.dtype, folds: bool) -> RowsByDistance:
    """The tables in float32 and scaled, as the kernel takes them; content is in the keys' rows unless it ``folds``."""
    query, position, key, content, value = source.rows_by_distance(room)
    if content is not None and not folds:
        key = content.float()[:, None] if key is None else key.float() + content.float()[:, None]
    return RowsByDistance(
        query=None if query is None else (query.float() * scale).contiguous(),
        position=None if position is None else position.float()[:, None],
        key=None if key is None else (key.float() * scale).contiguous(),
        content=content.float()[:, None] if content is not None and folds else None,
        value=None if value is None else value.to(dtype).contiguous(),
    )


@torch.no_grad()
def _products(q: Tensor, tables: RowsByDistance) -> Tensor:
    """Queries times the rows of a table, (batch, heads, queries, rows) in float32, without a copy of the table."""
    table = tables.query
    assert table is not None
    with without_autocast(q.device.type):
        q = q.float() if tables.position is None else q + tables.position
        if table.shape[0] == 1:
            return q @ table[0].mT
        batch, heads, count, dim = q.shape
        rows = torch.bmm(q.transpose(0, 1).reshape(heads, batch * count, dim), table.mT)
        return rows.view(heads, batch, count, -1).transpose(0, 1)


def why_not_terms(encoding: Encoding, slots: Slots, hidden: Tensor | None) -> str | None:
    """What keeps the kernel from the terms of an encoding, or None."""
    name, terms = type(encoding).__name__, (first(encoding, ScoreTerm), first(encoding, OutputTerm))
    for term in terms:
        if term is not None and term.form is None:
            return f"{name} uses {term.hook}"
    score, output = terms
    if output is not None and (score is None or score.form != "rows" or score.encoding is not output.encoding):
        return f"{name} uses {output.hook}"
    if output is not None or (score is not None and score.form == "rows"):
        return None if slots.counted else f"{name} has terms by distance, and positions were given"
    if score is not None and score.form == "sums":
        memory = slots.memory
        if memory is None or memory.dtype != torch.float32 or hidden is None or hidden.dtype == torch.float64:
            return f"{name} remembers hidden states in another precision than float32"
    return None


class Turns(NamedTuple):
    """How raw keys are turned: tables (placements, 2, slots, pairs) of queries and of keys, and what fades.

    ``shared`` is what all layers share of them, as long as one of them holds it.
    """

    cos: Tensor
    sin: Tensor
    fades: Tensor | None
    near: int
    shared: TablesOf[Any] | Counted


class _Pair(NamedTuple):
    cos: Tensor
    sin: Tensor


def why_not_turns(encoding: Encoding, slots: Slots, length: int | None) -> str | None:
    """What keeps the kernel from turning raw keys, or None."""
    name, placement = type(encoding).__name__, first(encoding, Placement)
    branches, fade = first(encoding, Branches), first(encoding, Fade)
    if placement is None:
        return None
    if placement.rotary is None or placement.rotary.counted_tables(1, length, slots.keys.device) is None:
        return f"{name} keeps keys raw, and its angles are learned, differ by head or are no rotation"
    if not slots.counted:
        return f"{name} keeps keys raw, and positions were given"
    if (branches and not branches.near) or (fade and not fade.rates) or (branches and fade):
        return f"{name} places keys in a way of its own"
    return None


def turns_of(encoding: Encoding, room: int, length: int | None, device: torch.device) -> Turns | None:
    """How raw keys are turned, where ``why_not_turns`` has let them pass; None for keys that are not."""
    placement, branches, fade = first(encoding, Placement), first(encoding, Branches), first(encoding, Fade)
    if placement is None:
        return None
    rotary: Any = placement.rotary
    if branches is not None:
        tables = _by_branch(branches.encoding, rotary, room, length, device)
        return Turns(*tables(), None, branches.near, tables)
    counted = rotary.counted_tables(room, length, device)
    cos, sin = (table.expand(1, 2, -1, -1) for table in (counted.cos, counted.sin))
    fades = None if fade is None or fade.rates is None else torch.tensor(fade.rates, device=device)
    return Turns(cos, sin, fades, 0, counted)


def _by_branch(encoding: Encoding, rotary: Any, room: int, length: int | None, device: torch.device) -> TablesOf[_Pair]:
    """The tables of queries and of keys in the first two branches; a third one has keys after the query."""

    turning = weakly(rotary)

    def make(own: Encoding) -> _Pair:
        ids = torch.arange(room, device=device)
        tables = [[turning().tables(at, length) for at in side] for side in places_by_branch(own, ids, ids)[:2]]
        cos, sin = (torch.stack([torch.stack([side[i] for side in both]) for both in tables]) for i in range(2))
        return _Pair(cos, sin)

    served = length if rotary.length_dependent else None
    return tables_of(encoding, ("turns by branch", type(rotary), rotary.config, served, room, device), make)


def scaled_queries(encoding: Encoding, length: int | None) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function of (q, positions) that multiplies queries before they are placed; None where nothing does."""
    if first(encoding, QueryScale) is None:
        return None
    own = weakly(encoding)
    if encoding.scales_queries_only:
        return lambda q, here: own().transform_qk(q, q, here, here, length)[0]
    return lambda q, here: own().scale_queries(q, here, length)


def factors_of(encoding: Encoding, slots: Slots, device: torch.device) -> TablesOf[Tensor] | None:
    """What multiplies a query, (heads or 1, positions); None where nothing does, or more than a number by position."""
    scales = every(encoding, QueryScale)
    if not scales or not slots.counted or encoding.axes > 1 or not all(part.by_position for part in scales):
        return None
    room = slots.room

    def make(own: Encoding) -> Tensor:
        sources: list[Any] = [part.encoding for part in every(own, QueryScale)]
        ids = torch.arange(room, device=device)
        return math.prod(source.query_factor(ids) for source in sources).float().contiguous()  # pyright: ignore[reportAttributeAccessIssue]

    return tables_of(encoding, ("factors", room, device), make)
