"""Claims about what an ideal encoding should do, and what other codes would."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch.nn.functional import layer_norm

from whorl.claims import evidence
from whorl.claims.ledger import About, Finding, close, decide, depends, needs_training, shared
from whorl.claims.probes import generator, largest, normal
from whorl.claims.sinusoidal.codes import DIM, codes, products
from whorl.encodings.sinusoidal import Sinusoidal

NOISE = 0.5
about_sinusoidal = About("sinusoidal", rows=("N28",), says="the notes; N28")


@about_sinusoidal.holds(
    "ideal.unique",
    "Every position has a code of its own: up to 65,536 no code is nearer to another than its neighbour's is.",
    "每个位置的编码都唯一：在 65536 个位置内，没有哪个编码比相邻位置的编码更近。",
    says="the notes' list of what an encoding should do; N28",
    how="|p_0 - p_k| from 65,536 products (distances depend on k alone), d = 128.",
)
def unique() -> Finding:
    apart = (2 * (DIM / 2 - products()[1:])).clamp(min=0).sqrt()
    nearest = 1 + int(apart.argmin())
    numbers = {"distance to the neighbour": apart[0], "nearest at": nearest, "nearest but it": apart[1:].min()}
    return decide(nearest == 1 and float(apart[0]) > 1, numbers, f"the code {nearest} positions on is nearest")


@about_sinusoidal.holds_within(
    "ideal.equal-offset",
    "Equal offsets have equal distances of codes, wherever they are and however long the text.",
    "相同的间隔对应相同的编码距离，与所在位置和文本长度无关。",
    how="|p_t - p_(t+k)| at t = 0, 1000 and 10 million for k = 1, 5, 100.",
)
def equal_offset() -> Finding:
    t = torch.tensor([0, 1000, 10_000_000])
    apart = [(codes(t + k) - codes(t)).norm(dim=-1) for k in (1, 5, 100)]
    return close((distances - distances[0] for distances in apart), 1e-7, "largest change of a distance")


@about_sinusoidal.holds(
    "ideal.deterministic",
    "The same position has the same code, bit for bit, whatever else is asked for beside it.",
    "同一位置的编码逐位相同，与同时请求的其他位置无关。",
    how="Codes of 9 positions alone, in a long range, shuffled and in a batch, float32.",
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
    return decide(same == 3, {"ways that agree, of 3": same}, "a code depends on what is beside it")


@about_sinusoidal.holds(
    "ideal.bounded",
    "Codes stay within -1 and 1 at any position.",
    "任何位置的编码都在 -1 与 1 之间。",
    how="The largest entry of the codes of 1,000 positions up to a thousand million.",
)
def bounded() -> Finding:
    t = torch.linspace(0, 1e9, 1000, dtype=torch.float64).long()
    most = largest(codes(t))
    return decide(most <= 1 and most > 0.99, {"largest entry": most}, f"an entry is {most:.3g}")


@about_sinusoidal.holds(
    "ideal.neighbours-close",
    "Neighbours are close: the distance of codes grows with each of the first ten steps, from 1.95 to 6.51.",
    "相邻位置的编码相近：前十步内编码距离逐步增大，从 1.95 到 6.51。",
    how="|p_0 - p_k| for k = 1 … 10 and the mean over 65,536 positions, d = 128.",
)
def neighbours() -> Finding:
    apart = (2 * (DIM / 2 - products())).clamp(min=0).sqrt()
    numbers = {f"at {k}": apart[k] for k in (1, 2, 5, 10)} | {"mean over all": apart.mean()}
    right = abs(numbers["at 1"] - 1.9526) < 1e-4 and abs(numbers["at 10"] - 6.5085) < 1e-4
    return decide(bool((apart[1:11].diff() > 0).all()) and right, numbers, "a nearer neighbour has a farther code")


@About(rows=("N28",)).fails(
    "ideal.index",
    "The index i itself would do as a code.",
    "直接用下标 i 作为编码即可。",
    says="the notes ask why not; N28",
    how="The size of i at 10,000 against entries of a token (1); and how its layer norm tells neighbours apart there.",
)
def index() -> Finding:
    x = normal(64, seed=5)
    here, after = (layer_norm(x + i, (64,)) for i in (10_000.0, 10_001.0))
    size, change = 10_000.0 / largest(x), largest(after - here)
    numbers = {"code at 10,000 over the largest entry of a token": size}
    numbers |= {"change by one position after LayerNorm": change}
    text = "it is unbounded, thousands of times a token's entries at 10,000, and a LayerNorm takes it away altogether"
    return decide(size <= 10 and change > 1e-6, numbers, text)


@About(rows=("N28",)).fails(
    "ideal.fraction",
    "The fraction i / length would do as a code.",
    "用比例 i / 长度 作为编码即可。",
    says="the notes ask why not; N28",
    how="What one step is worth at lengths 10 and 1000, and where two lengths give two positions one code.",
)
def fraction() -> Finding:
    steps = {f"one step at length {length}": 1 / length for length in (10, 1000)}
    text = "one step is worth 0.1 or 0.001 by the length, and token 5 of 10 has the code of token 500 of 1000"
    return decide(len(set(steps.values())) == 1, steps | {"5 of 10": 5 / 10, "500 of 1000": 500 / 1000}, text)


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


@about_sinusoidal.holds(
    "ideal.noise",
    "Redundancy helps: under noise a position is found again more often the more dimensions its code has.",
    "冗余有用：在噪声下，编码维数越多，位置越容易被恢复。",
    says="the notes' redundancy claim; N28",
    how="Nearest code of 512 under noise of 0.5 in each entry, d = 4, 16, 64, 256, four draws.",
)
def noise() -> Finding:
    found = {f"found at d = {d}": recovered(d) for d in (4, 16, 64, 256)}
    values = list(found.values())
    rises = all(later > earlier for earlier, later in pairwise(values))
    return decide(rises and values[-1] > 0.97, found, "more dimensions do not find more positions")


@about_sinusoidal.depends(
    "ideal.bits",
    "ceil(log2 L) dimensions suffice to tell L positions apart.",
    "⌈log2 L⌉ 个维度就足以区分 L 个位置。",
    how="512 positions need 9 bits: codes of 10 real dimensions without and with noise of 0.5, and of 2 without it.",
)
def bits() -> Finding:
    least = {width: float(torch.pdist(codes(torch.arange(512), width)).min()) for width in (2, 10)}
    numbers = {f"least distance at d = {width}, no noise": value for width, value in least.items()}
    numbers |= {f"found at d = {width} under noise": recovered(width) for width in (10, 256)}
    bare = f"without noise 2 tell 512 positions apart already (by {least[2]:.1g})"
    text = f"it counts bits, not dimensions: {bare}, under noise 10 find {recovered(10):.0%} of them"
    return depends("the noise", least[10] > 1e-3, recovered(10) > 0.99, numbers, text)


@about_sinusoidal.holds(
    "ideal.cosine-vector",
    "The vector of cosines (cos w_i k)_i identifies the distance |k|.",
    "余弦向量 (cos w_i k)_i 能确定距离 |k|。",
    says="N28",
    how="The cosines of 16,384 distances as codes have them: no two that are next in the slowest one's order coincide.",
)
def cosine_vector() -> Finding:
    cosines = codes(torch.arange(16_384))[:, 1::2]
    # the slowest cosine falls all the way to half a turn at 27,000, so it alone orders the distances
    steps = cosines[:, -1].diff()
    least = float((cosines[1:] - cosines[:-1]).norm(dim=-1).min())
    numbers = {"largest step of the slowest cosine": steps.max(), "least distance of neighbours": least}
    return decide(bool((steps < 0).all()) and least > 0.5, numbers, "two distances have the same cosines")


@about_sinusoidal.fails(
    "ideal.cosine-sum",
    "The sum of these cosines identifies the distance.",
    "这些余弦之和就能确定距离。",
    says="N28",
    how="The two of the first 4096 distances whose sums are closest.",
)
def cosine_sum() -> Finding:
    sums, order = products()[:4096].sort()
    gap, where = sums.diff().min(0)
    a, b = sorted(int(order[i]) for i in (where, where + 1))
    rises = int((products()[:4096].diff() > 0).sum())
    kept = torch.finfo(torch.float32).eps * DIM / 2  # what float32 keeps of 64 cosines
    text = f"distances {a} and {b} have sums {gap:.1g} apart, less than float32 keeps of 64 cosines"
    numbers = {"closest sums differ by": gap, "steps that rise, of 4095": rises}
    return decide(gap > kept, numbers, f"{text}; {rises} of 4,095 steps rise")


@about_sinusoidal.fails(
    "ideal.generalises",
    "An encoding that has a code for every position generalises to longer input.",
    "只要每个位置都有编码，就能推广到更长的输入。",
    says="the notes, of sinusoidal codes; N28",
    how="Codes are there at any position (computed); quality past the trained length is the lab's to say.",
    trained=True,
)
def generalises() -> Finding:
    numbers = {"largest entry at position 10 million": largest(codes(torch.tensor([10_000_000])))}
    largest_rise = evidence.largest_rise("sinusoidal")
    if largest_rise is None:
        return needs_training("whorl compare sinusoidal none --preset laptop --seeds 3", numbers)
    source, rise = largest_rise
    numbers["rise of the loss at 4x, bits per byte"] = rise
    text = f"the loss rises by {rise:.2f} bits per byte at 4 times the trained length"
    return decide(rise <= 0.2, numbers, text, source)
