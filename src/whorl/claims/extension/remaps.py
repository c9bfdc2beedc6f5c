"""Claims about remapped positions and scaled queries: ReRoPE, Self-Extend, log-n, Llama 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import Encoding, LeakyReRope, Llama4Temperature, LogN, ReRope, Rope, SelfExtend
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide
from whorl.claims.probes import doubles, generator, ladder, largest, normal, tokens, turned, weights_at


@About("rerope", "leaky_rerope", "self_extend").holds_within(
    "extension.rerope-near",
    (
        "ReRoPE, leaky ReRoPE and Self-Extend are RoPE within their window; leaky ReRoPE with a factor of 1 is RoPE "
        "throughout."
    ),
    "ReRoPE、leaky ReRoPE 与 Self-Extend 在窗口内就是 RoPE；因子为 1 的 leaky ReRoPE 处处等于 RoPE。",
    says="Su 2023, kexue.fm 9708; Jin et al. 2024, Self-Extend",
    how="Attention weights of 24 tokens from position 1,000, heads of 16, against RoPE's, with windows of 24; with "
    "windows of 7, where each query's weights of the keys within the window are taken as shares of their sum; and with "
    "a window of 4 at factor 1.",
    how_zh="从位置 1000 起的 24 个词、16 维的头的注意力权重与 RoPE 比较：窗口 24；窗口 7（每个查询在窗口内各键的权重，"
    "取其在窗口内总和中的份额）；以及窗口 4、因子 1。",
)
def rerope_near() -> Finding:
    ids = torch.arange(1000, 1024)
    plain, distance = weights_at(Rope(head_dim=16), ids), ids[:, None] - ids
    numbers = {}
    for window in (24, 7):
        others: dict[str, Encoding] = {
            "rerope": ReRope(head_dim=16, window=window),
            "leaky_rerope": LeakyReRope(head_dim=16, window=window),
            "self_extend": SelfExtend(head_dim=16, window=window, group=3),
        }
        for name, one in others.items():
            own, wanted = (weights * (distance < window) for weights in (weights_at(one, ids), plain))
            apart = own / own.sum(-1, keepdim=True) - wanted / wanted.sum(-1, keepdim=True)
            numbers[f"{name}, window {window}"] = largest(apart)
    throughout = weights_at(LeakyReRope(head_dim=16, window=4, factor=1.0), ids)
    return all_within(numbers | {"leaky_rerope, factor 1": largest(throughout - plain)}, 1e-9)


@About("rerope", "leaky_rerope").holds_within(
    "extension.rerope-far",
    "Beyond the window w ReRoPE scores a key at distance d as if it were at distance w, leaky ReRoPE with factor k as "
    "if it were at w + (d - w) / k.",
    "超出窗口 w 后，ReRoPE 把距离 d 处的键当作在距离 w 处，因子为 k 的 leaky ReRoPE 当作在 w + (d - w)/k 处。",
    says="Su 2023, kexue.fm 9708",
    how="Attention weights of 64 tokens, heads of 16, w = 16 and k = 8, and w = 13 and k = 2.7, against the softmax of "
    "scores for which each query was turned, in complex numbers, by the distance that the statement gives it from each "
    "key.",
    how_zh="64 个词、16 维的头，w = 16、k = 8，以及 w = 13、k = 2.7：注意力权重，与另算的 softmax 比较，其中每个查询按"
    "命题所给的、到各个键的距离用复数旋转。",
)
def rerope_far() -> Finding:
    ids, numbers = torch.arange(64), {}
    true = (ids[:, None] - ids).double()
    for w, k in ((16, 8.0), (13, 2.7)):
        leaked = torch.where(true < w, true, w + (true - w) / k)
        for encoding, distance in (
            (ReRope(head_dim=16, window=w, layout="interleaved"), true.clamp(max=w)),
            (LeakyReRope(head_dim=16, window=w, factor=k, layout="interleaved"), leaked),
        ):
            queries, keys, *_ = tokens(encoding, ids)
            placed = turned(queries.unsqueeze(-2).expand(-1, -1, -1, 64, -1), distance[..., None] * ladder(16))
            scores = torch.einsum("bhijd,bhjd->hij", placed, keys) / 4
            wanted = scores.masked_fill(true < 0, -torch.inf).softmax(-1)
            numbers[f"{encoding.config.name}, w = {w}"] = largest(weights_at(encoding, ids) - wanted)
    return all_within(numbers, 1e-9)


@About("self_extend").holds(
    "extension.self-extend-far",
    "With window w and group G, Self-Extend takes a far distance d, from w on, for one that differs by less than 1 "
    "from w + (d - w) / G where G divides w, and by less than 2 elsewhere, so that far distances grow G times as "
    "slowly.",
    "窗口 w、分组 G 时，Self-Extend 把远距离 d（从 w 起）当作与 w + (d - w)/G 相近的距离：G 整除 w 时相差不到 1，否则"
    "不到 2，因此远距离的增长慢 G 倍。",
    says="Jin et al. 2024, Self-Extend, by its formula of grouped positions",
    how="Distances of the far branch, which has every pair of 400 positions from w on and no other, w and G = 16 and "
    "4, 21 and 7, 18 and 4, 15 and 4; none is below w.",
    how_zh="400 个位置中远分支的距离（恰含距离从 w 起的每一对），w 与 G 取 16 与 4、21 与 7、18 与 4、15 与 4；都不小"
    "于 w。",
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
        good &= torch.equal(far.allowed, true >= window)
    return decide(good, numbers, Both("a far distance is elsewhere", "某个远距离不在应有之处"))


@About("log_n").holds_within(
    "extension.log-n",
    "log-n leaves the first L queries, L the trained length, as they are and multiplies the n-th query, n > L, by "
    "ln n / ln L.",
    "log-n 不改动训练长度 L 以内的查询，把第 n 个查询（n > L）乘以 ln n / ln L。",
    says="Su 2021, kexue.fm 8823; the factor of 1 up to L by his ReRoPE code",
    how="Random queries over what they were, after transform_qk of LogN at positions 0, L - 1, L, 4,095 and 262,143, "
    "which are n = 1, L, L + 1, 4,096 and 262,144, for L = 512 and L = 100; keys stay as they are.",
    how_zh="L = 512 与 L = 100：随机查询在位置 0、L - 1、L、4095、262143（即 n = 1、L、L + 1、4096、262144）处经 "
    "LogN 的 transform_qk 之后与之前的比值；键保持不变。",
)
def log_n() -> Finding:
    off = []
    for trained in (512, 100):
        grown = [math.log(n) / math.log(trained) for n in (trained + 1, 4096, 262_144)]
        places = [0, trained - 1, trained, 4095, 262_143]
        off += _off(LogN(trained_length=trained), places, doubles([1.0, 1.0, *grown]))
    return close(off, 1e-6)


def _off(encoding: Encoding, positions: list[int], factors: Tensor) -> list[Tensor]:
    """How far queries at these positions, over what they were, are from the factors, and keys from what they were."""
    ids, (before, keys) = torch.tensor(positions), normal(2, 1, 1, len(positions), 8)
    q, k = encoding.transform_qk(before, keys, ids, ids)
    return [q / before - factors[:, None], k - keys]


@About("llama4_temperature").holds_within(
    "extension.llama4-temperature",
    "In its layers without rotation Llama 4 multiplies the query at position p by 1 + 0.1 ln(1 + floor((p + 1) / "
    "8192)): 1 up to 8,190, then 1.06931, 1.28332 and 1.48598 at 8,191, 131,071 and 1,048,575.",
    "Llama 4 在不旋转的层中把位置 p 处的查询乘以 1 + 0.1 ln(1 + ⌊(p + 1)/8192⌋)：到 8190 为止是 1，在 8191、131071、"
    "1048575 处为 1.06931、1.28332、1.48598。",
    says="transformers 5.22, Llama4TextAttention",
    how="Random queries over what they were, after transform_qk of Llama4Temperature() at positions 0, 8,190, 8,191, "
    "131,071 and 1,048,575 against five decimals, and at 64 random ones below ten million against the formula; keys "
    "stay as they are.",
    how_zh="随机查询经 Llama4Temperature() 的 transform_qk 之后与之前的比值：在位置 0、8190、8191、131071、1048575 处与"
    "五位小数比较，在一千万以内的 64 个随机位置处与公式比较；键保持不变。",
)
def llama4_temperature() -> Finding:
    known = doubles([1.0, 1.0, 1.06931, 1.28332, 1.48598])
    drawn = torch.randint(10_000_000, (64,), generator=generator()).tolist()
    formula = doubles([1 + 0.1 * math.log(1 + (p + 1) // 8192) for p in drawn])
    llama4 = Llama4Temperature()
    off = _off(llama4, [0, 8190, 8191, 131_071, 1_048_575], known) + _off(llama4, drawn, formula)
    return close(off, 5.1e-6)
