"""Charts, drawn: axes, lines with bands, direct labels at their ends; chart.svg puts what is placed here into SVG.

Nothing depends on colour alone: each line has its own dash and marker too, and a label in ink beside its end.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from whorl.lab.report.words import Words, number, percent, ratio
from whorl.plot.style import COLOURS, Look
from whorl.result_rows import Cell

PHONE = (372.0, 320.0)  # a panel of a phone 390 pixels wide
RADIUS = 3.0
FONT, LARGE = 12.0, 15.0  # the size of letters on a screen, and on paper and phones, where panels are drawn smaller
GAP = 17.0  # between direct labels
APART = 6.0  # between labels of ticks
BESIDE = 2.5  # between bars at one length

DASHES = (None, "8 3", "3 3", "9 3 2 3", "14 3", "5 2 1.5 2", "10 2.5 4 2.5")
Point = tuple[float, float]


def coordinate(value: float) -> str:
    """A coordinate with two decimals at most: a hundredth of a pixel is nobody's business.

    >>> coordinate(1.50), coordinate(-0.001), coordinate(12.0)
    ('1.5', '0', '12')
    """
    plain = number(value).replace("−", "-")
    return plain.rstrip("0").rstrip(".")


def _at(x: float, y: float) -> str:
    return f"{coordinate(x)} {coordinate(y)}"


def _path(points: Sequence[Point], end: str = "") -> str:
    return "M" + "L".join(_at(x, y) for x, y in points) + end


def _star(tip: Point, notch: Point) -> tuple[Point, ...]:
    """Four tips: the tip and the notch beside it, turned by quarters."""
    corners = []
    for _ in range(4):
        corners += [tip, notch]
        tip, notch = (-tip[1], tip[0]), (-notch[1], notch[0])
    return tuple(corners)


# Markers after the circle and the square: corners around the middle, in radii.
CORNERS: tuple[tuple[Point, ...], ...] = (
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
    _star((1.5, 0.0), (0.5, 0.5)),
    _star((1.15, 1.15), (0.0, 0.55)),
)


class Style(Look):
    """How a line looks, in SVG."""

    @property
    def css(self) -> str:
        return "ref" if self.index is None else f"s{self.colour}"

    @property
    def dash(self) -> str | None:
        return "1.5 4" if self.index is None else DASHES[(self.index + self.index // len(COLOURS)) % len(DASHES)]

    def marker(self, x: float, y: float) -> str:
        """The path of its marker."""
        shape = 0 if self.index is None else self.index % (2 + len(CORNERS))
        r = RADIUS * 0.6 if self.index is None else RADIUS
        if shape == 0:
            return f"M{_at(x - r, y)}a{_at(r, r)} 0 1 0 {_at(2 * r, 0)}a{_at(r, r)} 0 1 0 {_at(-2 * r, 0)}z"
        if shape == 1:
            return f"M{_at(x - r, y - r)}h{coordinate(2 * r)}v{coordinate(2 * r)}h{coordinate(-2 * r)}z"
        return _path([(x + r * dx, y + r * dy) for dx, dy in CORNERS[shape - 2]], "z")


@dataclass(frozen=True)
class Line:
    """One line of a panel: a cell for each x, None for a gap."""

    name: str
    short: str
    style: Style
    points: tuple[tuple[float, Cell | None], ...]

    def runs(self) -> Iterator[list[tuple[float, Cell]]]:
        """The stretches without a gap."""
        for there, run in itertools.groupby(self.points, key=lambda point: point[1] is not None):
            if there:
                yield [(x, cell) for x, cell in run if cell]


@dataclass
class Panel:
    """One chart: what it shows, and where everything in it stands."""

    key: str  # unique on the page
    title: str
    unit: str
    description: str
    lines: Sequence[Line]
    low: float
    high: float
    size: tuple[float, float]
    trained: int | None = None  # the length to mark
    powers: bool = False  # x is an axis of powers of two, with a tick at every point, else even, with round ticks
    labelled: bool = False
    share: bool = False  # values are shares, written as per cent
    marked: bool = True  # a marker at every point
    bars: bool = False  # intervals as bars side by side, for those that would cover each other as bands
    phone: bool = False  # drawn for a narrow screen in place of a wide one

    def narrow(self) -> Panel:
        """The same for a phone, where letters of a wide panel would shrink to nothing; the legend has the names."""
        return replace(self, key=f"{self.key}-phone", size=PHONE, labelled=False, phone=True)

    def __post_init__(self) -> None:
        self.xs = sorted({x for line in self.lines for x, _ in line.points})
        self.width, self.height = self.size
        marks = ticks(self.low, self.high, 5 if self.height > 250 else 4)
        decimals = places(marks)
        self.marks = [(mark, percent(mark) if self.share else number(mark, decimals)) for mark in marks]
        self.left = max(self._wide(shown) for _, shown in self.marks) + 10
        self.right = self.width - 14
        if self.labelled:
            names = max(width_of(line.short, LARGE) for line in self.lines)
            self.right = self.width - (30 + min(names, 0.4 * self.width))
            self.height = max(self.height, (len(self.lines) + 1) * GAP + 84)
        self.times = self.powers and self.trained is not None  # ticks say multiples of the trained length too
        self.top, self.bottom = 42.0, self.height - (42.0 if self.times else 32.0)

    def x(self, value: float) -> float:
        """Where a length or a step stands, in pixels."""
        low, high, value = (math.log2(x) if self.powers else x for x in (self.xs[0], self.xs[-1], value))
        start, end = self.left + 8, self.right - 8
        return start + ((value - low) / (high - low) if high > low else 0.5) * (end - start)

    def y(self, value: float) -> float:
        """Where a value stands, in pixels."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.bottom + share * (self.top + 6 - self.bottom)

    def y_ticks(self) -> list[tuple[float, str]]:
        """The place and the text of each tick."""
        return [(self.y(mark), shown) for mark, shown in self.marks]

    def x_ticks(self) -> list[tuple[float, str, str]]:
        """The place and the text of each tick that fits, and the multiple of the trained length."""
        marks = self.xs if self.powers else [m for m in ticks(self.xs[0], self.xs[-1], 6) if m >= self.xs[0]]
        times = [ratio(int(m), self.trained) if self.times and self.trained else "" for m in marks]
        found = [(self.x(m), f"{m:.7g}", said) for m, said in zip(marks, times, strict=True)]
        first = [marks.index(self.trained)] if self.trained in marks else []
        widths = [max(self._wide(shown), self._wide(times)) for _, shown, times in found]
        return [found[i] for i in thin([x for x, *_ in found], widths, [*first, 0, len(marks) - 1])]

    def trained_mark(self) -> tuple[float, str] | None:
        """Where the trained length is marked, and which end of the word stands there."""
        if self.trained is None or not self.xs[0] <= self.trained <= self.xs[-1]:
            return None
        x = self.x(self.trained)
        return x, "end" if x > (self.left + self.right) / 2 else "start"

    def _wide(self, shown: str) -> float:
        return width_of(shown, LARGE if self.labelled else FONT)

    # -- the lines -------------------------------------------------------------------------------------------------

    def path(self, line: Line) -> str:
        """The line itself."""
        return "".join(_path([(self.x(x), self.y(cell.mean)) for x, cell in run]) for run in line.runs())

    def intervals(self, index: int) -> Iterator[tuple[str, str]]:
        """The bands and bars of the line at this place among the lines, each as its kind and its path."""
        line = self.lines[index]
        for run in line.runs():
            if line.style.index is None or all(cell.high <= cell.low for _, cell in run):
                continue
            if self.bars or len(run) == 1:  # a band needs two points
                shift = BESIDE * (index - (len(self.lines) - 1) / 2) if self.bars else 0.0
                ends = ([(self.x(x) + shift, self.y(value)) for value in (cell.low, cell.high)] for x, cell in run)
                yield "bar", "".join(map(_path, ends))
            else:
                edge = [(x, cell.high) for x, cell in run] + [(x, cell.low) for x, cell in reversed(run)]
                yield "band", _path([(self.x(x), self.y(value)) for x, value in edge], "z")

    def points(self, line: Line, words: Words) -> Iterator[tuple[float, float, str]]:
        """The place of each marker, and what it says when it is pointed at."""
        shown: Callable[[float], str] = percent if self.share else lambda value: number(value, 3)
        for x, cell in line.points if self.marked else ():
            if cell and self._inside(cell):
                key = "point_interval" if cell.high > cell.low else "point"
                values = {"value": shown(cell.mean), "low": shown(cell.low), "high": shown(cell.high)}
                yield self.x(x), self.y(cell.mean), words(key, name=line.name, length=f"{x:.0f}", **values)

    # -- the names at their ends -----------------------------------------------------------------------------------

    def _ends(self) -> list[tuple[Line, float, float]]:
        """Where each line ends; those that left the panel have no end to name."""
        last = [(line, [point for run in line.runs() for point in run][-1:]) for line in self.lines]
        return [(line, self.x(x), self.y(cell.mean)) for line, end in last for x, cell in end if self._inside(cell)]

    def labels(self) -> Iterator[tuple[Line, str, float, float, str]]:
        """The names at the right: line, tie to its end, place, and as much of the name as fits there."""
        ends = [end for end in self._ends() if end[1] >= self.x(self.xs[-1])]
        edge = self.right + 14
        spots = spread([y for *_, y in ends], GAP, self.top + 4, self.bottom)
        for (line, x, y), spot in zip(ends, spots, strict=True):
            tie = _path([(x + 5, y), (max(x + 5, self.right - 2), y), (edge - 1, spot)])
            yield line, tie, edge, spot, self._cut(line.short)

    def early(self) -> Iterator[tuple[float, float, str]]:
        """The names of lines that end early, beside their ends: a tie to the margin would look like more of them."""
        ends = [end for end in self._ends() if end[1] < self.x(self.xs[-1])]
        for at in sorted({x for _, x, _ in ends}):
            here = [(line.short, y) for line, x, y in ends if x == at]
            spots = spread([y for _, y in here], GAP, self.top, self.bottom)
            yield from ((at, spot, name) for (name, _), spot in zip(here, spots, strict=True))

    def _inside(self, cell: Cell) -> bool:
        return self.low <= cell.mean <= self.high

    def _cut(self, name: str) -> str:
        """The name, shortened to what fits beside the panel; the legend has it in full."""
        room = self.width - self.right - 26
        if width_of(name, LARGE) <= room:
            return name
        widths = itertools.accumulate(width_of(letter, LARGE) for letter in name)
        return name[: sum(width <= room - LARGE for width in widths)].rstrip() + "…"


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About ``wanted`` round numbers within [low, high].

    >>> ticks(0.85, 6.7)
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    """
    span = high - low
    if span <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / wanted))
    found = []
    for step in (size * factor for factor in (1, 2, 2.5, 5, 10)):
        inside = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        found.append([round(i * step, 12) for i in inside])
    return min(found, key=lambda marks: abs(len(marks) - wanted))


def places(marks: Sequence[float]) -> int:
    """How many decimals tell these ticks apart."""
    return next((n for n in range(4) if all(abs(mark - round(mark, n)) < 1e-9 for mark in marks)), 4)


def thin(pixels: Sequence[float], widths: Sequence[float], first: Sequence[int]) -> list[int]:
    """Which of the labels fit side by side, those in ``first`` being tried before the others.

    >>> thin([0, 10, 50], [20, 20, 20], first=[2])
    [0, 2]
    """
    kept: list[int] = []
    for i in dict.fromkeys((*first, *range(len(pixels)))):
        if all(abs(pixels[i] - pixels[j]) >= (widths[i] + widths[j]) / 2 + APART for j in kept):
            kept.append(i)
    return sorted(kept)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels: at least ``gap`` apart, in the same order, as near to the wanted ones as that allows.

    Labels that would overlap form a block around the mean of their wishes; blocks that touch are joined. Where there
    is not room enough between low and high for all, the last ones pass high.

    >>> spread([10, 11, 40], 8, 0, 100)
    [6.5, 14.5, 40.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, list[int]]] = []  # the place of the first label, and the labels

    def settle(members: list[int]) -> float:
        first = sum(wanted[i] - k * gap for k, i in enumerate(members)) / len(members)
        return max(low, min(first, high - (len(members) - 1) * gap))

    for i in order:
        blocks.append((settle([i]), [i]))
        while len(blocks) > 1 and blocks[-2][0] + len(blocks[-2][1]) * gap > blocks[-1][0] - 1e-9:
            members = blocks[-2][1] + blocks[-1][1]
            blocks[-2:] = [(settle(members), members)]
    out = [0.0] * len(wanted)
    for first, members in blocks:
        for k, i in enumerate(members):
            out[i] = first + k * gap
    return out


def width_of(text: str, font: float) -> float:
    """About how wide a text is in a sans-serif font of this size."""
    return font * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.57 for letter in text)
