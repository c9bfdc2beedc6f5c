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

from whorl import WhorlError
from whorl.claims.ledger import BETWEEN, Both, Finding, decide, inconclusive, needs_training, shared
from whorl.claims.trained_names import REPAIRS, SPELLED
from whorl.claims.trained_names import command_for as command_for
from whorl.result_rows import AS_TRAINED, Row
from whorl.results import LEVEL, ComparisonResult, holm

# A difference of losses, in bits per byte, that is too small to matter: an interval inside it is a tie.
TIE = 0.02

# A loss has held past the trained length where its mean rises by no more, in bits per byte. The lab's reports ask the
# same of the upper end of an interval, which a comparison of one seed does not have.
HELD = 0.15

# The score that shows whether more context is used: the same last tokens, read with a growing context.
SCORE = "same_last"


class Loss(NamedTuple):
    """Bits per byte of one row of a comparison, by length over the trained length."""

    source: str
    by_ratio: dict[float, float]

    def rise(self, ratio: float) -> float | None:
        """The rise of the loss from the trained length to ``ratio`` times it, in bits per byte."""
        if 1.0 not in self.by_ratio or ratio not in self.by_ratio:
            return None
        return self.by_ratio[ratio] - self.by_ratio[1.0]


class Gap(NamedTuple):
    """A difference of two rows of a comparison, with the interval that the lab judged it by.

    ``p`` is the lab's, after Holm; None where the interval was joined of two, and it alone tells.
    """

    source: str
    mean: float
    low: float
    high: float
    p: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


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
            cells = row.cells.get(SCORE, {})
            made.append(Loss(source, {length / found.trained: cell.mean for length, cell in cells.items()}))
    return made


def losses_of(name: str) -> list[Loss]:
    """The losses of a registered encoding, trained with it or tried on a trained RoPE model."""
    if name in REPAIRS:
        return losses("rope", REPAIRS[name])
    return losses(SPELLED.get(name, name).replace(":", " ").replace(",", " "))  # as reports label it


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


Which = tuple[str, str]  # label and variant of a row


def gaps(first: Which, second: Which, ratio: float, *, rise: bool = False) -> list[Gap]:
    """The loss of the first less that of the second, or their rises, in each comparison that has judged it.

    The differences are those of the lab's reports, paired over seeds and samples of text. That of two rises is the
    difference at the longer length less that at the trained one: its interval is at most as wide as both together.
    """
    found = []
    for source, result in comparisons().items():
        gap = _gap(source, result, first, second, ratio)
        if gap is not None and rise:
            start = _gap(source, result, first, second, 1.0)
            gap = start and Gap(source, gap.mean - start.mean, gap.low - start.high, gap.high - start.low, None)
        found += [gap] if gap is not None else []
    return found


def _gap(source: str, result: ComparisonResult, first: Which, second: Which, ratio: float) -> Gap | None:
    """The difference that a comparison has judged at this many times the trained length, whichever way round."""
    for one in result.differences:
        # published orders are judged among others than a report's own comparisons, and rises are of one row
        if one.kind not in ("encoding", "repair") or one.measure != SCORE or one.length != ratio * result.trained:
            continue
        if one.low is None or one.high is None:
            continue
        if (one.row, one.other) == (first, second):
            return Gap(source, one.mean, one.low, one.high, one.p)
        if (one.row, one.other) == (second, first):
            return Gap(source, -one.mean, -one.high, -one.low, one.p)
    return None


def rise_gaps(which: Which, ratio: float) -> list[Gap]:
    """The loss of a row at this many times the trained length less that at it, in each comparison that judged it."""
    return [
        Gap(source, one.mean, one.low, one.high, one.p)
        for source, result in comparisons().items()
        for one in result.differences
        if (one.kind, one.measure, one.row) == ("length", SCORE, which)
        and (one.length, one.from_length) == (ratio * result.trained, result.trained)
        and one.low is not None
        and one.high is not None
    ]


def judge(what: str, what_zh: str, found: list[Gap], command: str) -> Finding:
    """Whether a difference is above zero: holds where some source shows it and none the contrary.

    A source shows what its interval excludes zero for, and still does when the sources are judged together (Holm).
    Where none shows anything, it is inconclusive.
    """
    if not found:
        return needs_training(command)
    together = dict(zip((gap.source for gap in found), _together(found), strict=True))
    numbers: dict[str, float] = {}
    for gap in found:
        name = short_name(gap.source)
        numbers |= {f"{what}, {name}": gap.mean, f"low, {name}": gap.low, f"high, {name}": gap.high}
        numbers |= {f"p, {name}": p} if (p := together[gap.source]) is not None else {}
    said = "; ".join(f"{short_name(gap.source)}: {gap}{_told(together[gap.source])}" for gap in found)
    source = BETWEEN.join(gap.source for gap in found)
    several = len(found) > 1 and any(p is not None for p in together.values())
    text = Both(
        f"{what}: {said}{' (each p among all of them)' if several else ''}",
        f"{what_zh}：{said}{'（p 为一并判定之值）' if several else ''}",
    )
    telling = [gap for gap in found if (together[gap.source] or 0.0) <= LEVEL]
    against, shown = [gap for gap in telling if gap.high < 0], [gap for gap in telling if gap.low > 0]
    if not against and not shown:
        return inconclusive(numbers, text, source)
    return decide(not against, numbers, text, source)


def _together(found: list[Gap]) -> list[float | None]:
    """p of each source among all of them, after Holm."""
    known = [gap.p for gap in found if gap.p is not None]
    raised = iter([min(1.0, p * times) for p, times in zip(known, holm(known), strict=True)])
    return [None if gap.p is None else next(raised) for gap in found]


def _told(p: float | None) -> str:
    return "" if p is None else f", p {p:.2g}"


def short_name(source: str) -> str:
    """The name of a committed result without its folder and ending."""
    path = Path(source)
    return path.parent.name if path.name == "comparison.json" else path.stem


# How ``judge`` decides, for the claims that it decides.
JUDGED = Both(
    "Scored are the same last bytes of each text, not the whole text. Each difference is paired over seeds and samples "
    "of text, as in the lab's report, and the comparisons are judged together (Holm, 5 %): it is so where one shows it "
    "and none the contrary.",
    "计分的是每段文本同样的末尾字节，而非整段文本。每个差按种子与文本样本配对，与实验室报告相同；各次比较一并判定（Holm，5%"
    "）：有比较显示如此、且没有显示相反的，才算成立。",
)


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

    @property
    def tied(self) -> bool:
        """Whether the whole interval is too near zero to matter."""
        return max(abs(self.low), abs(self.high)) <= TIE

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


def rise_in_ablations(name: str, setting: str) -> float | None:
    """The rise of a setting's loss from the trained length to twice it, bits per byte; None where there is none."""
    for row in ablations().get(name, {}).get("rows", []):
        if row["setting"] == setting:
            short, twice = (row["by_length"][i][SCORE]["mean"] for i in (0, 1))
            return twice - short
    return None


QUESTIONS = "experiments/trained-questions.json"


def answer(question: str) -> dict[str, Any]:
    """What small runs said of a question, from ``experiments/trained-questions.json``; empty where they have not."""
    return document("trained-questions.json").get("questions", {}).get(question, {})


def answer_command(question: str) -> str:
    """What would answer a question."""
    return f"python experiments/trained_questions.py {question}"


def difference_of(row: dict[str, Any], length: int | None = None, *, whole: bool = False) -> Difference:
    """The paired difference of a row of an answer from the usual setting, at one length where it has several.

    It is of the last tokens, the same at every length, or of all tokens of the ``whole`` texts.
    """
    at = row if length is None else row["by_length"][str(length)]
    cell = (at["all tokens"] if whole else at)["difference"]
    return Difference(row["setting"], *(float(cell[key]) for key in ("mean", "low", "high")))


def differences(name: str, score: str = SCORE) -> list[Difference]:
    """The differences of each other setting of an ablation at the trained length, in the order they were made."""
    made = []
    for row in ablations().get(name, {}).get("rows", []):
        at = row["by_length"][0]["difference"]
        if at is not None:
            made.append(Difference(row["setting"], *(float(at[score][key]) for key in ("mean", "low", "high"))))
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
            assert len(apart) == 3  # Student's t of three seeds is 4.303
            mean, half = statistics.fmean(apart), 4.303 * statistics.stdev(apart) / math.sqrt(len(apart))
            made.append(Difference(f"{encoding}, {dataset}", mean, mean - half, mean + half))
    return made


# The newest committed benchmarks of attention, by the number of tokens.
BENCHMARKS = {
    2048: "benchmarks/results/2026-11-18-attention-2048-bars-h200.json",
    4096: "benchmarks/results/2026-11-19-attention-4096-h200.json",
    16_384: "benchmarks/results/2026-11-19-attention-16384-h200.json",
}

# That of ALiBi alone in which it is folded into further dimensions as well, at 16,384 tokens.
FOLDED = "benchmarks/results/2026-11-16-bias-16384-h200.json"


def benchmark(path: str) -> dict[str, dict[str, Any]]:
    """The rows of a committed benchmark's first group, by name; none for an installed whorl."""
    home = folder()
    if home is None or not (home.parent / path).is_file():
        return {}
    group, *_ = json.loads((home.parent / path).read_text(encoding="utf-8"))["groups"]
    return {row["name"]: row for row in group["results"]}
