"""Claims about xPos: how it fades, its centre, its limits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import XPos, attention
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide
from whorl.claims.probes import largest, normal, refusal
from whorl.errors import dtype_name

about_xpos = About("xpos")


@about_xpos.holds_within(
    "xpos.factor",
    "A pair's part of an xPos score fades by zeta_i^(distance / 512), zeta_i = (2i/d + 0.4) / 1.4.",
    "xPos 中第 i 对的分数按 ζ_i^(距离/512) 衰减，ζ_i = (2i/d + 0.4)/1.4。",
    says="Sun et al. 2022, xPos",
    how="Length of the complex score of one pair at distances 0, 1, 512 and 2,000 against the formula, all 32 pairs.",
    how_zh="全部 32 对，距离 0、1、512、2000：一对的复数分数的模与公式比较。",
)
def xpos_factor() -> Finding:
    xpos, (one, turned) = XPos(head_dim=64, layout="interleaved"), _axes(32)
    zeta, there = (torch.arange(32, dtype=torch.float64) / 32 + 0.4) / 1.4, torch.tensor([7000])

    def part(key: Tensor, distance: int) -> Tensor:
        a, b = xpos.transform_qk(one, key, there + distance, there)
        return (a * b)[0, 0, 0].view(32, 2).sum(-1)

    sizes = {distance: torch.hypot(part(one, distance), part(turned, distance)) for distance in (0, 1, 512, 2000)}
    differences = (size / zeta ** (distance / 512) - 1 for distance, size in sizes.items())
    return close(differences, 1e-9, "largest relative difference")


def _axes(pairs: int) -> tuple[Tensor, Tensor]:
    """A vector with every pair at 0 degrees and one with every pair at 90: (1, 1, 1, dimensions)."""
    one, turned = torch.eye(2, dtype=torch.float64).repeat(1, pairs)[:, None, None, None]
    return one, turned


@About("xpos").holds_within(
    "xpos.centre",
    "xPos scores do not depend on which queries are computed together: queries and keys share one centre.",
    "xPos 的分数与哪些查询一起计算无关：查询与键共用一个中心。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how="Scores of 40 queries at once against one at a time and in two halves, each with all keys before it.",
    how_zh="40 个查询一次算、逐个算、分两半算的分数比较，每次都带它们之前的全部键。",
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
        "Centred on its queries, a call of xPos with the paper's settings takes 32,862 of them in float32 and 1,134 in "
        "float16 without overflow, wherever they stand, and refuses more."
    ),
    "以查询为中心时，采用论文设置的 xPos 一次调用在 float32 下可容纳 32862 个查询、float16 下 1134 个，"
    "无论位于何处都不溢出，超出则拒绝。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how=(
        "Scores of ones, 64 dimensions, between the first and the last of that many tokens at 0 and at a million, "
        "which are finite; and one query more, which is refused: 12 bits of the type's range are left to the content. "
        "Beside it the position where a key that is not centred overflows."
    ),
    how_zh="64 维全一向量，在位置 0 与一百万处，恰为上限个词中首尾两词的分数，须为有限；"
    "再多一个查询则被拒绝：该类型的范围为内容留出 12 位。并列出不取中心时键在何处溢出。",
)
def xpos_overflow() -> Finding:
    xpos, numbers, good = XPos(head_dim=64), {}, 0
    rate = -math.log(0.4 / 1.4) / 512
    for dtype, known in ((torch.float32, 32_862), (torch.float16, 1_134)):
        word, limit = dtype_name(dtype), xpos.query_limit(dtype)
        x = torch.ones(1, 1, 2, 64, dtype=dtype)
        for start in (0, 1_000_000):
            ends = torch.tensor([start, start + limit - 1])
            a, b = xpos.transform_qk(x, x, ends, ends)
            more = ends + torch.tensor([0, 1])
            refused = refusal(lambda x=x, more=more, ends=ends: xpos.transform_qk(x, x, more, ends))
            good += limit == known and bool((a @ b.mT).isfinite().all()) and bool(refused)
        numbers[f"queries, {word}"] = limit
        numbers[f"a key not centred overflows at, {word}"] = math.log(torch.finfo(dtype).max) / rate
    but = Both("a limit is elsewhere, or a number within it overflows", "上限在别处，或上限之内就溢出")
    return decide(good == 4, numbers, but)


@about_xpos.holds(
    "xpos.causal-only",
    "xPos fades keys before the query and grows those after it, so it is for causal attention only.",
    "xPos 使查询之前的键衰减、之后的键增大，因此只适用于因果注意力。",
    says="whorl 0.2, docs/encodings/xpos.md",
    how="What is left of the fastest pair's score, 16 dimensions, for keys 512 before and 512 after a query at "
    "1,000, beside another at 3,000: less than of a key at the query, and more; and whether attention refuses it "
    "without a causal mask.",
    how_zh="16 维，位置 1000 的查询（另有位置 3000 的）之前 512 与之后 512 处的键：最快一对的分数各剩多少，须分别小"
    "于、大于查询处的键；以及没有因果掩码时注意力是否拒绝它。",
)
def xpos_causal_only() -> Finding:
    xpos = XPos(head_dim=16, layout="interleaved")
    ids, keys = torch.tensor([1000, 3000]), torch.tensor([488, 1000, 1512])  # the last key comes before one query
    one, parts = _axes(8)[0], []
    for key in _axes(8):
        a, b = xpos.transform_qk(one.expand(1, 1, 2, 16), key.expand(1, 1, 3, 16), ids, keys)
        parts.append(b[0, 0, :, :2] @ a[0, 0, 0, :2])
    before, at, after = torch.hypot(*parts).tolist()
    x = normal(1, 1, 3, 16)
    refused = "causal" in refusal(lambda: attention(x, x, x, encoding=xpos, causal=False))
    numbers = {"key 512 before": before / at, "key 512 after": after / at, "refused without a causal mask": refused}
    text = Both(
        f"a key 512 before is worth {before / at:.2f} of one here, and one 512 after it {after / at:.2f}",
        f"前 512 处的键剩 {before / at:.2f}，后 512 处的键为 {after / at:.2f}",
    )
    return decide(before < at < after and refused, numbers, text)
