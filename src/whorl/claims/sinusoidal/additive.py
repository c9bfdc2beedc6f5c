"""Claims about codes that are added to the content: how much of a score depends on the distance alone."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from whorl.claims.ledger import About, Finding, decide, shared
from whorl.claims.probes import normal
from whorl.claims.sinusoidal.codes import DIM, codes

about_sinusoidal = About("sinusoidal", rows=("N25",))


def content() -> Tensor:
    """20 random queries and as many keys, each as long as a code: (2, 20, d)."""
    return torch.nn.functional.normalize(normal(2, 20, DIM, seed=4), dim=-1) * math.sqrt(DIM / 2)


def share(scores: Tensor) -> float:
    """The share of the variance of scores (…, m, n) that the distance m - n alone explains, in all of them together."""
    m = torch.arange(scores.shape[-1])
    distance = (m[:, None] - m).flatten() + len(m) - 1
    own, total = 0.0, 0.0
    for score in scores.flatten(-2).view(-1, len(distance)):
        means = torch.bincount(distance, score) / torch.bincount(distance)
        own += float((means[distance] - score.mean()).square().mean())
        total += float(score.var(correction=0))
    return own / total


@shared
def shares() -> dict[float, float]:
    """By |q|/|p|: the share of a score's variance over positions that the distance m - n alone explains."""
    p, (q, k) = codes(torch.arange(256)), content()
    ratios = (0.1, 0.5, 1.0, 2.0, 10.0)
    return {ratio: share((ratio * q[:, None] + p) @ (ratio * k[:, None] + p).mT) for ratio in ratios}


@about_sinusoidal.holds(
    "additive.four-terms",
    "Of the four terms of <q + p_m, k + p_n> only <p_m, p_n> is of m - n; its share falls as |q|/|p| grows.",
    "<q + p_m, k + p_n> 的四项中只有 <p_m, p_n> 只与 m - n 有关；|q|/|p| 越大，它所占比例越小。",
    says="Transformer-XL's expansion; N25",
    how="20 q, k at 256 x 256 positions: the share of each term's, and of a score's, variance that the diagonals hold.",
)
def four_terms() -> Finding:
    found = list(shares().values())
    falls = all(later < earlier for earlier, later in pairwise(found))
    p, (q, k) = codes(torch.arange(256)), content()
    terms = {
        "share of <p_m, p_n>": share(p @ p.mT),
        "share of <q, p_n>": share((q @ p.mT)[:, None].expand(20, 256, 256)),
        "share of <p_m, k>": share((p @ k.mT).mT[..., None].expand(20, 256, 256)),
    }
    alone, *crossed = terms.values()
    numbers = terms | {f"share at |q|/|p| = {ratio:g}": value for ratio, value in shares().items()}
    good = alone > 1 - 1e-9 and max(crossed) < 0.5 and falls and found[0] > 0.9
    return decide(good, numbers, "another term follows m - n, or the share does not fall")


@about_sinusoidal.holds(
    "note.additive-when-content-small",
    "Additive codes act as relative ones where |q| is small against |p|.",
    "当 |q| 远小于 |p| 时，加性编码近似为相对编码。",
    says="the notes, one of two contradictory conditions; N25",
    how="The share of the variance that depends on m - n alone at |q|/|p| = 0.1: above nine tenths.",
)
def when_small() -> Finding:
    share = shares()[0.1]
    return decide(share > 0.9, {"share at |q|/|p| = 0.1": share}, f"the share is {share:.3f}")


@about_sinusoidal.fails(
    "note.additive-when-content-large",
    "Additive codes act as relative ones where |q| is large against |p|.",
    "当 |q| 远大于 |p| 时，加性编码近似为相对编码。",
    says="the notes, the other of two contradictory conditions; N25",
    how="The same share at |q|/|p| = 10: above nine tenths.",
)
def when_large() -> Finding:
    share, rest = shares()[10.0], "<q, p_n> and <p_m, k> are the rest"
    text = f"at |q|/|p| = 10 only {share:.3f} of the variance depends on m - n alone; {rest}"
    return decide(share > 0.9, {"share at |q|/|p| = 10": share, "at 0.1": shares()[0.1]}, text)
