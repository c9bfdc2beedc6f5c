"""KVCache: keys and values of the tokens so far, so that the next tokens are attended without computing all again.

What is kept is a policy of the encoding. Keys after ``transform_qk`` serve encodings that place a key once
and for all. Raw keys, placed again at every step, serve those whose placement changes with the length that
is served (dynamic NTK, LongRoPE) or with the query (ReRoPE, Self-Extend, xPos). Either way a step equals the
last rows of a full pass over the tokens so far at the same ``length``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from whorl.attend.call import Call, checked
from whorl.attend.inputs import check_key_mask, check_shapes
from whorl.attend.softmax import run
from whorl.encodings.base import Encoding
from whorl.encodings.rerotation import rerotate
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError, invalid, unknown
from whorl.kernels.choose import Impl
from whorl.rotary.tables import INTEGERS

FIRST_CAPACITY = 64


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
        self.encoding = encoding
        self._asked = policy
        self.policy = self._policy_for(encoding)
        self.length = length
        self._capacity = capacity
        self.reset()

    def _policy_for(self, encoding: Encoding) -> str:
        if self._asked == "transformed" and encoding.key_policy == "raw":
            raise WhorlError(
                f"KVCache: {type(encoding).__name__} places a key anew at every step, so policy='transformed' would "
                "keep a stale one. Use policy='raw' or 'auto'."
            )
        return encoding.key_policy if self._asked == "auto" else self._asked

    def __len__(self) -> int:
        """How many slots are filled, padding among them."""
        return self._count

    @property
    def bytes(self) -> int:
        """Memory reserved for keys, values and what else is kept."""
        kept = (self._keys, self._values, self._positions, self._real, self._memory)
        return sum(t.numel() * t.element_size() for t in kept if t is not None)

    def reset(self) -> None:
        """Forgets every token and gives the memory back."""
        self._count = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._positions: Tensor | None = None  # (…, batch, slots)
        self._real: Tensor | None = None  # (batch, slots), False for padding
        self._memory: Tensor | None = None  # what the encoding remembers of hidden states, slots last
        self._padded = False  # whether any slot may be padding

    def crop(self, count: int) -> None:
        """Keeps the first ``count`` slots, as taking back drafted tokens needs."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= self._count:
            raise invalid("KVCache.crop", "count", f"between 0 and the {self._count} slots there are", count)
        self._count = count

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Makes row i of the batch what row rows[i] was, as beam search needs; rows may repeat or be left out."""
        if self._keys is None:
            raise WhorlError("KVCache.reorder: the cache is empty. Attend to some tokens first.")
        index = torch.as_tensor(rows, device=self._keys.device)
        if index.ndim != 1 or index.dtype not in INTEGERS:
            raise invalid("KVCache.reorder", "rows", "a list of row numbers", rows)
        if not isinstance(rows, Tensor) and any(not 0 <= row < self._keys.shape[0] for row in rows):
            raise invalid("KVCache.reorder", "rows", f"between 0 and {self._keys.shape[0] - 1}", rows)
        self._keys, self._values = self._keys[index], self._at(self._values)[index]
        self._real, self._positions = self._at(self._real)[index], self._at(self._positions)[..., index, :]
        self._memory = None if self._memory is None else self._memory[index]

    def change_encoding(
        self, encoding: Encoding, *, length: int | None = None, positions: Tensor | None = None
    ) -> None:
        """Serves the tokens so far with another encoding, at other positions if given.

        Raw keys need nothing. Transformed ones are moved by ``rerotate``, exactly. ``length`` stays what it is unless
        given.
        """
        if not isinstance(encoding, Encoding):
            raise invalid("KVCache.change_encoding", "encoding", "an encoding", encoding, "Use whorl.NoPE() for none.")
        old = self._positions[..., : self._count] if self._positions is not None and self._count else None
        if positions is not None and (old is None or positions.shape != old.shape):
            expected = "nothing, the cache is empty" if old is None else f"of shape {tuple(old.shape)}"
            raise invalid("KVCache.change_encoding", "positions", expected, positions)
        if self.policy == "transformed" and old is not None:
            if (
                not isinstance(self.encoding, Rotary)
                or not isinstance(encoding, Rotary)
                or encoding.key_policy == "raw"
            ):
                raise WhorlError(
                    f"KVCache.change_encoding: keys kept after {type(self.encoding).__name__} cannot be moved to "
                    f"{type(encoding).__name__}. Build the cache with policy='raw' to change encodings freely."
                )
            keys = self._at(self._keys)[:, :, : self._count]
            keys.copy_(rerotate(keys, self.encoding, encoding, old, new_positions=positions))
        if positions is not None:
            self._at(self._positions)[..., : self._count] = positions
        if old is None:
            self.policy = self._policy_for(encoding)
        self.encoding = encoding
        self.length = self.length if length is None else length

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

        Positions go on from the real tokens of each row unless given. ``key_mask`` (batch, new tokens) is
        False for padding, on whichever side; ``hidden`` are the new tokens' hidden states.
        """
        length = self.length if length is None else length
        check_shapes("KVCache.attend", q, k, v)
        check_key_mask("KVCache.attend", key_mask, k)
        self._check_rows(k, v)
        new = self._new_positions(k, positions, key_mask)
        options = {"encoding": self.encoding, "causal": causal, "scale": scale, "softcap": softcap, "length": length}
        step = checked(q, k, v, positions=new, key_positions=new, key_mask=key_mask, hidden=hidden, **options)
        self._check_step(step)
        placed = self.policy == "transformed"
        if placed:
            q, k = self.encoding.transform_qk(q, k, new, new, length)
        count = self._write(k, v, new, key_mask, step.hidden)
        out = run(
            checked(
                q,
                self._at(self._keys)[:, :, :count],
                self._at(self._values)[:, :, :count],
                positions=new,
                key_positions=self._at(self._positions)[..., :count],
                key_mask=self._at(self._real)[:, :count] if self._padded else None,
                remembered=None if self._memory is None else self._memory[..., :count],
                placed=placed,
                **options,
            ),
            impl,
        )
        self._count = count  # only now: a step that fails leaves the cache as it was
        return out

    def _check_rows(self, k: Tensor, v: Tensor) -> None:
        for name, kept, new in (("keys", self._keys, k), ("values", self._values, v)):
            if kept is not None and (kept.shape[:2], kept.shape[3]) != (new.shape[:2], new.shape[3]):
                raise WhorlError(
                    f"KVCache.attend: the cache holds {name} of shape {tuple(kept.shape)}, got {tuple(new.shape)}. "
                    "Batch, heads and dim stay the same; use reorder to change rows, or reset."
                )

    def _check_step(self, step: Call) -> None:
        needed = self._count + step.k.shape[2]
        if self._capacity is not None and needed > self._capacity:
            raise WhorlError(
                f"KVCache.attend: {needed} tokens do not fit capacity={self._capacity}. "
                "Use crop or reset, or capacity=None to grow."
            )

    def _new_positions(self, k: Tensor, positions: Tensor | None, key_mask: Tensor | None) -> Tensor:
        """The new tokens' positions with a row for each row of the batch: given, or going on from the real tokens."""
        batch, count, axes = k.shape[0], k.shape[2], self.encoding.axes
        if positions is not None:
            if not isinstance(positions, Tensor) or positions.ndim == (2 if axes == 1 else 3):
                return positions
            if positions.ndim == 1:
                positions = positions if axes == 1 else positions.expand(axes, -1)
            return positions.unsqueeze(-2).expand(*positions.shape[:-1], batch, -1)
        before = self._next_position()
        if key_mask is None:
            new = (torch.arange(count, device=k.device) + before).expand(batch, -1)
        else:
            new = (key_mask.long().cumsum(-1) - 1 + before).clamp(min=0)
        return new if axes == 1 else new.expand(axes, -1, -1)

    def _next_position(self) -> Tensor | int:
        """What comes after the largest position of the real tokens of each row, on any axis: (batch, 1)."""
        if self._positions is None or self._real is None or not self._count:
            return 0
        kept = self._positions[..., : self._count]
        kept = kept if kept.ndim == 2 else kept.amax(0)
        return (kept.masked_fill(~self._real[:, : self._count], -1).amax(-1, keepdim=True) + 1).clamp(min=0)

    def _write(self, k: Tensor, v: Tensor, new: Tensor, key_mask: Tensor | None, memory: Tensor | None) -> int:
        """Puts the new tokens into the slots behind the filled ones, and returns how many will be filled."""
        start, stop = self._count, self._count + k.shape[2]
        if self._positions is not None:  # fractions may follow whole numbers, or the other way round
            self._positions = self._positions.to(torch.promote_types(self._positions.dtype, new.dtype))
        self._reserve(stop, k, v, new, memory)
        slots = slice(start, stop)
        self._at(self._keys)[:, :, slots] = k
        self._at(self._values)[:, :, slots] = v
        self._at(self._positions)[..., slots] = new
        self._at(self._real)[:, slots] = True if key_mask is None else key_mask
        self._padded = self._padded or key_mask is not None
        if memory is not None:
            self._at(self._memory)[..., slots] = memory
        return stop

    def _reserve(self, slots: int, k: Tensor, v: Tensor, new: Tensor, memory: Tensor | None) -> None:
        have = 0 if self._keys is None else self._keys.shape[2]
        if slots <= have:
            return
        room = self._capacity or max(FIRST_CAPACITY, 1 << (slots - 1).bit_length())

        def grown(kept: Tensor | None, like: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
            shape = list(like.shape)
            shape[axis] = room
            out = torch.zeros(shape, dtype=dtype, device=like.device)
            if kept is not None:
                out.narrow(axis, 0, kept.shape[axis]).copy_(kept)
            return out

        self._keys, self._values = grown(self._keys, k, 2, k.dtype), grown(self._values, v, 2, v.dtype)
        kept = new if self._positions is None else self._positions
        self._positions = grown(self._positions, new, new.ndim - 1, kept.dtype)
        self._real = grown(self._real, k[:, 0, :, 0], 1, torch.bool)
        if memory is not None:
            self._memory = grown(self._memory, memory, memory.ndim - 1, memory.dtype)

    def _at(self, kept: Tensor | None) -> Tensor:
        assert kept is not None
        return kept
