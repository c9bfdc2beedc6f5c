"""Statements of the notes about lengths that were not trained on."""

from __future__ import annotations

import torch

from whorl.claims.ledger import About, Finding, decide
from whorl.claims.probes import refusal
from whorl.claims.statements.frequencies import NOTES
from whorl.encodings.alibi import Alibi
from whorl.encodings.learned import Learned
from whorl.encodings.rope import Rope

TRAINED = 256


def fit_errors(name: str) -> dict[str, float]:
    """The errors of a score fitted to -0.05 d on distances below 256: there, and up to twice and four times as far.

    Least squares with a ridge that keeps the weights small, as those of a trained head are.
    """
    distance = torch.arange(4 * TRAINED)
    target = -0.05 * distance.double()
    if name == "rope":  # what q and k can make of a distance: a sum of its cosines and sines
        features = torch.cat(Rope(head_dim=64).tables(distance, dtype=torch.float64), dim=-1)
    else:
        features = Alibi(heads=1, slopes=(1.0,)).score_bias(torch.tensor([0]), -distance)[:, 0].double().mT
    inside = features[:TRAINED]
    gram = inside.mT @ inside + 1e-3 * torch.eye(inside.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(gram, inside.mT @ target[:TRAINED])
    off = (features @ weights - target).abs()
    return {
        f"{name}: error below {TRAINED}": float(off[:TRAINED].max()),
        f"{name}: at {TRAINED}-{2 * TRAINED - 1}": float(off[TRAINED : 2 * TRAINED].max()),
        f"{name}: at {2 * TRAINED}-{4 * TRAINED - 1}": float(off[2 * TRAINED :].max()),
        f"{name}: size of the weights": float(weights.norm()),
    }


@About("rope", "alibi", rows=("N30",)).fails(
    "note.rope-any-length",
    "RoPE extrapolates to any length.",
    "RoPE 可以外推到任意长度。",
    says=f"{NOTES}",
    how=(
        "The score that q and k can make with RoPE, fitted to -0.05 d for d < 256, read at up to 1,023; ALiBi beside "
        "it."
    ),
)
def rope_any_length() -> Finding:
    numbers = fit_errors("rope") | fit_errors("alibi")
    inside, near, far, *_ = numbers.values()
    text = (
        f"a score fitted to {inside:.1g} nats on 256 distances is off by {near:.3g} at up to 511 and by {far:.3g} at "
        "up to 1,023: computable, and wrong. Slow pairs meet angles that they were not fitted on"
    )
    return decide(far < 10 * max(inside, 0.01), numbers, text)


@About("rope", "learned", rows=("N30",)).fails(
    "note.ran-so-extrapolates",
    "A longer input ran without an error, so the encoding extrapolates.",
    "更长的输入没有报错，所以该编码能外推。",
    says=f"{NOTES}, a test script",
    how="The same fitted RoPE at 1,023: whether it runs, and whether it is right; and a learned table, which raises.",
)
def ran_so_extrapolates() -> Finding:
    ran = bool(torch.cat(Rope(head_dim=64).tables(torch.arange(4 * TRAINED))).isfinite().all())
    inside, _, far, _ = fit_errors("rope").values()
    learned = Learned(width=8, length=TRAINED)
    raised = bool(refusal(lambda: learned.add_to_input(torch.zeros(1, 1, 8), torch.tensor([TRAINED]))))
    numbers = {"ran": ran, "error at its end": far, "error below the trained length": inside}
    text = f"it ran to {4 * TRAINED} with finite numbers, and is off by {far:.3g} where it was right to {inside:.1g}"
    holds = not ran or far < 10 * max(inside, 0.01)
    return decide(holds, numbers | {"a learned table raises": raised}, text)


@About("rope", rows=("N23", "N33")).fails(
    "note.roformer-1024",
    "RoFormer at 1,024 tokens shows extrapolation past 512.",
    "RoFormer 用 1024 长度的结果说明它能外推到 512 之外。",
    says=f"{NOTES}, of the CAIL2019-SCM table",
    how="The stages of its pre-training as the paper lists them: (length, batch, thousand steps).",
)
def roformer_1024() -> Finding:
    stages = (
        (512, 256, 200.0),
        (1536, 256, 12.5),
        (256, 256, 120.0),
        (128, 512, 80.0),
        (1536, 256, 10.0),
        (512, 512, 30.0),
    )
    longest = max(length for length, _, _ in stages)
    long_steps = sum(steps for length, _, steps in stages if length > 1024)
    text = f"it was pre-trained on {longest} tokens for {long_steps:g} thousand steps"
    numbers = {"longest stage": longest, "thousand steps past 1,024": long_steps}
    return decide(longest < 1024, numbers, f"{text}: it shows use of long text, not extrapolation")
