"""Results of the lab: comparisons under ``experiments/`` of a checkout, read when a claim is run.

An installed whorl does not have them; there a claim that only training decides says ``needs training``.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from whorl.claims.ledger import BETWEEN, Both, Finding, decide, inconclusive, needs_training, shared
from whorl.errors import WhorlError
from whorl.result_rows import AS_TRAINED, Row
from whorl.results import ComparisonResult

# A difference of losses, in bits per byte, that is too small to matter: an interval inside it is a tie.
TIE = 0.02

# A loss has held past the trained length where its mean rises by no more, in bits per byte. The lab's reports ask the
# same of the upper end of an interval, which a comparison of one seed does not have.
HELD = 0.15

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
    halves: dict[float, float]  # half the interval of each: over seeds, or over documents where there is one seed

    def rise(self, ratio: float) -> float | None:
        """The rise of the loss from the trained length to ``ratio`` times it, in bits per byte."""
        if 1.0 not in self.by_ratio or ratio not in self.by_ratio:
            return None
        return self.by_ratio[ratio] - self.by_ratio[1.0]


class Gap(NamedTuple):
    """A difference and half its interval, from one source."""

    source: str
    mean: float
    half: float

    @property
    def above(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.mean - self.half > 0

    @property
    def below(self) -> bool:
        """Whether the whole interval is below zero."""
        return self.mean + self.half < 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half:.2f}"


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
    made = []
    for source, found, row in _rows(label):
        if row.variant == variant:
            cells = {length / found.trained: cell for length, cell in row.cells.get(SCORE, {}).items()}
            means, halves = ({r: getattr(cell, what) for r, cell in cells.items()} for what in ("mean", "half"))
            made.append(Loss(source, means, halves))
    return made


def losses_of(name: str) -> list[Loss]:
    """The losses of a registered encoding, trained with it or tried on a trained RoPE model."""
    return losses("rope", REPAIRS[name]) if name in REPAIRS else losses(name)


def rises(name: str, ratio: float = 4.0) -> dict[str, float]:
    """The rise of a registered encoding's loss at this many times the trained length, by source."""
    return {loss.source: rise for loss in losses_of(name) if (rise := loss.rise(ratio)) is not None}


class Rise(NamedTuple):
    """The largest of the rises of a loss in some comparisons."""

    mean: float
    worst: str  # the comparison that has it
    sources: tuple[str, ...]  # all that were read

    @property
    def held(self) -> bool:
        """Whether the loss has held in every comparison."""
        return self.mean <= HELD

    @property
    def source(self) -> str:
        """All that were read, in one line."""
        return BETWEEN.join(self.sources)


def largest(found: Mapping[str, float]) -> Rise | None:
    """The largest of rises by source; None of none."""
    if not found:
        return None
    worst, mean = max(found.items(), key=itemgetter(1))
    return Rise(mean, worst, tuple(found))


def largest_rise(name: str, ratio: float = 4.0) -> Rise | None:
    """The largest rise of the loss of an encoding in any comparison; None where none has it."""
    return largest(rises(name, ratio))


def gaps(first: list[Loss], second: list[Loss], ratio: float, *, rise: bool = False) -> list[Gap]:
    """The loss of the first less that of the second, or their rises, in each comparison that has both.

    Runs of two encodings are not independent, so their intervals joined as if they were are wider than the truth.
    """
    found = []
    for one in first:
        for other in (other for other in second if other.source == one.source):
            ratios = (1.0, ratio) if rise else (ratio,)
            if all(r in loss.by_ratio for loss in (one, other) for r in ratios):
                means = [loss.by_ratio[ratio] - (loss.by_ratio[1.0] if rise else 0.0) for loss in (one, other)]
                half = math.hypot(*(loss.halves[r] for loss in (one, other) for r in ratios))
                found.append(Gap(one.source, means[0] - means[1], half))
    return found


def judge(what: str, what_zh: str, found: list[Gap], command: str) -> Finding:
    """Whether a difference is above zero: holds where some source shows it and none the contrary.

    A source whose interval holds zero decides nothing; where all do, it is inconclusive.
    """
    if not found:
        return needs_training(command)
    numbers = {f"{what}, {short_name(gap.source)}": gap.mean for gap in found}
    numbers |= {f"half its interval, {short_name(gap.source)}": gap.half for gap in found}
    said = "; ".join(f"{short_name(gap.source)}: {gap}" for gap in found)
    source = BETWEEN.join(gap.source for gap in found)
    text = Both(f"{what}: {said}", f"{what_zh}：{said}")
    against, shown = [gap for gap in found if gap.below], [gap for gap in found if gap.above]
    if not against and not shown:
        return inconclusive(numbers, text, source)
    return decide(not against, numbers, text, source)


def short_name(source: str) -> str:
    """The name of a committed result without its folder and ending."""
    path = Path(source)
    return path.parent.name if path.name == "comparison.json" else path.stem


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

    @property
    def apart(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@shared
def document(name: str) -> dict[str, Any]:
    """The content of a file of ``experiments/``; empty where there is none."""
    home = folder()
    if home is None or not (home / name).is_file():
        return {}
    return json.loads((home / name).read_text(encoding="utf-8"))


def ablations() -> dict[str, dict[str, Any]]:
    """Every ablation of ``experiments/ablations.json`` by its name; none where there is no such file."""
    return document("ablations.json")


QUESTIONS = "experiments/trained-questions.json"


def answer(question: str) -> dict[str, Any]:
    """What small runs said of a question, from ``experiments/trained-questions.json``; empty where they have not."""
    return document("trained-questions.json").get("questions", {}).get(question, {})


def answer_command(question: str) -> str:
    """What would answer a question."""
    return f"python experiments/trained_questions.py {question}"


def difference_of(row: dict[str, Any], length: int | None = None) -> Difference:
    """The paired difference of a row of an answer from the usual setting, at one length where it has several."""
    cell = (row if length is None else row["by_length"][str(length)])["difference"]
    return Difference(row["setting"], *(float(cell[key]) for key in ("mean", "low", "high")))


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


def accuracy_differences(usual: str, others: tuple[str, ...]) -> list[Difference]:
    """The accuracy of encodings in ``whorl lab classify`` less that of the usual one, in points, paired by seed."""
    rows = {
        (row["dataset"], row["encoding"]): row["accuracies"] for row in ablations().get("classify", {}).get("rows", [])
    }
    made = []
    for (dataset, encoding), own in rows.items():
        if encoding in others:
            apart = [a - b for a, b in zip(own, rows[dataset, usual], strict=True)]
            mean, half = statistics.fmean(apart), 4.303 * statistics.stdev(apart) / math.sqrt(len(apart))
            made.append(Difference(f"{encoding}, {dataset}", mean, mean - half, mean + half))
    return made


# Committed benchmarks of attention, by the number of tokens.
BENCHMARKS = {n: f"benchmarks/results/2026-11-16-attention-{n}-h200.json" for n in (2048, 4096, 16_384)}


def benchmark(path: str) -> dict[str, dict[str, Any]]:
    """The rows of a committed benchmark's first group, by name; none for an installed whorl."""
    home = folder()
    if home is None or not (home.parent / path).is_file():
        return {}
    group, *_ = json.loads((home.parent / path).read_text(encoding="utf-8"))["groups"]
    return {row["name"]: row for row in group["results"]}
