"""ContentTerms: what every encoding shares that puts terms of raw queries and keys into the scores."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whorl.encodings.base import Encoding


class Pairs(NamedTuple):
    """The scores of every query and key, and what they are made of; see ``Encoding.adjust_scores``."""

    scores: Tensor  # (batch, heads, queries, keys), scaled
    q: Tensor
    k: Tensor
    q_positions: Tensor
    k_positions: Tensor
    hidden: Tensor | None
    scale: float


class ContentTerms(Encoding):
    """Base of the encodings whose terms on the scores are made of content; a subclass writes ``add_terms``."""

    def adjust_scores(
        self,
        scores: Tensor,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        hidden: Tensor | None = None,
        *,
        scale: float,
    ) -> Tensor:
        return self.add_terms(Pairs(scores, q, k, q_positions, k_positions, hidden, scale)).to(scores.dtype)

    def add_terms(self, pairs: Pairs) -> Tensor:
        """The scores with its terms, in their dtype or wider."""
        raise NotImplementedError
