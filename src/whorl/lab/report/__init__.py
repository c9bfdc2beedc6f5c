"""The report of a comparison: a page for people, JSON and CSV for programs, each written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError
from whorl.lab.report.page import page
from whorl.lab.report.reading import PROTOCOLS, RECALL, TASK, Reading, read
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import LANGUAGES, Words
from whorl.lab.storage import replace_whole

__all__ = ["write_csv", "write_json", "write_report"]

COLUMNS = ("label", "variant", "length", "ratio", "protocol", "unit", "mean", "low", "high", "n")


def write_report(comparison: Mapping[str, Any], path: str | os.PathLike[str], *, lang: str = "en") -> Path:
    """The path of the page written: one self-contained HTML file, in English ("en") or Chinese ("zh").

    ``comparison`` is what a comparison.json holds.

    >>> import tempfile
    >>> losses = [{"length": 64 * n, "bits_per_byte": {"same_last": 2.2 + n / 10}} for n in (1, 2)]
    >>> comparison = {"train_length": 64, "rows": [{"label": "rope", "by_length": losses}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(comparison, f"{folder}/report.html").read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    words = Words(lang, "write_report")
    return _write(path, page(read(comparison, "write_report"), words), "write_report")


def write_json(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """The path of the JSON written: the comparison, null for what is no finite number, and its verdict in words."""
    findings = Findings(read(comparison, "write_json"))
    verdict = {}
    for lang in LANGUAGES:
        sentences = Sentences(findings, Words(lang))
        verdict[lang] = {"verdict": sentences.paragraph(), "notes": sentences.notes()}
    data = {**_finite(comparison), "verdict": verdict}
    return _write(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "write_json")


def write_csv(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """The path of the CSV written: a line for each label, variant, length and protocol; empty fields are gaps."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_lines(read(comparison, "write_csv")))
    return _write(path, out.getvalue(), "write_csv")


def _lines(reading: Reading) -> Iterator[tuple[object, ...]]:
    for row in reading.rows:
        for measure in (measure for measure in (*PROTOCOLS, *RECALL, *TASK) if row.has(measure)):
            unit = "bits per byte" if measure in PROTOCOLS else "share"
            protocol = f"{row.task}:{measure}" if measure in TASK else measure
            same = [other for other in reading.rows if other.task == row.task]
            for length in sorted({n for other in same for n in other.cells.get(measure, {})}):
                cell = row.cells[measure].get(length)
                numbers = (cell.mean, cell.low, cell.high, cell.n) if cell else ("", "", "", 0)
                yield row.label, row.variant, length, length / reading.trained, protocol, unit, *numbers


def _finite(value: Any) -> Any:
    """JSON data without NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
