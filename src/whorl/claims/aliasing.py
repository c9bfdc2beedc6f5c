"""Claims about wavelengths and the context: aliasing, the critical dimension, and the base a context needs."""

from __future__ import annotations

import cmath
import math

import torch

from whorl import Proportional, Rope
from whorl.claims.ledger import About, Both, Finding, decide, depends, shared, within
from whorl.claims.probes import doubles, frequencies, ladder, largest
from whorl.claims.rotation.turning import EXACT, phases
from whorl.rotary.frequencies import wavelengths
from whorl.rotary.scalings.base import Scaling

MEN = "Men et al. 2024, arXiv 2405.14591"
LIU = "Liu et al. 2023, arXiv 2310.05209"
PARTS = (0.1, 0.5, 1.0)  # of a wavelength
about_rope = About("rope")


@about_rope.holds_within(
    "aliasing.wavelengths",
    "A pair repeats after 2 pi / w_i positions: 6.283, 62.83, 628.3 and 6283.2 at d = 8, base 10,000.",
    "每一对每 2π / w_i 个位置重复一次：d = 8、底数 10000 时为 6.283、62.83、628.3、6283.2。",
    says="study notes",
    how="Wavelengths of Rope(head_dim=8); and for heads of 8, 10 and 128 dimensions (bases 10,000, 100 and 500,000) "
    "cos and sin of each pair at positions 3 and 777.25: turned by a tenth of, half and one full turn where they are a "
    "tenth of, half and one wavelength on.",
    how_zh="Rope(head_dim=8) 的各波长；以及 8、10、128 维（底数 10000、100、500000）的头在位置 3 与 777.25 处每一对的 "
    "cos 与 sin：再走十分之一、二分之一与一个波长，恰转过十分之一、二分之一与一整圈。",
)
def repeats() -> Finding:
    own = wavelengths(frequencies(8))
    known = torch.tensor([2 * math.pi * 10.0**i for i in range(4)], dtype=torch.float64)
    off = [own / known - 1]
    for dim, base in ((8, 10_000.0), (10, 100.0), (128, 500_000.0)):
        rope = Rope(head_dim=dim, base=base)
        length = wavelengths(rope.frequencies())
        for start in (3.0, 777.25):
            first = torch.full_like(length, start)
            here, *later = (
                torch.complex(*rope.tables(first + part * length, dtype=torch.float64)).diagonal()
                for part in (0.0, *PARTS)
            )
            off += [on - here * cmath.exp(2j * math.pi * part) for part, on in zip(PARTS, later, strict=True)]
    worst = largest(off)
    return within(worst, 1e-9, {f"pair {i}": own[i] for i in range(4)} | {"largest difference": worst})


@about_rope.holds(
    "aliasing.first-turn",
    "Angles pass 2 pi at position 7 in the fastest pair and at 54,411 in the slowest (128 dimensions, base 10,000).",
    "角度超过 2π 的位置：最快的一对是 7，最慢的一对是 54411（128 维，底数 10000）。",
    says="study notes, which ask when angles pass 2 pi; the positions by whorl 0.2",
    how="The first whole position past a full turn: the wavelength of whorl's frequencies, rounded up, and where the "
    "angles of whorl's tables, added up from step to step, are first above 2 pi; pair 32, at 629, beside the two.",
    how_zh="首个超过一整圈的整数位置：whorl 频率的波长向上取整，以及 whorl 的表的角度逐步累加后首次大于 2π 之处；并列出"
    "第 32 对的 629。",
)
def first_turn() -> Finding:
    pairs = torch.tensor([0, 32, 63])
    first = wavelengths(frequencies()).ceil()[pairs]
    cos, sin = (x[:, pairs] for x in Rope(head_dim=128).tables(torch.arange(54_500), dtype=torch.float64))
    steps = torch.atan2(sin, cos).diff(dim=0).remainder(2 * math.pi)
    turned = 1 + (steps.cumsum(0) <= 2 * math.pi).sum(0)
    names = "fastest pair", "pair 32", "slowest pair"
    numbers = dict(zip(names, first, strict=True))
    numbers |= {f"{name}, by its tables": at for name, at in zip(names, turned, strict=True)}
    found, known = [first.int().tolist(), turned.tolist()], [7, 629, 54_411]
    but = Both(f"they pass it at {found}", f"实际在 {found} 处超过")
    return decide(found == [known, known], numbers, but)


@about_rope.holds(
    "aliasing.untrained-pairs",
    "Within 4,096 positions 18 of 64 pairs make no full turn, and meet new angles beyond it (128 dimensions, base "
    "10,000).",
    "在 4096 个位置内，64 对中有 18 对转不满一圈，超出后会遇到从未见过的角度（128 维，底数 10000）。",
    says=LIU,
    how="The pairs with wavelengths above 4,096; and those that at position 4,400 are at an angle farther than one "
    "step of theirs from all angles of positions 0 … 4,095, by cos and sin: they must be the same.",
    how_zh="大于 4096 的各波长；以及在位置 4400 处，cos 与 sin 离位置 0 … 4095 的都超过自身一步的各对：两者须相同。",
)
def untrained_pairs() -> Finding:
    rope = Rope(head_dim=128)
    codes = torch.stack(rope.tables(torch.cat((torch.arange(4096), torch.tensor([4400]))), dtype=torch.float64))
    new = (codes[:, :-1] - codes[:, -1:]).square().sum(0).amin(0).sqrt() > rope.frequencies()
    short = wavelengths(rope.frequencies()) > 4096
    numbers = {"pairs without a full turn": short.sum(), "pairs at a new angle": new.sum()}
    found = tuple(int(number) for number in numbers.values())
    but = Both(
        f"there are {found[0]}, and {found[1]} at a new angle", f"实际有 {found[0]} 对，其中新角度 {found[1]} 对"
    )
    return decide(found[0] == 18 and torch.equal(new, short), numbers, but)


@about_rope.fails(
    "aliasing.ambiguous",
    "With 128 dimensions and base 10,000 positions become ambiguous once a pair's angle has passed 2 pi.",
    "128 维、底数 10000 时，某一对的角度一旦超过 2π，位置就有歧义。",
    says="study notes",
    how="cos and sin of 64 pairs at positions 1 … 65,535, past a full turn of every pair, against those at 0, since "
    "only differences of positions count: a position would have to be nearer than 0.1; and the fastest pair alone at "
    "710 (113 turns). In every pair the square of the distance must be 2 - 2 cos(m w_i), to 1e-9.",
    how_zh="64 对的 cos 与 sin：位置 1 … 65535（每一对都已转满一圈）与位置 0 比较（只有位置之差起作用），须有某个"
    "位置近于 0.1 才算有歧义；并单看最快的一对在位置 710（转 113 圈）处。每一对中距离的平方须为 2 - 2 cos(m w_i)，容差 "
    "1e-9。",
)
def ambiguous() -> Finding:
    cos, sin = Rope(head_dim=128).tables(torch.arange(65_536), dtype=torch.float64)
    squares = (cos[1:] - cos[0]).square() + (sin[1:] - sin[0]).square()
    fastest, whole = squares[709, 0].sqrt(), squares.sum(-1).sqrt()
    least, nearest = float(whole.min()), 1 + int(whole.argmin())
    numbers = {"fastest pair, 0 against 710": fastest, "all pairs, 0 against 710": whole[709]}
    numbers |= {"all pairs, 0 against the nearest": least, "the nearest": nearest}
    but = Both(
        f"positions 0 and 710 differ by {fastest:.0e} in the fastest pair and by {whole[709]:.1f} in all 64 together; "
        f"of 65,535 positions the nearest to 0 is {nearest}, {least:.2f} away",
        f"位置 0 与 710 在最快的一对中只差 {fastest:.0e}，而 64 对合起来相差 {whole[709]:.1f}；65535 个位置中"
        f"离 0 最近的是 {nearest}，相距 {least:.2f}",
    )
    numbers["off the definition by"] = off = largest(
        squares - 2 + 2 * phases(torch.arange(1, 65_536), ladder(128)).real
    )
    return decide(least < 0.1, numbers, but, instead=off < EXACT)


@about_rope.holds(
    "aliasing.critical-dimension",
    "2 ceil(d/2 log_base(L / 2 pi)) dimensions, d at most, are of pairs whose wavelength the L > 2 pi positions of "
    "training hold: for base 10,000, 92 of 128 at L = 4,096 and 82 at 2,048.",
    "以 L > 2π 个位置训练，波长不超过 L 的各对共有 2⌈d/2·log_base(L/2π)⌉ 维（至多 d）：底数 10000、128 维时，L = 4096 "
    "为 92，2048 为 82。",
    says=LIU,
    how="The formula against a count of whorl's wavelengths and known values: at base 10,000 heads of 128 at 4,096 and "
    "2,048, of 64 at 512 and 128, of 32 at 64; at base 500,000 heads of 128 at 8,192, at a million of 64 at 512; at "
    "base 500, where it is more than d, heads of 128 at 4,096.",
    how_zh="公式与对 whorl 波长的计数、与已知值比较：底数 10000 时，128 维的头在 4096 与 2048，64 维在 512 与 128，32 "
    "维在 64；底数 500000 时 128 维在 8192，底数一百万时 64 维在 512；底数 500 时（公式超过 d）128 维在 4096。",
)
def critical_dimension() -> Finding:
    known = {(128, 4096, 1e4): 92, (128, 2048, 1e4): 82, (64, 512, 1e4): 32, (64, 128, 1e4): 22, (32, 64, 1e4): 10}
    known |= {(128, 8192, 5e5): 70, (64, 512, 1e6): 22, (128, 4096, 500.0): 128}
    counted = {(d, n, base): 2 * int((wavelengths(frequencies(d, base)) <= n).sum()) for d, n, base in known}
    formula = {(d, n, base): min(d, 2 * math.ceil(d / 2 * math.log(n / (2 * math.pi), base))) for d, n, base in known}
    numbers = {f"d = {d}, L = {n}, base {base:,.0f}": value for (d, n, base), value in counted.items()}
    text = f"counted {list(counted.values())}, the formula says {list(formula.values())}"
    but = Both(text, f"计数为 {list(counted.values())}，公式为 {list(formula.values())}")
    return decide(counted == known == formula, numbers, but)


# -- the base a context needs -----------------------------------------------------------------------------------------


@shared
def lowest(base: float, length: int, dim: int = 128, scaling: Scaling | None = None) -> float:
    """The least of sum_i cos(w_i m) for m < length: below zero, a like key counts less than a random one."""
    cos, _ = Rope(head_dim=dim, base=base, scaling=scaling).tables(torch.arange(length), dtype=torch.float64)
    return float(cos.sum(-1).min())


def _lowest_sums(*cases: tuple[float, int]) -> dict[str, float]:
    return {f"least sum, base {base:,.0f}, {length:,} positions": lowest(base, length) for base, length in cases}


@about_rope.holds(
    "base.lower-bound",
    "A base serves a context where sum_i cos(w_i m) is negative at no position m of it: at 128 dimensions that takes a "
    "base of at least 4,300 for 1,024 positions, and of 84,000 for 8,192, to two digits.",
    "若 Σ_i cos(w_i m) 在上下文的任何位置 m 都不为负，则底数够用：128 维时，1024 个位置至少需要底数 4300，8192 个位置至"
    "少需要 84000（两位有效数字）。",
    says=f"{MEN}, by its table of bases",
    how="The least sum below each length: not negative for these bases, and negative for all of 99 smaller ones, 1 %, "
    "2 % … 99 % of each, and for 4,250 and 83,500, from which on two digits give these.",
    how_zh="各长度以内该和的最小值：取这两个底数时不为负；底数取其 1%、2% … 99%（各 99 个），以及 4250 与 83500（自此起"
    "两位有效数字才为这两个数）时，都为负。",
)
def lower_bound() -> Finding:
    known = (4300.0, 4250.0, 1024), (84_000.0, 83_500.0, 8192)
    numbers = _lowest_sums(*[(base, length) for base, _, length in known])
    good = all(value >= 0 for value in numbers.values())
    for base, rounded, length in known:
        smaller = [rounded, *[base * percent / 100 for percent in range(1, 100)]]
        most = float(doubles([lowest(one, length) for one in smaller]).max())
        numbers[f"largest least sum of 100 smaller bases, {length:,} positions"] = most
        good = good and most < 0
    but = Both("a sum is negative, or is not for a smaller base", "某个和为负，或底数更小时不为负")
    return decide(good, numbers, but)


@about_rope.holds(
    "base.gaps",
    "The bases that serve a context, those whose sum_i cos(w_i m) is negative at no position m of it, may have gaps: "
    "at 128 dimensions 4,300 and 10,000 serve 1,024 positions and 4,400 does not.",
    "够用的底数（Σ_i cos(w_i m) 在上下文的任何位置 m 都不为负）之间可能有空隙：128 维时，4300 与 10000 可用于 1024 个位"
    "置，其间的 4400 反而不行。",
    says="whorl 0.2, docs/concepts.md",
    how="The least sum of 64 cosines with bases 4,200, 4,300, 4,400 and 10,000 below 1,024 positions, and 83,000, "
    "84,000, 85,000 and 150,000 below 8,192: negative for the first and the third, not for the second and the last.",
    how_zh="64 个余弦之和的最小值：底数 4200、4300、4400、10000 在 1024 个位置内，83000、84000、85000、150000 在 8192 "
    "个位置内：第一、第三个为负，第二、第四个不为负。",
)
def base_gaps() -> Finding:
    short = _lowest_sums(*((base, 1024) for base in (4200.0, 4300.0, 4400.0, 10_000.0)))
    long = _lowest_sums(*((base, 8192) for base in (83_000.0, 84_000.0, 85_000.0, 150_000.0)))
    good = all([least >= 0 for least in sums.values()] == [False, True, False, True] for sums in (short, long))
    but = Both("other ones of these bases serve", "够用的是其中别的底数")
    return decide(good, short | long, but)


@about_rope.holds(
    "base.dimension",
    "The base that a context needs, for sum_i cos(w_i m) to be negative at no position m of it, depends on the size of "
    "the head.",
    "使 Σ_i cos(w_i m) 在上下文的任何位置 m 都不为负所需的底数，与头的维数有关。",
    says="whorl 0.2, docs/concepts.md",
    how="The first base of 1,000, 1,100 … 30,000 with no such sum below zero in 512 positions, for heads of 128, 64 "
    "and 32: 2,100, 5,300 and 12,500. Bases between these steps may serve as well.",
    how_zh="对 128、64、32 维的头，在 1000、1100 … 30000 中找出第一个在 512 个位置内该和都不为负的底数：2100、5300、"
    "12500。两步之间的底数也可能适用。",
)
def base_dimension() -> Finding:
    numbers = {f"first of these bases, head of {dim}": _first_base(dim, 512) for dim in (128, 64, 32)}
    known = [*numbers.values()] == [2100, 5300, 12_500]
    return decide(known, numbers, Both("the bases are others", "底数与此不同"))


def _first_base(dim: int, length: int) -> float:
    base = 1000.0
    while base <= 30_000 and lowest(base, length, dim) < 0:
        base += 100.0
    return base


@about_rope.holds(
    "base.still-half",
    "With half of the pairs standing still sum_i cos(w_i m) is never negative: by that criterion every base serves "
    "every context.",
    "若有一半的对不旋转，Σ_i cos(w_i m) 永不为负：按此标准，任何底数都适用于任何长度。",
    says="Su 2024, kexue.fm 10122",
    how="The least sum of cosines over 16,384 positions with Proportional(fraction=0.5), heads of 64, bases 10, "
    "1,000 and 100,000: none below zero, while base 10 with all pairs turning has one. 16 pairs that stand still add "
    "16, and the 16 that turn take at most as much off, at any base and position.",
    how_zh="64 维的头，Proportional(fraction=0.5)，底数 10、1000、100000：16384 个位置上余弦之和的最小值都不为负"
    "；而底数 10 全部旋转时为负。不旋转的 16 对贡献 16，旋转的 16 对至多减去 16，与底数和位置无关。",
)
def still_half() -> Finding:
    half = Proportional(fraction=0.5)
    numbers = {f"least sum, base {base:,.0f}": lowest(base, 16_384, 64, half) for base in (10.0, 1000.0, 100_000.0)}
    turning, still = lowest(10.0, 16_384, 64), int((Rope(head_dim=64, scaling=half).frequencies() == 0).sum())
    holds = min(numbers.values()) >= 0 > turning and still == 16
    but = Both(f"a sum is negative, or {still} of 32 pairs stand still", f"某个和为负，或 32 对中有 {still} 对不旋转")
    return decide(
        holds, numbers | {"least sum, base 10, all turning": turning, "pairs that stand still, of 32": still}, but
    )


@about_rope.depends(
    "aliasing.longest-wavelength",
    "With 128 dimensions and base 10,000 positions are told apart up to the longest wavelength and no further: L_max = "
    "2 pi / w.",
    "128 维、底数 10000 时，只有最长波长以内的位置可以区分：L_max = 2π / w。",
    says="study notes",
    how="128 dimensions, base 10,000; told apart is at least half as far as neighbours are. The slowest pair alone: "
    "how many positions from 0 on are told apart from 0 and so from each other, which should be 54,410, those of one "
    "wavelength. All pairs: the nearest code to position 0 from one to two longest wavelengths on, which would have "
    "to be nearer than 1. Wavelengths and cosines must be those of the definition, to 1e-9. Of 8 dimensions each "
    "wavelength is ten times the one before, and the code does come back at the longest.",
    how_zh="128 维，底数 10000；相距不小于相邻位置之距的一半才算可区分。只看最慢的一对：从 0 起有多少个位置可与 0（从而"
    "彼此）区分，应为一个波长的 54410 个。看全部各对：一到两个最长波长之间与位置 0 最近的编码，须近于 1 才算。各波长"
    "与余弦须为定义所给的，容差 1e-9。8 维时各波长依次为十倍，编码确实在最长的波长处重复。",
)
def longest_wavelength() -> Finding:
    rope = Rope(head_dim=128)
    length = wavelengths(rope.frequencies())
    longest = float(length[-1])
    # one pair alone: equal steps round a circle, so that the first one to come back to 0 ends what is told apart
    slowest = torch.stack(rope.tables(torch.arange(2 * round(longest)), dtype=torch.float64), -1)[:, -1]
    far = (slowest[1:] - slowest[0]).norm(dim=-1)
    back = (far < far[0] / 2).nonzero()
    apart = int(back[0]) + 1 if len(back) else len(slowest)
    beyond_it = torch.arange(round(longest), 2 * round(longest))
    cos, _ = rope.tables(beyond_it, dtype=torch.float64)
    nearest = math.sqrt(2 * (64 - float(cos.sum(-1).max())))
    numbers = {"shortest 2 pi / w": length[0], "longest 2 pi / w": longest}
    numbers |= {"one pair, positions told apart": apart}
    numbers |= {"all pairs, nearest code beyond": nearest}
    beyond = f"all 64 together are never nearer than {nearest:.1f} from one to two longest wavelengths on"
    text = f"it is a number per pair, 6.28 to {longest:,.0f}; {beyond}"
    but = Both(
        text,
        f"它是每一对各自的数，从 6.28 到 {longest:,.0f}；64 对合起来，在一到两个最长波长之间距离从不小于 {nearest:.1f}",
    )
    up_to_it = apart == round(longest) == 54_410
    off = largest((length * ladder(128) / (2 * math.pi) - 1, cos - phases(beyond_it, ladder(128)).real))
    numbers |= {"off the definition by": off}
    on = Both("one pair or all", "指一对还是全部")
    return depends(on, up_to_it, nearest < 1, numbers, but, instead=off < EXACT)


@about_rope.fails(
    "note.longest-62832",
    "With 128 dimensions the longest wavelength, and so L_max, is 2 pi 10,000 = 62,832.",
    "128 维时最长波长（即 L_max）为 2π·10000 = 62832。",
    says="study notes",
    how="The longest wavelength of a RoPE of 128 dimensions against 62,832, to one part in a hundred; it and those of "
    "wider ones must be 2 pi 10,000^(1 - 2/d), to 1e-9 of it.",
    how_zh="128 维 RoPE 的最长波长与 62832 比较（容差百分之一）；它与更宽时的最长波长须为 2π·10000^(1 - 2/d)，相对容差 "
    "1e-9。",
)
def longest_62832() -> Finding:
    found = {dim: float(wavelengths(frequencies(dim))[-1]) for dim in (128, 512, 4096)}
    off = largest(doubles([own / (2 * math.pi * 10_000 ** (1 - 2 / dim)) - 1 for dim, own in found.items()]))
    numbers = {f"d = {dim}": own for dim, own in found.items()} | {"off the definition by": off}
    own = found[128]
    text = Both(
        f"the last pair is i = d/2 - 1, so it is 2 pi 10,000^(1 - 2/d) = {own:,.0f} at d = 128; 62,832 is its limit",
        f"最后一对是 i = d/2 - 1，因此 d = 128 时为 2π·10000^(1 - 2/d) = {own:,.0f}；62832 只是极限",
    )
    return decide(abs(own / (2 * math.pi * 10_000) - 1) < 0.01, numbers, text, instead=off < EXACT)
