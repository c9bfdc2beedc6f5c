"""Many results as one comparison: runs that differ in their seed alone become one row, with mean and interval.

With two seeds or more an interval is Student's t at 95 % over seeds; with one it is twice the standard error over the
samples of text, which says nothing of how another seed would come out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError
from whorl.lab.corpus import open_corpus
from whorl.lab.storage import RESULT, read_result
from whorl.registry import from_dict
from whorl.results import AS_TRAINED, COMPARISON_SCHEMA, NOISE, PROTOCOLS, ComparisonResult, RunResult

# Student's t, 97.5 %, for 1 to 30 degrees of freedom
T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# Settings that a label names where they tell runs apart.
MAY_DIFFER = ("layers", "width", "heads", "learning_rate", "weight_decay", "stages", "precision", "device", "corpus")

Found = dict[str, Any]


def t_quantile(freedom: int) -> float:
    """Student's t at 97.5 %.

    >>> t_quantile(2), t_quantile(1000)
    (4.303, 1.96)
    """
    return T[freedom - 1] if freedom <= len(T) else round(1.96 + 2.4 / freedom, 2)


def interval(values: Sequence[float | None], errors: Sequence[float | None] = ()) -> Found | None:
    """Mean, low, high and n of what seeds gave; None where nothing was measured.

    >>> interval([1.0, 2.0, 3.0])["n"], interval([1.0], [0.1])["high"]
    (3, 1.2)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) > 1:
        half = t_quantile(len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
    else:
        half = 2 * next((error for error in errors if error is not None), 0.0)
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(known)}


def collect(out: Path) -> list[RunResult]:
    """Every finished result under OUT/runs, in the order of their labels and seeds."""
    results = [read_result(path.parent) for path in sorted(Path(out).glob(f"runs/*/{RESULT}"))]
    if not results:
        raise WhorlError(f"lab: no finished run under {out}. Give the folder that `whorl compare --out` wrote to.")
    return sorted(results, key=lambda result: (result.label, result.seed, result.id))


def aggregate(
    results: Sequence[RunResult], *, corpus: Found | None = None, title: str = "", command: str = ""
) -> ComparisonResult:
    """The comparison of finished runs."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        same = {key: value for key, value in result.config.items() if key != "seed"}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(result)
    lengths = sorted({length for result in results for length in result.config["lengths"]})
    trained = check_lengths(result.train_length for result in results)
    labels = labels_of([(group[0].label, group[0].config, group[0].id) for group in groups.values()])
    rows = [row for label, group in zip(labels, groups.values(), strict=True) for row in _rows(label, group)]
    fewest = min(len(group) for group in groups.values())
    data = {
        "schema": COMPARISON_SCHEMA,
        "title": title or ", ".join(dict.fromkeys(row["label"] for row in rows)),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "train_length": trained,
        "lengths": lengths,
        "corpus": corpus or {"name": results[0].config["corpus"]},
        "rows": rows,
        "command": command,
        "results": [f"runs/{result.id}/{RESULT}" for result in results],
        "environment": results[0].environment,
        "noise": _noise(list(groups.values())),
        "interval": "seeds" if fewest > 1 else "documents",
    }
    return ComparisonResult.of(data, "aggregate")


def check_lengths(trained: Iterable[int]) -> int:
    """The length that all runs were trained at; where they differ, a WhorlError."""
    found = sorted(set(trained))
    if len(found) > 1:
        raise WhorlError(
            f"lab: runs trained at {', '.join(map(str, found))} are not one comparison. "
            "Keep them in folders of their own."
        )
    return found[0]


def labels_of(runs: Sequence[tuple[str, Mapping[str, Any], str]]) -> list[str]:
    """A label for each run of (full label, config, id): its name, with as much beside it as tells it from others."""
    kinds: dict[str, set[str]] = {}
    for full, _, _ in runs:
        kinds.setdefault(full.partition(" ")[0], set()).add(full)
    labels = [full if len(kinds[name := full.partition(" ")[0]]) > 1 else name for full, _, _ in runs]
    for size in MAY_DIFFER:
        values = {json.dumps(config[size]) for _, config, _ in runs}
        if len(values) > 1 and len(set(labels)) < len(labels):
            labels = [f"{label} {size}={config[size]}" for label, (_, config, _) in zip(labels, runs, strict=True)]
    if len(set(labels)) < len(labels):  # something else differs, and the id tells
        labels = [f"{label} {run}" for label, (_, _, run) in zip(labels, runs, strict=True)]
    return labels


def _rows(label: str, group: list[RunResult]) -> list[Found]:
    first = group[0]
    known = {
        "label": label,
        "encoding": first.encoding,
        "seeds": [result.seed for result in group],
        "parameters": first.parameters,
        "encoding_parameters": first.encoding_parameters,
        "tokens_per_second": _mean([result.tokens_per_second for result in group]),
        "peak_memory_bytes": max(result.peak_memory_bytes for result in group),
        "claims": dataclasses.asdict(from_dict(first.encoding).claims) if first.claims is None else first.claims,
        "warnings": list(dict.fromkeys(text for result in group for text in _warnings(result))),
    }
    evaluated = [result for result in group if result.evaluations]
    variants = [(one["variant"], one["fine_tuned_steps"]) for one in evaluated[0].evaluations] if evaluated else []
    tasks = [result.task for result in group]
    rows = []
    for place, (variant, tuned) in enumerate(variants or [(AS_TRAINED, 0)]):
        own = [result.evaluations[place]["by_length"] for result in evaluated]
        row = known | {
            "variant": f"{variant}, tuned {tuned} steps" if tuned else variant,
            "fine_tuned_steps": tuned,
            "by_length": _by_length(own),
            "learning_curve": _curve(group) if variant == AS_TRAINED and not tuned else [],
            "task": _task([result.evaluations[place].get("task") for result in evaluated] if place else tasks),
        }
        rows.append(row)
    windows = [result.window_baseline["by_length"] for result in evaluated if result.window_baseline]
    if windows and not any(row["variant"] == "window" for row in rows):
        rows[0]["window_baseline"] = {"by_length": _by_length(windows)}
    return rows


def _warnings(result: RunResult) -> list[str]:
    stopped = result.stopped_early
    return [*result.warnings, *([f"seed {result.seed}: stopped early, {stopped}"] if stopped else [])]


def _by_length(tables: list[list[Found]]) -> list[Found]:
    out = []
    for cells in zip(*tables, strict=True):
        bits = {
            way: interval([cell["bits_per_byte"][way] for cell in cells], [cell["stderr"][way] for cell in cells])
            for way in PROTOCOLS
        }
        shares = {
            key: interval([cell[key] for cell in cells])
            for key in ("accuracy", "repeated_text_accuracy", "retrieval_accuracy")
        }
        out.append({"length": cells[0]["length"], "ratio": cells[0]["ratio"], "bits_per_byte": bits, **shares})
    return out


def _curve(group: list[RunResult]) -> list[Found]:
    """The mean loss over seeds at the steps that every one of them logged."""
    by_seed = [{row["step"]: row["loss"] for row in result.metrics} for result in group]
    shared = sorted(set.intersection(*(set(rows) for rows in by_seed)))
    return [{"step": step, "loss": statistics.fmean(rows[step] for rows in by_seed)} for step in shared]


def _task(found: list[Found | None]) -> Found | None:
    tasks = [one for one in found if one]
    if not tasks:
        return None
    by_length = [
        {
            "length": cells[0]["length"],
            "items": cells[0]["items"],
            **{key: interval([cell[key] for cell in cells]) for key in ("exact_match", "token_accuracy")},
        }
        for cells in zip(*(task["by_length"] for task in tasks), strict=True)
    ]
    return {"name": tasks[0]["name"], "by_length": by_length}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _noise(groups: list[list[RunResult]]) -> float:
    """The difference of two means that chance alone makes at 95 %, from how seeds scatter up to the trained length.

    NOISE where there is one seed.
    """
    spreads = []
    for group in groups:
        tables = [result.evaluations[0]["by_length"] for result in group if result.evaluations]
        for cells in zip(*tables, strict=True) if len(tables) > 1 else ():
            values = [cell["bits_per_byte"]["same_last"] for cell in cells]
            if cells[0]["ratio"] <= 1 and None not in values:
                spreads.append((statistics.variance(values), len(values)))
    if not spreads:
        return NOISE
    freedom = sum(n - 1 for _, n in spreads)
    pooled = sum(variance * (n - 1) for variance, n in spreads) / freedom
    fewest = min(n for _, n in spreads)
    return t_quantile(freedom) * math.sqrt(2 * pooled / fewest)


def corpus_facts(out: Path, config: Mapping[str, Any]) -> Found:
    """What is known of the text of a run whose corpus is packed under ``out``; of a task its name alone."""
    if config["corpus"].startswith("task:"):
        return {"name": config["corpus"]}
    return open_corpus(config["corpus"], out / "corpus", config["corpus_digest"]).facts()
