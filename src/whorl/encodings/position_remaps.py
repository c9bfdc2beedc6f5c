"""ReRoPE, leaky ReRoPE and Self-Extend: RoPE with the distance of far keys brought back into the trained range.

    rerope         distance d up to w stays, beyond it every key stands at w
    leaky_rerope   beyond w a step counts 1/k: w + (d - w) / k
    self_extend    beyond w positions are grouped: floor(i/G) + w - floor(w/G) against floor(j/G)
Su 2023, "Rectified Rotary Position Embeddings" (kexue.fm/archives/9708); Jin, Han, Yang, Jiang, Liu, Chang, Chen,
Hu 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning".
No one rotation of queries and keys gives such distances, so each scheme places them twice: near pairs where they are,
far pairs as remapped, and each pair's score is that of its own placement.
    rerope far         query at w, key at 0
    leaky_rerope far   query at i/k + w (1 - 1/k), key at j/k
    self_extend far    query at floor(i/G) + w - floor(w/G), key at floor(j/G)
Position enters in every layer, on queries and keys, twice. No parameters; twice the score products. They serve a model
trained with plain RoPE past its length without training. Su takes w a quarter to a half of that length; log-n scaling
may stand beside them. A key's rotation depends on the query it meets, so caches keep keys unrotated.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.encodings import parts
from whorl.encodings.base import Branch, Claims
from whorl.encodings.pairs import distances
from whorl.encodings.rope import Rope, RopeConfig


@config
class ReRopeConfig(RopeConfig):
    """Everything that makes one ReRoPE differ from another, beside what RoPE has.

    window         w, the distance beyond which keys are remapped
    bidirectional  whether far keys after the query are remapped as well, to the mirror image, for encoders
    """

    name: ClassVar[str] = "rerope"
    window: int = 512
    bidirectional: bool = False

    def check(self) -> None:
        super().check()
        remedy = "A quarter to a half of the trained length works best."
        self.must(self.window > 0, "window", "positive", remedy=remedy)


@config
class LeakyReRopeConfig(ReRopeConfig):
    """Everything that makes one leaky ReRoPE differ from another, beside what ReRoPE has.

    factor         k, how many positions beyond the window count as one
    """

    name: ClassVar[str] = "leaky_rerope"
    factor: float = 16.0

    def check(self) -> None:
        super().check()
        self.must(self.factor >= 1, "factor", "at least 1", remedy="With 1 it is RoPE, without bound ReRoPE.")


@config
class SelfExtendConfig(RopeConfig):
    """Everything that makes one Self-Extend differ from another, beside what RoPE has.

    window         w, the distance from which positions are grouped
    group          G, how many positions make a group; a length L becomes (L - w) G + w
    """

    name: ClassVar[str] = "self_extend"
    window: int = 1024
    group: int = 8

    def check(self) -> None:
        super().check()
        for name in ("window", "group"):
            self.must(getattr(self, name) > 0, name, "positive", remedy="The paper uses 1024 and 4 to 8.")


def rerope_far(q_positions: Tensor, k_positions: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Positions whose distance is the window, whatever they were."""
    return torch.full_like(q_positions, window), torch.zeros_like(k_positions)


def leaky_far(q_positions: Tensor, k_positions: Tensor, window: int, factor: float) -> tuple[Tensor, Tensor]:
    """Positions whose distance is window + (distance - window) / factor, float64."""
    return q_positions.double() / factor + (window - window / factor), k_positions.double() / factor


def self_extend_far(q_positions: Tensor, k_positions: Tensor, window: int, group: int) -> tuple[Tensor, Tensor]:
    """Positions of groups, those of queries shifted so that the window is reached where it ends."""
    q_group, k_group = (torch.div(ids, group, rounding_mode="floor") for ids in (q_positions, k_positions))
    return q_group + (window - window // group), k_group


class Remap(Rope):
    """Base of the encodings that place far pairs elsewhere than near ones."""

    @property
    def causal_only(self) -> bool:
        """Whether only causal attention has a meaning."""
        return not getattr(self.config, "bidirectional", False)

    @property
    def claims(self) -> Claims:
        keeps = self.attention_factor() == 1.0
        return Claims(relative=True, norm_preserving=keeps, linear_attention=False, decays=False, extrapolates=True)


class ReRope(Remap):
    """RoPE whose distance stops growing at the window.

    >>> import whorl
    >>> near, far = whorl.ReRope(head_dim=64, window=2).branches(whorl.positions(4), whorl.positions(4))
    >>> far.allowed.int().tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    >>> far.q_positions.tolist(), far.k_positions.tolist()
    ([2, 2, 2, 2], [0, 0, 0, 0])
    """

    Config = ReRopeConfig
    config: ReRopeConfig

    def declare(self) -> tuple[parts.Part, ...]:
        return *super().declare(), parts.Branches(self, near=self.config.window)

    def branches(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Branch, ...]:
        """Near pairs where they are, far pairs as remapped, and with ``bidirectional`` far keys after the query."""
        window = self.config.window
        distance = distances(type(self).__name__, q_positions, k_positions)
        before = Branch(*self._far(q_positions, k_positions, window), distance >= window)
        if not self.config.bidirectional:
            return Branch(q_positions, k_positions, distance < window), before
        # the mirror image: key and query change roles
        k_far, q_far = self._far(k_positions, q_positions, window)
        after = Branch(q_far, k_far, distance <= -window)
        return Branch(q_positions, k_positions, distance.abs() < window), before, after

    def _far(self, q_positions: Tensor, k_positions: Tensor, window: int) -> tuple[Tensor, Tensor]:
        return rerope_far(q_positions, k_positions, window)


class LeakyReRope(ReRope):
    """RoPE whose distance grows ``factor`` times slower beyond the window.

    >>> import whorl
    >>> leaky = whorl.LeakyReRope(head_dim=64, window=2, factor=4.0)
    >>> near, far = leaky.branches(whorl.positions(4), whorl.positions(4))
    >>> float(far.q_positions[3] - far.k_positions[0])
    2.25
    """

    Config = LeakyReRopeConfig
    config: LeakyReRopeConfig

    def _far(self, q_positions: Tensor, k_positions: Tensor, window: int) -> tuple[Tensor, Tensor]:
        return leaky_far(q_positions, k_positions, window, self.config.factor)


class SelfExtend(Remap):
    """RoPE whose far positions are those of groups, for causal attention.

    Distances of far pairs depend on where the groups begin, so scores are not of the distance alone.

    >>> import whorl
    >>> near, far = whorl.SelfExtend(head_dim=64, window=2, group=2).branches(whorl.positions(4), whorl.positions(4))
    >>> far.q_positions.tolist(), far.k_positions.tolist()
    ([1, 1, 2, 2], [0, 0, 1, 1])
    """

    Config = SelfExtendConfig
    config: SelfExtendConfig

    def declare(self) -> tuple[parts.Part, ...]:
        return *super().declare(), parts.Branches(self, near=self.config.window)

    @property
    def claims(self) -> Claims:
        keeps = self.attention_factor() == 1.0
        return Claims(relative=False, norm_preserving=keeps, linear_attention=False, decays=False, extrapolates=True)

    def branches(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Branch, ...]:
        """Near pairs where they are, far pairs by their groups."""
        window = self.config.window
        distance = distances("SelfExtend", q_positions, k_positions)
        far = self_extend_far(q_positions, k_positions, window, self.config.group)
        return Branch(q_positions, k_positions, distance < window), Branch(*far, distance >= window)
