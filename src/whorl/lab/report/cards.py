"""One card per encoding: what it is, what it costs, what it claims and what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from whorl.lab.report.figures import Figures
from whorl.lab.report.markup import element, text
from whorl.lab.report.numbers import count, number, ratio, signed, size
from whorl.lab.report.reading import Reading, Row
from whorl.lab.report.verdict import Findings, Standing
from whorl.lab.report.words import Words

FACTS = {
    "parameters": count,
    "tokens_per_second": count,
    "peak_memory_bytes": size,
}


class Cards:
    """The cards of one comparison in one language."""

    def __init__(self, reading: Reading, findings: Findings, figures: Figures, words: Words) -> None:
        self.reading, self.findings, self.figures, self.words = reading, findings, figures, words

    def all(self) -> str:
        """A card for each label, in the order of the comparison."""
        labels = dict.fromkeys(row.label for row in self.reading.rows)
        return element("div", *(self._card(label) for label in labels), class_="cards")

    def _card(self, label: str) -> str:
        rows = [row for row in self.reading.rows if row.label == label]
        own = next((row for row in rows if row.as_trained), rows[0])
        title = element("h3", self.figures.style(own).swatch(), text(self.words.name(label)))
        pairs = [*self._measured(rows), *self._facts(own)]
        listed = element("dl", *(element("dt", text(name)) + element("dd", value) for name, value in pairs))
        below = (self._claims(own.claims), _config(own.encoding), self._warnings(rows))
        return element("section", title, listed, *below, class_="card")

    def _facts(self, row: Row) -> Iterable[tuple[str, str]]:
        for name, shown in FACTS.items():
            if name in row.facts:
                said = shown(row.facts[name])
                own = row.facts.get("encoding_parameters", 0)
                if name == "parameters" and own:
                    said = self.words("parameters_own", all=said, own=count(own))
                yield self.words(name), text(said)
        if row.seeds:
            yield self.words("seeds"), text(", ".join(str(seed) for seed in row.seeds))

    def _claims(self, claims: Mapping[str, bool]) -> str:
        chips = []
        for name, held in claims.items():
            said = self.words(f"claim_{name}") if f"claim_{name}" in self.words else name
            answer = self.words("yes" if held else "no")
            mark = "✓" if held else "✗"
            chips.append(
                element("li", text(f"{mark} {said}"), class_="yes" if held else "no", aria_label=f"{said}: {answer}")
            )
        return element("ul", *chips, class_="claims", aria_label=self.words("claims")) if chips else ""

    def _measured(self, rows: Iterable[Row]) -> Iterable[tuple[str, str]]:
        standings = [s for row in rows for s in self.findings.standings if s.row is row]
        for standing in (s for s in standings if s.row.as_trained):
            yield self.words("measured"), text(self._state(standing))
        repaired = [s for s in standings if not s.row.as_trained]
        if repaired:
            items = [
                element(
                    "li",
                    text(self.words("repaired_item", name=self.words.variant(s.row.variant), state=self._state(s))),
                )
                for s in repaired
            ]
            yield self.words("repaired"), element("ul", *items)
        yield from self._window(rows)
        for task in self.findings.tasks:
            for row, length in task.reaches:
                if any(row is own for own in rows):
                    yield self.words("measured"), text(self.words("measured_reach", task=task.name, length=length))
            for row, _ in task.unsolved:
                if any(row is own for own in rows):
                    yield self.words("measured"), text(self.words("measured_unsolved", task=task.name))

    def _window(self, rows: Iterable[Row]) -> Iterable[tuple[str, str]]:
        """The model's own window beside the model, at the far length."""
        own = next((row for row in rows if row.as_trained), None)
        window = next((row for row in rows if row.is_window), None)
        measure, far = self.findings.measure, self.findings.far
        if own and window and measure and far:
            values = window.at(measure, far), own.at(measure, far)
            if values[0] is not None and values[1] is not None:
                shown = {"value": number(values[0]), "own": number(values[1])}
                said = self.words("own_window_text", ratio=ratio(far, self.reading.trained), **shown)
                yield self.words("own_window"), text(said)

    def _state(self, standing: Standing) -> str:
        far, words = self.findings.far, self.words
        if standing.state == "breaks" and standing.breaks_at:
            at = standing.breaks_at
            return words("measured_breaks", ratio=ratio(at, self.reading.trained), length=at)
        if standing.state == "drifts" and far:
            rise = signed(standing.rises[far])
            return words("measured_drifts", ratio=ratio(far, self.reading.trained), rise=rise)
        if standing.state == "ends" or standing.reach not in standing.rises:
            return words("measured_ends", length=standing.reach)
        rise = signed(standing.rises[standing.reach])
        return words("measured_holds", ratio=ratio(standing.reach, self.reading.trained), rise=rise)

    def _warnings(self, rows: Iterable[Row]) -> str:
        said = dict.fromkeys(warning for row in rows for warning in row.warnings)
        if not said:
            return ""
        items = (element("li", text(warning)) for warning in said)
        heading = element("p", text(self.words("warnings")))
        return element("div", heading, element("ul", *items, lang="en"), class_="warnings")


def _config(encoding: Mapping[str, Any]) -> str:
    """The settings that say something, as they are written in Python; what is None goes without saying."""
    settings = [f"{name}={_value(value)}" for name, value in encoding.items() if value is not None]
    return element("p", element("code", text(", ".join(settings)), lang="en"), class_="config") if settings else ""


def _value(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 120 else f"{shown[:117]}…"
