"""CoPE, contextual position encoding: a key's position is how many gates are open between it and the query.

Golovneva, Wang, Weston, Sukhbaatar 2024, "Contextual Position Encoding: Learning to Count What's Important".
    gate_it = sigmoid(q_i . k_t / sqrt(d)),   p_ij = min(gate_ij + … + gate_ii, P - 1)
    score_ij = q_i . k_j / sqrt(d) + q_i . e[p_ij],   e[p] linear between whole positions
Position enters in every layer, on the scores, and depends on no position ids: tokens are counted in the order of
the keys, the last query standing at the last key. P x d parameters, shared by all heads. A query needs the whole
row of its scores before any of them has a position, so of fused kernels only that of decoding computes
it, which counts open gates first; memory like the scores, several times. Counts past P - 1 are alike.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.content import ContentTerms, Pairs
from whorl.encodings.pairs import check_head, products
from whorl.errors import WhorlError


@config
class CopeConfig(Config):
    """Everything that makes one contextual position encoding differ from another.

    head_dim       dimensions of a head
    max_position   P, how many positions have a vector; the paper's language models have 64
    causal         whether gates are counted up to the query; False counts up to the last key, for encoders
    """

    name: ClassVar[str] = "cope"
    head_dim: int
    max_position: int = 64
    causal: bool = True

    def check(self) -> None:
        self.check_positive("head_dim")
        remedy = "One position is the same for every key."
        self.must(self.max_position >= 2, "max_position", "at least 2", remedy=remedy)


def contextual_positions(logits: Tensor, max_position: int, causal: bool) -> Tensor:
    """p_ij of every pair, in logits' dtype: the gates from key j on, up to the query's own where causal."""
    gates = logits.sigmoid()
    if causal:
        gates = gates.tril(logits.shape[-1] - logits.shape[-2])  # the last query is the last key
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=max_position - 1)


def interpolated(rows: Tensor, positions: Tensor) -> Tensor:
    """The entry of each row (…, P) at fractional positions (…, keys), linear between whole ones."""
    low = positions.detach().floor()
    most = rows.shape[-1] - 1
    index = low.long().clamp(0, most)  # a NaN is no index; it comes back with the fraction, in its own row
    at_low, at_high = rows.gather(-1, index), rows.gather(-1, (index + 1).clamp(max=most))
    return at_low + (positions - low) * (at_high - at_low)


class Cope(ContentTerms):
    """Positions counted by gates that look at the content.

    ``table`` holds e and starts at 0, so that training starts from attention without position. With fewer queries
    than keys the queries are the last tokens, as in a cached step.

    >>> import torch, whorl
    >>> cope, x = whorl.Cope(head_dim=64), torch.randn(1, 2, 5, 64)
    >>> positions = whorl.positions(5)
    >>> cope.adjust_scores(x @ x.mT / 8, x, x, positions, positions, scale=1 / 8).shape
    torch.Size([1, 2, 5, 5])
    """

    Config = CopeConfig
    config: CopeConfig
    # not relative: the tokens between count, and not the distance
    claims = Claims(relative=False, norm_preserving=True, linear_attention=False, decays=False, extrapolates=False)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = nn.Parameter(torch.empty(self.config.max_position, self.config.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts the table back to 0, as after loading through the meta device."""
        nn.init.zeros_(self.table)

    @property
    def causal_only(self) -> bool:
        """Whether only causal attention has a meaning."""
        return self.config.causal

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.ScoreTerm(self, whole_row=True, form="counts"),)

    def add_terms(self, pairs: Pairs) -> Tensor:
        scores, q, *_ = pairs
        check_head("Cope", q, self.config.head_dim)
        queries, keys = scores.shape[-2:]
        if self.config.causal and queries > keys:
            raise WhorlError(
                f"Cope: {queries} queries cannot be the last of {keys} keys, and gates are counted up to the query. "
                "Use causal=False for attention to other tokens."
            )
        # half precision counts by halves from 256 on
        wide = torch.promote_types(scores.dtype, torch.float32)
        positions = contextual_positions(scores.to(wide), self.config.max_position, self.config.causal)
        return scores + interpolated(products(q, self.table, wide), positions)

    def rows_by_count(self) -> Tensor:
        return self.table
