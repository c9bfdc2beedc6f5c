"""Tables of the lab's committed results, as lines of Markdown."""

from __future__ import annotations

from functools import cache

import measured
from measured import named, table
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.verdict import Findings
from whorl.lab.report.words import Words
from whorl.results import ComparisonResult

ENGLISH = Words("en")
LOSS, FOUND = "same_last", "retrieval_accuracy"
# What a simulated comparison is of, and what a migration is compared at, in words.
SIMULATED = {
    "2 alike": "two encodings",
    "3 alike": "three encodings",
    "6 alike": "six encodings",
    "those measured": "RoPE, ALiBi and T5 as measured",
}
MIGRATED = {
    "before": "before",
    "right_after": "right after, not trained",
    "after": "after {steps} steps",
    "from_scratch": "from scratch, {steps} steps",
}
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
        noise = "count how the text was sampled, not what another seed would change"
    elif found.differences:
        noise = "count both noises, that of the seeds and that of the text that was sampled"
    else:
        noise = "are over seeds"
    return [
        f"{sizes[len(sizes) // 2]:.1f} M parameters, trained at {found.trained:,} bytes of "
        f"{TEXTS.get(str(found.corpus['name']), found.corpus['name'])}, {seeds}; the report's intervals {noise}.",
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
    """What the report of a comparison says of it, no more than its intervals carry: a list item for each sentence."""
    return [f"- {sentence}" for sentence in Sentences(Findings(comparison(name)), ENGLISH).paragraph()]


def verdict_rates() -> list[str]:
    """How often a difference is called that is none, and found where it is one, at the trained length."""
    found = measured.document("verdict-rates")
    rows = []
    for row in (row for row in found["rows"] if row["length"] == 64):
        seeds = "one seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
        named_one = ", baseline named" if row["baseline_named"] else ""
        case = f"{SIMULATED[row['models']]}{named_one}, {seeds}, {row['scored_bytes']:,} bytes"
        rows.append([case, percent(row["called"]), percent(row["found"], 0)])
    return table(
        ["at the trained length", "called where nothing differs", f"{found['difference']:g} bits are found"], rows
    )


def percent(share: float, places: int = 1) -> str:
    return f"{measured.written(round(100 * share, places) + 0.0, f'.{places}f')} %"  # + 0.0: no minus before a zero


def migration(name: str) -> list[str]:
    """The four losses of a migration by length, bits per byte of the same last bytes."""
    found = measured.document(name)
    rows, lengths = [], []
    for key, said in MIGRATED.items():
        bits = {cell["length"]: cell["bits_per_byte"][LOSS] for cell in found["by_length"][key]}
        lengths = [length for length in bits if length >= found["train_length"]]
        rows.append([said.format(steps=found["steps"]), *(f"{bits[length]:.2f}" for length in lengths)])
    return table(["", *map(str, lengths)], rows)


def encoding_cost(name: str) -> list[str]:
    """The share of a training step that each encoding takes, least first."""
    rows = sorted(measured.document(name)["encodings"], key=lambda row: row["share"])
    return table(
        ["encoding", "share of the step"], [[named(row["encoding"]), percent(row["share"], 0)] for row in rows]
    )
