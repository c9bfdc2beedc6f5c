"""Tables of the lab's committed results, as lines of Markdown."""

from __future__ import annotations

from functools import cache

import measured
from measured import table

from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import Words
from whorl.results import ComparisonResult

ENGLISH = Words("en")
LOSS, FOUND = "same_last", "retrieval_accuracy"
TEXTS = {"site-packages": "Python sources", "stdlib": "Python's standard library"}


@cache
def comparison(name: str) -> ComparisonResult:
    return ComparisonResult.read(measured.source(name))


def about(name: str) -> list[str]:
    """How a comparison was made, what its table shows, and which of the two noises its intervals know."""
    found = comparison(name)
    sizes = sorted(row.facts["parameters"] / 1e6 for row in found.rows if row.as_trained)
    seeds = "one seed" if found.seeds == 1 else f"the mean of {found.seeds} seeds"
    if found.interval == "documents":
        noise = "know how the text was sampled and not what another seed would change"
    elif found.differences:
        noise = "know both noises, that of the seeds and that of the text that was sampled"
    else:
        noise = "are over seeds"
    return [
        f"{sizes[len(sizes) // 2]:.1f} M parameters, trained at {found.trained:,} bytes of "
        f"{TEXTS.get(str(found.corpus['name']), found.corpus['name'])}, {seeds}; intervals in the report {noise}.",
        "Bits per byte of the same last bytes with ever more text before them, lower is better; in the last column the "
        f"share of hidden values that are found again in {found.lengths[-1]:,} bytes. Made by `{found.command}`.",
    ]


def losses(name: str) -> list[str]:
    """Bits per byte of every row from the trained length on, and what is found again at the longest."""
    found = comparison(name)
    lengths = [length for length in found.lengths if length >= found.trained]
    rows = []
    for row in (row for row in found.rows if not row.beside):
        bits = [row.at(LOSS, length) for length in lengths]
        share = row.at(FOUND, lengths[-1])
        rows.append(
            [
                ENGLISH.name(row.label, row.variant),
                *("" if one is None else f"{one:.2f}" for one in bits),
                "" if share is None else f"{100 * share:.0f} %",
            ]
        )
    return table(["", *(f"{length:,}" for length in lengths), f"found at {lengths[-1]:,}"], rows)


def verdict(name: str) -> list[str]:
    """What the report of a comparison says of it, no more than its intervals carry."""
    return [" ".join(Sentences(Findings(comparison(name)), ENGLISH).paragraph())]
