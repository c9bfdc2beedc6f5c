"""Claims about precision: angles, positions and frequencies in float32 and below, by position."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from whorl import Alibi, Encoding, Kerple, KVCache, MixedRope, Rope, XPos, attention, linear_attention, registry
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide, depends, within
from whorl.claims.probes import build, doubles, generator, ladder, largest, normal, refusal, sizes_of, tokens, turned
from whorl.encodings.parts import Input, first
from whorl.errors import dtype_name
from whorl.models import Decoder

DIM, BASE = 128, 10_000.0
PLACES = (1_000, 4_096, 32_768, 131_071, 1_048_575, 10_485_759)
# Beside them, where rounding of angles is at its coarsest and its finest for their size.
BETWEEN_POWERS = (76_000, 350_000, 2_818_382, 3_715_352)
HALVES = (torch.bfloat16, torch.float16)
about_rope = About("rope")
WHORL = "whorl 0.2, docs/rotary.md"
CASTS = (
    "transformers 4.35, LlamaRotaryEmbedding, which remakes its tables for longer texts from positions and frequencies "
    "in the dtype that the model was cast to"
)
about_alibi = About("alibi")
about_kerple = About("kerple")


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
    "Angles in float32 are good enough at any position.",
    "用 float32 计算角度，在任何位置都足够精确。",
    says="transformers 5.22, LlamaRotaryEmbedding, by computing them so",
    how="Tables of 128 dimensions as most frameworks compute them, at every position up to 4,096 and at 64 positions "
    "each up to 1,000, 4,096 … 10,485,759, against float64: good enough is below bfloat16's rounding, 2^-9; it is so "
    "up to 4,096, and would have to be everywhere; the first position where it is not is 34,158. The tables are those "
    "of transformers' line in float32, bit for bit.",
    how_zh="按多数框架的算法得到的 128 维的表，在直到 4096 的每个位置，以及 1000、4096 … 10485759 各自之前的 64 个位置"
    "，与 float64 比较：低于 bfloat16 的舍入 2^-9 算足够；到 4096 为止如此，须处处如此才成立；最先不如此的位置是 34158"
    "。这些表与 transformers 的 float32 算式逐位相同。",
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


@About("rope", "kerple").fails(
    "precision.bfloat16-positions",
    "Positions may be kept in bfloat16, and distances stay apart in it.",
    "位置可以用 bfloat16 保存，距离在其中也仍彼此不同。",
    says=f"{CASTS}; of distances Chi et al. 2022, KERPLE, the authors' code",
    how="whorl's tables of 128 dimensions at 4,096 positions that went through bfloat16 against those that did not: "
    "off by less than bfloat16's own rounding, 2^-9, would do, and by as much as the definition says, to 1e-6; and "
    "KERPLE's biases in float32 of distances 255 … 300, which would all have to differ still, and are to be as many as "
    "the distances that are left. Beside them up to which number each type holds every whole one.",
    how_zh="128 维、4096 个位置：whorl 在经过 bfloat16 的位置上的表，与未经过的比较，误差小于 bfloat16 自身的舍入 2^-9 "
    "才算可以，且须与按定义算出的误差相同（容差 1e-6）；KERPLE 在距离 255 … 300 处的 float32 偏置也须仍互不相同才算，且"
    "应与剩下的距离一样多。并列出各类型能表示直"
    "到多大的全部整数。",
)
def bfloat16_positions() -> Finding:
    ids, rope, numbers = torch.arange(4096), Rope(head_dim=DIM), {}
    rounded = ids.bfloat16().long()
    first, left = int((rounded != ids).nonzero()[0]), len(rounded.unique())
    off = largest(torch.stack(rope.tables(rounded)) - torch.stack(rope.tables(ids)))
    right = largest(tables(rounded, ladder(DIM)) - tables(ids, ladder(DIM)))
    kerple, far = Kerple(heads=2), torch.arange(255, 301)
    plain, kept = (kerple.score_bias(torch.tensor([300]), 300 - d)[0, 0] for d in (far, far.bfloat16().long()))
    biases = [len(each.unique()) for each in (plain, kept)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        top = round(2 / torch.finfo(dtype).eps)
        near = torch.arange(top - 2, top + 3)
        numbers[f"whole numbers up to, {dtype_name(dtype)}"] = int(near[near.to(dtype).double() != near][0]) - 1
    numbers |= {"first position that moves": first, "positions left of 4,096": left, "largest error of a table": off}
    numbers |= {"biases of 46 distances": biases[0], "of those distances in bfloat16": biases[1]}
    text = Both(
        f"{first} becomes 256, {left} of 4,096 positions are left, and cos and sin are off by up to {off:.2f}; of "
        f"KERPLE's {biases[0]} biases in float32 {biases[1]} are left",
        f"{first} 变成 256，4096 个位置只剩 {left} 个，cos 与 sin 的误差可达 {off:.2f}；KERPLE 的 {biases[0]} 个 "
        f"float32 偏置只剩 {biases[1]} 个",
    )
    harmed = off >= 2**-9, biases[1] < biases[0] == len(far)
    told = abs(off - right) < 1e-6 and biases[1] == len(far.bfloat16().unique())
    return decide(not any(harmed), numbers, text, instead=all(harmed) and told)


@about_rope.fails(
    "precision.bfloat16-frequencies",
    "A model trained with exact frequencies may keep them in bfloat16.",
    "以精确频率训练的模型可以改用 bfloat16 保存频率。",
    says=CASTS,
    how="Tables of a Rope of 128 dimensions whose frequencies went through bfloat16, against those of whorl's own, "
    "at 64 positions each up to 64, 1,000, 4,096 and 32,768: off by less than 2^-9 would do, and by as much as the "
    "definition says, to 1e-6.",
    how_zh="128 维，频率经过 bfloat16 的 Rope 的表，与 whorl 自身的表在直到 64、1000、4096、32768 的各 64 个位置上比较"
    "：误差小于 2^-9 才算可以，且须与按定义算出的误差相同（容差 1e-6）。",
)
def bfloat16_frequencies() -> Finding:
    own = Rope(head_dim=DIM)
    cast = Rope(head_dim=DIM, frequencies=tuple(own.frequencies().bfloat16().double().tolist()))
    numbers, right = {}, []
    for place in (64, *PLACES[:3]):
        there, true = (torch.stack(rope.tables(up_to(place))) for rope in (cast, own))
        numbers[f"error at {place:,}"] = largest(there - true)
        right.append(largest(tables(up_to(place), ladder(DIM).bfloat16()) - tables(up_to(place), ladder(DIM))))
    off, told = numbers["error at 1,000"], largest(doubles(list(numbers.values())) - doubles(right)) < 1e-6
    text = Both(
        f"at the 64 positions up to 1,000 cos and sin are off by up to {off:.2f}",
        f"在直到 1000 的 64 个位置上 cos 与 sin 的误差可达 {off:.2f}",
    )
    return decide(max(numbers.values()) < 2**-9, numbers, text, instead=told)


@About("rope").holds(
    "precision.half-positions-refused",
    "whorl's attention, rotations and codes added to the input, of torch's tensors, refuse positions in bfloat16 and "
    "float16, and say why.",
    "whorl 对 torch 张量的注意力、旋转与加在输入上的编码拒绝 bfloat16 与 float16 的位置，并说明原因。",
    says=WHORL,
    how="Four positions in each of the two types, given to tables(), rotate(), linear attention and a KVCache of a "
    "RoPE, to attention with every registered encoding, as positions of queries and keys and of keys alone, to "
    "add_to_input of those that add to the input and to rotate() of those that have it: every error names the reason.",
    how_zh="两种类型的四个位置，送入 RoPE 的 tables()、rotate()、线性注意力与 KVCache，配以每个已注册编码的 attention（"
    "作为查询与键的位置，以及仅作为键的位置），各个加在输入上的编码的 add_to_input，以及各"
    "个有 rotate() 的编码的 rotate()：每个报错都须说明原因。",
)
def half_positions_refused() -> Finding:
    encodings = {name: build(name) for name in registry.names()}
    taken, calls = [], 0
    for dtype in HALVES:
        ids = torch.arange(4).to(dtype)
        rope, four = Rope(head_dim=8), normal(1, 1, 4, 8)
        tries: dict[str, Callable[[], object]] = {
            "tables": lambda ids=ids, rope=rope: rope.tables(ids),
            "rotate": lambda ids=ids, rope=rope, x=four: rope.rotate(x, ids),
            "linear": lambda ids=ids, rope=rope, x=four: linear_attention(x, x, x, encoding=rope, positions=ids),
            "KVCache": lambda ids=ids, rope=rope, x=four: KVCache(encoding=rope).attend(x, x, x, positions=ids),
        }
        for name, one in encodings.items():
            whole = torch.arange(4).expand(*((one.axes, 4) if one.axes > 1 else (4,)))
            given = tokens(one, whole)
            for where, places in {"": {"positions": ids}, ", keys": {"positions": whole, "key_positions": ids}}.items():
                tries[name + where] = lambda one=one, given=given, places=places: attention(
                    *given[:3], encoding=one, **places, **given.options()
                )
            if first(one, Input):
                x = torch.zeros(1, 4, sizes_of(one).width)
                tries[f"{name}, input"] = lambda ids=ids, one=one, x=x: one.add_to_input(x, ids)
            rotate = getattr(one, "rotate", None)
            if rotate is not None:
                tries[f"{name}, rotate"] = lambda ids=ids, rotate=rotate, q=given.q: rotate(q, ids)
        calls += len(tries)
        why = "Half precision cannot tell neighbouring positions apart"
        taken += [f"{name} in {dtype_name(dtype)}" for name, call in tries.items() if why not in refusal(call)]
    numbers = {"calls": calls, "refused with the reason": calls - len(taken)}
    but = Both(f"taken, or refused without the reason: {', '.join(taken)}", f"被接受或未说明原因：{'、'.join(taken)}")
    return decide(not taken, numbers, but)


@About("rope").holds_within(
    "precision.half-input",
    "Queries and keys in bfloat16 and float16 are rotated in float32 and rounded once.",
    "bfloat16、float16 的查询和键以 float32 旋转，只舍入一次。",
    says=WHORL,
    how="64 half-precision vectors of 128 dimensions at positions from 100,000, in the half and the interleaved "
    "layout, by rotate() and as queries and as keys by transform_qk(), against products with e^(i m w) in float64: the "
    "error over half a step of the type at that entry, or over 1e-6 where half a step is less.",
    how_zh="位置 100000 起的 64 个 128 维半精度向量，半分与交错两种排列，用 rotate()，以及作为查询与键用 transform_qk()"
    "，与 float64 的 e^(i m w) 乘积比较：误差除以该类型在该分量处的半步；半步不足 1e-6 时除以 1e-6。",
)
def half_input() -> Finding:
    ids, numbers = torch.arange(100_000, 100_064), {}
    for dtype in HALVES:
        x = normal(64, DIM).to(dtype)
        true = turned(x.double(), ids.double()[:, None] * ladder(DIM))
        below = 2.0 ** (torch.frexp(true).exponent - 1).double()  # the power of two at or below each entry
        rounding = (below * torch.finfo(dtype).eps / 2).clamp(min=1e-6)
        pairs = torch.arange(DIM).view(-1, 2).mT.flatten()  # (0, 2, …, 1, 3, …): where half has the two of a pair
        got = {
            "interleaved": _by_every_call(Rope(head_dim=DIM, layout="interleaved"), x, ids),
            "half": _by_every_call(Rope(head_dim=DIM), x[:, pairs].contiguous(), ids)[..., pairs.argsort()],
        }
        for layout, y in got.items():
            numbers[f"error over one rounding, {dtype_name(dtype)}, {layout}"] = largest((y.double() - true) / rounding)
    return all_within(numbers, 1.05)


def _by_every_call(rope: Rope, x: Tensor, ids: Tensor) -> Tensor:
    """Vectors turned by ``rotate``, and as queries and as keys by ``transform_qk``."""
    q, k = rope.transform_qk(x[None, None], x[None, None], ids, ids)
    return torch.stack((rope.rotate(x, ids), q[0, 0], k[0, 0]))


@About("rope").holds(
    "precision.cast",
    "Casting a model to bfloat16 does not touch the frequencies of whorl's encodings, learned ones included.",
    "把模型整体转成 bfloat16 不会改动 whorl 各编码的频率，可学习的频率也不例外。",
    says=WHORL,
    how="What RoPE, learnable RoPE, learnable xPos and mixed RoPE, their learned numbers moved, make of 64 vectors of "
    "128 dimensions at positions 1,000 … 1,063, before and after .bfloat16() of a decoder with each, bit for bit; its "
    "projections are bfloat16 then.",
    how_zh="带有 RoPE、可学习的 RoPE、可学习的 xPos、混合 RoPE（可学习的数已移动）的解码器：.bfloat16() 前后，位置 "
    "1000 … 1063 处 64 个 128 维向量的旋转结果逐位比较；此时其投影已是 bfloat16。",
)
def cast() -> Finding:
    learned = {"learnable": True}
    encodings = Rope(head_dim=DIM), Rope(head_dim=DIM, **learned), XPos(head_dim=DIM, **learned)
    same = sum(_stays_in_a_cast(one) for one in (*encodings, MixedRope(head_dim=DIM, heads=1)))
    but = Both("a cast changes what is rotated", "转换改变了旋转结果")
    return decide(same == 4, {"encodings that stay, of 4": same}, but)


def _stays_in_a_cast(encoding: Encoding) -> bool:
    """Whether casting the model around it leaves each bit of what an encoding places."""
    for number in encoding.parameters():
        number.add_(0.01 * normal(*number.shape, seed=6).float())
    x, ids = normal(1, 1, 64, DIM).float(), torch.arange(1000, 1064).expand(encoding.axes, 64)
    ids = ids if encoding.axes > 1 else ids[0]
    before = torch.stack(encoding.transform_qk(x, x, ids, ids))
    model = Decoder(vocab=4, layers=1, width=DIM, heads=1, encoding=encoding).bfloat16()
    own = {id(number) for number in encoding.parameters()}
    others = {number.dtype for number in model.parameters() if id(number) not in own}
    return torch.equal(before, torch.stack(encoding.transform_qk(x, x, ids, ids))) and others == {torch.bfloat16}


def distinct(rows: Tensor) -> int:
    """The number of different rows, by their bits."""
    bits = rows.contiguous().view(torch.int32 if rows.dtype == torch.float32 else torch.int16).long()
    mixed = torch.randint(-(2**62), 2**62, bits.shape[-1:], generator=generator(8)) | 1
    return len((bits * mixed).sum(-1).unique())  # whole numbers that wrap around: two rows collide once in 2^64


@About("rope").depends(
    "precision.distinguishable-codes",
    "The codes (cos, sin) of 16,384 positions are all different in one pair, whether fast or slow.",
    "无论快慢，单独一对中 16384 个位置的编码 (cos, sin) 都各不相同。",
    says="study notes, a question",
    how="Distinct (cos, sin) of base 10,000 in each of 64 pairs in float32, where all have 16,384, and in pairs 0, 32 "
    "and 63 in bfloat16, where not all do. They are rounded from whorl's float64 tables, which must be those of the "
    "definition, to 1e-9. Beside them the three pairs in float16, and all 64 together in bfloat16.",
    how_zh="底数 10000，有多少种不同的 (cos, sin)：float32 下 64 对中的每一对都有 16384 种；bfloat16 下的第 0、32、63 "
    "对则不都是。它们由 whorl 的 float64 表舍入得到，该表须与定义所给的相同（容差 1e-9）。并列出 float16 下的这三对，以"
    "及 bfloat16 下全部 64 对合起来。",
)
def distinguishable_codes() -> Finding:
    cos, sin = Rope(head_dim=DIM).tables(torch.arange(16_384), dtype=torch.float64)
    pairs, numbers = torch.stack((cos, sin), -1).unbind(1), {}
    for dtype in HALVES:
        for pair in (0, 32, 63):
            numbers[f"pair {pair}, {dtype_name(dtype)}"] = distinct(pairs[pair].to(dtype))
    numbers["least of 64 pairs, float32"] = long = min(distinct(pair.float()) for pair in pairs)
    numbers["all pairs, bfloat16"] = distinct(torch.cat((cos, sin), -1).bfloat16())
    fastest, _, slowest = short = [numbers[f"pair {pair}, bfloat16"] for pair in (0, 32, 63)]
    text = f"in bfloat16 the slowest pair has {slowest} codes for 16,384 positions, the fastest {fastest}"
    but = Both(text, f"bfloat16 下，16384 个位置在最慢的一对只有 {slowest} 种编码，最快的有 {fastest} 种")
    numbers["off the definition by"] = off = largest(
        torch.stack((cos, sin)) - tables(torch.arange(16_384), ladder(DIM))
    )
    return depends(Both("the type", "数据类型"), long == 16_384, min(short) == 16_384, numbers, but, instead=off < 1e-9)


@about_alibi.fails(
    "precision.alibi-key-form",
    "ALiBi's bias may be computed as slope times key position in bfloat16.",
    "ALiBi 的偏置可以用 bfloat16 按“斜率×键位置”计算。",
    says="transformers 5.22, build_alibi_tensor of Falcon, and of BLOOM loaded in bfloat16, by computing it so",
    how='Alibi(rounding="hf_falcon") and Alibi(rounding="hf_bf16"), which is BLOOM\'s, against the exact bias of the '
    "head of slope 1/2, where the two are one, up to a number per row, at 512, 2,048 and 8,192 keys: two keys off each "
    "other by less than 0.01 would do. Each key must be off by what rounding half of its position to bfloat16 makes, "
    "to 1e-6. Falcon divides its bias by sqrt(d) as well, which is left out.",
    how_zh='512、2048、8192 个键，斜率 1/2 的头（两者在此相同）：Alibi(rounding="hf_falcon") 与 BLOOM 的 '
    'Alibi(rounding="hf_bf16") 与精确偏置比较，每行相差的常数不计：任两个键之间的误差小于 0.01 才算可以；各键的误差须'
    "与其位置的一半舍入到 bfloat16 的误差相同（容差 1e-6）。Falcon 还把偏置除以 √d，此处略去。",
)
def alibi_key_form() -> Finding:
    roundings = {"Falcon": Alibi(heads=8, rounding="hf_falcon"), "BLOOM": Alibi(heads=8, rounding="hf_bf16")}
    exact, numbers, apart = Alibi(heads=8), {}, []
    for (name, rounded), keys in product(roundings.items(), (512, 2048, 8192)):
        query, ids = torch.tensor([keys - 1]), torch.arange(keys)
        off = (rounded.score_bias(query, ids) - exact.score_bias(query, ids)).double()[0, 0]
        numbers[f"{name}: two keys off each other by, {keys:,} keys"] = off.max() - off.min()
        half = ids.double() / 2
        apart.append(off - off[0] - (half.bfloat16().double() - half))
    few, _, many, *_ = numbers.values()
    text = Both(
        f"with slope 1/2 and before any scaling, weights of two of 512 keys are off each other by up to e^{few:g}, of "
        f"8,192 by e^{many:g}",
        f"斜率 1/2、缩放之前，512 个键中两个键的权重之比可差 e^{few:g} 倍，8192 个键中可差 e^{many:g} 倍",
    )
    return decide(max(numbers.values()) < 0.01, numbers, text, instead=largest(apart) < 1e-6)


@about_alibi.holds_within(
    "precision.alibi-relative-form",
    "Taken from the distance, in float32, ALiBi's bias is exact to 2^-23 of its size at any position, for keys under "
    "2^24 away.",
    "以 float32 按距离计算时，键在 2^24 以内，ALiBi 的偏置在任何位置都精确到自身大小的 2^-23。",
    says="whorl 0.2, docs/encodings/alibi.md: the distance in whole numbers, multiplied in float32",
    how="Biases of 8, 12 and 32 heads for queries at 4,096, 2^24 - 1 and 2^40 + 1 against float64: the 4,096 keys "
    "before each, and, where there are any, those of 4,096 drawn up to 2^24 - 1 away.",
    how_zh="8、12 与 32 头，4096、2^24 - 1 与 2^40 + 1 处的查询，偏置与 float64 比较：各自之前的 4096 个键，以及 "
    "2^24 - 1 以内随机抽取的 4096 个距离中有键的那些。",
)
def alibi_relative_form() -> Finding:
    errors = []
    far = torch.randint(2**24, (4096,), generator=generator(10))
    for heads in (8, 12, 32):
        for start in (4096, 2**24 - 1, 2**40 + 1):
            query, keys = torch.tensor([start]), torch.cat((torch.arange(start - 4096, start + 1), start - far))
            keys = keys[keys >= 0]
            true = torch.tensor(_press(heads), dtype=torch.float64)[:, None] * (keys - start).double()
            own = Alibi(heads=heads).score_bias(query, keys)[:, 0].double()
            errors.append((own - true) / true.clamp(max=-1e-9))
    return close(errors, 2**-23, "largest relative error")


def _press(heads: int) -> list[float]:
    """The authors' slopes from their rule: powers of two by themselves, then every other one of twice as many."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return own + [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]


@about_kerple.holds_within(
    "precision.kerple-exact",
    "KERPLE's biases, with the two numbers p and a of each head anywhere that training may start from, all differ in "
    "each head at distances up to 5,000, and are those of float64 to a millionth of their size.",
    "每个头的两个参数 p 与 a 取初始范围内的任何值时，KERPLE 的每个头在直到 5000 的各个距离上的偏置互不相同，与 float64 "
    "的结果相差不到自身大小的百万分之一。",
    says="whorl 0.2, docs/encodings/kerple.md",
    how="Both kernels of 16 heads, p drawn between 0.01 and 2 and a between 0.01 and 1, at distances 0 … 5,000, "
    "positions around a million, against their formulas; and how many differ in the head with the fewest.",
    how_zh="两种核，16 个头，p 在 0.01 到 2 之间、a 在 0.01 到 1 之间随机，距离 0 … 5000，位置在一百万附近，与各自的公"
    "式比较；并数不同偏置最少的头有多少个不同。",
)
def kerple_exact() -> Finding:
    distance, numbers, counts = torch.arange(5001), {}, {}
    for variant in ("log", "power"):
        kerple, source = Kerple(heads=16, variant=variant), generator(10)
        for parameter, high in ((kerple.p, 2.0), (kerple.a, 1.0)):
            parameter.copy_(0.01 + (high - 0.01) * torch.rand(16, generator=source))
        p, a, d = kerple.p.double()[:, None], kerple.a.double()[:, None], distance.double()
        true = -p * torch.log1p(a * d) if variant == "log" else -a * d**p
        own = kerple.score_bias(torch.tensor([1_000_000]), 1_000_000 - distance)[:, 0].double()
        numbers[f"relative error, {variant}"] = largest((own - true) / true.clamp(max=-1e-9))
        counts[f"different biases, {variant}"] = min(len(head.unique()) for head in own)
    worst = max(numbers.values()) if min(counts.values()) == len(distance) else math.inf
    return within(worst, 1e-6, numbers | counts)
