"""Claims about the bound of scores by Abel summation: its identity, what it bounds, and its constant."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import Rope
from whorl.claims.decay.curves import (
    DIM,
    DISTANCES,
    HEADS,
    SIZES,
    SIZES_ZH,
    SU,
    about_rope,
    bound,
    ones,
    pair,
    partial_sums,
    scores,
)
from whorl.claims.ledger import Both, Finding, close, decide
from whorl.claims.probes import ladder, largest
from whorl.claims.rotation.turning import EXACT, phases


@about_rope.holds_within(
    "decay.abel-identity",
    "With pairs as complex numbers, h_j = q_j conj(k_j) and S_j the sum of e^(i m w) over the first j pairs, a RoPE "
    "score at distance m is Re sum_j S_(j+1) (h_j - h_(j+1)), h_(d/2) = 0: Abel summation with its boundary term.",
    "把每一对看作复数，h_j = q_j conj(k_j)，S_j 为前 j 对的 e^(i m w) 之和，则距离 m 处的 RoPE 分数等于 "
    "Re Σ_j S_(j+1)(h_j - h_(j+1))，其中 h_(d/2) = 0：带边界项的 Abel 求和。",
    says=f"{SU}, equation 36",
    how=f"200 random q, k of {SIZES} at seven distances up to 4,000, 20,000 positions into the text: the rotated "
    "product against the sum.",
    how_zh=f"{SIZES_ZH}各 200 组随机 q、k，直到 4000 的七个距离，位于文本第 20000 个位置：旋转后的内积与求和式比较。",
)
def abel_identity() -> Finding:
    return close((_abel_gap(*head, distance) for head in HEADS for distance in DISTANCES), 1e-8)


def _abel_gap(dim: int, base: float, distance: int) -> Tensor:
    """The scores of the 200 pairs less their summed form."""
    q, k, h = pair(dim)
    sums = partial_sums(Rope(head_dim=dim, base=base), torch.tensor([distance])).squeeze(0)
    return scores(q, k, distance, base) - (sums * _differences(h)).sum(-1).real


def _differences(h: Tensor) -> Tensor:
    """h_i - h_(i+1), the last one being h_(d/2-1) itself."""
    return h - torch.cat((h[:, 1:], torch.zeros_like(h[:, :1])), dim=-1)


@about_rope.fails(
    "note.abel-reindexing",
    "In the Abel proof, sum_(i<n) S_(i+1) h_i - sum_(i<n) S_i h_i may be written with sum_(i=1..n) S_i h_(i-1) in "
    "place of its second sum (h and S as in decay.abel-identity, n = d/2, S_0 = 0).",
    "Abel 证明中，Σ_(i<n) S_(i+1) h_i - Σ_(i<n) S_i h_i 的第二个和可以写成 Σ_(i=1..n) S_i h_(i-1)（h、S 同 "
    "decay.abel-identity，n = d/2，S_0 = 0）。",
    says="study notes, one line of the proof",
    how="200 random q, k of 128 dimensions at distance 16: that line against the score, to 1e-6. The line must be 0, "
    "and the one with the second sum as it was must be the score, as must Re sum_i h_i e^(i m w), to 1e-6 each.",
    how_zh="200 组 128 维随机 q、k，距离 16：该行与真实分数比较，容差 1e-6。该行须为 0，保留原第二个和的写法须等于分"
    "数，Re Σ_i h_i e^(i m w) 也须如此，容差都是 1e-6。",
)
def abel_reindexing() -> Finding:
    q, k, h = pair()
    sums = partial_sums(Rope(head_dim=DIM), torch.tensor([16]))
    before = torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1]), dim=-1)  # S_0 = 0, S_1 … S_(n-1)
    first, second = (sums * h).sum(-1).real, (before * h).sum(-1).real
    moved = torch.stack([sums[:, i - 1] * h[:, i - 1] for i in range(1, DIM // 2 + 1)]).sum(0).real
    score = scores(q, k, 16)
    numbers = {
        "largest score": largest(score),
        "largest value of the line as written": largest(first - moved),
        "off as written": largest(first - moved - score),
        "off with the second sum as it was": largest(first - second - score),
        "score off the definition": largest(score - (h * phases(torch.tensor([16]), ladder(DIM))).sum(-1).real),
    }
    most, line, wrong, *others = numbers.values()
    text = Both(
        f"sum_(i=1..n) S_i h_(i-1) is the first sum again, so the line is 0 where scores reach {most:.3g}; "
        "with the second sum as it was it is the score",
        f"Σ_(i=1..n) S_i h_(i-1) 就是第一个和，因此该行恒为 0，而分数可达 {most:.3g}；保留原第二个和，该行才等于分数",
    )
    return decide(wrong < 1e-6, numbers, text, instead=max(line, *others) < 1e-6)


@about_rope.holds(
    "decay.bound",
    "|score| <= max |h_i - h_(i+1)| * sum |S_j| for any q and k, the last difference |h_(d/2-1)| in the maximum (h and "
    "S as in decay.abel-identity).",
    "对任意 q、k 都有 |分数| <= max |h_i - h_(i+1)| * Σ |S_j|，最大值中包含最后一项 |h_(d/2-1)|（h、S 同 "
    "decay.abel-identity）。",
    says=f"{SU}, equation 37",
    how=f"200 random q, k of {SIZES}, q = k = 1, and at each distance the q and k that reach the bound, every "
    "S_j (h_i - h_(i+1)) being |S_j|; seven distances up to 4,000, 20,000 positions into the text: the score over the "
    "bound, at most 1 to 1e-9, and 1 where it is reached.",
    how_zh=f"{SIZES_ZH}各 200 组随机 q、k，q = k = 1，以及在每个距离上恰好达到上界的 q、k（使每个 S_j (h_i - h_(i+1)) "
    "都等于 |S_j|）；直到 4000 的七个距离，文本第 20000 个位置：分数除以上界，不超过 1（容差 1e-9），达到处等于 1。",
)
def abel_bound() -> Finding:
    found = [_over_bound(*head, distance) for head in HEADS for distance in DISTANCES]
    closest, reached = largest(each for each, _ in found), torch.stack([at_most for _, at_most in found])
    numbers = {
        "random or 1: largest |score| over its bound": closest,
        "where it is reached: least score over its bound": reached.min(),
        "where it is reached: largest": reached.max(),
    }
    furthest = max(closest, float(reached.max()))
    but = Both(
        f"a score is {furthest:.3g} times its bound, or falls short where it should reach it",
        f"某个分数是上界的 {furthest:.3g} 倍，或在应达到上界处没有达到",
    )
    return decide(closest <= 1 + 1e-9 and largest(reached - 1) < 1e-9, numbers, but)


def _over_bound(dim: int, base: float, distance: int) -> tuple[Tensor, Tensor]:
    """Scores over their bounds: of random pairs and of ones, and of the q and k that reach it."""
    sums = partial_sums(Rope(head_dim=dim, base=base), torch.tensor([distance])).squeeze(0)
    q, k, h = pair(dim)
    h = torch.cat((h, torch.full((1, dim // 2), 2.0 + 0j, dtype=h.dtype)))
    most = _differences(h).abs().amax(-1) * sums.abs().sum()
    some = scores(torch.cat((q, ones(dim))), torch.cat((k, ones(dim))), distance, base) / most
    # k = (1, 0) in every pair, and a q with which all terms have one phase and size
    h = (sums.conj() / sums.abs()).flip(-1).cumsum(-1).flip(-1)  # the differences of which are these
    q, k = (torch.view_as_real(each).flatten()[None] for each in (h, torch.ones_like(h)))
    return some, scores(q, k, distance, base)[0] / sums.abs().sum()


@about_rope.holds(
    "decay.bound-inner-differences",
    "The last difference |h_(d/2-1)| belongs in the maximum of the bound of decay.bound: over inner differences alone "
    "it is no bound.",
    "decay.bound 的上界中，最大值必须包含最后一项 |h_(d/2-1)|：只取内部各差就不再是上界。",
    says=f"{SU}, by setting h_(d/2) = 0; study notes",
    how="q = k = 1 of 128 dimensions, where all inner differences are 0: the score at distance 1 against both bounds.",
    how_zh="128 维，取 q = k = 1，此时内部各差全为 0：距离 1 处的分数与两种上界比较。",
)
def inner_differences() -> Finding:
    h = torch.full((1, DIM // 2), 2.0 + 0j, dtype=torch.complex128)
    sums = float(partial_sums(Rope(head_dim=DIM), torch.tensor([1])).abs().sum())
    score, differences = float(scores(ones(), ones(), 1)[0]), _differences(h).abs()
    inner, whole = float(differences[:, :-1].max()) * sums, float(differences.max()) * sums
    numbers = {"score at distance 1": score, "bound by inner differences": inner, "bound with the last": whole}
    text = Both("inner differences bound the score, or all of them do not", "内部各差已是上界，或全部差也不是上界")
    return decide(inner < score <= whole, numbers, text)


@about_rope.fails(
    "note.bound-constant",
    "|score| <= max |h_i - h_(i+1)| * mean |S_j|: the mean of d/2 values where decay.bound has their sum, which is d/2 "
    "times it (h and S as in decay.abel-identity).",
    "|分数| <= max |h_i - h_(i+1)| * mean |S_j|：decay.bound 中是 d/2 个值之和，"
    "这里换成其平均，少了因子 d/2（h、S 同 decay.abel-identity）。",
    says="study notes, the constant of the bound",
    how="q = k = 1 of 128 dimensions at distance 0: the score, which would have to be at most this bound, and is to be "
    "at most d/2 times it. S_j is j there, so they must be d and d/2 + 1, to 1e-9.",
    how_zh="128 维，取 q = k = 1，距离 0：分数须不超过该上界才算；而上界的 d/2 倍应不小于分数。此处 S_j = j，因此二者须"
    "为 d 与 d/2 + 1，容差 1e-9。",
)
def bound_constant() -> Finding:
    score, mean = float(scores(ones(), ones(), 0)[0]), float(bound()[0])
    least = 2.0 * mean  # h is 2 in every pair, and the last difference is 2
    numbers = {"score": score, "bound without d/2": least, "bound with d/2": DIM / 2 * least}
    text = Both(
        f"q = k = (1, …, 1) scores {score:g} and this bound is {least:g}; with the factor d/2 = {DIM // 2} it holds",
        f"q = k = (1, …, 1) 的分数为 {score:g}，而该上界只有 {least:g}；乘上 d/2 = {DIM // 2} 才成立",
    )
    right = abs(score - DIM) < EXACT and abs(least - (DIM / 2 + 1)) < EXACT and score <= DIM / 2 * least
    return decide(score <= least, numbers, text, instead=right)
