"""Claims about long-range decay: the curves of scores and of mean |S_j|, what falls and what does not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from whorl import Rope, XPos
from whorl.claims.ledger import About, Both, Finding, decide, depends, shared, within
from whorl.claims.probes import doubles, ladder, largest, normal, turned
from whorl.claims.rotation.turning import EXACT, at, phases, plain, score_at

SU = "Su et al. 2021, RoFormer, section 3.4.3"
DIM = 128

# mean |S_j| by distance, for 128 dimensions and base 10,000.
KNOWN = {0: 32.5, 1: 31.5382, 2: 28.9560, 4: 22.6040, 8: 19.8174}
KNOWN |= {16: 15.7750, 32: 13.3843, 64: 10.0899, 128: 9.2729, 256: 6.5431}
STEPS = 256
BLOCKS = ((1, 16), (16, 32), (32, 64), (64, 128), (128, 256), (256, 512))
DISTANCES = (0, 1, 2, 16, 64, 256, 4000)
HEADS = ((DIM, 10_000.0), (64, 500.0), (10, 500_000.0))
SIZES = "128, 64 and 10 dimensions (bases 10,000, 500 and 500,000)"
SIZES_ZH = "128、64、10 维（底数 10000、500、500000）"
WIDTHS = (DIM, 64, 256)
about_rope = About("rope")


def partial_sums(rope: Rope, distances: Tensor) -> Tensor:
    """S_1 … S_(d/2) at each distance, complex: sums of e^(i k w) over the first pairs, from the rope's own tables."""
    cos, sin = rope.tables(distances, dtype=torch.float64)
    return torch.complex(cos, sin).cumsum(-1)


@shared
def bound(dim: int = DIM, given: tuple[float, ...] | None = None) -> Tensor:
    """mean_j |S_j| at distances 0 … 512, for base 10,000 or for given frequencies."""
    rope = Rope(head_dim=dim) if given is None else Rope(head_dim=dim, frequencies=given)
    return partial_sums(rope, torch.arange(BLOCKS[-1][1] + 1)).abs().mean(-1)


def right_bound(frequencies: Tensor) -> Tensor:
    """mean_j |S_j| at distances 0 … 512, from the definition."""
    return phases(torch.arange(BLOCKS[-1][1] + 1), frequencies).cumsum(-1).abs().mean(-1)


@shared
def pair(dim: int = DIM) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of 200 random pairs, interleaved, and h_i = q_i conj(k_i) of each pair, complex."""
    q, k = normal(2, 200, dim, seed=2)
    a, b = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    return q, k, a * b.conj()


def ones(dim: int = DIM) -> Tensor:
    """One vector of ones."""
    return torch.ones(1, dim, dtype=torch.float64)


def scores(q: Tensor, k: Tensor, distance: int, base: float = 10_000.0) -> Tensor:
    """q 20,000 positions into the text against k ``distance`` before it, by the rotation of whorl."""
    rope = Rope(head_dim=q.shape[-1], base=base, layout="interleaved")
    return score_at(rope, q, k, 20_000, 20_000 - distance)


@about_rope.holds_within(
    "decay.values",
    "With S_j the sum of e^(i m w) over the first j pairs, mean |S_j|, the factor of the bound on a RoPE score that "
    "depends on the distance m, is 32.5 at 0 and 6.5431 at 256 (128 dimensions, base 10,000).",
    "设 S_j 为前 j 对的 e^(i m w) 之和，则 RoPE 分数上界中随距离 m 变化的因子 mean |S_j| 在距离 0 处为 32.5，在距离 "
    "256 处为 6.5431（128 维，底数 10000）。",
    says="study notes, of the curve of Su et al. 2021, RoFormer, figure 2",
    how="Partial sums of the rope's own cosines and sines at ten distances, against four decimals.",
    how_zh="用 rope 自身的余弦与正弦求部分和，十个距离，与四位小数比较。",
)
def values() -> Finding:
    numbers = {f"mean |S_j| at {distance}": bound()[distance] for distance in KNOWN}
    worst = largest(bound()[distance] - value for distance, value in KNOWN.items())
    return within(worst, 5.1e-5, numbers | {"largest difference": worst})


@about_rope.depends(
    "decay.monotone",
    "With base 10,000 and heads of 64, 128 and 256 dimensions mean |S_j|, S_j the sum of e^(i m w) over the first j "
    "pairs, decays as the distance m grows up to 511.",
    "底数为 10000、头为 64、128、256 维时，mean |S_j|（S_j 为前 j 对的 e^(i m w) 之和）随距离 m 增大（直到 511）而衰减"
    "。",
    says=f"{SU}, of its figure 2, which shows some 250 distances; the study notes say as a trend",
    how="Heads of 128, 64 and 256 dimensions: its means over distances 1-15, 16-31 … 256-511, and the signs of its 256 "
    "steps from distance 0 to 256. By whorl's tables, which must give what the definition gives, to 1e-9.",
    how_zh="128、64、256 维的头：在距离 1-15、16-31 … 256-511 各段上的均值，以及距离 0 到 256 的 256 步各自的升降。"
    "由 whorl 的表算出，须与定义所给的相同（容差 1e-9）。",
)
def monotone() -> Finding:
    rising = {dim: bound(dim)[: STEPS + 1].diff() > 0 for dim in WIDTHS}
    rises = int(rising[DIM].sum())
    first = int(rising[DIM].nonzero()[0]) if rises else -1
    numbers = {"steps that rise": rises, "first step that rises": first}
    numbers |= {f"heads of {dim}, steps that rise": rising[dim].sum() for dim in (64, 256)}
    text = Both(
        f"over doubling ranges it falls; in heads of {DIM} {rises} of {STEPS} steps rise, the first from distance "
        f"{first} to {first + 1}",
        f"按加倍区间看它在下降；但 {DIM} 维的头在 {STEPS} 步中有 {rises} 步上升，首次是从距离 {first} 到 {first + 1}",
    )
    on = Both("whether the trend or every step is meant", "指的是趋势还是每一步")
    falls = all(_falls(_means(bound(dim)).values()) for dim in WIDTHS)
    off = largest(bound(dim) - right_bound(ladder(dim)) for dim in WIDTHS)
    every = any(not each.any() for each in rising.values())
    return depends(on, falls, every, numbers | {"off the definition by": off}, text, instead=off < EXACT)


@about_rope.holds(
    "decay.trend",
    "As a trend the bound on a RoPE score falls up to distance 511 (heads of 64, 128 and 256 dimensions, base 10,000): "
    "the mean of its factor mean |S_j| over distances 1-15, 16-31, 32-63 … 256-511 falls each time.",
    "从趋势看，直到距离 511，RoPE 分数的上界在下降（64、128、256 维的头，底数 10000）：其因子 mean |S_j| 在距离 1-15、"
    "16-31、32-63……256-511 各段上的均值逐段变小。",
    says="study notes",
    how="These means for heads of 128, 64 and 256 dimensions; S_j is the sum of e^(i m w) over the first j pairs.",
    how_zh="128、64、256 维的头的这些均值；S_j 为前 j 对的 e^(i m w) 之和。",
)
def trend() -> Finding:
    found = {dim: _means(bound(dim)) for dim in WIDTHS}
    numbers = {f"heads of {dim}, {name}": value for dim, means in found.items() for name, value in means.items()}
    but = Both("a mean is not below the one before", "某段均值不小于前一段")
    return decide(all(_falls(means.values()) for means in found.values()), numbers, but)


def _means(curve: Tensor) -> dict[str, float]:
    return {f"mean over {low}-{high - 1}": float(curve[low:high].mean()) for low, high in BLOCKS}


def _falls(means: Iterable[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(means))


@about_rope.depends(
    "decay.any-content",
    "In heads of 128 dimensions, base 10,000, RoPE scores decay with the distance up to 511, as a trend.",
    "128 维的头、底数 10000 时，直到距离 511，RoPE 的分数从趋势看随距离衰减。",
    says="Su et al. 2021, RoFormer, section 3.3, of long-term decay; study notes",
    how="128 dimensions, base 10,000, distances 0 … 511: whether means of |score| over 1-15, 16-31 … 256-511 fall "
    "from each to the next, for q = k = 1, whose scores are to be 2 sum_i cos(m w_i), to 1e-9, and for a k that is q "
    "turned to fit at distance 256, where |score| is to be largest, and |q|^2, to 1e-9.",
    how_zh="128 维、底数 10000、距离 0 … 511：|分数| 在 1-15、16-31 … 256-511 各段上的均值是否逐段下降：一是 q = k = 1"
    "，其分数须为 2 Σ_i cos(m w_i)（容差 1e-9）；二是把 q 转到恰好在距离 256 处匹配的 k，其 |分数| 须在该处最大，且为 "
    "|q|²（容差 1e-9）。",
)
def any_content() -> Finding:
    curve = _curve(ones(), ones())
    smooth, off = _means(curve.abs()), largest(curve - 2 * phases(torch.arange(513), ladder(DIM)).real.sum(-1))
    q = normal(1, DIM, seed=3)
    fitted = at(plain(DIM), q, 256)  # q at m against this at m - 256 is |q|^2: the rotation by 256 is undone
    made = _curve(q, fitted).abs() / float(q.square().sum())
    numbers = smooth | {"off the definition by": off}
    numbers |= {"fitted k: score at 0 over |q|^2": made[0], "at 256": made[256]}
    text = "k = R_256 q scores |q|^2 at distance 256, the largest score there is, and less at every smaller one"
    but = Both(text, "k = R_256 q 在距离 256 处得到最大的分数 |q|²，在更近处都更小")
    told = off < EXACT and abs(float(made[256]) - 1) < EXACT and int(made[:512].argmax()) == 256
    falls, fitted_falls = _falls(smooth.values()), _falls(_means(made).values())
    return depends(Both("q and k", " q 与 k"), falls, fitted_falls, numbers, but, instead=told)


def _curve(q: Tensor, k: Tensor) -> Tensor:
    """Scores at distances 0 … 512, of one pair of vectors."""
    keys = plain(DIM).rotate(k.expand(513, -1), 512 - torch.arange(513))
    return keys @ plain(DIM).rotate(q, torch.tensor([512])).squeeze(0)


@about_rope.depends(
    "decay.any-ladder",
    "With almost any smooth monotone ladder of 64 frequencies the bound on a RoPE score decays with the distance, as a "
    "trend: linear, power, exponential.",
    "对几乎任何由 64 个频率组成的光滑单调序列，RoPE 分数的上界从趋势看都随距离衰减：线性、幂、指数均可。",
    says="study notes, of the bound; Su 2021, kexue.fm 8231, of an integral, the limit of many frequencies",
    how="The bound's factor mean |S_j|, S_j the sum of e^(i m w) over the first j pairs, of w_i = 1 - i/n, (1 - i/n)^2 "
    "and 10000^(-i/n), n = 64 pairs: whether its means over distances 1-15, 16-31 … fall up to 127, and up to 511. By "
    "whorl's tables, which must give what the definition gives, to 1e-9; the linear one must peak where its steps are "
    "in phase. Beside it how many of the three fall up to 511 with n = 256.",
    how_zh="w_i = 1 - i/n、(1 - i/n)²、10000^(-i/n)，n = 64：上界的因子 mean |S_j|（S_j 为前 j 对的 e^(i m w) 之和）在"
    "距离 1-15、16-31 … 各段上的均值，到 127 与到 511 是否逐段下降。由 whorl 的表算出，须与定义所给的相同（容差 1e-9）"
    "；线性序列的峰须在各步重新同相之处。并列出 n = 256 时三者中到 511 逐段下降的个数。",
)
def any_ladder() -> Finding:
    ladders = _ladders(64)
    numbers, near, far, off = {}, True, [], []
    for name, steps in ladders.items():
        curve = bound(given=steps)
        means = list(_means(curve).values())
        near, far = near and _falls(means[:4]), far + [name] * _falls(means)
        off.append(curve - right_bound(doubles(steps)))
        numbers[f"{name}: largest from 128 to 511"] = curve[128:512].max()
    peak, back = bound(given=ladders["linear"])[128:512].max(0)
    numbers |= {"linear: at this distance": 128 + back, "off the definition by": largest(off)}
    again = round(2 * math.pi * 64)
    phase = f"equal steps of 1/64 are in phase again after 2 pi 64 = {again} positions"
    finer = sum(_falls(_means(bound(512, steps)).values()) for steps in _ladders(256).values())
    numbers["ladders of 256 frequencies that fall up to 511"] = finer
    but = Both(
        f"up to 511 only the exponential ladder's means fall each time; the linear one's factor is back at {peak:.2f} "
        f"of 32.5 at distance {128 + back}: {phase}; with 256 frequencies {finer} of the 3 fall",
        f"到 511 只有指数序列的各段均值逐段下降；线性序列的因子在距离 {128 + back} 处回升到 {peak:.2f}（距离 0 处为 "
        f"32.5）：等步长 1/64 每 2π·64 = {again} 个位置重新同相；256 个频率时 3 种中有 {finer} 种逐段下降",
    )
    right = largest(off) < EXACT and 128 + int(back) == again and far == ["exponential"]
    return depends(Both("the distance", "距离的范围"), near, len(far) == len(ladders), numbers, but, instead=right)


def _ladders(count: int) -> dict[str, tuple[float, ...]]:
    """Three ladders of so many frequencies, from 1 down."""
    parts = [i / count for i in range(count)]
    return {
        "linear": tuple(1 - t for t in parts),
        "power": tuple((1 - t) ** 2 for t in parts),
        "exponential": tuple(10_000.0**-t for t in parts),
    }


@about_rope.depends(
    "decay.square-root",
    "With 128 dimensions and base 10,000 |S_j|, S_j the sum of e^(i m w) over the first j pairs, grows like the square "
    "root of j, as a random walk would.",
    "128 维、底数 10000 时，|S_j|（S_j 为前 j 对的 e^(i m w) 之和）像随机游走那样按 √j 增长。",
    says="study notes, of large distances",
    how="128 dimensions, base 10,000: root mean square of |S_j| / sqrt(j) at distances 1 … 127 and 10,000 … 19,999. "
    "Within 0.05 of 1 over all j = 1 … 64, and within 0.15 at each j by itself, counts as so. By whorl's tables, whose "
    "|S_j| must be those of the definition, to 1e-9.",
    how_zh="128 维、底数 10000：|S_j| / √j 的均方根，距离取 1 … 127 与 10000 … 19999。对 j = 1 … 64 合起来与 1 相差"
    "不到 0.05，且对每个 j 单独相差不到 0.15，算是如此。由 whorl 的表算出，其 |S_j| 须与定义所给的相同（容差 1e-9）。",
)
def square_root() -> Finding:
    j = torch.arange(1, DIM // 2 + 1, dtype=torch.float64)
    ratios, so, apart = {}, [], []
    for first, after in ((1, 128), (10_000, 20_000)):
        distances = torch.arange(first, after)
        sums = partial_sums(Rope(head_dim=DIM), distances).abs()
        apart.append(sums - phases(distances, ladder(DIM)).cumsum(-1).abs())
        squares = sums.square() / j
        whole, off = float(squares.mean().sqrt()), largest(squares.mean(0).sqrt() - 1)
        ratios[f"|S_j| over sqrt(j), distances {first:,} … {after - 1:,}"] = whole
        ratios[f"the j farthest from 1, distances {first:,} … {after - 1:,}, off by"] = off
        so.append(abs(whole - 1) < 0.05 and off < 0.15)
    near, _, far, _ = ratios.values()
    text = Both(
        f"far away angles are as good as random ({far:.2f}); nearby slow pairs stand still and add up ({near:.2f})",
        f"距离很远时各角度近似随机（{far:.2f}）；距离近时慢的维度几乎不动，逐项相加（{near:.2f}）",
    )
    ratios["off the definition by"] = largest(apart)
    return depends(Both("the distance", "距离的大小"), so[1], so[0], ratios, text, instead=largest(apart) < EXACT)


@About("xpos").holds(
    "decay.xpos-envelope",
    "An xPos score of a query and a key that is not after it is at most sum_i zeta_i^(distance / 512) |q_i| |k_i| over "
    "pairs i, zeta_i = (2i/d + 0.4) / 1.4, and this bound falls with the distance.",
    "键不在查询之后时，xPos 的分数不超过对各对 i 求和的 Σ_i ζ_i^(距离/512) |q_i| |k_i|，ζ_i = (2i/d + 0.4)/1.4，且这个"
    "上界随距离下降。",
    says="Sun et al. 2022, xPos, by the decay of each pair",
    how="200 random q, k of 128, 64 and 10 dimensions at distances 0, 1, 100, 512, 2,048 and 8,192, and q, k of ones "
    "whose pairs are turned so that they line up at that distance: the score over the bound, at most 1 to 1e-9, and 1 "
    "where pairs line up; and the bound from each distance to the next.",
    how_zh="128、64、10 维各 200 组随机 q、k，距离 0、1、100、512、2048、8192，以及各对预先转到在该距离上同向的、全为 "
    "1 的 q、k：分数除以上界，不超过 1（容差 1e-9），同向时等于 1；并看上界在相邻两个距离之间是否下降。",
)
def xpos_envelope() -> Finding:
    found = {dim: _faded(dim) for dim in (DIM, 64, 10)}
    bounds = found[DIM].bounds
    falls = all(bool((later < earlier).all()) for each in found.values() for earlier, later in pairwise(each.bounds))
    numbers = {
        "random: largest |score| over its bound": largest(each.used for each in found.values()),
        "lined up: largest difference of score over bound from 1": largest(
            each.lined_up - 1 for each in found.values()
        ),
        "bound at 8192 over bound at 0": (bounds[-1] / bounds[0]).mean(),
    }
    most, off, _ = numbers.values()
    but = Both(
        f"a score is {most:.3g} times its bound, or is off it by {off:.3g} of it where pairs line up",
        f"某个分数是上界的 {most:.3g} 倍，或各对同向时与上界相差其 {off:.3g}",
    )
    return decide(falls and most <= 1 + 1e-9 and off < 1e-9, numbers, but)


class _Faded(NamedTuple):
    """Bounds of xPos scores by distance, and scores over them: of random pairs, and of ones that line up."""

    bounds: Tensor
    used: Tensor
    lined_up: Tensor


def _faded(dim: int) -> _Faded:
    """The bounds of 200 pairs of this size, and what scores are of them, a row for each distance."""
    q, k, h = pair(dim)
    xpos = XPos(head_dim=dim, layout="interleaved")
    zeta = (torch.arange(dim // 2, dtype=torch.float64) / (dim // 2) + 0.4) / 1.4
    rows = []
    for distance in (0, 1, 100, 512, 2048, 8192):
        there, here = torch.tensor([5000]), torch.tensor([5000 + distance])
        fade = zeta ** (distance / 512)
        a, b = xpos.transform_qk(q[:, None, None], k[:, None, None], here, there)
        most = (fade * h.abs()).sum(-1)
        lined = turned(ones(dim), -distance * ladder(dim))
        c, d = xpos.transform_qk(lined[:, None, None], ones(dim)[:, None, None], here, there)
        in_line = (c * d).sum(-1).flatten() / (2 * fade.sum())  # |q_i| |k_i| of ones is 2
        rows.append((most, (a * b).sum(-1).flatten() / most, in_line))
    return _Faded(*(torch.stack(column) for column in zip(*rows, strict=True)))
