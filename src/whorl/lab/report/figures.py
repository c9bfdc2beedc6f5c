"""The figures of a report: which lines go into which panels, and over which range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whorl.lab.report.charts import Line, Panel, Style
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import Words
from whorl.plot.style import Look, looks
from whorl.result_rows import PROTOCOLS, RECALL, TASK, WHOLE, Cell, Row, finite

BIG = (510.0, 350.0)
BROAD = (760.0, 380.0)  # where one big panel stands alone
SMALL = (336.0, 224.0)
CLOSE = 3.0  # a close-up is drawn where the whole range is more than this many times that of the lines near the best
POINTS = 120  # of a learning curve
SPAN = 0.4  # the least range of an axis of losses
CLOSEST = 0.14  # and that of a close-up


@dataclass(frozen=True)
class Figure:
    """Panels under one legend: one or two big ones, small ones below."""

    title: str  # empty where the heading above it and the panels say it all
    rows: Sequence[Row]
    big: Sequence[Panel]
    small: Sequence[Panel]
    caption: Sequence[str]


class Figures:
    """The figures of one comparison in one language, and the style each row has in all of them."""

    def __init__(self, findings: Findings, words: Words) -> None:
        self.findings, self.result, self.words = findings, findings.result, words
        self._looks = looks((row.label, row.variant) for row in self.result.rows)

    def style(self, row: Row) -> Style:
        """The row's colour, dash and marker; a window is always the grey reference."""
        look = self._looks.get((row.label, row.variant), Look(None))
        return Style(look.index, look.colour, look.hollow)

    def losses(self) -> Iterator[Figure]:
        """Loss by length for the encodings as trained, then for the repairs of each model that has some."""
        result, words = self.result, self.words
        rows = [row for row in result.text_rows if row.has(*PROTOCOLS)]
        trained = [row for row in rows if row.as_trained]
        if trained:
            yield self._loss("loss", words("figure_encodings"), trained, result.window)
        for i, label in enumerate(dict.fromkeys(row.label for row in rows if not row.as_trained)):
            own = [row for row in rows if row.label == label]
            title = words("figure_repairs", name=words.name(label))
            yield self._loss(f"repair{i}", title, own, result.window_of(own[0]))

    def task(self, name: str) -> Figure:
        """Exact match and token accuracy of one task by length."""
        rows = [row for row in self.result.rows if row.task == name and row.has(*TASK)]
        main, *others = [measure for measure in TASK if any(row.has(measure) for row in rows)]
        key = f"task{[task.name for task in self.findings.tasks].index(name)}"
        big = self._panel(f"{key}-main", main, rows, size=BROAD)
        small = [self._panel(f"{key}-{i}", measure, rows) for i, measure in enumerate(others)]
        return Figure(self.words("task_title", task=name), rows, [big], small, [self.words("task_caption")])

    def curves(self) -> Iterator[Figure]:
        """Training loss by step for every model that was trained, and that on held-out text where it was taken."""
        bits = bool(self.result.measured(PROTOCOLS))
        factor = 1 / math.log(2) if bits else 1.0
        trained = [self._line(row, _thinned(row.curve, factor)) for row in self._models() if row.curve]
        held = [self._line(row, _thinned(row.validation, 1.0)) for row in self._models() if row.validation]
        shown = [("curves", "learning_title", trained), ("validation", "validation_title", held)]
        unit = "bits_per_byte" if bits else "nats_per_token"
        size = BIG if trained and held else BROAD
        big = [
            self._plain(key, self.words(title), unit, "curve_desc", lines, cut=0.05, size=size)
            for key, title, lines in shown
            if lines
        ]
        if big:
            rows = [row for row in self._models() if row.curve or row.validation]
            yield Figure("", rows, big, [], [self.words("learning_caption")])

    def positions(self) -> Iterator[Figure]:
        """Loss by position in the longest text, for every model as trained."""
        rows = [row for row in self._models() if row.by_position]
        if rows:
            middles = ([((start + stop) / 2, _exact(bits)) for start, stop, bits in row.by_position] for row in rows)
            lines = [self._line(row, points) for row, points in zip(rows, middles, strict=True)]
            title, trained = self.words("position_heading"), self.result.trained
            panel = self._plain("position", title, "bits_per_byte", "position_desc", lines, trained=trained)
            longest = max(row.by_position[-1][1] for row in rows)
            caption = self.words("position_caption", longest=f"{longest:.0f}", trained=trained)
            yield Figure("", rows, [panel], [], [caption])

    def attention(self) -> Iterator[Figure]:
        """Attention by distance of one head of every model."""
        rows = [row for row in self._models() if row.attention]
        if rows:
            lines = [self._line(row, [(x, _exact(weight)) for x, weight in row.attention if x > 0]) for row in rows]
            title = self.words("attention_heading")
            panel = self._plain("attention", title, "weight", "attention_desc", lines, least=0.0, powers=True)
            heads = []
            for row in rows:
                layer, head = (*row.head, "?", "?")[:2]
                heads.append(self.words("attention_head", name=self.words.name(row.label), layer=layer, head=head))
            yield Figure("", rows, [panel], [], [self.words("attention_caption", heads=heads)])

    def factors(self) -> Iterator[Figure]:
        """Loss at the trained length by each factor of a sweep that is a number, a line for all that differs else."""
        measure, length = self.findings.measure, self.findings.reference
        for place, factor in enumerate(self.result.factors):
            found: dict[str, list[tuple[float, Cell]]] = {}
            rows: dict[str, Row] = {}
            for row in self._models():
                value = finite(row.settings.get(factor))
                cell = row.cells.get(measure or "", {}).get(length)
                if value is not None and value > 0 and cell:
                    rest = [f"{key}={other}" for key, other in row.settings.items() if key != factor]
                    name = " ".join([self.words.name(str(row.encoding.get("name", row.label))), *rest])
                    found.setdefault(name, []).append((value, cell))
                    rows.setdefault(name, row)
            lines = [self._line(rows[name], sorted(points), name) for name, points in found.items() if len(points) > 1]
            if lines:
                title = self.words("factor_title", factor=factor)
                key, unit = f"factor{place}", "bits_per_byte"
                panel = self._plain(key, title, unit, "factor_desc", lines, factor=factor, powers=True, marked=True)
                caption = self.words("factor_caption", factor=factor)
                yield Figure(title, [rows[line.name] for line in lines], [panel], [], [caption])

    def _models(self) -> list[Row]:
        return [row for row in self.result.rows if row.as_trained]

    def _line(self, row: Row, points: Sequence[tuple[float, Cell]], name: str = "") -> Line:
        name = name or self.words.name(row.label)
        return Line(name, name, self.style(row), tuple(points))

    def _plain(
        self,
        key: str,
        title: str,
        unit: str,
        said: str,
        lines: Sequence[Line],
        *,
        factor: str = "",
        cut: float = 0.0,
        least: float = SPAN,
        trained: int | None = None,
        powers: bool = False,
        marked: bool = False,
        size: tuple[float, float] = BROAD,
    ) -> Panel:
        """A panel of lines without gaps; ``cut`` is the share of it whose values may leave the frame."""
        last = max(x for line in lines for x, _ in line.points)
        low, high = _range([cell for line in lines for x, cell in line.points if cell and x >= cut * last], least)
        names = [line.name for line in lines]
        return Panel(
            key=key,
            title=title,
            unit=self.words(unit),
            description=self.words(said, last=f"{last:.0f}", factor=factor, names=names),
            lines=lines,
            low=low,
            high=high,
            size=size,
            trained=trained,
            powers=powers,
            labelled=True,
            marked=marked,
        )

    def _loss(self, key: str, title: str, rows: Sequence[Row], window: Row | None) -> Figure:
        words, bars = self.words, self.result.interval == "documents"
        shown = [*rows, *([window] if window else [])]
        dull = {recall.measure for recall in self.findings.recalls if not recall.above_chance}
        measures = [measure for measure in (*PROTOCOLS, *RECALL) if measure not in dull]
        main, *others = [measure for measure in measures if any(row.has(measure) for row in shown)]
        interval = words(f"interval_{self.result.interval}")
        caption = [
            words("figure_caption", trained=self.result.trained),
            words("figure_bars" if bars else "figure_bands", interval=interval),
        ]
        if bars:
            caption.append(words("figure_caption_documents"))
        close = self._close_range(main, shown)
        big = [self._panel(f"{key}-main", main, shown, size=BIG if close else BROAD)]
        if close:
            big.append(self._panel(f"{key}-close", main, shown, size=BIG, close=close))
            caption.append(words("figure_caption_close"))
        if window:
            caption.append(words("figure_caption_window", name=words.name(window.label)))
        small = [self._panel(f"{key}-{i}", measure, shown) for i, measure in enumerate(others)]
        return Figure(title, shown, big, small, caption)

    def _close_range(self, measure: str, rows: Sequence[Row]) -> tuple[float, float] | None:
        """The range of the lines that do not break, from the trained length on, where others squeeze it; else None."""
        start = self.findings.reference
        cells = [[cell for at, cell in sorted(row.cells.get(measure, {}).items()) if at >= start] for row in rows]
        calm = [each for each in cells if len(each) > 1 and max(cell.mean for cell in each) - each[0].mean <= WHOLE]
        near = [cell for each in calm for cell in each]
        if len(calm) < 2:
            return None
        low, high = min(cell.mean for cell in near), max(cell.mean for cell in near)
        if max(cell.mean for each in cells for cell in each) - low <= CLOSE * (high - low):
            return None
        return _range(near, CLOSEST)

    def _panel(
        self,
        key: str,
        measure: str,
        rows: Sequence[Row],
        *,
        size: tuple[float, float] = SMALL,
        close: tuple[float, float] | None = None,
    ) -> Panel:
        words, share = self.words, measure not in PROTOCOLS
        held = [row for row in rows if row.has(measure)]
        first = self.findings.reference if close else 0  # a close-up begins at the trained length
        lengths = sorted({length for row in held for length in row.cells[measure] if length >= first})
        lines = tuple(
            Line(
                name=words.name(row.label, row.variant),
                short=self._short(row, rows),
                style=self.style(row),
                points=tuple((length, row.cells[measure].get(length)) for length in lengths),
            )
            for row in held
        )
        cells = [cell for row in held for cell in row.cells[measure].values()]
        low, high = close or ((0.0, 1.0) if share else _range(cells, SPAN))
        name, names = words(measure), [line.name for line in lines]
        return Panel(
            key=key,
            title=f"{name}, {words('close_up')}" if close else name,
            unit=words("share_right" if share else "bits_per_byte"),
            description=words("panel_desc", measure=name, first=lengths[0], last=lengths[-1], names=names),
            lines=lines,
            low=low,
            high=high,
            size=size,
            trained=self.result.trained,
            powers=True,
            labelled=size != SMALL,
            share=share,
            bars=self.result.interval == "documents",
        )

    def _short(self, row: Row, rows: Sequence[Row]) -> str:
        """The name for a direct label: without the model's where all lines belong to one."""
        if row.is_window:
            return self.words.variant(row.variant)
        alone = len({other.label for other in rows if not other.is_window}) == 1
        return self.words.variant(row.variant) if alone and not row.as_trained else self.words.name(row.label)


def _range(cells: Sequence[Cell], least: float) -> tuple[float, float]:
    """The range of an axis: all means, most of the intervals, and never so narrow that noise looks like news."""
    low, high = min(cell.mean for cell in cells), max(cell.mean for cell in cells)
    middle, span = (low + high) / 2, max(high - low, least)
    low, high = middle - span / 2, middle + span / 2
    room = span / 2  # an interval wider than this runs out of the panel
    low = max(min(low, *(cell.low for cell in cells)), low - room)
    high = min(max(high, *(cell.high for cell in cells)), high + room)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _thinned(curve: Sequence[tuple[float, float]], factor: float) -> list[tuple[float, Cell]]:
    """At most POINTS points, each the mean of its neighbours, so that thinning does not pick the noise."""
    size = -(-len(curve) // POINTS)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(group[-1][0], _exact(factor * sum(loss for _, loss in group) / len(group))) for group in groups]


def _exact(value: float) -> Cell:
    """A value without an interval."""
    return Cell(value, value, value, 1)
