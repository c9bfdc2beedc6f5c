"""Tables of the small experiments, as lines of Markdown."""

from __future__ import annotations

from typing import Any

from measured import document, named, table, written

SETTINGS = {"press": "Press et al."}


def mean(cell: dict[str, float], form: str = ".3f") -> str:
    """A mean with half its interval."""
    half = (cell["high"] - cell["low"]) / 2
    return f"{written(cell['mean'], form)} ± {half:{form.lstrip('+')}}"


def bracket(cell: dict[str, float], form: str = ".3f") -> str:
    """A mean and its interval."""
    return "{} [{}, {}]".format(*(written(cell[key], form) for key in ("mean", "low", "high")))


def ablation(name: str) -> list[str]:
    """The losses of an ablation by length: the usual setting's mean, the others' difference from it."""
    rows = document("ablations")[name]["rows"]
    errors = [row["relativity_error"] for row in rows if "relativity_error" in row]
    lengths = [cell["length"] for cell in rows[0]["by_length"]]
    made = []
    for row in rows:
        cells = [
            mean(cell["same_last"]) if cell["difference"] is None else mean(cell["difference"]["same_last"], "+.3f")
            for cell in row["by_length"]
        ]
        made.append(
            [
                SETTINGS.get(row["setting"], row["setting"]),
                *cells,
                *([f"{row['relativity_error']:.0e}"] if errors else []),
            ]
        )
    return table([name, *map(str, lengths), *(["relativity error"] if errors else [])], made)


def classification() -> list[str]:
    """Accuracy of short-text classification by encoding, in per cent."""
    rows: dict[str, dict[str, str]] = {}
    for row in document("ablations")["classify"]["rows"]:
        own = rows.setdefault(row["dataset"], {})
        own[named(row["encoding"])] = mean(row["accuracy"], ".1f")
        own["chance"] = f"{row['chance']:.1f}"
    header = [key for key in next(iter(rows.values())) if key != "chance"] + ["chance"]
    return table(["", *header], [[dataset, *(own[key] for key in header)] for dataset, own in rows.items()])


def matching() -> list[str]:
    """Accuracy of long-text matching by encoding, tokens read and place of the evidence."""
    found = document("matching")
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for row in found["summary"]:
        rows.setdefault((row["encoding"], row["length"]), {})[row["evidence"]] = mean(row["accuracy"], ".1f")
    made = [[named(encoding), f"{length:,}", own["late"], own["early"]] for (encoding, length), own in rows.items()]
    gaps = [written(found["gaps"][place], "+.1f") for place in ("late", "early")]
    return table(
        ["encoding", "tokens read", "evidence late", "evidence early"], [*made, ["RoPE, 1,024 against 512", "", *gaps]]
    )


def question(name: str, length: str = "64") -> list[str]:
    """The losses of a question's settings at a length, and the difference of each from the first."""
    rows = document("trained-questions")["questions"][name]["rows"]
    cells = [row["by_length"][length] if "by_length" in row else row for row in rows]
    made = [
        [row["setting"] + (f", {row['factor']:.3g}" if row.get("factor") else ""), bracket(cell["loss"]), _less(cell)]
        for row, cell in zip(rows, cells, strict=True)
    ]
    if all("all tokens" in cell for cell in cells):
        made = [[*row, _less(cell["all tokens"])] for row, cell in zip(made, cells, strict=True)]
        return table(["", f"at {length}", "difference", "difference over all bytes"], made)
    return table(["", f"at {length}", "difference"], made)


def _less(cell: dict[str, Any]) -> str:
    """The difference from the first setting, which has none."""
    return "" if cell["difference"] is None else bracket(cell["difference"], "+.4f")


def position_by_depth() -> list[str]:
    """R² of the position after each layer."""
    rows = document("trained-questions")["questions"]["position-by-depth"]["rows"]
    made = [
        [
            f"codes times {row['scale']:g}",
            *(f"{cell['mean']:.3f}" for cell in row["layers"]),
            bracket(row["last less first"], "+.4f"),
        ]
        for row in rows
    ]
    return table(["R² after layer", *map(str, range(len(rows[0]["layers"]))), "last less first"], made)


def stages() -> list[str]:
    """The accuracy of masked tokens by stage of pre-training."""
    found = document("trained-questions")["questions"]["longer-stages"]["stages"]
    cells = (f"{stage['accuracy']['mean']:.3f}" for stage in found)
    return table(["length of the stage", *(str(stage["length"]) for stage in found)], [["accuracy", *cells]])


def entropy_by_length() -> list[str]:
    """Entropy of the last token's attention by length, in nats."""
    rows = document("trained-questions")["questions"]["entropy-by-length"]["rows"]
    lengths = list(rows[0]["by_length"])
    made = [
        [
            row["encoding"],
            *(f"{row['by_length'][n]['mean']:.2f}" for n in lengths),
            bracket(row["last less first"], "+.2f"),
        ]
        for row in rows
    ]
    return table(["", *lengths, f"{lengths[-1]} less {lengths[0]}"], made)


def linear_cost(*case: str) -> list[str]:
    """Time and memory of a form of linear attention by length."""
    rows = [
        [
            f"{row['length']:,}",
            *(" + ".join(map(str, row[f"{way} ms"])) for way in ("forward", "both")),
            *(f"{row[f'{way} MiB']:,}" for way in ("forward", "both")),
        ]
        for row in document("linear-attention-cost")["cases"][" ".join(case)]
    ]
    return table(["length", "forward ms", "with backward ms", "forward MiB", "with backward MiB"], rows, left=0)
