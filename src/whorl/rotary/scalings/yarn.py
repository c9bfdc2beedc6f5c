"""YaRN: NTK-by-parts over the pair index, and a temperature on attention.

Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models".
    w'_i = (w_i / s) (1 - k_i) + w_i k_i,    k_i = (1 - ramp_i) * extrapolation_factor
with the ramp of ``ramp.py`` between beta_fast and beta_slow turns. Two separate corrections exist:
    g(s, m) = 0.1 m ln(s) + 1
    attention_factor   multiplies cos and sin: as given, else g(s, mscale) / g(s, mscale_all_dim)
                       where both are set, else g(s, 1)
    softmax_factor     multiplies the softmax scale: g(s, mscale_all_dim)^2 where the model applies it there
                       (DeepSeek-V2 and V3 do, Ministral 3 with the same keys does not)
Short input is scaled too: the scheme does not depend on the length asked for.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from whorl.config import config
from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Factors, Scaling
from whorl.rotary.scalings.ramp import pair_range, ramp
from whorl.rotary.scalings.temperature import temperature


@config
class Yarn(Scaling):
    """YaRN by ``factor`` from ``original_length``."""

    name: ClassVar[str] = "yarn"
    extrapolates: ClassVar[bool] = True
    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    extrapolation_factor: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    scale_softmax: bool = False

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.check_positive("original_length", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
        slow, fast = self.beta_slow, self.beta_fast  # Kimi-K2 has them equal, for a step in place of a ramp
        remedy = "Pairs with more than beta_fast turns are kept, with fewer than beta_slow interpolated."
        self.must(slow <= fast, "beta_fast", f"larger than beta_slow={slow:g}", remedy=remedy)
        self.must(0 <= self.extrapolation_factor <= 1, "extrapolation_factor", "between 0 and 1")
        self._check_temperature()

    def _check_temperature(self) -> None:
        """No temperature setting may be ignored: peers disagree on what a lone mscale means."""
        if self.scale_softmax and self.mscale_all_dim is None:
            raise WhorlError("Yarn: scale_softmax=True needs mscale_all_dim. Pass mscale_all_dim=1.0, say.")
        if self.attention_factor is not None:
            if self.mscale is not None:
                raise WhorlError(
                    "Yarn: attention_factor replaces mscale, so mscale would be ignored. Leave one of them out."
                )
            if self.mscale_all_dim is not None and not self.scale_softmax:
                raise WhorlError(
                    "Yarn: attention_factor replaces mscale_all_dim unless scale_softmax=True. Leave one of them out."
                )
        elif (self.mscale is None) != (self.mscale_all_dim is None):
            raise WhorlError(
                "Yarn: mscale and mscale_all_dim come together; transformers ignores one alone and vLLM does not. "
                "Pass both, or say what multiplies cos and sin with attention_factor=…."
            )

    def check_ladder(self, ladder: Ladder) -> None:
        self._range(ladder)

    def _range(self, ladder: Ladder) -> tuple[float, float]:
        return pair_range("Yarn", self.beta_fast, self.beta_slow, ladder, self.original_length, self.truncate)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        spans = ladder.reduced_wavelengths()
        keep = (1 - ramp(*self._range(ladder), ladder)) * self.extrapolation_factor
        return 1.0 / (self.factor * spans) * (1 - keep) + 1.0 / spans * keep

    def factors(self, length: int | None = None) -> Factors:
        if self.attention_factor is not None:
            attention = self.attention_factor
        elif self.mscale is not None and self.mscale_all_dim is not None:
            attention = temperature(self.factor, self.mscale) / temperature(self.factor, self.mscale_all_dim)
        else:
            attention = temperature(self.factor)
        if not self.scale_softmax:
            return Factors(attention)
        assert self.mscale_all_dim is not None
        stretched = temperature(self.factor, self.mscale_all_dim)
        return Factors(attention, stretched * stretched)
