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

from whorl import WhorlError
from whorl.lab.report.charts import coordinate
from whorl.lab.report.figures import Figures
from whorl.lab.report.sentences import Sentences, source_of
from whorl.lab.report.verdict import HOLD, Findings, Standing
from whorl.lab.report.words import Words, count, number, plain, ratio, signed, size
from whorl.plot.style import COLOURS
from whorl.result_rows import AS_TRAINED, PROTOCOLS, RECALL, TASK, WHOLE, WINDOW, Cell, Row, finite, lengths_of
from whorl.results import ComparisonResult, Difference

if TYPE_CHECKING:
    import jinja2

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
    """A field of a table: its value and its interval, or the letter that says why there is none."""

    value: str = ""
    spread: str = ""
    best: bool = False
    tie: bool = False
    gap: str = ""
    sign: str = ""  # "lower" or "higher" of a difference that is told


@dataclass(frozen=True)
class Table:
    """Rows by length, and what stands under them: lines of text, what the signs mean, and a reason for each letter."""

    caption: str
    lengths: Sequence[int]
    rows: Sequence[tuple[Row, Sequence[Entry]]]
    under: Sequence[str]
    notes: Mapping[str, str]
    foot: Sequence[tuple[str, Sequence[str]]] = ()


class HeatMap(NamedTuple):
    """The share right of one row by depth and length: the head of each column, then lines of a depth and its shares."""

    row: Row
    lengths: Sequence[int]
    lines: Sequence[tuple[str, Sequence[float | None]]]


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
        count = len({row.label for row in result.rows})
        known = {"encodings": count, "n": count, "trained": result.trained}
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

    def differences(self) -> Iterator[Table]:
        """Paired differences by length: encodings less the baseline, then repairs less the model they repair."""
        result, words = self.result, self.words
        base = next((row for row in result.rows if row.label == result.baseline and row.as_trained), None)
        name = words.name(base.label) if base else ""
        measured = [one for one in (self.findings.measure, "exact_match" if self.findings.tasks else None) if one]
        for measure in measured if base is not None else ():
            share = "" if measure in PROTOCOLS else "share_"
            yield from self._differences("encoding", measure, words(f"table_{share}differences", name=name))
            yield from self._differences("repair", measure, words(f"table_{share}repairs"))

    def _differences(self, kind: str, measure: str, caption: str) -> Iterator[Table]:
        share, words, result = measure not in PROTOCOLS, self.words, self.result
        found = [(row, own) for row in result.rows if (own := self._by_length(kind, row, measure))]
        lengths = sorted({length for _, own in found for length in own})
        if not lengths:
            return
        scale, places = (100, 1) if share else (1, 3)

        def entry(one: Difference | None) -> Entry:
            if one is None:
                return Entry(gap="·")
            if one.low is None or one.high is None:
                return Entry(value=signed(scale * one.mean, places))
            ends = (signed(scale * end, places) for end in (one.low, one.high))
            sign = {-1: "lower", 0: "", 1: "higher"}[one.sign]
            return Entry(
                value=signed(scale * one.mean, places),
                spread=words("range", low=next(ends), high=next(ends)),
                sign=sign,
                tie=not sign,
            )

        rows = [(row, [entry(own.get(n)) for n in lengths]) for row, own in found]
        every = [one for _, own in found for one in own.values()]
        under = [words("differences_signs")]
        if any(one.low is None for one in every):
            under.append(words("differences_unknown"))
        known = next((one for one in every if one.low is not None), None)
        if known is not None:
            under.append(words(f"differences_{source_of(known)}", **self.sentences.counts(known)))
        if kind == "encoding":
            under.append(words("differences_named" if result.named else "differences_chosen"))
        least = [self.findings.least(kind, n) if not share else None for n in lengths]
        foot = [(words("least"), [number(value, 3) if value else "" for value in least])] if any(least) else []
        yield Table(caption, lengths, rows, under, {}, foot)

    def _by_length(self, kind: str, row: Row, measure: str) -> dict[int, Difference]:
        """The differences of a row, those left out that are nothing by construction."""
        found = {n: self.result.difference(kind, row, n, measure) for n in self.result.lengths}
        return {n: one for n, one in found.items() if one is not None and (one.low, one.high) != (0.0, 0.0)}

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
        lengths, notes = lengths_of(rows, [measure]), {}
        best = {n: self._best(measure, n, rows) for n in lengths} if share else {}

        def entry(row: Row, length: int) -> Entry:
            cell = row.cells.get(measure, {}).get(length)
            if cell is None:
                return Entry(gap=notes.setdefault(self._gap(row, measure, length), FOOTNOTES[len(notes) % 26]))
            if not share:
                return Entry(value=number(cell.mean, 3), spread=f"±{number(cell.half, 3)}" if cell.half > 0 else "")
            won = best[length]
            return Entry(
                value=number(100 * cell.mean, 1),
                spread=self._range(cell) if cell.high > cell.low else "",
                best=won is not None and cell is won,
                tie=won is not None and cell is not won and not row.is_window and cell.high >= won.low,
            )

        entries = [(row, [entry(row, length) for length in lengths]) for row in rows]
        interval = self.words(f"interval_{self.result.interval}")
        under = [self.words("spread_share") if share else self.words("spread_loss", interval=interval)]
        trials = {cell.trials for row in rows for cell in row.cells.get(measure, {}).values()}
        if share and max(trials, default=0):
            under.append(self.words("of_trials", trials=max(trials), seeds=self.result.seeds))
        if any(row.is_window for row in rows):
            under.append(self.words("window_out"))
        return Table(caption, lengths, entries, under, notes)

    def _best(self, measure: str, length: int, rows: Sequence[Row]) -> Cell | None:
        """The highest share at a length where it is told from chance; else nobody is best."""
        cells = [cell for row in rows if not row.is_window and (cell := row.cells.get(measure, {}).get(length))]
        told = self.findings.floor(measure, length) is not None  # of all tasks together
        return max(cells, key=lambda cell: cell.mean, default=None) if told else None

    def _range(self, cell: Cell) -> str:
        return self.words("range", low=number(100 * cell.low, 1), high=number(100 * cell.high, 1))

    def depths(self) -> Iterator[HeatMap]:
        """Retrieval by depth and length, a map for each row, where somebody is told from chance."""
        lengths = sorted({length for row in self.result.rows for length in row.by_depth})
        if not any(self.findings.floor("retrieval_accuracy", length) is not None for length in lengths):
            return
        for row in self.result.text_rows:
            bins = sorted({(start, stop) for own in row.by_depth.values() for start, stop, _ in own})
            shares = {(n, start): share for n, own in row.by_depth.items() for start, _, share in own}
            lines = [
                (f"{100 * start:.0f}–{100 * stop:.0f}%", [shares.get((n, start)) for n in lengths])
                for start, stop in bins
            ]
            if lines:
                yield HeatMap(row, lengths, lines)

    def samples(self) -> Iterator[tuple[Row, list[tuple[str, str, str]]]]:
        """What each model as trained goes on with: (where, prompt, text)."""
        for row in self.result.rows:
            said = [
                (self.words("generated_at", **self._at(one)), str(one.get("prompt", "")), str(one.get("text", "")))
                for one in row.generated
                if isinstance(one.get("length"), int)
            ]
            if said and row.as_trained:
                yield row, said

    def _at(self, one: Mapping[str, Any]) -> dict[str, object]:
        return {"length": one["length"], "ratio": self.ratio(one["length"])}

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
        """What an encoding costs in parameters, and over which seeds its numbers are.

        Tokens per second and memory stay in the JSON: on a shared machine they are the load of it.
        """
        own, every = (row.facts.get(name) for name in ("encoding_parameters", "parameters"))
        if every is not None:
            said = count(every)
            yield self.words("parameters"), self.words("parameters_own", all=said, own=count(own)) if own else said
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
        if standing.state in ("drifts", "open") and far and far in standing.rises:
            rise = signed(standing.rises[far].mean)
            return words(f"measured_{standing.state}", ratio=self.ratio(far), rise=rise)
        if standing.state == "open":
            return words("measured_unknown")
        if standing.state == "ends" or reach not in standing.rises:
            return words("measured_ends", length=reach)
        return words("measured_holds", ratio=self.ratio(reach), rise=signed(standing.rises[reach].mean))

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
        return self.words("corpus_text", name=corpus["name"], n=documents, **sizes)

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
            yield words("define_difference"), words("define_difference_text")
            limits = {"hold": plain(HOLD), "limit": plain(WHOLE)}
            yield words("define_hold"), words("define_hold_text", **limits)


def _value(value: Any) -> str:
    """A setting as it is written in Python, cut where it is long."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 120 else f"{shown[:117]}…"
