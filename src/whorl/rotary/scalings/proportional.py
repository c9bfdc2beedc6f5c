"""Proportional RoPE (p-RoPE): only the fastest share of the pairs turns, the rest stays still.

Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?"; Gemma 4.
    n = floor(fraction * d / 2);   w'_i = base^(-2i/d) / s for i < n, and 0 above
Not the same as rotary_dim < head_dim: the ladder is that of the whole head, and so is the pairing.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Scaling


@config
class Proportional(Scaling):
    """Turns the fastest ``fraction`` of the pairs, each divided by ``factor``."""

    name: ClassVar[str] = "proportional"
    fraction: float
    factor: float = 1.0

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.must(0 <= self.fraction <= 1, "fraction", "between 0 and 1")

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        turning = int(self.fraction * ladder.dim // 2)
        if ladder.base is None:
            fast = ladder.frequencies()[:turning]
        else:
            # only the turning pairs go through the power, as in frameworks: torch rounds the last few of a
            # vector differently, so a longer one has other bits in float32
            fast = 1.0 / (ladder.base ** ladder.exponents()[:turning])
        still = torch.zeros(ladder.dim // 2 - turning, dtype=ladder.dtype, device="cpu")
        return torch.cat((fast, still)) / self.factor
