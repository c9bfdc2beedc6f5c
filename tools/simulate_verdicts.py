#!/usr/bin/env python3
"""Shows how often the lab's verdict is wrong, and what it finds, on comparisons simulated from real seeds.

    tools/simulate_verdicts.py measure OUT [--seeds 8]    trains the models, writes experiments/seed-and-text-variance.json
    tools/simulate_verdicts.py simulate [--comparisons 2000]

``measure`` trains four encodings from each seed, scores each on the same last bytes of the same samples, and keeps three
covariance matrices per length, of encodings by encodings: of seeds, of samples, and of what is left of a seed and a
sample. Stopped, it goes on where it was. ``simulate`` draws comparisons from normal distributions of these covariances,
gives them to the statistics of the lab, and counts what is called different.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
VARIANCES = ROOT / "experiments" / "seed-and-text-variance.json"
ENCODINGS = ("rope", "alibi", "t5")
TRAINED, LENGTHS, LAST, SAMPLES = 64, (64, 256), 64, 512
SIZES: dict[str, Any] = {
    "corpus": "stdlib", "train_length": TRAINED, "layers": 3, "width": 128, "heads": 4, "batch": 32, "steps": 350,
    "learning_rate": 2e-3, "lengths": [TRAINED], "eval_bytes": 64,
}  # fmt: skip


def measure(out: Path, seeds: int) -> None:
    """Trains what is not trained yet, and writes the covariances."""
    from whorl.lab import run_one
    from whorl.lab.corpus import open_corpus
    from whorl.lab.evaluate import score
    from whorl.lab.load import load
    from whorl.lab.plan import plan

    import torch

    configs = plan(ENCODINGS, out=out, seeds=list(range(seeds)), **SIZES)
    text = open_corpus("stdlib", out / "corpus", configs[0].corpus_digest).samples(max(LENGTHS), SAMPLES)
    tokens = torch.from_numpy(text.astype(np.int64))
    bits = np.empty((len(LENGTHS), len(ENCODINGS), seeds, len(tokens)))
    for config in sorted(configs, key=lambda config: config.seed):
        folder, kept = out / "runs" / config.id, out / "bits" / f"{config.id}.npy"
        if not kept.exists():
            run_one(config, folder)
            model = load(folder).model
            found = [
                torch.cat([score(model, part[:, -length - 1 :], config)[0][:, -LAST:] for part in tokens.split(64)])
                for length in LENGTHS
            ]
            kept.parent.mkdir(exist_ok=True)
            np.save(kept, torch.stack(found).double().mean(-1).numpy() / math.log(2))
            print(config.encoding["name"], config.seed, np.load(kept).mean(1), flush=True)
        bits[:, ENCODINGS.index(config.encoding["name"]), config.seed] = np.load(kept)
    np.save(out / "bits.npy", bits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    asked = parser.parse_args()
    measure(asked.out, asked.seeds)
