"""Cached keys under another encoding: what the old one did to them is undone, and what the new one does is done."""

from __future__ import annotations

from torch import Tensor

from whorl.encodings.base import Encoding
from whorl.encodings.parts import Placement, ScoreTerm, every, first
from whorl.encodings.rerotation import rerotate
from whorl.errors import WhorlError


def moved_keys(
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
                f"KVCache.change_encoding: what {before.name} did to the kept keys cannot be undone. "
                "Build the cache with policy='raw' to change encodings freely."
            )
        keys = before.rotary.rotate(keys, here, inverse=True)
    if after is not None:
        query = keys.new_zeros(keys.shape[0], heads, 1, keys.shape[3])
        _, keys = after.encoding.transform_qk(query, keys, there[..., :1], there)
    return keys


def same_memory(old: Encoding, new: Encoding) -> bool:
    """Whether what ``old`` remembers of hidden states serves ``new``, or a WhorlError where it needs its own."""
    reader = _reader(new)
    if reader is None:
        return False
    if reader is _reader(old):
        return True
    raise WhorlError(
        f"KVCache.change_encoding: {type(reader).__name__} reads hidden states of the tokens so far, and a cache does "
        "not keep them. Reset the cache, change the encoding, and attend to the tokens again."
    )


def _reader(encoding: Encoding) -> Encoding | None:
    """The encoding that remembers something of hidden states."""
    readers = (part.encoding for part in every(encoding, ScoreTerm) if part.encoding.reads_hidden)
    return next(readers, None)
