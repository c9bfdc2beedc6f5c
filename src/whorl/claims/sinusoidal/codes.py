"""Claims about sinusoidal codes: their values, shifts, products, lengths and orders."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from whorl import Rope, reference
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide, shared, within
from whorl.claims.probes import doubles, generator, ladder, largest
from whorl.encodings.sinusoidal import DEFAULT_BASE, Arrangement, Sinusoidal, shift_matrix

VASWANI = "Vaswani et al. 2017"
DIM = 128
FAR = 65_536
SIZES = ((2, 10_000.0), (6, 100.0), (128, 10_000.0), (256, 500_000.0))  # widths and bases, for what holds of all
ORDERS: tuple[Arrangement, ...] = ("interleaved", "concatenated")
about_sinusoidal = About("sinusoidal")


def codes(
    positions: Tensor, width: int = DIM, base: float = DEFAULT_BASE, order: Arrangement = "interleaved"
) -> Tensor:
    """The codes of these positions, float64."""
    return Sinusoidal(width=width, base=base, order=order).codes(positions, dtype=torch.float64)


def defined(positions: Tensor, width: int = DIM, base: float = 10_000.0) -> Tensor:
    """Sines and cosines of t base^(-2i/d) in turn, from the definition, float64."""
    angles = positions.double()[..., None] * ladder(width, base)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def drawn(count: int, farthest: int, seed: int) -> Tensor:
    """Random positions from 0 to below the farthest."""
    return torch.randint(0, farthest, (count,), generator=generator(seed))


@shared
def products() -> Tensor:
    """<p_0, p_k> for k = 0 … 65,535, from the codes themselves."""
    every = torch.empty(FAR, dtype=torch.float64)
    first = codes(torch.tensor([0]))[0]
    for start in range(0, FAR, 8192):
        every[start : start + 8192] = codes(torch.arange(start, start + 8192)) @ first
    return every


@About("sinusoidal").holds_within(
    "sinusoidal.golden",
    "The code of position 2 at d = 8 is [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998].",
    "d = 8 时位置 2 的编码为 [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998]。",
    says=f"{VASWANI}, section 3.5; decimals by the study notes",
    how="Sinusoidal(width=8) against the decimals, those with more than five of them to half a step of the last: the "
    "fifth entry to 5.1e-9, the last to 5.1e-7; and against the NumPy reference, to 1e-12.",
    how_zh="Sinusoidal(width=8) 与这些小数比较，多于五位小数的精确到末位的半步：第五个分量容差 5.1e-9，最后一个容差 "
    "5.1e-7；并与 NumPy 参考实现比较，容差 1e-12。",
)
def golden() -> Finding:
    known = doubles([0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998])
    own, by_numpy = codes(torch.tensor([2]), 8)[0], torch.from_numpy(reference.sinusoidal(2, 8))
    off, apart = (own - known).abs(), largest(own - by_numpy)
    numbers = {"largest difference": off.max(), "fifth entry": off[4], "last entry": off[7]}
    numbers |= {"largest difference from NumPy": apart}
    exact = off[4] < 5.1e-9 and off[7] < 5.1e-7 and apart < 1e-12
    return within(float(off.max()) if exact else math.inf, 5.1e-6, numbers)


@about_sinusoidal.holds_within(
    "sinusoidal.shift-matrix",
    "One matrix M_k moves any code of an even width k positions on: p_(t+k) = M_k p_t, whatever t is.",
    "宽度为偶数时，存在只与 k 有关的矩阵 M_k，使任意 t 都有 p_(t+k) = M_k p_t。",
    says=f"{VASWANI}, section 3.5",
    how="shift_matrix against codes of both orders for k = 1, 7, 300, -5 and 20 random t up to a million, widths 2, 6, "
    "128, 256, bases 100 to 500,000; and M_k M_k^T against I.",
    how_zh="宽度 2、6、128、256，底数 100 到 500000，两种次序，k = 1、7、300、-5，20 个随机的 t 直到一百万："
    "shift_matrix 与编码比较；以及 M_k M_k^T 与 I 比较。",
)
def moves_on() -> Finding:
    t, moved, turned = drawn(20, 1_000_001, seed=1), [], []
    for (width, base), order, k in product(SIZES, ORDERS, (1, 7, 300, -5)):
        matrix = shift_matrix(width, k, base, order)
        moved.append(codes(t + k, width, base, order) - codes(t, width, base, order) @ matrix.mT)
        turned.append(matrix @ matrix.mT - torch.eye(width, dtype=torch.float64))
    return all_within({"p_(t+k) - M_k p_t": largest(moved), "M_k M_k^T - I": largest(turned)}, 1e-9)


@about_sinusoidal.holds_within(
    "sinusoidal.products",
    "<p_t, p_(t+k)> = sum_i cos(w_i k) for an even width: 64, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248 at k = 0, 1, "
    "2, 8, 64, 256 for d = 128.",
    "宽度为偶数时 <p_t, p_(t+k)> = Σ_i cos(w_i k)：d = 128，k = 0、1、2、8、64、256 时为 64、62.0937、57.3819、45.7205"
    "、30.5201、20.5248。",
    says="study notes",
    how="Products of codes of 128 dimensions at t = 0, 500 and 100,000 against four decimals; and at 20 random t and k "
    "up to 100,000, widths 2, 6, 128, 256, bases 100 to 500,000, codes of both orders, against sums of cosines from "
    "the definition of w_i, to 1e-8.",
    how_zh="t = 0、500、100000 处 128 维编码的内积，与四位小数比较；以及 20 个随机的 t、k（直到 100000），宽度 2、6、"
    "128、256，底数 100 到 500000，两种次序的编码，与按 w_i 定义求得的余弦之和比较，容差 1e-8。",
)
def inner_products() -> Finding:
    known = {0: 64.0, 1: 62.0937, 2: 57.3819, 8: 45.7205, 64: 30.5201, 256: 20.5248}
    k, wanted = torch.tensor(list(known)), doubles(list(known.values()))
    worst = largest(codes(t + k) @ codes(torch.tensor([t]))[0] - wanted for t in (0, 500, 100_000))
    t, offsets = drawn(20, 100_000, seed=2), drawn(20, 100_000, seed=3)
    off = largest(
        (codes(t + offsets, width, base, order) * codes(t, width, base, order)).sum(-1)
        - (offsets[:, None] * ladder(width, base)).cos().sum(-1)
        for (width, base), order in product(SIZES, ORDERS)
    )
    numbers = {f"at k = {k}": products()[k] for k in known}
    numbers |= {"largest difference": worst, "from sums of cosines": off}
    return within(max(worst, 0.0 if off < 1e-8 else 1.0), 5.1e-5, numbers)


@About("sinusoidal", "rope").holds(
    "sinusoidal.first-negative",
    "The sum of 64 cosines, base 10,000, first falls below zero at the whole distance 1707: if it must not be "
    "negative, a longer context needs another base.",
    "底数 10000 的 64 个余弦之和在整数距离 1707 处首次小于零：若要求该和不为负，更长的上下文需要另一个底数。",
    says="study notes; Men et al. 2024, arXiv 2405.14591, by whose table 4,096 positions need a base of 2.7e4, to two "
    "digits",
    how="The first of 65,536 products of sinusoidal codes of 128 dimensions below zero, and the first of 4,096 sums "
    "of a RoPE's cosines.",
    how_zh="65536 个 128 维正弦编码内积中第一个小于零的，以及 RoPE 的 4096 个余弦之和中第一个小于零的。",
)
def first_negative() -> Finding:
    cosines = Rope(head_dim=DIM).tables(torch.arange(4096), dtype=torch.float64)[0].sum(-1)
    firsts = [int((sums < 0).nonzero()[0]) if bool((sums < 0).any()) else -1 for sums in (products(), cosines)]
    numbers = {"first negative at": firsts[0], "of a RoPE of 128 dimensions": firsts[1]}
    return decide(firsts == [1707, 1707], numbers, Both(f"it is at {firsts}", f"实际在 {firsts}"))


@about_sinusoidal.holds_within(
    "sinusoidal.norm",
    "Every code of an even width d has the length sqrt(d/2) exactly.",
    "宽度 d 为偶数时，每个编码的长度恰为 √(d/2)。",
    says="study notes",
    how="Norms of codes of both orders at 50 random positions up to 10 million for d = 2, 6, 128, 256, bases 100 to "
    "500,000.",
    how_zh="d = 2、6、128、256，底数 100 到 500000，两种次序，50 个随机位置（直到一千万）的编码的范数。",
)
def norm() -> Finding:
    t = drawn(50, 10_000_001, seed=4)
    differences = (
        codes(t, d, base, order).norm(dim=-1) / math.sqrt(d / 2) - 1 for (d, base), order in product(SIZES, ORDERS)
    )
    return close(differences, 1e-12, "largest relative difference")


@About("sinusoidal").fails(
    "sinusoidal.direction",
    "The product of two codes of an even width, or the cosines that it sums, tells whether the other position comes "
    "before or after.",
    "宽度为偶数的两个编码的内积，或组成它的各个余弦，能区分对方在前还是在后。",
    says="study notes, a question",
    how="<p_t, p_(t+k)> against <p_t, p_(t-k)> for k = 1 … 1000 at t = 5,000, 128 dimensions, summed and pair by "
    "pair: a difference above 1e-6 would tell. Each pair's is cos(w_i k), to 1e-9.",
    how_zh="128 维，t = 5000，k = 1 … 1000：<p_t, p_(t+k)> 与 <p_t, p_(t-k)> 比较，求和与逐对：相差超过 1e-6 才算能区分"
    "。每一对的内积须为 cos(w_i k)（容差 1e-9）。",
)
def direction() -> Finding:
    here, k = codes(torch.tensor([5000]))[0], torch.arange(1, 1001)
    after, before = ((codes(5000 + s * k) * here).unflatten(-1, (-1, 2)).sum(-1) for s in (1, -1))
    numbers = {"largest difference": largest(after.sum(-1) - before.sum(-1)), "of a pair": largest(after - before)}
    off = largest(after - (k[:, None] * ladder(DIM)).cos())
    but = Both("cosines are even: both products are the same number", "余弦是偶函数：两个内积是同一个数")
    return decide(max(numbers.values()) > 1e-6, numbers | {"off the cosines by": off}, but, instead=off < 1e-9)


@About("sinusoidal").holds(
    "sinusoidal.orders",
    "Codes of an even width with sines and cosines in turn (Vaswani et al. 2017) and with all sines before all "
    "cosines (Transformer-XL's code) are the same numbers in another order.",
    "宽度为偶数时，正弦、余弦交错排列的编码（Vaswani 等 2017）与先全部正弦、后全部余弦的编码（Transformer-XL 的代码）只"
    "是同一组数换了次序。",
    says="whorl 0.2, docs/encodings/sinusoidal.md",
    how="Codes at 20 random positions, widths 2, 6, 128, 256, bases 100 to 500,000, one order permuted to the other, "
    "bit for bit, and the first against the definition, to 1e-9.",
    how_zh="20 个随机位置，宽度 2、6、128、256，底数 100 到 500000，把一种次序置换为另一种，逐位比较；前一种与定义比较"
    "，容差 1e-9。",
)
def orders() -> Finding:
    t, compared, differ, off = drawn(20, 100_000, seed=5), 0, 0, []
    for width, base in SIZES:
        one, other = (codes(t, width, base, order) for order in ORDERS)
        compared += one.numel()
        differ += int((one != other.unflatten(-1, (2, -1)).mT.flatten(-2)).sum())
        off.append(one - defined(t, width, base))
    numbers = {"entries compared": compared, "entries that differ": differ, "off the definition by": largest(off)}
    but = Both("the two orders hold different numbers, or others", "两种次序含有不同的数，或不是所定义的数")
    return decide(differ == 0 and largest(off) < 1e-9, numbers, but)


@about_sinusoidal.fails(
    "note.k-channel",
    "The k of p_(t+k) is a frequency channel.",
    "p_(t+k) 中的 k 是频率通道。",
    says="study notes",
    how="M_k of 8 dimensions, which have 4 channels, for k = 300: whether it moves the codes of 0, 5 and 1,000 by 300 "
    "positions, to 1e-6. The codes are those of the definition, to 1e-9.",
    how_zh="8 维（只有 4 个频率通道）的 M_k 取 k = 300：是否把位置 0、5、1000 的编码移动 300 个位置，容差 1e-6。编码须"
    "与定义相符（容差 1e-9）。",
)
def k_channel() -> Finding:
    t = torch.tensor([0, 5, 1000])
    off = largest(codes(t + 300, 8) - codes(t, 8) @ shift_matrix(8, 300).mT)
    wrong = largest(codes(t, 8) - defined(t, 8))
    numbers = {"channels at d = 8": 4, "p_(t+300) - M_300 p_t": off, "codes off the definition by": wrong}
    text = Both(
        "k is an offset of positions: with 4 channels M_300 still moves codes 300 positions on",
        "k 是位置的偏移：只有 4 个通道时，M_300 仍把编码移动 300 个位置",
    )
    return decide(off > 1e-6, numbers, text, instead=wrong < 1e-9)
