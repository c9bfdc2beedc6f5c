"""Claims about linear attention: its forms, and what is relative in it."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from whorl import Encoding, LinearState, NoPE, Rope, linear_attention, registry
from whorl.attend.features import Feature
from whorl.claims.compatibility.caches import COUNT, DIM, tokens
from whorl.claims.flag_linear import linear
from whorl.claims.ledger import About, Both, Finding, all_within, decide, within
from whorl.claims.probes import build, doubles, largest
from whorl.encodings.parts import Placement, SoftmaxScale, settled

SU = "Su et al. 2021, RoFormer, section 3.3"
about_rope = About("rope")
about_rope_and_xpos = About("rope", "xpos")


@about_rope.holds_within(
    "linear.forms-agree",
    "Chunked, parallel and recurrent linear attention with RoPE are the same numbers.",
    "带 RoPE 的线性注意力，分块、并行、递推三种算法结果相同。",
    says="whorl 0.2, docs/performance.md",
    how="256 tokens, 2 heads of 16, by chunks of 16 and in one chunk, the first 32 one by one, five forms (that with "
    "decay at 0.01), float64: differences over the largest entry of the same output.",
    how_zh="256 个词、2 个 16 维的头，按 16 分块与整块计算，前 32 个逐个计算，五种形式（带衰减的取 0.01），float64：差"
    "别除以同一输出的最大分量。",
)
def forms_agree() -> Finding:
    rope, (q, k, v), numbers = Rope(head_dim=DIM), tokens(), {}
    for form in ("numerator", "both", "one_plus_cosine", "decay", "unnormalised"):
        options = {"encoding": rope, "form": form, "decay": 0.01 if form == "decay" else None}
        chunked = linear_attention(q, k, v, chunk=16, **options)
        parallel = linear_attention(q, k, v, chunk=COUNT, **options)
        state = LinearState(**options)
        steps = torch.cat([state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(32)], dim=2)
        apart = torch.cat((chunked - parallel, steps - chunked[:, :, :32]), dim=2)
        # the denominator of "both" may nearly cancel, and outputs grow with what float64 leaves of it
        size = torch.cat((chunked, chunked[:, :, :32]), dim=2).abs().amax(-1, keepdim=True)
        numbers[form] = largest(apart / size)
    return all_within(numbers, 1e-8)


@about_rope.holds_within(
    "linear.relative",
    "Rotated after the feature map, linear attention weights depend on the distance only.",
    "在特征映射之后旋转，线性注意力的权重只取决于距离。",
    says=f"{SU}, equation 19, by equation 16",
    how="Outputs of 64 tokens, 2 heads of 16, elu + 1, with a causal mask and without, at positions from 0 and from 1, "
    "37 and 1,000, bases 10,000 and 100: the same; and at distances three times as large: other by more than 0.01.",
    how_zh="64 个词、2 个 16 维的头，elu + 1，有因果掩码与没有，底数 10000 与 100，位置从 0 与从 1、37、1000 开始的输出"
    "：相同；距离扩大到三倍时的输出：相差超过 0.01。",
)
def linear_relative() -> Finding:
    given, ids, shifted, spread = [x[:, :, :64] for x in tokens()], torch.arange(64), [], []
    for base, causal in product((10_000.0, 100.0), (True, False)):
        rope = Rope(head_dim=DIM, base=base)
        here, apart, *there = (
            linear_attention(*given, encoding=rope, positions=at, causal=causal)
            for at in (ids, 3 * ids, *(ids + s for s in (1, 37, 1000)))
        )
        shifted += [each - here for each in there]
        spread.append(largest(apart - here))
    least = float(doubles(spread).min())  # NaN where one is, which min would pass by
    numbers = {"largest change, shifted": largest(shifted), "least change, three times as far": least}
    if not least > 0.01:
        text = f"at three times the distance outputs change by {least:.3g} only"
        return decide(False, numbers, Both(text, f"距离为三倍时输出只变化 {least:.3g}"))
    return within(largest(shifted), 1e-9, numbers)


@about_rope.holds(
    "linear.rotate-before",
    "Rotated before the feature map elu + 1 or relu, linear attention weights are not relative; rotated after it they "
    "are.",
    "先旋转再做特征映射 elu + 1 或 relu，线性注意力的权重不是相对的；先做特征映射再旋转才是。",
    says=f"{SU}, equation 19, which rotates after",
    how="Weights of 16 tokens, 2 heads of 16, both feature maps, read off linear_attention with one-hot values, at "
    "positions from 0 and from 100: with RoPE as its encoding, which rotates after, they change by less than 1e-9, and "
    "by more than 0.01 where positions are three apart; with none, on queries and keys that were rotated before, they "
    "change by more than 0.01.",
    how_zh="16 个词、2 个 16 维的头，两种特征映射，用独热的值从 linear_attention 读出权重，位置从 0 与从 100 开始：以 "
    "RoPE 作其编码（之后旋转），权重变化不到 1e-9，而位置间隔为三时变化超过 0.01；不用编码、先旋转好查询和键再送入，变"
    "化超过 0.01。",
)
def rotate_before() -> Finding:
    rope, (q, k, _) = Rope(head_dim=DIM), (x[:, :, :16] for x in tokens())
    one_hot = torch.eye(16, dtype=q.dtype).expand(1, 2, 16, 16)

    def weights(feature: Feature, before: bool, start: int, step: int = 1) -> Tensor:
        ids = torch.arange(16) * step + start
        if before:
            q_turned, k_turned = rope.rotate(q, ids), rope.rotate(k, ids)
            return linear_attention(q_turned, k_turned, one_hot, encoding=NoPE(), positions=ids, feature=feature)
        return linear_attention(q, k, one_hot, encoding=rope, positions=ids, feature=feature)

    def change(before: bool, **other: int) -> Tensor:
        maps: tuple[Feature, ...] = ("elu+1", "relu")
        return doubles([largest(weights(one, before, 0) - weights(one, before, **other)) for one in maps])

    # of tensors: NaN where one is, which min and max of Python would pass by
    first, after = float(change(True, start=100).min()), float(change(False, start=100).max())
    spread = float(change(False, start=0, step=3).min())
    numbers = {"rotated before: least change": first, "rotated after: largest change": after}
    numbers |= {"rotated after, positions three apart: least change": spread}
    text = Both(
        f"weights change by {first:.3g} and {after:.3g} between places", f"两处权重之差为 {first:.3g} 与 {after:.3g}"
    )
    return decide(first > 0.01 and after < 1e-9 and spread > 0.01, numbers, text)


@about_rope_and_xpos.fails(
    "note.only-rope-linear",
    "RoPE is the only relative encoding that works with linear attention.",
    "RoPE 是唯一可用于线性注意力的相对位置编码。",
    says="study notes, without the hedge of the RoFormer authors' README (github.com/ZhuiyiTechnology/roformer): to "
    "the best of our knowledge",
    how="Every registered encoding that is relative and said to work there, 12 tokens, near and far apart: the linear "
    "form against the quadratic, and attention against products of placed queries and keys, to 1e-6. It is so if all "
    "that do are rotations or none; each other one must fade in every dimension, and not in all alike.",
    how_zh="每个声明可用的已注册相对编码，12 个词（远近都有）：线性形式与平方形式比较，注意力与放好位置的查询、键的内积"
    "比较，容差 1e-6。若可用的只有旋转与不加编码，则成立；其余的每一维都须衰减，且快慢不全相同。",
)
def only_rope_linear() -> Finding:
    works = []
    for name in registry.names():
        encoding = build(name)
        stated = encoding.claims.relative and encoding.claims.linear_attention
        if stated and linear(encoding, True).verdict.kind == "holds within":
            works.append(name)
    others = [name for name in works if not _turns_only(build(name))]
    numbers = {"relative encodings that work": len(works), "that are no RoPE, nor none": len(others)}
    but = Both(
        f"{', '.join(others)} works as well: it fades its sums dimension by dimension",
        f"{', '.join(others)} 同样可用：它逐维对累积的和作衰减",
    )
    rates = [build(name).linear_decay() or (0.0,) for name in others]
    return decide(not others, numbers, but, instead=all(max(own) < 0 and len(set(own)) > 1 for own in rates))


def _turns_only(encoding: Encoding) -> bool:
    """Whether all that an encoding does to queries and keys is to turn them."""
    turned = [part for part in settled(encoding) if not isinstance(part, SoftmaxScale)]
    return all(isinstance(part, Placement) and part.rotary is not None for part in turned)
