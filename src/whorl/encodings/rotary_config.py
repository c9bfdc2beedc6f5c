"""RotaryConfig: what every rotary config has and answers, whatever its frequencies are made of."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whorl.config import Config, config
from whorl.rotary.scalings.base import Factors


@config
class RotaryConfig(Config):
    """What every rotary config has and answers.

    head_dim       dimensions of a head
    angles         "exact" (float64), or "float32": what most frameworks compute, bit for bit
    rotated_heads  the heads that are rotated; None for all
    """

    head_dim: int
    angles: Literal["exact", "float32"] = "exact"
    rotated_heads: tuple[int, ...] | None = None

    def check(self) -> None:
        self.check_positive("head_dim")
        heads = self.rotated_heads
        distinct = heads is None or (heads and min(heads) >= 0 and len(set(heads)) == len(heads))
        self.must(distinct, "rotated_heads", "distinct head indices from 0", remedy="Use None for all heads.")

    def check_base(self, base: float, remedy: str) -> None:
        """Raises a WhorlError unless frequencies can be made of a base."""
        self.must(base > 1, "base", "larger than 1", base, remedy)
        largest = torch.finfo(self.dtype).max
        exact = "Use angles='exact' for more than float32 has."
        self.must(base <= largest, "base", f"at most {largest:.3g}", base, exact)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of frequencies and angles."""
        return torch.float64 if self.angles == "exact" else torch.float32

    @property
    def pairs(self) -> int:
        """How many pairs of dimensions are rotated."""
        return self.head_dim // 2

    @property
    def start(self) -> int:
        """The first rotated dimension."""
        return 0

    @property
    def unit(self) -> float:
        """What positions are multiplied by before they meet a frequency."""
        return 1.0

    @property
    def blocks(self) -> int:
        """Into how many equal parts of the rotated dimensions the layout is applied one by one."""
        return 1

    @property
    def axes(self) -> int:
        """How many position axes a token has."""
        return 1

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """Which position axis turns each pair."""
        return (0,) * self.pairs

    def scaled_frequencies(self, length: int | None = None) -> Tensor:
        """The frequency of each pair in the precision of ``angles``, on the CPU."""
        raise NotImplementedError

    def served(self, length: int | None) -> int | None:
        """The length, or one that stands for all that have the same frequencies."""
        return length

    def factors(self, length: int | None = None) -> Factors:
        """The factors on cos and sin and on the softmax scale."""
        return Factors()
