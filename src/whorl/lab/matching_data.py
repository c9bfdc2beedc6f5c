"""Triples of long texts: A, and which of B and C is closer to it; from a file, or made to decide past a given token.

A file has one JSON object a line, as CAIL2019-SCM (Xiao et al. 2019, "CAIL2019-SCM: A Dataset of Similar Case Matching
in Legal Domain"): strings under A, B and C, and "B" or "C" under label. Without labels B is right, and half of the
lines have B and C swapped, so that a constant answer scores 50 %.

The stand-in is source text of Python's standard library. Each text has a subject, a character that stands nowhere else,
strewn over a short span; A and the right candidate share it. The span lies past token 512, or before it in the control.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.lab.corpus import read_documents, split
from whorl.lab.labelled_texts import object_of, read_lines
from whorl.position_ids import whole_number

Kind = Literal["char", "word"]
Evidence = Literal["late", "early"]
EVIDENCES: tuple[Evidence, ...] = ("late", "early")

PAD, UNKNOWN, FIRST = range(3)

# Characters written without spaces between words: each is a word of its own.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+|[^\\w\\s]")

# Debt, marriage, vehicle, house, injury, theft, tax, land: what a case may be about.
SUBJECTS = "债婚车房伤盗税地"
SPAN, MENTIONS = 256, 64  # tokens that the subject is strewn over, and how many of them it takes
HALF = 512  # tokens on either side of where the evidence may lie
HELD_OUT = 5  # one in so many triples of a file is kept for the test


@dataclass(frozen=True)
class Triple:
    """Three texts, and which of B and C is closer to A."""

    a: str
    b: str
    c: str
    label: Literal["B", "C"]


def read_triples(path: str | Path, *, seed: int = 0) -> list[Triple]:
    """The triples of a file of JSON lines; a line that is none raises, with its number."""
    rows = [_row(place, line) for place, line in read_lines(path, "read_triples", "JSON lines")]
    if not rows:
        raise WhorlError(f"read_triples: {path} has no triples. Give one JSON object with A, B and C a line.")
    unlabelled = [i for i, row in enumerate(rows) if row.get("label") is None]
    swapped = set(random.Random(seed).sample(unlabelled, len(unlabelled) // 2))
    return [_triple(row, swap=i in swapped) for i, row in enumerate(rows)]


def _row(place: str, line: str) -> dict[str, Any]:
    call = f"read_triples: {place}"
    row = object_of(call, line)
    for field in "ABC":
        if not isinstance(row.get(field), str) or not row[field].strip():
            raise invalid(call, field, "a text", row.get(field))
    if row.get("label") not in (None, "B", "C"):
        raise invalid(call, "label", "'B' or 'C'", row["label"], "Leave it out where B is right.")
    return row


def _triple(row: dict[str, Any], *, swap: bool) -> Triple:
    if swap:
        return Triple(row["A"], row["C"], row["B"], "C")
    return Triple(row["A"], row["B"], row["C"], row.get("label") or "B")


def held_out(triples: Sequence[Triple], *, seed: int = 0) -> tuple[list[Triple], list[Triple]]:
    """Triples to train on, and a fifth of them, drawn by the seed, to test on.

    >>> train, test = held_out([Triple(str(i), "b", "c", "B") for i in range(10)], seed=1)
    >>> len(train), len(test)
    (8, 2)
    """
    if len(triples) < 2:
        raise WhorlError(f"held_out: {len(triples)} triples cannot be split in two. Give more, or a file to test on.")
    drawn = set(random.Random(seed).sample(range(len(triples)), max(1, len(triples) // HELD_OUT)))
    return [one for i, one in enumerate(triples) if i not in drawn], [triples[i] for i in sorted(drawn)]


def tokenize(text: str, kind: Kind) -> list[str]:
    """The tokens of a text: its characters, or its words, numbers and marks, characters written without spaces alone.

    >>> tokenize("债务 of 12 yuan.", "word")
    ['债', '务', 'of', '12', 'yuan', '.']
    """
    if kind not in ("char", "word"):
        raise unknown("tokens", kind, ("char", "word"), call="tokenize")
    return list(text) if kind == "char" else WORD.findall(text)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have a number of their own; 0 is padding and 1 every other token."""

    kind: Kind
    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], kind: Kind, *, most: int = 4000) -> Vocabulary:
        """The ``most`` commonest tokens of these texts."""
        counts = Counter(token for text in texts for token in tokenize(text, kind))
        if not counts:
            raise WhorlError(f"Vocabulary: no {kind}s in these texts. Give texts to count.")
        ordered = sorted(counts, key=lambda token: (-counts[token], token))  # ties by spelling: the same everywhere
        return cls(kind, tuple(ordered[:most]))

    def __len__(self) -> int:
        return FIRST + len(self.words)

    def encode(self, text: str, length: int) -> list[int]:
        """The numbers of the first ``length`` tokens of a text; a text without tokens is one unknown token."""
        number = _numbers(self)
        return [number.get(token, UNKNOWN) for token in tokenize(text, self.kind)[:length]] or [UNKNOWN]


@cache
def _numbers(vocabulary: Vocabulary) -> dict[str, int]:
    return {word: FIRST + i for i, word in enumerate(vocabulary.words)}


def encode_triples(triples: Sequence[Triple], vocabulary: Vocabulary, length: int) -> tuple[Tensor, Tensor]:
    """Tokens (triples, 3, length) of A, B and C, cut at ``length`` and padded, and the answers, 0 for B and 1 for C."""
    whole_number("encode_triples", "length", length, least=1)
    tokens = torch.full((len(triples), 3, length), PAD)
    for i, triple in enumerate(triples):
        for j, text in enumerate((triple.a, triple.b, triple.c)):
            numbers = vocabulary.encode(text, length)
            tokens[i, j, : len(numbers)] = torch.tensor(numbers)
    return tokens, torch.tensor([int(triple.label == "C") for triple in triples])


def stand_in(
    count: int, *, evidence: Evidence, side: Literal["train", "test"], kind: Kind = "char", seed: int = 0
) -> list[Triple]:
    """``count`` triples of 1,024 tokens a text, whose evidence lies past token 512 ("late") or before it ("early").

    Texts to train on and to test on come from different files. Half of the answers are B.

    >>> one = stand_in(1, evidence="late", side="test")[0]
    >>> len(one.a), any(subject in one.a[:512] for subject in SUBJECTS)
    (1024, False)
    """
    whole_number("stand_in", "count", count, least=1)
    if evidence not in EVIDENCES:
        raise unknown("evidence", evidence, EVIDENCES, call="stand_in")
    if side not in ("train", "test"):
        raise unknown("side", side, ("train", "test"), call="stand_in")
    draw = random.Random(f"{seed}/{evidence}/{side}/{kind}")
    documents = _documents(side, kind)
    made = []
    for i in range(count):
        subject, other = draw.sample(SUBJECTS, 2)
        a, right, wrong = (_text(draw, documents, one, evidence, kind) for one in (subject, subject, other))
        made.append(Triple(a, wrong, right, "C") if i % 2 else Triple(a, right, wrong, "B"))
    draw.shuffle(made)
    return made


def _text(draw: random.Random, documents: list[list[str]], subject: str, evidence: Evidence, kind: Kind) -> str:
    plain, telling = (_piece(draw, documents) for _ in range(2))
    start = draw.randrange(HALF - SPAN + 1)
    for place in draw.sample(range(start, start + SPAN), MENTIONS):
        telling[place] = subject
    tokens = plain + telling if evidence == "late" else telling + plain
    return ("" if kind == "char" else " ").join(tokens)


def _piece(draw: random.Random, documents: list[list[str]]) -> list[str]:
    document = draw.choice(documents)
    start = draw.randrange(len(document) - HALF + 1)
    return document[start : start + HALF]


@cache
def _documents(side: str, kind: Kind) -> list[list[str]]:
    """The tokens of the files on one side that are long enough, without the subjects."""
    texts = split(read_documents("stdlib")[0])[side == "test"]
    tokens = (tokenize(text.decode("utf-8", "ignore"), kind) for text in texts)
    return [kept for one in tokens if len(kept := [t for t in one if t not in SUBJECTS]) >= HALF]
