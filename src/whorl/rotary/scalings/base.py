"""The base of all scalings: new frequencies, a factor on cos and sin, a factor on the softmax scale."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from whorl.config import LARGEST, Config, config
from whorl.errors import WhorlError, check_counts, invalid
from whorl.rotary.frequencies import Ladder


class Factors(NamedTuple):
    """The two factors of a scaling beside its frequencies.

    ``attention`` multiplies cos and sin, so it acts on the rotated dimensions of queries and keys.
    ``softmax`` multiplies the softmax scale, so it acts on all dimensions of the score.
    """

    attention: float = 1.0
    softmax: float = 1.0


@config
class Scaling(Config):
    """A scheme that turns a Ladder into the frequencies for longer input."""

    length_dependent: ClassVar[bool] = False  # whether frequencies change with the length asked for
    extrapolates: ClassVar[bool] = False  # whether quality holds at 4 times the trained length without training again

    def __post_init__(self) -> None:
        super().__post_init__()
        attention, softmax = self.factors()
        remedy = "It multiplies cos and sin, so that scores have its square; trained models have 1 to 2."
        self._check_factor("the attention factor", attention, LARGEST, remedy)
        remedy = "Scores are multiplied by it, and by the square of the attention factor."
        self._check_factor("the softmax factor", softmax, LARGEST**2 / max(attention, 1 / attention) ** 2, remedy)

    def _check_factor(self, name: str, factor: float, most: float, remedy: str) -> None:
        if not 1 / most <= factor <= most:  # which NaN is not either; turning back divides by it
            raise invalid(self.call(), name, f"from {1 / most:.3g} to {most:.3g}", factor, remedy)

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        """The scaled frequencies, in the ladder's dtype."""
        raise NotImplementedError

    def served(self, length: int | None) -> int | None:
        """The length, or one that stands for all that have the same frequencies; None for the original length."""
        return length

    def factors(self, length: int | None = None) -> Factors:
        """The two factors, which are never merged."""
        return Factors()

    def check_ladder(self, ladder: Ladder) -> None:
        """Raises a WhorlError where the scheme cannot serve a head of this size."""

    def check_at_least_one(self, name: str) -> None:
        remedy = "A factor of 4 serves 4 times the trained length."
        self.must(getattr(self, name) >= 1.0, name, "at least 1", remedy=remedy)

    def check_more_than_one_pair(self, ladder: Ladder) -> None:
        if ladder.dim == 2:
            raise WhorlError(
                f"{self.call()}: rotary_dim must be at least 4, got 2. "
                "The base is raised to dim / (dim - 2), which one pair does not have; use Linear."
            )


def factor_for(length: int, *, trained_length: int) -> float:
    """The smallest factor that keeps every position of ``length`` inside what the data really reached.

    The trained length is the longest text the model saw, not its window: with a 4096 window filled
    only to 3072, serving 8192 needs 8/3 and not 2 ("reverse extrapolation").

    >>> round(factor_for(8192, trained_length=3072), 4)
    2.6667
    """
    check_counts("factor_for", length=length, trained_length=trained_length)
    return max(1.0, length / trained_length)
