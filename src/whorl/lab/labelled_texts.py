"""Texts with labels from a user's own file: lines of JSON with text and label, or of a label, a tab and a text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from whorl.errors import WhorlError, invalid

Pieces = list[tuple[str, int]]  # texts and their labels

TESTED = 5  # of so many texts one is to test on


def read_lines(file: str | Path, call: str, wanted: str) -> list[tuple[str, str]]:
    """The lines of a file that are not empty, each behind its place: the file and the number of the line."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise WhorlError(f"{call}: cannot read {file}: {error.strerror}. Give a file of {wanted}.") from None
    except UnicodeDecodeError as error:
        raise WhorlError(f"{call}: {file} is not UTF-8 at byte {error.start}. Convert it to UTF-8.") from None
    return [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]


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
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise WhorlError(f"{call}: no JSON, {error.msg} at column {error.colno}.") from None
        text, label = row.get("text"), row.get("label")
    else:
        label, _, text = line.partition("\t")
    if not isinstance(text, str) or not text.strip() or not isinstance(label, (str, int)) or not str(label).strip():
        raise WhorlError(
            f'{call}: no label and text. Write {{"label": …, "text": …}}, or the label, a tab and the text.'
        )
    return text, str(label).strip()
