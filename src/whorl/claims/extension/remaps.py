"""Claims about remapped positions and scaled queries: ReRoPE, Self-Extend, log-n, Llama 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import Encoding, LeakyReRope, Llama4Temperature, LogN, ReRope, Rope, SelfExtend
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide
from whorl.claims.probes import doubles, ladder, largest, tokens, turned, weights_at


@About("rerope", "leaky_rerope", "self_extend").holds_within(
    "extension.rerope-near",
    (
        "ReRoPE, leaky ReRoPE and Self-Extend are RoPE within their window; leaky ReRoPE with a factor of 1 is RoPE "
        "throughout."
    ),
    "ReRoPE、leaky ReRoPE 与 Self-Extend 在窗口内就是 RoPE；因子为 1 的 leaky ReRoPE 处处等于 RoPE。",
    says="Su 2023, kexue.fm 9708; Jin et al. 2024, Self-Extend",
    how="Attention weights of 24 tokens, heads of 16, against RoPE's, with windows of 24, and with a window of 4 at "
    "factor 1.",
    how_zh="24 个词、16 维的头的注意力权重与 RoPE 比较：窗口 24，以及窗口 4、因子 1。",
)
def rerope_near() -> Finding:
    ids = torch.arange(24)
    others: dict[str, Encoding] = {
        "rerope": ReRope(head_dim=16, window=24),
        "leaky_rerope": LeakyReRope(head_dim=16, window=24),
        "self_extend": SelfExtend(head_dim=16, window=24, group=3),
        "leaky_rerope, factor 1": LeakyReRope(head_dim=16, window=4, factor=1.0),
    }
    plain = weights_at(Rope(head_dim=16), ids)
    return all_within({name: largest(weights_at(one, ids) - plain) for name, one in others.items()}, 1e-9)


@About("rerope", "leaky_rerope").holds_within(
    "extension.rerope-far",
    "Beyond the window w ReRoPE scores a key at distance d as if it were at distance w, leaky ReRoPE with factor k as "
    "if it were at w + (d - w) / k.",
    "超出窗口 w 后，ReRoPE 把距离 d 处的键当作在距离 w 处，因子为 k 的 leaky ReRoPE 当作在 w + (d - w)/k 处。",
    says="Su 2023, kexue.fm 9708",
    how="Attention weights of 64 tokens, heads of 16, w = 16 and k = 8, against the softmax of scores for which each "
    "query was turned, in complex numbers, by the distance that the statement gives it from each key.",
    how_zh="64 个词、16 维的头，w = 16、k = 8：注意力权重，与另算的 softmax 比较，其中每个查询按命题所给的、到各个键的"
    "距离用复数旋转。",
)
def rerope_far() -> Finding:
    ids, window = torch.arange(64), 16
    true = (ids[:, None] - ids).double()
    leaked = torch.where(true < window, true, window + (true - window) / 8)
    numbers = {}
    for encoding, distance in (
        (ReRope(head_dim=16, window=window, layout="interleaved"), true.clamp(max=window)),
        (LeakyReRope(head_dim=16, window=window, factor=8.0, layout="interleaved"), leaked),
    ):
        q, k, *_ = tokens(encoding, ids)
        placed = turned(q.unsqueeze(-2).expand(-1, -1, -1, 64, -1), distance[..., None] * ladder(16))
        scores = torch.einsum("bhijd,bhjd->hij", placed, k) / 4
        wanted = scores.masked_fill(true < 0, -torch.inf).softmax(-1)
        numbers[encoding.config.name] = largest(weights_at(encoding, ids) - wanted)
    return all_within(numbers, 1e-9)


@About("self_extend").holds(
    "extension.self-extend-far",
    "With window w and group G, Self-Extend takes a far distance d for one that differs by less than 1 from w + (d - "
    "w) / G where G divides w, and by less than 2 elsewhere, so that far distances grow G times as slowly.",
    "窗口 w、分组 G 时，Self-Extend 把远距离 d 当作与 w + (d - w)/G 相近的距离：G 整除 w 时相差不到 1，否则不到 2，因此"
    "远距离的增长慢 G 倍。",
    says="Jin et al. 2024, Self-Extend",
    how="Distances of the far branch for every pair of 400 positions, w and G = 16 and 4, 21 and 7, 18 and 4, 15 and "
    "4; none is below w.",
    how_zh="400 个位置每一对的远分支距离，w 与 G 取 16 与 4、21 与 7、18 与 4、15 与 4；都不小于 w。",
)
def self_extend_far() -> Finding:
    ids, numbers, good = torch.arange(400), {}, True
    true = (ids[:, None] - ids).double()
    for window, group in ((16, 4), (21, 7), (18, 4), (15, 4)):
        _, far = SelfExtend(head_dim=16, window=window, group=group).branches(ids, ids)
        distance = (far.q_positions[:, None] - far.k_positions).double()
        over, seen = (distance - ((true - window) / group + window))[far.allowed], distance[far.allowed]
        numbers |= {f"off the line by, w = {window}, G = {group}": largest(over)}
        numbers |= {f"largest distance, w = {window}, G = {group}": seen.max()}
        good &= largest(over) < (2 if window % group else 1) and bool(seen.min() >= window)
    return decide(good, numbers, Both("a far distance is elsewhere", "某个远距离不在应有之处"))


@About("log_n").holds_within(
    "extension.log-n",
    "log-n leaves the first L queries, L the trained length, as they are and multiplies the n-th query, n > L, by "
    "ln n / ln L.",
    "log-n 不改动训练长度 L 以内的查询，把第 n 个查询（n > L）乘以 ln n / ln L。",
    says="Su 2021, kexue.fm 8823; the factor of 1 up to L by his ReRoPE code",
    how="Queries of ones after transform_qk of LogN(trained_length=512) at positions 0, 511, 512, 4,095 and 262,143, "
    "which are n = 1, 512, 513, 4,096 and 262,144; keys stay ones.",
    how_zh="全 1 的查询在位置 0、511、512、4095、262143（即 n = 1、512、513、4096、262144）处经 "
    "LogN(trained_length=512) 的 transform_qk 之后；键仍全为 1。",
)
def log_n() -> Finding:
    wanted = doubles([1.0, 1.0, math.log(513) / math.log(512), math.log(4096) / math.log(512), 2.0])
    return close(_off(LogN(trained_length=512), [0, 511, 512, 4095, 262_143], wanted), 1e-6)


def _off(encoding: Encoding, positions: list[int], factors: Tensor) -> list[Tensor]:
    """How far queries of ones at these positions are from the factors, and keys of ones from ones."""
    ids, ones = torch.tensor(positions), torch.ones(1, 1, len(positions), 2, dtype=torch.float64)
    q, k = encoding.transform_qk(ones, ones, ids, ids)
    return [q - factors[:, None], k - 1]


@About("llama4_temperature").holds_within(
    "extension.llama4-temperature",
    "In its layers without rotation Llama 4 multiplies the query at position p by 1 + 0.1 ln(1 + floor((p + 1) / "
    "8192)): 1 up to 8,190, then 1.06931, 1.28332 and 1.48598 at 8,191, 131,071 and 1,048,575.",
    "Llama 4 在不旋转的层中把位置 p 处的查询乘以 1 + 0.1 ln(1 + ⌊(p + 1)/8192⌋)：到 8190 为止是 1，在 8191、131071、"
    "1048575 处为 1.06931、1.28332、1.48598。",
    says="transformers 5.22, Llama4TextAttention",
    how="Queries of ones after transform_qk of Llama4Temperature() at positions 0, 8,190, 8,191, 131,071 and "
    "1,048,575 against five decimals; keys stay ones.",
    how_zh="全 1 的查询在位置 0、8190、8191、131071、1048575 处经 Llama4Temperature() 的 transform_qk 之后，与五位小数"
    "比较；键仍全为 1。",
)
def llama4_temperature() -> Finding:
    known = doubles([1.0, 1.0, 1.06931, 1.28332, 1.48598])
    return close(_off(Llama4Temperature(), [0, 8190, 8191, 131_071, 1_048_575], known), 5.1e-6)
