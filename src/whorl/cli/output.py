"""Printing, for every command: tables for people, JSON alone on stdout, the rest on stderr.

A terminal gets rich tables (which honour NO_COLOR); a pipe gets plain text that is never wrapped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whorl.dialects.documents import kind_of, named, open_at_once
from whorl.errors import WhorlError, printable

GAP = "…"  # a row of this alone stands for rows left out


def on_terminal() -> bool:
    """Whether stdout is a terminal. FORCE_COLOR does not count: colours in a file help nobody."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def say(text: str = "") -> None:
    """A line of the answer, on stdout; what in it a terminal would obey, as texts of files may have, is spelled out."""
    print(printable(text))


def say_lines(text: str) -> None:
    """A text of several lines, on stdout."""
    print(printable(text, lines=True))


def note(text: str, *, lines: bool = False) -> None:
    """A line beside the answer, or several, on stderr."""
    print(printable(text, lines=lines), file=sys.stderr)


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Says warnings of what is done inside as lines beside the answer, each once, without the file that raised them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(one.message) for one in caught):
        note(text)


def suggest(command: str) -> None:
    """The next command to type, for a person at a terminal."""
    if sys.stderr.isatty():
        note(f"next: {command}")


def say_json(data: Any) -> None:
    """The whole answer as JSON."""
    print(json_text(data))


def json_text(data: Any) -> str:
    return printable(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False), lines=True)


def refuse_existing(out: Path | None, call: str) -> None:
    """Raises, before any work is done, where the JSON could not be written after it."""
    if out is None:
        return
    if kind_of(out, call) is not None or out.is_symlink():  # one that leads nowhere
        raise WhorlError(f"{call}: {named(out)} exists, and recorded results are kept. Choose another name for --out.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhorlError(f"{call}: cannot make {named(out.parent)}: {error.strerror}. Choose another --out.") from None


def write_out(out: Path, content: str | bytes, call: str, option: str = "--out") -> None:
    """Writes an answer to the file that was asked for."""
    kind_of(out, call, f"Choose another {option}.")  # which refuses names that no file can have
    data = content if isinstance(content, bytes) else printable(content, lines=True).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out, "wb", opener=open_at_once) as file:
            file.write(data)
    except OSError as error:
        raise WhorlError(f"{call}: cannot write {named(out)}: {error.strerror}. Choose another {option}.") from None


def mean_text(value: dict[str, Any] | None, digits: int, sign: str = "") -> str:
    """A mean, and half of its interval where it has one; with ``sign="+"`` its sign is always shown.

    >>> mean_text({"mean": 50.04, "low": 48.0, "high": 52.08, "n": 3}, 1)
    '50.0 ±2.0'
    """
    if value is None:
        return "-"
    half = value["high"] - value["mean"]
    beside = f" ±{half:.{digits}f}" if value["n"] > 1 or half > 0 else ""
    return f"{value['mean']:{sign}.{digits}f}{beside}"


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table; the columns named in ``right`` hold numbers."""
    aligned = [name in right for name in header]
    rows = [[printable(cell) for cell in row] for row in rows]
    if on_terminal():
        _say_rich(header, rows, aligned)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, aligned, strict=True)
        )
        say("  ".join(cells).rstrip())


def _say_rich(header: Sequence[str], rows: Sequence[Sequence[str]], aligned: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(header):
        side, bold = "right" if aligned[i] else "left", "" if i else "bold"
        table.add_column(name, justify=side, no_wrap=i == 0 or aligned[i], style=bold)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
