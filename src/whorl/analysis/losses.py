"""The curves of loss by length in a comparison that the lab wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whorl.analysis.wavelengths import Array
from whorl.errors import WhorlError, unknown

SCHEMA = "whorl-lab-comparison/"

METRICS = {
    "same_last": "the same last bytes, growing context",
    "sliding": "the last bytes of a sliding window",
    "non_overlapping": "all bytes of blocks that do not overlap",
}


class Curve(NamedTuple):
    """Bits per byte at each length, and the interval around them."""

    label: str
    lengths: Array
    mean: Array
    low: Array
    high: Array


def read_comparison(path: str | Path) -> dict[str, Any]:
    """The comparison in a file, or a WhorlError that says why there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise WhorlError(f"read_comparison: cannot read {path}: {error.strerror}. Pass a comparison.json.") from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise WhorlError(f"read_comparison: {path} is no JSON ({error}). Pass a comparison.json.") from None
    check_comparison(found)
    return found


def check_comparison(comparison: Any) -> None:
    """Raises a WhorlError unless this is a comparison of the lab."""
    schema = comparison.get("schema") if isinstance(comparison, dict) else None
    if not str(schema).startswith(SCHEMA):
        raise WhorlError(
            f"losses: a comparison of the lab needed, schema '{SCHEMA}…', got schema {schema!r}. "
            "Pass the comparison.json that whorl compare writes."
        )


def loss_curves(comparison: dict[str, Any], metric: str = "same_last") -> list[Curve]:
    """One curve for each row of a comparison that has this metric at some length, shortest length first.

    ``metric`` is "same_last", "sliding" or "non_overlapping".
    """
    check_comparison(comparison)
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS, call="loss_curves")
    curves = []
    for row in comparison["rows"]:
        points = []
        for at in row["by_length"]:
            value = (at.get("bits_per_byte") or {}).get(metric)
            if value is not None and value.get("mean") is not None:
                low, high = (value["mean"] if value.get(end) is None else value[end] for end in ("low", "high"))
                points.append((at["length"], value["mean"], low, high))
        if points:
            columns = np.array(sorted(points), dtype=np.float64).T
            curves.append(Curve(_label(row), *columns))
    if not curves:
        raise WhorlError(
            f"loss_curves: no row of the comparison has {metric}. Try another metric: {', '.join(METRICS)}."
        )
    return curves


def _label(row: dict[str, Any]) -> str:
    variant = row.get("variant") or "as trained"
    return row["label"] if variant == "as trained" else f"{row['label']}, {variant}"
