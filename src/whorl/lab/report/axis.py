"""Axes of a panel: values to pixels, and ticks where people expect them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A map from [low, high] to [start, end] in pixels, linear or in powers of two.

    >>> Axis(16, 64, 0, 100, log=True)(32)
    50.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log2(x) if self.log else x for x in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About ``wanted`` round numbers within [low, high].

    >>> ticks(0.85, 6.7)
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    """
    span = high - low
    if span <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / wanted))
    found = []
    for step in (size * factor for factor in (1, 2, 2.5, 5, 10)):
        inside = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        found.append([round(i * step, 12) for i in inside])
    return min(found, key=lambda marks: abs(len(marks) - wanted))


def places(marks: Sequence[float]) -> int:
    """How many decimals tell these ticks apart."""
    return next((n for n in range(4) if all(abs(mark - round(mark, n)) < 1e-9 for mark in marks)), 4)


def thin(pixels: Sequence[float], widths: Sequence[float], first: Sequence[int], gap: float = 6.0) -> list[int]:
    """Which of the labels fit side by side, those in ``first`` being tried before the others.

    >>> thin([0, 10, 50], [20, 20, 20], first=[2])
    [0, 2]
    """
    kept: list[int] = []
    for i in dict.fromkeys((*first, *range(len(pixels)))):
        if all(abs(pixels[i] - pixels[j]) >= (widths[i] + widths[j]) / 2 + gap for j in kept):
            kept.append(i)
    return sorted(kept)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels: at least ``gap`` apart, in the same order, as near to the wanted ones as that allows.

    Labels that would overlap form a block around the mean of their wishes; blocks that touch are joined. Where there
    is not room enough between low and high for all, the last ones pass high.

    >>> spread([10, 11, 40], 8, 0, 100)
    [6.5, 14.5, 40.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, list[int]]] = []  # the place of the first label, and the labels

    def settle(members: list[int]) -> float:
        first = sum(wanted[i] - k * gap for k, i in enumerate(members)) / len(members)
        return max(low, min(first, high - (len(members) - 1) * gap))

    for i in order:
        blocks.append((settle([i]), [i]))
        while len(blocks) > 1 and blocks[-2][0] + len(blocks[-2][1]) * gap > blocks[-1][0] - 1e-9:
            members = blocks[-2][1] + blocks[-1][1]
            blocks[-2:] = [(settle(members), members)]
    out = [0.0] * len(wanted)
    for first, members in blocks:
        for k, i in enumerate(members):
            out[i] = first + k * gap
    return out


def width_of(text: str, font: float) -> float:
    """About how wide a text is in a sans-serif font of this size."""
    return font * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.57 for letter in text)
