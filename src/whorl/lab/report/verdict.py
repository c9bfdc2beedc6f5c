"""What the numbers say, by fixed rules; ``sentences`` puts it into words.

A loss *holds* as long as it has risen by at most HOLD bits above its value at the trained length, and *breaks* at the
first length where it has risen by more than BREAK; between the two it *drifts*. Two losses closer than the
comparison's noise tie. A model *uses* longer context where its loss on the same last tokens falls, by more than the
noise, below its value at the trained length; to hold is less than that. A window of the trained length sees nothing
beyond it: a model that is no better than its own window, in loss and in recall, has not shown that it looks further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from whorl.lab.report.published import Check, check_repairs, check_tasks, check_text
from whorl.lab.report.reading import PROTOCOLS, RECALL, Reading, Row

HOLD = 0.15  # bits per byte
BREAK = 0.5
FAR = 8  # how many times the trained length "holds" is about, where that was tested
REPAIRED = 4  # at how many times the trained length repairs are compared
RECALLED = 0.05  # shares of right answers closer than this are the same
SOLVED, FAILED = 0.9, 0.2  # exact match of a task

State = Literal["holds", "drifts", "breaks", "ends"]
Context = Literal["uses", "hint", "none"]


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
    """The lowest loss at a length, and who ties with it."""

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
    helps: tuple[tuple[Row, float], ...]
    harms: tuple[tuple[Row, float], ...]
    same: tuple[tuple[Row, float], ...]
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
    best: tuple[Row, float]


@dataclass(frozen=True)
class Task:
    """Exact match on one synthetic task."""

    name: str
    reaches: tuple[tuple[Row, int], ...]  # the longest length up to which it is solved
    unsolved: tuple[tuple[Row, float], ...]  # not even at the trained length
    fails: tuple[tuple[Row, int], ...]  # the first length past the trained one where it fails


@dataclass(frozen=True)
class Findings:
    """The verdict as data."""

    measure: str | None  # the protocol it reads, None where no text was scored
    reference: int
    far: int | None
    longest: int | None
    standings: tuple[Standing, ...]
    best: Rank | None
    best_far: Rank | None
    repairs: tuple[Repairs, ...]
    window: tuple[Row, float] | None  # the reference window and its loss at the far length
    below_window: tuple[Against, ...]
    recalls: tuple[Recall, ...]
    flattered: tuple[Row, float, float] | None  # rises less in non-overlapping blocks than on the same tokens
    checks: tuple[Check, ...]
    tasks: tuple[Task, ...]

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


def judge(reading: Reading) -> Findings:
    """The findings of a comparison."""
    measure = next(iter(reading.measured(PROTOCOLS)), None)
    lengths = reading.lengths_of([measure] if measure else [])
    reference = _reference(reading.trained, lengths)
    beyond = [length for length in lengths if length > reference]
    far = _near(reading.trained * FAR, beyond)
    rows = reading.text_rows
    standings = tuple(_standings(rows, measure, reference, far, beyond, reading.noise)) if measure else ()
    window = reading.window
    at_far = window.at(measure, far) if window and measure else None
    return Findings(
        measure=measure,
        reference=reference,
        far=far,
        longest=beyond[-1] if beyond else None,
        standings=standings,
        best=_rank([row for row in rows if row.as_trained], measure, reference, reading.noise),
        best_far=_rank(rows, measure, far, reading.noise),
        repairs=tuple(_repairs(reading, measure, standings, beyond)),
        window=(window, at_far) if window and at_far is not None else None,
        below_window=tuple(
            pair for pair in _against(reading, measure, far) if pair.window - pair.value > reading.noise
        ),
        recalls=tuple(_recalls(reading, standings, beyond)),
        flattered=_flattered(reading, measure, reference, far),
        checks=tuple(_checks(reading, measure, far, beyond)),
        tasks=tuple(_tasks(reading)),
    )


def rank(rows: Iterable[Row], measure: str, length: int, noise: float, *, highest: bool = False) -> Rank | None:
    """The best row at a length and all that lie within the noise of it."""
    sign = -1 if highest else 1
    scored = [(sign * value, row) for row in rows if (value := row.at(measure, length)) is not None]
    if not scored:
        return None
    scored.sort(key=lambda pair: pair[0])
    best, first = scored[0]
    if highest and best == 0:
        return None  # nobody got anything right, so nobody is best
    ties = tuple(row for value, row in scored[1:] if value - best <= noise)
    return Rank(length=length, best=first, value=sign * best, ties=ties)


def _rank(rows: Iterable[Row], measure: str | None, length: int | None, noise: float) -> Rank | None:
    return rank(rows, measure, length, noise) if measure and length is not None else None


def _reference(trained: int, lengths: Sequence[int]) -> int:
    """The trained length, or the tested one that stands in for it: the next shorter, else the shortest."""
    shorter = [length for length in lengths if length <= trained]
    return max(shorter, default=min(lengths, default=trained))


def _near(wanted: int, lengths: Sequence[int]) -> int | None:
    """The longest of the lengths that is not beyond the wanted one, else the shortest."""
    within = [length for length in lengths if length <= wanted]
    return max(within, default=min(lengths, default=None))


def _standings(
    rows: Iterable[Row], measure: str, reference: int, far: int | None, beyond: Sequence[int], noise: float
) -> Iterable[Standing]:
    limit = max(HOLD, noise)
    for row in rows:
        start = row.at(measure, reference)
        if start is None:
            continue
        rises = {length: value - start for length in beyond if (value := row.at(measure, length)) is not None}
        bad = {length for length in beyond if (measure, length) in row.broken}
        broke = [length for length in beyond if length in bad or rises.get(length, 0.0) > max(BREAK, noise)]
        reach = reference
        for length in beyond:
            if length in bad or length not in rises or rises[length] > limit:
                break
            reach = length
        falls = max(((-rise, -length) for length, rise in rises.items()), default=(0.0, -reference))
        yield Standing(
            row=row,
            start=start,
            rises=rises,
            state=_state(reach, far, broke, rises),
            breaks_at=broke[0] if broke else None,
            reach=reach,
            falls=(falls[0], -falls[1]),
            context=_context(measure, falls[0], noise),
        )


def _context(measure: str, falls: float, noise: float) -> Context:
    """Whether longer context is used, which only the same last tokens can show."""
    if measure != "same_last" or falls <= noise / 2:
        return "none"
    return "uses" if falls > noise else "hint"


def _state(reach: int, far: int | None, broke: Sequence[int], rises: dict[int, float]) -> State:
    if far is None or reach >= far:
        return "holds"
    if broke and broke[0] <= far:
        return "breaks"
    return "drifts" if far in rises else "ends"


def _against(reading: Reading, measure: str | None, length: int | None) -> list[Against]:
    """The models that have a window to be held against, the lowest first."""
    found = []
    if measure is None:
        return []
    for row in reading.text_rows:
        window = reading.window_of(row)
        value, limit = row.at(measure, length), window.at(measure, length) if window else None
        if value is not None and limit is not None:
            found.append(Against(row, value, limit))
    return sorted(found, key=lambda pair: pair.value)


def _repairs(
    reading: Reading, measure: str | None, standings: Sequence[Standing], beyond: Sequence[int]
) -> Iterable[Repairs]:
    length = _near(reading.trained * REPAIRED, beyond)
    if measure is None or length is None:
        return
    for base in (row for row in reading.text_rows if row.as_trained):
        variants = [row for row in reading.text_rows if row.label == base.label and not row.as_trained]
        before = base.at(measure, length)
        if not variants or before is None:
            continue
        scored = [(row, value) for row in variants if (value := row.at(measure, length)) is not None]
        scored.sort(key=lambda pair: pair[1])
        yield Repairs(
            label=base.label,
            length=length,
            base=before,
            helps=tuple(pair for pair in scored if before - pair[1] > reading.noise),
            harms=tuple(pair for pair in scored if pair[1] - before > reading.noise),
            same=tuple(pair for pair in scored if abs(pair[1] - before) <= reading.noise),
            holding=tuple(s.row for s in standings if s.row in variants and s.state == "holds"),
        )


def _recalls(reading: Reading, standings: Sequence[Standing], beyond: Sequence[int]) -> Iterable[Recall]:
    for measure in reading.measured(RECALL):
        found = _recall(reading, measure, standings, beyond)
        if found:
            yield found


def _recall(reading: Reading, measure: str, standings: Sequence[Standing], beyond: Sequence[int]) -> Recall | None:
    tested = [length for length in reading.lengths_of([measure]) if length > reading.trained]
    length = _near(reading.trained * FAR, tested)
    scored = [(row, value) for row in reading.text_rows if (value := row.at(measure, length)) is not None]
    if length is None or not scored:
        return None
    pairs = _against(reading, measure, length)[::-1]
    holding = {id(s.row) for s in standings if s.state == "holds" and beyond}
    return Recall(
        measure=measure,
        length=length,
        compared=bool(pairs),
        reaching=tuple(pair for pair in pairs if pair.value - pair.window > RECALLED),
        not_reaching=tuple(pair for pair in pairs if pair.value - pair.window <= RECALLED and id(pair.row) in holding),
        best=max(scored, key=lambda pair: pair[1]),
    )


def _flattered(
    reading: Reading, measure: str | None, reference: int, far: int | None
) -> tuple[Row, float, float] | None:
    """The model whose damage non-overlapping blocks hide most, with its rise there and on the same tokens."""
    if measure != "same_last" or far is None:
        return None
    found: list[tuple[Row, float, float]] = []
    for row in reading.text_rows:
        hidden, shown = (_difference(row, protocol, reference, far) for protocol in ("non_overlapping", "same_last"))
        if hidden is not None and shown is not None and shown - hidden > max(HOLD, reading.noise):
            found.append((row, hidden, shown))
    return max(found, key=lambda item: item[2] - item[1], default=None)


def _difference(row: Row, measure: str, start: int, end: int) -> float | None:
    first, last = row.at(measure, start), row.at(measure, end)
    return None if first is None or last is None else last - first


def _checks(reading: Reading, measure: str | None, far: int | None, beyond: Sequence[int]) -> Iterable[Check]:
    if measure is not None and far is not None:
        yield from check_text(reading, measure, far)
        length = _near(reading.trained * REPAIRED, beyond)
        assert length is not None  # there is a far length, so there is one beyond the trained one
        yield from check_repairs(reading, measure, length)
    yield from check_tasks(reading)


def _tasks(reading: Reading) -> Iterable[Task]:
    for name in dict.fromkeys(row.task for row in reading.rows if row.task):
        rows = [row for row in reading.rows if row.task == name and row.has("exact_match")]
        lengths = sorted({length for row in rows for length in row.cells["exact_match"]})
        if not lengths:
            continue
        start = _reference(reading.trained, lengths)
        reaches, unsolved, fails = [], [], []
        for row in rows:
            cells = row.cells["exact_match"]
            solved = start
            for length in (length for length in lengths if length >= start):
                if length not in cells or cells[length].mean < SOLVED:
                    break
                solved = length
            if start in cells and cells[start].mean < SOLVED:
                unsolved.append((row, cells[start].mean))
            elif start in cells:
                reaches.append((row, solved))
            failed = [
                length for length in lengths if length > start and length in cells and cells[length].mean < FAILED
            ]
            if failed and row not in (other for other, _ in unsolved):
                fails.append((row, failed[0]))
        yield Task(
            name=name,
            reaches=tuple(sorted(reaches, key=lambda pair: -pair[1])),
            unsolved=tuple(unsolved),
            fails=tuple(sorted(fails, key=lambda pair: pair[1])),
        )
