"""A decoding step on the CPU: one new token, torch's kernel over the filled slots, and little Python around it.

Heads that share keys are rows of one head, so that nothing is repeated. A bias by distance is kept in reverse, where
the biases of all slots for the next token are a view.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.decoding import Asked, TableByDistance
from whorl.attend.slots import Slots
from whorl.encodings.base import Encoding
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    Branches,
    OutputTerm,
    Placement,
    QueryScale,
    ScoreTerm,
    first,
    hides_by_reach,
    lone_rotation,
)
from whorl.encodings.rotary import Counted
from whorl.kernels.ops import ready_kernel
from whorl.kernels.refusals import choose_rotate
from whorl.rotary.rotation import Rotation
from whorl.tracing import operators_are_watched

Place = Callable[[Tensor, Tensor, Slots, int], Tensor]


def why_not_step(encoding: Encoding, slots: Slots | None, q: Tensor, v: Tensor, asked: Asked) -> str | None:
    """What keeps this step from being one call of torch's kernel, or None."""
    if slots is None or not slots.filled or slots.filled == slots.room:
        return "the cache is empty or has to grow"
    if q.shape[2] != 1 or q.shape[3] != v.shape[3] or asked.softcap is not None:
        return "it is for one token, keys and values of one size, and no softcap"
    if not slots.follows or not slots.counted or slots.padded:
        return "there is padding, or positions were given"
    if operators_are_watched() or type(q) is not Tensor or torch.is_autocast_enabled("cpu"):
        return "a compiler, a mode, autocast or a tensor of another class is at work"
    term, bias, reach = first(encoding, ScoreTerm, OutputTerm, Branches), first(encoding, Bias), encoding.reach
    if term or (bias and not (isinstance(bias, BiasByDistance) and bias.formula)):
        return f"{type(encoding).__name__} has more than a bias by distance"
    if not hides_by_reach(encoding) or (reach is not None and reach.first):
        return f"{type(encoding).__name__} has a mask that is no window"
    return None


class CpuStep:
    """A kind of step, ready to run."""

    def __init__(self, encoding: Encoding, slots: Slots, asked: Asked) -> None:
        self._place, self._scale = _place(encoding, slots, asked.length), asked.scale
        bias, reach = first(encoding, Bias), encoding.reach
        self._table = TableByDistance(bias) if isinstance(bias, BiasByDistance) else None
        self._window = slots.room if reach is None else reach.before + 1
        self._reversed: tuple[Tensor, Tensor] | None = None  # the table, and what is made of it

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Slots, following: Tensor | None, hidden: Tensor | None
    ) -> Tensor:
        """The attention output of the next token, which is kept."""
        assert following is None and hidden is None
        filled, keys, values = slots.filled, slots.keys, slots.values
        stop = filled + 1
        with torch.no_grad():
            q = self._place(q, k, slots, filled)
            values[:, :, filled:stop].copy_(v)
            start = max(0, stop - self._window)
            rows = q.reshape(q.shape[0], keys.shape[1], -1, q.shape[3])
            mask = None if self._table is None else self._bias(self._table, slots, q)[..., start - stop :]
            out = scaled_dot_product_attention(
                rows, keys[:, :, start:stop], values[:, :, start:stop], attn_mask=mask, scale=self._scale
            )
        return out.view(*q.shape[:3], v.shape[3])

    def _bias(self, table: TableByDistance, slots: Slots, q: Tensor) -> Tensor:
        """(1, heads of keys, queries of each, distances), from the farthest down to 0, in the dtype of q."""
        values = table(slots.room, q.device)
        if self._reversed is None or self._reversed[0] is not values:
            self._reversed = values, values.flip(1).to(q.dtype).view(1, slots.keys.shape[1], -1, values.shape[1])
        return self._reversed[1]


def _place(encoding: Encoding, slots: Slots, length: int | None) -> Place:
    """The function of (q, k, slots, slot) that puts the next key into its slot and returns the placed query."""
    if first(encoding, Placement, QueryScale) is None:
        return _put
    rotary = lone_rotation(encoding)
    if rotary is not None and slots.keys.dtype != torch.float64:  # whose tables are float64, looked up by the hook
        tables = rotary.counted_tables(slots.room, length, slots.keys.device)
        if tables is not None and choose_rotate("auto", slots.keys, tables.cos, tables.sin) == "numba":
            return _turn(rotary.rotation(), tables)

    def by_hook(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
        here = slots.positions[..., slot : slot + 1]
        return _put(*encoding.transform_qk(q, k, here, here, length), slots, slot)

    return by_hook


def _put(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
    slots.keys[:, :, slot : slot + 1].copy_(k)
    return q


def _turn(rotation: Rotation, tables: Counted) -> Place:
    """Turns the key into its slot, past all checks: they were made when the step was prepared."""
    run: Callable[..., None] | None = None

    def turn(q: Tensor, k: Tensor, slots: Slots, slot: int) -> Tensor:
        nonlocal run
        stop = slot + 1
        cos, sin = tables.cos[slot:stop], tables.sin[slot:stop]
        xs, outs = (q, k), (torch.empty_like(q), slots.keys[:, :, slot:stop])
        if run is None:
            run = ready_kernel(xs, cos, sin, outs, None, rotation, "numba")
        run(xs, cos, sin, outs, None)
        return outs[0]

    return turn
