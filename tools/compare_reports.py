#!/usr/bin/env python3
"""Shows whether two versions of whorl write the same reports: text, numbers and attributes, in both languages.

    tools/compare_reports.py OLD [NEW] [--random 200]

OLD and NEW are folders with src/whorl in them; NEW is the working tree unless given. Both write the page, the CSV and
the JSON of the same comparisons: those of tests/lab/report_cases.py and the committed ones, and random ones with gaps,
ties and losses that are no finite numbers. Pages are compared as trees; space between elements, the order of
attributes and the colours of lines do not count. Exits 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lab import report_cases  # noqa: E402
from lab.report_page import Node, Page  # noqa: E402

WRITE = """
import json, sys
from pathlib import Path
from whorl.lab import write_csv, write_json, write_report
out = Path(sys.argv[2])
for name, comparison in json.loads(Path(sys.argv[1]).read_text()).items():
    for lang in ("en", "zh"):
        write_report(comparison, out / f"{name}.{lang}.html", lang=lang)
    write_csv(comparison, out / f"{name}.csv")
    write_json(comparison, out / f"{name}.json")
"""
LABELS = ("rope", "alibi", "t5", "none", "learned", "fire", "kerple", "sinusoidal", "rope base=5e5", 'a<b>&"c"')
VARIANTS = ("as trained", "ntk", "pi", "yarn", "rerope", "rerope+logn", "ntk, tuned 20 steps", "window")
# elements between whose children space does not show
PLACES = {
    "root",
    "html",
    "head",
    "body",
    "main",
    "section",
    "div",
    "figure",
    "table",
    "thead",
    "tbody",
    "tr",
    "ul",
    "dl",
}
PLACES |= {"svg", "g", "clippath"}


def main() -> int:
    """The exit status of a comparison, which is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a folder with src/whorl in it")
    parser.add_argument("new", type=Path, nargs="?", default=ROOT, help="the same; the working tree unless given")
    parser.add_argument("--random", type=int, default=200, help="how many random comparisons, 200 unless given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whorl-reports-") as made:
        cases = Path(made) / "cases.json"
        cases.write_text(json.dumps(comparisons(given.random)))
        for side in ("old", "new"):
            (Path(made) / side).mkdir()
            environment = {**os.environ, "PYTHONPATH": str(getattr(given, side).resolve() / "src")}
            words = [sys.executable, "-P", "-c", WRITE, str(cases), str(Path(made) / side)]
            subprocess.run(words, env=environment, cwd=made, check=True)
        files = sorted(path.name for path in (Path(made) / "old").iterdir())
        differ = [name for name in files if not same(Path(made) / "old" / name, Path(made) / "new" / name)]
    print(f"{len(files)} files, {len(differ)} differ")
    return 1 if differ else 0


def comparisons(randomly: int) -> dict[str, dict[str, Any]]:
    """Every comparison to report on, by name."""
    made = {name: getattr(report_cases, name)() for name in ("demo", "large", "copying", "with_gaps")}
    made["one_seed"] = report_cases.demo(1)
    made["both"] = report_cases.comparison([*report_cases.demo()["rows"], *report_cases.copying()["rows"]])
    made["bare"] = {"train_length": 64, "rows": [{"label": "rope"}]}
    made |= {path.parent.name: json.loads(path.read_text()) for path in ROOT.glob("experiments/*/comparison.json")}
    return made | {f"random{seed}": any_comparison(random.Random(seed)) for seed in range(randomly)}


def any_comparison(chance: random.Random) -> dict[str, Any]:
    """A comparison made by chance, from the same seed always the same."""
    trained = chance.choice((16, 64, 100, 256))
    lengths = sorted(chance.sample([trained // 4, trained // 2, *(trained * n for n in (1, 2, 4, 8, 16))], 5))
    seeds = chance.choice((1, 3))
    labels = chance.sample(LABELS, chance.randint(1, 6))
    rows = []
    for label in labels:
        for variant in ("as trained", *chance.sample(VARIANTS[1:], chance.choice((0, 0, 0, 3)))):
            rows.append(any_row(chance, label, variant, lengths, seeds))
    more = {"noise": chance.choice((0.0, 0.02, 0.07, 0.3, math.nan)), "interval": chance.choice(("seeds", "documents"))}
    found = report_cases.comparison(rows, trained, **more, factors=chance.choice(([], ["width"], ["width", "layers"])))
    return found | chance.choice(({}, {"title": None, "command": None, "results": [], "environment": {}}))


def any_row(chance: random.Random, label: str, variant: str, lengths: list[int], seeds: int) -> dict[str, Any]:
    """A row of such a comparison."""
    start, rise = chance.choice((1.5, 2.0, 2.05, 4.6)), chance.choice((-0.1, -0.03, 0.0, 0.04, 0.2, 1.0))

    def cell(value: float | None) -> Any:
        value = chance.choice((None, math.nan, math.inf)) if chance.random() < 0.04 else value
        if value is None or chance.random() < 0.1:
            return value
        return report_cases.cell(value, chance.choice((0.0, 0.01, 0.2)), seeds)

    by_length = []
    ways = chance.choice((("same_last", "sliding", "non_overlapping"), ("same_last",), ("non_overlapping",)))
    for i, length in enumerate(lengths):
        bits = {way: cell(start + rise * i * chance.choice((0.5, 1, 1.1))) for way in ways}
        recall = {name: cell(chance.random()) for name in ("repeated_text_accuracy", "retrieval_accuracy")}
        by_length.append({"length": length, "bits_per_byte": bits, **(recall if chance.random() < 0.5 else {})})
    row = report_cases.row(label, variant, seeds=seeds, by_length=by_length)
    if chance.random() < 0.3:
        scores = [1.0, 0.95, 0.5, 0.1, 0.0]
        row["task"] = {
            "name": chance.choice(("copy", "sort")),
            "by_length": [{"length": n, "exact_match": chance.choice(scores), "token_accuracy": 0.5} for n in lengths],
        }
    if chance.random() < 0.4:
        row["window_baseline"] = {"by_length": [dict(entry) for entry in chance.choice((by_length, by_length[:3]))]}
    row["learning_curve"] = report_cases.curve(start, chance.choice((50, 900))) if chance.random() < 0.5 else []
    row["warnings"] = chance.choice(([], ["one < two"], ["one", "two"]))
    row["settings"] = {"width": chance.choice((64, 128)), "layers": chance.choice((1, 2))}
    if chance.random() < 0.5:
        row |= watched(chance, lengths)
    return row


def watched(chance: random.Random, lengths: list[int]) -> dict[str, Any]:
    """What a row of a newer version has beside its scores."""
    for_each = {"depth": [0.0, 0.5, 1.0], "share": [chance.random(), chance.choice((None, 0.1))]}
    return {
        "validation": [{"step": step, "bits_per_byte": 3 - step / 100} for step in (10, 20, 30)],
        "per_position": {"positions": [0, 8, lengths[-1]], "bits_per_byte": [3.0, chance.choice((2.5, None))]},
        "attention_by_distance": {"head": [1, 0], "distance": [0, 1, 2, 4], "weight": [0.4, 0.3, 0.2, 0.1]},
        "generated": [{"length": lengths[0], "prompt": "a <", "text": "b > c"}],
        "by_length": [
            {"length": n, "bits_per_byte": {"same_last": 2.0 + chance.random()}, "retrieval_by_depth": for_each}
            | {"retrieval_accuracy": {"mean": 0.9, "low": 0.8, "high": 1.0, "n": 1, "trials": 100, "chance": 0.1}}
            for n in lengths
        ],
    }


def same(old: Path, new: Path) -> bool:
    """Whether both say the same; prints the first place where they do not."""
    ours, theirs = ([*flat(path)] for path in (old, new))
    if ours == theirs:
        return True
    ends = ours + [None] * len(theirs), theirs + [None] * len(ours)
    print(old.name, *next((a, b) for a, b in zip(*ends, strict=True) if a != b), sep="\n  ")
    return False


def flat(path: Path) -> list[Any]:
    """A file as a list: of a page the elements and texts in order, of every other its lines."""
    content = path.read_text(encoding="utf-8")
    return walk(Page(content).root) if path.suffix == ".html" else content.splitlines()


def walk(node: Node) -> list[Any]:
    found: list[Any] = [(node.name, sorted(node.attributes.items()))]
    if node.name == "style":
        return [*found, *rules(node.text)]
    for child in node.children:
        if isinstance(child, Node):
            found += walk(child)
        elif child.strip() or "\n" not in child or node.name not in PLACES:
            found.append(child)
    return [*found, f"/{node.name}"]


def rules(css: str) -> list[tuple[str, str, str]]:
    """Every declaration of a stylesheet with its medium and its selector, without the colours of lines."""
    medium, found = "", []
    for start, names, body in re.findall(r"(@media[^{]+)\{|([^{}]+)\{([^{}]*)\}|\}", re.sub(r"/\*.*?\*/", "", css)):
        medium = medium if names else start.strip()
        said = [" ".join(each.split()) for each in body.split(";") if not re.match(r"\s*(--c\d:|$)", each)]
        found += [(medium, name.strip(), each) for name in names.split(",") for each in said]
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
