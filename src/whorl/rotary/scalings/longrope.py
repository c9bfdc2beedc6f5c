"""LongRoPE: every pair has its own searched factor, one set below the original length and one above.

Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", as Phi-3 uses it.
    w'_i = 1 / (f_i base^(2i/d)),    f = long_factor if length > original_length else short_factor
    attention_factor = sqrt(1 + ln(s) / ln(original_length)) for s > 1, the same for both sets
Keys rotated with one set do not fit the other: cache them unrotated, or move them with ``rerotate``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Factors, Scaling


@config
class LongRope(Scaling):
    """LongRoPE with one factor per pair; ``factor`` sets the attention factor unless ``attention_factor`` does."""

    name: ClassVar[str] = "longrope"
    length_dependent: ClassVar[bool] = True
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float | None = None
    attention_factor: float | None = None

    def check(self) -> None:
        self.check_positive("original_length", "attention_factor")
        for name in ("short_factor", "long_factor"):
            for i, value in enumerate(getattr(self, name)):
                self.must(value > 0, f"{name}[{i}]", "positive", value)
        if self.factor is not None:
            self.check_at_least_one("factor")
        if (self.factor is None) == (self.attention_factor is None):
            raise WhorlError(
                "LongRope: exactly one of factor and attention_factor sets what multiplies cos and sin. "
                "Pass factor=(longest length / original_length), or attention_factor=1.0 for none."
            )
        longer, remedy = self.original_length > 1, "The attention factor divides by its log."
        self.must(longer or self.factor is None, "original_length", "at least 2", remedy=remedy)

    def check_ladder(self, ladder: Ladder) -> None:
        for name in ("short_factor", "long_factor"):
            count = len(getattr(self, name))
            if count != ladder.dim // 2:
                raise WhorlError(
                    f"LongRope: {name} must have rotary_dim / 2 = {ladder.dim // 2} numbers, got {count}. "
                    "One number belongs to each rotated pair; check rotary_dim."
                )

    def served(self, length: int | None) -> int | None:
        return None if length is None or length <= self.original_length else self.original_length + 1

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        factors = self.short_factor if self.served(length) is None else self.long_factor
        return 1.0 / (torch.tensor(factors, dtype=ladder.dtype, device="cpu") * ladder.reduced_wavelengths())

    def factors(self, length: int | None = None) -> Factors:
        if self.attention_factor is not None:
            return Factors(self.attention_factor)
        assert self.factor is not None
        if self.factor <= 1:
            return Factors()
        return Factors(math.sqrt(1 + math.log(self.factor) / math.log(self.original_length)))
