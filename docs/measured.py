"""Numbers of committed results, by file and path.

A page names a number where it stands, and ``make docs`` writes what lies between the marks:

    takes <!--n gpu-decoding: steps/2048/rope/graph_us as .1f-->26.4<!--/n--> µs

``NAME: PATH [over PATH] as [SCALE] FORMAT``

NAME    a file of experiments/, experiments/NAME/comparison.json, or a file of benchmarks/results/ without its date;
        where several dates have the name, the newest counts
PATH    keys with / between them; * is every key, and in a list a key chooses the members that have it as a value; of a
        benchmark it is GROUP/ROW/WHAT
SCALE   one of SCALES
FORMAT  as Python has it; where a path leads to several numbers, the smallest "to" the largest
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from whorl.lab.report.words import NAMES

ROOT = Path(__file__).resolve().parent.parent

SCALES: dict[str, Callable[[float], float]] = {
    "percent": lambda value: 100 * value,
    "speed": lambda time: 100 / time,  # per cent of the yardstick's, from a time over that of the yardstick
    "times": lambda time: 1 / time,  # how many times as fast
    "µs": lambda seconds: 1e6 * seconds,
    "ms": lambda seconds: 1e3 * seconds,
    "MiB": lambda size: size / 2**20,
}


@cache
def source(name: str) -> Path:
    """The committed file of that name."""
    found = [ROOT / "experiments" / f"{name}.json", ROOT / "experiments" / name / "comparison.json"]
    found += sorted((ROOT / "benchmarks" / "results").glob(f"????-??-??-{name}.json"), reverse=True)
    there = [path for path in found if path.is_file()]
    if not there:
        raise LookupError(f"no committed result is called {name!r}")
    return there[0]


@cache
def document(name: str) -> Any:
    """What the file of that name holds; of ``claims`` the two counts, as the page of claims has them."""
    if name == "claims":
        counts = re.search(
            r"(\d+) written claims; the (\d+) flag checks", (ROOT / "docs" / "claims.md").read_text("utf-8")
        )
        return {"written": counts[1], "flags": counts[2]} if counts else {}
    return json.loads(source(name).read_text(encoding="utf-8"))


def groups(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of a benchmark by group and name, the numbers of its check among those of its timing."""
    return {
        group["name"]: {row["name"]: row | row["check"]["numbers"] for row in group["results"]}
        for group in document(name)["groups"]
    }


def found(name: str, path: str) -> list[float]:
    """The numbers at a path of a committed file.

    >>> [round(gap) for gap in found("matching", "gaps/*")]
    [48, -1]
    """
    nodes: list[Any] = [groups(name) if "groups" in document(name) else document(name)]
    for key in path.split("/"):
        nodes = [one for node in nodes for one in _step(node, key)]
        if not nodes:
            raise LookupError(f"{name} has no {key!r} on the way {path!r}")
    if any(isinstance(node, dict | list) for node in nodes):
        raise LookupError(f"{name}: {path!r} leads to no number; choose further")
    return [float(node) for node in nodes]


def _step(node: Any, key: str) -> list[Any]:
    if isinstance(node, list):
        chosen = node if key == "*" else [one for one in node if _has(one, key)]
        return [chosen] if len(chosen) > 1 and key != "*" else chosen
    if not isinstance(node, dict):
        return []
    if key == "*":
        return list(node.values())
    return [node[key]] if key in node else [node] if _has(node, key) else []


def _has(node: Any, value: str) -> bool:
    return isinstance(node, dict) and value in {str(one) for one in node.values()}


def number(said: str) -> str:
    """The text of a number that a page names.

    >>> number("matching: gaps/late as .1f"), number("matching: gaps/* as .1f")
    ('48.5', '−1.1 to 48.5')
    """
    name, _, rest = said.partition(": ")
    paths, _, form = rest.rpartition(" as ")
    path, over, other = paths.partition(" over ")
    values = found(name, path)
    if over:
        (whole,) = found(name, other)
        values = [value / whole for value in values]
    *scales, form = form.split()
    for scale in scales:
        values = [SCALES[scale](value) for value in values]
    return " to ".join(dict.fromkeys(written(value, form) for value in (min(values), max(values))))


def written(value: float, form: str) -> str:
    """A number as the pages write it: a true minus sign, a short exponent.

    >>> written(-0.0471, "+.2f"), written(0.0017, ".1e"), written(32768, ",.0f")
    ('−0.05', '1.7e-3', '32,768')
    """
    text = re.sub(r"e([+-])0*(\d)", lambda power: f"e{power[1].strip('+')}{power[2]}", f"{value:{form}}")
    return text.replace("-", "−", 1) if text.startswith("-") else text


def named(label: str) -> str:
    """A label with the name of its encoding as people write it.

    >>> named("rope, padded rows"), named("window of 1024")
    ('RoPE, padded rows', 'window of 1024')
    """
    first = label.replace(",", " ").split()[0]
    return NAMES.get(first, first) + label.removeprefix(first)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """The lines of a Markdown table: the first columns to the left, the others to the right."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * left}{'---:|' * (len(header) - left)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
