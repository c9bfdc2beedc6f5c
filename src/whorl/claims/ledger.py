"""The ledger: what is said of position encodings, each statement with the function that decides it.

A claim is one small function that computes its numbers anew and returns a Finding. The ledger records the verdict that
is expected of it, so that a known-wrong statement that ``fails`` is as it should be, and anything else turns it red.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partialmethod
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from whorl import TableCache, use_table_cache
from whorl.claims.probes import doubles, largest
from whorl.claims.redirects import REDIRECTS
from whorl.errors import unknown

Kind = Literal["holds", "holds within", "fails", "depends on", "inconclusive", "needs training"]

KINDS: tuple[Kind, ...] = get_args(Kind)

# Each verdict in Chinese; the braces hold what it holds within or depends on.
CHINESE: dict[Kind, str] = {
    "holds": "成立",
    "holds within": "成立，误差不超过 {}",
    "fails": "不成立",
    "depends on": "取决于{}",
    "inconclusive": "尚无定论",
    "needs training": "需要训练才能判定",
}

# The files of claims, in the order of the ledger; the word before the dot is the topic.
FILES = (
    "rotation.turning",
    "rotation.derivation",
    "rotation.axes",
    "decay.curves",
    "decay.abel",
    "sinusoidal.codes",
    "sinusoidal.additive",
    "sinusoidal.ideal",
    "precision.angles",
    "precision.halves",
    "precision.biases",
    "aliasing",
    "extension.scalings",
    "extension.repairs",
    "extension.remaps",
    "extension.fading",
    "biases.alibi",
    "biases.buckets",
    "biases.learned",
    "biases.content",
    "biases.masks",
    "compatibility.caches",
    "compatibility.linear",
    "compatibility.linear_weights",
    "compatibility.linear_cost",
    "statements.frequencies",
    "statements.lengths",
    "statements.models",
    "questions.measured",
    "questions.trained",
)

TOPICS = tuple(dict.fromkeys(file.partition(".")[0] for file in FILES))

COMPUTED = "computed"
BETWEEN = "; "  # of the committed results that one verdict was read from
FLAGS = "flags"  # the topic of what encodings say of themselves; all others are written claims

Numbers = Mapping[str, float | Tensor]

F = TypeVar("F", bound=Callable[..., Any])


class Both(NamedTuple):
    """The same words in English and in Chinese."""

    en: str
    zh: str


NOTHING = Both("", "")


@dataclass(frozen=True)
class Verdict:
    """One of six words, and what it holds within or depends on; the detail in Chinese where it is no number.

    >>> str(Verdict("holds within", "1e-12")), Verdict("depends on", "the type", "数据类型").chinese
    ('holds within 1e-12', '取决于数据类型')
    """

    kind: Kind
    detail: str = ""
    detail_zh: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()

    @property
    def chinese(self) -> str:
        """The verdict in Chinese."""
        return CHINESE[self.kind].format(self.detail_zh or self.detail)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict and the numbers of one claim in one run."""

    verdict: Verdict
    numbers: Mapping[str, float]
    counterexample: str = ""
    counterexample_zh: str = ""
    source: str = COMPUTED  # or the committed results it was read from, experiments/…, all of them
    command: str = ""  # what would decide a claim that needs training


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, who makes it, and the function that decides it.

    ``says`` is a paper, a library's code or documentation with its version, or "study notes": those this project grew
    out of. ``trained`` marks a claim that only training decides: its ``expected`` verdict is that of lab results, and
    without any it needs training, which is never red.
    """

    id: str
    english: str
    chinese: str
    says: str
    how: str
    how_zh: str = ""
    expected: Kind
    test: Callable[[], Finding]
    about: tuple[str, ...] = ()
    trained: bool = False
    topic: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim with the finding of this run."""

    claim: Claim
    finding: Finding
    seconds: float
    raised: bool = False  # whether the test broke, or measured what is not a number: never as expected

    @property
    def id(self) -> str:
        """The claim's stable name."""
        return self.claim.id

    @property
    def statement(self) -> str:
        """The statement, in English."""
        return self.claim.english

    @property
    def verdict(self) -> Verdict:
        """The verdict of this run."""
        return self.finding.verdict

    @property
    def numbers(self) -> Mapping[str, float]:
        """The numbers that were measured, by name."""
        return self.finding.numbers

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one that the ledger records."""
        open_yet = self.claim.trained and self.verdict.kind == "needs training"
        return not self.raised and (open_yet or self.verdict.kind == self.claim.expected)

    def to_dict(self) -> dict[str, Any]:
        """The row in the form that docs/claims.md documents."""
        claim, finding = self.claim, self.finding
        return {
            "id": claim.id,
            "topic": claim.topic,
            "statement": {"en": claim.english, "zh": claim.chinese},
            "says": claim.says,
            "how": {"en": claim.how, "zh": claim.how_zh or claim.how},
            "encodings": list(claim.about),
            "verdict": {"en": str(finding.verdict), "zh": finding.verdict.chinese},
            "kind": finding.verdict.kind,
            "expected": claim.expected,
            "as_expected": self.as_expected,
            "numbers": {name: value if math.isfinite(value) else None for name, value in finding.numbers.items()},
            "counterexample": (
                {"en": finding.counterexample, "zh": finding.counterexample_zh} if finding.counterexample else None
            ),
            "source": finding.source,
            "command": finding.command or None,
            "seconds": round(self.seconds, 4),
        }


# -- the findings that tests return -----------------------------------------------------------------------------------


def _finding(verdict: Verdict, numbers: Numbers, but: Both = NOTHING, **more: str) -> Finding:
    floats = {name: float(value) for name, value in numbers.items()}
    return Finding(verdict=verdict, numbers=floats, counterexample=but.en, counterexample_zh=but.zh, **more)


def decide(
    true: bool | Tensor, numbers: Numbers, but: Both = NOTHING, source: str = COMPUTED, *, instead: bool | Tensor = True
) -> Finding:
    """Holds or fails; the counterexample is kept where it fails.

    ``instead`` is whether what the counterexample says to be right was found so; where not, nothing is concluded.
    """
    if not true and not instead:
        return inconclusive(numbers, but, source)
    verdict, text = (Verdict("holds"), NOTHING) if true else (Verdict("fails"), but)
    return _finding(verdict, numbers, text, source=source)


def within(value: float, bound: float, numbers: Numbers, but: Both = NOTHING) -> Finding:
    """Holds within the bound, or fails; a value that is not a number fails."""
    if value <= bound:
        return _finding(Verdict("holds within", f"{bound:g}"), numbers)
    return decide(False, numbers, but if but.en else Both(f"off by {value:.3g}", f"相差 {value:.3g}"))


def all_within(numbers: Mapping[str, float], bound: float) -> Finding:
    """Holds within the bound where every number does."""
    return within(largest(doubles(list(numbers.values()))), bound, numbers)  # NaN where one is, which max would pass by


def close(differences: Tensor | Iterable[Tensor], bound: float, name: str = "largest difference") -> Finding:
    """Holds within the bound where no entry of one or more differences is larger."""
    return all_within({name: largest(differences)}, bound)


def depends(
    on: Both,
    when: bool | Tensor,
    otherwise: bool | Tensor,
    numbers: Numbers,
    but: Both,
    source: str = COMPUTED,
    *,
    instead: bool | Tensor = True,
) -> Finding:
    """Depends, where the statement is true in the first case and not in the second; holds or fails in both.

    ``instead`` is that of ``decide``: where what the counterexample says was not found so, nothing is concluded.
    """
    if when and not otherwise and instead:
        return _finding(Verdict("depends on", on.en, on.zh), numbers, but, source=source)
    return decide(when and otherwise, numbers, but, source, instead=instead)


def inconclusive(numbers: Numbers, why: Both, source: str) -> Finding:
    """Measured, and not decided: the interval holds both answers, or neither was found."""
    return _finding(Verdict("inconclusive"), numbers, why, source=source)


def needs_training(command: str, numbers: Numbers | None = None) -> Finding:
    """Open until the lab has run; the command would decide it."""
    return _finding(Verdict("needs training"), numbers or {}, command=command)


# -- what is computed once for several claims -------------------------------------------------------------------------

_shared: list[Callable[[], None]] = []


def shared(function: F) -> F:
    """The function with its results kept for the rest of a run, and forgotten before the next."""
    kept = functools.cache(function)
    _shared.append(kept.cache_clear)
    return kept  # pyright: ignore[reportReturnType]


@contextmanager
def fresh() -> Iterator[None]:
    """A run that reads nothing of what was computed before it, and leaves no trace in torch's settings."""
    for forget in _shared:
        forget()
    tables, threads, dtype = use_table_cache(TableCache()), torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)  # every claim is small: threads that wait for each other would cost more than they save
    torch.set_default_dtype(torch.float32)
    here = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad(), here:
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        use_table_cache(tables)


# -- the ledger -------------------------------------------------------------------------------------------------------

LEDGER: dict[str, Claim] = {}

Test = Callable[[], Finding]


class About:
    """Decorators that write claims about these encodings into the ledger, one for each verdict that is expected.

    A claim about RoPE that is known to be wrong begins with ``@About("rope").fails("note.theta-one",`` and so on.
    ``says`` is who says it, for claims that do not name another.
    """

    def __init__(self, *encodings: str, says: str = "") -> None:
        self._about, self._says = encodings, says

    def _write(
        self,
        expected: Kind,
        id: str,
        english: str,
        chinese: str,
        *,
        how: str,
        how_zh: str,
        says: str = "",
        trained: bool = False,
    ) -> Callable[[Test], Test]:
        def add(test: Test) -> Test:
            assert id not in LEDGER, f"two claims are called {id}"
            LEDGER[id] = Claim(
                id=id,
                english=english,
                chinese=chinese,
                says=says or self._says,
                how=how,
                how_zh=how_zh,
                expected=expected,
                test=test,
                about=self._about,
                trained=trained,
                topic=_file(test).partition(".")[0],
            )
            return test

        return add

    holds = partialmethod(_write, "holds")
    holds_within = partialmethod(_write, "holds within")
    fails = partialmethod(_write, "fails")
    depends = partialmethod(_write, "depends on")
    inconclusive = partialmethod(_write, "inconclusive")


def _file(test: Test) -> str:
    return test.__module__.removeprefix("whorl.claims.")


def written() -> list[Claim]:
    """The claims that are written down one by one, topic by topic."""
    for file in FILES:
        import_module(f"whorl.claims.{file}")
    return sorted(LEDGER.values(), key=lambda claim: FILES.index(_file(claim.test)))


def every() -> list[Claim]:
    """The whole ledger: the written claims, and those of every registered encoding's flags and formula."""
    from whorl.claims import flags, formulas

    return [*written(), *flags.of_registry(), *formulas.claims()]


def find(id: str) -> Claim:
    """The claim of that id; an id that was joined with another or dropped leads to the one that stands for it."""
    known = {claim.id: claim for claim in every()}
    id = REDIRECTS.get(id, id)
    if id not in known:
        raise unknown("claim", id, known)
    return known[id]


def run(claims: Iterable[Claim]) -> list[Row]:
    """One row for each claim, computed now."""
    with fresh():
        return [_run(claim) for claim in claims]


def _run(claim: Claim) -> Row:
    start, raised = time.perf_counter(), False
    torch.manual_seed(0)  # each by itself: what a claim draws does not depend on those before it
    try:
        finding = claim.test()
        lost = [name for name, value in finding.numbers.items() if math.isnan(value)]
        if lost:  # a comparison with it is false, which where failing is expected would pass for a finding
            raised = True
            what = ", ".join(lost)
            finding = decide(False, finding.numbers, Both(f"not a number: {what}", f"不是数：{what}"), finding.source)
    except Exception as error:  # a broken encoding is what the ledger is there to find, whatever it raises
        raised = True
        what = f"{type(error).__name__}: {error}"
        finding = decide(False, {}, Both(f"the test raised {what}", f"检验时抛出 {what}"))
    return Row(claim=claim, finding=finding, seconds=time.perf_counter() - start, raised=raised)
