"""The ledger for people: short numbers for a table, and a Markdown page with every claim in both languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from whorl.claims.ledger import KINDS

TITLES = {
    "rotation": "The rotation",
    "decay": "Decay with the distance",
    "sinusoidal": "Sinusoidal codes, and what an ideal encoding does",
    "precision": "Precision",
    "aliasing": "Wavelengths, aliasing, and the base",
    "extension": "Longer contexts",
    "biases": "Biases, masks, and none",
    "compatibility": "Caches and linear attention",
    "statements": "Statements of the notes",
    "questions": "Questions of the notes",
    "flags": "What each encoding claims of itself",
}


def short(value: float | None) -> str:
    """A number in a few characters.

    >>> short(62.0937104), short(1707.0), short(2.2e-16), short(None)
    ('62.09', '1707', '2.2e-16', 'not finite')
    """
    if value is None:
        return "not finite"
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:.4g}"


def numbers_in_short(numbers: Mapping[str, float | None], most: int = 3) -> str:
    """The first of the numbers with their names."""
    shown = [f"{name}: {short(value)}" for name, value in list(numbers.items())[:most]]
    return "; ".join(shown) + (" …" if len(numbers) > most else "")


def verdict_of(claim: Mapping[str, Any]) -> str:
    """The verdict of a row of a document, and what was expected where that differs."""
    return claim["verdict"] if claim["as_expected"] else f"{claim['verdict']} (expected: {claim['expected']})"


def summary(document: Mapping[str, Any]) -> str:
    """The number of claims of each verdict, and the claims that are not as expected."""
    counts = ", ".join(f"{document['counts'][kind]} {kind}" for kind in KINDS if document["counts"][kind])
    red = document["unexpected"]
    rest = "all as expected" if not red else f"{len(red)} not as expected: {', '.join(red)}"
    return f"{len(document['claims'])} claims: {counts}; {rest}."


def markdown(document: Mapping[str, Any]) -> str:
    """The whole document as a page."""
    lines = [
        "# The ledger of claims",
        "",
        summary(document),
        f"Computed in {document['seconds']:.1f} s by whorl {document['whorl']} with torch {document['torch']}.",
    ]
    for topic, claims in groupby(document["claims"], key=lambda claim: claim["topic"]):
        lines += ["", f"## {TITLES.get(topic, topic)}"]
        for claim in claims:
            lines += ["", *_section(claim)]
    return "\n".join(lines) + "\n"


def _section(claim: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"### {claim['id']}: {verdict_of(claim)}", "", claim["statement"]["en"], "", claim["statement"]["zh"], ""]
    lines += [f"- said by: {claim['says']}", f"- tested: {claim['how']}"]
    if claim["numbers"]:
        lines.append(f"- measured: {numbers_in_short(claim['numbers'], most=99)}")
    for name, label in (("counterexample", "but"), ("command", "to decide it")):
        if claim[name]:
            lines.append(f"- {label}: {claim[name]}")
    if claim["source"] != "computed":
        lines.append(f"- source: {claim['source']}")
    return lines
