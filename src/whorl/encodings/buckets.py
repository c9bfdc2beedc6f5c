"""Buckets of distances that widen by one ratio, as those of T5 and DeBERTa do: where they begin, in whole numbers."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from math import gcd

import torch
from torch import Tensor

DIGITS = 60  # behind the point, of which rounding takes as many as the number of steps has, and two
UNSURE = Decimal("1e-20")


def widening(near: int, far: int, steps: int, count: int) -> list[tuple[int, bool]]:
    """near (far / near)^(step / steps) for the first ``count`` steps: rounded down, and whether that is the number.

    No rounding decides. A number is followed with many digits, and where those leave open on which side of a whole
    number it is, powers of whole numbers are compared. Those are small: so close are in practice only numbers that are
    whole themselves, and then far / near is a power whose exponent is the denominator of step / steps.

    >>> widening(16, 256, 16, 6)
    [(16, True), (19, False), (22, False), (26, False), (32, True), (38, False)]
    """
    found = []
    with localcontext(Context(prec=DIGITS + len(str(far)))):
        ratio, number = ((Decimal(far) / near).ln() / steps).exp(), Decimal(near)
        for step in range(count):
            whole = round(number)
            above = number - whole
            if abs(above) < UNSURE:
                up, down = step // gcd(step, steps), steps // gcd(step, steps)
                above = far**up * near**down - whole**down * near**up
            found.append((whole - (above < 0), not above))
            number *= ratio
    return found


def reached(distance: Tensor, starts: Tensor) -> Tensor:
    """How many of the starts, in order, each distance has reached, int64; both of one dtype."""
    if distance.ndim:
        return torch.bucketize(distance.contiguous(), starts, right=True)  # torch warns of another order in memory
    # one pair inside FlexAttention's kernel, which has no search but reads numbers
    count, step = torch.zeros_like(distance), 1 << len(starts).bit_length()
    while step := step // 2:
        further = count + step
        passed = (further <= len(starts)) & (starts[(further - 1).clamp(max=len(starts) - 1)] <= distance)
        count = torch.where(passed, further, count)
    return count
