"""KVCache: keys and values of the tokens so far, so that the next tokens are attended without computing all again.

What is kept is a policy of the encoding. Keys after ``transform_qk`` serve encodings that place a key once
and for all. Raw keys, placed again at every step, serve those whose placement changes with the length that
is served (dynamic NTK, LongRoPE) or with the query (ReRoPE, Self-Extend, xPos). Either way a step equals the
last rows of a full pass over the tokens so far at the same ``length``.

All a cache knows is one record, and every call makes a new one and puts it in place last. So a call that raises,
whatever it was and wherever, leaves the cache as it was: memory behind the filled slots may have been written into,
and nobody reads it but for the positions to come, which the record says are there or not.

A plain step, the next tokens of a text, goes to what was made ready for steps of its kind: kernels on a GPU, or one
call of torch's (``attend/decoding_kinds.py``). Everything else goes through ``attention``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from whorl.attend.call import Call, checked
from whorl.attend.changed_encoding import CHANGE, moved_slots, try_next_step
from whorl.attend.clock import Clock
from whorl.attend.decoding import Asked
from whorl.attend.decoding_kinds import Step, kind_of_step, step_for
from whorl.attend.fused import one_after_another
from whorl.attend.inputs import check_key_mask, check_shapes, row_numbers, stopped_rows
from whorl.attend.kept_positions import NewPositions, as_kept, by_row, following
from whorl.attend.slots import Policy, Slots, State, appended, check_fit, grown
from whorl.attend.softmax import run
from whorl.encodings.base import Encoding
from whorl.encodings.parts import lone_rotation
from whorl.encodings.rotary import check_length
from whorl.errors import WhorlError, invalid, unknown
from whorl.kernels.choose import Impl, check_impl
from whorl.memory import is_dense, wrong_tensor
from whorl.plans import PLANS, Key
from whorl.tracing import is_transformed

MOST_SLOTS = 2**40  # more than any machine has memory for


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
        whole = isinstance(capacity, int) and not isinstance(capacity, bool)
        if capacity is not None and not (whole and 0 < capacity <= MOST_SLOTS):
            raise invalid("KVCache", "capacity", "a positive integer up to 2^40, or None", capacity)
        if not isinstance(policy, str) or policy not in ("auto", "transformed", "raw"):
            raise unknown("policy", policy, ("auto", "transformed", "raw"), call="KVCache")
        self._asked: Literal["auto", "transformed", "raw"] = policy
        self._capacity = capacity
        self._state = State(encoding, self._policy_for(encoding), check_length(length, "KVCache"), None)
        self._working: dict[Step, list[Any]] = {}  # what steps by a plan work in
        self._unready: str | None = "nothing was attended to"  # why the last step was none of kernels
        self._clock: Clock | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_working": {}}  # plans are this process's, and working memory is this cache's

    def __copy__(self) -> KVCache:
        # memory of its own: a slot that both caches fill next would be one and the same
        return copy.deepcopy(self, {id(self.encoding): self.encoding})

    def _policy_for(self, encoding: Encoding) -> Policy:
        if self._asked == "transformed" and encoding.key_policy == "raw":
            raise WhorlError(
                f"KVCache: {type(encoding).__name__} places a key anew at every step, so policy='transformed' would "
                "keep a stale one. Use policy='raw' or 'auto'."
            )
        return encoding.key_policy if self._asked == "auto" else self._asked

    def __len__(self) -> int:
        """How many slots are filled, padding among them; waits for the device where it counts them."""
        slots = self._settled().slots
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

    def count_on_device(self, clock: Clock | None = None) -> Clock:
        """Counts filled slots on the device from now on, so that a captured CUDA graph of steps serves a growing text.

        A step then goes where ``clock.next`` says, and whoever steps advances the clock: one for all layers of a
        model. There is room for what was reserved; a token beyond it is not kept, and its output is NaN. ``len``
        and ``crop`` wait for the device. What would move the memory is refused until ``count_on_host``.
        """
        slots = self._settled().slots
        if slots is None or not slots.follows:
            raise WhorlError(
                "KVCache.count_on_device: there is no text to go on from, or its last positions were given. Attend to "
                "the prompt first, without positions."
            )
        if clock is None:
            clock = Clock(slots.filled, slots.keys.device)
        elif not isinstance(clock, Clock):
            raise invalid("KVCache.count_on_device", "clock", "what another cache's count_on_device() gave", clock)
        elif clock.next.device != slots.keys.device or int(clock.next) != slots.filled:
            raise WhorlError(
                f"KVCache.count_on_device: the clock stands at {int(clock.next)} on {clock.next.device}, this cache "
                f"holds {slots.filled} slots on {slots.keys.device}. Give caches of one model that hold as many."
            )
        self._clock = clock
        return clock

    def why_not_kernels(self) -> str | None:
        """Why the last step went to torch's operations and not to the kernels of decoding, or None if it did not."""
        return self._unready

    def count_on_host(self) -> None:
        """Counts filled slots in Python again; waits for the device once."""
        self._settled()
        self._clock = None
        self._working.clear()

    def _settled(self) -> State:
        """The state with the count that the device has."""
        if self._clock is not None and self._state.slots is not None:
            filled = min(int(self._clock.next), self._state.slots.room)
            self._state = self._state._replace(slots=self._state.slots._replace(filled=filled))
        return self._state

    def _refuse_on_device(self, what: str) -> None:
        if self._clock is not None:
            raise WhorlError(
                f"KVCache: {what} would leave a captured graph behind. Call count_on_host() first, and capture anew."
            )

    def reset(self) -> None:
        """Forgets every token and gives the memory back."""
        self._refuse_on_device("reset")
        self._state = self._state._replace(slots=None)

    def crop(self, count: int) -> None:
        """Keeps the first ``count`` slots, as taking back drafted tokens needs."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(self):
            raise invalid("KVCache.crop", "count", f"between 0 and the {len(self)} slots there are", count)
        slots = self._state.slots
        if slots is None:
            return
        if self._clock is not None:
            if slots.padded or not slots.counted:
                self._refuse_on_device("crop of rows with padding, or of tokens whose positions were given,")
            self._clock.next.fill_(count)
        self._state = self._state._replace(slots=slots.cropped(count))

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Makes row i of the batch what row rows[i] was, as beam search needs; rows may repeat or be left out.

        Rows on a device are not looked at, which would wait for it: one that is not there, or negative, is stopped by
        the assertion of torch's own kernel.
        """
        self._refuse_on_device("reorder")
        slots = self._state.slots
        if slots is None:
            raise WhorlError("KVCache.reorder: the cache is empty. Attend to some tokens first.")
        index = row_numbers("KVCache.reorder", rows, slots.keys.shape[0]).to(slots.keys.device)
        with stopped_rows("KVCache.reorder", rows, slots.keys.shape[0]):
            slots = slots.reordered(index)
        self._state = self._state._replace(slots=slots)

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
        self._refuse_on_device("change_encoding")
        state = self._state
        if not isinstance(encoding, Encoding):
            raise invalid(CHANGE, "encoding", "an encoding", encoding, "Use whorl.NoPE() for none.")
        length = state.length if length is None else check_length(length, CHANGE)
        slots = state.slots
        if slots is None or not slots.filled:
            if positions is not None:
                raise invalid(CHANGE, "positions", "nothing, the cache is empty", positions)
            self._state = State(encoding, self._policy_for(encoding), length, None)
            return
        policy = "raw" if state.policy == "raw" else self._policy_for(encoding)
        moved = moved_slots(state, slots, encoding, policy, positions)
        changed = State(encoding, policy, length, moved)
        try:
            try_next_step(changed, moved)
        except WhorlError as error:
            raise WhorlError(f"{CHANGE}: the tokens so far do not fit {type(encoding).__name__}. {error}") from error
        self._state = changed

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
        check_impl(impl, "KVCache.attend")
        length = state.length if length is None else length
        plain = positions is None and key_mask is None and causal is True
        plain = plain and (hidden is None or state.encoding.reads_hidden)
        key = (
            kind_of_step(state, q, k, v, hidden, length, scale, softcap, impl)
            if plain and impl in ("auto", "triton")
            else None
        )
        step: Any = PLANS.get(key)
        if step is not None and self._has_room(q) and (self._clock is None or step.unfit is None):
            self._unready = step.unfit
            return self._decode(step, state, q, k, v, hidden)
        return self._attend(q, k, v, key, plain, positions, key_mask, causal, hidden, length, scale, softcap, impl)

    @torch.no_grad()
    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key: Key | None,
        plain: bool,
        positions: Tensor | None,
        key_mask: Tensor | None,
        causal: bool,
        hidden: Tensor | None,
        length: int | None,
        scale: float | None,
        softcap: float | None,
        impl: Impl,
    ) -> Any:
        """A step of a kind that is new, or that no kernels are ready for."""
        if _is_captured(q):
            raise WhorlError(
                "KVCache.attend: a graph would put every token into one slot, or the kernels for it are not ready. "
                "Attend to the prompt and one more token like those to come, and call count_on_device(), before the "
                "capture."
            )
        if is_transformed():
            raise WhorlError(
                "KVCache.attend: torch.func and forward-mode derivatives cannot go through memory that is kept. Use "
                "attention for them."
            )
        state, given = self._state, q
        if not isinstance(causal, bool):  # a cache knows the order of its tokens
            raise invalid("KVCache.attend", "causal", "True or False", causal)
        check_shapes("KVCache.attend", q, k, v)
        check_key_mask("KVCache.attend", key_mask, k)
        check_fit(state.slots, k, v, self._capacity)
        q = one_after_another(q)
        key = key if q is given else None  # a plan takes queries as they are given
        placed = self._new_positions(k, positions, key_mask)
        new = placed.new
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
        k, v = step.k, step.v  # without what padding holds
        if key is not None and state.slots is not None and state.slots.follows and not self._has_room(q):
            # a text that outgrows its memory stays with its kernels
            state = state._replace(slots=grown(state.slots, k.shape[2]))
            key = kind_of_step(state, q, k, v, hidden, length, scale, softcap, impl)
            known: Any = PLANS.get(key)
            if known is not None:
                self._unready = known.unfit
                return self._decode(known, state, q, k, v, hidden)
        slots, asked = state.slots, Asked(length, step.scale, softcap)
        made, unfit = (
            step_for(state, q, k, v, hidden, asked, impl) if plain else (None, "its steps are plain ones only")
        )
        if impl == "triton" and unfit is not None:
            raise WhorlError(f"KVCache.attend: impl='triton' cannot run here: {unfit}. Use impl='auto' or 'torch'.")
        self._unready = unfit
        if key is not None and made is not None and (self._clock is None or unfit is None):
            self._check_places(q, k, new, length)
            out = self._decode(made, state, q, k, v, hidden)
            PLANS.keep(key, made, state.encoding, made.bytes)
            return out
        self._refuse_on_device(f"a step that is not decoded by kernels ({unfit})")
        if state.policy == "transformed":
            q, k = state.encoding.transform_qk(q, k, new, new, length)
        if slots is not None and not plain:  # other positions are written there, and this step may still fail
            self._state = state._replace(slots=slots._replace(follows=False))
        slots = appended(state.slots, k, v, placed, key_mask, step.hidden, self._capacity)
        slots = slots._replace(heads=q.shape[1])
        out = run(_to_all_slots(step, q, slots, state.policy), impl)
        self._state = state._replace(slots=slots)  # only now: a step that fails leaves the cache as it was
        return out

    def _check_places(self, q: Tensor, k: Tensor, positions: Tensor, length: int | None) -> None:
        """Raises what is wrong with queries, keys or positions, as placing them would."""
        rotary, here = lone_rotation(self.encoding), positions[..., :0]
        if rotary is not None:  # which looks at sizes, and turns no token here
            rotary.transform_qk(q[:, :, :0], k[:, :, :0], here, here, length)
        else:
            self.encoding.transform_qk(q, k, positions, positions, length)

    def _has_room(self, q: Tensor) -> bool:
        slots = self._state.slots
        return slots is not None and (self._clock is not None or slots.filled + q.shape[2] <= slots.room)

    def _decode(self, step: Step, state: State, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        """The attention output of the next tokens by kernels, which put them into the slots of a state."""
        slots = state.slots
        assert slots is not None
        memory = self._working.get(step)
        if memory is None:
            if self._clock is None:  # a captured graph works in that of its plan as long as the device counts
                self._working.clear()
            memory = self._working[step] = step.working_memory()
        if self._clock is not None:
            return step(q, k, v, slots, self._clock.next, hidden, memory)
        out = step(q, k, v, slots, None, hidden, memory)
        _, heads, count, _ = q.shape
        self._state = State(state.encoding, state.policy, state.length, slots.followed(count, heads))
        return out

    def positions_to_come(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The positions (batch, new) that the next tokens (batch, new) get where none are given, on every axis.

        ``key_mask`` (batch, new) is False for padding. Waits for the device where it counts the filled slots.

        >>> import torch, whorl
        >>> whorl.KVCache(encoding=whorl.NoPE()).positions_to_come(torch.zeros(1, 3))
        tensor([[0, 1, 2]])
        """
        call, slots = "KVCache.positions_to_come", self._state.slots
        rows = "batch" if slots is None else slots.keys.shape[0]
        if not is_dense(tokens) or tokens.ndim != 2 or (slots is not None and tokens.shape[0] != rows):
            raise wrong_tensor(call, "tokens", tokens, f"a tensor of shape ({rows}, new)")
        check_key_mask(call, key_mask, tokens[:, None])
        batch, count = tokens.shape
        return following(_next_position(self._settled().slots), batch, count, tokens.device, key_mask).new

    def _new_positions(self, k: Tensor, positions: Tensor | None, key_mask: Tensor | None) -> NewPositions:
        """The new tokens' positions for each row of the batch, given or going on from the real ones."""
        batch, count, axes, slots = k.shape[0], k.shape[2], self.encoding.axes, self._state.slots
        if positions is not None:
            kept = torch.int64 if slots is None or not slots.filled else slots.positions.dtype
            rows = by_row("KVCache.attend", positions, axes, batch, count)
            return NewPositions(as_kept(rows, kept, key_mask), None)
        found = following(_next_position(slots), batch, count, k.device, key_mask)
        return found if axes == 1 else found._replace(new=found.new.expand(axes, -1, -1))


def _next_position(slots: Slots | None) -> Tensor | int:
    return 0 if slots is None else slots.next_position()


def _is_captured(q: Tensor) -> bool:
    return isinstance(q, Tensor) and q.is_cuda and torch.cuda.is_current_stream_capturing()


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
        consecutive=slots.counted and not slots.padded,  # then paths that count themselves can run
        visible=replace(
            step.visible,
            keys=count,
            k_positions=slots.positions[..., :count],
            key_mask=slots.real[:, :count] if slots.padded else None,
        ),
    )
