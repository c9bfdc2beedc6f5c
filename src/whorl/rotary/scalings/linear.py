"""Linear position interpolation (PI): every frequency divided by the factor.

Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation".
    w'_i = w_i / s        the same as dividing every position by s
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from whorl.config import config
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Scaling


@config
class Linear(Scaling):
    """Linear interpolation by ``factor``."""

    name: ClassVar[str] = "linear"
    factor: float

    def check(self) -> None:
        self.check_at_least_one("factor")

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        return ladder.frequencies() / self.factor
