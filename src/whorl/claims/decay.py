"""Claims about long-range decay: the bound by Abel summation, what it bounds, and what it does not (N27)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor

from whorl.claims.ledger import About, Finding, close, decide, depends, shared, within
from whorl.claims.probes import largest, normal
from whorl.claims.rotation.turning import at, plain, score_at
from whorl.encodings.rope import Rope
from whorl.encodings.xpos import XPos

SU = "Su et al. 2021, RoFormer, section 3.4.3"
DIM = 128

# mean |S_j| by distance, for 128 dimensions and base 10,000.
KNOWN = {0: 32.5, 1: 31.5382, 2: 28.9560, 4: 22.6040, 8: 19.8174}
KNOWN |= {16: 15.7750, 32: 13.3843, 64: 10.0899, 128: 9.2729, 256: 6.5431}
STEPS = 256
BLOCKS = ((1, 16), (16, 32), (32, 64), (64, 128), (128, 256), (256, 512))
DISTANCES = (0, 1, 2, 16, 64, 256, 4000)
about_rope = About("rope", rows=("N27",))


def partial_sums(rope: Rope, distances: Tensor) -> Tensor:
    """S_1 … S_(d/2) at each distance, complex: sums of e^(i k w) over the first pairs, from the rope's own tables."""
    cos, sin = rope.tables(distances, dtype=torch.float64)
    return torch.complex(cos, sin).cumsum(-1)


@shared
def bound(ladder: tuple[float, ...] | None = None) -> Tensor:
    """mean_j |S_j| at distances 0 … 512, for base 10,000 or for given frequencies."""
    rope = Rope(head_dim=DIM) if ladder is None else Rope(head_dim=DIM, frequencies=ladder)
    return partial_sums(rope, torch.arange(BLOCKS[-1][1] + 1)).abs().mean(-1)


@shared
def pair() -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of 200 random pairs, interleaved, and h_i = q_i conj(k_i) of each pair, complex."""
    q, k = normal(2, 200, DIM, seed=2)
    a, b = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    return q, k, a * b.conj()


def ones() -> Tensor:
    """One vector of ones."""
    return torch.ones(1, DIM, dtype=torch.float64)


def scores(q: Tensor, k: Tensor, distance: int, start: int = 20_000) -> Tensor:
    """q at start against k ``distance`` before it, by the rotation of whorl."""
    return score_at(plain(q.shape[-1]), q, k, start, start - distance)


@about_rope.holds_within(
    "decay.values",
    (
        "mean |S_j|, what the bound on a RoPE score owes to the distance, is 32.5 at 0 and 6.5431 at 256 (128 "
        "dimensions, base 10,000)."
    ),
    "RoPE 分数上界中随距离变化的因子 mean |S_j| 在距离 0 处为 32.5，在距离 256 处为 6.5431（128 维，底数 10000）。",
    says=f"{SU}, figure 2; N27",
    how="Partial sums of the rope's own cosines and sines at ten distances, against four decimals.",
)
def values() -> Finding:
    numbers = {f"mean |S_j| at {distance}": bound()[distance] for distance in KNOWN}
    worst = largest(bound()[distance] - value for distance, value in KNOWN.items())
    return within(worst, 5.1e-5, numbers | {"largest difference": worst})


@about_rope.fails(
    "decay.monotone",
    "The bound falls with every step of distance.",
    "距离每增加一步，上界都下降。",
    says="the notes; N27",
    how="Signs of the 256 steps of mean |S_j| from distance 0 to 256.",
)
def monotone() -> Finding:
    steps = bound()[: STEPS + 1].diff()
    rises = int((steps > 0).sum())
    first = int((steps > 0).nonzero()[0]) if rises else -1
    text = f"{rises} of {STEPS} steps rise, the first from distance {first} to {first + 1}"
    return decide(rises == 0, {"steps that rise": rises, "first step that rises": first}, text)


@about_rope.holds(
    "decay.trend",
    "As a trend the bound falls: its mean over 1-15, 16-31, 32-63 … 256-511 falls each time.",
    "从趋势看上界在下降：在 1-15、16-31、32-63……256-511 各段上的均值逐段变小。",
    says=f"{SU}; N27",
    how="Means of mean |S_j| over doubling ranges of distance.",
)
def trend() -> Finding:
    means = _means(bound())
    values = list(means.values())
    return decide(_falls(values), means, f"the means are {[round(value, 2) for value in values]}")


def _means(curve: Tensor) -> dict[str, float]:
    return {f"mean over {low}-{high - 1}": float(curve[low:high].mean()) for low, high in BLOCKS}


def _falls(means: Iterable[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(means))


@about_rope.holds_within(
    "decay.abel-identity",
    "A RoPE score is Re sum_j S_(j+1) (h_j - h_(j+1)) with h_(d/2) = 0: Abel summation with its boundary term.",
    "RoPE 分数等于 Re Σ_j S_(j+1)(h_j - h_(j+1))，其中 h_(d/2) = 0：带边界项的 Abel 求和。",
    says=f"{SU}, equation 36; N27",
    how="200 random q, k at seven distances, 20,000 positions into the text: the rotated product against the sum.",
)
def abel_identity() -> Finding:
    return close((_abel_gap(distance) for distance in DISTANCES), 1e-8)


def _abel_gap(distance: int, terms: int = DIM // 2) -> Tensor:
    """The scores of the 200 pairs less their summed form, of all terms or of the first ones."""
    q, k, h = pair()
    sums = partial_sums(Rope(head_dim=DIM), torch.tensor([distance])).squeeze(0)
    return scores(q, k, distance) - (sums * _differences(h))[:, :terms].sum(-1).real


def _differences(h: Tensor) -> Tensor:
    """h_i - h_(i+1), the last one being h_(d/2-1) itself."""
    return h - torch.cat((h[:, 1:], torch.zeros_like(h[:, :1])), dim=-1)


@about_rope.fails(
    "note.abel-reindexing",
    (
        "In the proof, sum_i (S_(i+1) - S_i) h_i can be re-indexed to sum_i S_(i+1) (h_i - h_(i+1)) over the inner "
        "pairs alone."
    ),
    "证明中，Σ_i (S_(i+1) - S_i) h_i 可直接换下标为仅对内部各项求和的 Σ_i S_(i+1)(h_i - h_(i+1))。",
    says="the notes, the re-indexing step of the Abel proof; N27",
    how="The same sums without the last term, which holds h_(d/2) = 0, against the score.",
)
def abel_reindexing() -> Finding:
    gap, whole = largest(_abel_gap(16, DIM // 2 - 1)), largest(_abel_gap(16))
    text = f"without S_(d/2) h_(d/2-1) the sum is off by up to {gap:.3g} at distance 16; with it the conclusion stands"
    return decide(gap < 1e-6, {"off without the last term": gap, "off with it": whole}, text)


@about_rope.holds(
    "decay.bound",
    "|score| <= max |h_i - h_(i+1)| * sum |S_j| for any q and k, the last difference |h_(d/2-1)| in the maximum.",
    "对任意 q、k 都有 |分数| <= max |h_i - h_(i+1)| * Σ |S_j|，最大值中包含最后一项 |h_(d/2-1)|。",
    says=f"{SU}, equation 37; N27",
    how="200 random q, k and q = k = 1 at seven distances, 20,000 positions into the text.",
)
def abel_bound() -> Finding:
    q, k, h = pair()
    q, k = torch.cat((q, ones())), torch.cat((k, ones()))
    h = torch.cat((h, torch.full((1, DIM // 2), 2.0 + 0j, dtype=h.dtype)))
    sums = partial_sums(Rope(head_dim=DIM), torch.tensor(DISTANCES)).abs().sum(-1)
    most = _differences(h).abs().amax(-1) * sums[:, None]
    closest = largest(scores(q, k, distance) / most[i] for i, distance in enumerate(DISTANCES))
    text = f"a score is {closest:.3g} times its bound"
    return decide(closest <= 1 + 1e-9, {"largest |score| over its bound": closest}, text)


@about_rope.fails(
    "decay.bound-inner-differences",
    "In the bound the maximum goes over differences of neighbouring pairs only.",
    "上界中的最大值只取相邻两对之差。",
    says="the notes; N27",
    how="q = k = 1, where all inner differences are 0.",
)
def inner_differences() -> Finding:
    score = float(scores(ones(), ones(), 1)[0])
    text = f"every inner difference is 0, so the bound is 0, and the score at distance 1 is {score:.2f}"
    numbers = {"score at distance 1": score, "bound without the last difference": 0.0}
    return decide(abs(score) <= 1e-9, numbers, f"q = k = (1, …, 1): {text}")


@about_rope.depends(
    "decay.any-content",
    "RoPE scores decay with the distance.",
    "RoPE 的分数随距离衰减。",
    says=f"{SU}; the notes; N27",
    how="|score| over doubling ranges for q = k = 1; and for a k that is q turned to fit at distance 256.",
)
def any_content() -> Finding:
    smooth = _means(_curve(ones(), ones()).abs())
    q = normal(1, DIM, seed=3)
    fitted = at(plain(DIM), q, 256)  # q at m against this at m - 256 is |q|^2: the rotation by 256 is undone
    made = _curve(q, fitted).abs() / float(q.square().sum())
    numbers = smooth | {"fitted k: score at 0 over |q|^2": made[0], "at 256": made[256]}
    text = "k = R_256 q scores |q|^2 at distance 256, the largest score there is, and less at every smaller one"
    return depends("q and k", _falls(smooth.values()), int(made[:512].argmax()) != 256, numbers, text)


def _curve(q: Tensor, k: Tensor) -> Tensor:
    """Scores at distances 0 … 512, of one pair of vectors."""
    keys = plain(DIM).rotate(k.expand(513, -1), 512 - torch.arange(513))
    return keys @ plain(DIM).rotate(q, torch.tensor([512])).squeeze(0)


@about_rope.depends(
    "decay.any-ladder",
    "Almost any smooth monotone ladder of frequencies decays: linear, power, exponential.",
    "几乎任何光滑单调的频率序列都会衰减：线性、幂、指数均可。",
    says="the notes, after Su's blog; N27",
    how="mean |S_j| of w_i = 1 - i/n, (1 - i/n)^2 and 10000^(-i/n), n = 64 pairs, up to distance 127 and up to 511.",
)
def any_ladder() -> Finding:
    parts = [i / 64 for i in range(64)]
    ladders = {
        "linear": tuple(1 - t for t in parts),
        "power": tuple((1 - t) ** 2 for t in parts),
        "exponential": tuple(10_000.0**-t for t in parts),
    }
    numbers, near, far = {}, True, True
    for name, ladder in ladders.items():
        curve = bound(ladder)
        means = list(_means(curve).values())
        near, far = near and _falls(means[:4]), far and _falls(means)
        numbers[f"{name}: largest from 128 to 511"] = curve[128:512].max()
    peak, back = bound(ladders["linear"])[128:512].max(0)
    numbers["linear: at this distance"] = 128 + back
    phase = f"equal steps of 1/64 are in phase again after 2 pi 64 = {2 * math.pi * 64:.0f} positions"
    text = f"the linear ladder comes back to {peak:.1f} of 32.5 at distance {128 + back}: {phase}"
    return depends("the distance", near, far, numbers, text)


@about_rope.fails(
    "decay.square-root",
    "|S_j| grows like the square root of j, as a random walk would.",
    "|S_j| 像随机游走那样按 √j 增长。",
    says="the notes; N27",
    how="The exponent of |S_j| in j, fitted over j = 1 … 64 at distances 1, 16 and 256.",
)
def square_root() -> Finding:
    j = torch.arange(1, DIM // 2 + 1, dtype=torch.float64).log()
    numbers = {}
    for distance in (1, 16, 256):
        size = partial_sums(Rope(head_dim=DIM), torch.tensor([distance])).abs().squeeze(0).log()
        slope = ((j - j.mean()) * (size - size.mean())).sum() / (j - j.mean()).square().sum()
        numbers[f"exponent at distance {distance}"] = slope
    text = "slow pairs stand still and add up: the exponent is about 1 and above, never 1/2"
    return decide(all(0.4 < value < 0.6 for value in numbers.values()), numbers, text)


@About("xpos", rows=("N7", "N27")).holds(
    "decay.xpos-envelope",
    "An xPos score is at most sum_i zeta_i^(distance / 512) |h_i|, and this bound falls with every step.",
    "xPos 的分数不超过 Σ_i ζ_i^(距离/512) |h_i|，且这个上界逐步下降。",
    says="Sun et al. 2022; N7",
    how="200 random q, k at distances 0, 1, 100, 512, 2048 and 8192.",
)
def xpos_envelope() -> Finding:
    q, k, h = pair()
    xpos = XPos(head_dim=DIM, layout="interleaved")
    zeta = (torch.arange(DIM // 2, dtype=torch.float64) / (DIM // 2) + 0.4) / 1.4
    used, bounds = 0.0, []
    for distance in (0, 1, 100, 512, 2048, 8192):
        there, here = torch.tensor([5000]), torch.tensor([5000 + distance])
        a, b = xpos.transform_qk(q[:, None, None], k[:, None, None], here, there)
        most = (zeta ** (distance / 512) * h.abs()).sum(-1)
        used = max(used, float(((a * b).sum(-1).flatten().abs() / most).max()))
        bounds.append(most)
    falls = all(bool((later < earlier).all()) for earlier, later in pairwise(bounds))
    numbers = {"largest |score| over its bound": used, "bound at 8192 over bound at 0": (bounds[-1] / bounds[0]).mean()}
    return decide(falls and used <= 1 + 1e-9, numbers, f"a score is {used:.3g} times its bound")
