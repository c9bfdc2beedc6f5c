"""T5's relative bias: one learned number per head for each bucket of distances.

Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer".
    bias of head h for a query at i and a key at j:   table[bucket(i - j), h]
    causal         n = max(i - j, 0); with B buckets, E = B / 2 of them hold one distance each:
                   bucket = n for n < E, else min(B - 1, E + floor(ln(n/E) / ln(max_distance/E) (B - E)))
    bidirectional  the same on |i - j| with B / 2 buckets for each side, those of keys after the query second
The first distance of each bucket is found in whole numbers, so no logarithm can round an edge to the wrong side.
The last bucket begins at max_distance or before it (at 113 of 128) and holds everything beyond. It is learned only from
texts that reach it: where it begins at the trained length or after it, longer texts read a number never trained, and
that raises a warning where ``length`` is given.
T5 does not divide scores by sqrt(d), and neither does ``softmax_scale`` here unless scaled=True.
Position enters in the scores; one table is shared by all layers, as one encoding given to a model is.
buckets * heads parameters, started from N(0, 0.044), transformers' width^(-1/2) at T5-small's width of 512; a search
among the first distances and a table read per score.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.constants import WholeNumbers
from whorl.encodings import parts
from whorl.encodings.base import Claims, follows_from
from whorl.encodings.bias import DistanceBias
from whorl.encodings.buckets import reached, widening
from whorl.position_ids import difference
from whorl.tracing import kept_in_graphs, making_own_graph

START = 512**-0.5


@config
class T5Config(Config):
    """Everything that makes one T5 bias differ from another.

    heads          how many heads
    buckets        how many numbers each head has, for both sides together
    max_distance   the distance that the logarithmic buckets reach towards
    bidirectional  whether keys after the query have buckets of their own, as in an encoder
    length         the length it is trained on, only to warn of buckets that it leaves untrained; None for no warning
    scaled         whether scores are divided by sqrt(head_dim), which T5 does not
    """

    name: ClassVar[str] = "t5"
    heads: int
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    length: int | None = None
    scaled: bool = False

    def check(self) -> None:
        self.check_positive("heads")
        halves = not self.bidirectional or (self.buckets >= 4 and self.buckets % 2 == 0)
        self.must(halves, "buckets", "even and at least 4", remedy="Each side has half of them.")
        self.must(self.buckets >= 2, "buckets", "at least 2")
        near = self.one_sided // 2
        remedy = "So many distances have a bucket of their own, and the logarithmic buckets come after them."
        self.must(self.max_distance > near, "max_distance", f"larger than {near}", remedy=remedy)
        self.must(self.length is None or self.length > 0, "length", "positive or None")

    @property
    def one_sided(self) -> int:
        """How many buckets there are for the keys on one side of the query."""
        return self.buckets // 2 if self.bidirectional else self.buckets


def bucket_edges(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each bucket of one side but the first.

    >>> bucket_edges(32, 128)[15:]
    [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    """
    exact = buckets // 2
    steps = buckets - exact
    edges = list(range(1, exact + 1))
    # the smallest n with n >= exact (max_distance / exact)^(step / steps)
    return edges + [below + (not whole) for below, whole in widening(exact, max_distance, steps, steps)[1:]]


@kept_in_graphs  # where FlexAttention takes them into its kernel
def edges_in_graphs(buckets: int, max_distance: int, device: torch.device) -> Tensor:
    """The edges on a device."""
    return torch.tensor(bucket_edges(buckets, max_distance), device=device)


def buckets_of(signed: Tensor, settings: T5Config, edges: WholeNumbers) -> Tensor:
    """The buckets, int64, of keys so many positions before the query, or after it where that is below zero."""
    distance = signed.abs() if settings.bidirectional else signed.clamp(min=0)
    if distance.is_floating_point():
        # edges are whole numbers, so a distance between two belongs where its whole part does. An index needs a
        # number: ``bias_of`` puts the NaN back
        distance = distance.nan_to_num(nan=0.0).clamp(max=2.0**62).long()
    if making_own_graph():
        starts = edges_in_graphs(settings.one_sided, settings.max_distance, signed.device)
    else:
        starts = edges.on(signed.device)
    bucket = reached(distance, starts)
    return bucket + settings.one_sided * (signed < 0) if settings.bidirectional else bucket


class T5(DistanceBias):
    """A learned bias per head and bucket of distances, shared by all layers.

    >>> import torch, whorl
    >>> t5 = whorl.T5(heads=8, length=512)
    >>> t5.score_bias(whorl.positions(5), whorl.positions(5)).shape, t5.softmax_scale(64)
    (torch.Size([8, 5, 5]), 1.0)

    ``table`` (buckets, heads) is transformers' ``relative_attention_bias.weight``.
    """

    Config = T5Config
    config: T5Config
    claims = Claims(
        relative=True,
        norm_preserving=True,  # queries and keys are left alone
        linear_attention=False,  # a bias inside a softmax
        decays=False,  # as learned
        extrapolates=True,  # flat to 4 times the trained length and more, where the last bucket was trained
    )

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._restore()
        length, near = self.config.length, self.config.one_sided // 2
        if length is not None and self.last_edge >= length:
            remedy = f"max_distance={length // 2}" if length // 2 > near else "fewer buckets and a smaller max_distance"
            warnings.warn(
                f"T5: the last bucket begins at distance {self.last_edge}, and texts of the trained length={length} "
                f"have none so far, so it is never trained and longer texts read it. Use {remedy}.",
                UserWarning,
                stacklevel=2,
            )
        self.table = nn.Parameter(torch.empty(self.config.buckets, self.config.heads))
        self.reset_parameters()

    def _restore(self) -> None:
        self._edges = WholeNumbers(bucket_edges(self.config.one_sided, self.config.max_distance))

    @property
    def last_edge(self) -> int:
        """The distance where the last bucket begins."""
        return self._edges.numbers[-1]

    def reset_parameters(self) -> None:
        """Draws the table anew, as loading through the meta device needs."""
        nn.init.normal_(self.table, std=START)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.BiasByDistance(self, formula=True, flat_beyond=self.last_edge, bucketed=True),)

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        return super().softmax_scale(head_dim, length) if self.config.scaled else 1.0

    @follows_from("bias_of")
    def bucket(self, i: Tensor, j: Tensor) -> Tensor:
        """The bucket of a key at j for a query at i, int64; the two broadcast."""
        return buckets_of(difference(i, j), self.config, self._edges)

    def bias_between(self, lowest: int, highest: int, device: torch.device) -> Tensor:
        """The bias (heads, distances) of all distances from one to another, float32: one read, with one sum back."""
        buckets = buckets_of(torch.arange(lowest, highest + 1, device=device), self.config, self._edges)
        return self.table.float().mT.index_select(1, buckets)

    def bias_of(self, head: Tensor, distance: Tensor) -> Tensor:
        value = self.table[buckets_of(distance, self.config, self._edges), head]
        value = value if value.dtype == torch.float64 else value.float()
        return torch.where(distance.isnan(), math.nan, value) if distance.is_floating_point() else value
