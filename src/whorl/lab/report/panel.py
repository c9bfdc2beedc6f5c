"""One chart as inline SVG: lines with bands, direct labels at their ends, and the trained length marked.

Nothing depends on colour alone: each line has its own dash and marker too, and a label in ink beside its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from whorl.lab.report.axis import Axis, places, spread, thin, ticks, width_of
from whorl.lab.report.markup import coordinate, element, text
from whorl.lab.report.numbers import number, percent, ratio
from whorl.lab.report.reading import Cell
from whorl.lab.report.style import COLOURS
from whorl.lab.report.words import Words

DASHES = (None, "8 3", "3 3", "9 3 2 3", "14 3", "5 2 1.5 2", "10 2.5 4 2.5")
SHAPES: tuple[Callable[[float, float, float], str], ...] = (
    lambda x, y, r: f"M{_at(x - r, y)}a{_at(r, r)} 0 1 0 {_at(2 * r, 0)}a{_at(r, r)} 0 1 0 {_at(-2 * r, 0)}z",
    lambda x, y, r: f"M{_at(x - r, y - r)}h{coordinate(2 * r)}v{coordinate(2 * r)}h{coordinate(-2 * r)}z",
    lambda x, y, r: _polygon(x, y, (0, -1.3 * r), (1.2 * r, 0.9 * r), (-1.2 * r, 0.9 * r)),
    lambda x, y, r: _polygon(x, y, (0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)),
    lambda x, y, r: _polygon(x, y, (0, 1.3 * r), (1.2 * r, -0.9 * r), (-1.2 * r, -0.9 * r)),
    lambda x, y, r: _cross(x, y, (1.5 * r, 0.0), (0.5 * r, 0.5 * r)),
    lambda x, y, r: _cross(x, y, (1.15 * r, 1.15 * r), (0.0, 0.55 * r)),
)
RADIUS = 3.0
FONT, LARGE = 12.0, 15.0  # the size of letters on a screen, and on paper and phones, where panels are drawn smaller
GAP = 17.0  # between direct labels
BESIDE = 2.5  # between bars at one length


def _at(x: float, y: float) -> str:
    return f"{coordinate(x)} {coordinate(y)}"


def _polygon(x: float, y: float, *corners: tuple[float, float]) -> str:
    return "M" + "L".join(_at(x + dx, y + dy) for dx, dy in corners) + "z"


def _cross(x: float, y: float, tip: tuple[float, float], notch: tuple[float, float]) -> str:
    """A star of four tips: the tip and the notch beside it, turned by quarters."""
    corners = []
    for _ in range(4):
        corners += [tip, notch]
        tip, notch = (-tip[1], tip[0]), (-notch[1], notch[0])
    return _polygon(x, y, *corners)


@dataclass(frozen=True)
class Style:
    """How a line looks: the number that gives its dash and marker, or None for the grey reference, and its colour."""

    index: int | None
    colour: int = 0
    hollow: bool = False

    @property
    def css(self) -> str:
        return "ref" if self.index is None else f"s{self.colour}"

    @property
    def dash(self) -> str | None:
        return "1.5 4" if self.index is None else DASHES[(self.index + self.index // COLOURS) % len(DASHES)]

    def marker(self, x: float, y: float, *children: str) -> str:
        if self.index is None:
            return element("path", *children, d=SHAPES[0](x, y, RADIUS * 0.6), class_=f"mark {self.css}")
        hollow = " hollow" if self.hollow else ""
        shape = SHAPES[self.index % len(SHAPES)]
        return element("path", *children, d=shape(x, y, RADIUS), class_=f"mark {self.css}{hollow}")

    def swatch(self) -> str:
        """The line and its marker, small, for legends and tables."""
        line = element("path", d="M1 6H31", class_=f"line {self.css}", stroke_dasharray=self.dash)
        return element(
            "svg", line, self.marker(16, 6), class_="swatch", viewBox="0 0 32 12", aria_hidden="true", focusable="false"
        )


@dataclass(frozen=True)
class Line:
    """One line of a panel: a cell for each x, None for a gap."""

    name: str
    short: str
    style: Style
    points: tuple[tuple[float, Cell | None], ...]

    def runs(self) -> Iterator[list[tuple[float, Cell]]]:
        """The stretches without a gap."""
        run: list[tuple[float, Cell]] = []
        for x, cell in self.points:
            if cell is not None:
                run.append((x, cell))
            elif run:
                yield run
                run = []
        if run:
            yield run


@dataclass(frozen=True)
class Panel:
    """Everything one chart is drawn from."""

    key: str  # unique on the page
    title: str
    unit: str
    description: str
    lines: tuple[Line, ...]
    low: float
    high: float
    width: float
    height: float
    trained: int | None = None  # the length to mark; also makes x an axis of lengths in powers of two
    labelled: bool = False
    share: bool = False  # values are shares, written as per cent
    marked: bool = True  # a marker at every point
    bars: bool = False  # intervals as bars side by side, for those that would cover each other as bands

    def draw(self, words: Words) -> str:
        """The panel as an ``<svg>``."""
        return _Drawing(self, words).svg()


class _Drawing:
    """A panel with its axes in place."""

    def __init__(self, panel: Panel, words: Words) -> None:
        self.panel, self.words = panel, words
        self.marks = ticks(panel.low, panel.high, 5 if panel.height > 250 else 4)
        decimals = places(self.marks)
        self.mark_texts = [percent(m) if panel.share else number(m, decimals) for m in self.marks]
        letters = LARGE if panel.labelled else FONT
        left = max(width_of(mark, letters) for mark in self.mark_texts) + 10
        right = 14.0
        if panel.labelled:
            right = 30 + min(max((width_of(line.short, LARGE) for line in panel.lines), default=0), 0.4 * panel.width)
            room = (len(panel.lines) + 1) * GAP + 84
            self.height = max(panel.height, room)
        else:
            self.height = panel.height
        self.top, self.bottom = 42.0, self.height - (42.0 if panel.trained else 32.0)
        self.left, self.right = left, panel.width - right
        xs = sorted({x for line in panel.lines for x, _ in line.points})
        self.xs = xs
        self.x = Axis(xs[0], xs[-1], left + 8, self.right - 8, log=panel.trained is not None)
        self.y = Axis(panel.low, panel.high, self.bottom, self.top + 6)

    def svg(self) -> str:
        panel = self.panel
        box = f"0 0 {coordinate(panel.width)} {coordinate(self.height)}"
        clip = element(
            "clipPath",
            element("rect", x=self.left, y=self.top, width=self.right - self.left, height=self.bottom - self.top),
            id=f"{panel.key}-clip",
        )
        middle = (len(panel.lines) - 1) / 2
        series = "".join(self._series(line, BESIDE * (i - middle)) for i, line in enumerate(panel.lines))
        return element(
            "svg",
            element("title", text(f"{panel.title}, {panel.unit}"), id=f"{panel.key}-title"),
            element("desc", text(panel.description), id=f"{panel.key}-desc"),
            element("defs", clip),
            self._heading(),
            self._x_axis(),
            self._y_axis(),
            self._trained(),
            element("g", series, clip_path=f"url(#{panel.key}-clip)"),
            self._labels() if panel.labelled else "",
            class_="panel wide" if panel.labelled else "panel",
            viewBox=box,
            role="img",
            aria_labelledby=f"{panel.key}-title {panel.key}-desc",
        )

    def _heading(self) -> str:
        unit = element("tspan", text(f" {self.panel.unit}"), class_="unit")
        return element("text", text(self.panel.title), unit, x=2.0, y=16.0, class_="name")

    def _x_axis(self) -> str:
        lengths = self.panel.trained is not None
        marks = self.xs if lengths else [mark for mark in ticks(self.xs[0], self.xs[-1], 6) if mark >= self.xs[0]]
        texts = [f"{mark:.0f}" for mark in marks]
        times = [ratio(int(mark), self.panel.trained) if self.panel.trained else "" for mark in marks]
        letters = LARGE if self.panel.labelled else FONT
        first = [0, len(marks) - 1]
        if lengths and self.panel.trained in marks:
            first.insert(0, marks.index(self.panel.trained))
        pixels = [self.x(mark) for mark in marks]
        parts = []
        widths = [max(width_of(a, letters), width_of(b, letters)) for a, b in zip(texts, times, strict=True)]
        for i in thin(pixels, widths, first):
            parts.append(element("line", x1=pixels[i], x2=pixels[i], y1=self.bottom, y2=self.bottom + 4))
            parts.append(element("text", text(texts[i]), x=pixels[i], y=self.bottom + 17, text_anchor="middle"))
            if lengths:
                place = {"x": pixels[i], "y": self.bottom + 33, "text_anchor": "middle"}
                parts.append(element("text", text(times[i]), class_="times", **place))
        frame = element("line", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        return element("g", frame, *parts, class_="axis x")

    def _y_axis(self) -> str:
        parts = []
        for mark, shown in zip(self.marks, self.mark_texts, strict=True):
            y = self.y(mark)
            parts.append(element("line", x1=self.left, x2=self.right, y1=y, y2=y, class_="grid"))
            parts.append(element("text", text(shown), x=self.left - 5, y=y, dy="0.35em", text_anchor="end"))
        return element("g", *parts, class_="axis y")

    def _trained(self) -> str:
        trained = self.panel.trained
        if trained is None or not self.xs[0] <= trained <= self.xs[-1]:
            return ""
        x = self.x(trained)
        near_end = x > (self.left + self.right) / 2
        word = element(
            "text",
            text(self.words("trained_mark")),
            x=x - 4 if near_end else x + 4,
            y=self.top - 5,
            text_anchor="end" if near_end else "start",
        )
        return element("g", element("line", x1=x, x2=x, y1=self.top - 14, y2=self.bottom), word, class_="trained")

    def _series(self, line: Line, beside: float) -> str:
        parts = [self._interval(run, line.style, beside) for run in line.runs()]
        path = "".join("M" + "L".join(_at(self.x(x), self.y(c.mean)) for x, c in run) for run in line.runs())
        parts.append(element("path", d=path, class_=f"line {line.style.css}", stroke_dasharray=line.style.dash))
        if self.panel.marked:
            parts += [self._point(line, x, cell) for run in line.runs() for x, cell in run if self._inside(cell.mean)]
        return element("g", element("title", text(line.name)), *parts, class_="series")

    def _inside(self, value: float) -> bool:
        return self.panel.low <= value <= self.panel.high

    def _interval(self, run: Sequence[tuple[float, Cell]], style: Style, beside: float) -> str:
        if style.index is None or all(cell.high <= cell.low for _, cell in run):
            return ""
        if self.panel.bars or len(run) == 1:  # a band needs two points
            shift = beside if self.panel.bars else 0.0
            ends = (
                f"M{_at(self.x(x) + shift, self.y(cell.low))}L{_at(self.x(x) + shift, self.y(cell.high))}"
                for x, cell in run
            )
            return element("path", d="".join(ends), class_=f"bar {style.css}")
        edge = [(x, cell.high) for x, cell in run] + [(x, cell.low) for x, cell in reversed(run)]
        return element(
            "path", d="M" + "L".join(_at(self.x(x), self.y(v)) for x, v in edge) + "z", class_=f"band {style.css}"
        )

    def _point(self, line: Line, x: float, cell: Cell) -> str:
        shown: Callable[[float], str] = percent if self.panel.share else lambda value: number(value, 3)
        fields = {"name": line.name, "length": f"{x:.0f}", "value": shown(cell.mean)}
        if cell.high > cell.low:
            said = self.words("point_interval", low=shown(cell.low), high=shown(cell.high), **fields)
        else:
            said = self.words("point", **fields)
        return line.style.marker(self.x(x), self.y(cell.mean), element("title", text(said)))

    def _labels(self) -> str:
        """The names at the right, each tied to the end of its line; none for lines that left the panel.

        A line that ends early has its name beside its end, where a tie to the margin would look like more of it.
        """
        found = [(line, *last) for line in self.panel.lines if (last := self._end(line))]
        ends = [end for end in found if end[1] >= self.x(self.xs[-1])]
        early = [end for end in found if end[1] < self.x(self.xs[-1])]
        places = spread([y for *_, y in ends], GAP, self.top + 4, self.bottom)
        edge = self.right + 14
        parts = []
        for (line, x, y), place in zip(ends, places, strict=True):
            tie = f"M{_at(x + 5, y)}L{_at(max(x + 5, self.right - 2), y)}L{_at(edge - 1, place)}"
            parts.append(element("path", d=tie, class_=f"tie {line.style.css}"))
            parts.append(line.style.marker(edge + 3, place))
            parts.append(element("text", text(self._cut(line.short)), x=edge + 10, y=place, dy="0.35em"))
        inside = []
        for x in sorted({x for _, x, _ in early}):
            here = [(line, y) for line, at, y in early if at == x]
            for (line, _), place in zip(here, spread([y for _, y in here], GAP, self.top, self.bottom), strict=True):
                inside.append(element("text", text(line.short), x=x + 8, y=place, dy="-0.2em"))
        return element("g", *parts, class_="labels") + element("g", *inside, class_="inside")

    def _end(self, line: Line) -> tuple[float, float] | None:
        shown = [(x, cell) for x, cell in line.points if cell is not None]
        if not shown or not self._inside(shown[-1][1].mean):
            return None
        x, cell = shown[-1]
        return self.x(x), self.y(cell.mean)

    def _cut(self, name: str) -> str:
        """The name, shortened to what fits beside the panel; the legend has it in full."""
        room = self.panel.width - self.right - 26
        if width_of(name, LARGE) <= room:
            return name
        widths = itertools.accumulate(width_of(letter, LARGE) for letter in name)
        return name[: sum(width <= room - LARGE for width in widths)].rstrip() + "…"
