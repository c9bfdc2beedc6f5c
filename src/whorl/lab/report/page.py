"""The report as one page: verdict first, then figures, tables, cards, and how to run it again.

What is said is worked out here; report.html says where it stands, style.css how it looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from whorl.errors import WhorlError
from whorl.lab.report.charts import coordinate
from whorl.lab.report.figures import Figures
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import RECALLED, Findings, Standing, rank
from whorl.lab.report.words import Words, count, number, plain, ratio, signed, size
from whorl.plot.style import COLOURS
from whorl.results import AS_TRAINED, PROTOCOLS, RECALL, TASK, WINDOW, ComparisonResult, Row, finite, lengths_of

if TYPE_CHECKING:
    import jinja2

FACTS = {"parameters": count, "tokens_per_second": count, "peak_memory_bytes": size}
FOOTNOTES = "abcdefghijklmnopqrstuvwxyz"


def page(result: ComparisonResult, words: Words) -> str:
    """The whole HTML text; it needs no script and loads nothing."""
    return template().render(page=Page(result, words), result=result, words=words, colours=COLOURS)


@cache
def template() -> jinja2.Template:
    """The page's template, which every page is made of."""
    try:
        import jinja2
    except ImportError:
        raise WhorlError('write_report: jinja2 is not installed. Run: pip install "whorl[lab]"') from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: coordinate(value) if isinstance(value, float) else value,
    )
    return environment.get_template("report.html")


class Entry(NamedTuple):
    """A field of a table: its value and what stands after ±, or the letter that says why there is none."""

    value: str = ""
    spread: str = ""
    best: bool = False
    tie: bool = False
    gap: str = ""


@dataclass(frozen=True)
class Table:
    """Rows by length, and what stands under them: what the signs mean, and a reason for each letter."""

    caption: str
    lengths: Sequence[int]
    rows: Sequence[tuple[Row, Sequence[Entry]]]
    under: Sequence[str]
    notes: Mapping[str, str]


class Page:
    """What stands on the page of one comparison in one language."""

    def __init__(self, result: ComparisonResult, words: Words) -> None:
        self.result, self.words = result, words
        self.findings = Findings(result)
        self.sentences = Sentences(self.findings, words)
        self.figures = Figures(self.findings, words)

    def ratio(self, length: int) -> str:
        """A length as a multiple of the trained one."""
        return ratio(length, self.result.trained)

    def facts(self) -> Iterator[str]:
        """What the page is about, in a line."""
        result, words = self.result, self.words
        known = {"encodings": len({row.label for row in result.rows}), "trained": result.trained}
        if result.measured(PROTOCOLS):
            longest = max(result.lengths_of(PROTOCOLS))
            yield words("facts_text", longest=longest, ratio=self.ratio(longest), **known)
        else:
            yield words("facts_task", **known)
        yield words("facts_seeds", n=result.seeds)
        if "name" in result.corpus:
            yield str(result.corpus["name"])
        if result.created:
            yield result.created[:10]

    # -- tables ----------------------------------------------------------------------------------------------------

    def losses(self) -> list[Table]:
        """Bits per byte, a table for each protocol."""
        return self._text_tables(PROTOCOLS, "table_loss")

    def recall(self) -> list[Table]:
        """Shares of text found again, a table for each score."""
        return self._text_tables(RECALL, "table_score")

    def task(self, name: str) -> list[Table]:
        """A task's scores, a table for each."""
        rows = [row for row in self.result.rows if row.task == name]
        captions = {measure: self.words("table_task", task=name, measure=self.words(measure)) for measure in TASK}
        return [self._table(one, rows, said) for one, said in captions.items() if any(row.has(one) for row in rows)]

    def _text_tables(self, measures: Sequence[str], caption: str) -> list[Table]:
        ordered = sorted(self.result.text_rows, key=lambda row: not row.as_trained)
        shown = [*ordered, *([self.result.window] if self.result.window else [])]
        return [
            self._table(
                one, [row for row in shown if row.has(one)], self.words(caption, measure=self.words.capital(one))
            )
            for one in self.result.measured(measures)
        ]

    def _table(self, measure: str, rows: Sequence[Row], caption: str) -> Table:
        share = measure not in PROTOCOLS
        scale, places, noise = (100, 1, RECALLED) if share else (1, 3, self.result.noise)
        lengths, notes = lengths_of(rows, [measure]), {}
        ranked = [row for row in rows if not row.is_window]
        ranks = {n: rank(ranked, measure, n, noise, highest=share) for n in lengths}

        def entry(row: Row, length: int) -> Entry:
            cell, won = row.cells.get(measure, {}).get(length), ranks[length]
            if cell is None:
                return Entry(gap=notes.setdefault(self._gap(row, measure, length), FOOTNOTES[len(notes) % 26]))
            return Entry(
                value=number(scale * cell.mean, places),
                spread=number(scale * cell.half, places) if cell.half > 0 else "",
                best=won is not None and row is won.best,
                tie=won is not None and any(row is other for other in won.ties),
            )

        entries = [(row, [entry(row, length) for length in lengths]) for row in rows]
        interval = self.words(f"interval_{self.result.interval}")
        under = [self.words("bold_high" if share else "bold_low", noise=plain(scale * noise), interval=interval)]
        if len(ranked) < len(rows):
            under.append(self.words("window_out"))
        return Table(caption, lengths, entries, under, notes)

    def _gap(self, row: Row, measure: str, length: int) -> str:
        """Why a row has no value there."""
        end = row.ends_at()
        if (measure, length) in row.broken:
            return self.words("foot_broken")
        if end is not None and length > end:
            return self.words("foot_table", length=end)
        return self.words("foot_unmeasured")

    # -- cards -----------------------------------------------------------------------------------------------------

    def cards(self) -> Iterator[tuple[Row, list[Row]]]:
        """The row that stands for an encoding and all that it has, in the order of the comparison."""
        for label in dict.fromkeys(row.label for row in self.result.rows):
            rows = [row for row in self.result.rows if row.label == label]
            yield next((row for row in rows if row.as_trained), rows[0]), rows

    def config(self, row: Row) -> str:
        """The settings that say something, as they are written in Python; what is None goes without saying."""
        return ", ".join(f"{name}={_value(value)}" for name, value in row.encoding.items() if value is not None)

    def warnings(self, rows: Sequence[Row]) -> list[str]:
        return list(dict.fromkeys(warning for row in rows for warning in row.warnings))

    def costs(self, row: Row) -> Iterator[tuple[str, str]]:
        """What an encoding costs, and over which seeds that is."""
        own = row.facts.get("encoding_parameters", 0)
        for name, shown in FACTS.items():
            if name in row.facts:
                said = shown(row.facts[name])
                if name == "parameters" and own:
                    said = self.words("parameters_own", all=said, own=count(own))
                yield self.words(name), said
        if row.seeds:
            yield self.words("seeds"), ", ".join(str(seed) for seed in row.seeds)

    def measured(self, rows: Sequence[Row]) -> Iterator[tuple[str, str | list[str]]]:
        """How an encoding fares: on text, repaired, against its window, on tasks."""
        words = self.words
        standings = [s for row in rows for s in self.findings.standings if s.row is row]
        yield from ((words("measured"), self._state(s)) for s in standings if s.row.as_trained)
        repaired = [s for s in standings if not s.row.as_trained]
        if repaired:
            states = [(words.variant(s.row.variant), self._state(s)) for s in repaired]
            yield words("repaired"), [words("repaired_item", name=name, state=state) for name, state in states]
        yield from self._window(rows)
        for task in self.findings.tasks:
            for row, length in task.reaches:
                if any(row is own for own in rows):
                    yield words("measured"), words("measured_reach", task=task.name, length=length)
            for row, _ in task.unsolved:
                if any(row is own for own in rows):
                    yield words("measured"), words("measured_unsolved", task=task.name)

    def _window(self, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
        """The model's own window beside the model, at the far length."""
        measure, far = self.findings.measure, self.findings.far
        own, window = (
            next((row.at(measure, far) for row in rows if row.variant == variant), None)
            for variant in (AS_TRAINED, WINDOW)
        )
        if far and own is not None and window is not None:
            said = self.words("own_window_text", ratio=self.ratio(far), value=number(window), own=number(own))
            yield self.words("own_window"), said

    def _state(self, standing: Standing) -> str:
        far, words, reach = self.findings.far, self.words, standing.reach
        if standing.state == "breaks" and standing.breaks_at:
            return words("measured_breaks", ratio=self.ratio(standing.breaks_at), length=standing.breaks_at)
        if standing.state == "drifts" and far:
            return words("measured_drifts", ratio=self.ratio(far), rise=signed(standing.rises[far]))
        if standing.state == "ends" or reach not in standing.rises:
            return words("measured_ends", length=reach)
        return words("measured_holds", ratio=self.ratio(reach), rise=signed(standing.rises[reach]))

    # -- the end of the page ---------------------------------------------------------------------------------------

    def runs(self) -> str:
        """The ids of the runs."""
        return ", ".join(path.removeprefix("runs/").removesuffix("/result.json") for path in self.result.results)

    def corpus(self) -> str:
        """The corpus and its sizes, where all are known."""
        corpus = self.result.corpus
        train, test, documents = (finite(corpus.get(name)) for name in ("train_bytes", "test_bytes", "documents"))
        if "name" not in corpus or train is None or test is None or documents is None:
            return ""
        sizes = {"train": size(train), "test": size(test), "documents": count(documents)}
        return self.words("corpus_text", name=corpus["name"], **sizes)

    def machine(self) -> Iterator[tuple[str, str]]:
        """Each fact of the machine that is known."""
        for name, value in self.result.environment.items():
            amount = finite(value)
            if amount is not None and name.endswith("_bytes"):
                yield name, size(amount)
            elif amount is not None and isinstance(value, float):
                yield name, plain(amount)
            elif value not in (None, "") and not isinstance(value, float):
                yield name, str(value)

    def definitions(self) -> Iterator[tuple[str, str]]:
        """What is measured, and what the verdict's words mean."""
        result, words = self.result, self.words
        for measure in result.measured((*PROTOCOLS, *RECALL, *TASK)):
            yield words(measure), words(f"{measure}_define")
        if result.windows:
            yield words("window_short"), words("window_define")
        if self.findings.measure:
            yield words("trust_noise"), words("trust_noise_text", noise=plain(result.noise))
            limits = {"hold": plain(self.findings.hold), "limit": plain(self.findings.limit)}
            yield words("define_hold"), words("define_hold_text", **limits)


def _value(value: Any) -> str:
    """A setting as it is written in Python, cut where it is long."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 120 else f"{shown[:117]}…"
