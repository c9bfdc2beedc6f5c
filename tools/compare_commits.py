#!/usr/bin/env python3
"""Shows whether two versions of whorl give the same results, bit for bit.

    tools/compare_commits.py OLD [NEW] [--only GROUP …] [--ledger] [--runs] [--device cuda] [--expected FILE]

OLD and NEW are commits, or folders with src/whorl in them; NEW is the working tree unless given. The same probe
(tools/probe, as it is beside this file) runs on each in a process of its own and writes down what whorl returned;
tensors are compared byte by byte, and everything else as text.

Exits 0 where all is equal, 1 where something differs, 2 where a probe cannot run. Differences that FILE names, in lines
of "name: reason" where a name may have * in it, are listed apart and do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent

# All groups, each a file of the probe; the last ones are asked for with a flag of their own.
GROUPS = ("attention", "hooks", "caches", "linear", "rotation", "checkpoints", "models", "identity", "texts")
FLAGGED = ("ledger", "runs")
ON_DEVICES = ("attention", "rotation")

# One thread, one order of sums, and nothing that another shell may have set.
STEADY = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    **{"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NO_COLOR": "1", "COLUMNS": "120"},
    **{"PYTHONDONTWRITEBYTECODE": "1"},
}

Result = dict[str, Any]


class ProbeError(Exception):
    """A probe that did not come to its end."""


class Found(NamedTuple):
    """What the probe of one side wrote down."""

    results: dict[str, Result]
    seconds: dict[str, float]
    values: bytes

    def tensor(self, name: str) -> Any:
        """The tensor of this name, in float64 where it is of numbers."""
        import torch

        one = self.results[name]
        data = bytearray(self.values[one["place"] : one["place"] + one["bytes"]])
        return torch.frombuffer(data, dtype=getattr(torch, one["dtype"])).double().view(one["shape"])


def main(arguments: list[str] | None = None) -> int:
    """The exit status of a comparison, which is printed."""
    given = parse(arguments)
    expected = read_expected(given.expected) if given.expected else {}
    try:
        with ExitStack() as stack:
            old, new = (stack.enter_context(sources(side)) for side in (given.old, given.new))
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whorl-compare-")))
            found = [probe(scratch, side, given, [old / "tests", new / "tests"]) for side in (old, new)]
            return report(*found, given.groups, expected)
    except ProbeError as error:
        print(error, file=sys.stderr)
        return 2


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a commit, or a folder with src/whorl in it")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="the same; the working tree unless given")
    parser.add_argument("--only", action="append", choices=(*GROUPS, *FLAGGED), metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--ledger", action="store_true", help="the ledger of claims too, which takes a minute or two")
    parser.add_argument("--runs", action="store_true", help="tiny runs of the lab too")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help=f"for {' and '.join(ON_DEVICES)}")
    parser.add_argument("--expected", type=Path, help="differences that are meant")
    given = parser.parse_args(arguments)
    chosen = given.only or (ON_DEVICES if given.device != "cpu" else GROUPS)
    given.groups = [*chosen, *(group for group in FLAGGED if getattr(given, group) and group not in chosen)]
    if given.device != "cpu" and not set(given.groups) <= set(ON_DEVICES):
        parser.error(f"only {' and '.join(ON_DEVICES)} run on a device")
    return given


@contextmanager
def sources(side: str) -> Iterator[Path]:
    """The folder that a side names, or a work tree of its commit, which is taken away again."""
    if (Path(side) / "src" / "whorl").is_dir():
        yield Path(side).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="whorl-commit-") as made:
        tree = Path(made) / "tree"
        try:
            git("worktree", "add", "--quiet", "--detach", str(tree), side)
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], capture_output=True)


def git(*words: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        raise ProbeError(f"git {' '.join(words[:2])} failed: {done.stderr.strip()}")


def probe(scratch: Path, side: Path, given: argparse.Namespace, tests: list[Path]) -> Found:
    """What the probe finds on one side; the first one called is the old one, which writes what both read."""
    exchange, first = scratch / "exchange", not (scratch / "exchange").exists()
    folder = scratch / ("old" if first else "new")
    exchange.mkdir(exist_ok=True)
    folder.mkdir()
    words = [sys.executable, "-P", "-m", "probe", "--source", side / "src", "--folder", folder, "--exchange", exchange]
    words += [*(word for path in tests for word in ("--tests", path)), "--device", given.device]
    words += [*(["--writes"] if first else []), *given.groups]
    paths = os.pathsep.join((str(side / "src"), str(TOOLS)))
    done = subprocess.run([*map(str, words)], cwd=folder, env={**os.environ, **STEADY, "PYTHONPATH": paths})
    if done.returncode:
        raise ProbeError(f"the probe of {side} ended with status {done.returncode}")
    kept = json.loads((folder / "results.json").read_text())
    return Found(kept["results"], kept["seconds"], (folder / "values.bin").read_bytes())


def read_expected(path: Path) -> dict[str, str]:
    """The names of a file of expected differences, each with its reason."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    pairs = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    unclear = [name for name, _, reason in pairs if not reason.strip()]
    if unclear:
        raise SystemExit(f'{path}: every line reads "name: reason", not {unclear[0]!r}')
    return {name: reason for name, _, reason in pairs}


def report(old: Found, new: Found, groups: list[str], expected: dict[str, str]) -> int:
    """Prints what is equal and what differs; the exit status."""
    names = [*old.results, *(name for name in new.results if name not in old.results)]
    differ = {name for name in names if told(old, name) != told(new, name)}
    for group in groups:
        own = [name for name in names if name.startswith(f"{group}/")]
        equal = [name for name in own if name not in differ]
        kinds = Counter(old.results[name]["kind"] for name in equal)
        parts = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.most_common())
        parts = parts.replace("refusals", "refused").replace("refusal", "refused")
        took = " and ".join(f"{found.seconds[group]:.0f} s" for found in (old, new))
        apart = f", {len(own) - len(equal)} DIFFER" if len(own) > len(equal) else ""
        print(f"{group:12} {len(equal):6} equal{apart}  ({parts or 'nothing'}; {took})")
    raised = [name for name in names if name not in differ and old.results[name]["kind"] == "error"]
    if raised:  # a mistake of the probe would be the same on both sides
        print(f"\n{len(raised)} calls raised the same on both sides, and no WhorlError; the first:")
        print(f"  {raised[0]}: {old.results[raised[0]]['text']}")
    reasons = {name: reason_for(name, expected) for name in names if name in differ}
    meant = [name for name, reason in reasons.items() if reason]
    wrong = [name for name, reason in reasons.items() if not reason]
    for title, listed in (("expected to differ", meant), ("differ", wrong)):
        if listed:
            print(f"\n{len(listed)} {title}:")
        for name in listed:
            print(f"  {name}: {difference(old, new, name)}" + (f"  ({reasons[name]})" if reasons[name] else ""))
    for pattern in expected:
        if not any(fnmatchcase(name, pattern) for name in meant):
            print(f"\nexpected to differ, and equal or not there: {pattern}")
    print(f"\n{'nothing differs' if not wrong else f'{len(wrong)} of {len(names)} results differ'}")
    return 1 if wrong else 0


def told(found: Found, name: str) -> tuple[Any, ...] | None:
    """What must be the same on both sides."""
    one = found.results.get(name)
    return one and tuple(
        one.get(key) if key != "shape" else str(one.get(key)) for key in ("kind", "dtype", "shape", "digest")
    )


def reason_for(name: str, expected: dict[str, str]) -> str:
    return next((reason for pattern, reason in expected.items() if fnmatchcase(name, pattern)), "")


def difference(old: Found, new: Found, name: str) -> str:
    """Both values of a name in a few words: how far apart they are, and their digests."""
    a, b = old.results.get(name), new.results.get(name)
    if a is None or b is None:
        side, there = ("new", b) if a is None else ("old", a)
        assert there is not None
        return f"only in {side}: {brief(there)}"
    if a["kind"] == b["kind"] == "tensor" and (a["dtype"], a["shape"]) == (b["dtype"], b["shape"]):
        x, y = old.tensor(name), new.tensor(name)
        apart = (x - y).abs()
        largest = apart.nan_to_num(nan=math.inf).max().item()
        where = (
            f"{int((apart != 0).sum())} of {x.numel()} numbers, by up to {largest:.3g} of {x.abs().max().item():.3g}"
        )
        return f"{where}, old {brief(a)}, new {brief(b)}"
    return f"old {brief(a)}, new {brief(b)}{around(a, b)}"


def brief(one: Result) -> str:
    shape = f" {one['dtype']} {tuple(one['shape'])}" if one["kind"] == "tensor" else ""
    return f"{one['kind']}{shape} {one['digest']}"


def around(a: Result, b: Result) -> str:
    """The first place where two texts differ."""
    if "tensor" in (a["kind"], b["kind"]):
        return "".join(f"\n      {one['text'][:300]}" for one in (a, b) if one["kind"] != "tensor")
    x, y = a["text"], b["text"]
    first = next((i for i, (one, two) in enumerate(zip(x, y, strict=False)) if one != two), min(len(x), len(y)))
    start = max(0, first - 60)
    return "".join(f"\n      {side}: {text[start : first + 120]!r}" for side, text in (("old", x), ("new", y)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is taken away then too
    sys.exit(main())
