"""Claims about precision: positions, frequencies and vectors in bfloat16 and float16."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whorl import Encoding, Kerple, KVCache, MixedRope, Rope, XPos, attention, linear_attention, registry
from whorl.claims.ledger import About, Both, Finding, all_within, decide, depends
from whorl.claims.precision.angles import DIM, PLACES, tables, up_to
from whorl.claims.probes import build, doubles, generator, ladder, largest, normal, refusal, sizes_of, tokens, turned
from whorl.encodings.parts import Input, first
from whorl.errors import dtype_name
from whorl.models import Decoder

HALVES = (torch.bfloat16, torch.float16)
about_rope = About("rope")
WHORL = "whorl 0.2, docs/rotary.md"
CASTS = (
    "transformers 4.35, LlamaRotaryEmbedding, which remakes its tables for longer texts from positions and frequencies "
    "in the dtype that the model was cast to"
)


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
    "应与剩下的距离一样多。并列出各类型能表示直到多大的全部整数。",
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
