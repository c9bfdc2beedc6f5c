"""Claims about xPos: how it fades, its centre, its limits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import XPos, attention, linear_attention
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide
from whorl.claims.probes import doubles, largest, normal, refusal
from whorl.errors import dtype_name

about_xpos = About("xpos")


@about_xpos.holds_within(
    "xpos.factor",
    "A pair's part of an xPos score fades by zeta_i^(distance / 512), zeta_i = (2i/d + 0.4) / 1.4.",
    "xPos 中第 i 对的分数按 ζ_i^(距离/512) 衰减，ζ_i = (2i/d + 0.4)/1.4。",
    says="Sun et al. 2022, xPos, with the settings of their code, torchscale",
    how="Length of the complex score of one pair at distances 0, 1, 512 and 2,000, four queries in one call, against "
    "the formula, every pair of heads of 64 and of 20 dimensions.",
    how_zh="64 维与 20 维的头的每一对，距离 0、1、512、2000（四个查询一次算）：一对的复数分数的模与公式比较。",
)
def xpos_factor() -> Finding:
    there, distances, differences = torch.tensor([7000]), torch.tensor([0, 1, 512, 2000]), []
    for pairs in (32, 10):
        xpos, axes = XPos(head_dim=2 * pairs, layout="interleaved"), _axes(pairs)
        zeta = (torch.arange(pairs, dtype=torch.float64) / pairs + 0.4) / 1.4
        queries = axes[0].expand(1, 1, len(distances), -1)
        placed = [xpos.transform_qk(queries, key, there + distances, there) for key in axes]
        size = torch.hypot(*((a * b)[0, 0].view(-1, pairs, 2).sum(-1) for a, b in placed))
        differences.append(size / zeta ** (distances[:, None] / 512) - 1)
    return close(differences, 1e-9, "largest relative difference")


def _axes(pairs: int) -> tuple[Tensor, Tensor]:
    """A vector with every pair at 0 degrees and one with every pair at 90: (1, 1, 1, dimensions)."""
    one, turned = torch.eye(2, dtype=torch.float64).repeat(1, pairs)[:, None, None, None]
    return one, turned


@About("xpos").holds_within(
    "xpos.centre",
    "xPos scores of keys up to the query do not depend on which queries are computed together.",
    "xPos 中查询与其之前（含自身）的键的分数与哪些查询一起计算无关。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how="Scores of 40 queries, 64 dimensions, 100 positions apart, at once against one at a time and in two halves, "
    "each time with all 40 keys, of which those up to the query are compared.",
    how_zh="40 个查询（64 维，位置相隔 100）一次算、逐个算、分两半算的分数比较，每次都带全部 40 个键，"
    "只比较到查询为止的键。",
)
def xpos_centre() -> Finding:
    xpos, ids = XPos(head_dim=64), torch.arange(40) * 100
    q, k = normal(2, 1, 1, 40, 64)

    def scores(rows: slice) -> Tensor:
        a, b = xpos.transform_qk(q[:, :, rows], k, ids[rows], ids)
        return (a @ b.mT)[0, 0]

    whole = scores(slice(0, 40)).tril()
    single = torch.cat([scores(slice(i, i + 1)) for i in range(40)]).tril()
    halves = torch.cat((scores(slice(0, 20)), scores(slice(20, 40)))).tril()
    return all_within({"one at a time": largest(single - whole), "two halves": largest(halves - whole)}, 1e-9)


@About("xpos").holds(
    "xpos.overflow",
    (
        "Centred on its queries, XPos.transform_qk with the paper's settings takes 32,862 neighbouring ones in float32 "
        "and 1,134 in float16, wherever they begin, and refuses more, or on the CPU any that lie farther apart; no "
        "score overflows where |q| and |k| are at most 63. Attention splits its queries and takes more."
    ),
    "以查询为中心时，采用论文设置的 XPos.transform_qk 在 float32 下可容纳 32862 个相邻的查询、float16 下 1134 个，无论"
    "从何处开始，更多则拒绝，在 CPU 上相距更远也拒绝；|q| 与 |k| 都不超过 63 时分数都不溢出。attention 会把查询分段，可"
    "以更多。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how=(
        "That many tokens, 64 dimensions, at positions from 0 and from a million, in one call: queries and keys of "
        "length 63 along the fastest pair, the last key turned so that it points as the first query does. Their "
        "score, which grows most, is finite, as is that of each with itself, and that of one query with a key as far "
        "again after it; one query more is refused, and two that lie as many positions apart. Beside it the position "
        "where a key of that length that is not centred overflows, and attention of 1,135 tokens in float16, finite."
    ),
    how_zh="一次调用恰为上限个 64 维的词，位置从 0 与从一百万开始：查询与键都只在最快的一对上、长度为 63，最后一个键转"
    "到与第一个查询同向。二者的分数增长最多，须为有限，首尾两词各与自身的分数也是，单个查询与其后再远一倍的键的分数也是"
    "；再多一个查询则被拒绝，相距如此之远的两个查询也被拒绝。并列出不取中心时这样长的键在何处溢出；以及 float16 下 "
    "1135 个词的 attention，须为有限。",
)
def xpos_overflow() -> Finding:
    xpos, numbers, good = XPos(head_dim=64, layout="interleaved"), {}, 0
    rate = -math.log(0.4 / 1.4) / 512
    for dtype, known in ((torch.float32, 32_862), (torch.float16, 1_134)):
        word, limit = dtype_name(dtype), xpos.query_limit(dtype)
        q = torch.zeros(1, 1, limit + 1, 64, dtype=dtype)
        q[..., 0] = 63.0
        k, back = q[:, :, :limit].clone(), 1.0 - limit  # the fastest pair turns one radian per position
        k[..., -1, :2] = 63 * doubles([math.cos(back), math.sin(back)]).to(dtype)
        for start in (0, 1_000_000):
            ids = torch.arange(start, start + limit + 1)
            a, b = xpos.transform_qk(q[:, :, :limit], k, ids[:limit], ids[:limit])
            score = a[0, 0, [0, -1]] @ b[0, 0, [0, -1]].mT
            one, after = xpos.transform_qk(q[:, :, :1], k[:, :, :1], ids[:1], ids[:1] + 2 * limit)
            finite = bool(score.isfinite().all()) and bool((one @ after.mT).isfinite().all())
            refused = refusal(lambda q=q, k=k, ids=ids: xpos.transform_qk(q, k, ids, ids[:-1]))
            ends = ids[[0, -1]]
            apart = refusal(lambda q=q, k=k, at=ends: xpos.transform_qk(q[:, :, :2], k[:, :, :2], at, at))
            good += limit == known and finite and f"at most {limit} queries" in refused and bool(apart)
        numbers[f"queries, {word}"] = limit
        numbers[f"a key of length 63, not centred, overflows at, {word}"] = math.log(torch.finfo(dtype).max / 63) / rate
    more = attention(*normal(3, 1, 1, 1135, 64).half(), encoding=xpos, causal=True)
    but = Both("a limit is elsewhere, or a number within it overflows", "上限在别处，或上限之内就溢出")
    return decide(good == 4 and bool(more.isfinite().all()), numbers, but)


@about_xpos.holds(
    "xpos.causal-only",
    "xPos fades keys before the query and grows those after it, so it is for causal attention only.",
    "xPos 使查询之前的键衰减、之后的键增大，因此只适用于因果注意力。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how="What is left of each pair's score, 16 dimensions, for keys 512 before and 512 after a query at 1,000, beside "
    "another at 3,000: less than of a key at the query, and more; and whether attention and linear attention refuse it "
    "without a causal mask.",
    how_zh="16 维，位置 1000 的查询（另有位置 3000 的）之前 512 与之后 512 处的键：每一对的分数各剩多少，须分别小"
    "于、大于查询处的键；以及没有因果掩码时注意力与线性注意力是否拒绝它。",
)
def xpos_causal_only() -> Finding:
    xpos = XPos(head_dim=16, layout="interleaved")
    ids, keys = torch.tensor([1000, 3000]), torch.tensor([488, 1000, 1512])  # the last key comes before one query
    one, parts = _axes(8)[0], []
    for key in _axes(8):
        a, b = xpos.transform_qk(one.expand(1, 1, 2, 16), key.expand(1, 1, 3, 16), ids, keys)
        parts.append((a[0, 0, 0] * b[0, 0]).view(3, 8, 2).sum(-1))
    size = torch.hypot(*parts)
    before, after = size[0] / size[1], size[2] / size[1]
    x = normal(1, 1, 3, 16)
    refused = all(
        "causal" in refusal(lambda call=call: call(x, x, x, encoding=xpos, causal=False))
        for call in (attention, linear_attention)
    )
    numbers = {"fastest pair, key 512 before": before[0], "fastest pair, key 512 after": after[0]}
    numbers |= {"slowest pair, key 512 before": before[-1], "slowest pair, key 512 after": after[-1]}
    text = Both(
        f"of a pair's score a key 512 before keeps up to {before.max():.2f}, and one 512 after has {after.min():.2f}",
        f"一对的分数，前 512 处的键最多剩 {before.max():.2f}，后 512 处的键最少为 {after.min():.2f}",
    )
    good = before.max() < 1 < after.min() and refused
    return decide(good, numbers | {"refused without a causal mask": refused}, text)
