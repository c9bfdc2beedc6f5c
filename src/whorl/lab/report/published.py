"""Orders that papers report, held against the numbers at hand.

Each is a pair: the first is said to be better than the second. A pair is checked only where both were measured and
what the claim needs is given; YaRN's default ramp, for one, needs a trained length of 256 and more to leave pairs
alone, and T5's last bucket must lie within half the trained length to be trained well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from whorl.result_rows import AS_TRAINED, Row
from whorl.results import ComparisonResult

Outcome = Literal["reproduced", "tied", "reversed"]
OUTCOMES: dict[int, Outcome] = {1: "reproduced", 0: "tied", -1: "reversed"}  # by the sign of the worse less the better

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
RAMP_LENGTH = 256  # below it YaRN's default ramp slows nearly every pair

# Synthetic tasks, by exact match past the trained length.
TASKS = (
    ("none", "rope", KAZEMNEJAD),
    ("t5", "rope", KAZEMNEJAD),
    ("alibi", "rope", KAZEMNEJAD),
    ("rope", "sinusoidal", KAZEMNEJAD),
)


def orders(kind: Literal["encodings", "repairs", "tasks"]) -> list[tuple[str, str]]:
    """The pairs of a kind, the better one first: names of encodings, or variants of RoPE."""
    found = {"encodings": TEXT, "repairs": REPAIRS, "tasks": TASKS}[kind]
    return [(better or AS_TRAINED, worse or AS_TRAINED) for better, worse, _ in found]


@dataclass(frozen=True)
class Check:
    """One published pair and what came out of it here, by the interval of their paired difference."""

    better: Row
    worse: Row
    source: str
    length: int | None  # None: every length past the trained one, as tasks are read
    task: str | None
    values: tuple[float, float]
    outcome: Outcome


def check_losses(result: ComparisonResult, measure: str, far: int, repaired_at: int) -> Iterator[Check]:
    """The pairs of encodings as trained at the far length, and of repairs of RoPE at the length that these are read."""
    base = _trained(result, "rope")
    known = {row.variant: row for row in reversed(result.text_rows) if base and row.label == base.label}
    pairs = [(far, _trained(result, better), _trained(result, worse), source) for better, worse, source in TEXT]
    pairs += [
        (repaired_at, known.get(better or AS_TRAINED), known.get(worse or AS_TRAINED), source)
        for better, worse, source in REPAIRS
        if result.trained >= RAMP_LENGTH or "yarn" not in (better, worse)
    ]
    for length, better, worse, source in pairs:
        if better is None or worse is None or not (fair(better, result.trained) and fair(worse, result.trained)):
            continue
        low, high = better.at(measure, length), worse.at(measure, length)
        sign = _sign(result, better, worse, length, measure)
        if low is not None and high is not None and sign is not None:
            yield Check(better, worse, source, length, None, (low, high), OUTCOMES[sign])


def check_tasks(result: ComparisonResult) -> Iterator[Check]:
    """The pairs of encodings on tasks."""
    for task in dict.fromkeys(row.task for row in result.rows if row.task):
        rows = {row.encoding.get("name"): row for row in result.rows if row.task == task and row.as_trained}
        scores = {name: score for name, row in rows.items() if (score := _past(row, result.trained)) is not None}
        for better, worse, source in TASKS:
            if better in scores and worse in scores:
                pair = rows[better], rows[worse]
                lengths = result.lengths_of(["exact_match"])
                signs = {_sign(result, *pair, length, "exact_match") or 0 for length in lengths} - {0}
                outcome = OUTCOMES[-signs.pop() if len(signs) == 1 else 0]  # shares are better where they are higher
                yield Check(*pair, source, None, task, (scores[better], scores[worse]), outcome)


def _sign(result: ComparisonResult, better: Row, worse: Row, length: int, measure: str) -> int | None:
    """What the interval says of the worse less the better; None where no difference was kept."""
    found = result.difference("published", worse, length, measure, better)
    return None if found is None or found.low is None else found.sign


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
