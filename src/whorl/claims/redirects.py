"""Ids that claims had before, and the claim that stands for each now: joined with another, renamed, or dropped."""

from __future__ import annotations

REDIRECTS: dict[str, str] = {
    # two claims of one fact, joined
    "note.turns-vanish": "rope.gradient-norm",
    "note.alibi-unscaled": "alibi.bias-unscaled",
    "base.ten-thousand": "sinusoidal.first-negative",
    "note.layouts-equal": "rope.layouts-permute",
    "note.xpos-quadratic": "linear.cost",
    "note.ran-so-extrapolates": "note.rope-any-length",
    "precision.distinguishable-integers": "precision.bfloat16-positions",
    "precision.kerple-distances": "precision.bfloat16-positions",
    "linear.rotated-larger": "linear.numerator-probability",
    # statements that nobody makes, turned into what is so
    "note.additive-when-content-large": "additive.four-terms",
    "base.monotone": "base.gaps",
    "xpos.bidirectional": "xpos.causal-only",
}
