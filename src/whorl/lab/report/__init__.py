"""The report of a comparison: a page for people, JSON and CSV for programs, each written whole or not at all."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError
from whorl.lab.report.page import page
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import LANGUAGES, Words
from whorl.lab.storage import replace_whole
from whorl.results import PROTOCOLS, RECALL, TASK, ComparisonResult

__all__ = ["write_csv", "write_json", "write_report"]

Comparison = Mapping[str, Any] | ComparisonResult  # what a comparison.json holds, or the record of it
COLUMNS = ("label", "variant", "length", "ratio", "protocol", "unit", "mean", "low", "high", "n")


def write_report(comparison: Comparison, path: str | os.PathLike[str], *, lang: str = "en") -> Path:
    """The path of the page written: one self-contained HTML file, in English ("en") or Chinese ("zh").

    ``comparison`` is what a comparison.json holds, or the record of it.

    >>> import tempfile
    >>> losses = [{"length": 64 * n, "bits_per_byte": {"same_last": 2.2 + n / 10}} for n in (1, 2)]
    >>> comparison = {"train_length": 64, "rows": [{"label": "rope", "by_length": losses}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(comparison, f"{folder}/report.html").read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    words = Words(lang, "write_report")
    return _write(path, page(ComparisonResult.of(comparison, "write_report"), words), "write_report")


def write_json(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """The path of the JSON written: the comparison, null for what is no finite number, and its verdict in words."""
    result = ComparisonResult.of(comparison, "write_json")
    said = {lang: Sentences(Findings(result), Words(lang)) for lang in LANGUAGES}
    verdict = {lang: {"verdict": one.paragraph(), "notes": one.notes()} for lang, one in said.items()}
    whole = dataclasses.replace(result, data={**result.data, "verdict": verdict})
    return _write(path, whole.to_json(), "write_json")


def write_csv(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """The path of the CSV written: a line for each label, variant, length and protocol; empty fields are gaps."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_lines(ComparisonResult.of(comparison, "write_csv")))
    return _write(path, out.getvalue(), "write_csv")


def _lines(result: ComparisonResult) -> Iterator[tuple[object, ...]]:
    for row in result.rows:
        for measure in (measure for measure in (*PROTOCOLS, *RECALL, *TASK) if row.has(measure)):
            unit = "bits per byte" if measure in PROTOCOLS else "share"
            protocol = f"{row.task}:{measure}" if measure in TASK else measure
            same = [other for other in result.rows if other.task == row.task]
            for length in sorted({n for other in same for n in other.cells.get(measure, {})}):
                cell = row.cells[measure].get(length)
                numbers = (cell.mean, cell.low, cell.high, cell.n) if cell else ("", "", "", 0)
                yield row.label, row.variant, length, length / result.trained, protocol, unit, *numbers


def _write(path: str | os.PathLike[str], content: str, call: str) -> Path:
    """Writes a file whole or not at all, so that no reader ever meets half of it."""
    target = Path(path)
    if target.is_dir():
        raise WhorlError(f"{call}: {target} is a folder. Name a file in it, as in {target / 'report.html'}.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(target, lambda made: made.write_bytes(content.encode(errors="replace")))
    except OSError as error:
        raise WhorlError(
            f"{call}: cannot write {target}: {error.strerror or error}. Choose a path that can be written."
        ) from error
    return target
