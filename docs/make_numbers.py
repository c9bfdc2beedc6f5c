"""Writes every measured number of README, docs and the pages of experiments/ from the files that hold them.

    python docs/make_numbers.py

Two kinds of marks, both comments in Markdown. A number in a sentence says where it lies (``measured.py``):

    takes <!--n gpu-decoding: steps/2048/rope/graph_us as .1f-->26.4<!--/n--> µs

A table is a function of one of TABLES, with its arguments behind it:

    <!--table losses gpu-comparison-->
    ...
    <!--/table-->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import experiment_tables
import lab_tables
import measured
import speed_tables

NUMBER = re.compile(r"<!--n (.+?)-->.*?<!--/n-->", re.DOTALL)
TABLES = (lab_tables, experiment_tables, speed_tables)
TABLE = re.compile(r"<!--table (\w+)((?: [^>]+?)?)-->\n.*?<!--/table-->", re.DOTALL)


def pages() -> Iterator[Path]:
    """The pages that may hold measured numbers."""
    yield measured.ROOT / "README.md"
    yield from sorted((measured.ROOT / "docs").glob("*.md"))
    yield from sorted((measured.ROOT / "experiments").glob("*.md"))


def filled(text: str) -> str:
    """A page with its numbers and tables written anew."""
    text = NUMBER.sub(lambda span: f"<!--n {span[1]}-->{measured.number(span[1])}<!--/n-->", text)
    return TABLE.sub(_table, text)


def _table(block: re.Match[str]) -> str:
    name, given = block[1], block[2].split()
    made = next((getattr(home, name) for home in TABLES if hasattr(home, name)), None)
    if made is None:
        raise LookupError(f"no table is called {name!r}")
    lines = made(*given)
    return "\n".join([f"<!--table {' '.join([name, *given])}-->", *lines, "<!--/table-->"])


def main() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            made = filled(text)
        except (LookupError, ValueError) as error:
            raise SystemExit(f"{page.relative_to(measured.ROOT)}: {error}") from None
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(page.relative_to(measured.ROOT))


if __name__ == "__main__":
    main()
