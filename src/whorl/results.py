"""Results of the lab: a frozen record of one run, and one of a comparison of runs, with the JSON that each is kept as.

    runs/ID/result.json ─► RunResult ─► aggregate ─► ComparisonResult ─► comparison.json, report, plot, claims

They stand below every room, since the lab writes them and plots and claims read them. Files of older versions are read
as well: what they do not say is a gap, or follows from the rest. The rows of a comparison are in ``result_rows.py``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Self

from whorl.dialects.documents import read_whole, value_of
from whorl.errors import WhorlError, invalid, printable
from whorl.result_rows import PROTOCOLS, RECALL, TASK, Row, finite, lengths_of, mapping, read_rows
from whorl.result_shapes import COMPARED, DIFFERENCE, RUN, misfit

RUN_SCHEMA = "whorl-lab-result/1"
COMPARISON_SCHEMA = "whorl-lab-comparison/1"
COMPARISON = "comparison.json"
LARGEST = 2**27  # bytes of a result or a comparison; one of ten rows has some hundred kilobytes

LEVEL = 0.05  # the rate of false calls, over all differences that are judged together


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a finished run came to: the content of its result.json.

    Rows of ``metrics``, ``evaluations`` and ``task`` are JSON as training, evaluation and the task wrote them.
    """

    id: str
    label: str
    encoding: dict[str, Any]
    seed: int
    config: dict[str, Any]  # of the RunConfig
    parameters: int
    encoding_parameters: int
    train_length: int
    steps: int
    tokens: int
    tokens_per_second: float | None
    train_seconds: float
    stopped_early: str | None  # why, where training broke off
    final_train_loss: float | None
    stages: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    warnings: list[str]
    peak_memory_bytes: int
    evaluations: list[dict[str, Any]]  # one for each variant of a run on text, the one as trained first
    window_baseline: dict[str, Any] | None
    task: dict[str, Any] | None = None  # scores of a run on a task
    validation: list[dict[str, Any]] | None = None  # step and bits per byte of test text while it trained
    generated: list[dict[str, Any]] | None = None  # length, prompt and the text that the model went on with
    attention_by_distance: dict[str, Any] | None = None  # of one head
    claims: dict[str, bool] | None = None  # what the encoding says of itself
    evaluate_seconds: float
    environment: dict[str, Any]

    @classmethod
    def of(cls, data: Any) -> Self:
        """The record of what a result.json holds; a WhorlError for anything else."""
        if not isinstance(data, dict) or data.get("schema") != RUN_SCHEMA:
            raise WhorlError(f"a result of a run needed, schema {RUN_SCHEMA!r}.")
        why = misfit(data, RUN, "the result of a run")
        if why is not None:
            raise WhorlError(f"{why}.")
        return cls(**{one.name: data[one.name] for one in dataclasses.fields(cls) if one.name in data})

    def to_dict(self) -> dict[str, Any]:
        """The content of result.json; what is optional and absent is not in it."""
        fields = dataclasses.fields(self)
        found = {one.name: getattr(self, one.name) for one in fields}
        absent = {one.name for one in fields if one.default is None and found[one.name] is None}
        return {"schema": RUN_SCHEMA} | {key: value for key, value in found.items() if key not in absent}


@dataclass(frozen=True)
class Difference:
    """A row less another, paired over seeds and samples, with the interval that it was judged by.

    kind  "encoding"  a model as trained less the baseline
          "published"  the two of a published order
          "repair"  a repaired model less the same as trained
          "length"  a model at a length less itself at ``from_length``, on the same last tokens
          "window"  a model less its own window
    """

    kind: str
    measure: str
    row: tuple[str, str]  # label and variant
    other: tuple[str, str]
    length: int
    from_length: int
    mean: float
    low: float | None  # None where one seed and no samples leave it unknown
    high: float | None
    p: float | None  # after Holm
    least: float | None  # the smallest difference that would have been found
    seeds: int
    samples: int  # 0 where samples were not kept
    scored_bytes: int  # 0 where that is not known

    @property
    def sign(self) -> int:
        """−1 for lower, 1 for higher, 0 where the interval does not tell."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 0) - (self.high < 0)


def holm(chances: Sequence[float]) -> list[float]:
    """What each p is to be multiplied by, after Holm: the smallest of m by m, the next by m − 1, and never less in all.

    >>> holm([0.04, 0.01, 0.03])
    [1.5, 3.0, 2.0]
    """
    times, most = [1.0] * len(chances), 0.0
    for place, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        most = max(most, (len(chances) - place) * chances[i])
        times[i] = most / chances[i] if chances[i] > 0 else float(len(chances) - place)
    return times


@dataclass(frozen=True)
class ComparisonResult:
    """What a comparison of runs came to: the content of its comparison.json, every number checked and in one place."""

    title: str | None
    created: str | None
    trained: int
    lengths: tuple[int, ...]
    rows: tuple[Row, ...]
    interval: str  # "seeds" or "documents"
    differences: tuple[Difference, ...] = ()
    baseline: str | None = None  # a label
    named: bool = False  # whether the baseline was named, or else chosen as the best
    unequal: Mapping[str, Any] = field(default_factory=dict)  # settings in which runs differ though they should not
    factors: tuple[str, ...] = ()
    corpus: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    results: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the JSON that it was made of

    @classmethod
    def of(cls, comparison: Mapping[str, Any] | ComparisonResult, call: str) -> ComparisonResult:
        """The record of what a comparison.json holds, or a WhorlError that says what is wrong with it.

        >>> losses = [{"length": 64, "bits_per_byte": {"same_last": 2.2}}]
        >>> found = ComparisonResult.of({"train_length": 64, "rows": [{"label": "rope", "by_length": losses}]}, "doc")
        >>> found.rows[0].at("same_last", 64)
        2.2
        """
        if isinstance(comparison, ComparisonResult):
            return comparison
        if not isinstance(comparison, Mapping):
            raise invalid(
                call, "comparison", f"the dict of a {COMPARISON}", comparison, "Load the file with json.load."
            )
        given = comparison.get("rows")
        if not isinstance(given, list) or not given:
            raise invalid(
                call, "comparison['rows']", "a list with a row for each encoding", given, "Run whorl compare."
            )
        trained = comparison.get("train_length")
        if not isinstance(trained, int) or isinstance(trained, bool) or trained < 1:
            raise invalid(call, "comparison['train_length']", "a positive integer", trained)
        why = misfit(comparison, COMPARED, "comparison")
        if why is not None:
            raise WhorlError(f"{call}: {why}. Pass the {COMPARISON} that whorl compare writes.")
        asked = comparison.get("interval")
        if asked not in (None, "seeds", "documents"):
            raise invalid(call, "comparison['interval']", "'seeds' or 'documents'", asked)
        rows = tuple(made for row in given for made in read_rows(row, call))
        counts = [cell.n for row in rows for by_length in row.cells.values() for cell in by_length.values()]
        return cls(
            title=_text(comparison.get("title")),
            created=_text(comparison.get("created")),
            trained=trained,
            lengths=tuple(comparison.get("lengths") or lengths_of(rows, (*PROTOCOLS, *RECALL, *TASK))),
            rows=rows,
            interval=asked or ("seeds" if max(counts, default=1) > 1 else "documents"),
            differences=tuple(
                _difference(one) for one in comparison.get("differences") or () if finite(one["mean"]) is not None
            ),
            baseline=_text(comparison.get("baseline")),
            named=bool(comparison.get("baseline_named")),
            unequal=mapping(comparison.get("unequal")),
            factors=tuple(str(name) for name in comparison.get("factors") or ()),
            corpus=mapping(comparison.get("corpus")),
            command=_text(comparison.get("command")),
            results=tuple(str(path) for path in comparison.get("results") or ()),
            environment=mapping(comparison.get("environment")),
            data=comparison,
        )

    @classmethod
    def read(cls, path: str | Path) -> ComparisonResult:
        """The comparison in a file, or a WhorlError that says why there is none."""
        call, remedy = "read_comparison", f"Pass a {COMPARISON}."

        def refuse(why: str) -> NoReturn:
            raise WhorlError(f"{call}: {path} is no JSON ({why}). {remedy}")

        found = value_of(read_whole(path, "a comparison", at_most=LARGEST, call=call, remedy=remedy), refuse)
        check_comparison(found)
        return cls.of(found, call)

    def to_json(self) -> str:
        """The text of comparison.json: what it was made of, null for what is no finite number."""
        text = json.dumps(_finite(self.data), indent=2, ensure_ascii=False, allow_nan=False)
        return printable(text, lines=True) + "\n"

    def measured(self, measures: Iterable[str]) -> tuple[str, ...]:
        """Those of the measures that some row has."""
        return tuple(measure for measure in measures if any(row.has(measure) for row in self.rows))

    def lengths_of(self, measures: Iterable[str]) -> tuple[int, ...]:
        """The lengths at which some row has one of the measures or broke in it."""
        return lengths_of(self.rows, measures)

    @property
    def text_rows(self) -> tuple[Row, ...]:
        """Rows scored on text, windows left out: they are what the others are held against."""
        return tuple(row for row in self.rows if row.has(*PROTOCOLS, *RECALL) and not row.is_window)

    @property
    def windows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.is_window and row.has(*PROTOCOLS, *RECALL))

    @property
    def window(self) -> Row | None:
        """The window that stands for all in figures and tables: RoPE's where there is one."""
        return next((row for row in self.windows if row.label == "rope"), next(iter(self.windows), None))

    def window_of(self, row: Row) -> Row | None:
        """The window on the row's own model, or else the one that stands for all."""
        return next((window for window in self.windows if window.label == row.label), self.window)

    @property
    def seeds(self) -> int:
        """How many seeds the rows have at least."""
        return min((len(row.seeds) for row in self.rows if row.seeds), default=1)

    def difference(
        self, kind: str, row: Row, length: int | None, measure: str, other: Row | None = None
    ) -> Difference | None:
        """The difference of that kind of a row at a length, less another row where one is given; None for a gap."""
        wanted = (row.label, row.variant)
        less = None if other is None else (other.label, other.variant)
        return next((d for d in self._by_row.get((kind, measure, wanted, length), ()) if less in (None, d.other)), None)

    @cached_property
    def _by_row(self) -> dict[tuple[str, str, tuple[str, str], int | None], list[Difference]]:
        found: dict[tuple[str, str, tuple[str, str], int | None], list[Difference]] = {}
        for one in self.differences:
            found.setdefault((one.kind, one.measure, one.row, one.length), []).append(one)
        return found


def check_comparison(comparison: Any) -> None:
    """Raises a WhorlError unless this is the content of a comparison.json."""
    schema = comparison.get("schema") if isinstance(comparison, Mapping) else None
    if schema != COMPARISON_SCHEMA:
        raise WhorlError(
            f"losses: a comparison of the lab needed, schema {COMPARISON_SCHEMA!r}, got schema {schema!r}. "
            f"Pass the {COMPARISON} that whorl compare writes."
        )


def _difference(found: Mapping[str, Any]) -> Difference:
    """The record of an entry of ``differences``."""
    data = {key: found[key] for key in DIFFERENCE.needed}
    (label, variant), (other, its_variant) = found["row"], found["other"]
    return Difference(**{**data, "row": (label, variant), "other": (other, its_variant)})


def _finite(value: Any) -> Any:
    """JSON data without NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str | None:
    return str(value) if value else None
