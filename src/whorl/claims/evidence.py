"""Results of the lab: comparisons under ``experiments/`` of a checkout, read when a claim is run.

An installed whorl does not have them; there a claim that only training decides says ``needs training``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from whorl.claims.ledger import shared
from whorl.errors import WhorlError
from whorl.results import AS_TRAINED, ComparisonResult, Row

# The score that shows whether more context is used: the same last tokens, read with a growing context.
SCORE = "same_last"

# Encodings that serve a trained RoPE model: the lab tests them as its repairs, not by training with them.
REPAIRS = {
    "rope+dynamic_ntk": "dynamic-ntk",
    "rope+yarn": "yarn",
    "leaky_rerope": "leaky-rerope",
    "log_n": "logn",
    "rerope": "rerope",
    "window": "window",
}

# The name in a comparison of an encoding with other settings.
SPELLED = {"alibi+hf_bf16": "alibi:rounding=hf_bf16"}


class Loss(NamedTuple):
    """Bits per byte of one row of a comparison, by length over the trained length."""

    source: str
    by_ratio: dict[float, float]

    def rise(self, ratio: float) -> float | None:
        """The rise of the loss from the trained length to ``ratio`` times it, in bits per byte."""
        if 1.0 not in self.by_ratio or ratio not in self.by_ratio:
            return None
        return self.by_ratio[ratio] - self.by_ratio[1.0]


def folder() -> Path | None:
    """The ``experiments`` folder of the checkout this file lies in, or None for an installed whorl."""
    root = Path(__file__).resolve().parents[3]
    home = root / "experiments"
    return home if (root / "pyproject.toml").is_file() and home.is_dir() else None


@shared
def comparisons() -> dict[str, ComparisonResult]:
    """Every committed comparison by its source, ``experiments/…``."""
    home = folder()
    found: dict[str, ComparisonResult] = {}
    for path in sorted(home.rglob("*.json")) if home is not None else []:
        assert home is not None
        with contextlib.suppress(WhorlError):  # something else lies there
            found[f"experiments/{path.relative_to(home).as_posix()}"] = ComparisonResult.read(path)
    return found


def _rows(label: str) -> Iterator[tuple[str, ComparisonResult, Row]]:
    """The rows of a label in all comparisons."""
    for source, found in comparisons().items():
        yield from ((source, found, row) for row in found.rows if row.label == label and not row.beside)


def losses(label: str, variant: str = AS_TRAINED) -> list[Loss]:
    """The losses of an encoding by length, one for each comparison that has it."""
    return [
        Loss(source, {length / found.trained: cell.mean for length, cell in row.cells.get(SCORE, {}).items()})
        for source, found, row in _rows(label)
        if row.variant == variant
    ]


def losses_of(name: str) -> list[Loss]:
    """The losses of a registered encoding, trained with it or tried on a trained RoPE model."""
    return losses("rope", REPAIRS[name]) if name in REPAIRS else losses(name)


def rises(name: str, ratio: float = 4.0) -> dict[str, float]:
    """The rise of a registered encoding's loss at this many times the trained length, by source."""
    return {loss.source: rise for loss in losses_of(name) if (rise := loss.rise(ratio)) is not None}


def largest_rise(name: str, ratio: float = 4.0) -> tuple[str, float] | None:
    """The comparison in which the loss of an encoding rises most, and its rise; None where no comparison has it."""
    return max(rises(name, ratio).items(), key=itemgetter(1), default=None)


def least_gap(first: list[Loss], second: list[Loss], read: Callable[[Loss], float | None]) -> tuple[str, float] | None:
    """The comparison in which a number of the first is least above that of the second, and by how much.

    None where no comparison has both.
    """
    above = {loss.source: read(loss) for loss in first}
    pairs = {loss.source: (above.get(loss.source), read(loss)) for loss in second}
    gaps = {source: a - b for source, (a, b) in pairs.items() if a is not None and b is not None}
    return min(gaps.items(), key=itemgetter(1), default=None)


def command_for(name: str) -> str:
    """The comparison that would train an encoding of the ledger, or try it on a trained RoPE model."""
    what = f"rope --repairs {REPAIRS[name]}" if name in REPAIRS else SPELLED.get(name, name)
    return f"whorl compare {what} --preset laptop --seeds 3"


class Difference(NamedTuple):
    """The loss with a setting of an ablation less that of the usual one, and its interval, in bits per byte."""

    setting: str
    mean: float
    low: float
    high: float


@shared
def ablations() -> dict[str, dict[str, Any]]:
    """Every ablation of ``experiments/ablations.json`` by its name; none where there is no such file."""
    home = folder()
    if home is None or not (home / "ablations.json").is_file():
        return {}
    return json.loads((home / "ablations.json").read_text(encoding="utf-8"))


def differences(name: str) -> list[Difference]:
    """The differences of each other setting of an ablation at the trained length, in the order they were made."""
    made = []
    for row in ablations().get(name, {}).get("rows", []):
        at = row["by_length"][0]["difference"]
        if at is not None:
            made.append(Difference(row["setting"], *(float(at[SCORE][key]) for key in ("mean", "low", "high"))))
    return made


def variants(label: str) -> list[str]:
    """The repairs of a trained model of that label, without training it again, in any comparison."""
    return list(dict.fromkeys(row.variant for _, _, row in _rows(label) if not row.as_trained))
