"""Bounds of theory: the base that a context asks for, and the dimensions that ever finish a turn.

Men et al. 2024, "Base of RoPE Bounds Context Length": a key like its query should score above a random one at every
distance, which asks for sum_i cos(m w_i) >= 0 for all m < context. The bases that satisfy it have gaps.
Liu et al. 2023, "Scaling Laws of RoPE-based Extrapolation": of D dimensions the first 2 ceil(D/2 log_base(L / 2 pi))
finish a turn within the trained length L, and beyond it only those are at home.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from whorl.analysis.decay import cosine_sum
from whorl.analysis.wavelengths import Array, real
from whorl.errors import WhorlError, invalid
from whorl.rotary.frequencies import Ladder

CHUNK = 4096


def lowest_sum(frequencies: ArrayLike, context: int, floor: float = -math.inf) -> float:
    """The smallest sum_i cos(m w_i) over the distances 0 … context - 1; ends early once one is below ``floor``.

    >>> import whorl
    >>> lowest_sum(whorl.reference.frequencies(128), 1707) > 0 > lowest_sum(whorl.reference.frequencies(128), 1708)
    True
    """
    if context < 1:
        raise invalid("lowest_sum", "context", "at least 1", context)
    lowest = math.inf
    for start in range(0, context, CHUNK):
        here = cosine_sum(frequencies, np.arange(start, min(start + CHUNK, context)))
        lowest = min(lowest, float(here.min()))
        if lowest < floor:
            break
    return lowest


def base_holds(base: float, context: int, head_dim: int = 128, rotary_dim: int | None = None) -> bool:
    """Whether sum_i cos(m w_i) >= 0 at every distance below the context.

    Dimensions that are not rotated count as cosines of 0: one half of them and every base holds.

    >>> base_holds(4.3e3, 1024), base_holds(4.4e3, 1024), base_holds(4.4e3, 1024, rotary_dim=64)
    (True, False, True)
    """
    turned = head_dim if rotary_dim is None else rotary_dim
    if turned % 2 or not 0 < turned <= head_dim:
        raise invalid("base_holds", "rotary_dim", f"even and from 2 to {head_dim}", turned)
    if base <= 1:
        raise invalid("base_holds", "base", "larger than 1", base)
    still = (head_dim - turned) // 2
    return lowest_sum(Ladder(turned, base).frequencies().numpy(), context, -still) >= -still


def two_digit_bases(low: float = 1e3, high: float = 1e9) -> Array:
    """Every number of two significant digits from low to high, the grid of the published tables.

    >>> two_digit_bases(8e3, 1.2e4).tolist()[-5:]
    [9800.0, 9900.0, 10000.0, 11000.0, 12000.0]
    """
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    grid = [digits * 10.0 ** (power - 1) for power in range(first, last + 1) for digits in range(10, 100)]
    return np.array([base for base in grid if low <= base <= high])


def base_lower_bound(context: int, head_dim: int = 128, bases: Iterable[float] | None = None) -> float:
    """The first of the bases that holds for a context; larger ones may fail again, so ask ``base_holds`` for yours.

    >>> base_lower_bound(1000)
    4300.0
    """
    grid = two_digit_bases() if bases is None else real("base_lower_bound", "bases", list(bases))
    for base in grid:
        if base_holds(float(base), context, head_dim):
            return float(base)
    raise WhorlError(
        f"base_lower_bound: none of {len(grid)} bases holds for context={context} and head_dim={head_dim}. "
        "Pass larger bases."
    )


def critical_dimension(head_dim: int, base: float, trained_length: int) -> int:
    """The number of dimensions, from the fastest on, that finish a turn within the trained length.

    >>> critical_dimension(128, 1e4, 4096), critical_dimension(64, 1e4, 512)
    (92, 32)
    """
    for name, value in (("head_dim", head_dim), ("trained_length", trained_length)):
        if value < 1:
            raise invalid("critical_dimension", name, "at least 1", value)
    if base <= 1:
        raise invalid("critical_dimension", "base", "larger than 1", base)
    pairs = math.ceil(head_dim / 2 * math.log(trained_length / (2 * math.pi), base))
    return 2 * min(max(pairs, 0), head_dim // 2)
