"""NTK-aware scaling: a larger base, so fast pairs keep their speed and slow pairs stretch.

bloc97 2023 (the "NTK-aware scaled RoPE" post); the other two forms are vLLM's.
    base:   base' = base * s^(d / (d - 2))      pair 0 unchanged, the last pair divided by s
    fixed:  base' = base * s, then w_i / s^(2/d)   the last pair divided by s, pair 0 by s^(2/d)
    mixed:  w'_i = w_i / exp(a * (i + 1)^b),  a = ln(s) / (d/2)^b   the last pair divided by s
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whorl.config import config
from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Scaling

MOST_EXPONENT = 8.0  # what float32 can raise the number of a pair to, in heads of up to 2^16 dimensions


@config
class Ntk(Scaling):
    """NTK-aware scaling by ``factor``; ``exponent`` is the b of the mixed form."""

    name: ClassVar[str] = "ntk"
    factor: float
    variant: Literal["base", "fixed", "mixed"] = "base"
    exponent: float | None = None

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.check_positive("exponent")
        if (self.variant == "mixed") != (self.exponent is not None):
            raise WhorlError(
                f"Ntk: exponent belongs to variant='mixed' and only there, got variant={self.variant!r} with "
                f"exponent={self.exponent}. Pass variant='mixed', exponent=0.625, or leave exponent out."
            )
        low = self.exponent is None or self.exponent <= MOST_EXPONENT
        self.must(low, "exponent", f"at most {MOST_EXPONENT:g}", remedy="Usual is 0.625; float32 has no larger powers.")

    def check_ladder(self, ladder: Ladder) -> None:
        if self.variant != "mixed":
            ladder.need_base("Ntk")
        if self.variant == "base":
            self.check_more_than_one_pair(ladder)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        dim = ladder.dim
        if self.variant == "base":
            return ladder.frequencies(ntk_base(ladder.need_base("Ntk"), self.factor, dim))
        if self.variant == "fixed":
            return ladder.frequencies(ladder.need_base("Ntk") * self.factor) / self.factor ** (2 / dim)
        assert self.exponent is not None
        a = math.log(self.factor) / (dim / 2) ** self.exponent
        return ladder.frequencies() / torch.exp(a * ladder.arange(1, dim // 2 + 1) ** self.exponent)


def ntk_base(base: float, factor: float | Tensor, dim: int) -> float | Tensor:
    """The base whose slowest pair is ``factor`` times slower than that of ``base``; infinite beyond float64."""
    try:
        return base * factor ** (dim / (dim - 2))
    except OverflowError:  # of Python's numbers; tensors are infinite by themselves
        return math.inf
