"""A call of ``attention``, checked, with its defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl.attend.inputs import check_device, check_key_mask, check_shapes, with_positions
from whorl.attend.padding import settled
from whorl.attend.visibility import Causal, Visibility
from whorl.autocast import without_autocast
from whorl.encodings.base import Encoding
from whorl.encodings.none import NoPE
from whorl.encodings.parts import RowLessColumn, first
from whorl.encodings.rotary import check_length
from whorl.errors import WhorlError, check_flags, invalid, is_finite_number
from whorl.graphs import equals_any
from whorl.memory import is_dense, wrong_tensor
from whorl.position_checks import FLOATS, INTEGERS
from whorl.tracing import may_read_values

NO_ENCODING = NoPE()


@dataclass(frozen=True)
class Call:
    """One checked call of ``attention``."""

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Encoding
    visible: Visibility
    scale: float
    softcap: float | None
    dropout: float
    hidden: Tensor | None
    length: int | None
    wants_lse: bool = False
    wants_weights: bool = False
    placed: bool = False  # whether q and k have been through transform_qk already
    consecutive: bool = False  # whether positions are known to be 0, 1, 2, … of the keys; values are never read

    @property
    def q_positions(self) -> Tensor:
        return self.visible.q_positions

    @property
    def k_positions(self) -> Tensor:
        return self.visible.k_positions

    def placed_qk(self) -> tuple[Tensor, Tensor]:
        """Queries and keys where the encoding puts them."""
        if self.placed:
            return self.q, self.k
        return self.encoding.transform_qk(self.q, self.k, self.q_positions, self.k_positions, self.length)


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: Encoding | None = None,
    causal: Causal = True,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    softcap: float | None = None,
    hidden: Tensor | None = None,
    remembered: Tensor | None = None,
    length: int | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Call:
    """The call with its defaults filled in, or a WhorlError for what is wrong with it."""
    encoding = NO_ENCODING if encoding is None else encoding
    if not isinstance(encoding, Encoding):
        raise invalid("attention", "encoding", "an encoding", encoding, "Build one by name: whorl.build('rope', …).")
    check_shapes("attention", q, k, v)
    if not isinstance(causal, (bool, str)) or causal not in (True, False, "positions"):
        raise invalid("attention", "causal", "True, False or 'positions'", causal)
    if causal is False and encoding.causal_only:
        raise WhorlError(
            f"attention: {type(encoding).__name__} is defined for keys up to the query only. Use causal=True."
        )
    if causal == "positions" and encoding.axes > 1:
        raise WhorlError(
            f"attention: positions of {encoding.axes} axes have no order. Use causal=True, which goes by tokens."
        )
    check_length(length, "attention")
    _check_heads(encoding, q.shape[1])
    if not is_finite_number(dropout) or not 0 <= dropout < 1:
        raise invalid("attention", "dropout", "at least 0 and below 1", dropout)
    for name, value in (("scale", scale), ("softcap", softcap)):
        if value is not None and not (is_finite_number(value) and value > 0):
            raise invalid("attention", name, "a positive number", value)
    check_flags("attention", return_lse=return_lse, return_weights=return_weights)
    queries, keys = q.shape[2], k.shape[2]
    consecutive = positions is None and key_positions is None
    one = positions is None or key_positions is None or positions is key_positions
    check_key_mask("attention", key_mask, k)
    positions, key_positions = _positions(q, queries, keys, positions, key_positions)
    for name, ids in (("positions", positions), ("key_positions", key_positions)):
        batched = ids.ndim == (2 if encoding.axes == 1 else 3)
        if batched and not equals_any(ids.shape[-2], 1, q.shape[0]):
            raise WhorlError(
                f"attention: {name} are for a batch of {ids.shape[-2]}, q has {q.shape[0]} rows. "
                "Pass positions of shape (length,) or (batch, length), with axes in front where there are several."
            )
    if not consecutive:
        same_tokens = queries <= keys and (causal is True or one)
        positions, key_positions = _settled(encoding, q, positions, key_positions, key_mask, same_tokens)
    if documents is not None and key_documents is None:
        if queries != keys:
            raise WhorlError("attention: documents need key_documents where keys are other tokens. Pass both.")
        key_documents = documents
    if documents is None and key_documents is not None:
        raise WhorlError("attention: key_documents would be ignored without documents. Pass both.")
    documents = _documents("documents", documents, q, queries)
    key_documents = _documents("key_documents", key_documents, q, keys)
    if remembered is None:
        remembered = _remembered(encoding, hidden, q, keys, key_mask)
    if key_mask is not None:  # what padding holds may be NaN, and 0 * NaN is NaN
        padding = ~key_mask[:, None, :]
        k, v = (x.masked_fill(padding.unsqueeze(-1), 0.0) for x in (k, v))
        remembered = None if remembered is None else remembered.masked_fill(padding, 0.0)
    mask = _mask(mask, q, keys)
    if mask is not None and queries and q.shape[1]:
        unseen = _unseen(mask, q, k, causal)
        if not may_read_values(unseen) or bool(unseen.any()):  # NaN in such a key is like NaN in padding
            k, v = (x.masked_fill(unseen, 0.0) for x in (k, v))
    if remembered is not None and key_documents is not None and causal is True:
        gate = first(encoding, RowLessColumn)
        source: Any = None if gate is None else gate.encoding
        remembered = remembered if source is None else source.within_documents(remembered, key_documents)
    visible = Visibility(
        queries=queries,
        keys=keys,
        causal=causal,
        q_positions=positions,
        k_positions=key_positions,
        encoding=encoding,
        mask=mask,
        key_mask=key_mask,
        q_documents=documents,
        k_documents=key_documents,
    )
    try:
        own_scale = encoding.softmax_scale(q.shape[-1], length) if scale is None else float(scale)
    except ZeroDivisionError:
        raise WhorlError("attention: queries without dimensions have no usual scale. Pass scale=….") from None
    return Call(
        q=q,
        k=k,
        v=v,
        encoding=encoding,
        visible=visible,
        scale=own_scale,
        softcap=None if softcap is None else float(softcap),
        dropout=dropout,
        hidden=remembered,
        length=length,
        wants_lse=return_lse,
        wants_weights=return_weights,
        consecutive=consecutive,
    )


def _positions(
    q: Tensor, queries: int, keys: int, positions: Tensor | None, key_positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    positions, key_positions = with_positions("attention", q, keys, positions, key_positions)
    for name, ids, count in (("positions", positions, queries), ("key_positions", key_positions, keys)):
        if not is_dense(ids) or not ids.ndim or ids.shape[-1] != count:
            raise wrong_tensor("attention", name, ids, f"a tensor with {count} on its last axis")
        if ids.device != q.device:
            raise WhorlError(
                f"attention: {name} are on {ids.device} and q on {q.device}. Make them on the device of q."
            )
    if positions.dtype != key_positions.dtype:
        return _of_one_type(positions, key_positions)
    return positions, key_positions


def _settled(
    encoding: Encoding, q: Tensor, positions: Tensor, key_positions: Tensor, key_mask: Tensor | None, same_tokens: bool
) -> tuple[Tensor, Tensor]:
    """Given positions, checked, with padding where it does no harm; one tensor stays one.

    ``same_tokens`` says that queries are the last of the keys' tokens.
    """
    queries, keys, axes = q.shape[2], key_positions.shape[-1], encoding.axes
    limit = None if key_mask is None else encoding.query_limit(q.dtype)
    apart = None if limit is None else limit - 1 if queries <= limit else -1
    name = "positions" if positions is key_positions else "key_positions"
    kept = settled("attention", name, key_positions, key_mask, axes, apart)
    if positions is key_positions:
        return kept, kept
    of_queries = key_mask[:, keys - queries :] if same_tokens and key_mask is not None else None
    return settled("attention", "positions", positions, of_queries, axes, apart), kept


def _of_one_type(positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Both in a type that holds both, since they are compared and subtracted; types that are refused stay."""
    kinds = {positions.dtype, key_positions.dtype}
    if not kinds <= {*INTEGERS, *FLOATS}:
        return positions, key_positions
    wide = torch.int64 if kinds <= {*INTEGERS} else torch.float64
    return positions.to(wide), key_positions.to(wide)


def _check_heads(encoding: Encoding, heads: int) -> None:
    """Raises a WhorlError where an encoding has numbers for another count of heads."""
    for part in encoding.parts:
        if part.heads is not None and part.heads != heads:
            raise WhorlError(
                f"attention: {part.name} has heads={part.heads}, q has {heads}. "
                + (f"Build it with heads={heads}." if heads else f"Pass queries of {part.heads} heads.")
            )


def _remembered(
    encoding: Encoding, hidden: Tensor | None, q: Tensor, keys: int, key_mask: Tensor | None
) -> Tensor | None:
    if not encoding.reads_hidden:
        if hidden is not None:
            raise WhorlError(
                f"attention: hidden would be ignored, {type(encoding).__name__} does not read it. Leave it out."
            )
        return None
    if hidden is None:
        raise WhorlError(
            f"attention: {type(encoding).__name__} reads hidden states. Pass hidden=… of shape (batch, keys, width)."
        )
    batch = q.shape[0]
    if not is_dense(hidden) or hidden.ndim != 3 or tuple(hidden.shape[:2]) != (batch, keys):
        raise wrong_tensor("attention", "hidden", hidden, f"of shape ({batch}, {keys}, width), one row per key")
    check_device("attention", "hidden", hidden, q)
    if key_mask is not None:  # gradients of what is learned there read padding too
        hidden = hidden.masked_fill(~key_mask[..., None], 0.0)
    with without_autocast(hidden.device.type):  # as everything that attention computes
        return encoding.remember(hidden)


def _mask(mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if not is_dense(mask) or mask.dtype != torch.bool:
        raise wrong_tensor(
            "attention", "mask", mask, "a bool tensor, True where a key may be seen",
            "A bias on scores is an encoding; padding is key_mask.",
        )  # fmt: skip
    wanted = (*q.shape[:3], keys)
    fits = 2 <= mask.ndim <= 4 and all(
        equals_any(a, 1, b) for a, b in zip(reversed(mask.shape), reversed(wanted), strict=False)
    )
    if not fits:
        raise invalid("attention", "mask", f"broadcastable to (batch, heads, queries, keys) = {wanted}", mask)
    check_device("attention", "mask", mask, q)
    return mask


def _unseen(mask: Tensor, q: Tensor, k: Tensor, causal: Causal) -> Tensor:
    """Which keys (batch or 1, key heads or 1, keys or 1, 1) a mask hides from every query."""
    mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
    if causal is True and mask.shape[2] != 1 and mask.shape[3] != 1:  # causal order hides the rest
        mask = mask.tril(k.shape[2] - q.shape[2])
    seen = mask.to(torch.uint8).amax(2)  # in a tenth of the time of ``any``
    if seen.shape[1] not in (1, k.shape[1]):
        seen = seen.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1])).amax(2)
    return (seen == 0).unsqueeze(-1)


def _documents(name: str, ids: Tensor | None, q: Tensor, count: int) -> Tensor | None:
    if ids is None:
        return None
    batch = q.shape[0]
    if not is_dense(ids) or not equals_any(tuple(ids.shape), (count,), (batch, count)):
        raise wrong_tensor("attention", name, ids, f"of shape ({count},) or ({batch}, {count})", "See whorl.documents.")
    check_device("attention", name, ids, q)
    return ids
