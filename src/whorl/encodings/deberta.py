"""DeBERTa's disentangled attention: content meets content, content meets position, position meets content.

He, Liu, Gao, Chen 2020, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention"; the logarithmic buckets are
those of the code of version 2 (January 2021) and of transformers, which reads version 3 (He, Gao, Chen 2021,
"DeBERTaV3") with them too. The code of version 3 (March 2023) clamps r to max_distance - 1 on both sides first and so
never reads row 0: it differs here, for keys that are max_distance or more after the query, and nowhere else.
    score_ij = (q_i . k_j + q_i . K_(i,j) + k_j . Q_(j,i)) / sqrt(3 d),   K = P W_K, Q = P W_Q
    row (i,j) of K and Q is min(max(bucket(i - j) + span, 0), 2 span - 1)
    bucket(r) = r up to mid = span / 2, beyond it
        sign(r) (mid + ceil((mid - 1) ln(|r| / mid) / ln((max_distance - 1) / mid)))
The released code reads Q_(i,j) where the paper writes Q_(j,i), and released weights need that:
``position_to_content="code"`` is the default, ``"paper"`` the equation. 3 is the number of terms.
Position enters in every layer, on the scores. P has 2 span x width numbers, each projection heads * d * (width + 1).
Queries meet the 2 span rows once, keys too, and each pair picks its two numbers: 2 span d multiplications a token
and term, memory like the scores.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.constants import WholeNumbers
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.buckets import reached, widening
from whorl.encodings.content import ContentTerms, Pairs, RowsByDistance
from whorl.encodings.made_of import MadeOf
from whorl.encodings.pairs import check_head, check_pairs, distances, over_heads, products
from whorl.errors import WhorlError
from whorl.plans import PLANS, kind
from whorl.tracing import making_graph, may_keep_tensors, takes_derivatives

LARGEST = 2**63 - 1  # no distance is: an odd span has a bucket behind the last that is reached

# Rows of a table for each pair of a key, from which on it is cheaper to take the rows of pairs than all products.
FEW_PAIRS = 8


@config
class DebertaConfig(Config):
    """Everything that makes one disentangled attention differ from another.

    heads                how many heads
    head_dim             dimensions of a head
    width                entries of a row of P; None for heads * head_dim, the width of the model
    span                 half the rows of P: position_buckets of versions 2 and 3, max_relative_positions of version 1
    max_distance         where the buckets end (max_relative_positions of versions 2 and 3); None for version 1, which
                         has a row for each distance and clips
    content_to_position  whether queries meet the position of keys
    position_to_content  whether keys meet the position of queries, by the released "code" or by the "paper"; or None
    """

    name: ClassVar[str] = "deberta"
    heads: int
    head_dim: int
    width: int | None = None
    span: int = 256
    max_distance: int | None = 512
    content_to_position: bool = True
    position_to_content: Literal["code", "paper"] | None = "code"

    def check(self) -> None:
        self.check_positive("heads", "head_dim", "width", "max_distance")
        self.must(self.span >= 2, "span", "at least 2", remedy="DeBERTa version 1 has 512, version 3 has 256.")
        half, remedy = self.span // 2, "The logarithmic buckets lie between; use max_distance=None to clip at span."
        wide = self.max_distance is None or self.max_distance - 1 > half
        self.must(wide, "max_distance", f"larger than span / 2 + 1 = {half + 1}", remedy=remedy)
        if self.terms == 1:
            raise WhorlError(
                f"{self.call()}: content_to_position=False and position_to_content=None leave no position. "
                "Switch one of them on."
            )
        if self.width is None:
            object.__setattr__(self, "width", self.heads * self.head_dim)

    @property
    def terms(self) -> int:
        """How many terms a score has."""
        return 1 + self.content_to_position + (self.position_to_content is not None)


def bucket_starts(span: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each logarithmic bucket, span // 2 + 1 … span: whole numbers, so no rounding decides.

    A distance r is past bucket mid + t, t from 0, where r > mid ((max_distance - 1) / mid)^(t / (mid - 1)).
    """
    mid = span // 2
    if mid == 1:
        return ()  # the formula's ceiling is 0 for every distance
    starts = (below + 1 for below, _ in widening(mid, max_distance - 1, mid - 1, span - mid))
    return tuple(min(start, LARGEST) for start in starts)


def bucket(distance: Tensor, span: int, starts: tuple[int, ...] | Tensor) -> Tensor:
    """The signed bucket of query minus key, from -span to span; ``starts`` are those of the logarithmic ones."""
    size = distance.abs()
    bounds = torch.as_tensor(starts, dtype=size.dtype, device=size.device)
    return distance.sign() * (size.clamp(max=span // 2) + reached(size, bounds))


def products_by_pair(k: Tensor, table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of each key (batch, heads, keys, d) and the row of a table (heads, rows, d) that a query has for it.

    The index is (queries, keys), or with a batch. A table has more rows than a decoding step has queries, so then the
    rows that are asked for are taken; otherwise all products are, and those asked for are chosen among them.
    """
    # a graph serves every number of queries, so it is not asked for theirs
    if making_graph() or FEW_PAIRS * index.shape[:-1].numel() > table.shape[-2]:
        rows = products(k, table, dtype)
        return rows.gather(-1, over_heads(index.mT, rows.shape)).mT  # here a row for each key, a column for each query
    wide = torch.promote_types(torch.promote_types(k.dtype, table.dtype), dtype)
    rows = table.to(wide)[:, index]  # (heads, queries, keys, d), or with a batch after the heads
    rows = rows if index.ndim == 2 else rows.transpose(0, 1)
    return (k.to(wide).unsqueeze(-3) * rows).sum(-1)


def row_index(place: Tensor, span: int) -> Tensor:
    """The row of P for a signed bucket, or for a distance where each has a row."""
    return (place + span).clamp(0, 2 * span - 1).long()


class Deberta(ContentTerms):
    """Disentangled attention with terms of content and position.

    ``relative`` is P, ``position_key`` and ``position_query`` the projections W_K and W_Q with biases. From a
    released model they are: P, ``rel_embeddings.weight`` after the encoder's LayerNorm where it has one (its first
    2 span rows); the projections, ``pos_key_proj`` and ``pos_query_proj``, or with ``share_att_key`` the layer's own
    ``key_proj`` and ``query_proj``. A model has one P for all layers and projections for each: give each layer its
    own instance (LayerPlan) and assign the first one's ``relative`` to the others. They start with a standard
    deviation of 0.02, biases at 0.

    >>> import torch, whorl
    >>> deberta, x = whorl.Deberta(heads=2, head_dim=64), torch.randn(1, 2, 5, 64)
    >>> positions, scale = whorl.positions(5), deberta.softmax_scale(64)
    >>> deberta.adjust_scores(scale * x @ x.mT, x, x, positions, positions, scale=scale).shape
    torch.Size([1, 2, 5, 5])
    """

    Config = DebertaConfig
    config: DebertaConfig
    claims = Claims(relative=True, norm_preserving=True, linear_attention=False, decays=False, extrapolates=False)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        own = self.config
        assert own.width is not None
        self.relative = nn.Parameter(torch.empty(2 * own.span, own.width))
        out = own.heads * own.head_dim
        self.position_key = nn.Linear(own.width, out) if own.content_to_position else None
        self.position_query = nn.Linear(own.width, out) if own.position_to_content is not None else None
        self._restore()
        self.reset_parameters()

    def _restore(self) -> None:
        own = self.config
        starts = None if own.max_distance is None else bucket_starts(own.span, own.max_distance)
        self._starts = None if starts is None else WholeNumbers(starts)

    def reset_parameters(self) -> None:
        """Draws P and the projections anew, as after loading through the meta device."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.zeros_(parameter)

    def declare(self) -> tuple[parts.Part, ...]:
        return parts.ScoreTerm(self, form="rows"), parts.SoftmaxScale(self)

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        return (self.config.terms * head_dim) ** -0.5

    def add_terms(self, pairs: Pairs) -> Tensor:
        scores, q, k, q_positions, k_positions, _, scale = pairs
        own = self.config
        for x in (q, k):
            check_head("Deberta", x, own.head_dim, own.heads)
        check_pairs("Deberta", scores, q_positions, k_positions)
        place, out = self._place(distances("Deberta", q_positions, k_positions, whole=True)), scores
        if self.position_key is not None:
            rows = products(q, self._by_head(self.position_key), scores.dtype)
            out = out + scale * rows.gather(-1, over_heads(row_index(place, own.span), rows.shape))
        if self.position_query is not None:
            index = row_index(place if own.position_to_content == "code" else -place, own.span)
            out = out + scale * products_by_pair(k, self._by_head(self.position_query), index, scores.dtype)
        return out

    def rows_by_distance(self, count: int, first: int = 0) -> RowsByDistance:
        own, flat, count = self.config, self._flat_beyond, first + count
        place = torch.arange(min(flat + 1, count), device=self.relative.device)
        place = self._place(place[first:])
        query = key = None
        if self.position_key is not None:
            query = self._by_head(self.position_key)[:, row_index(place, own.span)]
        if self.position_query is not None:
            index = row_index(place if own.position_to_content == "code" else -place, own.span)
            key = self._by_head(self.position_query)[:, index]
        return RowsByDistance(query=query, key=key)

    @property
    def _flat_beyond(self) -> int:
        """The distance from which all have the same row, whichever way it is read."""
        if self._starts is None:
            return self.config.span
        return max((self.config.span // 2, *self._starts.numbers))

    def _place(self, distance: Tensor) -> Tensor:
        """The signed bucket of a distance, or the distance itself where each has a row."""
        if self._starts is None:
            return distance
        return bucket(distance, self.config.span, self._starts.on(distance.device))

    def _by_head(self, projection: nn.Linear) -> Tensor:
        """P projected, shape (heads, 2 span, head_dim); the same at every step of decoding, and kept for the next."""
        if takes_derivatives(*self.parameters()) or not may_keep_tensors():
            return self._projected(projection)
        of_keys = projection is self.position_key
        key = kind(("projected rows", id(self), of_keys), self.relative)
        rows = PLANS.get(key)
        if rows is None:
            name = "position_key" if of_keys else "position_query"
            rows = PLANS.keep(key, MadeOf(self, lambda own: own._projected(getattr(own, name))), self)
        return rows()

    def _projected(self, projection: nn.Linear) -> Tensor:
        return projection(self.relative).unflatten(-1, (self.config.heads, -1)).transpose(0, 1)
