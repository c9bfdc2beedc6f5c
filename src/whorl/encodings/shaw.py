"""Shaw's relative representations: a learned vector for each clipped distance, added to keys and to values.

Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations".
    c = min(max(j - i, -K), K) + K        query i, key j, K the clip
    score_ij = q_i . (k_j + a_c) / sqrt(d)
    out_i = sum_j p_ij (v_j + b_c)
Position enters in every layer, on the scores and on the output. Two tables of (2K + 1) x d numbers, shared by all
heads; a layer of its own needs tables of its own (LayerPlan). The vector of a pair is never formed: queries meet
the 2K + 1 rows once and each pair picks its number, weights are summed by distance and meet the rows once. That
costs (2K + 1) d multiplications a query and memory like the scores. Only decoding has a fused kernel.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.content import ContentTerms, Pairs, RowsByDistance
from whorl.encodings.pairs import check_head, check_pairs, distances, over_heads, products
from whorl.errors import WhorlError


@config
class ShawConfig(Config):
    """Everything that makes one set of relative representations differ from another.

    head_dim       dimensions of a head
    clip           the distance from which all are alike, on both sides; the paper translates with 16
    values         whether the values have a table too
    """

    name: ClassVar[str] = "shaw"
    head_dim: int
    clip: int = 16
    values: bool = True

    def check(self) -> None:
        self.check_positive("head_dim", "clip")


def clipped_index(distance: Tensor, clip: int) -> Tensor:
    """The table's row for query minus key: (key - query) clipped, counted from 0."""
    return (clip - distance.clamp(-clip, clip)).long()


def key_term(q: Tensor, table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """q_i . a_c of every pair, not scaled: q (batch, heads, queries, d), index (queries, keys), or with a batch."""
    rows = products(q, table, dtype)
    return rows.gather(-1, over_heads(index, rows.shape))


def value_term(weights: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """sum_j p_ij b_c of every query: weights are summed by distance first."""
    wide = torch.promote_types(torch.promote_types(weights.dtype, table.dtype), torch.float32)
    sums = torch.zeros(*weights.shape[:-1], table.shape[0], dtype=wide, device=weights.device)
    sums = sums.scatter_add(-1, over_heads(index, weights.shape), weights.to(wide))
    return sums @ table.to(wide)


class Shaw(ContentTerms):
    """Relative representations of clipped distances, on keys and values.

    Distances are those of the positions given, so a cached step needs nothing but them. Keys are left as they are.
    ``key_table`` and ``value_table`` have row 0 for the farthest key before the query and start with a standard
    deviation of head_dim^-0.5.

    >>> import torch, whorl
    >>> shaw, x = whorl.Shaw(head_dim=64, clip=8), torch.randn(1, 2, 5, 64)
    >>> positions = whorl.positions(5)
    >>> shaw.adjust_scores(x @ x.mT / 8, x, x, positions, positions, scale=1 / 8).shape
    torch.Size([1, 2, 5, 5])
    """

    Config = ShawConfig
    config: ShawConfig
    # norms are not kept: vectors are added to the values
    claims = Claims(relative=True, norm_preserving=False, linear_attention=False, decays=False, extrapolates=False)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        shape = (2 * self.config.clip + 1, self.config.head_dim)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape)) if self.config.values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the tables anew, as after loading through the meta device."""
        for table in self.parameters():
            nn.init.normal_(table, std=self.config.head_dim**-0.5)

    def declare(self) -> tuple[parts.Part, ...]:
        return parts.ScoreTerm(self, form="rows"), parts.OutputTerm(self, form="rows")

    def add_terms(self, pairs: Pairs) -> Tensor:
        scores, q, _, q_positions, k_positions, _, scale = pairs
        check_head("Shaw", q, self.config.head_dim)
        check_pairs("Shaw", scores, q_positions, k_positions)
        index = clipped_index(distances("Shaw", q_positions, k_positions, whole=True), self.config.clip)
        return scores + scale * key_term(q, self.key_table, index, scores.dtype)

    def rows_by_distance(self, count: int, first: int = 0) -> RowsByDistance:
        clip, stop = self.config.clip, min(first + count, self.config.clip + 1)
        index = clipped_index(torch.arange(first, stop, device=self.key_table.device), clip)
        value = None if self.value_table is None else self.value_table[index]
        return RowsByDistance(query=self.key_table[index].unsqueeze(0), value=value)

    def adjust_output(
        self, out: Tensor, weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        if self.value_table is None:
            return out
        if out.shape[-1] != self.config.head_dim:
            raise WhorlError(
                f"Shaw: the table of the values has head_dim={self.config.head_dim} columns, "
                f"the values have {out.shape[-1]}. Use values=False."
            )
        check_pairs("Shaw", weights, q_positions, k_positions)
        index = clipped_index(distances("Shaw", q_positions, k_positions, whole=True), self.config.clip)
        return (out + value_term(weights, self.value_table, index)).to(out.dtype)
