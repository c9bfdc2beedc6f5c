"""Scores by distance of a key that equals its query, with several encodings."""

from __future__ import annotations

import numpy as np

from whorl import Alibi, Rope, XPos
from whorl.analysis.scores import scores_by_distance
from whorl.plot import style

HEADS = 4
FLOOR = -20.0  # a score 20 logits lower has 2e-9 of the weight: what falls further is out of sight


def scores(encodings: style.Encodings | None = None, length: int = 1024, *, ax: style.Axes | None = None) -> style.Axes:
    """The score at the distances 0 … length less that at distance 0; RoPE, xPos and ALiBi by default.

    Query and key are vectors of ones everywhere, so that only position makes a difference. Where heads differ, four
    of them are drawn, from the first to the last.
    """
    if encodings is None:
        encodings = [Rope(head_dim=64), XPos(head_dim=64), Alibi(heads=8)]
    drawn = style.encodings_of("scores", encodings)
    style.check_length("scores", length)
    ax = style.axes(ax)
    distances = np.arange(length + 1)
    ax.axhline(0.0, color=style.GREY, linewidth=0.8)
    lowest, highest = 0.0, 0.0
    for index, (encoding, label) in enumerate(zip(drawn, style.labels(drawn), strict=True)):
        found = scores_by_distance(encoding, length)
        change = found - found[:, :1]
        look = style.line_style(index, length)
        chosen = [0] if (change == change[0]).all() else style.spread(len(change), HEADS)
        if len(chosen) > 1:
            label, look["linewidth"] = f"{label}, heads {', '.join(map(str, chosen))}", 0.9
        for head in chosen:
            shown = np.where(np.isfinite(change[head]), change[head], np.nan)
            ax.plot(distances, shown, label=label if head == chosen[0] else "_", **look)
            lowest, highest = min(lowest, np.nanmin(shown)), max(highest, np.nanmax(shown))
    low = max(lowest, FLOOR)
    margin = 0.05 * (highest - low or 1.0)
    ax.set_ylim(low - margin, highest + margin)
    ax.set_xlim(0, length)
    cut = f", below {FLOOR:.0f} out of sight".replace("-", "−") if lowest < FLOOR else ""
    title = f"What position alone does to the score of a key, by distance{cut}"
    style.dress(ax, title, "distance (positions)", "change of the score from distance 0 (logits)")
    style.key(ax)
    return ax
