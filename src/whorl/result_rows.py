"""Rows of a comparison: one model each, as trained or repaired, with its scores by measure and length.

Whatever is no finite number is a gap, so that neither NaN nor infinity reaches a page or a plot; a loss that was
measured and is not finite is remembered in ``Row.broken``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from whorl.errors import invalid

AS_TRAINED = "as trained"  # the variant that changes nothing
WINDOW = "window"
PROTOCOLS = ("same_last", "sliding", "non_overlapping")  # bits per byte; verdicts read the first one measured
RECALL = ("repeated_text_accuracy", "retrieval_accuracy")
TASK = ("exact_match", "token_accuracy")
LARGEST = 1e100
WHOLE = 0.5  # bits per byte that a model may lose past the trained length and still be whole, not broken


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


def lengths_of(rows: Iterable[Row], measures: Iterable[str]) -> tuple[int, ...]:
    """The lengths at which some of the rows has one of the measures or broke in it."""
    rows, wanted = tuple(rows), tuple(measures)
    found = {length for row in rows for measure in wanted for length in row.cells.get(measure, {})}
    found |= {length for row in rows for measure, length in row.broken if measure in wanted}
    return tuple(sorted(found))


def finite(value: object) -> float | None:
    """The value as a float, or None where it is no number, or so large that what is computed of it may be none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None  # pyright: ignore[reportOperatorIssue]


def read_rows(row: Mapping[str, Any], call: str) -> list[Row]:
    """The row, and the window that stands beside it where it carries one."""
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
    task = mapping(row.get("task"))
    on_text = list(_entries(by_length, "by_length", call))
    for entry in (*on_text, *_entries(task.get("by_length"), "task", call)):
        length = entry["length"]
        scores = {measure: entry.get(measure) for measure in (*RECALL, *TASK)}
        for measure, value in {**mapping(entry.get("bits_per_byte")), **scores}.items():
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
    attention = mapping(row.get("attention_by_distance"))
    depths = (mapping(entry.get("retrieval_by_depth")) for entry in on_text)
    return Row(
        label=row["label"],
        variant=variant,
        encoding=mapping(row.get("encoding")),
        seeds=tuple(row.get("seeds") or ()),
        facts=facts,
        claims={str(name): bool(value) for name, value in mapping(row.get("claims")).items()},
        warnings=tuple(str(warning) for warning in row.get("warnings") or ()),
        lengths=tuple(entry["length"] for entry in on_text),
        cells=cells,
        broken=frozenset(broken),
        curve=_points(row.get("learning_curve"), "step", "loss"),
        task=str(task.get("name", "task")) if task else None,
        validation=_points(row.get("validation"), "step", "bits_per_byte"),
        by_position=_bins(mapping(row.get("per_position")), "positions", "bits_per_byte"),
        by_depth={
            entry["length"]: bins
            for entry, depth in zip(on_text, depths, strict=True)
            if (bins := _bins(depth, "depth", "share"))
        },
        attention=tuple(_known(zip(attention.get("distance") or (), attention.get("weight") or (), strict=False))),
        head=tuple(attention.get("head") or ()),
        generated=tuple(one for one in row.get("generated") or () if isinstance(one, Mapping)),
        settings=mapping(row.get("settings")),
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


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, or else an empty one."""
    return value if isinstance(value, Mapping) else {}
