"""Texts with labels from a user's own file: lines of JSON with text and label, or of a label, a tab and a text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NoReturn

from whorl.dialects.documents import read_whole, value_of
from whorl.errors import WhorlError, invalid

Pieces = list[tuple[str, int]]  # texts and their labels

LARGEST = 2**28  # bytes of such a file
TESTED = 5  # of so many texts one is to test on


def read_lines(file: str | Path, call: str, wanted: str) -> list[tuple[str, str]]:
    """The lines of a file that are not empty, each behind its place: the file and the number of the line."""
    data = read_whole(file, wanted, at_most=LARGEST, call=call, remedy=f"Give a file of {wanted}.")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise WhorlError(f"{call}: {file} is not UTF-8 at byte {error.start}. Convert it to UTF-8.") from None
    return [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def object_of(call: str, line: str) -> dict[str, Any]:
    """The object that a line of JSON holds."""

    def refuse(why: str) -> NoReturn:
        raise WhorlError(f"{call}: no JSON, {why.replace('in line 1, column', 'at column')}. Write one object a line.")

    row = value_of(line, refuse)
    if not isinstance(row, dict):
        raise WhorlError(f"{call}: a {type(row).__name__} where an object must be. Write one object a line.")
    return row


def read_labelled(file: str | Path) -> tuple[Pieces, Pieces, list[str]]:
    """Texts to train on and texts to test on, with the number of their label, and the labels by number.

    About a fifth are to test on, by what they contain, so that no text is on both sides.
    """
    lines = read_lines(file, "classify", "texts with labels")
    rows = [_row(f"classify {place}", line) for place, line in lines]
    labels = sorted({label for _, label in rows})
    if len(labels) < 2:
        raise invalid(f"classify {file}", "labels", "two or more", labels, "Give texts of different labels.")
    sides: tuple[Pieces, Pieces] = ([], [])
    for text, label in rows:
        tested = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % TESTED == 0
        sides[tested].append((text, labels.index(label)))
    for side, what in zip(sides, ("train", "test"), strict=True):
        if not side:
            raise WhorlError(f"classify: {file} has {len(rows)} texts, and none of them falls to {what} on. Give more.")
    return *sides, labels


def _row(call: str, line: str) -> tuple[str, str]:
    if line.lstrip().startswith("{"):
        row = object_of(call, line)
        text, label = row.get("text"), row.get("label")
    else:
        label, _, text = line.partition("\t")
    if not isinstance(text, str) or not text.strip() or not isinstance(label, (str, int)) or not str(label).strip():
        raise WhorlError(
            f'{call}: no label and text. Write {{"label": …, "text": …}}, or the label, a tab and the text.'
        )
    return text, str(label).strip()
