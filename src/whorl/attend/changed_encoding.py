"""Another encoding for the tokens of a cache: what the old one did to keys is undone, what the new one does is done."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from whorl.attend.call import checked
from whorl.attend.inputs import check_device
from whorl.attend.kept_positions import as_kept, by_row
from whorl.attend.slots import Policy, Slots, State, replaced
from whorl.attend.softmax import run
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Placement, ScoreTerm, every, first
from whorl.encodings.rerotation import on_axes, rerotate
from whorl.errors import WhorlError

CHANGE = "KVCache.change_encoding"


def moved_slots(old: State, slots: Slots, encoding: Encoding, policy: Policy, positions: Tensor | None) -> Slots:
    """The slots as another encoding wants them, in memory of their own where they change."""
    filled = slots.filled
    here, keys = slots.positions[..., :filled], slots.keys[:, :, :filled]
    if positions is None:
        there = on_axes(CHANGE, here, old.encoding.axes, encoding.axes)
    else:
        if isinstance(positions, Tensor):
            check_device(CHANGE, "positions", positions, keys)
        rows = by_row(CHANGE, positions, encoding.axes, keys.shape[0], filled)
        there = as_kept(rows, real=slots.real[:, :filled] if slots.padded else None)
    before = old.encoding if old.policy == "transformed" else None
    after = encoding if policy == "transformed" else None
    moved = _moved_keys(keys, before, after, here, there, heads=slots.heads)
    return slots._replace(
        keys=slots.keys if moved is keys else replaced(slots.keys, moved, 2),
        positions=slots.positions if there is here else replaced(slots.positions, there, -1),
        memory=slots.memory if _same_memory(old.encoding, encoding) else None,
        counted=slots.counted and positions is None,
        follows=slots.follows and there is here,
    )


def try_next_step(state: State, slots: Slots) -> None:
    """Raises what the next step of this state would raise: checks look at sizes, so one token tells."""
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


def _moved_keys(
    keys: Tensor, old: Encoding | None, new: Encoding | None, here: Tensor, there: Tensor, *, heads: int
) -> Tensor:
    """Keys that went through ``old`` at positions ``here``, as if through ``new`` at ``there``; None leaves them raw.

    The very tensor where nothing changes. ``heads`` is how many the queries have.
    """
    before, after = (None if each is None else first(each, Placement) for each in (old, new))
    same = before is after or (before is not None and after is not None and before.encoding is after.encoding)
    if same and (before is None or here is there):
        return keys
    if before is not None and after is not None and before.rotary is not None and after.rotary is not None:
        return rerotate(keys, before.rotary, after.rotary, here, new_positions=there)
    if before is not None:
        if before.rotary is None:
            raise WhorlError(
                f"{CHANGE}: what {before.name} did to the kept keys cannot be undone. "
                "Build the cache with policy='raw' to change encodings freely."
            )
        keys = before.rotary.rotate(keys, here, inverse=True)
    if after is not None:
        query = keys.new_zeros(keys.shape[0], heads, 1, keys.shape[3])
        _, keys = after.encoding.transform_qk(query, keys, there[..., :1], there)
    return keys


def _same_memory(old: Encoding, new: Encoding) -> bool:
    """Whether what ``old`` remembers of hidden states serves ``new``, or a WhorlError where it needs its own."""
    reader = _reader(new)
    if reader is None:
        return False
    if reader is _reader(old):
        return True
    raise WhorlError(
        f"{CHANGE}: {type(reader).__name__} reads hidden states of the tokens so far, and a cache does "
        "not keep them. Reset the cache, change the encoding, and attend to the tokens again."
    )


def _reader(encoding: Encoding) -> Encoding | None:
    """The encoding that remembers something of hidden states."""
    readers = (part.encoding for part in every(encoding, ScoreTerm) if part.encoding.reads_hidden)
    return next(readers, None)
