"""Long-range decay: the sum of cosines by distance, and what the Abel bound owes to the distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whorl import Encoding, Rope
from whorl.analysis.decay import abel_bound, cosine_sum, rises
from whorl.analysis.wavelengths import frequencies_of, has_frequencies
from whorl.plot import style
from whorl.plot.score_by_distance import scores


def decay(encodings: style.Encodings | None = None, length: int = 256, *, ax: style.Axes | None = None) -> style.Axes:
    """sum_i cos(w_i k) and mean_j |S_j| at the distances 0 … length; of a RoPE of 128 dimensions by default.

    An encoding without frequencies has no such sum. Where one is among them, all are drawn by what they do to a
    score, as ``scores`` draws it.
    """
    drawn = style.encodings_of("decay", Rope(head_dim=128) if encodings is None else encodings)
    style.check_length("decay", length)
    if not all(has_frequencies(each) for each in drawn):
        return scores(drawn, length, ax=ax)
    ax = style.axes(ax)
    distances = np.arange(length + 1)
    ax.axhline(0.0, color=style.GREY, linewidth=0.8)
    for index, (encoding, label) in enumerate(zip(drawn, style.labels(drawn), strict=True)):
        w = frequencies_of(encoding)
        own = "" if len(drawn) == 1 else f"{label}: "
        look = style.line_style(index, length)
        ax.plot(distances, cosine_sum(w, distances), label=rf"{own}$\Sigma_i\,\cos(w_i k)$", **look)
        look["linestyle"] = "--"
        look["color"] = style.VERMILION if len(drawn) == 1 else look["color"]
        ax.plot(distances, abel_bound(w, distances), label=rf"{own}mean$_j\;|S_j|$", **look)
    ax.set_xlim(0, length)
    style.dress(ax, _title(drawn, distances), "distance k (positions)", "sum over pairs (no unit)")
    style.key(ax)
    return ax


def _title(drawn: Sequence[Encoding], distances: np.ndarray) -> str:
    if len(drawn) > 1:
        return "The sums fall with the distance as a trend, not step by step"
    w = frequencies_of(drawn[0])
    up, steps = rises(abel_bound(w, distances)), len(distances) - 1
    how = "and at every step" if not up else f"yet {up:,} of {steps:,} steps of the bound rise"
    return f"{style.labels(drawn)[0]}, {len(w)} pairs: decay with distance is a trend, {how}"
