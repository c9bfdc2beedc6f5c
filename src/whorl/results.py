"""Results of the lab: a frozen record of one run, and one of a comparison of runs, with the JSON that each is kept as.

    runs/ID/result.json ─► RunResult ─► aggregate ─► ComparisonResult ─► comparison.json, report, plot, claims

They stand below every room, since the lab writes them and plots and claims read them. Files of older versions are read
as well: what they do not say is a gap, or follows from the rest. Whatever is no finite number is a gap in a
``ComparisonResult``, so that neither NaN nor infinity reaches a page or a plot; a loss that was measured and is not
finite is remembered in ``Row.broken``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from whorl.errors import WhorlError, invalid

RUN_SCHEMA = "whorl-lab-result/1"
COMPARISON_SCHEMA = "whorl-lab-comparison/1"
COMPARISON = "comparison.json"

AS_TRAINED = "as trained"  # the variant that changes nothing
WINDOW = "window"
PROTOCOLS = ("same_last", "sliding", "non_overlapping")  # bits per byte; verdicts read the first one measured
RECALL = ("repeated_text_accuracy", "retrieval_accuracy")
TASK = ("exact_match", "token_accuracy")
LEVEL = 0.05  # the rate of false calls, over all differences that are judged together
WHOLE = 0.5  # bits per byte that a model may lose past the trained length and still be whole, not broken


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
        known = {one.name: one for one in dataclasses.fields(cls)}
        missing = [name for name, one in known.items() if name not in data and one.default is dataclasses.MISSING]
        if missing:
            raise WhorlError(f"the result of a run has no {', '.join(missing)}.")
        return cls(**{name: data[name] for name in known if name in data})

    def to_dict(self) -> dict[str, Any]:
        """The content of result.json; what is optional and absent is not in it."""
        fields = dataclasses.fields(self)
        found = {one.name: getattr(self, one.name) for one in fields}
        absent = {one.name for one in fields if one.default is None and found[one.name] is None}
        return {"schema": RUN_SCHEMA} | {key: value for key, value in found.items() if key not in absent}


@dataclass(frozen=True)
class Cell:
    """A mean with its interval."""

    mean: float
    low: float
    high: float
    n: int
    trials: int = 0  # of a share: of how many of each seed
    chance: float | None = None  # of a share: what guessing gives, where that is known

    @property
    def half(self) -> float:
        """Half the width of the interval, what stands after ±."""
        return (self.high - self.low) / 2


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
class Row:
    """One model, as trained or repaired: ``cells[measure][length]``, with gaps left out."""

    label: str
    variant: str
    encoding: Mapping[str, Any]
    seeds: tuple[int, ...]
    facts: Mapping[str, float]  # parameters, tokens per second …, those that are known
    claims: Mapping[str, bool]
    warnings: tuple[str, ...]
    lengths: tuple[int, ...]  # scored on text, gaps among them
    cells: Mapping[str, Mapping[int, Cell]]
    broken: frozenset[tuple[str, int]]  # (measure, length) where the loss was no finite number
    curve: tuple[tuple[float, float], ...]  # (step, loss in nats)
    task: str | None
    validation: tuple[tuple[float, float], ...] = ()  # (step, bits per byte)
    by_position: tuple[tuple[float, float, float], ...] = ()  # (from, to, bits per byte) at the longest length
    by_depth: Mapping[int, tuple[tuple[float, float, float], ...]] = field(default_factory=dict)  # (from, to, share)
    attention: tuple[tuple[float, float], ...] = ()  # (distance, weight) of one head
    head: tuple[int, ...] = ()  # its layer and number
    generated: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # factors of a sweep, and what else tells it from others
    beside: bool = False  # a window that a row carries, and no row of its own in the file

    @property
    def name(self) -> str:
        """The label, and the variant where there is one."""
        return self.label if self.as_trained else f"{self.label}, {self.variant}"

    @property
    def as_trained(self) -> bool:
        return self.variant == AS_TRAINED

    @property
    def is_window(self) -> bool:
        return self.variant == WINDOW

    def at(self, measure: str | None, length: int | None) -> float | None:
        """The mean there, or None for a gap."""
        cell = None if measure is None or length is None else self.cells.get(measure, {}).get(length)
        return cell.mean if cell else None

    def has(self, *measures: str) -> bool:
        return any(self.cells.get(measure) for measure in measures)

    def ends_at(self) -> int | None:
        """How many positions its table holds, for encodings that have one."""
        size = self.encoding.get("length")
        return size if self.encoding.get("name") == "learned" and isinstance(size, int) else None


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
        rows = tuple(made for row in given for made in _rows(row, call))
        counts = [cell.n for row in rows for by_length in row.cells.values() for cell in by_length.values()]
        return cls(
            title=_text(comparison.get("title")),
            created=_text(comparison.get("created")),
            trained=trained,
            lengths=tuple(comparison.get("lengths") or lengths_of(rows, (*PROTOCOLS, *RECALL, *TASK))),
            rows=rows,
            interval=str(comparison.get("interval") or ("seeds" if max(counts, default=1) > 1 else "documents")),
            differences=tuple(_difference(one) for one in comparison.get("differences") or ()),
            baseline=_text(comparison.get("baseline")),
            named=bool(comparison.get("baseline_named")),
            unequal=_mapping(comparison.get("unequal")),
            factors=tuple(str(name) for name in comparison.get("factors") or ()),
            corpus=_mapping(comparison.get("corpus")),
            command=_text(comparison.get("command")),
            results=tuple(str(path) for path in comparison.get("results") or ()),
            environment=_mapping(comparison.get("environment")),
            data=comparison,
        )

    @classmethod
    def read(cls, path: str | Path) -> ComparisonResult:
        """The comparison in a file, or a WhorlError that says why there is none."""
        call = "read_comparison"
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise WhorlError(f"{call}: cannot read {path}: {error.strerror}. Pass a {COMPARISON}.") from None
        except ValueError as error:
            raise WhorlError(f"{call}: {path} is no JSON ({error}). Pass a {COMPARISON}.") from None
        check_comparison(found)
        return cls.of(found, call)

    def to_json(self) -> str:
        """The text of comparison.json: what it was made of, null for what is no finite number."""
        return json.dumps(_finite(self.data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

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


def lengths_of(rows: Iterable[Row], measures: Iterable[str]) -> tuple[int, ...]:
    """The lengths at which some of the rows has one of the measures or broke in it."""
    rows, wanted = tuple(rows), tuple(measures)
    found = {length for row in rows for measure in wanted for length in row.cells.get(measure, {})}
    found |= {length for row in rows for measure, length in row.broken if measure in wanted}
    return tuple(sorted(found))


def finite(value: object) -> float | None:
    """The value as a float, or None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        return None
    return float(value)


def _rows(row: Any, call: str) -> list[Row]:
    """The row, and the window that stands beside it where it carries one."""
    if not isinstance(row, Mapping) or not isinstance(row.get("label"), str):
        raise invalid(call, "comparison['rows']", "rows that are dicts with a label", row)
    made = [_row(row, row.get("by_length"), str(row.get("variant") or AS_TRAINED), call)]
    window = row.get("window_baseline")
    if isinstance(window, Mapping) and made[0].as_trained:
        own = ("label", "encoding", "seeds", "parameters", "encoding_parameters", "claims", "warnings", "settings")
        alone = _row({key: row.get(key) for key in own}, window.get("by_length"), WINDOW, call)
        made.append(dataclasses.replace(alone, beside=True))
    return made


def _row(row: Mapping[str, Any], by_length: Any, variant: str, call: str) -> Row:
    cells: dict[str, dict[int, Cell]] = {}
    broken: set[tuple[str, int]] = set()
    task = _mapping(row.get("task"))
    on_text = list(_entries(by_length, "by_length", call))
    for entry in (*on_text, *_entries(task.get("by_length"), "task", call)):
        length = entry["length"]
        scores = {measure: entry.get(measure) for measure in (*RECALL, *TASK)}
        for measure, value in {**_mapping(entry.get("bits_per_byte")), **scores}.items():
            cell = _cell(value)
            if cell is not None:
                cells.setdefault(measure, {})[length] = cell
            elif _not_finite(value):
                broken.add((measure, length))
    facts = {
        name: value
        for name in ("parameters", "encoding_parameters", "tokens_per_second", "peak_memory_bytes")
        if (value := finite(row.get(name))) is not None
    }
    attention = _mapping(row.get("attention_by_distance"))
    depths = (_mapping(entry.get("retrieval_by_depth")) for entry in on_text)
    return Row(
        label=row["label"],
        variant=variant,
        encoding=_mapping(row.get("encoding")),
        seeds=tuple(row.get("seeds") or ()),
        facts=facts,
        claims={str(name): bool(value) for name, value in _mapping(row.get("claims")).items()},
        warnings=tuple(str(warning) for warning in row.get("warnings") or ()),
        lengths=tuple(entry["length"] for entry in on_text),
        cells=cells,
        broken=frozenset(broken),
        curve=_points(row.get("learning_curve"), "step", "loss"),
        task=str(task.get("name", "task")) if task else None,
        validation=_points(row.get("validation"), "step", "bits_per_byte"),
        by_position=_bins(_mapping(row.get("per_position")), "positions", "bits_per_byte"),
        by_depth={
            entry["length"]: bins
            for entry, depth in zip(on_text, depths, strict=True)
            if (bins := _bins(depth, "depth", "share"))
        },
        attention=tuple(_known(zip(attention.get("distance") or (), attention.get("weight") or (), strict=False))),
        head=tuple(attention.get("head") or ()),
        generated=tuple(one for one in row.get("generated") or () if isinstance(one, Mapping)),
        settings=_mapping(row.get("settings")),
    )


def _points(rows: Any, x: str, y: str) -> tuple[tuple[float, float], ...]:
    """The points of a curve, those left out that are no numbers."""
    return tuple(_known((row.get(x), row.get(y)) for row in rows or ()))


def _bins(found: Mapping[str, Any], edges: str, values: str) -> tuple[tuple[float, float, float], ...]:
    """Bins as (from, to, value), those left out that have no value."""
    sides = itertools.pairwise(found.get(edges) or ())
    return tuple(
        _known((start, stop, value) for (start, stop), value in zip(sides, found.get(values) or (), strict=False))
    )


def _known(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The rows that are finite numbers throughout."""
    for row in rows:
        numbers_ = tuple(finite(value) for value in row)
        if None not in numbers_:
            yield numbers_


def _difference(found: Any) -> Difference:
    """The record of an entry of ``differences``."""
    data = dict(found)
    data["row"], data["other"] = tuple(data["row"]), tuple(data["other"])
    return Difference(**data)


def _entries(by_length: Any, name: str, call: str) -> Iterable[Mapping[str, Any]]:
    for entry in by_length or ():
        length = entry.get("length") if isinstance(entry, Mapping) else None
        if not isinstance(length, int) or length < 1:
            raise invalid(call, f"every entry of {name}", "a dict with a positive length", entry)
        yield entry


def _cell(value: Any) -> Cell | None:
    """A cell of a number or of mean, low, high, n; None for a gap."""
    if not isinstance(value, Mapping):
        value = {"mean": value}
    mean = finite(value.get("mean"))
    if mean is None:
        return None
    low, high = finite(value.get("low")), finite(value.get("high"))
    n, trials = (int(found) if (found := finite(value.get(key))) is not None else None for key in ("n", "trials"))
    return Cell(
        mean=mean,
        low=mean if low is None else low,
        high=mean if high is None else high,
        n=1 if n is None else n,
        trials=trials or 0,
        chance=finite(value.get("chance")),
    )


def _not_finite(value: Any) -> bool:
    mean = value.get("mean") if isinstance(value, Mapping) else value
    return isinstance(mean, float) and not math.isfinite(mean)


def _finite(value: Any) -> Any:
    """JSON data without NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return str(value) if value else None
