#!/usr/bin/env python3
"""Shows how often the lab calls a difference that is none, and finds one that is, on comparisons simulated from seeds.

    tools/simulate_verdicts.py measure OUT       trains the models under OUT and writes experiments/seed-variance.json
    tools/simulate_verdicts.py simulate          writes experiments/verdict-rates.json, with --comparisons of each kind

``measure`` trains three encodings from each of eight seeds, scores each on the same last bytes of the same samples, and
keeps three covariance matrices for each length, of encodings by encodings: over seeds, over samples, and of what is
left of a seed and a sample. Stopped, it goes on where it was. ``simulate`` draws comparisons from normal distributions
of these covariances, gives them to ``whorl.lab.differences`` as runs would be, and counts what is called.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from whorl.lab.differences import LOSS, Score, Scores, best_label, differences
from whorl.result_rows import AS_TRAINED

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
VARIANCES, RATES = EXPERIMENTS / "seed-variance.json", EXPERIMENTS / "verdict-rates.json"
ENCODINGS, SEEDS, SAMPLES = ("rope", "alibi", "t5"), 8, 512
TRAINED, LENGTHS, LAST = 64, (64, 256), 64
DIFFERENCE = 0.05  # bits per byte that are to be found
SETTINGS: dict[str, Any] = {  # the sizes of the demo, without its marks
    "corpus": "stdlib", "train_length": TRAINED, "layers": 3, "width": 128, "heads": 4, "batch": 32, "steps": 350,
    "learning_rate": 2e-3, "lengths": [TRAINED], "eval_bytes": 64,
}  # fmt: skip

Array = np.ndarray


def measure(out: Path) -> None:
    """Trains what is not trained yet, and writes the covariances."""
    import torch

    from whorl.lab import run_one
    from whorl.lab.corpus import open_corpus
    from whorl.lab.evaluate import score
    from whorl.lab.load import load
    from whorl.lab.plan import plan

    configs = plan(ENCODINGS, out=out, seeds=SEEDS, **SETTINGS)
    text = open_corpus("stdlib", out / "corpus", configs[0].corpus_digest).samples(max(LENGTHS), SAMPLES)
    tokens = torch.from_numpy(text.astype(np.int64))
    bits = np.empty((len(LENGTHS), len(ENCODINGS), SEEDS, len(tokens)))
    for config in configs:
        folder, kept = out / "runs" / config.id, out / "bits" / f"{config.id}.npy"
        if not kept.exists():
            run_one(config, folder)
            model = load(folder).model
            nats = [
                torch.cat([score(model, part[:, -length - 1 :], config)[0][:, -LAST:] for part in tokens.split(64)])
                for length in LENGTHS
            ]
            kept.parent.mkdir(exist_ok=True)
            np.save(kept, torch.stack(nats).double().mean(-1).numpy() / math.log(2))
        bits[:, ENCODINGS.index(config.encoding["name"]), config.seed] = np.load(kept)
    found = {
        "encodings": ENCODINGS,
        "seeds": SEEDS,
        "samples": len(tokens),
        "scored_bytes": LAST,
        "train_length": TRAINED,
        "settings": SETTINGS,
        "lengths": {str(length): covariances(own) for length, own in zip(LENGTHS, bits, strict=True)},
    }
    VARIANCES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def covariances(bits: Array) -> dict[str, Any]:
    """The components of encodings × seeds × samples, from the mean squares of a two-way layout."""
    _, seeds, samples = bits.shape
    by_seed, by_sample = bits.mean(2), bits.mean(1)
    left = bits - by_seed[:, :, None] - by_sample[:, None, :] + bits.mean((1, 2))[:, None, None]
    rest = np.einsum("asi,bsi->ab", left, left) / ((seeds - 1) * (samples - 1))
    found = {"seeds": np.cov(by_seed) - rest / samples, "samples": np.cov(by_sample) - rest / seeds, "rest": rest}
    return {"means": by_seed.round(5).tolist(), **{name: one.round(8).tolist() for name, one in found.items()}}


def alike(covariance: Array, models: int) -> Array:
    """The covariance of so many models that are alike: the mean variance, and the mean covariance of two."""
    own, other = covariance.diagonal().mean(), covariance[~np.eye(len(covariance), dtype=bool)].mean()
    return np.full((models, models), other) + np.eye(models) * (own - other)


def draw(random: np.random.Generator, covariance: Array, shape: tuple[int, ...]) -> Array:
    """Normal numbers (models, *shape) of this covariance between models; what sampling made negative in it is 0."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(0))
    return np.tensordot(root, random.standard_normal((len(covariance), *shape)), axes=1)


def rate(
    parts: dict[str, Array], *, seeds: int, samples: int, comparisons: int, shift: float = 0.0, named: bool = False
) -> float:
    """The share of simulated comparisons of models of one true loss in which any difference is called.

    With ``shift`` the first is so much better than all others, and the share is of those where the second is told from
    it. Unless ``named``, the baseline is the best by the numbers drawn.
    """
    random, models, called = np.random.default_rng(0), len(parts["rest"]), 0
    for _ in range(comparisons):
        bits = draw(random, parts["seeds"], (seeds, 1)) + draw(random, parts["samples"], (1, samples))
        bits = 3.0 + bits + draw(random, parts["rest"], (seeds, samples))
        bits[0] -= shift
        rows = [
            Scores((str(model), AS_TRAINED), "", {TRAINED: dict(enumerate(map(scored, own)))})
            for model, own in enumerate(bits)
        ]
        base = "0" if named or shift else best_label(rows, TRAINED)
        assert base is not None
        found = differences(rows, LOSS, TRAINED, base, named=named)
        signs = [one.sign for one in found if one.kind == "encoding"]
        assert len(signs) == models - 1
        called += signs[0] > 0 if shift else any(signs)
    return called / comparisons


def scored(bits: Array) -> Score:
    """What one seed scored."""
    return Score(float(bits.mean()), tuple(bits.tolist()))


def simulate(comparisons: int) -> None:
    """Prints and writes the rates: at the trained length, and past it for the two encodings that are whole there."""
    data = json.loads(VARIANCES.read_text(encoding="utf-8"))["lengths"]
    print(
        f"{comparisons} comparisons each, samples of {LAST} bytes; called where nothing differs, and where "
        f"{DIFFERENCE} bits do"
    )
    rows: list[dict[str, Any]] = []
    for length, places in ((TRAINED, (0, 1, 2)), (4 * TRAINED, (1, 2))):
        real = {
            name: np.array(data[str(length)][name])[np.ix_(places, places)] for name in ("seeds", "samples", "rest")
        }
        cases = [(f"{n} alike", {name: alike(one, n) for name, one in real.items()}, False) for n in (2, 3, 6)]
        cases += [("those measured", real, False), (cases[2][0], cases[2][1], True)]
        for said, parts, named in cases:
            for seeds, samples in ((3, 128), (3, 512), (1, 128)):
                # with one seed a call is of the trained models at hand: their seeds are no noise
                drawn = parts if seeds > 1 else {**parts, "seeds": 0 * parts["seeds"]}
                settings: dict[str, Any] = {"comparisons": comparisons, "named": named}
                none, true = (
                    rate(drawn, seeds=seeds, samples=samples, shift=by, **settings) for by in (0.0, DIFFERENCE)
                )
                what = f"{said}, baseline named" if named else said
                print(f"at {length}, {what}, seeds {seeds}, samples {samples}: {none:.1%}, {true:.1%}", flush=True)
                case = {"length": length, "models": said, "baseline_named": named, "seeds": seeds, "samples": samples}
                rows.append({**case, "scored_bytes": samples * LAST, "called": none, "found": true})
    found = {"comparisons": comparisons, "difference": DIFFERENCE, "rows": rows}
    RATES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("measure").add_argument("out", type=Path)
    what.add_parser("simulate").add_argument("--comparisons", type=int, default=2000)
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.out)
    else:
        simulate(asked.comparisons)


if __name__ == "__main__":
    main()
