"""NTK-by-parts: fast pairs are kept, slow pairs are interpolated, pairs between are blended.

Peng et al. 2023, "YaRN", section 3.2 (``variant="paper"``): with r_i = original_length / wavelength_i turns,
    w'_i = (1 - g) w_i / s + g w_i,    g = clamp((r_i - alpha) / (beta - alpha), 0, 1)
``variant="v1"`` is the authors' first release: linear and NTK-aware frequencies are blended over the
pairs of 1.25 to 0.75 turns, and the result with the unscaled ones over the pairs of 16 to 2 turns.
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
from whorl.rotary.scalings.ntk import ntk_base
from whorl.rotary.scalings.ramp import pair_range, ramp

V1_TO_LINEAR = (1.25, 0.75)
V1_TO_UNSCALED = (16.0, 2.0)


@config
class NtkByParts(Scaling):
    """NTK-by-parts by ``factor``; ``alpha`` and ``beta`` are turns within the original length."""

    name: ClassVar[str] = "ntk_by_parts"
    factor: float
    original_length: int
    variant: Literal["paper", "v1"] = "paper"
    alpha: float | None = None
    beta: float | None = None

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.check_positive("original_length", "alpha", "beta")
        if self.variant == "v1":
            if self.alpha is not None or self.beta is not None:
                raise WhorlError("NtkByParts: variant='v1' has fixed turn counts. Leave alpha and beta out.")
            return
        for name, default in (("alpha", 1.0), ("beta", 32.0)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        remedy = "Pairs with more than beta turns are kept, with fewer than alpha interpolated."
        self.must(self.turns[0] < self.turns[1], "beta", f"larger than alpha={self.alpha}", remedy=remedy)

    @property
    def turns(self) -> tuple[float, float]:
        """alpha and beta of the paper's form."""
        assert self.alpha is not None and self.beta is not None
        return self.alpha, self.beta

    def check_ladder(self, ladder: Ladder) -> None:
        if self.variant == "v1":
            self.check_more_than_one_pair(ladder)
            for turns in (V1_TO_LINEAR, V1_TO_UNSCALED):
                pair_range("NtkByParts", *turns, ladder, self.original_length)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        plain = ladder.frequencies()
        if self.variant == "v1":
            base = ladder.need_base("NtkByParts")
            ntk = ladder.frequencies(ntk_base(base, self.factor, ladder.dim))
            stretched = self._blend(V1_TO_LINEAR, ladder, plain / self.factor, ntk)
            return self._blend(V1_TO_UNSCALED, ladder, stretched, plain)
        alpha, beta = self.turns
        keep = torch.clamp((self.original_length * plain / (2 * math.pi) - alpha) / (beta - alpha), 0, 1)
        return (1 - keep) * plain / self.factor + keep * plain

    def _blend(self, turns: tuple[float, float], ladder: Ladder, slow: Tensor, fast: Tensor) -> Tensor:
        keep = 1 - ramp(*pair_range("NtkByParts", *turns, ladder, self.original_length), ladder)
        return slow * (1 - keep) + fast * keep
