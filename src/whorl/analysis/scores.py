"""Scores by distance: one query and one key, with any encoding."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from whorl import Config, Encoding
from whorl.analysis.wavelengths import Array, real
from whorl.attend.reference import placed_scores
from whorl.encodings.parts import Input, first
from whorl.errors import invalid


def scores_by_distance(
    encoding: Encoding,
    length: int,
    *,
    query: ArrayLike | None = None,
    key: ArrayLike | None = None,
    head_dim: int = 64,
    heads: int = 8,
) -> Array:
    """The score before the softmax of a query at ``length`` and a key 0, 1 … length before it, (heads, length + 1).

    The same query and key stand at every distance: vectors of ones where none are given, a key equal to its query.
    An encoding of known size sets its own head_dim and heads. One that adds to the input adds to query and key here,
    as if their projections were the identity, and has one head as wide as the input. -inf where the encoding's own
    mask hides a key. Every token has hidden states of zeros, for an encoding that reads them.

    >>> import whorl
    >>> scores_by_distance(whorl.Alibi(heads=2), 3, head_dim=4).tolist()
    [[2.0, 1.9375, 1.875, 1.8125], [2.0, 1.99609375, 1.9921875, 1.98828125]]
    """
    if length < 1:
        raise invalid("scores_by_distance", "length", "at least 1", length)
    at_input = first(encoding, Input) is not None
    head_dim = _size(encoding.config, "width" if at_input else "head_dim", head_dim)
    heads = 1 if at_input else _size(encoding.config, "heads", heads)
    q = _vector("query", query, head_dim).expand(1, heads, 1, head_dim)
    k = _vector("key", key, head_dim).expand(1, heads, length + 1, head_dim)
    keys = torch.arange(length, -1, -1, device="cpu")  # by distance, then turned to run forward as tokens do
    forward, queries = keys.flip(0), keys[:1]
    with torch.no_grad():
        if at_input:
            q, k = encoding.add_to_input(q, queries), encoding.add_to_input(k, forward)
        scale = encoding.softmax_scale(head_dim)
        scores = placed_scores(q, k, encoding, queries, forward, None) * scale
        scores = encoding.adjust_scores(scores, q, k, queries, forward, _remembered(encoding, length + 1), scale=scale)
        bias, allowed = encoding.score_bias(queries, forward), encoding.mask(queries, forward)
        scores = scores if bias is None else scores + bias
        scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return scores[0, :, 0].flip(-1).double().cpu().numpy()


def _size(config: Config, name: str, default: int) -> int:
    """A size that the encoding knows, itself or in one of its parts."""
    for part in (config, *getattr(config, "parts", ())):
        if getattr(part, name, None) is not None:
            return getattr(part, name)
    return default


def _vector(name: str, given: ArrayLike | None, size: int) -> Tensor:
    if given is None:
        return torch.ones(size, dtype=torch.float64, device="cpu")
    out = torch.from_numpy(real("scores_by_distance", name, given).copy())
    if out.shape != (size,):
        raise invalid("scores_by_distance", name, f"of shape ({size},)", out)
    return out


def _remembered(encoding: Encoding, tokens: int) -> Tensor | None:
    width = _size(encoding.config, "width", 0)
    return encoding.remember(torch.zeros(1, tokens, width)) if encoding.reads_hidden else None
