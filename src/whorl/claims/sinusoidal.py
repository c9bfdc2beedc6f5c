"""Claims about sinusoidal codes, and what an ideal encoding should do (N25, N28)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from whorl import reference
from whorl.claims import evidence
from whorl.claims.ledger import Finding, Verdict, claim, decide, depends, needs_training, shared, within
from whorl.claims.probes import generator, largest, normal
from whorl.encodings.sinusoidal import Sinusoidal, shift_matrix

VASWANI = "Vaswani et al. 2017"
DIM = 128
FAR = 65_536
NOISE = 0.5


def codes(positions: Tensor, width: int = DIM) -> Tensor:
    """The codes of these positions, float64."""
    return Sinusoidal(width=width).codes(positions, dtype=torch.float64)


@shared
def products() -> Tensor:
    """<p_0, p_k> for k = 0 … 65,535, from the codes themselves."""
    every = torch.empty(FAR, dtype=torch.float64)
    first = codes(torch.tensor([0]))[0]
    for start in range(0, FAR, 8192):
        every[start : start + 8192] = codes(torch.arange(start, start + 8192)) @ first
    return every


@claim(
    "sinusoidal.golden",
    "The code of position 2 at d = 8 is [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998].",
    "d = 8 时位置 2 的编码为 [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998]。",
    says=f"{VASWANI}, section 3.5; N2",
    how="Sinusoidal(width=8) against the decimals, and against the NumPy reference.",
    expected="holds within",
    about=("sinusoidal",),
    rows=("N2", "N25"),
)
def golden() -> Finding:
    known = [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998]
    own = codes(torch.tensor([2]), 8)[0]
    numbers = {
        "largest difference": largest(own - torch.tensor(known, dtype=torch.float64)),
        "largest difference from NumPy": largest(own - torch.from_numpy(reference.sinusoidal(2, 8))),
    }
    return within(max(numbers.values()), 5.1e-6, numbers)


@claim(
    "sinusoidal.shift-matrix",
    "One matrix M_k moves any code k positions on: p_(t+k) = M_k p_t, whatever t is.",
    "存在只与 k 有关的矩阵 M_k，使任意 t 都有 p_(t+k) = M_k p_t。",
    says=f"{VASWANI}, section 3.5; N25",
    how="shift_matrix against codes for k = 1, 7, 300, -5 and t up to a million; and M_k M_k^T against I.",
    expected="holds within",
    about=("sinusoidal",),
    rows=("N25",),
)
def moves_on() -> Finding:
    numbers = {"p_(t+k) - M_k p_t": 0.0, "M_k M_k^T - I": 0.0}
    t = torch.tensor([0, 1, 100, 1_000_000])
    for k in (1, 7, 300, -5):
        matrix = shift_matrix(DIM, k)
        numbers["p_(t+k) - M_k p_t"] = max(numbers["p_(t+k) - M_k p_t"], largest(codes(t + k) - codes(t) @ matrix.mT))
        eye = torch.eye(DIM, dtype=torch.float64)
        numbers["M_k M_k^T - I"] = max(numbers["M_k M_k^T - I"], largest(matrix @ matrix.mT - eye))
    return within(max(numbers.values()), 1e-9, numbers)


@claim(
    "sinusoidal.products",
    "<p_t, p_(t+k)> = sum_i cos(w_i k): 64, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248 at k = 0, 1, 2, 8, 64, 256.",
    "<p_t, p_(t+k)> = Σ_i cos(w_i k)：k = 0、1、2、8、64、256 时为 64、62.0937、57.3819、45.7205、30.5201、20.5248。",
    says="N25, for d = 128",
    how="Products of codes at t = 0, 500 and 100,000 against four decimals.",
    expected="holds within",
    about=("sinusoidal",),
    rows=("N25",),
)
def inner_products() -> Finding:
    known = {0: 64.0, 1: 62.0937, 2: 57.3819, 8: 45.7205, 64: 30.5201, 256: 20.5248}
    k, worst = torch.tensor(list(known)), 0.0
    for t in (0, 500, 100_000):
        own = codes(t + k) @ codes(torch.tensor([t]))[0]
        worst = max(worst, largest(own - torch.tensor(list(known.values()), dtype=torch.float64)))
    numbers = {f"at k = {k}": float(products()[k]) for k in known}
    return within(worst, 5.1e-5, numbers | {"largest difference": worst})


@claim(
    "sinusoidal.first-negative",
    "The product of two codes of 128 dimensions first falls below zero at distance 1707.",
    "128 维编码的内积在距离 1707 处首次小于零。",
    says="N25",
    how="The first of 65,536 products below zero.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N25", "N29"),
)
def first_negative() -> Finding:
    below = (products() < 0).nonzero()
    first = int(below[0]) if len(below) else -1
    return decide(first == 1707, {"first negative at": float(first)}, f"it is at {first}")


@claim(
    "sinusoidal.norm",
    "Every code has the length sqrt(d/2) exactly.",
    "每个编码的长度恰为 √(d/2)。",
    says="N25",
    how="Norms of codes up to position 10 million for d = 8, 128, 512.",
    expected="holds within",
    about=("sinusoidal",),
    rows=("N25",),
)
def norm() -> Finding:
    t = torch.tensor([0, 1, 99, 12_345, 10_000_000])
    worst = max(largest(codes(t, d).norm(dim=-1) / math.sqrt(d / 2) - 1) for d in (8, 128, 512))
    return within(worst, 1e-12, {"largest relative difference": worst})


@claim(
    "sinusoidal.direction",
    "The product of two codes, or the cosines that it sums, tells whether the other position comes before or after.",
    "两个编码的内积，或组成它的各个余弦，能区分对方在前还是在后。",
    says="N28 asks",
    how="<p_t, p_(t+k)> against <p_t, p_(t-k)> for k = 1 … 1000, summed and pair by pair.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
)
def direction() -> Finding:
    here, k = codes(torch.tensor([5000]))[0], torch.arange(1, 1001)
    after, before = ((codes(5000 + s * k) * here).unflatten(-1, (-1, 2)).sum(-1) for s in (1, -1))
    numbers = {"largest difference": largest(after.sum(-1) - before.sum(-1)), "of a pair": largest(after - before)}
    return decide(max(numbers.values()) > 1e-6, numbers, "cosines are even: both products are the same number")


@claim(
    "sinusoidal.orders",
    "Interleaved and concatenated codes are the same numbers in another order.",
    "交错排列与拼接排列的编码只是同一组数换了次序。",
    says="codes in use: the paper's order, and that of GPT-NeoX and Transformer-XL",
    how="Codes of 64 dimensions at five positions, one order permuted to the other.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N2", "N25"),
)
def orders() -> Finding:
    t = torch.tensor([0, 1, 2, 77, 4096])
    one = Sinusoidal(width=64).codes(t)
    other = Sinusoidal(width=64, order="concatenated").codes(t)
    same = torch.equal(one, other.unflatten(-1, (2, 32)).mT.flatten(-2))
    return decide(same, {"entries compared": float(one.numel())}, "the two orders hold different numbers")


# -- additive against multiplicative ----------------------------------------------------------------------------------


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
    return {
        ratio: share((ratio * q[:, None] + p) @ (ratio * k[:, None] + p).mT) for ratio in (0.1, 0.5, 1.0, 2.0, 10.0)
    }


@claim(
    "additive.four-terms",
    "Of the four terms of <q + p_m, k + p_n> only <p_m, p_n> is of m - n; its share falls as |q|/|p| grows.",
    "<q + p_m, k + p_n> 的四项中只有 <p_m, p_n> 只与 m - n 有关；|q|/|p| 越大，它所占比例越小。",
    says="Transformer-XL's expansion; N25",
    how="20 q, k at 256 x 256 positions: the share of each term's, and of a score's, variance that the diagonals hold.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N25",),
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


@claim(
    "note.additive-when-content-small",
    "Additive codes act as relative ones where |q| is small against |p|.",
    "当 |q| 远小于 |p| 时，加性编码近似为相对编码。",
    says="the notes, one of two contradictory conditions; N25",
    how="The share of the variance that depends on m - n alone at |q|/|p| = 0.1: above nine tenths.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N25",),
)
def when_small() -> Finding:
    share = shares()[0.1]
    return decide(share > 0.9, {"share at |q|/|p| = 0.1": share}, f"the share is {share:.3f}")


@claim(
    "note.additive-when-content-large",
    "Additive codes act as relative ones where |q| is large against |p|.",
    "当 |q| 远大于 |p| 时，加性编码近似为相对编码。",
    says="the notes, the other of two contradictory conditions; N25",
    how="The same share at |q|/|p| = 10: above nine tenths.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N25",),
)
def when_large() -> Finding:
    share = shares()[10.0]
    text = (
        f"at |q|/|p| = 10 only {share:.3f} of the variance depends on m - n alone; <q, p_n> and <p_m, k> are the rest"
    )
    return decide(share > 0.9, {"share at |q|/|p| = 10": share, "at 0.1": shares()[0.1]}, text)


# -- what an ideal encoding does --------------------------------------------------------------------------------------


@claim(
    "ideal.unique",
    "Every position has a code of its own: up to 65,536 no code is nearer to another than its neighbour's is.",
    "每个位置的编码都唯一：在 65536 个位置内，没有哪个编码比相邻位置的编码更近。",
    says="the notes' list of what an encoding should do; N28",
    how="|p_0 - p_k| from 65,536 products (distances depend on k alone), d = 128.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def unique() -> Finding:
    apart = (2 * (DIM / 2 - products()[1:])).clamp(min=0).sqrt()
    nearest = 1 + int(apart.argmin())
    numbers = {
        "distance to the neighbour": float(apart[0]),
        "nearest at": float(nearest),
        "nearest but it": float(apart[1:].min()),
    }
    return decide(nearest == 1 and float(apart[0]) > 1, numbers, f"the code {nearest} positions on is nearest")


@claim(
    "ideal.equal-offset",
    "Equal offsets have equal distances of codes, wherever they are and however long the text.",
    "相同的间隔对应相同的编码距离，与所在位置和文本长度无关。",
    says="the notes; N28",
    how="|p_t - p_(t+k)| at t = 0, 1000 and 10 million for k = 1, 5, 100.",
    expected="holds within",
    about=("sinusoidal",),
    rows=("N28",),
)
def equal_offset() -> Finding:
    t, worst = torch.tensor([0, 1000, 10_000_000]), 0.0
    for k in (1, 5, 100):
        apart = (codes(t + k) - codes(t)).norm(dim=-1)
        worst = max(worst, largest(apart - apart[0]))
    return within(worst, 1e-7, {"largest change of a distance": worst})


@claim(
    "ideal.deterministic",
    "The same position has the same code, bit for bit, whatever else is asked for beside it.",
    "同一位置的编码逐位相同，与同时请求的其他位置无关。",
    says="the notes; N28",
    how="Codes of 9 positions alone, in a long range, shuffled and in a batch, float32.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def deterministic() -> Finding:
    own, t = Sinusoidal(width=64), torch.tensor([0, 3, 511, 512, 513, 1000, 2047, 2048, 4000])
    alone = torch.cat([own.codes(one[None]) for one in t])
    order = torch.randperm(4096, generator=generator())
    ways = (
        own.codes(torch.arange(4096))[t],
        own.codes(order)[order.argsort()][t],
        own.codes(torch.arange(4096).view(4, 1024)).flatten(0, 1)[t],
    )
    same = sum(torch.equal(alone, way) for way in ways)
    return decide(same == 3, {"ways that agree, of 3": float(same)}, "a code depends on what is beside it")


@claim(
    "ideal.bounded",
    "Codes stay within -1 and 1 at any position.",
    "任何位置的编码都在 -1 与 1 之间。",
    says="the notes; N28",
    how="The largest entry of the codes of 1,000 positions up to a thousand million.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def bounded() -> Finding:
    t = torch.linspace(0, 1e9, 1000, dtype=torch.float64).long()
    most = largest(codes(t))
    return decide(most <= 1 and most > 0.99, {"largest entry": most}, f"an entry is {most:.3g}")


@claim(
    "ideal.neighbours-close",
    "Neighbours are close: the distance of codes grows with each of the first ten steps, from 1.95 to 6.51.",
    "相邻位置的编码相近：前十步内编码距离逐步增大，从 1.95 到 6.51。",
    says="the notes; N28",
    how="|p_0 - p_k| for k = 1 … 10 and the mean over 65,536 positions, d = 128.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def neighbours() -> Finding:
    apart = (2 * (DIM / 2 - products())).clamp(min=0).sqrt()
    numbers = {f"at {k}": float(apart[k]) for k in (1, 2, 5, 10)} | {"mean over all": float(apart.mean())}
    right = abs(numbers["at 1"] - 1.9526) < 1e-4 and abs(numbers["at 10"] - 6.5085) < 1e-4
    return decide(bool((apart[1:11].diff() > 0).all()) and right, numbers, "a nearer neighbour has a farther code")


@claim(
    "ideal.index",
    "The index i itself would do as a code.",
    "直接用下标 i 作为编码即可。",
    says="the notes ask why not; N28",
    how="The size of i at 10,000 against entries of a token (1); and how its layer norm tells neighbours apart there.",
    expected="fails",
    rows=("N28",),
)
def index() -> Finding:
    x = normal(64, seed=5)
    here, after = (layer_norm(x + i, (64,)) for i in (10_000.0, 10_001.0))
    numbers = {
        "code at 10,000 over the largest entry of a token": 10_000.0 / largest(x),
        "change by one position after LayerNorm": largest(after - here),
    }
    text = "it is unbounded, thousands of times a token's entries at 10,000, and a LayerNorm takes it away altogether"
    size, change = numbers.values()
    return decide(size <= 10 and change > 1e-6, numbers, text)


@claim(
    "ideal.fraction",
    "The fraction i / length would do as a code.",
    "用比例 i / 长度 作为编码即可。",
    says="the notes ask why not; N28",
    how="What one step is worth at lengths 10 and 1000, and where two lengths give two positions one code.",
    expected="fails",
    rows=("N28",),
)
def fraction() -> Finding:
    numbers = {
        "one step at length 10": 1 / 10,
        "one step at length 1000": 1 / 1000,
        "5 of 10": 5 / 10,
        "500 of 1000": 500 / 1000,
    }
    same = numbers["one step at length 10"] == numbers["one step at length 1000"]
    return decide(
        same,
        numbers,
        "one step is worth 0.1 or 0.001 by the length, and token 5 of 10 has the code of token 500 of 1000",
    )


@shared
def recovered(width: int, kind: str = "ladder") -> float:
    """The share of 512 positions that the nearest code finds again under noise of 0.5 in every entry."""
    t = torch.arange(512)
    if kind == "ladder":
        own = codes(t, width)
    else:  # one frequency, slow enough to be unique, as often as the ladder has frequencies
        angle = t.double() * (2 * math.pi / 512)
        own = torch.stack((angle.sin(), angle.cos()), -1).repeat(1, width // 2)
    hits = 0
    for seed in range(4):
        heard = own + NOISE * normal(*own.shape, seed=100 + seed)
        hits += int((torch.cdist(heard, own).argmin(-1) == t).sum())
    return hits / 2048


@claim(
    "ideal.noise",
    "Redundancy helps: under noise a position is found again more often the more dimensions its code has.",
    "冗余有用：在噪声下，编码维数越多，位置越容易被恢复。",
    says="the notes' redundancy claim; N28",
    how="Nearest code of 512 under noise of 0.5 in each entry, d = 4, 16, 64, 256, four draws.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def noise() -> Finding:
    found = {f"found at d = {d}": recovered(d) for d in (4, 16, 64, 256)}
    values = list(found.values())
    rises = all(later > earlier for earlier, later in pairwise(values))
    return decide(rises and values[-1] > 0.97, found, "more dimensions do not find more positions")


@claim(
    "ideal.bits",
    "ceil(log2 L) dimensions suffice to tell L positions apart.",
    "⌈log2 L⌉ 个维度就足以区分 L 个位置。",
    says="the notes; N28",
    how="512 positions need 9 bits: codes of 10 real dimensions without and with noise of 0.5, and of 2 without it.",
    expected="depends on",
    about=("sinusoidal",),
    rows=("N28",),
)
def bits() -> Finding:
    least = {width: _least_distance(codes(torch.arange(512), width)) for width in (2, 10)}
    numbers = {f"least distance at d = {width}, no noise": value for width, value in least.items()}
    numbers |= {f"found at d = {width} under noise": recovered(width) for width in (10, 256)}
    found = numbers["found at d = 10 under noise"]
    text = (
        f"it counts bits, not dimensions: without noise 2 tell 512 positions apart already (by {least[2]:.1g}), under "
        f"noise 10 find {found:.0%} of them"
    )
    return depends("the noise", least[10] > 1e-3, found > 0.99, numbers, text)


def _least_distance(points: Tensor) -> float:
    return float(torch.pdist(points).min())


@claim(
    "ideal.cosine-vector",
    "The vector of cosines (cos w_i k)_i identifies the distance |k|.",
    "余弦向量 (cos w_i k)_i 能确定距离 |k|。",
    says="N28",
    how="The cosines of 16,384 distances as codes have them: no two that are next in the slowest one's order coincide.",
    expected="holds",
    about=("sinusoidal",),
    rows=("N28",),
)
def cosine_vector() -> Finding:
    cosines = codes(torch.arange(16_384))[:, 1::2]
    # the slowest cosine falls all the way to half a turn at 27,000, so it alone orders the distances
    steps = cosines[:, -1].diff()
    least = float((cosines[1:] - cosines[:-1]).norm(dim=-1).min())
    numbers = {"largest step of the slowest cosine": float(steps.max()), "least distance of neighbours": least}
    return decide(bool((steps < 0).all()) and least > 0.5, numbers, "two distances have the same cosines")


@claim(
    "ideal.cosine-sum",
    "The sum of these cosines identifies the distance.",
    "这些余弦之和就能确定距离。",
    says="N28",
    how="The two of the first 4096 distances whose sums are closest.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
)
def cosine_sum() -> Finding:
    sums, order = products()[:4096].sort()
    gap, where = sums.diff().min(0)
    a, b = sorted(int(order[i]) for i in (where, where + 1))
    rises = int((products()[:4096].diff() > 0).sum())
    numbers = {"closest sums differ by": float(gap), "steps that rise, of 4095": float(rises)}
    return decide(
        float(gap) > torch.finfo(torch.float32).eps * DIM / 2,  # what float32 keeps of 64 cosines
        numbers,
        f"distances {a} and {b} have sums {float(gap):.1g} apart, less than float32 keeps of 64 cosines; {rises} of "
        "4,095 steps rise",
    )


@claim(
    "ideal.generalises",
    "An encoding that has a code for every position generalises to longer input.",
    "只要每个位置都有编码，就能推广到更长的输入。",
    says="the notes, of sinusoidal codes; N28",
    how="Codes are there at any position (computed); quality past the trained length is the lab's to say.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
    trained=True,
)
def generalises() -> Finding:
    numbers = {"largest entry at position 10 million": largest(codes(torch.tensor([10_000_000])))}
    rises = {one.source: rise for one in evidence.losses("sinusoidal") if (rise := one.rise(4.0)) is not None}
    if not rises:
        return needs_training("whorl compare sinusoidal none --preset laptop --seeds 3", numbers)
    source = max(rises, key=rises.__getitem__)
    numbers["rise of the loss at 4x, bits per byte"] = rises[source]
    text = f"the loss rises by {rises[source]:.2f} bits per byte at 4 times the trained length"
    held = rises[source] <= 0.2
    return Finding(
        verdict=Verdict("holds" if held else "fails"),
        numbers=numbers,
        counterexample="" if held else text,
        source=source,
    )
