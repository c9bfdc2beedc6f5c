"""Which keys a query may see: causal order, documents, padding, a given mask and the encoding's own, joined.

Rows are made for a range of queries at a time, so that long inputs never need the whole square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whorl.encodings import parts
from whorl.encodings.base import Encoding
from whorl.encodings.parts import first
from whorl.errors import invalid

Causal = bool | Literal["positions"]


@dataclass(frozen=True)
class Visibility:
    """The rules; ``rows`` turns them into a mask, True where a key may be seen."""

    queries: int
    keys: int
    causal: Causal
    q_positions: Tensor
    k_positions: Tensor
    encoding: Encoding
    mask: Tensor | None = None  # broadcasts against (batch, heads, queries, keys)
    key_mask: Tensor | None = None  # (batch, keys)
    q_documents: Tensor | None = None  # (queries,) or (batch, queries)
    k_documents: Tensor | None = None

    @property
    def only_causal(self) -> bool:
        """Whether the order of tokens is the only rule, queries and keys being the same tokens."""
        if self.queries != self.keys:  # asked by itself: torch's kernel takes a bool, and no symbol of a graph
            return False
        return self.causal is True and not self._other_rules

    @property
    def everything(self) -> bool:
        """Whether every query sees every key: no rule, or one last token that sees all before it."""
        free = self.causal is False or (self.causal is True and self.queries == 1)
        return free and not self._other_rules

    @property
    def given(self) -> bool:
        """Whether a mask, padding or documents were given."""
        return any(rule is not None for rule in (self.mask, self.key_mask, self.q_documents))

    @property
    def _other_rules(self) -> bool:
        return first(self.encoding, parts.Visibility) is not None or self.given

    def rows(self, start: int = 0, stop: int | None = None) -> Tensor | None:
        """The mask of queries [start, stop) among all keys, broadcasting against (batch, heads, rows, keys).

        None where all of them are seen.
        """
        return self.rows_among(start, self.queries if stop is None else stop, slice(None))

    def rows_among(self, start: int, stop: int, among: slice) -> Tensor | None:
        """The same among some keys. They have no default: torch 2.11 compiles none that is a slice."""
        if self.everything:
            return None
        rules: list[Tensor] = []
        q_positions, k_positions = self.q_positions[..., start:stop], self.k_positions[..., among]
        device = self.q_positions.device
        if self.causal is True:  # by order, the last query standing at the last key
            index = torch.arange(start, stop, device=device) + (self.keys - self.queries)
            rules.append(index[:, None] >= torch.arange(self.keys, device=device)[among])
        elif self.causal == "positions":
            rules.append(_by_head(q_positions[..., :, None] >= k_positions[..., None, :]))
        own = self.encoding.mask(q_positions, k_positions)
        if own is not None:
            if own.dtype != torch.bool:
                call = f"{type(self.encoding).__name__}.mask"
                raise invalid(call, "what it returns", "a bool tensor, True where a key may be seen", own)
            rules.append(_by_head(own))
        if self.q_documents is not None and self.k_documents is not None:
            rules.append(_by_head(self.q_documents[..., start:stop, None] == self.k_documents[..., None, among]))
        if self.key_mask is not None:
            rules.append(self.key_mask[:, None, None, among])
        if self.mask is not None:
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., start:stop, :]
            rules.append(mask if mask.shape[-1] == 1 else mask[..., among])
        allowed = rules[0]
        for rule in rules[1:]:
            allowed = allowed & rule
        return allowed


def closed_keys(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Which keys a softmax leaves out, and which queries see any, with an axis of one for the keys.

    A query that may see nothing keeps all its keys, so that no NaN comes up on the way; what it gets is for the caller
    to make zero.
    """
    sees = allowed.any(-1, keepdim=True)
    return ~allowed & sees, sees


def seen_with_bias(bias: Tensor, allowed: Tensor | None) -> Tensor:
    """Which keys may be seen where a bias of minus infinity hides some as well."""
    finite = bias != -torch.inf
    return finite if allowed is None else finite & allowed


def open_blind_rows(scores: Tensor) -> Tensor:
    """Which queries have a score above minus infinity, with an axis of one for the keys; scores are written into.

    The first key of every other query gets a 0, so that no NaN comes up on the way, as in ``closed_keys``.
    """
    if not scores.shape[-1]:
        return scores.new_zeros(*scores.shape[:-1], 1, dtype=torch.bool)
    blind = scores.detach().amax(-1) == -torch.inf  # a row with a NaN is not, and stays
    scores[..., 0].masked_fill_(blind, 0.0)
    return ~blind.unsqueeze(-1)


def _by_head(rule: Tensor) -> Tensor:
    """A rule of (queries, keys) as it is, one of (batch, queries, keys) with an axis for heads."""
    return rule if rule.ndim != 3 else rule.unsqueeze(1)
