"""A decoding step on the CPU: one new token, torch's kernel over the filled slots, and little Python around it.

Heads that share keys are rows of one head, so that nothing is repeated. A bias by distance is kept in reverse, where
the biases of all slots for the next token are a view. Distances are those of positions, and between slots they are the
same unless padding lies there: then every token has a place, the slot that it would be in without that padding.
Terms of raw queries and keys by distance are added the same way: their rows are kept in reverse too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from whorl.attend.decoding import Asked
from whorl.attend.slots import Slots
from whorl.encodings.base import Encoding
from whorl.encodings.content import RowsByDistance
from whorl.encodings.made_of import TablesOf, growing_of, tables_of
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    Branches,
    OutputTerm,
    Placement,
    QueryScale,
    ScoreTerm,
    bias_by_distance,
    every,
    first,
    hides_by_reach,
    lone_rotation,
)
from whorl.encodings.rotary import Counted
from whorl.kernels.refusals import choose_rotate
from whorl.plans import weakly
from whorl.rotary.rotation import Rotation
from whorl.tracing import may_read_values, operators_are_watched

AHEAD = 8  # rows by distance that are made at once where a text grows by one token

Place = Callable[[Tensor, Tensor, Slots, int], Tensor]


def why_not_step(encoding: Encoding, slots: Slots | None, q: Tensor, v: Tensor, asked: Asked) -> str | None:
    """What keeps this step from being one call of torch's kernel, or None."""
    if slots is None or not slots.filled or slots.filled == slots.room or not q.numel():
        return "the cache or the batch is empty, or the cache has to grow"
    if q.shape[2] != 1 or q.shape[3] != v.shape[3] or asked.softcap is not None:
        return "it is for one token, keys and values of one size, and no softcap"
    if not slots.follows or not slots.counted:
        return "positions were given"
    if operators_are_watched() or type(q) is not Tensor or torch.is_autocast_enabled("cpu"):
        return "a compiler, a mode, autocast or a tensor of another class is at work"
    bias, reach = first(encoding, Bias), encoding.reach
    if first(encoding, Branches) or (bias and not (isinstance(bias, BiasByDistance) and bias.formula)):
        return f"{type(encoding).__name__} has more than a bias by distance"
    if not _has_rows_alone(encoding):
        return f"{type(encoding).__name__} has terms that are not made of rows by distance"
    if first(encoding, ScoreTerm) and q.dtype == torch.float64:
        return "rows by distance are made in float32"
    if not hides_by_reach(encoding) or (reach is not None and reach.first):
        return f"{type(encoding).__name__} has a mask that is no window"
    if slots.padded and not may_read_values(slots.real):
        return "there is padding, and looking where would wait for the device"
    return None


def _has_rows_alone(encoding: Encoding) -> bool:
    """Whether all terms of an encoding on scores and values, if any, are made of the rows by distance of one."""
    terms = every(encoding, ScoreTerm, OutputTerm)
    if not terms:
        return True
    rows = all(term.form == "rows" and term.encoding is terms[0].encoding for term in terms)
    return rows and isinstance(terms[0], ScoreTerm)


class CpuStep:
    """The plan of a kind of step. ``unfit`` is what kept the kernels of a GPU from it."""

    unfit: str | None = "the tensors are on the CPU"

    def __init__(self, encoding: Encoding, slots: Slots, q: Tensor, asked: Asked) -> None:
        (self._place, self._counted), self._scale = _place(encoding, slots, asked.length), asked.scale
        self._shape, self._rows = tuple(q.shape), (q.shape[0], slots.keys.shape[1], -1, q.shape[3])
        bias, reach = first(encoding, Bias), encoding.reach
        self._bias = _bias(bias, slots) if isinstance(bias, BiasByDistance) else None
        term = first(encoding, ScoreTerm)
        self._terms = None if term is None else RowTerms(term.encoding, slots, asked.scale)
        self._window = slots.room if reach is None else reach.before + 1

    @property
    def bytes(self) -> int:
        """Memory of the tables that the steps so far have made."""
        return sum(tables.bytes for tables in (self._bias, self._counted, self._terms) if tables is not None)

    def working_memory(self) -> list[Any]:
        """Where a cache's padding is, which a step finds out when it has changed."""
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
        """The attention output of the next token, which is kept."""
        assert following is None and hidden is None
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            q, k, v = q.detach(), k.detach(), v.detach()  # a cache keeps no gradient
        filled, keys, values = slots.filled, slots.keys, slots.values
        stop = filled + 1
        q = self._place(q, k, slots, filled).reshape(self._rows)
        values[:, :, filled:stop] = v
        start, mask, places = self._mask(slots, stop, memory)
        keys, values = keys[:, :, start:stop], values[:, :, start:stop]
        if self._terms is None:
            out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self._scale)
        else:
            out = self._terms(q, keys, values, mask, stop, places)
        return out.view(self._shape)

    def _mask(self, slots: Slots, stop: int, memory: list[Any]) -> tuple[int, Tensor | None, Tensor | None]:
        """What a token in the last one of ``stop`` slots sees.

        The first slot that it can see, what is added to scores from there, and the places of tokens from there where
        they are not those slots.
        """
        bias, window = None if self._bias is None else self._bias(), self._window
        if not slots.padded:
            start = max(0, stop - window)
            return start, None if bias is None else bias[..., start - stop :], None
        if not memory or not memory[0].is_of(slots.real):
            memory[:] = [_padding(slots)]
        (padding,) = memory
        start = max(0, stop - window - padding.between)
        added = padding.hidden[..., start:stop]
        if not padding.between:
            return start, added if bias is None else bias[..., start - stop :] + added, None
        places = padding.places[..., start:stop]
        if stop > window:
            added = added.masked_fill(places < stop - window, -torch.inf)
        if bias is not None:
            sizes = (slots.real.shape[0], *bias.shape[1:3], -1)
            added = bias[..., -stop:].expand(sizes).gather(-1, places.expand(sizes)) + added
        return start, added, places


class RowTerms:
    """Terms made of an encoding's rows by distance: attention with them, and with what else is added to scores."""

    def __init__(self, source: Any, slots: Slots, scale: float) -> None:
        shared = slots.keys.shape[1]
        key = "rows in reverse", scale, shared, slots.keys.device
        self._rows, self._scale = growing_of(source, key, lambda own: GrowingRows(own, shared, scale)), scale

    @property
    def bytes(self) -> int:
        """Memory of the rows."""
        return self._rows.bytes

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, added: Tensor | None, stop: int, places: Tensor | None
    ) -> Tensor:
        """The output of queries (batch, heads of keys, queries of each, d) for the keys before slot ``stop``."""
        count = keys.shape[2]
        rows = self._rows().for_distances(count)
        if rows.query is not None:
            products = _products(q.float() if rows.position is None else q + rows.position, rows.query)
            added = _sum(added, _by_key(products, count, stop, places))
        if rows.key is not None:
            added = _sum(added, _of_keys(keys, rows.key, stop, places))
        if rows.content is not None:  # what meets keys as a query does
            q = (q + rows.content).to(q.dtype)
        if rows.value is None:
            return scaled_dot_product_attention(q, keys, values, attn_mask=added, scale=self._scale)
        weights = _sum(added, q.float() @ keys.float().mT * self._scale).softmax(-1)
        of_rows = _by_row(weights, rows.value.shape[0], stop, places) @ rows.value
        return (weights @ values.float() + of_rows).to(values.dtype)


class GrowingRows:
    """The rows by distance of an encoding as it is now, in float32, scaled, and in reverse.

    The last row is of distance 0, and the first one serves all keys that are farther than there are rows. A text that
    grows needs one more for each token: those that are there stay, in memory that doubles as a cache's does.
    """

    def __init__(self, source: Any, shared: int, scale: float) -> None:
        self._source, self._shared, self._scale = weakly(source), shared, scale
        self._made = _Made(0, [None, None, None], RowsByDistance())  # replaced as a whole: other threads may read it

    def __iter__(self) -> Iterator[Tensor]:
        return (x for x in self._made.memory if x is not None)

    def for_distances(self, count: int) -> RowsByDistance:
        """The rows of so many distances from 0 on, or more."""
        made = self._made
        if made.reach < count:
            with torch.inference_mode(False), torch.no_grad():
                made = self._made = self._with_further(made, max(count - made.reach, AHEAD))
        return made.rows

    def _with_further(self, made: _Made, count: int) -> _Made:
        query, position, key, content, value = self._source().rows_by_distance(count, made.reach)
        memory, reach = [], made.reach
        for old, new, factor in zip(made.memory, (query, key, value), (self._scale, self._scale, 1.0), strict=True):
            memory.append(None if new is None else _grown(old, made.reach, new.float() * factor))
            reach = reach if new is None else made.reach + new.shape[-2]
        query, key, value = (None if x is None else x[..., x.shape[-2] - reach :, :] for x in memory)
        position, key, content = (
            None if x is None else x.detach().float().unflatten(0, (self._shared, -1)) for x in (position, key, content)
        )
        # fewer rows than were asked for say that there are no others
        served = reach if reach == made.reach + count else sys.maxsize
        return _Made(served, memory, RowsByDistance(query, position, key, content, value))


class _Made(NamedTuple):
    reach: int  # how many distances there are rows for
    memory: list[Tensor | None]  # of the rows of queries, of keys and of values
    rows: RowsByDistance  # what is filled of it


def _grown(memory: Tensor | None, filled: int, further: Tensor) -> Tensor:
    """Memory whose last rows are those that were ``filled`` and, before them, those of further distances."""
    stop = filled + further.shape[-2]
    if memory is None or memory.shape[-2] < stop:
        room = stop if memory is None else max(stop, 2 * memory.shape[-2])
        larger = further.new_empty(*further.shape[:-2], room, further.shape[-1])
        if filled and memory is not None:
            larger[..., room - filled :, :] = memory[..., memory.shape[-2] - filled :, :]
        memory = larger
    room = memory.shape[-2]
    memory[..., room - stop : room - filled, :] = further.flip(-2)
    return memory


def _sum(added: Tensor | None, term: Tensor) -> Tensor:
    return term if added is None else added + term


def _products(q: Tensor, rows: Tensor) -> Tensor:
    """Queries (batch, heads of keys, queries of each, d) times rows (heads or 1, rows, d), which are not copied."""
    if rows.shape[0] == 1:
        return q @ rows[0].mT
    products = torch.bmm(q.flatten(1, 2).transpose(0, 1), rows.mT)
    return products.transpose(0, 1).unflatten(1, q.shape[1:3])


def _row_of_place(places: Tensor, rows: int, stop: int) -> Tensor:
    """The row for each key of the query in the last slot, where a key's place is not its slot."""
    return (places + (rows - stop)).clamp(min=0)


def _by_key(products: Tensor, count: int, stop: int, places: Tensor | None) -> Tensor:
    """Numbers of rows (…, rows) as those of the last ``count`` keys."""
    rows, others = products.shape[-1], products.shape[:-1]
    if places is not None:
        return products.gather(-1, _row_of_place(places, rows, stop).expand(*others, -1))
    if rows >= count:
        return products[..., rows - count :]
    return torch.cat((products[..., :1].expand(*others, count - rows), products), -1)


def _by_row(weights: Tensor, rows: int, stop: int, places: Tensor | None) -> Tensor:
    """Weights of keys (…, keys), summed over the keys of each row."""
    far = weights.shape[-1] - rows
    if places is not None:
        sums = weights.new_zeros(*weights.shape[:-1], rows)
        return sums.scatter_add(-1, _row_of_place(places, rows, stop).expand(weights.shape), weights)
    if far <= 0:
        return pad(weights, (-far, 0))
    return torch.cat((weights[..., : far + 1].sum(-1, keepdim=True), weights[..., far + 1 :]), -1)


def _of_keys(keys: Tensor, rows: Tensor, stop: int, places: Tensor | None) -> Tensor:
    """Each key (batch, heads of keys, keys, d) times its row of (heads of keys, queries of each, rows, d)."""
    far, each = keys.shape[2] - rows.shape[2], keys.unsqueeze(2)
    if places is not None:
        own = rows[:, :, _row_of_place(places, rows.shape[2], stop).flatten(1)].movedim(2, 0)
        return (each * own).sum(-1)
    if far <= 0:
        return (each * rows[:, :, -far:]).sum(-1)
    shared = (keys[:, :, :far].float() @ rows[:, :, 0].mT).mT
    return torch.cat((shared, (each[..., far:, :] * rows).sum(-1)), -1)


class _Padding(NamedTuple):
    """Where padding is in the slots, filled or to come: plain steps leave that as it is."""

    real: Tensor
    version: int | None  # of ``real`` when this was made; None where torch does not count, in inference mode
    hidden: Tensor  # (batch, 1, 1, slots): what is added to scores, minus infinity for padding
    places: Tensor  # (batch, 1, 1, slots): the slot that each token would be in, if no padding lay behind it
    between: int  # how far a token is from its place at most: 0 where padding lies before texts, and nowhere else

    def is_of(self, real: Tensor) -> bool:
        """Whether all this is so still: memory is written into by steps that are not plain, or after a crop."""
        return real is self.real and self.version is not None and real._version == self.version


def _padding(slots: Slots) -> _Padding:
    real, numbers = slots.real, torch.arange(slots.room, device=slots.real.device)
    positions = slots.positions if slots.positions.ndim == 2 else slots.positions[0]  # counted: alike on every axis
    with torch.inference_mode(False):  # steps outside of that mode may use it
        # positions to come are written already, and the last slot is in its place
        places = torch.where(real, positions + (slots.room - 1 - positions[:, -1:]), numbers)
        hidden = slots.keys.new_zeros(real.shape, dtype=_wide(slots)).masked_fill(~real, -torch.inf)
        version = None if real.is_inference() else real._version
        return _Padding(real, version, hidden[:, None, None], places[:, None, None], int((places - numbers).amax()))


def _wide(slots: Slots) -> torch.dtype:
    """The dtype of what is added to scores."""
    # half a float rounds a large bias by more than what decides between keys; torch's kernel takes either
    return torch.promote_types(slots.keys.dtype, torch.float32)


def _bias(part: BiasByDistance, slots: Slots) -> TablesOf[Tensor]:
    """(1, heads of keys, queries of each, distances), down to 0 from the farthest that there is room for."""
    dtype, shared, room, device = _wide(slots), slots.keys.shape[1], slots.room, slots.keys.device

    def make(own: Encoding) -> Tensor:
        distances = torch.arange(room, device=device)
        return bias_by_distance(own).table(distances, dtype).flip(1).view(1, shared, -1, room)

    return tables_of(part.encoding, ("bias in reverse", room, dtype, shared, device), make)


def _place(encoding: Encoding, slots: Slots, length: int | None) -> tuple[Place, Counted | None]:
    """The function of (q, k, slots, slot) that puts the next key into its slot and returns the placed query.

    With it come the tables that it reads.
    """
    if first(encoding, Placement, QueryScale) is None:
        return _put, None
    rotary = lone_rotation(encoding)
    if rotary is not None and slots.keys.dtype != torch.float64:  # whose tables are float64, looked up by the hook
        tables = rotary.counted_tables(slots.room, length, slots.keys.device)
        if tables is not None and choose_rotate("auto", slots.keys, tables.cos, tables.sin) == "numba":
            return _turn(rotary.rotation(), tables), tables

    own = weakly(encoding)

    @torch.no_grad()  # of what an encoding has learned
    def by_hook(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
        here = slots.positions[..., slot : slot + 1]
        q, k = own().transform_qk(q, k, here, here, length)
        return _put(q, k, slots, slot)

    return by_hook, None


def _put(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
    slots.keys[:, :, slot : slot + 1] = k
    return q


def _turn(rotation: Rotation, tables: Counted) -> Place:
    """Turns the key into its slot, past all checks: they were made when the step was prepared."""
    run: Callable[..., Tensor] | None = None

    def turn(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
        nonlocal run
        rows = slots.positions if slots.positions.ndim == 2 else slots.positions[0]  # counted: alike on every axis
        if run is None:
            from whorl.kernels.rotate_numba import ready_append

            run = ready_append(q, k, tables.cos, tables.sin, rows, slots.keys, rotation)
        return run(q, k, rows, slots.keys, slot)

    return turn
