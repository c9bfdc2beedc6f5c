"""The tables of a report: a row for each model, a column for each length, the best bold and its ties marked."""

from __future__ import annotations

from collections.abc import Sequence

from whorl.lab.report.figures import Figures
from whorl.lab.report.markup import element, text
from whorl.lab.report.numbers import number, plain, ratio
from whorl.lab.report.reading import PROTOCOLS, Cell, Reading, Row, lengths_of
from whorl.lab.report.verdict import RECALLED, rank
from whorl.lab.report.words import Words

FOOTNOTES = "abcdefghijklmnopqrstuvwxyz"


class Tables:
    """The tables of one comparison in one language."""

    def __init__(self, reading: Reading, figures: Figures, words: Words) -> None:
        self.reading, self.figures, self.words = reading, figures, words

    def losses(self) -> str:
        """Bits per byte, a table for each protocol."""
        return "".join(self._text(measure, "table_loss") for measure in self.reading.measured(PROTOCOLS))

    def recall(self, measures: Sequence[str]) -> str:
        """Shares of text found again, a table for each score."""
        return "".join(self._text(measure, "table_score") for measure in self.reading.measured(measures))

    def task(self, name: str, measures: Sequence[str]) -> str:
        """A task's scores, a table for each."""
        rows = [row for row in self.reading.rows if row.task == name]
        return "".join(
            self._table(measure, rows, self.words("table_task", task=name, measure=self.words(measure)))
            for measure in measures
            if any(row.has(measure) for row in rows)
        )

    def _text(self, measure: str, caption: str) -> str:
        rows = [row for row in self.reading.text_rows if row.has(measure)]
        rows.sort(key=lambda row: not row.as_trained)
        window = self.reading.window
        if window and window.has(measure):
            rows.append(window)
        name = self.words(measure)
        return self._table(measure, rows, self.words(caption, measure=name[0].upper() + name[1:]))

    def _table(self, measure: str, rows: Sequence[Row], caption: str) -> str:
        lengths = lengths_of(rows, [measure])
        notes = _Footnotes(self.words)
        share = measure not in PROTOCOLS
        noise = RECALLED if share else self.reading.noise
        ranks = {n: rank([row for row in rows if not row.is_window], measure, n, noise, highest=share) for n in lengths}
        head = [element("th", text(self.words("encoding")), scope="col")]
        for n in lengths:
            times = element("small", text(ratio(n, self.reading.trained)))
            trained = "trained" if n == self.reading.trained else None
            head.append(element("th", text(f"{n} "), times, scope="col", class_=trained))
        body = []
        for row in rows:
            cells = [element("th", self.figures.style(row).swatch(), text(self._name(row)), scope="row")]
            for n in lengths:
                won = ranks[n]
                best = won is not None and row is won.best
                ties = won is not None and any(row is other for other in won.ties)
                cells.append(self._cell(row, measure, n, best, ties, notes))
            body.append(element("tr", *cells, class_="window" if row.is_window else None))
        said = [
            self.words(
                "bold_high" if share else "bold_low",
                noise=plain(100 * noise if share else noise),
                interval=self.words(f"interval_{self.reading.interval}"),
            )
        ]
        if any(row.is_window for row in rows):
            said.append(self.words("window_out"))
        under = element("p", text(self.words("space").join(said)), *notes.list(), class_="under")
        table = element(
            "table",
            element("caption", text(caption)),
            element("thead", element("tr", *head)),
            element("tbody", *body),
        )
        return element("div", element("div", table, class_="scroll", tabindex="0"), under, class_="table")

    def _name(self, row: Row) -> str:
        return self.words.name(row.label, row.variant)

    def _cell(self, row: Row, measure: str, length: int, best: bool, ties: bool, notes: _Footnotes) -> str:
        trained = ["trained"] if length == self.reading.trained else []
        cell = row.cells.get(measure, {}).get(length)
        if cell is None:
            mark = element("sup", text(notes.mark(row, measure, length)))
            return element("td", text(self.words("missing")), mark, class_=" ".join(["gap", *trained]))
        shown = text(_shown(cell.mean, measure))
        value = element("b", shown) if best else shown
        tie = element("span", "≈", class_="near") if ties else ""
        spread = element("small", text(f"±{_spread(cell, measure)}")) if cell.half > 0 else ""
        return element("td", tie, value, spread, class_=" ".join(trained) or None)


class _Footnotes:
    """The reasons for gaps in one table, a letter each."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._reasons: list[str] = []

    def mark(self, row: Row, measure: str, length: int) -> str:
        end = row.ends_at()
        if (measure, length) in row.broken:
            reason = self._words("foot_broken")
        elif end is not None and length > end:
            reason = self._words("foot_table", length=end)
        else:
            reason = self._words("foot_unmeasured")
        if reason not in self._reasons:
            self._reasons.append(reason)
        return FOOTNOTES[self._reasons.index(reason) % len(FOOTNOTES)]

    def list(self) -> list[str]:
        return [
            element("span", element("sup", letter), text(f" {self._words('missing')} {reason}"), class_="foot")
            for letter, reason in zip(FOOTNOTES, self._reasons, strict=False)
        ]


def _shown(value: float, measure: str) -> str:
    return number(value, 3) if measure in PROTOCOLS else number(100 * value, 1)


def _spread(cell: Cell, measure: str) -> str:
    return number(cell.half, 3) if measure in PROTOCOLS else number(100 * cell.half, 1)
