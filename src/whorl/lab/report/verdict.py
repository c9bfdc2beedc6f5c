"""What the numbers say, by fixed rules; ``sentences`` puts it into words.

Everything rests on paired differences and their intervals, never on two means. A loss *holds* up to a length while the
upper end of its rise above the trained length is at most HOLD bits, and *breaks* where the lower end is more than
WHOLE; it *drifts* where the lower end is above HOLD, and what no interval tells is *open*. Two rows whose difference
has an interval with 0 in it are not told apart. A model *uses* longer context where its loss on the same last tokens
falls; to hold is less than that. A window of the trained length sees nothing beyond it: of the models that are whole,
one that is not better than its own window, in loss and in recall, has not shown that it looks further.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Literal

from whorl.lab.report.published import Check, check_losses, check_tasks
from whorl.lab.statistics import share_low
from whorl.result_rows import PROTOCOLS, RECALL, WHOLE, Row
from whorl.results import ComparisonResult, Difference

HOLD = 0.15  # bits per byte
FAR = 8  # how many times the trained length "holds" is about, where that was tested
REPAIRED = 4  # at how many times the trained length published orders of repairs are checked
SOLVED, FAILED = 0.9, 0.2  # exact match of a task
CHANCE = {"retrieval_accuracy": 1 / 26}  # of a letter, where a file does not say; a text said again has none known

State = Literal["holds", "drifts", "breaks", "ends", "open"]
Scored = tuple[Row, float]


@dataclass(frozen=True)
class Standing:
    """How one model fares past the trained length, in the protocol the verdict reads."""

    row: Row
    start: float  # at the reference length
    rises: dict[int, Difference]  # by length past the reference; gaps left out
    state: State  # up to the far length
    breaks_at: int | None  # at any length
    reach: int  # the longest length up to which it holds
    uses: Difference | None  # the strongest fall below the start that is told

    @property
    def last(self) -> Difference | None:
        """The rise at the longest length it has a loss for."""
        return self.rises[max(self.rises)] if self.rises else None


@dataclass(frozen=True)
class Order:
    """The models as trained at a length, held against the baseline: told lower, told higher, or not told apart."""

    length: int
    baseline: Row
    value: float
    lower: tuple[tuple[Row, Difference], ...]
    higher: tuple[tuple[Row, Difference], ...]  # the nearest first
    alike: tuple[Row, ...]
    unknown: tuple[Row, ...]  # no interval can be made


@dataclass(frozen=True)
class Repair:
    """What a repair does to the model it repairs: the lengths past the trained one where it helps, and harms."""

    row: Row
    helps: tuple[Difference, ...]
    harms: tuple[Difference, ...]
    alike: tuple[Difference, ...]


@dataclass(frozen=True)
class Recall:
    """Who finds far text again, against the window that cannot."""

    measure: str
    length: int
    compared: bool  # whether a window was scored alike
    reaching: tuple[tuple[Row, Difference], ...]  # the most first
    not_reaching: tuple[Row, ...]  # of those whose loss holds
    best: Scored
    above_chance: bool  # whether the best is told from what chance gives, at this length or another


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

    @cached_property
    def told(self) -> bool:
        """Whether any difference has an interval, without which nothing is concluded."""
        return any(one.low is not None for one in self.result.differences)

    # -- each model by itself --------------------------------------------------------------------------------------

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Every model that has a loss at the reference length, as trained or repaired."""
        return tuple(found for row in self.result.text_rows if (found := self._standing(row)))

    def _standing(self, row: Row) -> Standing | None:
        start = row.at(self.measure, self.reference)
        if start is None or self.measure is None:
            return None
        known = {length: self.result.difference("length", row, length, self.measure) for length in self.beyond}
        rises = {length: rise for length, rise in known.items() if rise is not None}
        broken = {length for measure, length in row.broken if measure == self.measure}
        held = takewhile(lambda n: n in rises and _at_most(rises[n], HOLD), self.beyond)  # a gap ends it
        broke = [n for n in self.beyond if n in broken or (n in rises and _above(rises[n], WHOLE))]
        falls = [rise for rise in rises.values() if rise.sign < 0 and self.measure == "same_last"]
        reach = max(held, default=self.reference)
        return Standing(
            row=row,
            start=start,
            rises=rises,
            state=self._state(row, reach, next(iter(broke), None), rises),
            breaks_at=next(iter(broke), None),
            reach=reach,
            uses=min(falls, key=lambda rise: (rise.mean, rise.length), default=None),
        )

    def _state(self, row: Row, reach: int, broke: int | None, rises: dict[int, Difference]) -> State:
        if self.far is None or reach >= self.far:
            return "holds"
        if broke is not None and broke <= self.far:
            return "breaks"
        if row.at(self.measure, self.far) is None:
            return "ends"
        return "drifts" if self.far in rises and _above(rises[self.far], HOLD) else "open"

    def trained(self, state: State) -> tuple[Standing, ...]:
        """The models as trained that are in this state."""
        return tuple(s for s in self.standings if s.row.as_trained and s.state == state)

    @property
    def breaking(self) -> tuple[Standing, ...]:
        """The models as trained that break at any length, the earliest first."""
        broken = [(s.breaks_at, -s.last.mean if s.last else 0.0, s) for s in self.standings if s.row.as_trained]
        return tuple(s for at, _, s in sorted(broken, key=lambda item: (item[0] or 0, item[1])) if at is not None)

    @property
    def using(self) -> tuple[Standing, ...]:
        """Those that use longer context, the strongest first."""
        return tuple(sorted((s for s in self.standings if s.uses), key=lambda s: s.uses.mean if s.uses else 0.0))

    def whole(self, row: Row, length: int | None) -> bool:
        """Whether a model is not broken at a length."""
        start, now = row.at(self.measure, self.reference), row.at(self.measure, length)
        return start is None or now is None or now - start <= WHOLE

    # -- models held against each other ----------------------------------------------------------------------------

    @cached_property
    def order(self) -> Order | None:
        """The models as trained at the reference length, against the baseline."""
        result, measure, length = self.result, self.measure, self.reference
        scored = _scored([row for row in result.text_rows if row.as_trained], measure, length)
        if not scored or measure is None:
            return None
        base, value = next((pair for pair in scored if pair[0].label == result.baseline), scored[0])
        pairs = [(row, result.difference("encoding", row, length, measure)) for row, _ in scored if row is not base]
        known = [(row, found) for row, found in pairs if found and found.low is not None]
        return Order(
            length=length,
            baseline=base,
            value=value,
            lower=tuple((row, found) for row, found in known if found.sign < 0),
            higher=tuple((row, found) for row, found in known if found.sign > 0),
            alike=tuple(row for row, found in known if found.sign == 0),
            unknown=tuple(row for row, found in pairs if found is None or found.low is None),
        )

    @cached_property
    def repairs(self) -> tuple[Repair, ...]:
        """Every repair that was tried, with what it does past the trained length."""
        return tuple(found for row in self.result.text_rows if not row.as_trained and (found := self._repair(row)))

    def _repair(self, row: Row) -> Repair | None:
        known = [self.result.difference("repair", row, length, self.measure or "") for length in self.beyond]
        found = [one for one in known if one is not None and one.low is not None]
        if not found:
            return None
        kinds = (tuple(one for one in found if one.sign == sign) for sign in (-1, 1, 0))
        return Repair(row, *kinds)

    def least(self, kind: str, length: int) -> float | None:
        """The smallest difference of a kind that could have been found at a length: the middle one of those judged."""
        found = [
            one.least
            for one in self.result.differences
            if (one.kind, one.measure, one.length) == (kind, self.measure, length) and one.least
        ]
        return statistics.median(found) if found else None

    @cached_property
    def window(self) -> Scored | None:
        """The window that stands for all, and its loss at the far length."""
        window = self.result.window
        value = window.at(self.measure, self.far) if window else None
        return (window, value) if window and value is not None else None

    @cached_property
    def below_window(self) -> tuple[tuple[Row, Difference], ...]:
        """The whole models that have a lower loss than their own window at the far length."""
        found = self._against_windows(self.measure, self.far)
        return tuple((row, less) for row, less in found if less.sign < 0 and self.whole(row, self.far))

    def _against_windows(self, measure: str | None, length: int | None) -> list[tuple[Row, Difference]]:
        """The models less their own windows, the lowest first."""
        pairs = [(row, self.result.difference("window", row, length, measure or "")) for row in self.result.text_rows]
        return sorted(((row, found) for row, found in pairs if found), key=lambda pair: pair[1].mean)

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
        pairs = self._against_windows(measure, length)[::-1]
        holding = {id(s.row) for s in self.standings if s.state == "holds" and self.beyond}
        return Recall(
            measure=measure,
            length=length,
            compared=bool(pairs),
            reaching=tuple((row, more) for row, more in pairs if more.sign > 0),
            not_reaching=tuple(row for row, more in pairs if more.sign <= 0 and id(row) in holding),
            best=max(scored, key=lambda pair: pair[1]),
            above_chance=any(self.floor(measure, n) is not None for n in self.result.lengths_of([measure])),
        )

    def floor(self, measure: str, length: int) -> float | None:
        """What the best share at a length is told from: chance and the windows; None where it is not told from them.

        Of many that guess somebody is lucky, so all that are shown, at all lengths, are judged together.
        """
        far = length > self.result.trained  # up to it a window leaves nothing out
        windows = [cell.high for row in self.result.windows if far and (cell := row.cells.get(measure, {}).get(length))]
        rows = [row.cells.get(measure, {}) for row in self.result.rows if not row.is_window]
        here = [cell for cells in rows if (cell := cells.get(length))]
        guessed = [cell.chance for cell in here if cell.chance is not None]
        floor = max((max(guessed, default=CHANCE.get(measure, 0.0)), *windows))
        judged = sum(map(len, rows))
        lows = [
            min(cell.low, share_low(cell.mean, cell.n * cell.trials, judged)) if cell.trials else cell.low
            for cell in here
        ]
        return floor if max(lows, default=0.0) > floor else None

    @cached_property
    def flattered(self) -> tuple[Row, float, float] | None:
        """The model whose damage non-overlapping blocks hide most, with its rise there and on the same tokens."""
        found = []
        for row in self.result.text_rows if self.measure == "same_last" and self.far else ():
            hidden, shown = (self._rise(row, protocol) for protocol in ("non_overlapping", "same_last"))
            if hidden is not None and shown is not None and shown - hidden > HOLD:
                found.append((row, hidden, shown))
        return max(found, key=lambda item: item[2] - item[1], default=None)

    def _rise(self, row: Row, measure: str) -> float | None:
        first, last = row.at(measure, self.reference), row.at(measure, self.far)
        return None if first is None or last is None else last - first

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The published orders that can be held against these numbers."""
        measure, far, repaired_at = self.measure, self.far, self.repaired_at
        losses = check_losses(self.result, measure, far, repaired_at) if measure and far and repaired_at else ()
        return (*losses, *check_tasks(self.result))

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
            cells = [(length, row.cells["exact_match"].get(length)) for length in lengths if length >= start]
            first = cells[0][1]
            if first is not None and first.low < SOLVED:
                unsolved.append((row, first.mean))
                continue
            if first is not None:
                solved = takewhile(lambda pair: pair[1] is not None and pair[1].low >= SOLVED, cells)
                reaches.append((row, max(length for length, _ in solved)))
            failed = [length for length, cell in cells if cell is not None and cell.high < FAILED]
            if failed:
                fails.append((row, failed[0]))
        return Task(
            name=name,
            reaches=tuple(sorted(reaches, key=lambda pair: -pair[1])),
            unsolved=tuple(unsolved),
            fails=tuple(sorted(fails, key=lambda pair: pair[1])),
        )


def _at_most(rise: Difference, limit: float) -> bool:
    return rise.high is not None and rise.high <= limit


def _above(rise: Difference, limit: float) -> bool:
    return rise.low is not None and rise.low > limit


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
