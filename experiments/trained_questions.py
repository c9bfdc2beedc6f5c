"""Questions of the ledger that only training decides, at the size of a CPU: small decoders, five seeds, paired.

    python experiments/trained_questions.py slow-pairs        # or another of QUESTIONS; at most three minutes each
    python experiments/trained_questions.py all

Every run is one of the lab's: 2 layers, width 64, 4 heads, 300 updates of 16 x 64 bytes of Python's standard library.
Within a seed all settings start from the same weights and read the same batches, so that differences are taken seed by
seed. Answers are kept in trained-questions.json, which the ledger reads; runs under ``--runs`` are not made twice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whorl.attend.softmax import attention
from whorl.encodings.layer_plan import LayerPlan
from whorl.encodings.rope import Rope
from whorl.lab.ablations import SIZES
from whorl.lab.aggregate import interval
from whorl.lab.batches import open_batches
from whorl.lab.evaluate import Evaluation
from whorl.lab.load import LabRun, load
from whorl.lab.mlm import PretrainConfig, pretrain, staged
from whorl.lab.plan import plan
from whorl.lab.run_many import run_many
from whorl.lab.storage import environment, write_json
from whorl.models.decoder import Decoder
from whorl.results import RunResult
from whorl.rotary.scalings.linear import Linear

FILE = Path(__file__).with_name("trained-questions.json")
SCHEMA = "whorl-trained-questions/1"
SCORE = "same_last"
TRAINED, WINDOW, SEEN = 64, 64, 48
SMALL: dict[str, Any] = {**SIZES, "stages": ((TRAINED, 16, 300),)}
SEEDS = (0, 1, 2, 3, 4)

Answer = dict[str, Any]
Encodings = dict[str, dict[str, Any]]


def small(**changes: Any) -> Answer:
    """The settings of a question's runs, to be kept with its answer."""
    return {key: value for key, value in (SMALL | changes).items() if key != "corpus"}


class Runs:
    """The runs of a folder, made where they are not there yet."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def of(self, encoding: dict[str, Any], **settings: Any) -> list[RunResult]:
        """One result for each seed."""
        planned = plan([encoding], out=self.out, seeds=settings.pop("seeds", SEEDS), **{**SMALL, **settings})
        results, failed = run_many(planned, self.out, workers=1)
        if failed or any(result.stopped_early for result in results):
            raise SystemExit(f"{encoding}: a run did not finish: {failed}")
        return results

    def loaded(self, result: RunResult) -> LabRun:
        return load(self.out / "runs" / result.id)


# -- losses of two or more encodings, paired by seed ------------------------------------------------------------------


def paired(runs: Runs, encodings: Encodings) -> list[Answer]:
    """Bits per byte by length of each encoding, and of all but the first the difference from it, seed by seed.

    They are of the last tokens, the same at every length, and beside them of all tokens.
    """
    found = {name: runs.of(encoding) for name, encoding in encodings.items()}
    last, whole = (_by_length(found, score) for score in (SCORE, "non_overlapping"))
    return [
        {
            "setting": name,
            "encoding": encodings[name],
            "by_length": {length: {**cell, "all tokens": whole[name][length]} for length, cell in cells.items()},
        }
        for name, cells in last.items()
    ]


def _by_length(found: dict[str, list[RunResult]], score: str) -> dict[str, Answer]:
    """The loss of each encoding by one score and length, and the difference from the first."""
    by_name = {name: _bits(results, score) for name, results in found.items()}
    usual = next(iter(by_name.values()))
    return {
        name: {
            str(length): {"loss": interval(values), "difference": _difference(values, usual[length])}
            for length, values in bits.items()
        }
        for name, bits in by_name.items()
    }


def _bits(results: list[RunResult], score: str) -> dict[int, list[float | None]]:
    """By length, one number for each seed; None where an encoding has no such position."""
    tables = [result.evaluations[0]["by_length"] for result in results]
    return {rows[0]["length"]: [row["bits_per_byte"][score] for row in rows] for rows in zip(*tables, strict=True)}


def _difference(values: Sequence[float | None], usual: Sequence[float | None]) -> Answer | None:
    if values is usual:
        return None
    return interval([a - b for a, b in zip(values, usual, strict=True) if a is not None and b is not None])


def slow_pairs(runs: Runs) -> Answer:
    """RoPE; RoPE whose slowest quarter of pairs stands still; and with that quarter among the fastest.

    Within 64 positions the slowest two of eight pairs turn by 4 degrees at most, so to stand still is hardly another
    encoding. What their slowness costs shows against pairs that do turn: by 10^-1/4 and 10^-3/4 a position, between
    those that are there.
    """
    still = {"name": "rope", "scaling": {"name": "proportional", "fraction": 0.75}}
    ladder = [10_000.0 ** (-pair / 8) for pair in range(6)]
    fast = {"name": "rope", "frequencies": [*ladder, 10.0**-0.25, 10.0**-0.75]}
    return {
        "rows": paired(runs, {"rope": {"name": "rope"}, "slowest quarter still": still, "slowest quarter fast": fast})
    }


def learned_frequencies(runs: Runs) -> Answer:
    """RoPE, and RoPE whose frequencies are learned; how far they moved."""
    learnable = {"name": "rope", "learnable": True}
    rows = paired(runs, {"rope": {"name": "rope"}, "learned": learnable})
    moved = []
    for result in runs.of(learnable):
        encoding = runs.loaded(result).model.plan[0]
        assert isinstance(encoding, Rope)
        moved.append(float(encoding.log_scale.detach().abs().max()))
    return {"rows": rows, "largest |a_i|": interval(moved)}


def within_the_length(runs: Runs) -> Answer:
    """Learned positions, sinusoidal codes and RoPE at the length they were trained on.

    The codes are divided by the root of the width, as ``compare`` has them, which makes them 4.4 times as large as
    embeddings and learned positions are at the start; those of the last row are about as large.
    """
    encodings = {
        "learned": {"name": "learned", "length": TRAINED},
        "sinusoidal": {"name": "sinusoidal", "scale": SMALL["width"] ** -0.5},
        "rope": {"name": "rope"},
        "sinusoidal, times 0.03": {"name": "sinusoidal", "scale": 0.03},
    }
    return {"rows": paired(runs, encodings)}


def factor_from_data(runs: Runs) -> Answer:
    """One model of texts of 48 in a window of 64, served at 128 by the factor of the window and by that of the data."""
    served = 2 * WINDOW
    factors = {"of the window": served / WINDOW, "of the data": served / SEEN}
    (_, batch, steps), *_ = SMALL["stages"]
    settings = {"stages": ((SEEN, batch, steps),), "lengths": (SEEN, served)}
    found: dict[str, list[float]] = {name: [] for name in ("as trained", *factors)}
    for result in runs.of({"name": "rope"}, **settings):
        run = runs.loaded(result)
        _, corpus = open_batches(run.config, runs.out)
        assert corpus is not None
        evaluation = Evaluation(run.model, run.config, corpus)
        rope = run.model.plan[0]
        assert isinstance(rope, Rope)
        encodings = {
            name: Rope.from_config(rope.config.replace(scaling=Linear(factor=f))) for name, f in factors.items()
        }
        for name, encoding in {"as trained": rope, **encodings}.items():
            plan = LayerPlan.shared(encoding, layers=run.config.layers)
            row = evaluation.variant("served", fixed=plan)["by_length"][-1]
            found[name].append(row["bits_per_byte"][SCORE])
    usual = found["of the window"]
    rows = [
        {"setting": name, "factor": factors.get(name), "loss": interval(v), "difference": _difference(v, usual)}
        for name, v in found.items()
    ]
    return {"settings": small(**settings), "trained": SEEN, "window": WINDOW, "served": served, "rows": rows}


# -- what is inside a trained model -----------------------------------------------------------------------------------


def texts(run: LabRun, runs: Runs, length: int, count: int = 64) -> Tensor:
    """Test texts of a run's corpus (count, length)."""
    _, corpus = open_batches(run.config, runs.out)
    assert corpus is not None
    return torch.from_numpy(corpus.samples(length, count).astype("int64"))[:, :length]


@torch.no_grad()
def inputs_of_blocks(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """What each block reads, and what the last one gives: (texts, length, width) each."""
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for block in model.blocks]
    hooks.append(model.blocks[-1].register_forward_hook(lambda _, given, out: seen.append(out)))
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def position_by_depth(runs: Runs) -> Answer:
    """The share of the variance of the position that a linear map reads off hidden states, layer by layer.

    With sinusoidal codes divided by the root of the width, as ``compare`` has them, and as they are defined.
    """
    rows, layers = [], 6
    for scale in (SMALL["width"] ** -0.5, 1.0):
        by_seed = []
        for result in runs.of({"name": "sinusoidal", "scale": scale}, layers=layers):
            run = runs.loaded(result)
            states = inputs_of_blocks(run.model, texts(run, runs, TRAINED))
            by_seed.append([_read_off(state.double()) for state in states])
        by_layer = [interval(list(values)) for values in zip(*by_seed, strict=True)]
        change = interval([values[-1] - values[0] for values in by_seed])
        rows.append({"scale": scale, "layers": by_layer, "last less first": change})
    return {"settings": small(layers=layers), "rows": rows}


def _read_off(states: Tensor) -> float:
    """R^2 on the second half of the texts of a ridge fitted on the first half."""
    half = len(states) // 2
    place = torch.linspace(-1, 1, states.shape[1], dtype=states.dtype).repeat(half)
    fitted, tested = (
        torch.cat((part, torch.ones_like(part[:, :1])), -1) for part in states.flatten(0, 1).split(len(place))
    )
    weights = torch.linalg.solve(fitted.mT @ fitted + 1e-3 * torch.eye(fitted.shape[1]).double(), fitted.mT @ place)
    return float(1 - (tested @ weights - place).square().sum() / place.square().sum())


def entropy_by_length(runs: Runs) -> Answer:
    """The entropy of the last token's attention, mean over texts, heads and layers, in nats."""
    rows = []
    for name in ("rope", "alibi"):
        by_seed = []
        for result in runs.of({"name": name}):
            run = runs.loaded(result)
            whole = texts(run, runs, SMALL["lengths"][-1])
            by_seed.append([_entropy(run.model, whole[:, -length:]) for length in SMALL["lengths"]])
        change = interval([values[-1] - values[0] for values in by_seed])
        cells = {str(n): interval(list(v)) for n, v in zip(SMALL["lengths"], zip(*by_seed, strict=True), strict=True)}
        rows.append({"encoding": name, "by_length": cells, "last less first": change})
    return {"rows": rows}


@torch.no_grad()
def _entropy(model: Decoder, tokens: Tensor) -> float:
    found = []
    for layer, state in enumerate(inputs_of_blocks(model, tokens)[:-1]):
        block = model.blocks[layer]
        q, k, v = block.attention.project(block.norm_1(state))
        _, weights = attention(q, k, v, encoding=model.plan[layer], return_weights=True)
        found.append(-(weights[:, :, -1] * weights[:, :, -1].clamp(min=1e-30).log()).sum(-1).mean())
    return float(torch.stack(found).mean())


def longer_stages(runs: Runs) -> Answer:
    """Accuracy of masked tokens in RoFormer's six stages, steps divided by 1,000: the longest, and those beside them.

    The model learns all the while, so a stage is held against the mean of the one before and the one after it.
    """
    by_seed, usual = [], PretrainConfig(encoding={"name": "rope"}, stages=staged(1000))
    for seed in SEEDS:
        done = pretrain(usual.replace(seed=seed), out=runs.out)
        by_seed.append([stage.accuracy for stage in done.stages])
    lengths = [length for length, _, _ in staged(1000)]
    stages = [
        {"length": length, "accuracy": interval(list(own))}
        for length, own in zip(lengths, zip(*by_seed, strict=True), strict=True)
    ]
    apart = [_long_less_neighbours(accuracies, lengths) for accuracies in by_seed]
    settings = {key: value for key, value in usual.to_dict().items() if key not in ("name", "encoding", "seed")}
    return {"settings": settings, "stages": stages, "longest less those beside": interval(apart)}


def _long_less_neighbours(accuracies: Sequence[float], lengths: Sequence[int]) -> float:
    long = [i for i, length in enumerate(lengths) if length == max(lengths)]
    return sum(accuracies[i] - (accuracies[i - 1] + accuracies[i + 1]) / 2 for i in long) / len(long)


QUESTIONS: dict[str, Callable[[Runs], Answer]] = {
    "slow-pairs": slow_pairs,
    "learned-frequencies": learned_frequencies,
    "within-the-length": within_the_length,
    "factor-from-data": factor_from_data,
    "position-by-depth": position_by_depth,
    "entropy-by-length": entropy_by_length,
    "longer-stages": longer_stages,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=[*QUESTIONS, "all"])
    parser.add_argument("--runs", type=Path, default=Path("out/trained-questions"), help="the folder of the runs")
    asked = parser.parse_args()
    runs = Runs(asked.runs)
    for name in QUESTIONS if asked.question == "all" else [asked.question]:
        answer = QUESTIONS[name](runs)
        known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"schema": SCHEMA, "questions": {}}
        origin = {
            "command": f"python experiments/trained_questions.py {name}",
            "environment": environment(),
            "settings": small(),
            "seeds": list(SEEDS),
        }
        known["questions"][name] = {**origin, **answer}
        write_json(FILE, known)
        print(json.dumps(answer, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
