#!/usr/bin/env python3
"""Shows whether runs of the lab take as long with one version of whorl as with another.

    tools/compare_times.py OLD [NEW] [--rounds 40] [--within 3]

OLD and NEW are commits or folders, as for compare_commits.py. Both sides make the same small run again and again, by
turns and each in a process of its own. What is compared is the time of the processor: of each round the ratio of the
two sides, and of these the median, so that other work on the machine weighs little. Exits 1 where NEW takes more per
cent longer than ``--within``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from compare_commits import ROOT, STEADY, sources

# One line of stdin is one run: trained, evaluated with a repair, and fine-tuned with it.
RUNS = """
import sys, tempfile, time, torch, whorl.lab
from pathlib import Path
from whorl.lab.plan import plan
torch.set_num_threads(1)
sizes = dict(layers=2, width=64, heads=4, train_length=64, batch=8, steps=30, lengths=[32, 64, 128], eval_bytes=1024)
out = Path(sys.argv[1])
(config,) = plan(["rope"], out=out, corpus="stdlib", repairs=["ntk"], fine_tune_steps=12, **sizes)
for line in sys.stdin:
    begun = time.process_time()
    with tempfile.TemporaryDirectory(dir=out) as folder:
        (Path(folder) / "corpus").symlink_to(out / "corpus")
        whorl.lab.run_one(config, folder)
    print(time.process_time() - begun, flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--within", type=float, default=3.0, metavar="PERCENT")
    given = parser.parse_args()
    seconds: list[list[float]] = [[], []]
    with ExitStack() as stack:
        sides = [stack.enter_context(_runs(side, stack)) for side in (given.old, given.new)]
        for number in range(given.rounds + 1):
            for side in (0, 1) if number % 2 else (1, 0):
                took = _one_run(sides[side])
                if number:  # the first warms up
                    seconds[side].append(took)
    ratios = [new / old for old, new in zip(*seconds, strict=True)]
    more = 100 * (statistics.median(ratios) - 1)
    error = 100 * 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5  # of a median, about
    print(f"a run takes {statistics.median(seconds[0]):.2f} s of the processor; with NEW {more:+.1f} %, ± {error:.1f}")
    return int(more > given.within)


def _runs(side: str, stack: ExitStack) -> subprocess.Popen[str]:
    source = stack.enter_context(sources(side)) / "src"
    out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whorl-times-")))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", RUNS, out],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **STEADY, "PYTHONPATH": str(source)},
    )


def _one_run(side: subprocess.Popen[str]) -> float:
    assert side.stdin is not None and side.stdout is not None
    side.stdin.write("\n")
    side.stdin.flush()
    return float(side.stdout.readline())


if __name__ == "__main__":
    sys.exit(main())
