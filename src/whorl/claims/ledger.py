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
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from whorl.claims.probes import largest
from whorl.errors import unknown
from whorl.rotary.cache import TableCache, use_table_cache

Kind = Literal["holds", "holds within", "fails", "depends on", "needs training"]

KINDS: tuple[Kind, ...] = get_args(Kind)

# Where claims are written down, in the order of the ledger; what comes before the dot is the topic.
FILES = (
    "rotation.turning",
    "rotation.derivation",
    "rotation.axes",
    "decay",
    "sinusoidal.codes",
    "sinusoidal.additive",
    "sinusoidal.ideal",
    "precision",
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
    "statements.frequencies",
    "statements.lengths",
    "statements.models",
    "questions",
)

TOPICS = tuple(dict.fromkeys(file.partition(".")[0] for file in FILES))

COMPUTED = "computed"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verdict:
    """One of five words, and what it holds within or depends on.

    >>> str(Verdict("holds within", "1e-12"))
    'holds within 1e-12'
    """

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a claim's function found in this run."""

    verdict: Verdict
    numbers: Mapping[str, float]
    counterexample: str = ""
    source: str = COMPUTED  # or the committed lab result it was read from, experiments/…
    command: str = ""  # what would decide a claim that needs training


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, who makes it, and the function that decides it.

    ``trained`` marks a claim that only training decides: its ``expected`` verdict is that of lab results, and without
    any it needs training, which is never red.
    """

    id: str
    english: str
    chinese: str
    says: str
    how: str
    expected: Kind
    test: Callable[[], Finding]
    about: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    trained: bool = False
    topic: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim with what was found in this run."""

    claim: Claim
    finding: Finding
    seconds: float
    raised: bool = False  # whether the test itself broke, which is never as expected

    @property
    def id(self) -> str:
        """The claim's stable name."""
        return self.claim.id

    @property
    def statement(self) -> str:
        """What is claimed, in English."""
        return self.claim.english

    @property
    def verdict(self) -> Verdict:
        """What this run found."""
        return self.finding.verdict

    @property
    def numbers(self) -> Mapping[str, float]:
        """What was measured, by name."""
        return self.finding.numbers

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one that the ledger records."""
        open_yet = self.claim.trained and self.verdict.kind == "needs training"
        return not self.raised and (open_yet or self.verdict.kind == self.claim.expected)

    def to_dict(self) -> dict[str, Any]:
        """The row in the form that docs/claims.md documents."""
        claim, found = self.claim, self.finding
        return {
            "id": claim.id,
            "topic": claim.topic,
            "statement": {"en": claim.english, "zh": claim.chinese},
            "says": claim.says,
            "how": claim.how,
            "rows": list(claim.rows),
            "encodings": list(claim.about),
            "verdict": str(found.verdict),
            "kind": found.verdict.kind,
            "expected": claim.expected,
            "as_expected": self.as_expected,
            "numbers": {name: value if math.isfinite(value) else None for name, value in found.numbers.items()},
            "counterexample": found.counterexample or None,
            "source": found.source,
            "command": found.command or None,
            "seconds": round(self.seconds, 4),
        }


# -- how a test words what it found -----------------------------------------------------------------------------------


def decide(true: bool, numbers: Mapping[str, float], counterexample: str = "", source: str = COMPUTED) -> Finding:
    """Holds or fails; the counterexample is kept where it fails."""
    verdict, text = (Verdict("holds"), "") if true else (Verdict("fails"), counterexample)
    return Finding(verdict=verdict, numbers=numbers, counterexample=text, source=source)


def within(value: float, bound: float, numbers: Mapping[str, float], counterexample: str = "") -> Finding:
    """Holds within the bound, or fails; a value that is not a number fails."""
    if value <= bound:
        return Finding(verdict=Verdict("holds within", f"{bound:g}"), numbers=numbers)
    return Finding(verdict=Verdict("fails"), numbers=numbers, counterexample=counterexample or f"off by {value:.3g}")


def close(difference: Tensor, bound: float, name: str = "largest difference") -> Finding:
    """Holds within the bound where no entry of the difference is larger; fails otherwise."""
    return within(largest(difference), bound, {name: largest(difference)})


def depends(on: str, when: bool, otherwise: bool, numbers: Mapping[str, float], counterexample: str = "") -> Finding:
    """Depends, where the statement is true in the first case and not in the second; holds or fails in both."""
    if when and not otherwise:
        return Finding(verdict=Verdict("depends on", on), numbers=numbers, counterexample=counterexample)
    return decide(when, numbers, counterexample)


def needs_training(command: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """Open until the lab has run; the command would decide it."""
    return Finding(verdict=Verdict("needs training"), numbers=numbers or {}, command=command)


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


@dataclass(frozen=True)
class About:
    """Decorators that write claims about these encodings into the ledger, one for each verdict that is expected.

    ``rows`` are those of the study notes. With ``about_rope = About(("rope",), rows=("N26",))`` a claim that is known
    to be wrong begins with ``@about_rope.fails("note.theta-one", …)``; it may name other encodings and rows.
    """

    about: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def _write(
        self, expected: Kind, id: str, english: str, chinese: str, *, says: str, how: str, **more: Any
    ) -> Callable[[Test], Test]:
        more = {"about": self.about, "rows": self.rows} | more

        def add(test: Test) -> Test:
            assert id not in LEDGER, f"two claims are called {id}"
            said = {"id": id, "english": english, "chinese": chinese, "says": says, "how": how, "expected": expected}
            LEDGER[id] = Claim(**said, test=test, topic=_file(test).partition(".")[0], **more)
            return test

        return add

    holds = partialmethod(_write, "holds")
    holds_within = partialmethod(_write, "holds within")
    fails = partialmethod(_write, "fails")
    depends = partialmethod(_write, "depends on")


claim = About()


def _file(test: Test) -> str:
    return test.__module__.removeprefix("whorl.claims.")


def written() -> list[Claim]:
    """The claims that are written down one by one, topic by topic."""
    for file in FILES:
        import_module(f"whorl.claims.{file}")
    return sorted(LEDGER.values(), key=lambda one: FILES.index(_file(one.test)))


def every() -> list[Claim]:
    """The whole ledger: the written claims, and those of every registered encoding's flags."""
    from whorl.claims.flags import of_registry

    return [*written(), *of_registry()]


def find(id: str) -> Claim:
    """The claim of that id."""
    known = {one.id: one for one in every()}
    if id not in known:
        raise unknown("claim", id, known)
    return known[id]


def run(claims: Iterable[Claim]) -> list[Row]:
    """One row for each claim, computed now."""
    with fresh():
        return [_run_one(one) for one in claims]


def _run_one(one: Claim) -> Row:
    start, raised = time.perf_counter(), False
    torch.manual_seed(0)  # each by itself: what a claim draws does not depend on those before it
    try:
        found = one.test()
    except Exception as error:  # a broken encoding is what the ledger is there to find, whatever it raises
        raised = True
        found = Finding(
            verdict=Verdict("fails"), numbers={}, counterexample=f"the test raised {type(error).__name__}: {error}"
        )
    return Row(claim=one, finding=found, seconds=time.perf_counter() - start, raised=raised)
