"""The curves of loss by length in a comparison that the lab wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from whorl.analysis.wavelengths import Array
from whorl.errors import WhorlError, unknown
from whorl.results import ComparisonResult, check_comparison

read_comparison = ComparisonResult.read

METRICS = {
    "same_last": "the same last bytes, growing context",
    "sliding": "the last quarter of blocks that do not overlap",
    "non_overlapping": "all bytes of blocks that do not overlap",
}


class Curve(NamedTuple):
    """Bits per byte at each length, and the interval around them."""

    label: str
    lengths: Array
    mean: Array
    low: Array
    high: Array
    row: tuple[str, str]  # label and variant in the comparison


def loss_curves(comparison: Mapping[str, Any] | ComparisonResult, metric: str = "same_last") -> list[Curve]:
    """One curve for each row of a comparison that has this metric at some length, shortest length first.

    ``comparison`` is what ``read_comparison`` returns, or the content of a comparison.json. ``metric`` is "same_last",
    "sliding" or "non_overlapping".
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS, call="loss_curves")
    if isinstance(comparison, Mapping):
        check_comparison(comparison)
    found = ComparisonResult.of(comparison, "loss_curves")
    curves = []
    for row in found.rows:
        points = [(length, cell.mean, cell.low, cell.high) for length, cell in row.cells.get(metric, {}).items()]
        if points and not row.beside:
            values = np.array(sorted(points), dtype=np.float64).T
            curves.append(Curve(row.name, *values, row=(row.label, row.variant)))
    if not curves:
        raise WhorlError(
            f"loss_curves: no row of the comparison has {metric}. Try another metric: {', '.join(METRICS)}."
        )
    return curves
