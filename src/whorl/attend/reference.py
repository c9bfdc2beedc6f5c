"""Attention as the data flows, with every hook of an encoding in its place: the form all others are tested against.

q, k ─► transform_qk ─► scores ─► adjust_scores ─► + score_bias ─► softcap ─► mask ─► softmax ─► @ v
─► adjust_output
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.visibility import closed_keys, open_blind_rows, seen_with_bias
from whorl.encodings.base import Encoding
from whorl.encodings.bias import DistanceBias
from whorl.encodings.parts import BiasByDistance, OutputTerm, ScoreTerm, first
from whorl.tracing import takes_derivatives


class Attended(NamedTuple):
    """The output (batch, heads, queries, value dim), the weights, and the log-sum-exp of the scores if asked for."""

    out: Tensor
    weights: Tensor
    lse: Tensor | None


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    scale: float,
    allowed: Tensor | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    hidden: Tensor | None = None,
    length: int | None = None,
    placed: bool = False,
    wants_lse: bool = True,
) -> Attended:
    """Attention of every query to every key, in float32, or float64 for float64 input.

    ``placed=True`` says that q and k have been through ``transform_qk`` already, as cached keys have.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = _products(q, k) if placed else placed_scores(q, k, encoding, q_positions, k_positions, length)
    scores = scores * scale
    bias = pair_bias(encoding, q_positions, k_positions, length, wide, allowed)
    bias = None if bias is None else bias.to(wide)  # one of a user's own may be float64
    closed, sees = (None, None) if allowed is None or bias is not None else closed_keys(allowed)
    if first(encoding, ScoreTerm):
        hidden_keys = closed if bias is None else closed_keys(seen_with_bias(bias, allowed))[0]
        scores = scores if hidden_keys is None else scores.masked_fill(hidden_keys, -torch.inf)
        keys = repeat_heads(k, q.shape[1])
        scores = encoding.adjust_scores(scores, q, keys, q_positions, k_positions, hidden, scale=scale).to(wide)
    if bias is not None:
        # one pass over the scores for both: the bias is smaller, as texts of a batch share it
        scores = scores + (bias if allowed is None else bias.masked_fill(~allowed, -torch.inf))
    if softcap is not None:
        scores = (softcap * torch.tanh(scores / softcap)).masked_fill(scores == -torch.inf, -torch.inf)
    if closed is not None:
        scores = scores.masked_fill(closed, -torch.inf)
    if bias is not None:  # which may hide all that is allowed; the scores are a sum made here and may be written into
        sees = open_blind_rows(scores)
    weights = scores.softmax(-1)
    lse = scores.logsumexp(-1) if wants_lse else None
    if sees is not None:  # and zeros where nothing may be seen, in gradients too
        weights = weights * sees
        lse = None if lse is None else lse.masked_fill(~sees.squeeze(-1), -torch.inf)
    kept = torch.nn.functional.dropout(weights, dropout)
    out = by_shared_heads(kept, v.to(wide))
    if first(encoding, OutputTerm):
        out = encoding.adjust_output(out, kept, repeat_heads(v, q.shape[1]).to(wide), q_positions, k_positions)
    return Attended(out.to(v.dtype), kept, lse)


def pair_bias(
    encoding: Encoding,
    q_positions: Tensor,
    k_positions: Tensor,
    length: int | None,
    dtype: torch.dtype,
    allowed: Tensor | None = None,
) -> Tensor | None:
    """The bias of every query and key where they see each other, in float32 or wider, for scores in a dtype."""
    part = first(encoding, BiasByDistance)
    source: Any = None if part is None else part.encoding
    if part is not None and part.slopes is not None and dtype == torch.float64:
        return source.line(q_positions, k_positions, dtype)
    if (
        allowed is not None
        and isinstance(source, DistanceBias)
        and type(source).score_bias is DistanceBias.score_bias  # and not made in a way of its own
        and takes_derivatives(*source.parameters())
    ):
        return source._bias_where_seen(q_positions, k_positions, allowed)
    return encoding.score_bias(q_positions, k_positions, length)


def by_shared_heads(rows: Tensor, shared: Tensor) -> Tensor:
    """rows (batch, heads, n, m) times shared (batch, fewer heads, m, d), which neighbouring heads share uncopied."""
    heads, count = rows.shape[1], shared.shape[1]
    if heads == count:
        return rows @ shared
    groups = heads // count, rows.shape[2]  # no size is left to be found: it cannot be, of no heads
    together = rows.unflatten(1, (count, groups[0])).flatten(2, 3)
    return (together @ shared).unflatten(2, groups).flatten(1, 2)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values with one head for each query head; neighbours share."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def placed_scores(
    q: Tensor, k: Tensor, encoding: Encoding, q_positions: Tensor, k_positions: Tensor, length: int | None
) -> Tensor:
    """Inner products of queries and keys where the encoding puts them."""
    branches = encoding.branches(q_positions, k_positions)
    if branches is None:
        return _products(*encoding.transform_qk(q, k, q_positions, k_positions, length))
    scores: Tensor | None = None
    q = encoding.scale_queries(q, q_positions, length)
    for branch in branches:
        here = _products(*encoding.transform_branch(q, k, branch.q_positions, branch.k_positions, length))
        allowed = branch.allowed if branch.allowed.ndim == 2 else branch.allowed.unsqueeze(1)
        scores = here.masked_fill(~allowed, 0.0) if scores is None else torch.where(allowed, here, scores)
    assert scores is not None
    return scores


def _products(q: Tensor, k: Tensor) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return by_shared_heads(q.to(wide), k.to(wide).mT)
