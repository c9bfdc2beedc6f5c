"""The figures of a report: which lines go into which panels, and over which range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from whorl.lab.report.markup import element, text
from whorl.lab.report.panel import Line, Panel, Style
from whorl.lab.report.reading import AS_TRAINED, PROTOCOLS, RECALL, TASK, Cell, Reading, Row
from whorl.lab.report.style import COLOURS
from whorl.lab.report.verdict import BREAK, Findings
from whorl.lab.report.words import Words

BIG = (510.0, 350.0)
BROAD = (760.0, 380.0)  # where one big panel stands alone
SMALL = (336.0, 224.0)
CLOSE = 3.0  # a close-up is drawn where the whole range is more than this many times that of the lines near the best
POINTS = 120  # of a learning curve
SPAN = 0.4  # the least range of an axis of losses


class Figures:
    """The figures of one comparison in one language, and the style each row has in all of them."""

    def __init__(self, reading: Reading, findings: Findings, words: Words) -> None:
        self.reading, self.findings, self.words = reading, findings, words
        ordered = sorted((row for row in reading.rows if not row.is_window), key=lambda row: not row.as_trained)
        self._styles: dict[tuple[str, str], Style] = {}
        repairs: dict[str, int] = {}
        for key in dict.fromkeys((row.label, row.variant) for row in ordered):
            i = len(self._styles)
            base = self._styles.get((key[0], AS_TRAINED))
            if base is None:
                self._styles[key] = Style(i, colour=i % COLOURS)
                continue
            step = repairs[key[0]] = repairs.get(key[0], 0) + 1  # every colour but that of the model it repairs
            colour = (base.colour + 1 + (step - 1) % (COLOURS - 1)) % COLOURS
            self._styles[key] = Style(i, colour=colour, hollow=True)

    def style(self, row: Row) -> Style:
        """The row's colour, dash and marker; a window is always the grey reference."""
        return self._styles.get((row.label, row.variant), Style(None))

    # -- loss by length --------------------------------------------------------------------------------------------

    def losses(self) -> str:
        """Loss by length for the encodings as trained, then for the repairs of each model that has some."""
        reading, words = self.reading, self.words
        rows = [row for row in reading.text_rows if row.has(*PROTOCOLS)]
        trained = [row for row in rows if row.as_trained]
        parts = []
        if trained:
            parts.append(self._loss("loss", words("figure_encodings"), trained, reading.window))
        for i, label in enumerate(dict.fromkeys(row.label for row in rows if not row.as_trained)):
            own = [row for row in rows if row.label == label]
            window = next((row for row in reading.windows if row.label == label), reading.window)
            title = words("figure_repairs", name=words.name(label))
            parts.append(self._loss(f"repair{i}", title, own, window))
        return "".join(parts)

    def _loss(self, key: str, title: str, rows: Sequence[Row], window: Row | None) -> str:
        shown = [*rows, *([window] if window else [])]
        main, *others = [m for m in PROTOCOLS if any(row.has(m) for row in shown)]
        close = self._close_range(main, shown)
        size = BIG if close else BROAD
        big = [self._panel(f"{key}-main", main, shown, size=size, labelled=True)]
        if close:
            name = f"{self.words(main)}, {self.words('close_up')}"
            big.append(self._panel(f"{key}-close", main, shown, size=size, labelled=True, span=close, title=name))
        recall = [m for m in RECALL if any(row.has(m) for row in shown)]
        small = [self._panel(f"{key}-{i}", measure, shown) for i, measure in enumerate((*others, *recall))]
        interval = self.words(f"interval_{self.reading.interval}")
        bars = self.reading.interval == "documents"
        caption = [
            self.words("figure_caption", trained=self.reading.trained),
            self.words("figure_bars" if bars else "figure_bands", interval=interval),
        ]
        if bars:
            caption.append(self.words("figure_caption_documents"))
        if close:
            caption.append(self.words("figure_caption_close"))
        if window:
            caption.append(self.words("figure_caption_window", name=self.words.name(window.label)))
        return self._figure(title, shown, (("pair" if close else "one", big), ("small", small)), caption)

    def _close_range(self, measure: str, rows: Iterable[Row]) -> tuple[float, float] | None:
        """The range of the lines that do not break, from the trained length on, where others squeeze it; else None."""
        start = self.findings.reference
        cells = [[cell for at, cell in sorted(row.cells.get(measure, {}).items()) if at >= start] for row in rows]
        calm = [each for each in cells if len(each) > 1 and max(cell.mean for cell in each) - each[0].mean <= BREAK]
        near = [cell for each in calm for cell in each]
        if len(calm) < 2:
            return None
        low, high = min(cell.mean for cell in near), max(cell.mean for cell in near)
        if max(cell.mean for each in cells for cell in each) - low <= CLOSE * (high - low):
            return None
        return _range(near, max(2 * self.reading.noise, 0.1))

    def _panel(
        self,
        key: str,
        measure: str,
        rows: Sequence[Row],
        *,
        size: tuple[float, float] = SMALL,
        labelled: bool = False,
        span: tuple[float, float] | None = None,
        title: str | None = None,
    ) -> str:
        share = measure not in PROTOCOLS
        held = [row for row in rows if row.has(measure)]
        first = self.findings.reference if span else 0  # a close-up begins at the trained length
        lengths = sorted({length for row in held for length in row.cells[measure] if length >= first})
        lines = tuple(
            Line(
                name=self.words.name(row.label, row.variant),
                short=self._short(row, rows),
                style=self.style(row),
                points=tuple((length, row.cells[measure].get(length)) for length in lengths),
            )
            for row in held
        )
        cells = [cell for row in held for cell in row.cells[measure].values()]
        low, high = span or ((0.0, 1.0) if share else _range(cells, SPAN))
        names = self.words.list([line.name for line in lines])
        return Panel(
            key=key,
            title=title or self.words(measure),
            unit=self.words("share_right" if share else "bits_per_byte"),
            description=self.words(
                "panel_desc", measure=self.words(measure), first=lengths[0], last=lengths[-1], names=names
            ),
            lines=lines,
            low=low,
            high=high,
            width=size[0],
            height=size[1],
            trained=self.reading.trained,
            labelled=labelled,
            share=share,
            bars=self.reading.interval == "documents",
        ).draw(self.words)

    def _short(self, row: Row, rows: Sequence[Row]) -> str:
        """The name for a direct label: without the model's where all lines belong to one."""
        if row.is_window:
            return self.words.variant(row.variant)
        alone = len({other.label for other in rows if not other.is_window}) == 1
        return self.words.variant(row.variant) if alone and not row.as_trained else self.words.name(row.label)

    # -- learning curves and tasks ---------------------------------------------------------------------------------

    def curves(self) -> str:
        """Training loss by step for every model that was trained."""
        rows = [row for row in self.reading.rows if row.curve and row.as_trained]
        if not rows:
            return ""
        bits = bool(self.reading.measured(PROTOCOLS))
        factor = 1 / math.log(2) if bits else 1.0
        lines = tuple(
            Line(
                name=self.words.name(row.label),
                short=self.words.name(row.label),
                style=self.style(row),
                points=tuple((step, _plain(loss * factor)) for step, loss in _thinned(row.curve)),
            )
            for row in rows
        )
        last = max(step for row in rows for step, _ in row.curve)
        shown = [cell for line in lines for step, cell in line.points if cell and step >= 0.05 * last]
        low, high = _range(shown, SPAN)
        panel = Panel(
            key="curves",
            title=self.words("learning_title"),
            unit=self.words("bits_per_byte" if bits else "nats_per_token"),
            description=self.words(
                "curve_desc", last=f"{last:.0f}", names=self.words.list([line.name for line in lines])
            ),
            lines=lines,
            low=low,
            high=high,
            width=BROAD[0],
            height=BROAD[1],
            labelled=True,
            marked=False,
        )
        drawn = (("one", [panel.draw(self.words)]),)
        return self._figure(self.words("learning_title"), rows, drawn, [self.words("learning_caption")])

    def task(self, name: str) -> str:
        """Exact match and token accuracy of one task by length."""
        rows = [row for row in self.reading.rows if row.task == name and row.has(*TASK)]
        main, *others = [measure for measure in TASK if any(row.has(measure) for row in rows)]
        key = f"task{[task.name for task in self.findings.tasks].index(name)}"
        big = self._panel(f"{key}-main", main, rows, size=BROAD, labelled=True)
        small = [self._panel(f"{key}-{i}", measure, rows) for i, measure in enumerate(others)]
        caption = [self.words("task_caption")]
        return self._figure(self.words("task_title", task=name), rows, (("one", [big]), ("small", small)), caption)

    # -- around the panels -----------------------------------------------------------------------------------------

    def _figure(
        self, title: str, rows: Sequence[Row], groups: Iterable[tuple[str, Sequence[str]]], caption: Sequence[str]
    ) -> str:
        entries = [
            element("li", self.style(row).swatch(), text(self.words.name(row.label, row.variant))) for row in rows
        ]
        first, *rest = [element("div", *panels, class_=f"panels {kind}") for kind, panels in groups if panels]
        return element(
            "figure",
            element("div", element("h3", text(title)), element("ul", *entries, class_="legend"), first, class_="top"),
            *rest,
            element("figcaption", text(self.words("space").join(caption))),
        )


def _range(cells: Sequence[Cell], least: float) -> tuple[float, float]:
    """The range of an axis: all means, most of the intervals, and never so narrow that noise looks like news."""
    low, high = min(cell.mean for cell in cells), max(cell.mean for cell in cells)
    middle, span = (low + high) / 2, max(high - low, least)
    low, high = middle - span / 2, middle + span / 2
    room = span / 2  # an interval wider than this runs out of the panel
    low = max(min(low, *(cell.low for cell in cells)), low - room)
    high = min(max(high, *(cell.high for cell in cells)), high + room)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _plain(value: float) -> Cell:
    return Cell(value, value, value, 1)


def _thinned(curve: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most POINTS points, each the mean of its neighbours, so that thinning does not pick the noise."""
    size = -(-len(curve) // POINTS)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]
