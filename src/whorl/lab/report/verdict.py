"""What the numbers say, by fixed rules; ``sentences`` puts it into words.

A loss *holds* as long as it has risen by at most HOLD bits above its value at the trained length, and *breaks* at the
first length where it has risen by more than BREAK; between the two it *drifts*. Two losses closer than the
comparison's noise tie. A model *uses* longer context where its loss on the same last tokens falls, by more than the
noise, below its value at the trained length; to hold is less than that. A window of the trained length sees nothing
beyond it: a model that is no better than its own window, in loss and in recall, has not shown that it looks further.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Literal

from whorl.lab.report.published import Check, check_repairs, check_tasks, check_text
from whorl.results import PROTOCOLS, RECALL, ComparisonResult, Row

HOLD = 0.15  # bits per byte
BREAK = 0.5
FAR = 8  # how many times the trained length "holds" is about, where that was tested
REPAIRED = 4  # at how many times the trained length repairs are compared
RECALLED = 0.05  # shares of right answers closer than this are the same
SOLVED, FAILED = 0.9, 0.2  # exact match of a task

State = Literal["holds", "drifts", "breaks", "ends"]
Context = Literal["uses", "hint", "none"]
Scored = tuple[Row, float]


@dataclass(frozen=True)
class Standing:
    """How one model fares past the trained length, in the protocol the verdict reads."""

    row: Row
    start: float  # at the reference length
    rises: dict[int, float]  # by length, from the reference on; gaps left out
    state: State  # up to the far length
    breaks_at: int | None  # at any length
    reach: int  # the longest length up to which it holds
    falls: tuple[float, int]  # how far the loss falls below its start at best, and at which length
    context: Context

    @property
    def last(self) -> tuple[float, int] | None:
        """The rise at the longest length it has a loss for, and that length."""
        return (self.rises[max(self.rises)], max(self.rises)) if self.rises else None


@dataclass(frozen=True)
class Rank:
    """The best value at a length, and who ties with it."""

    length: int
    best: Row
    value: float
    ties: tuple[Row, ...]


@dataclass(frozen=True)
class Repairs:
    """What the repairs of one trained model do at a length."""

    label: str
    length: int
    base: float
    helps: tuple[Scored, ...]
    harms: tuple[Scored, ...]
    same: tuple[Scored, ...]
    holding: tuple[Row, ...]


@dataclass(frozen=True)
class Against:
    """A model and its window at the same length."""

    row: Row
    value: float
    window: float


@dataclass(frozen=True)
class Recall:
    """Who finds far text again, against the window that cannot."""

    measure: str
    length: int
    compared: bool  # whether a window was scored alike
    reaching: tuple[Against, ...]
    not_reaching: tuple[Against, ...]  # of those whose loss holds
    best: Scored


@dataclass(frozen=True)
class Task:
    """Exact match on one synthetic task."""

    name: str
    reaches: tuple[tuple[Row, int], ...]  # the longest length up to which it is solved
    unsolved: tuple[Scored, ...]  # not even at the trained length
    fails: tuple[tuple[Row, int], ...]  # the first length past the trained one where it fails


class Findings:
    """The verdict of a comparison as data; each finding is worked out once, when it is first asked for."""

    def __init__(self, result: ComparisonResult) -> None:
        self.result = result
        self.measure = next(iter(result.measured(PROTOCOLS)), None)  # what it reads; None where no text was scored
        lengths = result.lengths_of([self.measure] if self.measure else [])
        self.reference = _reference(result.trained, lengths)
        self.beyond = [length for length in lengths if length > self.reference]
        self.longest = max(self.beyond, default=None)
        self.far = _near(result.trained * FAR, self.beyond)
        self.repaired_at = _near(result.trained * REPAIRED, self.beyond)
        self.hold, self.limit = max(HOLD, result.noise), max(BREAK, result.noise)

    # -- each model by itself --------------------------------------------------------------------------------------

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Every model that has a loss at the reference length, as trained or repaired."""
        return tuple(found for row in self.result.text_rows if (found := self._standing(row)))

    def _standing(self, row: Row) -> Standing | None:
        start = row.at(self.measure, self.reference)
        if start is None:
            return None
        rises = {length: value - start for length in self.beyond if (value := row.at(self.measure, length)) is not None}
        known = rises | {length: math.inf for measure, length in row.broken if measure == self.measure}
        held = takewhile(lambda length: known.get(length, math.inf) <= self.hold, self.beyond)  # a gap ends it
        reach = max(held, default=self.reference)
        broke = next((length for length in self.beyond if known.get(length, 0.0) > self.limit), None)
        falls, at = max(((-rise, -length) for length, rise in rises.items()), default=(0.0, -self.reference))
        return Standing(
            row=row,
            start=start,
            rises=rises,
            state=self._state(reach, broke, rises),
            breaks_at=broke,
            reach=reach,
            falls=(falls, -at),
            context=self._context(falls),
        )

    def _state(self, reach: int, broke: int | None, rises: dict[int, float]) -> State:
        if self.far is None or reach >= self.far:
            return "holds"
        if broke is not None and broke <= self.far:
            return "breaks"
        return "drifts" if self.far in rises else "ends"

    def _context(self, falls: float) -> Context:
        """Whether longer context is used, which only the same last tokens can show."""
        if self.measure != "same_last" or falls <= self.result.noise / 2:
            return "none"
        return "uses" if falls > self.result.noise else "hint"

    def trained(self, state: State) -> tuple[Standing, ...]:
        """The models as trained that are in this state."""
        return tuple(s for s in self.standings if s.row.as_trained and s.state == state)

    @property
    def breaking(self) -> tuple[Standing, ...]:
        """The models as trained that break at any length, the earliest first."""
        broken = [(s.breaks_at, -s.last[0] if s.last else 0.0, s) for s in self.standings if s.row.as_trained]
        return tuple(s for at, _, s in sorted(broken, key=lambda item: (item[0] or 0, item[1])) if at is not None)

    def context(self, context: Context) -> tuple[Standing, ...]:
        """Those that use longer context, or hint at it, the strongest first."""
        found = [s for s in self.standings if s.context == context]
        return tuple(sorted(found, key=lambda s: -s.falls[0]))

    # -- models held against each other ----------------------------------------------------------------------------

    @cached_property
    def best(self) -> Rank | None:
        """The lowest loss at the reference length, of the models as trained."""
        rows = [row for row in self.result.text_rows if row.as_trained]
        return rank(rows, self.measure, self.reference, self.result.noise)

    @cached_property
    def best_far(self) -> Rank | None:
        """The lowest loss at the far length, repairs included."""
        return rank(self.result.text_rows, self.measure, self.far, self.result.noise)

    @cached_property
    def repairs(self) -> tuple[Repairs, ...]:
        """The repairs of every model that has some."""
        rows = self.result.text_rows
        return tuple(found for base in rows if base.as_trained and (found := self._repairs(base)))

    def _repairs(self, base: Row) -> Repairs | None:
        length, noise = self.repaired_at, self.result.noise
        variants = [row for row in self.result.text_rows if row.label == base.label and not row.as_trained]
        before = base.at(self.measure, length)
        if length is None or before is None or not variants:
            return None
        scored = _scored(variants, self.measure, length)
        return Repairs(
            label=base.label,
            length=length,
            base=before,
            helps=tuple(pair for pair in scored if before - pair[1] > noise),
            harms=tuple(pair for pair in scored if pair[1] - before > noise),
            same=tuple(pair for pair in scored if abs(pair[1] - before) <= noise),
            holding=tuple(s.row for s in self.standings if s.row in variants and s.state == "holds"),
        )

    @cached_property
    def window(self) -> Scored | None:
        """The window that stands for all, and its loss at the far length."""
        window = self.result.window
        value = window.at(self.measure, self.far) if window else None
        return (window, value) if window and value is not None else None

    @cached_property
    def below_window(self) -> tuple[Against, ...]:
        """The models that have a lower loss than their own window at the far length."""
        pairs = self._against(self.measure, self.far)
        return tuple(pair for pair in pairs if pair.window - pair.value > self.result.noise)

    def _against(self, measure: str | None, length: int | None) -> list[Against]:
        """The models that have a window to be held against, the lowest first."""
        found = []
        for row, value in _scored(self.result.text_rows, measure, length):
            window = self.result.window_of(row)
            limit = window.at(measure, length) if window else None
            if limit is not None:
                found.append(Against(row, value, limit))
        return found

    @cached_property
    def recalls(self) -> tuple[Recall, ...]:
        """A finding for each score of recall past the trained length."""
        return tuple(found for measure in self.result.measured(RECALL) if (found := self._recall(measure)))

    def _recall(self, measure: str) -> Recall | None:
        trained = self.result.trained
        length = _near(trained * FAR, [tested for tested in self.result.lengths_of([measure]) if tested > trained])
        scored = _scored(self.result.text_rows, measure, length)
        if length is None or not scored:
            return None
        pairs = self._against(measure, length)[::-1]
        holding = {id(s.row) for s in self.standings if s.state == "holds" and self.beyond}
        return Recall(
            measure=measure,
            length=length,
            compared=bool(pairs),
            reaching=tuple(pair for pair in pairs if pair.value - pair.window > RECALLED),
            not_reaching=tuple(p for p in pairs if p.value - p.window <= RECALLED and id(p.row) in holding),
            best=max(scored, key=lambda pair: pair[1]),
        )

    @cached_property
    def flattered(self) -> tuple[Row, float, float] | None:
        """The model whose damage non-overlapping blocks hide most, with its rise there and on the same tokens."""
        found = []
        for row in self.result.text_rows if self.measure == "same_last" and self.far else ():
            hidden, shown = (self._rise(row, protocol) for protocol in ("non_overlapping", "same_last"))
            if hidden is not None and shown is not None and shown - hidden > self.hold:
                found.append((row, hidden, shown))
        return max(found, key=lambda item: item[2] - item[1], default=None)

    def _rise(self, row: Row, measure: str) -> float | None:
        first, last = row.at(measure, self.reference), row.at(measure, self.far)
        return None if first is None or last is None else last - first

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The published orders that can be held against these numbers."""
        result, measure = self.result, self.measure
        text = check_text(result, measure, self.far) if measure and self.far else ()
        repairs = check_repairs(result, measure, self.repaired_at) if measure and self.repaired_at else ()
        return (*text, *repairs, *check_tasks(result))

    # -- tasks -----------------------------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """A finding for each synthetic task."""
        names = dict.fromkeys(row.task for row in self.result.rows if row.task)
        return tuple(found for name in names if (found := self._task(name)))

    def _task(self, name: str) -> Task | None:
        rows = [row for row in self.result.rows if row.task == name and row.has("exact_match")]
        lengths = sorted({length for row in rows for length in row.cells["exact_match"]})
        if not lengths:
            return None
        start = _reference(self.result.trained, lengths)
        reaches, unsolved, fails = [], [], []
        for row in rows:
            scores = [(length, row.at("exact_match", length)) for length in lengths if length >= start]
            first = scores[0][1]
            if first is not None and first < SOLVED:
                unsolved.append((row, first))
                continue
            if first is not None:
                solved = takewhile(lambda pair: pair[1] is not None and pair[1] >= SOLVED, scores)
                reaches.append((row, max(length for length, _ in solved)))
            failed = [length for length, score in scores if score is not None and score < FAILED]
            if failed:
                fails.append((row, failed[0]))
        return Task(
            name=name,
            reaches=tuple(sorted(reaches, key=lambda pair: -pair[1])),
            unsolved=tuple(unsolved),
            fails=tuple(sorted(fails, key=lambda pair: pair[1])),
        )


def rank(
    rows: Iterable[Row], measure: str | None, length: int | None, noise: float, *, highest: bool = False
) -> Rank | None:
    """The best row at a length and all that lie within the noise of it."""
    sign = -1 if highest else 1
    scored = [(row, sign * value) for row, value in _scored(rows, measure, length)]
    scored.sort(key=lambda pair: pair[1])
    if length is None or not scored or (highest and scored[0][1] == 0):
        return None  # where nobody got anything right, nobody is best
    best, value = scored[0]
    ties = tuple(row for row, other in scored[1:] if other - value <= noise)
    return Rank(length=length, best=best, value=sign * value, ties=ties)


def _scored(rows: Iterable[Row], measure: str | None, length: int | None) -> list[Scored]:
    """The rows that have a value there, the lowest first."""
    scored = [(row, value) for row in rows if (value := row.at(measure, length)) is not None]
    return sorted(scored, key=lambda pair: pair[1])


def _reference(trained: int, lengths: Sequence[int]) -> int:
    """The trained length, or the tested one that stands in for it: the next shorter, else the shortest."""
    return _near(trained, lengths) or trained


def _near(wanted: int, lengths: Sequence[int]) -> int | None:
    """The longest of the lengths that is not beyond the wanted one, else the shortest."""
    within = [length for length in lengths if length <= wanted]
    return max(within, default=min(lengths, default=None))
