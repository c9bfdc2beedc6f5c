"""The Llama 3.1 scaling: long wavelengths are interpolated, short ones kept, a smooth blend between.

Dubey et al. 2024, "The Llama 3 Herd of Models", as released by Meta. With L = original_length, r_i = L / wavelength_i:
    r > high_freq_factor   w'_i = w_i
    r < low_freq_factor    w'_i = w_i / s
    between                w'_i = (1 - t) w_i / s + t w_i,   t = (r - low) / (high - low)
With low = high (Llama 4) there is no between: pairs at exactly that turn count are interpolated.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.rotary.frequencies import Ladder, wavelengths
from whorl.rotary.scalings.base import Scaling


@config
class Llama3(Scaling):
    """Llama 3.1 scaling by ``factor`` from ``original_length``."""

    name: ClassVar[str] = "llama3"
    factor: float
    original_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.check_positive("original_length", "low_freq_factor", "high_freq_factor")
        low, remedy = self.low_freq_factor, "Both are turns within original_length; Meta uses 1 and 4."
        higher = self.high_freq_factor >= low
        self.must(higher, "high_freq_factor", f"at least low_freq_factor={low:g}", remedy=remedy)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        plain = ladder.frequencies()
        turn = wavelengths(plain)
        longest = self.original_length / self.low_freq_factor
        shortest = self.original_length / self.high_freq_factor
        scaled = torch.where(turn > longest, plain / self.factor, plain)
        between = ~(turn < shortest) & ~(turn > longest)
        if self.high_freq_factor == self.low_freq_factor:
            return torch.where(between, plain / self.factor, scaled)
        keep = (self.original_length / turn - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.where(between, (1 - keep) * plain / self.factor + keep * plain, scaled)
