"""The report of a comparison: a page for people, JSON and CSV for programs, each written whole or not at all."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whorl import WhorlError
from whorl.dialects.documents import kind_of
from whorl.errors import printable
from whorl.lab.report.page import page
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import LANGUAGES, Words
from whorl.lab.storage import is_there, replace_whole
from whorl.result_rows import PROTOCOLS, RECALL, TASK
from whorl.results import COMPARISON, ComparisonResult

__all__ = ["write_all", "write_csv", "write_json", "write_report"]

Comparison = Mapping[str, Any] | ComparisonResult  # what a comparison.json holds, or the record of it
TABLE, PAGE = "comparison.csv", "report.html"
EARLIER = "reports"  # the folder of those that were written before, each in one named after its date
FORMULA = ("=", "+", "-", "@")  # what one begins with
COLUMNS = ("label", "variant", "length", "ratio", "protocol", "unit", "mean", "low", "high", "n")


def write_all(comparison: Comparison, out: Path, lang: str = "en") -> tuple[ComparisonResult, Path]:
    """The comparison with its verdict in words, and the path of its page, written to ``out`` with JSON and CSV.

    What an earlier comparison left there is moved to OUT/reports/DATE first: nothing that was written is lost.
    """
    Words(lang, "write_report")  # one that is unknown is found before anything is moved
    _keep_earlier(out)
    found = ComparisonResult.read(write_json(comparison, out / COMPARISON))
    write_csv(found, out / TABLE)
    return found, write_report(found, out / PAGE, lang=lang)


def _keep_earlier(out: Path) -> None:
    there = [out / name for name in (PAGE, TABLE, COMPARISON) if is_there(out / name)]
    if not there:
        return
    try:
        written = datetime.fromtimestamp(max(path.stat().st_mtime for path in there), UTC)
        base = out / EARLIER / written.strftime("%Y-%m-%dT%H%M%SZ")
        names = itertools.chain([base], (base.with_name(f"{base.name}-{i}") for i in itertools.count(2)))
        folder = next(path for path in names if not path.exists())
        folder.mkdir(parents=True)
        for path in there:  # the JSON last: where it is, the others were
            path.rename(folder / path.name)
    except (OSError, ValueError, OverflowError) as error:  # no place to move them to, or a date that no calendar has
        raise WhorlError(
            f"lab: cannot move what an earlier comparison left in {out}: {error}. Move it, or choose another --out."
        ) from None


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
    verdict = {
        lang: {"verdict": one.paragraph(), "notes": one.notes(), **({"unequal": top} if (top := one.unequal()) else {})}
        for lang, one in said.items()
    }
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
                ratio = length / result.trained
                yield _text(row.label), _text(row.variant), length, ratio, _text(protocol), unit, *numbers


def _text(cell: str) -> str:
    """A text as a cell that no program of tables takes for a formula to compute."""
    return f"'{cell}" if cell[:1] in FORMULA else cell


def _write(path: str | os.PathLike[str], content: str, call: str) -> Path:
    """Writes a file whole or not at all, so that no reader ever meets half of it."""
    target = Path(path)
    if kind_of(target, call) == "folder":
        raise WhorlError(f"{call}: {target} is a folder. Name a file in it, as in {target / 'report.html'}.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(target, lambda made: made.write_bytes(printable(content, lines=True).encode()))
    except OSError as error:
        raise WhorlError(
            f"{call}: cannot write {target}: {error.strerror or error}. Choose a path that can be written."
        ) from error
    return target
