"""Resonance: wavelengths rounded to whole numbers of positions, so that a pair repeats itself exactly.

Wang, Kobyzev, Lu, Rezagholizadeh, Liu 2024, "Resonance RoPE: Improving Context Length Generalization of LLMs".
    w'_i = 2 pi / round(2 pi / w_i)        never below one position; a pair that does not turn stays still
Positions past a pair's wavelength then meet angles that it saw in training. Another scaling may come first
(Resonance YaRN): its frequencies are rounded, and its factors stay.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder, wavelengths
from whorl.rotary.scalings.base import Factors, Scaling


@config
class Resonance(Scaling):
    """Rounds the wavelengths of the frequencies, or of those that ``inner`` scaled."""

    name: ClassVar[str] = "resonance"
    inner: Scaling | None = None

    def check(self) -> None:
        if isinstance(self.inner, Resonance):
            raise WhorlError(
                "Resonance: inner is a Resonance, and rounding twice changes nothing. Pass its inner scaling or None."
            )
        if self.inner is not None:
            # over the class's own answer: it is the inner scheme that may depend on the length
            object.__setattr__(self, "length_dependent", self.inner.length_dependent)

    def check_ladder(self, ladder: Ladder) -> None:
        if self.inner is not None:
            self.inner.check_ladder(ladder)

    def served(self, length: int | None) -> int | None:
        return None if self.inner is None else self.inner.served(length)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        given = ladder.frequencies() if self.inner is None else self.inner.frequencies(ladder, length)
        return whole_wavelengths(given)

    def factors(self, length: int | None = None) -> Factors:
        return Factors() if self.inner is None else self.inner.factors(length)


def whole_wavelengths(frequencies: Tensor) -> Tensor:
    """The frequencies whose wavelengths are the nearest whole numbers from 1 on; 0 stays 0."""
    turns = wavelengths(frequencies.abs()).round().clamp(min=1.0)  # infinite where a pair does not turn
    return torch.copysign(2 * math.pi / turns, frequencies)
