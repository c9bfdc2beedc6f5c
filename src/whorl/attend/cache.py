"""KVCache: keys and values of the tokens so far, so that the next tokens are attended without computing all again.

What is kept is a policy of the encoding. Keys after ``transform_qk`` serve encodings that place a key once
and for all. Raw keys, placed again at every step, serve those whose placement changes with the length that
is served (dynamic NTK, LongRoPE) or with the query (ReRoPE, Self-Extend, xPos). Either way a step equals the
last rows of a full pass over the tokens so far at the same ``length``.

All a cache knows is one record, and every call makes a new one and puts it in place last. So a call that raises,
whatever it was and wherever, leaves the cache as it was: memory behind the filled slots may have been written into,
and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from whorl.attend.call import Call, checked
from whorl.attend.changed_keys import moved_keys, same_memory
from whorl.attend.inputs import check_key_mask, check_shapes, row_numbers
from whorl.attend.slots import Slots, appended, as_kept, by_row, replaced
from whorl.attend.softmax import run
from whorl.encodings.base import Encoding
from whorl.encodings.rerotation import on_axes
from whorl.encodings.rotary import check_length
from whorl.errors import WhorlError, invalid, unknown
from whorl.kernels.choose import Impl

Policy = Literal["transformed", "raw"]


class State(NamedTuple):
    """All that a cache is, replaced as a whole."""

    encoding: Encoding
    policy: Policy
    length: int | None
    slots: Slots | None  # None before the first token


class KVCache:
    """Keys and values by slot: every row of a batch has the same slots, and padding marks those it does not use.

    ``capacity`` reserves memory for so many tokens at once and raises when it is full; None grows by
    doubling. ``length`` is what length-dependent encodings serve, unless a step says otherwise.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=8)
    >>> q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    >>> cache = whorl.KVCache(encoding=rope)
    >>> steps = [cache.attend(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(5)]
    >>> torch.allclose(torch.cat(steps, dim=2), whorl.attention(q, k, v, encoding=rope), atol=1e-6)
    True
    """

    def __init__(
        self,
        *,
        encoding: Encoding,
        capacity: int | None = None,
        policy: Literal["auto", "transformed", "raw"] = "auto",
        length: int | None = None,
    ) -> None:
        if not isinstance(encoding, Encoding):
            raise invalid("KVCache", "encoding", "an encoding", encoding, "Use whorl.NoPE() for none.")
        if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1):
            raise invalid("KVCache", "capacity", "a positive integer or None", capacity)
        if policy not in ("auto", "transformed", "raw"):
            raise unknown("policy", policy, ("auto", "transformed", "raw"), call="KVCache")
        self._asked: Literal["auto", "transformed", "raw"] = policy
        self._capacity = capacity
        self._state = State(encoding, self._policy_for(encoding), check_length(length, "KVCache"), None)

    def _policy_for(self, encoding: Encoding) -> Policy:
        if self._asked == "transformed" and encoding.key_policy == "raw":
            raise WhorlError(
                f"KVCache: {type(encoding).__name__} places a key anew at every step, so policy='transformed' would "
                "keep a stale one. Use policy='raw' or 'auto'."
            )
        return encoding.key_policy if self._asked == "auto" else self._asked

    def __len__(self) -> int:
        """How many slots are filled, padding among them."""
        slots = self._state.slots
        return 0 if slots is None else slots.filled

    @property
    def encoding(self) -> Encoding:
        """What the tokens are served with; ``change_encoding`` serves them with another."""
        return self._state.encoding

    @property
    def policy(self) -> Policy:
        """What is kept of keys: "transformed", where the encoding put them, or "raw"."""
        return self._state.policy

    @property
    def length(self) -> int | None:
        """What length-dependent encodings serve, unless a step says otherwise."""
        return self._state.length

    @length.setter
    def length(self, length: int | None) -> None:
        self._state = self._state._replace(length=check_length(length, "KVCache"))

    @property
    def bytes(self) -> int:
        """Memory reserved for keys, values and what else is kept."""
        kept = self._state.slots or ()
        return sum(each.numel() * each.element_size() for each in kept if isinstance(each, Tensor))

    def reset(self) -> None:
        """Forgets every token and gives the memory back."""
        self._state = self._state._replace(slots=None)

    def crop(self, count: int) -> None:
        """Keeps the first ``count`` slots, as taking back drafted tokens needs."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(self):
            raise invalid("KVCache.crop", "count", f"between 0 and the {len(self)} slots there are", count)
        slots = self._state.slots
        if slots is not None:
            self._state = self._state._replace(slots=slots._replace(filled=count, after=None))

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Makes row i of the batch what row rows[i] was, as beam search needs; rows may repeat or be left out.

        Rows on a device are not looked at, which would wait for it: one that is not there, or negative, is stopped by
        the assertion of torch's own kernel.
        """
        slots = self._state.slots
        if slots is None:
            raise WhorlError("KVCache.reorder: the cache is empty. Attend to some tokens first.")
        index = row_numbers("KVCache.reorder", rows, slots.keys.shape[0]).to(slots.keys.device)
        self._state = self._state._replace(slots=slots.reordered(index))

    @torch.no_grad()
    def change_encoding(
        self, encoding: Encoding, *, length: int | None = None, positions: Tensor | None = None
    ) -> None:
        """Serves the tokens so far with another encoding, at other positions if given.

        Raw keys need nothing. Transformed ones are moved exactly: a rotation is undone and the next one done, as
        ``rerotate`` does. Positions of one axis serve every axis of an encoding that has several, as those of text do;
        from several axes to another number of them, ``positions`` say where the tokens are. Hidden states are not kept,
        so an encoding that reads them can follow only where it was there already. ``length`` stays what it is unless
        given.
        """
        call, state = "KVCache.change_encoding", self._state
        if not isinstance(encoding, Encoding):
            raise invalid(call, "encoding", "an encoding", encoding, "Use whorl.NoPE() for none.")
        length = state.length if length is None else check_length(length, call)
        slots = state.slots
        if slots is None or not slots.filled:
            if positions is not None:
                raise invalid(call, "positions", "nothing, the cache is empty", positions)
            self._state = State(encoding, self._policy_for(encoding), length, None)
            return
        policy = "raw" if state.policy == "raw" else self._policy_for(encoding)
        changed = State(encoding, policy, length, self._moved(slots, encoding, policy, positions))
        try:
            self._try(changed)
        except WhorlError as error:
            raise WhorlError(f"{call}: the tokens so far do not fit {type(encoding).__name__}. {error}") from error
        self._state = changed

    def _moved(self, slots: Slots, encoding: Encoding, policy: Policy, positions: Tensor | None) -> Slots:
        """The slots as another encoding wants them, in memory of their own where they change."""
        call, old, filled = "KVCache.change_encoding", self._state, slots.filled
        here, keys = slots.positions[..., :filled], slots.keys[:, :, :filled]
        if positions is None:
            there = on_axes(call, here, old.encoding.axes, encoding.axes)
        else:
            there = as_kept(by_row(call, positions, encoding.axes, keys.shape[0], filled))
        before = old.encoding if old.policy == "transformed" else None
        after = encoding if policy == "transformed" else None
        moved = moved_keys(keys, before, after, here, there, heads=slots.heads)
        return slots._replace(
            keys=slots.keys if moved is keys else replaced(slots.keys, moved, 2),
            positions=slots.positions if there is here else replaced(slots.positions, there, -1),
            memory=slots.memory if same_memory(old.encoding, encoding) else None,
            after=slots.after if positions is None else None,
        )

    def _try(self, state: State) -> None:
        """Raises what the next step of this state would raise: checks look at sizes, so one token tells."""
        slots = state.slots
        assert slots is not None
        batch, _, _, dim = slots.keys.shape
        q, place = slots.keys.new_zeros(batch, slots.heads, 1, dim), slots.positions[..., :1]
        if state.policy == "transformed":
            q, _ = state.encoding.transform_qk(q, slots.keys[:, :, :1], place, place, state.length)
        step = checked(
            q,
            slots.keys[:, :, :1],
            slots.values[:, :, :1],
            encoding=state.encoding,
            positions=place,
            key_positions=place,
            remembered=None if slots.memory is None else slots.memory[..., :1],
            length=state.length,
        )
        run(replace(step, placed=state.policy == "transformed"), "torch")

    @torch.no_grad()
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        causal: bool = True,
        hidden: Tensor | None = None,
        length: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        impl: Impl = "auto",
    ) -> Any:
        """The attention output of the next tokens, which are kept; q, k and v are (batch, heads, new tokens, dim).

        Positions go on from the real tokens of each row unless given: (new tokens,) for all rows or (batch, new
        tokens), with axes in front where there are several. They are kept as int64, and as float64 from the first
        fractions on. ``key_mask`` (batch, new tokens) is False for padding, on whichever side; ``hidden`` are the new
        tokens' hidden states. A step that raises leaves the cache as it was.
        """
        state = self._state
        length = state.length if length is None else length
        check_shapes("KVCache.attend", q, k, v)
        check_key_mask("KVCache.attend", key_mask, k)
        self._check_fit(k, v)
        new, after = self._new_positions(k, positions, key_mask)
        step = checked(
            q,
            k,
            v,
            encoding=state.encoding,
            causal=causal,
            positions=new,
            key_positions=new,
            key_mask=key_mask,
            scale=scale,
            softcap=softcap,
            hidden=hidden,
            length=length,
        )
        if not k.shape[2]:
            return v.new_zeros(*q.shape[:3], v.shape[3])
        if state.policy == "transformed":
            q, k = state.encoding.transform_qk(q, k, new, new, length)
        slots = appended(state.slots, k, v, new, key_mask, step.hidden, self._capacity)
        slots = slots._replace(heads=q.shape[1], after=after)
        out = run(_to_all_slots(step, q, slots, state.policy), impl)
        self._state = state._replace(slots=slots)  # only now: a step that fails leaves the cache as it was
        return out

    def _check_fit(self, k: Tensor, v: Tensor) -> None:
        slots = self._state.slots
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
        needed = len(self) + k.shape[2]
        if self._capacity is not None and needed > self._capacity:
            raise WhorlError(
                f"KVCache.attend: {needed} tokens do not fit capacity={self._capacity}. "
                "Use crop or reset, or capacity=None to grow."
            )

    def _new_positions(
        self, k: Tensor, positions: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | int | None]:
        """The new tokens' positions for each row of the batch, given or going on from the real ones, and what follows.

        What follows is None where that is left to be found out when it is asked for.
        """
        batch, count, axes, slots = k.shape[0], k.shape[2], self.encoding.axes, self._state.slots
        if positions is not None:
            kept = torch.int64 if slots is None or not slots.filled else slots.positions.dtype
            return as_kept(by_row("KVCache.attend", positions, axes, batch, count), kept), None
        before = 0 if slots is None else slots.next_position()
        if key_mask is None:
            new, after = (torch.arange(count, device=k.device) + before).expand(batch, -1), before + count
        else:
            counted = key_mask.cumsum(-1)
            new, after = (counted - 1).clamp(min=0) + before, counted[:, -1:] + before
        return new if axes == 1 else new.expand(axes, -1, -1), after


@contextmanager
def together(caches: Sequence[KVCache]) -> Iterator[None]:
    """A context in which caches go on all or none: where something raises, each of them is as it was before."""
    before = [cache._state for cache in caches]
    try:
        yield
    except BaseException:
        for cache, state in zip(caches, before, strict=True):
            cache._state = state
        raise


def _to_all_slots(step: Call, q: Tensor, slots: Slots, policy: Policy) -> Call:
    """The checked call of the new tokens, with all filled slots for its keys."""
    count = slots.filled
    return replace(
        step,
        q=q,
        k=slots.keys[:, :, :count],
        v=slots.values[:, :, :count],
        hidden=None if slots.memory is None else slots.memory[..., :count],
        placed=policy == "transformed",
        visible=replace(
            step.visible,
            keys=count,
            k_positions=slots.positions[..., :count],
            key_mask=slots.real[:, :count] if slots.padded else None,
        ),
    )
