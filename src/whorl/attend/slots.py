"""Slots: the memory of a cache, token by token, with the positions that are kept beside keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from whorl.attend.kept_positions import NewPositions, check_exact
from whorl.encodings.base import Encoding
from whorl.errors import WhorlError

FIRST_CAPACITY = 64

Policy = Literal["transformed", "raw"]  # what is kept of keys


class Slots(NamedTuple):
    """Tokens by slot, of which the first ``filled`` are in use."""

    filled: int
    keys: Tensor
    values: Tensor
    positions: Tensor  # (batch, slots), axes in front where there are several: int64, or float64 once fractions came
    real: Tensor  # (batch, slots), False for padding; means nothing unless padded
    memory: Tensor | None  # what the encoding remembers of hidden states, slots last
    padded: bool  # whether any slot may be padding
    counted: bool = False  # whether every position counts the real tokens before it, none having been given
    follows: bool = False  # whether the slots behind the filled ones have the positions of the tokens to come already
    heads: int = 0  # of the queries

    @property
    def room(self) -> int:
        """How many slots there is memory for."""
        return self.keys.shape[2]

    def next_position(self) -> Tensor | int:
        """What comes after the largest position of the real tokens of each row, on any axis: (batch, 1), or for all."""
        if not self.filled or (self.counted and not self.padded):
            return self.filled
        if self.follows and self.filled < self.room:
            return _of_any_axis(self.positions)[:, self.filled : self.filled + 1]
        kept = _of_any_axis(self.positions[..., : self.filled])
        if not self.padded:
            return kept.amax(-1, keepdim=True) + 1
        real = self.real[:, : self.filled]
        lowest = -torch.inf if kept.is_floating_point() else torch.iinfo(kept.dtype).min
        after = kept.masked_fill(~real, lowest).amax(-1, keepdim=True) + 1
        return torch.where(real.any(-1, keepdim=True), after, 0)

    def followed(self, count: int, heads: int) -> Slots:
        """With so many more filled slots; written out, since a decoding step waits for it."""
        return Slots(self.filled + count, *self[1:-1], heads)

    def cropped(self, count: int) -> Slots:
        """The first ``count`` slots, in the same memory."""
        # behind padding or given positions that go, other positions follow than were written there
        return self._replace(filled=count, follows=self.follows and self.counted and not self.padded)

    def reordered(self, rows: Tensor) -> Slots:
        """Row i of the batch being what row rows[i] was, in memory of its own."""
        # index_select, and not an index in brackets: that would take a negative row for one counted from the end
        with torch.inference_mode(False):  # what is made here is written into later, maybe outside of that mode
            return self._replace(
                keys=self.keys.index_select(0, rows),
                values=self.values.index_select(0, rows),
                positions=self.positions.index_select(-2, rows),
                real=self.real.index_select(0, rows),
                memory=None if self.memory is None else self.memory.index_select(0, rows),
            )


class State(NamedTuple):
    """All that a cache is, replaced as a whole."""

    encoding: Encoding
    policy: Policy
    length: int | None
    slots: Slots | None  # None before the first token


def _of_any_axis(positions: Tensor) -> Tensor:
    """The largest position of each token on its axes."""
    return positions if positions.ndim == 2 else positions.amax(0)


def check_fit(slots: Slots | None, k: Tensor, v: Tensor, capacity: int | None) -> None:
    """Raises a WhorlError where new keys and values are no further ones of those that are kept."""
    for name, kept, new in () if slots is None else (("keys", slots.keys, k), ("values", slots.values, v)):
        if (kept.shape[:2], kept.shape[3]) != (new.shape[:2], new.shape[3]):
            raise WhorlError(
                f"KVCache.attend: the cache holds {name} of shape {tuple(kept.shape)}, got {tuple(new.shape)}. "
                "Batch, heads and dim stay the same; use reorder to change rows, or reset."
            )
        if kept.dtype != new.dtype or kept.device != new.device:
            raise WhorlError(
                f"KVCache.attend: the cache holds {name} in {kept.dtype} on {kept.device}, got {new.dtype} on "
                f"{new.device}. Move them with .to(), or reset."
            )
    needed = (0 if slots is None else slots.filled) + k.shape[2]
    if capacity is not None and needed > capacity:
        raise WhorlError(
            f"KVCache.attend: {needed} tokens do not fit capacity={capacity}. "
            "Use crop or reset, or capacity=None to grow."
        )


def appended(
    old: Slots | None,
    k: Tensor,
    v: Tensor,
    positions: NewPositions,
    key_mask: Tensor | None,
    memory: Tensor | None,
    capacity: int | None,
) -> Slots:
    """The slots with the new tokens behind the filled ones, in the same memory where it has room for them."""
    start = 0 if old is None else old.filled
    stop = start + k.shape[2]
    room = capacity or _room(stop)
    old = old if start else old and old._replace(padded=False, counted=True, follows=False)

    def memory_for(name: str, given: Tensor, axis: int) -> Tensor:
        return _with_room(getattr(old, name, None), given, axis, start, stop, room)

    def put(name: str, given: Tensor, axis: int) -> Tensor:
        own = memory_for(name, given, axis)
        own.narrow(axis, start, stop - start).copy_(given)
        return own

    keys, values = put("keys", k, 2), put("values", v, 2)
    was_padded = old is not None and old.padded
    padded, counted = key_mask is not None or was_padded, positions.after is not None
    real = memory_for("real", k.new_empty(k.shape[::2], dtype=torch.bool), 1)
    own = memory_for("positions", positions.new, positions.new.ndim - 1)
    follows = old is not None and old.follows and old.positions is own and old.real is real
    if not (follows and counted and key_mask is None):
        own[..., start:stop] = positions.new
        if positions.after is not None:  # what follows is written once, and no step writes positions any more
            ahead = torch.arange(own.shape[-1] - stop, device=own.device)
            own[..., stop:] = ahead + positions.after
        if padded:
            if not was_padded:
                real[:, :start] = True  # nobody has read or written it so far
            real[:, start:stop] = True if key_mask is None else key_mask
            real[:, stop:] = True
    return Slots(
        filled=stop,
        keys=keys,
        values=values,
        positions=own,
        real=real,
        memory=None if memory is None else put("memory", memory, memory.ndim - 1),
        padded=padded,
        counted=counted and (old is None or old.counted),
        follows=counted,
    )


def grown(slots: Slots, count: int) -> Slots:
    """The same slots, whose positions go on, with room for so many more tokens."""
    filled, stop = slots.filled, slots.filled + count
    room = _room(stop)

    def moved(x: Tensor, axis: int) -> Tensor:
        return _with_room(x, x, axis, filled, stop, room)

    positions, real = moved(slots.positions, slots.positions.ndim - 1), moved(slots.real, 1)
    positions[..., filled:] = torch.arange(room - filled, device=positions.device) + slots.next_position()
    if slots.padded:
        real[:, filled:] = True
    return slots._replace(
        keys=moved(slots.keys, 2),
        values=moved(slots.values, 2),
        positions=positions,
        real=real,
        memory=None if slots.memory is None else moved(slots.memory, slots.memory.ndim - 1),
    )


def _room(stop: int) -> int:
    """How many slots memory has that grows, for so many tokens: twice as many each time."""
    return max(FIRST_CAPACITY, 1 << (stop - 1).bit_length())


def _with_room(kept: Tensor | None, like: Tensor, axis: int, start: int, stop: int, room: int) -> Tensor:
    """Memory for slots up to ``stop`` with what ``kept`` has in the first ``start``: itself, if it is large enough."""
    if not start:
        fits = kept is not None and kept.shape[:axis] == like.shape[:axis] and kept.dtype == like.dtype
        kept = kept if fits else None
    dtype = like.dtype if kept is None else torch.promote_types(kept.dtype, like.dtype)
    if kept is not None and kept.shape[axis] >= stop and kept.dtype == dtype:
        return kept
    shape = list(like.shape)
    shape[axis] = room if kept is None else max(room, kept.shape[axis])
    own = _memory(shape, dtype, like.device)
    if kept is not None and start:
        if dtype == torch.float64:
            check_exact(kept.narrow(axis, 0, start))
        own.narrow(axis, 0, start).copy_(kept.narrow(axis, 0, start))
    return own


def replaced(kept: Tensor, by: Tensor, axis: int) -> Tensor:
    """Memory of the same number of slots, the first of them with ``by``."""
    shape = list(by.shape)
    shape[axis] = kept.shape[axis]
    own = _memory(shape, by.dtype, by.device)
    own.narrow(axis, 0, by.shape[axis]).copy_(by)
    return own


def _memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that nobody reads before it is written, and that costs nothing before."""
    with torch.inference_mode(False):  # memory made in that mode could not be written into outside of it
        return torch.empty(shape, dtype=dtype, device=device)
