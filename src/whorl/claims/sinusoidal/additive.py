"""Claims about codes that are added to the content: how much of a score depends on the distance alone."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from whorl.claims.ledger import About, Both, Finding, decide, depends, shared
from whorl.claims.probes import largest, normal
from whorl.claims.sinusoidal.codes import DIM, SIZES, codes, defined
from whorl.encodings.sinusoidal import DEFAULT_BASE

about_sinusoidal = About("sinusoidal")


def content(width: int = DIM) -> Tensor:
    """20 random queries and as many keys, each as long as a code: (2, 20, d)."""
    return torch.nn.functional.normalize(normal(2, 20, width, seed=4), dim=-1) * math.sqrt(width / 2)


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
def shares(width: int, base: float) -> dict[float, float]:
    """By |q|/|p| = |k|/|p|: the share of a score's variance over positions that the distance m - n alone explains."""
    p, (q, k) = codes(torch.arange(256), width, base), content(width)
    ratios = (0.1, 0.5, 1.0, 2.0, 10.0)
    return {ratio: share((ratio * q[:, None] + p) @ (ratio * k[:, None] + p).mT) for ratio in ratios}


@about_sinusoidal.holds(
    "additive.four-terms",
    "Of the four terms of <q + p_m, k + p_n>, codes of an even width, only <p_m, p_n> depends on m - n alone; for "
    "random q and k the share of the scores' variance that m - n explains falls as |q|/|p| = |k|/|p| grows from 0.1 to "
    "10.",
    "编码宽度为偶数时，<q + p_m, k + p_n> 的四项中只有 <p_m, p_n> 只与 m - n 有关；对随机的 q、k，|q|/|p| = |k|/|p| 从 "
    "0.1 增大到 10 时，分数的方差中由 m - n 解释的比例变小。",
    says="Dai et al. 2019, Transformer-XL, section 3.3, for the four terms, there with projections between, of which "
    "note.taylor-cross-term is; study notes for the rest",
    how="20 random q, k at 256 x 256 positions: the share of each term's, and of the scores', variance that the "
    "diagonals hold, all q and k together. At 128 dimensions that of <p_m, p_n> must be 1 to 1e-9, and those of the "
    "two others with positions below a half; that of the scores must be above 0.9 at |q|/|p| = |k|/|p| = 0.1 and fall "
    "from each of five ratios to the next, up to 10, at 2, 6, 128 and 256 dimensions, bases 100 to 500,000.",
    how_zh="20 组随机 q、k，256 × 256 个位置：各项以及分数的方差中由对角线（m - n）解释的比例，各组合起来算。128 维时 "
    "<p_m, p_n> 的须为 1（容差 1e-9），另两个含位置的项须小于一半；2、6、128、256 维（底数 100 到 500000）时，分数的在 "
    "|q|/|p| = |k|/|p| = 0.1 处须大于 0.9，并在五个比值上逐次下降，直到 10。",
)
def four_terms() -> Finding:
    found = [list(shares(*size).values()) for size in SIZES]
    falls = all(later < earlier for values in found for earlier, later in pairwise(values))
    p, (q, k) = codes(torch.arange(256)), content()
    terms = {
        "share of <p_m, p_n>": share(p @ p.mT),
        "share of <q, p_n>": share((q @ p.mT)[:, None].expand(20, 256, 256)),
        "share of <p_m, k>": share((p @ k.mT).mT[..., None].expand(20, 256, 256)),
    }
    alone, *crossed = terms.values()
    numbers = terms | {f"share at |q|/|p| = {ratio:g}": value for ratio, value in shares(DIM, DEFAULT_BASE).items()}
    good = alone > 1 - 1e-9 and max(crossed) < 0.5 and falls and min(values[0] for values in found) > 0.9
    but = Both("another term follows m - n, or the share does not fall", "另有一项跟随 m - n，或该比例没有下降")
    return decide(good, numbers, but)


@about_sinusoidal.holds(
    "note.additive-when-content-small",
    "Sinusoidal codes of an even width that are added to q and k act as relative ones where |q| and |k| are small "
    "against |p|.",
    "宽度为偶数的正弦编码加到 q、k 上，当 |q|、|k| 远小于 |p| 时，近似为相对编码。",
    says="study notes, of additive codes",
    how="20 random q, k at 256 x 256 positions, 2, 6, 128 and 256 dimensions, bases 100 to 500,000: the share of the "
    "variance of <q + p_m, k + p_n> that depends on m - n alone at |q|/|p| = |k|/|p| = 0.1 is above 0.9.",
    how_zh="20 组随机 q、k，256 × 256 个位置，2、6、128、256 维，底数 100 到 500000，|q|/|p| = |k|/|p| = 0.1："
    "<q + p_m, k + p_n> 的方差中只取决于 m - n 的比例大于 0.9。",
)
def when_small() -> Finding:
    found = {f"share at |q|/|p| = 0.1, d = {size[0]}": shares(*size)[0.1] for size in SIZES}
    least = min(found.values())
    return decide(least > 0.9, found, Both(f"the share is {least:.3f}", f"该比例为 {least:.3f}"))


@about_sinusoidal.depends(
    "note.taylor-cross-term",
    "Of the terms of a score's Taylor expansion in sinusoidal codes p_m and p_n of an even width, p_m . H p_n is the "
    "one that carries relative position.",
    "把分数对偶数宽度的正弦编码 p_m、p_n 作 Taylor 展开，承载相对位置的是 p_m · H p_n 这一项。",
    says="study notes, after Su 2021, kexue.fm 8231",
    how="The share of the variance of p_m . H p_n, 128 dimensions, 256 x 256 positions, that m - n explains: 1 to 1e-9 "
    "with H = 1; with eight random H it would have to be above 0.9. Beside it that share of terms of m alone, with "
    "eight random vectors. The codes are those of the definition, to 1e-9.",
    how_zh="128 维、256 × 256 个位置：p_m · H p_n 的方差中由 m - n 解释的比例：H = 1 时为 1（容差 1e-9）；八个随机 H 时"
    "须大于 0.9 才算。并列出只含 m 的项（八个随机向量）的该比例。编码须与定义相符（容差 1e-9）。",
)
def taylor_cross_term() -> Finding:
    p = codes(torch.arange(256))
    off = largest(p - defined(torch.arange(256)))
    plain, mixed = share(p @ p.mT), share(p @ (normal(8, DIM, DIM, seed=6) @ p.mT))
    one = share((p @ normal(8, DIM, 1, seed=7)).expand(8, 256, 256))
    numbers = {"share of m - n, H = 1": plain, "share of m - n, random H": mixed, "of terms of m alone": one}
    numbers["codes off the definition by"] = off
    text = Both(
        "with H = 1 it is a function of m - n alone; with random projections between m - n explains "
        f"{mixed:.2f} of its variance, and {one:.2f} of that of terms of m alone",
        f"H = 1 时它只是 m - n 的函数；中间有随机投影时 m - n 只解释其方差的 {mixed:.2f}，而只含 m 的项为 {one:.2f}",
    )
    alone = plain > 1 - 1e-9 and off < 1e-9
    return depends(Both("the projections H", "投影矩阵 H"), alone, mixed > 0.9, numbers, text)
