"""Orders that papers report, held against the numbers at hand.

Each is a pair: the first is said to be better than the second. A pair is checked only where both were measured and
what the claim needs is given; YaRN's default ramp, for one, needs a trained length of 256 and more to differ from
interpolation, and T5's last bucket must lie within half the trained length to be trained at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from whorl.results import AS_TRAINED, ComparisonResult, Row

Outcome = Literal["reproduced", "tied", "reversed"]

PRESS = "Press et al. 2021"
CHI = "Chi et al. 2022"
LI = "Li et al. 2023"
SU = "Su 2023"
KAZEMNEJAD = "Kazemnejad et al. 2023"

# Encodings as trained, by their loss far past the trained length.
TEXT = (
    ("alibi", "rope", PRESS),
    ("alibi", "sinusoidal", PRESS),
    ("t5", "rope", PRESS),
    ("rope", "sinusoidal", PRESS),
    ("kerple", "alibi", CHI),
    ("kerple", "rope", CHI),
    ("fire", "kerple", LI),
    ("fire", "alibi", LI),
)

# Repairs of a trained RoPE without fine-tuning, by their loss; None is the model as it was trained.
REPAIRS = (
    ("rerope+logn", "rerope", SU),
    ("rerope", "yarn", SU),
    ("rerope", "ntk", SU),
    ("yarn", "ntk", SU),
    ("ntk", None, SU),
    (None, "pi", SU),
)
RAMP_LENGTH = 256  # below it YaRN's default ramp interpolates every dimension

# Synthetic tasks, by exact match past the trained length.
TASKS = (
    ("none", "rope", KAZEMNEJAD),
    ("t5", "rope", KAZEMNEJAD),
    ("alibi", "rope", KAZEMNEJAD),
    ("rope", "sinusoidal", KAZEMNEJAD),
)
TASK_NOISE = 0.05  # exact match


@dataclass(frozen=True)
class Check:
    """One published pair and what came out of it here."""

    better: Row
    worse: Row
    source: str
    length: int | None  # None: the mean over all lengths past the trained one, as tasks are read
    task: str | None
    values: tuple[float, float]
    outcome: Outcome
    otherwise: bool = False  # reversed here, and yet as published in non-overlapping blocks


def check_text(result: ComparisonResult, measure: str, length: int) -> Iterator[Check]:
    """The pairs of encodings as trained."""
    for better, worse, source in TEXT:
        pair = _trained(result, better), _trained(result, worse)
        if all(fair(row, result.trained) for row in pair if row):
            yield from _check_losses(result, measure, length, pair, source)


def check_repairs(result: ComparisonResult, measure: str, length: int) -> Iterator[Check]:
    """The pairs of repairs of RoPE."""
    base = _trained(result, "rope")
    known = {row.variant: row for row in reversed(result.text_rows) if base and row.label == base.label}
    for better, worse, source in REPAIRS:
        if result.trained >= RAMP_LENGTH or "yarn" not in (better, worse):
            pair = known.get(better or AS_TRAINED), known.get(worse or AS_TRAINED)
            yield from _check_losses(result, measure, length, pair, source)


def check_tasks(result: ComparisonResult) -> Iterator[Check]:
    """The pairs of encodings on tasks."""
    for task in dict.fromkeys(row.task for row in result.rows if row.task):
        rows = {row.encoding.get("name"): row for row in result.rows if row.task == task and row.as_trained}
        scores = {name: score for name, row in rows.items() if (score := _past(row, result.trained)) is not None}
        for better, worse, source in TASKS:
            if better in scores and worse in scores:
                values = scores[better], scores[worse]
                outcome = _outcome(scores[worse], scores[better], TASK_NOISE)
                yield Check(rows[better], rows[worse], source, None, task, values, outcome)


def _check_losses(
    result: ComparisonResult, measure: str, length: int, pair: tuple[Row | None, Row | None], source: str
) -> Iterator[Check]:
    better, worse = pair
    low, high = (row.at(measure, length) if row else None for row in pair)
    if better is None or worse is None or low is None or high is None:
        return
    outcome = _outcome(low, high, result.noise)
    blocks = [value for row in (better, worse) if (value := row.at("non_overlapping", length)) is not None]
    otherwise = outcome == "reversed" and len(blocks) == 2 and blocks[1] - blocks[0] > result.noise
    yield Check(better, worse, source, length, None, (low, high), outcome, otherwise)


def _outcome(low: float, high: float, noise: float) -> Outcome:
    if abs(high - low) <= noise:
        return "tied"
    return "reproduced" if low < high else "reversed"


def _trained(result: ComparisonResult, name: str) -> Row | None:
    """The model as trained with this encoding; of several, the one that is simply labelled so."""
    rows = [row for row in result.text_rows if row.as_trained and row.encoding.get("name", row.label) == name]
    return next((row for row in rows if row.label == name), rows[0] if len(rows) == 1 else None)


def _past(row: Row, trained: int) -> float | None:
    """The mean exact match past the trained length."""
    scores = [cell.mean for length, cell in row.cells.get("exact_match", {}).items() if length > trained]
    return sum(scores) / len(scores) if scores else None


def fair(row: Row, trained: int) -> bool:
    """Whether the claim's own condition is met: T5's farthest bucket is one that training reached."""
    farthest = row.encoding.get("max_distance")
    return not (row.encoding.get("name") == "t5" and isinstance(farthest, int) and 2 * farthest > trained)
