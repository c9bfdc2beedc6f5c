"""Claims about precision: angles and tables in float32, by position."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whorl import Rope
from whorl.claims.ledger import About, Both, Finding, all_within, decide, depends
from whorl.claims.probes import doubles, generator, ladder, largest

DIM, BASE = 128, 10_000.0
PLACES = (1_000, 4_096, 32_768, 131_071, 1_048_575, 10_485_759)
# Beside them, where rounding of angles is at its coarsest and its finest for their size.
BETWEEN_POWERS = (76_000, 350_000, 2_818_382, 3_715_352)
about_rope = About("rope")


def up_to(position: int, count: int = 64) -> Tensor:
    """So many positions up to this one."""
    return torch.arange(position + 1 - count, position + 1)


def tables(positions: Tensor, frequencies: Tensor) -> Tensor:
    """cos and sin in float64, from the definition: (2, positions, pairs)."""
    angles = positions.double()[:, None] * frequencies.double()
    return torch.stack((angles.cos(), angles.sin()))


def own_error(positions: Tensor, angles: Literal["exact", "float32"], dim: int = DIM, base: float = BASE) -> float:
    """The largest error of the float32 tables that whorl makes, at these positions."""
    own = torch.stack(Rope(head_dim=dim, base=base, angles=angles).tables(positions)).double()
    return largest(own - tables(positions, ladder(dim, base)))


@about_rope.holds_within(
    "precision.exact-tables",
    "cos and sin of whorl's tables of a plain RoPE, of up to 256 dimensions and base 10,000 or more, differ from "
    "float64's by at most 3.1e-8 at positions up to five million: float32's rounding of numbers just below 1, 3.0e-8, "
    "and 1e-9 for the angles.",
    "whorl 的普通 RoPE（不超过 256 维、底数不小于 10000）的 cos、sin 表在直到五百万的位置上与 float64 的值相差不超过 "
    "3.1e-8：float32 对略小于 1 的数的舍入 3.0e-8，外加角度的 1e-9。",
    says="whorl 0.2, docs/concepts.md",
    how="Tables of 128 and 256 dimensions at base 10,000 and of 64 at 500,000, at 64 positions each up to 1,000, 4,096 "
    "… 10,485,759, at 1,000 in a row up to 5,000,000, which are made by blocks, and at 4,096 random ones below five "
    "million, against float64; half a float32 step just below 1 is 3.0e-8, and 1e-9 is left to the angles in float64.",
    how_zh="128 维与 256 维、底数 10000，以及 64 维、底数 500000：位置 1000、4096 … 10485759 各自之前的 64 个位置，直到"
    " 5000000 的连续 1000 个位置（按块生成），以及五百万以内 4096 个随机位置的表，与 float64 比较；float32 略小于 1 处"
    "的半步为 3.0e-8，另留 1e-9 给 float64 的角度。",
)
def exact_tables() -> Finding:
    places = {f"error at {place:,}": up_to(place) for place in PLACES}
    places["error at 1,000 positions up to 5,000,000"] = up_to(5_000_000, 1000)
    places["error at 4,096 random positions"] = torch.randint(5_000_000, (4096,), generator=generator(9))
    heads = ((DIM, BASE), (2 * DIM, BASE), (64, 500_000.0))
    errors = {name: doubles([own_error(at, "exact", *head) for head in heads]) for name, at in places.items()}
    return all_within({name: largest(each) for name, each in errors.items()}, 3.1e-8)


@About("rope").depends(
    "precision.float32-angles",
    "Angles in float32 are good enough.",
    "用 float32 计算角度足够精确。",
    says="transformers 5.22, LlamaRotaryEmbedding, by computing them so",
    how="Tables of 128 dimensions, base 10,000, as most frameworks compute them, at every position up to 4,096 and at "
    "64 positions each up to 1,000, 4,096 … 10,485,759, against float64: good enough is below bfloat16's rounding, "
    "2^-9; it is so up to 4,096, and would have to be everywhere; the first position where it is not is 34,158. The "
    "tables are those of transformers' line in float32, bit for bit.",
    how_zh="按多数框架的算法得到的 128 维、底数 10000 的表，在直到 4096 的每个位置，以及直到 1000、4096 … 10485759 的"
    "各 64 个位置，与 float64 比较：低于 bfloat16 的舍入 2^-9 算足够；到 4096 为止如此，须处处如此才成立；最先不如此的"
    "位置是 34158。这些表与 transformers 的 float32 算式逐位相同。",
)
def float32_angles() -> Finding:
    rope = Rope(head_dim=DIM, angles="float32")
    numbers = {f"error at {place:,}": own_error(up_to(place), "float32") for place in PLACES}
    _, _, _, far, _, farthest = numbers.values()
    numbers["error at 0 … 4,096"] = near = own_error(torch.arange(4097), "float32")
    line = 1.0 / 10_000.0 ** (torch.arange(0, DIM, 2).float() / DIM)
    angles = {place: up_to(place).float()[:, None] * line for place in PLACES}
    same = [
        torch.equal(torch.stack(rope.tables(up_to(at))), torch.stack((x.cos(), x.sin()))) for at, x in angles.items()
    ]
    text = f"up to {far:.1g} off at the 64 positions up to 131,071, and up to {farthest:.1g} at those up to 10,485,759"
    but = Both(
        f"cos and sin are {text}",
        f"cos、sin 的误差在直到 131071 的 64 个位置上可达 {far:.1g}，在直到 10485759 的 64 个位置上可达 {farthest:.1g}",
    )
    good, everywhere = near < 2**-9 and all(same), max(numbers.values()) < 2**-9
    apart = torch.stack(rope.tables(torch.arange(40_000))) - tables(torch.arange(40_000), ladder(DIM))
    worse = (apart.abs().amax((0, 2)) >= 2**-9).nonzero()
    numbers["first position that is not good enough"] = first = int(worse[0]) if len(worse) else -1
    numbers |= {"places with the tables of transformers, of 6": sum(same)}
    return depends(Both("the position", "位置的大小"), good and first == 34_158, everywhere, numbers, but)


@About("rope").holds(
    "precision.float32-grows",
    "The largest error of float32 angles among 1,000 positions in a row, in heads of 64 and 128 dimensions at bases "
    "10,000 and 500,000, grows in proportion to the position up to ten million, within a factor of two, by up to "
    "8.2e-8 radian per position.",
    "64 维与 128 维、底数 10000 与 500000 的头中，连续 1000 个位置上 float32 角度的最大误差，直到一千万与位置成正比（"
    "相差不超过两倍），每个位置至多 8.2e-8 弧度。",
    says="whorl 0.2, docs/concepts.md",
    how="Largest errors of cos and sin from float32 angles, 64 and 128 dimensions at bases 10,000 and 500,000, over "
    "the position, in windows of 1,000 positions up to 1,000, 4,096 … 10,485,759 and four places between powers of "
    "two, 76,000 to 3,715,352: of one head the largest at most twice the smallest, and each at most what rounding the "
    "frequency w and the angle makes, |dw| + w 2^-24 in the worst pair, which is between 8.1e-8 and 8.2e-8 in the "
    "worst head; 1e-10 is left to the rounding of cosines.",
    how_zh="64 维与 128 维，底数 10000 与 500000，直到 1000、4096 … 10485759，以及 2 的幂之间的四处（76000 到 3715352"
    "）各 1000 个位置：由 float32 角度得到的 cos、sin 的最大误差除以位置，同一种头中最大者不超过最小者的两倍，且每个都"
    "不超过频率 w 与角度的舍入所造成的，即最坏的一对的 |dw| + w·2^-24；它在最坏的头中介于 8.1e-8 与 8.2e-8 之间。另留 "
    "1e-10 给余弦的舍入。",
)
def float32_grows() -> Finding:
    numbers, good, worst = {}, True, 0.0
    for dim, base in ((DIM, BASE), (64, BASE), (DIM, 500_000.0), (64, 500_000.0)):
        # fewer positions may all miss the worst angles of the worst pair
        places = (*PLACES, *BETWEEN_POWERS)
        errors = doubles([own_error(up_to(place, 1000), "float32", dim, base) / place for place in places])
        least, most = float(errors.min()), float(errors.max())
        right, rounded = ladder(dim, base), 1 / base ** (torch.arange(0, dim, 2).float() / dim)
        roundings = largest((rounded.double() - right).abs() + right * 2**-24)
        worst = max(worst, roundings)
        good = good and most <= 2 * least and most - roundings < 1e-10
        head = f"{dim} dimensions, base {base:,.0f}"
        numbers |= {f"least error per position, {head}": least, f"largest error per position, {head}": most}
        numbers |= {f"the two roundings make at most, {head}": roundings}
    but = Both("in a head it is more, or not in proportion", "某种头中误差更大，或不成正比")
    return decide(good and 8.1e-8 < worst < 8.2e-8, numbers, but)
