"""Cached keys under another encoding: what the old one did to them is undone, and what the new one does is done."""

from __future__ import annotations

from torch import Tensor

from whorl.attend.features import parts_of
from whorl.encodings.base import Encoding
from whorl.encodings.rerotation import rerotate
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError


def moved_keys(
    keys: Tensor, old: Encoding | None, new: Encoding | None, here: Tensor, there: Tensor, *, heads: int
) -> Tensor:
    """Keys that went through ``old`` at positions ``here``, as if through ``new`` at ``there``; None leaves them raw.

    The very tensor where nothing changes. ``heads`` is how many the queries have.
    """
    before, after = _placing(old), _placing(new)
    if before is after and (before is None or here is there):
        return keys
    if isinstance(before, Rotary) and isinstance(after, Rotary) and _turns_only(before) and _turns_only(after):
        return rerotate(keys, before, after, here, new_positions=there)
    if before is not None:
        if not isinstance(before, Rotary) or not _turns_only(before):
            raise WhorlError(
                f"KVCache.change_encoding: what {type(before).__name__} did to the kept keys cannot be undone. "
                "Build the cache with policy='raw' to change encodings freely."
            )
        keys = before.rotate(keys, here, inverse=True)
    if after is not None:
        query = keys.new_zeros(keys.shape[0], heads, 1, keys.shape[3])
        _, keys = after.transform_qk(query, keys, there[..., :1], there)
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
    """The part that remembers something of hidden states."""
    return next((part for part in parts_of(encoding) if part.reads_hidden), None)


def _placing(encoding: Encoding | None) -> Encoding | None:
    """The part that puts keys somewhere, or None where they stay as they are."""
    parts = () if encoding is None else parts_of(encoding)
    return next((part for part in parts if "transform_qk" in part.enters() and not part.scales_queries_only), None)


def _turns_only(rotary: Rotary) -> bool:
    """Whether keys are turned by the tables and by nothing else: a class may have a transform of its own."""
    return type(rotary).transform_qk is Rotary.transform_qk
