"""Sandwich: the product of the sinusoidal codes of query and key, and nothing else of them.

Chi, Fan, Rudnicky, Ramadge 2022, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
Analysis".
    bias of head h of H for a query at i and a key at j:   H / (8(h+1)) <p_i, p_j>
    <p_i, p_j> = sum_(k < D/2) cos((i - j) base^(-2k/D)),   D = 128 whatever the head's size
It is largest at distance 0 and falls as a trend, not step by step.
Position enters in every layer, in the scores. No parameters. Dense, a matrix product of D numbers per pair of
positions, shared by all heads; or D extra dimensions of queries and keys on any attention kernel (``fold``).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.bias import DistanceBias
from whorl.encodings.sinusoidal import frequencies_on
from whorl.position_checks import check_one_axis
from whorl.rotary.tables import by_distance


@config
class SandwichConfig(Config):
    """Everything that makes one Sandwich differ from another.

    heads          how many heads
    code_width     D, the dimensions of the sinusoidal codes
    base           the base of their frequencies
    """

    name: ClassVar[str] = "sandwich"
    heads: int
    code_width: int = 128
    base: float = 10_000.0

    def check(self) -> None:
        self.check_positive("heads")
        even, remedy = self.code_width % 2 == 0, "A code has a sine and a cosine of each frequency."
        self.must(even and self.code_width > 0, "code_width", "even and positive", remedy=remedy)
        self.must(self.base > 1, "base", "larger than 1", remedy="The paper uses 10,000.")


def code_product(distance: Tensor, width: int, base: float) -> Tensor:
    """<p_i, p_j> of sinusoidal codes at this distance, elementwise, float64.

    >>> code_product(torch.tensor([0, 1, 8, 512]), 128, 10_000.0)
    tensor([64.0000, 62.0937, 45.7205, 14.0432], dtype=torch.float64)
    """
    distance = distance.to(torch.float64)
    out = torch.cos(distance)  # the pair of base^0
    for pair in range(1, width // 2):
        out = out + torch.cos(distance * base ** (-2 * pair / width))
    return out


class Sandwich(DistanceBias):
    """The product of two sinusoidal codes, weighed by head.

    >>> import torch, whorl
    >>> sandwich = whorl.Sandwich(heads=8)
    >>> sandwich.score_bias(whorl.positions(3), whorl.positions(3))[0]
    tensor([[64.0000, 62.0937, 57.3819],
            [62.0937, 64.0000, 62.0937],
            [57.3819, 62.0937, 64.0000]])
    """

    Config = SandwichConfig
    config: SandwichConfig
    claims = Claims(
        relative=True,
        norm_preserving=True,  # queries and keys are left alone
        linear_attention=False,  # a bias inside a softmax
        decays=False,  # as a trend only: a sum of cosines rises again, and is below zero in places
        extrapolates=True,  # flat to 8 times the trained length and more, in one comparison
    )

    def weights(self, head: Tensor) -> Tensor:
        """H / (8(h+1)) of these heads, float64."""
        return self.config.heads / (8.0 * (head.to(torch.float64) + 1))

    def bias_of(self, head: Tensor, distance: Tensor) -> Tensor:
        """The bias of a head for a query so many positions after the key, float32.

        D / 2 cosines for each pair: as code of a GPU kernel that takes minutes to compile. ``fold`` needs none.
        """
        own = self.config
        return (self.weights(head) * code_product(distance, own.code_width, own.base)).float()

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor:
        """The bias (heads, queries, keys), with a batch axis in front where positions have one."""
        if (type(self).bias_at, type(self).bias_of) != (Sandwich.bias_at, Sandwich.bias_of):  # a subclass has its own
            return super().score_bias(q_positions, k_positions, length)
        queries, keys = self._codes(q_positions, k_positions)
        product = (queries @ keys.mT).unsqueeze(-3)
        head = torch.arange(self.heads, device=q_positions.device)[:, None, None]
        return (self.weights(head) * product).float()

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.BiasByDistance(self, formula=True, fold_dims=self.config.code_width),)

    def fold(
        self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Extra dimensions whose product, times scale, is the bias: (…, heads, queries, D) and (…, 1, keys, D).

        ``scale`` is what the kernel multiplies all scores by. Codes are rounded to ``dtype``, which moves the bias of
        the first of 8 heads, 64 at most, by 3e-6 in float32, 0.008 in float16 and 0.06 in bfloat16 at most.
        """
        head = torch.arange(self.heads, device=q_positions.device)
        weights = (self.weights(head) / scale)[:, None, None]
        queries, keys = (codes.unsqueeze(-3) for codes in self._codes(q_positions, k_positions))
        return (weights * queries).to(dtype), keys.to(dtype)

    def _codes(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """The codes of queries and keys, in any order: products are of the distance alone, to the last bit."""
        for positions in (q_positions, k_positions):
            check_one_axis(type(self).__name__, positions)
        frequencies = frequencies_on(self.config.code_width, self.config.base, q_positions.device)
        queries, keys = (
            torch.cat(by_distance(positions, frequencies, torch.float64), dim=-1)
            for positions in (q_positions, k_positions)
        )
        return queries, keys
