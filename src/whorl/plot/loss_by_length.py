"""Loss by length, from a comparison that the lab wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whorl import WhorlError
from whorl.analysis.losses import METRICS, loss_curves
from whorl.plot import style
from whorl.results import ComparisonResult, check_comparison


def losses(
    comparison: Mapping[str, Any] | str | Path,
    metric: str = "same_last",
    *,
    title: str | None = None,
    size: tuple[float, float] | None = None,
    ax: style.Axes | None = None,
) -> style.Axes:
    """Bits per byte at each length, a line for each row with its interval, the trained length marked.

    ``comparison`` is a comparison.json of the lab, or what is in it. ``metric`` is "same_last", "sliding" or
    "non_overlapping". ``title`` takes the place of the usual one, "" leaves it out; ``size`` is in inches. Colours are
    those of the report.
    """
    if isinstance(comparison, (str, Path)):
        found = ComparisonResult.read(comparison)
    else:
        check_comparison(comparison)
        found = ComparisonResult.of(comparison, "losses")
    curves = loss_curves(found, metric)
    if size is not None and ax is not None:
        raise WhorlError("losses: size would be ignored, since ax has its own. Leave one out.")
    ax = style.axes(ax, size or (7.2, max(4.0, 1.2 + 0.19 * len(curves))))
    looks = style.looks((row.label, row.variant) for row in found.rows)
    for curve in curves:
        look = looks.get(curve.row, style.Look(None))
        colour = style.GREY if look.index is None else style.COLOURS[look.colour]
        index = look.index or 0
        drawn = {"color": colour, "linestyle": style.line_style(index)["linestyle"] if look.index is not None else ":"}
        ax.fill_between(curve.lengths, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(
            curve.lengths,
            curve.mean,
            marker=style.MARKERS[index % len(style.MARKERS)],
            markersize=4,
            markerfacecolor="none" if look.hollow else colour,
            linewidth=1.6,
            label=style.plain(curve.label),
            **drawn,
        )
    trained = found.trained
    ax.axvline(trained, color=style.GREY, linewidth=1.0, linestyle=":", label=f"trained length, {trained:,}")
    lengths = np.unique(np.concatenate([curve.lengths for curve in curves]))
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
    ax.minorticks_off()
    usual = f"Loss by length ({METRICS[metric]}): what rises past {trained:,} does not extrapolate"
    style.dress(ax, usual if title is None else title, "length (bytes)", "bits per byte")
    style.key(ax)
    return ax
