"""Frequency and wavelength of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from whorl import Encoding, Rope
from whorl.analysis.wavelengths import frequencies_of, wavelengths
from whorl.plot import style

MOST_NUMBERS = 8  # pairs that have room for their wavelength


def frequencies(
    encodings: style.Encodings | None = None, *, length: int | None = None, ax: style.Axes | None = None
) -> style.Axes:
    """The wavelength of each pair, and on the right its frequency; of a RoPE of 8 dimensions by default.

    ``length`` is what a scaling is to serve.
    """
    drawn = style.encodings_of("frequencies", Rope(head_dim=8) if encodings is None else encodings)
    ax = style.axes(ax)
    most = 0
    for index, (encoding, label) in enumerate(zip(drawn, style.labels(drawn), strict=True)):
        turns = wavelengths(frequencies_of(encoding, length))
        most = max(most, len(turns))
        colour = style.COLOURS[index % len(style.COLOURS)]
        marker = style.MARKERS[index % len(style.MARKERS)]
        size = (6 if len(turns) <= 16 else 3.5) * (1 + 0.4 * (len(drawn) - 1 - index))  # equal ones show as rings
        ax.plot(np.arange(len(turns)), turns, marker, color=colour, markersize=size, label=label)
        if len(drawn) == 1 and len(turns) <= MOST_NUMBERS:
            for pair, turn in enumerate(turns):
                text = f"{turn:,.1f}" if turn >= 1000 else f"{turn:.4g}"
                above = {"textcoords": "offset points", "ha": "center", "fontsize": style.SMALL}
                ax.annotate(text, (pair, turn), (0, 7), **above)
    ax.set_yscale("log")
    ax.set_ylim(2 * math.pi / 2, ax.get_ylim()[1] * 2.5)
    margin = max(0.5, 0.02 * most)
    ax.set_xlim(-margin, most - 1 + margin)
    if most <= 16:
        ax.set_xticks(range(most))
    style.dress(ax, _title(drawn, length), "pair", "wavelength (positions per turn)")
    right = ax.secondary_yaxis("right", functions=(_turned_over, _turned_over))
    right.set_ylabel("frequency (radians per position)", fontsize=style.NORMAL)
    right.tick_params(labelsize=style.SMALL)
    if len(drawn) > 1:
        style.key(ax, inside="upper left")
    return ax


def _turned_over(values: ArrayLike) -> ArrayLike:
    with np.errstate(divide="ignore"):
        return 2 * math.pi / np.asarray(values, dtype=np.float64)


def _title(drawn: Sequence[Encoding], length: int | None) -> str:
    if len(drawn) > 1:
        return "Each pair has a wavelength of its own, the first the shortest"
    turns = wavelengths(frequencies_of(drawn[0], length))
    return f"{style.labels(drawn)[0]}: {len(turns)} pairs, from {turns[0]:,.4g} to {turns[-1]:,.5g} positions per turn"
