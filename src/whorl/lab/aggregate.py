"""Many results as one comparison: runs that differ in their seed alone become one row, with mean and interval.

With two seeds or more the interval of a row is Student's t at 95 % over seeds; with one it is twice the standard error
over the samples of text, which says nothing of how another seed would come out. Rows are held against each other by
their paired differences (``differences.py``), not by these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whorl import WhorlError, from_dict
from whorl.dialects.documents import kind_of, names_in
from whorl.lab.corpus import packed_facts
from whorl.lab.differences import EXACT, LOSS, PROBED, Scores, best_label, check_baseline, differences, score_of
from whorl.lab.fairness import STAGE, check_fair
from whorl.lab.settings import in_full
from whorl.lab.statistics import interval, share_interval
from whorl.lab.storage import RESULT, is_there, read_result
from whorl.result_rows import AS_TRAINED, PROTOCOLS, RECALL, TASK, WINDOW
from whorl.results import COMPARISON, COMPARISON_SCHEMA, ComparisonResult, Difference, RunResult

# Settings that a label names where they tell runs apart.
MAY_DIFFER = (
    "layers", "width", "heads", "kv_heads", "activation", "dropout", "learning_rate", "weight_decay", "stages",
    "precision", "device", "corpus", "tokenizer", "recall",
)  # fmt: skip

DEPTHS = 5  # bins of how deep in the text a key and value were hidden

Found = dict[str, Any]


def collect(out: Path) -> list[RunResult]:
    """Every finished result under OUT/runs, in the order of the last comparison there; new ones after it, by label."""
    home = Path(out) / "runs"
    folders = [home / name for name in names_in(home, "lab")] if kind_of(home, "lab") == "folder" else []
    results = [read_result(folder) for folder in folders if is_there(folder / RESULT)]
    if not results:
        raise WhorlError(f"lab: no finished run under {out}. Give the folder that `whorl compare --out` wrote to.")
    before: list[str] = []
    with contextlib.suppress(WhorlError):  # none there, or none that can be read
        before = [Path(path).parent.name for path in ComparisonResult.read(Path(out) / COMPARISON).results]
    place = {run: i for i, run in enumerate(before)}
    return sorted(results, key=lambda one: (place.get(one.id, len(place)), one.label, one.seed, one.id))


def aggregate(
    results: Sequence[RunResult],
    *,
    corpus: Found | None = None,
    title: str = "",
    command: str = "",
    baseline: str | None = None,
    factors: Iterable[str] = (),
    unequal: bool = False,
) -> ComparisonResult:
    """The comparison of finished runs.

    ``baseline`` is the label that differences are taken to; unless given it is the best at the trained length.
    ``factors`` are settings that are compared beside encodings. Runs that differ in others are refused, unless they
    are meant to be ``unequal``, which the comparison then says.
    """
    factors = tuple(factors)
    trained = check_lengths(result.train_length for result in results)
    apart = check_fair([result.config for result in results], factors, unequal=unequal)
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        same = {key: value for key, value in result.config.items() if key != "seed"}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(result)
    labels = labels_of([(group[0].label, group[0].config, group[0].id) for group in groups.values()])
    check_baseline(baseline, labels)
    for group in groups.values():
        _check_alike(group)
    named = dict(zip(labels, groups.values(), strict=True))
    rows = [row for label, group in named.items() for row in _rows(label, group, factors)]
    fewest = min(len(_scored_seeds(group)) for group in groups.values())
    found, chosen = _differences(named, trained, baseline)
    data = {
        "schema": COMPARISON_SCHEMA,
        "title": title or ", ".join(dict.fromkeys(row["label"] for row in rows)),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "train_length": trained,
        "lengths": sorted({length for result in results for length in result.config["lengths"]}),
        "corpus": corpus or {"name": results[0].config["corpus"]},
        "rows": rows,
        "command": command,
        "results": [f"runs/{result.id}/{RESULT}" for result in results],
        "environment": results[0].environment,
        "interval": "seeds" if fewest > 1 else "documents",
        "baseline": chosen,
        "baseline_named": baseline is not None,
        "factors": list(factors),
        "unequal": apart,
        "differences": [_entry(one) for one in found],
    }
    return ComparisonResult.of(data, "aggregate")


def _differences(
    groups: Mapping[str, list[RunResult]], trained: int, named: str | None
) -> tuple[list[Difference], str | None]:
    """Every paired difference, and the label of the baseline: the one named, else the best at the trained length."""
    out, chosen = [], named
    for measure in (LOSS, EXACT, *RECALL):
        rows = [row for label, group in groups.items() for row in _scores(label, group, measure)]
        lengths = sorted({length for row in rows if row.as_trained for length in row.at})
        if not lengths:
            continue
        reference = max((length for length in lengths if length <= trained), default=lengths[0])
        chosen = chosen or best_label(rows, reference, highest=measure != LOSS)
        if chosen is not None:
            out += differences(rows, measure, reference, chosen, named=named is not None)
    return out, chosen


def _entry(one: Difference) -> Found:
    """A difference as JSON has it."""
    return {**dataclasses.asdict(one), "row": list(one.row), "other": list(one.other)}


def _scores(label: str, group: list[RunResult], measure: str) -> list[Scores]:
    """The rows of one model in one measure: as trained, repaired, and its window."""
    rows: dict[str, Scores] = {}
    for result in group:
        if measure == EXACT:
            tables = {AS_TRAINED: result.task["by_length"]} if result.task else {}
            tables |= {_variant(one): one["task"]["by_length"] for one in result.evaluations if one.get("task")}
        else:
            tables = {_variant(one): one["by_length"] for one in result.evaluations}
            if result.window_baseline:
                tables.setdefault(WINDOW, result.window_baseline["by_length"])
        for variant, cells in tables.items():
            row = rows.setdefault(
                variant, Scores((label, variant), result.encoding["name"], text=_scored_on(result.config))
            )
            for cell in cells:
                score = score_of(cell, measure)
                if score is not None:
                    row.at.setdefault(cell["length"], {})[result.seed] = score
    return list(rows.values())


def _scored_on(config: Mapping[str, Any]) -> str:
    """What decides which samples a run is scored on, and which of their tokens."""
    known = in_full(config)
    keys = ("corpus", "corpus_digest", "tokenizer_digest", "eval_bytes", "last", "recall")
    own = {key: known[key] for key in keys if key != "corpus" or known["corpus"].startswith("task:")}
    return json.dumps({**own, "longest": max(known["lengths"])}, sort_keys=True)


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
    configs = [in_full(config) for _, config, _ in runs]
    for size in MAY_DIFFER:
        values = {json.dumps(config[size]) for config in configs}
        if len(values) > 1 and len(set(labels)) < len(labels):
            labels = [f"{label} {size}={config[size]}" for label, config in zip(labels, configs, strict=True)]
    if len(set(labels)) < len(labels):  # something else differs, and the id tells
        labels = [f"{label} {run}" for label, (_, _, run) in zip(labels, runs, strict=True)]
    return labels


def _check_alike(group: Sequence[RunResult]) -> None:
    """Raises a WhorlError where runs that differ in their seed alone were not scored in the same places."""
    scored = {one.id: _places(one) for one in group if one.evaluations or one.task}
    odd = next((run for run, places in scored.items() if places != next(iter(scored.values()))), None)
    if odd is not None:
        raise WhorlError(
            f"lab: runs/{odd} was not scored as other seeds of {group[0].label} were, so that they make no mean. "
            f"Delete its {RESULT}, and repeat the command that made it."
        )


def _places(result: RunResult) -> list[Any]:
    """What a run was scored on: its variants, their lengths and the bins of positions, and the lengths of its task."""
    tables = [(_variant(one), one["by_length"], one.get("task"), one.get("per_position")) for one in result.evaluations]
    tables += [("window", result.window_baseline["by_length"], None, None)] if result.window_baseline else []
    tables += [("task", [], result.task, None)] if result.task else []
    return [
        (
            variant,
            [cell["length"] for cell in cells],
            [cell["length"] for cell in task["by_length"]] if task else [],
            (len(bins["positions"]), len(bins["bits_per_byte"])) if bins else (),
        )
        for variant, cells, task, bins in tables
    ]


def _rows(label: str, group: list[RunResult], factors: Sequence[str]) -> list[Found]:
    first = group[0]
    warnings = []
    for one in group:
        warnings += one.warnings
        if one.stopped_early:
            warnings.append(f"{one.label}, seed {one.seed}: stopped early, {one.stopped_early}")
    known = {
        "label": label,
        "settings": _settings(first, factors),
        "encoding": first.encoding,
        "seeds": _scored_seeds(group),
        "parameters": first.parameters,
        "encoding_parameters": first.encoding_parameters,
        "tokens_per_second": _mean([result.tokens_per_second for result in group]),
        "peak_memory_bytes": max(result.peak_memory_bytes for result in group),
        "claims": _claims(first) if first.claims is None else first.claims,
        "warnings": list(dict.fromkeys(warnings)),
    }
    evaluated = [result for result in group if result.evaluations]
    variants = [(_variant(one), one["fine_tuned_steps"]) for one in evaluated[0].evaluations] if evaluated else []
    rows = []
    for place, (variant, tuned) in enumerate(variants or [(AS_TRAINED, 0)]):
        own = [result.evaluations[place] for result in evaluated]
        row = known | {
            "variant": variant,
            "fine_tuned_steps": tuned,
            "by_length": _by_length([one["by_length"] for one in own]),
            "per_position": _per_position(own),
            "learning_curve": _curve([_trained(result) for result in group], "loss") if not place else [],
            "task": _task([one.get("task") for one in own] if place else [result.task for result in group]),
        }
        rows.append(row | (_watched(group) if not place else {}))
    windows = [result.window_baseline["by_length"] for result in evaluated if result.window_baseline]
    if windows and not any(row["variant"] == "window" for row in rows):
        rows[0]["window_baseline"] = {"by_length": _by_length(windows)}
    return rows


def _scored_seeds(group: Sequence[RunResult]) -> list[int]:
    """The seeds that numbers are of: those that did not diverge, or all where every one did."""
    return [one.seed for one in group if one.stopped_early is None] or [one.seed for one in group]


def _settings(result: RunResult, factors: Sequence[str]) -> Found:
    """The factors of a comparison as a run has them: settings of its own, of its one stage, or of its encoding."""
    stages = result.config["stages"]
    known = (
        result.encoding
        | in_full(result.config)
        | (dict(zip(STAGE, stages[0], strict=True)) if len(stages) == 1 else {})
    )
    return {factor: known[factor] for factor in factors if factor in known}


def _variant(evaluation: Found) -> str:
    tuned = evaluation["fine_tuned_steps"]
    return f"{evaluation['variant']}, tuned {tuned} steps" if tuned else evaluation["variant"]


def _claims(result: RunResult) -> dict[str, bool]:
    """What an encoding says of itself, where its result does not have it; nothing of one that is not at hand."""
    with contextlib.suppress(WhorlError):
        return dataclasses.asdict(from_dict(result.encoding).claims)
    return {}


def _watched(group: list[RunResult]) -> Found:
    """Views of a model beside its scores: the loss on held-out text, mean over seeds, and texts and a head of one."""
    curves = [result.validation for result in group if result.validation]
    return {
        "validation": _curve(curves, "bits_per_byte") if curves else [],
        "generated": group[0].generated,
        "attention_by_distance": group[0].attention_by_distance,
    }


def _by_length(tables: list[list[Found]]) -> list[Found]:
    out = []
    for cells in zip(*tables, strict=True):
        bits = {
            way: interval(
                [cell["bits_per_byte"].get(way) for cell in cells], [cell["stderr"].get(way) for cell in cells]
            )
            for way in PROTOCOLS
        }
        trials = {key: min(len((cell.get(PROBED[key]) or {}).get("right") or ()) for cell in cells) for key in RECALL}
        shares = {key: share_interval([cell[key] for cell in cells], trials[key]) for key in RECALL}
        guessed = [probe["chance"] for cell in cells if "chance" in (probe := cell.get("retrieval") or {})]
        if guessed and (found := shares["retrieval_accuracy"]):
            found["chance"] = max(guessed)
        out.append(
            {
                "length": cells[0]["length"],
                "ratio": cells[0]["ratio"],
                "bits_per_byte": bits,
                "accuracy": interval([cell["accuracy"] for cell in cells]),
                **shares,
                "retrieval_by_depth": _by_depth([cell["retrieval"] for cell in cells if cell.get("retrieval")]),
            }
        )
    return out


def _by_depth(probes: list[Found]) -> Found | None:
    """The share right in bins of depth, over all probes of all seeds."""
    if not probes:
        return None
    edges = [i / DEPTHS for i in range(DEPTHS + 1)]
    found: list[list[float]] = [[] for _ in range(DEPTHS)]
    for probe in probes:
        for depth, right in zip(probe["depth"], probe["right"], strict=True):
            found[min(DEPTHS - 1, int(depth * DEPTHS))].append(right)
    return {"depth": edges, "share": [statistics.fmean(own) if own else None for own in found]}


def _per_position(evaluations: list[Found]) -> Found | None:
    """The mean over seeds of the loss by position at the longest length."""
    found = [one["per_position"] for one in evaluations if one.get("per_position")]
    if not found:
        return None
    means = [statistics.fmean(values) for values in zip(*(one["bits_per_byte"] for one in found), strict=True)]
    return {"positions": found[0]["positions"], "bits_per_byte": means}


def _trained(result: RunResult) -> list[Found]:
    """The loss by step in nats, of a text for each byte whatever its tokens are, of a task for each token."""
    if not result.config.get("tokenizer"):
        return result.metrics
    rows = [row for row in result.metrics if "bits_per_byte" in row]
    return [{"step": row["step"], "loss": row["bits_per_byte"] * math.log(2)} for row in rows]


def _curve(runs: Sequence[list[Found]], key: str) -> list[Found]:
    """The mean over seeds at the steps that every one of them logged."""
    by_seed = [{row["step"]: row[key] for row in rows if row.get(key) is not None} for rows in runs]
    shared = sorted(set.intersection(*(set(rows) for rows in by_seed)))
    return [{"step": step, key: statistics.fmean(rows[step] for rows in by_seed)} for step in shared]


def _task(found: Iterable[Found | None]) -> Found | None:
    """The scores of a task, a list entry for each seed."""
    tasks = [one for one in found if one]
    if not tasks:
        return None
    by_length = [
        {
            "length": cells[0]["length"],
            "items": cells[0]["items"],
            **{key: share_interval([cell[key] for cell in cells], cells[0]["items"]) for key in TASK},
        }
        for cells in zip(*(task["by_length"] for task in tasks), strict=True)
    ]
    return {"name": tasks[0]["name"], "by_length": by_length}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def corpus_facts(out: Path, configs: Iterable[Mapping[str, Any]]) -> Found:
    """What is known of the text of runs, which is packed under ``out``; of tasks and of several texts the names."""
    texts = list(dict.fromkeys((config["corpus"], config["corpus_digest"]) for config in configs))
    name, digest = texts[0]
    if len({digest for _, digest in texts}) > 1 or name.startswith("task:"):
        return {"name": ", ".join(dict.fromkeys(name for name, _ in texts))}
    return packed_facts(name, out / "corpus", digest)
