"""What a position encoding costs in a training step of the lab's demo, and what the lab's loop costs around it.

    python experiments/encoding_cost.py [--rounds 40] [--threads 2] [--clock cpu] [--out experiments/encoding-cost.json]

Every round makes one step with each encoding in turn, in an order that moves on, so that a machine that slows down
slows all of them. The share of an encoding is (median step with it - median step with none) / median step with it. Then
the lab's loop and the bare loop (forward, backward, clip, step; no logging, no monitor, no files) train the same model
in turns. Content-dependent encodings are left out: they form every score by themselves. ``--clock cpu`` counts the time
of this process alone, for a machine that others use as well; it needs one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import whorl
from whorl.errors import WhorlError
from whorl.lab import train as training
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import pack, read_corpus
from whorl.lab.language import language_loss
from whorl.lab.load import make_model
from whorl.lab.plan import with_usual
from whorl.lab.presets import preset
from whorl.lab.settings import RunConfig
from whorl.lab.storage import environment
from whorl.lab.train import make_optimizer

BAR = 0.15  # of a step, for an encoding
LOOP_BAR = 1.10  # of the bare loop, for the lab's


def configs() -> dict[str, RunConfig]:
    """The demo's config with each encoding that does not read content and has one axis."""
    demo = preset("demo")
    stages = ((demo.train_length, demo.batch, demo.steps),)
    sizes = {"layers": demo.layers, "width": demo.width, "heads": demo.heads}
    found = {}
    for name in whorl.names():
        usual = with_usual({"name": name}, length=demo.train_length, width=demo.width)
        try:
            config = RunConfig(encoding=usual, stages=stages, lengths=demo.lengths, **sizes)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                encoding = make_model(config).plan[0]
        except WhorlError:  # positions of an image
            continue
        content = {"adjust_scores", "adjust_output"} & set(encoding.enters())
        if not content and encoding.axes == 1:
            found[name] = config
    return found


def bare_step(config: RunConfig, batches: TextBatches) -> Callable[[int], None]:
    """One update of the model with nothing around it."""
    model = make_model(config)
    optimizer = make_optimizer(model, config)

    def step(number: int) -> None:
        inputs, targets = batches(number)
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return step


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(work: Callable[[], object], clock: str) -> float:
    begun = CLOCKS[clock]()
    work()
    return CLOCKS[clock]() - begun


def encodings(rounds: int, batches: TextBatches, clock: str) -> list[dict[str, Any]]:
    """The median step with each encoding, and the encoding's share of it."""
    steps = {name: bare_step(config, batches) for name, config in configs().items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # warms up
        step(0)
    names = list(steps)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(timed(lambda name=name, number=number: steps[name](number), clock))
    none = statistics.median(times["none"])
    rows = []
    print("| encoding | median step, ms | share of the step | bar |\n|---|---:|---:|---|")
    for name in sorted(names, key=lambda name: statistics.median(times[name])):
        own = statistics.median(times[name])
        share = (own - none) / own
        rows.append({"encoding": name, "seconds": own, "share": share})
        print(f"| {name} | {1e3 * own:.1f} | {100 * share:.1f} % | {'met' if share < BAR else 'missed'} |")
    return rows


def loop(rounds: int, batches: TextBatches, config: RunConfig, clock: str) -> dict[str, float]:
    """The lab's loop in the demo's rhythm of logging against the bare one, a few steps of each in turn."""
    every = max(1, config.steps // training.ROWS)
    count = 12 * every
    short = config.replace(stages=((*config.stages[0][:2], count),), warmup=0)
    ratios = []
    for number in range(rounds):
        step = bare_step(config, batches)
        step(0)
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(short)

            def lab(model=model, folder=folder) -> None:
                loss = language_loss(model, short, batches)
                training.train(model, short, loss, Path(folder), rows=count // every)

            def bare(step=step) -> None:
                for i in range(count):
                    step(i)

            order = (lab, bare) if number % 2 else (bare, lab)
            spent = {work.__name__: timed(work, clock) for work in order}
        ratios.append(spent["lab"] / spent["bare"])
    low, middle, high = statistics.quantiles(ratios, n=4)
    verdict = "met" if middle <= LOOP_BAR else "missed"
    print(
        f"\nThe lab's loop over the bare one, median of {rounds} rounds of {count} steps: {middle:.3f} "
        f"(middle half {low:.3f} to {high:.3f}); bar {LOOP_BAR}: {verdict}"
    )
    return {"low": low, "middle": middle, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as store:
        corpus = pack(read_corpus("stdlib"), Path(store))
        config = configs()["rope"]
        batches = TextBatches(corpus, config)
        load = os.getloadavg()[0]
        settings = f"{given.threads} thread(s), {given.clock} time, {given.rounds} rounds"
        print(f"torch {torch.__version__}, {settings}, load {load:.2f} before\n")
        rows = encodings(given.rounds, batches, given.clock)
        around = loop(max(3, given.rounds // 4), batches, config, given.clock)
        print(f"load {os.getloadavg()[0]:.2f} after")
    if given.out is not None:
        asked = {"rounds": given.rounds, "threads": given.threads, "clock": given.clock}
        found = {"settings": asked, "environment": environment(), "encodings": rows, "loop_over_bare": around}
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
