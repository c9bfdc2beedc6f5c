"""Loss by length, from a comparison that the lab wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whorl.analysis.losses import METRICS, loss_curves
from whorl.plot import style
from whorl.results import ComparisonResult, check_comparison


def losses(
    comparison: Mapping[str, Any] | str | Path, metric: str = "same_last", *, ax: style.Axes | None = None
) -> style.Axes:
    """Bits per byte at each length, a line for each row with its interval, the trained length marked.

    ``comparison`` is a comparison.json of the lab, or what is in it. ``metric`` is "same_last", "sliding" or
    "non_overlapping".
    """
    if isinstance(comparison, (str, Path)):
        found = ComparisonResult.read(comparison)
    else:
        check_comparison(comparison)
        found = ComparisonResult.of(comparison, "losses")
    curves = loss_curves(found, metric)
    ax = style.axes(ax, (7.2, max(4.0, 1.2 + 0.19 * len(curves))))
    for index, curve in enumerate(curves):
        look = style.line_style(index)
        ax.fill_between(curve.lengths, curve.low, curve.high, color=look["color"], alpha=0.18, linewidth=0)
        marker = style.MARKERS[index % len(style.MARKERS)]
        ax.plot(curve.lengths, curve.mean, marker=marker, markersize=4, label=curve.label, **look)
    trained = found.trained
    ax.axvline(trained, color=style.GREY, linewidth=1.0, linestyle=":", label=f"trained length, {trained:,}")
    lengths = np.unique(np.concatenate([curve.lengths for curve in curves]))
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
    ax.minorticks_off()
    title = f"Loss by length ({METRICS[metric]}): what rises past {trained:,} does not extrapolate"
    style.dress(ax, title, "length (bytes)", "bits per byte")
    style.key(ax)
    return ax
