"""The ramp over pairs that YaRN and the first NTK-by-parts share: 0 on fast pairs, 1 on slow ones.

Peng et al. 2023, "YaRN", in the form of the authors' code: the pair that makes r turns within the
original length L is   d * ln(L / (2 pi r)) / (2 ln base),   and the ramp is linear in the pair index
between the pairs of two turn counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder


def pair_of_turns(turns: float, dim: int, base: float, original_length: int) -> float:
    """The (fractional) pair index that makes ``turns`` turns within the original length."""
    ratio = original_length / (turns * 2 * math.pi)
    if 0 < ratio < math.inf:
        distance = math.log(ratio)
    else:  # turns near the ends of the numbers, where the quotient is none
        distance = math.log(original_length) - math.log(turns) - math.log(2 * math.pi)
    return dim * distance / (2 * math.log(base))


def pair_range(
    call: str, fast: float, slow: float, ladder: Ladder, original_length: int, truncate: bool = True
) -> tuple[float, float]:
    """The pair indices between which the ramp rises, clamped to 0 and dim - 1 as in the authors' code."""
    base = ladder.need_base(call)
    low = pair_of_turns(fast, ladder.dim, base, original_length)
    high = pair_of_turns(slow, ladder.dim, base, original_length)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, ladder.dim - 1)
    if low > ladder.dim - 1:
        # dividing by the negative width would interpolate every pair, the opposite of what is meant
        raise WhorlError(
            f"{call}: every pair of base {base:g} makes more than {fast:g} turns within original_length="
            f"{original_length}, so none is left to interpolate. Use a larger base or a smaller original_length."
        )
    return low, high


def ramp(low: float, high: float, ladder: Ladder) -> Tensor:
    """0 up to pair ``low``, 1 from pair ``high``, linear between, one value per pair."""
    width = high - low if high != low else (high + 0.001) - low  # a step, without dividing by zero
    return torch.clamp((ladder.arange(ladder.dim // 2) - low) / width, 0, 1)
