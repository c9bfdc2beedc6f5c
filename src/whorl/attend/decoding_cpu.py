"""A decoding step on the CPU: one new token, torch's kernel over the filled slots, and little Python around it.

Heads that share keys are rows of one head, so that nothing is repeated. A bias by distance is kept in reverse, where
the biases of all slots for the next token are a view. Distances are those of positions, and between slots they are the
same unless padding lies there: then every token has a place, the slot that it would be in without that padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.decoding import Asked
from whorl.attend.slots import Slots
from whorl.encodings.base import Encoding
from whorl.encodings.made_of import TablesOf, tables_of
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    Branches,
    OutputTerm,
    Placement,
    QueryScale,
    ScoreTerm,
    bias_by_distance,
    first,
    hides_by_reach,
    lone_rotation,
)
from whorl.encodings.rotary import Counted
from whorl.kernels.refusals import choose_rotate
from whorl.plans import weakly
from whorl.rotary.rotation import Rotation
from whorl.tracing import may_read_values, operators_are_watched

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
    term, bias, reach = first(encoding, ScoreTerm, OutputTerm, Branches), first(encoding, Bias), encoding.reach
    if term or (bias and not (isinstance(bias, BiasByDistance) and bias.formula)):
        return f"{type(encoding).__name__} has more than a bias by distance"
    if not hides_by_reach(encoding) or (reach is not None and reach.first):
        return f"{type(encoding).__name__} has a mask that is no window"
    if slots.padded and not may_read_values(slots.real):
        return "there is padding, and looking where would wait for the device"
    return None


class CpuStep:
    """The plan of a kind of step. ``unfit`` is what kept the kernels of a GPU from it."""

    unfit: str | None = "the tensors are on the CPU"

    def __init__(self, encoding: Encoding, slots: Slots, q: Tensor, asked: Asked) -> None:
        (self._place, self._counted), self._scale = _place(encoding, slots, asked.length), asked.scale
        self._shape, self._rows = tuple(q.shape), (q.shape[0], slots.keys.shape[1], -1, q.shape[3])
        bias, reach = first(encoding, Bias), encoding.reach
        self._bias = _bias(bias, slots) if isinstance(bias, BiasByDistance) else None
        self._window = slots.room if reach is None else reach.before + 1

    @property
    def bytes(self) -> int:
        """Memory of the tables that the steps so far have made."""
        return sum(tables.bytes for tables in (self._bias, self._counted) if tables is not None)

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
        q = self._place(q, k, slots, filled)
        values[:, :, filled:stop] = v
        start, mask = self._mask(slots, stop, memory)
        out = scaled_dot_product_attention(
            q.reshape(self._rows), keys[:, :, start:stop], values[:, :, start:stop], attn_mask=mask, scale=self._scale
        )
        return out.view(self._shape)

    def _mask(self, slots: Slots, stop: int, memory: list[Any]) -> tuple[int, Tensor | None]:
        """The first slot that a token in the last one of ``stop`` can see, and what is added to scores from there."""
        bias, window = None if self._bias is None else self._bias(), self._window
        if not slots.padded:
            start = max(0, stop - window)
            return start, None if bias is None else bias[..., start - stop :]
        if not memory or not memory[0].is_of(slots.real):
            memory[:] = [_padding(slots)]
        (padding,) = memory
        start = max(0, stop - window - padding.between)
        added = padding.hidden[..., start:stop]
        if not padding.between:
            return start, added if bias is None else bias[..., start - stop :] + added
        places = padding.places[..., start:stop]
        if stop > window:
            added = added.masked_fill(places < stop - window, -torch.inf)
        if bias is not None:
            sizes = (slots.real.shape[0], *bias.shape[1:3], -1)
            added = bias[..., -stop:].expand(sizes).gather(-1, places.expand(sizes)) + added
        return start, added


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
