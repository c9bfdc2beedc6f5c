"""Claims about what an ideal encoding should do, and what other codes would."""

from __future__ import annotations

import math
from itertools import pairwise, product

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from whorl import Learned, Sinusoidal
from whorl.claims import evidence
from whorl.claims.ledger import About, Both, Finding, close, decide, depends, needs_training, shared
from whorl.claims.probes import generator, ladder, largest, normal
from whorl.claims.sinusoidal.codes import DIM, ORDERS, SIZES, codes, defined, drawn, products
from whorl.encodings.sinusoidal import Arrangement, sinusoidal

NOISE = 0.5
about_sinusoidal = About("sinusoidal", says="study notes")


@about_sinusoidal.holds(
    "ideal.unique",
    "Every position has a code of its own: of 65,536 codes of 128 dimensions the nearest to any is its neighbour's, "
    "1.95 away.",
    "每个位置的编码都唯一：65536 个 128 维编码中，离任一编码最近的是相邻位置的编码，相距 1.95。",
    says="study notes, the list of what an encoding should do",
    how="d = 128, base 10,000: |p_0 - p_k| for k below 65,536, least at k = 1 (that such distances depend on k alone "
    "is ideal.equal-offset); and |p_t - p_(t+1)| at each of the positions, 1.9526 to 1e-4.",
    how_zh="d = 128，底数 10000：k < 65536 的 |p_0 - p_k| 在 k = 1 处最小（这类距离只取决于 k，见 ideal.equal-offset）"
    "；每个位置的 |p_t - p_(t+1)| 须为 1.9526（容差 1e-4）。",
)
def unique() -> Finding:
    every = codes(torch.arange(65_536))
    apart, steps = (every[1:] - every[0]).norm(dim=-1), every.diff(dim=0).norm(dim=-1)
    nearest = 1 + int(apart.argmin())
    numbers = {"nearest to 0 at": nearest, "nearest but it": apart[1:].min()}
    numbers |= {"least distance of neighbours": steps.min(), "largest distance of neighbours": steps.max()}
    but = Both(
        f"the code {nearest} positions on is nearest, or neighbours are not all as far",
        "最近的不是相邻位置，或相邻距离不一",
    )
    return decide(nearest == 1 and largest(steps - 1.9526) < 1e-4, numbers, but)


@about_sinusoidal.holds_within(
    "ideal.equal-offset",
    "Equal offsets have equal distances of codes of an even width, wherever they are and however long the text.",
    "宽度为偶数时，相同的间隔对应相同的编码距离，与所在位置和文本长度无关。",
    how="|p_t - p_(t+k)| in float64 at t = 0, 1, 17 and 50 random t up to 10 million for k = 1, 5, 100, 5,000, widths "
    "2, 6, 128, 256, bases 100 to 500,000, codes of both orders, against sqrt(2 sum_i (1 - cos w_i k)).",
    how_zh="t = 0、1、17 与 50 个随机的 t（直到一千万），k = 1、5、100、5000，宽度 2、6、128、256，底数 100 到 500000，"
    "两种次序的 float64 编码：|p_t - p_(t+k)| 与 √(2 Σ_i (1 - cos w_i k)) 比较。",
)
def equal_offset() -> Finding:
    t, off = torch.cat((torch.tensor([0, 1, 17]), drawn(50, 10_000_001, seed=6))), []
    for size, order, k in product(SIZES, ORDERS, (1, 5, 100, 5000)):
        distances = (codes(t + k, *size, order) - codes(t, *size, order)).norm(dim=-1)
        off.append(distances - (2 - 2 * (k * ladder(*size)).cos()).sum().sqrt())
    return close(off, 1e-7, "largest difference of a distance")


@about_sinusoidal.holds(
    "ideal.deterministic",
    "The same position, given as an integer, has the same code, bit for bit, whatever other integers are asked for "
    "beside it.",
    "以整数类型给出的同一位置，编码逐位相同，与同时请求的其他整数位置无关。",
    says="study notes, of deterministic; bit for bit, and whatever is beside it, whorl 0.2",
    how="Codes of 64 dimensions of both orders, in float32 and in float64: of 9 positions alone, in a range of 4,096, "
    "shuffled and in a batch; and of 300 random ones below ten million, each alone, together, and beside every 2,000th "
    "position below ten million.",
    how_zh="两种次序的 64 维编码，float32 与 float64：9 个位置单独取、在 4096 个位置中取、打乱后取、在批中取；以及一千"
    "万以内的 300 个随机位置：逐个单独取、一起取、与一千万以内每隔 2000 的位置一起取。",
)
def deterministic() -> Finding:
    same = sum(_ways_that_agree(order, dtype) for order in ORDERS for dtype in (torch.float32, torch.float64))
    but = Both("a code depends on what is beside it", "编码与同时请求的位置有关")
    return decide(same == 20, {"ways that agree, of 20": same}, but)


def _ways_that_agree(order: Arrangement, dtype: torch.dtype) -> int:
    """In how many of five ways to ask for positions the codes are those of each position asked for alone."""

    def own(positions: Tensor) -> Tensor:
        return sinusoidal(positions, 64, order=order, dtype=dtype)

    near = torch.tensor([0, 3, 511, 512, 513, 1000, 2047, 2048, 4000])
    shuffled = torch.randperm(4096, generator=generator())
    alone = torch.cat([own(one[None]) for one in near])
    ways = (
        own(torch.arange(4096))[near],
        own(shuffled)[shuffled.argsort()][near],
        own(torch.arange(4096).view(4, 1024)).flatten(0, 1)[near],
    )
    same = sum(torch.equal(alone, way) for way in ways)
    far = drawn(300, 10_000_000, seed=7)
    alone = torch.cat([own(one[None]) for one in far])
    # so many that tables are made in other ways: of the steps of 512 positions as well, and of steps of those
    beside = own(torch.cat((far, torch.arange(0, 10_000_000, 2000))))[:300]
    return same + sum(torch.equal(alone, way) for way in (own(far), beside))


@about_sinusoidal.holds(
    "ideal.bounded",
    "Codes in float32 stay within -1 and 1 at any position.",
    "float32 的编码在任何位置都在 -1 与 1 之间。",
    says="study notes; float32 by whorl 0.2",
    how="The largest entry of the codes in float32, in both orders, widths 2, 6, 128, 256, bases 100 to 500,000, of "
    "the first 4,096 positions, of 1,000 from a million to a thousand million, and of 2,976,368, where rounding in "
    "float64 passes 1: at most 1, and of the far ones above 0.99.",
    how_zh="两种次序、宽度 2、6、128、256、底数 100 到 500000 的 float32 编码中最大的分量，位置取前 4096 个、从一百万到"
    "十亿的 1000 个，以及 2976368（该处 float64 的舍入会超过 1）：不超过 1，其中远处的须大于 0.99。",
)
def bounded() -> Finding:
    far = torch.linspace(1e6, 1e9, 1000, dtype=torch.float64).long()  # at 0 every cosine is 1, whatever the rest does
    places = torch.arange(4096), torch.cat((far, torch.tensor([2_976_368])))
    every = [Sinusoidal(width=width, base=base, order=order) for (width, base), order in product(SIZES, ORDERS)]
    near, far = (largest(one.codes(t) for one in every) for t in places)
    most = max(near, far)
    but = Both(f"an entry is {most:.3g}", f"某个分量为 {most:.3g}")
    return decide(most <= 1 and far > 0.99, {"largest entry": most, "largest of far positions": far}, but)


@about_sinusoidal.holds(
    "ideal.neighbours-close",
    "Neighbours are close: at d = 128, base 10,000, the distance of codes grows with each of the first ten steps, from "
    "1.95 to 6.51, below its mean of 11.29 over 65,536 positions.",
    "相邻位置的编码相近：d = 128、底数 10000 时，前十步内编码距离从 1.95 逐步增大到 6.51，小于 65536 个位置上的均值 "
    "11.29。",
    how="|p_0 - p_k| for k = 1 … 10, the first and the last to 1e-4, all below the mean over 65,536 positions, d = "
    "128.",
    how_zh="d = 128，k = 1 … 10 时的 |p_0 - p_k|，首末两个精确到 1e-4，都须小于 65536 个位置上的均值。",
)
def neighbours() -> Finding:
    apart = (2 * (DIM / 2 - products())).clamp(min=0).sqrt()
    numbers = {f"at {k}": apart[k] for k in (1, 2, 5, 10)} | {"mean over all": apart.mean()}
    right = abs(numbers["at 1"] - 1.9526) < 1e-4 and abs(numbers["at 10"] - 6.5085) < 1e-4
    grows = bool((apart[1:11].diff() > 0).all()) and bool(apart[10] < apart.mean())
    but = Both("a nearer neighbour has a farther code", "更近的位置编码反而更远")
    return decide(grows and right, numbers, but)


@about_sinusoidal.fails(
    "ideal.index",
    "The index i itself would do as a code.",
    "直接用下标 i 作为编码即可。",
    says="study notes, a question",
    how="Tokens of 64 dimensions with i added to every entry, and with a sinusoidal code, at 10,000: the index would "
    "do if it made them at most ten times as long as the code does, and LayerNorm left of one step at least a tenth "
    "of what it leaves of the code's. It would not if neither were so, with less than 1e-6 left of the index's and a "
    "code that is the definition's, to 1e-6.",
    how_zh="给 64 维词向量的每个分量加上 i，或加上正弦编码，位置 10000：若加 i 后的长度不超过加编码后的十倍，且 "
    "LayerNorm 之后一步的变化不小于编码的十分之一，才算可行。两条都不成立、加 i 后的变化小于 1e-6 且编码与定义相符（容"
    "差 1e-6）才算不可行。",
)
def index() -> Finding:
    ids, x = torch.tensor([10_000, 10_001]), normal(1, 1, 64, seed=5).expand(1, 2, 64)
    ways = {"index": x + ids[:, None], "sinusoidal": Sinusoidal(width=64).add_to_input(x, ids)}
    numbers = {}
    for name, placed in ways.items():
        numbers[f"{name}: length at 10,000 over that of the token"] = placed[0, 0].norm() / x[0, 0].norm()
        numbers[f"{name}: one step after LayerNorm"] = largest(layer_norm(placed, (64,)).diff(dim=1))
    size, step, own_size, own_step = numbers.values()
    numbers["codes off the definition by"] = off = largest(ways["sinusoidal"] - x - defined(ids, 64))
    text = Both(
        f"it is unbounded, and makes a token {size:,.0f} times as long at 10,000; a LayerNorm takes it away altogether",
        f"它无界：在位置 10000 处使词向量的长度变为 {size:,.0f} 倍；而 LayerNorm 会把它完全消去",
    )
    so = size > 10 * own_size and step < 1e-6 < own_step / 10 and off < 1e-6
    return decide(size <= 10 * own_size and step >= own_step / 10, numbers, text, instead=so)


@About("learned").fails(
    "ideal.fraction",
    "The fraction i / length would do as a code.",
    "用比例 i / 长度 作为编码即可。",
    says="study notes, a question",
    how="A learned table that holds the fraction itself, 11 rows of width 8: 0, 1/10 … 1; and its linear extension to "
    "1,001 rows, which is read at i/1,000. For the fraction to do, a step would have to be the same in both to 1e-6, "
    "and token 5 of 10 and token 500 of 1,000 to differ by more; it would not do if steps were 1/10 and 1/1,000 and "
    "those two tokens the same, to 1e-6.",
    how_zh="可学习的表中存放比例本身，11 行、宽 8：0、1/10 … 1；以及把它线性延长到 1001 行的表，即在 i/1000 处读取。一"
    "步在两者中须相同（容差 1e-6），且 10 个中的第 5 个与 1000 个中的第 500 个须不同（相差超过 1e-6），才算可行。一步各"
    "为 1/10 与 1/1000、且那两个编码相同（容差 1e-6）才算不可行。",
)
def fraction() -> Finding:
    learned = Learned(width=8, length=11).double()
    learned.table.copy_(torch.linspace(0, 1, 11)[:, None].expand(11, 8))  # a code that is the fraction itself
    long = learned.extend(1001, "linear").table.double()
    short = learned.table
    steps = {"one step of 10": largest(short[1] - short[0]), "one step of 1,000": largest(long[1] - long[0])}
    same = largest(short[5] - long[500])
    text = Both(
        f"one step is worth {steps['one step of 10']:g} or {steps['one step of 1,000']:g} by the length, and token 5 "
        "of 10 has the code of token 500 of 1,000",
        f"一步的大小随长度变为 {steps['one step of 10']:g} 或 {steps['one step of 1,000']:g}，且 10 个中的第 5 个与 "
        "1000 个中的第 500 个编码相同",
    )
    numbers = steps | {"5 of 10 less 500 of 1,000": same}
    one, other = steps.values()
    so = max(abs(one - 0.1), abs(other - 0.001)) < 1e-6 and same < 1e-6
    return decide(abs(one - other) < 1e-6 and same > 1e-6, numbers, text, instead=so)


def one_slow(width: int) -> Tensor:
    """Codes of 512 positions by one frequency, slow enough to be unique, as often as the ladder has frequencies."""
    angle = torch.arange(512).double() * (2 * math.pi / 512)
    return torch.stack((angle.sin(), angle.cos()), -1).repeat(1, width // 2)


@shared
def recovered(width: int, kind: str = "ladder", noise: float = NOISE) -> float:
    """The share of 512 positions that the nearest code finds again under this much noise in every entry."""
    t, hits = torch.arange(512), 0
    own = codes(t, width) if kind == "ladder" else one_slow(width)
    for seed in range(4):
        heard = own + noise * normal(*own.shape, seed=100 + seed)
        hits += int((torch.cdist(heard, own).argmin(-1) == t).sum())
    return hits / 2048


@about_sinusoidal.holds(
    "ideal.noise",
    "Redundancy helps: under noise of 0.5 to 2 in each entry one of 512 positions is found again more often each time "
    "its code has four times as many dimensions, from 4 to 256.",
    "冗余有用：每个分量有 0.5 到 2 的噪声时，编码维数从 4 到 256，每增至四倍，512 个位置就更常被恢复。",
    says="study notes, the redundancy of codes",
    how="Nearest code of 512 under normal noise of deviation 0.5, 1 and 2 in each entry, d = 4, 16, 64, 256, four "
    "draws: the share found again rises each time, and under noise of 0.5 ends above 0.97.",
    how_zh="512 个编码，每个分量加标准差为 0.5、1 或 2 的正态噪声后找最近的编码，d = 4、16、64、256，四次抽样：找回的"
    "比例逐次上升，噪声 0.5 时最后大于 0.97。",
)
def noise() -> Finding:
    dims = (4, 16, 64, 256)
    levels = {level: [recovered(d, noise=level) for d in dims] for level in (NOISE, 1.0, 2.0)}
    rises = all(later > earlier for values in levels.values() for earlier, later in pairwise(values))
    found = {f"found at d = {d}": value for d, value in zip(dims, levels[NOISE], strict=True)}
    found |= {f"found at d = 256, noise of {level:g}": levels[level][-1] for level in (1.0, 2.0)}
    but = Both("more dimensions do not find more positions", "维数更多并没有找回更多位置")
    return decide(rises and levels[NOISE][-1] > 0.97, found, but)


@about_sinusoidal.depends(
    "ideal.bits",
    "Telling L positions apart takes ceil(log2 L) dimensions at least.",
    "区分 L 个位置至少需要 ⌈log2 L⌉ 个维度。",
    how="512 positions written in binary: 256 different ones in 8 bits and all 512 in 9; and whether sinusoidal codes "
    "of 2 dimensions come closer to each other than 1e-6, as they would have to. Under noise of 0.5 in each entry "
    "fewer than 2 % of the latter are found again by the nearest code, in four draws. Codes are those of the "
    "definition, to 1e-9.",
    how_zh="512 个位置写成二进制：8 比特有 256 种，9 比特才有 512 种；以及 2 个维度的正弦编码间距是否小于 1e-6（须小于"
    "才算）。每个分量加 0.5 的噪声、抽样四次后，由最近的编码找回的 2 维编码须不到 2%。编码须与定义相符（容差 1e-9）。",
)
def bits() -> Finding:
    ids = torch.arange(512)
    eight, nine = (len((ids[:, None] >> torch.arange(count) & 1).unique(dim=0)) for count in (8, 9))
    least, found = float(torch.pdist(codes(ids, 2)).min()), recovered(2)
    numbers = {"codes of 8 bits, of 512": eight, "codes of 9 bits, of 512": nine}
    numbers |= {"least distance at d = 2, no noise": least}
    numbers |= {f"found at d = {width} under noise": recovered(width) for width in (2, 10, 256)}
    numbers["codes off the definition by"] = off = largest(codes(ids, 2) - defined(ids, 2))
    text = Both(
        f"8 entries of one bit have at most {eight} codes and 9 tell {nine} positions apart, while 2 real ones do too "
        f"({least:.1g} apart), though under noise of {NOISE:g} only {found:.0%} are found",
        f"8 个一比特的分量至多 {eight} 种编码，9 个能区分 {nine} 个位置；而 2 个实数分量也能（间距 {least:.1g}），只是"
        f"在 {NOISE:g} 的噪声下只找回 {found:.0%}",
    )
    on = Both("whether an entry is a bit or a real number", "每个分量是比特还是实数")
    told = found < 0.02 and off < 1e-9
    return depends(on, eight == 256 and nine == 512, least <= 1e-6, numbers, text, instead=told)


@about_sinusoidal.holds(
    "ideal.cosine-vector",
    "The vector of cosines (cos w_i k)_i identifies the distance |k|: with 64 frequencies, each distance below 16,384.",
    "余弦向量 (cos w_i k)_i 能确定距离 |k|：有 64 个频率时，能确定小于 16384 的每个距离。",
    says="study notes",
    how="The cosines of 16,384 distances, 64 frequencies: the slowest one falls at every step, so that it orders the "
    "distances, and neighbours are more than 0.5 apart.",
    how_zh="16384 个距离的 64 个余弦：最慢的一个逐步下降，因而给距离排了序，且相邻距离的向量相距超过 0.5。",
)
def cosine_vector() -> Finding:
    cosines = codes(torch.arange(16_384))[:, 1::2]
    # the slowest cosine falls all the way to half a turn at 27,000, so it alone orders the distances
    steps = cosines[:, -1].diff()
    least = float((cosines[1:] - cosines[:-1]).norm(dim=-1).min())
    numbers = {"largest step of the slowest cosine": steps.max(), "least distance of neighbours": least}
    but = Both("two distances have the same cosines", "有两个距离的余弦相同")
    return decide(bool((steps < 0).all()) and least > 0.5, numbers, but)


@about_sinusoidal.fails(
    "ideal.cosine-sum",
    "In float32 the sum of the cosines cos w_i k identifies the distance |k|.",
    "在 float32 中，余弦 cos w_i k 之和就能确定距离 |k|。",
    says="study notes, a question; float32 by whorl 0.2",
    how="The sums of 64 cosines at distances 0 … 16,383, in float64 and rounded to float32 once: whether all are "
    "different. The sums are those of the definition, to 1e-9.",
    how_zh="距离 0 … 16383 处 64 个余弦之和，以 float64 求和后一次舍入为 float32：是否各不相同。和须与定义相符（容差 "
    "1e-9）。",
)
def cosine_sum() -> Finding:
    distances = torch.arange(16_384)
    exact = products()[: len(distances)]
    sums, order = exact.float().sort(stable=True)
    gap, where = sums.diff().min(0)
    a, b = sorted(int(order[i]) for i in (where, where + 1))
    off = largest(exact - (distances[:, None] * ladder(DIM)).cos().sum(-1))
    numbers = {"different sums, of 16,384": len(sums.unique()), "least difference of two": gap}
    but = Both(
        f"distances {a} and {b} have the same sum in float32, {sums[where]:.6g}",
        f"距离 {a} 与 {b} 在 float32 中的和相同，都是 {sums[where]:.6g}",
    )
    return decide(gap > 0, numbers | {"off the definition by": off}, but, instead=off < 1e-9)


@about_sinusoidal.fails(
    "ideal.generalises",
    "An encoding that has a code for every position generalises to longer input.",
    "只要每个位置都有编码，就能推广到更长的输入。",
    says="study notes, of sinusoidal codes",
    how="The code of position 10 million, which is that of the definition, to 1e-6; and the mean rise of the loss of "
    f"the same last bytes at 4 times the trained length, from the lab: at most {evidence.HELD:g} bits per byte in "
    "every comparison count as held.",
    how_zh="位置一千万处的编码（须与定义相符，容差 1e-6）；以及同样的末尾字节的损失在训练长度的 4 倍处的平均上升（取自"
    f"实验室）：各次比较都不超过 {evidence.HELD:g} 比特每字节算保持。",
    trained=True,
)
def generalises() -> Finding:
    far = torch.tensor([10_000_000])
    off = largest(codes(far) - defined(far))
    numbers = {"largest entry at position 10 million": largest(codes(far)), "off the definition by": off}
    rise = evidence.largest_rise("sinusoidal")
    if rise is None:
        return needs_training("whorl compare sinusoidal none --preset laptop --seeds 3", numbers)
    numbers["rise of the loss at 4x, bits per byte"] = rise.mean
    text = f"the loss rises by {rise.mean:.2f} bits per byte at 4 times the trained length"
    but = Both(text, f"在训练长度的 4 倍处损失上升 {rise.mean:.2f} 比特每字节")
    return decide(rise.held, numbers, but, rise.source, instead=off < 1e-6)
