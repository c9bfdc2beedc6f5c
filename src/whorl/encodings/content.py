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


class RowsByDistance(NamedTuple):
    """What meets a query, and keys some positions before it: row t of a table for those t before, the last for others.

    The score has, times its scale, (q + position) . query[t] + k . (key[t] + content); a value has value[t] added.
    """

    query: Tensor | None = None  # (heads or 1, rows, d)
    position: Tensor | None = None  # (heads, d)
    key: Tensor | None = None  # (heads, rows, d)
    content: Tensor | None = None  # (heads, d)
    value: Tensor | None = None  # (rows, value dim)


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

    def rows_by_distance(self, count: int, first: int = 0) -> RowsByDistance:
        """The tables of its terms for ``count`` distances from the first on, where they are of that ``form``.

        Fewer rows say that there are no others: the last one serves what is farther.
        """
        raise NotImplementedError

    def rows_by_count(self) -> Tensor:
        """The rows (counts, d) of its terms, where they are of that ``form``; queries meet them unscaled."""
        raise NotImplementedError
