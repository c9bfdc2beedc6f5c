"""Claims about remapped positions and scaled queries: ReRoPE, Self-Extend, log-n, Llama 4."""

from __future__ import annotations

import math

import torch

from whorl.claims.ledger import About, Both, Finding, all_within, decide
from whorl.claims.probes import doubles, largest, weights_at
from whorl.encodings.base import Encoding
from whorl.encodings.position_remaps import LeakyReRope, ReRope, SelfExtend
from whorl.encodings.rope import Rope
from whorl.encodings.score_scaling import Llama4Temperature, LogN


@About("rerope", "leaky_rerope", "self_extend").holds_within(
    "extension.rerope-near",
    (
        "ReRoPE, leaky ReRoPE and Self-Extend are RoPE within their window; leaky ReRoPE with a factor of 1 is RoPE "
        "throughout."
    ),
    "ReRoPE、leaky ReRoPE 与 Self-Extend 在窗口内就是 RoPE；因子为 1 的 leaky ReRoPE 处处等于 RoPE。",
    says="Su 2023, kexue.fm 9708; Jin et al. 2024, Self-Extend",
    how="Attention weights of 24 tokens against RoPE's, with windows of 24 and more, and a window of 4 at factor 1.",
    how_zh="24 个词的注意力权重与 RoPE 比较：窗口不小于 24，以及窗口 4、因子 1。",
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
    "Beyond the window w ReRoPE scores every key as if it stood at w, leaky ReRoPE at w + (d - w) / k.",
    "超出窗口 w 后，ReRoPE 把每个键都当作在距离 w 处，leaky ReRoPE 当作在 w + (d - w)/k 处。",
    says="Su 2023, kexue.fm 9708",
    how="Distances of the far branch for every pair of 64 positions, and where the near branch ends.",
    how_zh="64 个位置每一对的远分支距离，以及近分支在何处结束。",
)
def rerope_far() -> Finding:
    ids, window = torch.arange(64), 16
    true = (ids[:, None] - ids).double()
    leaked = torch.where(true < window, true, window + (true - window) / 8)
    numbers = {}
    for encoding, wanted in (
        (ReRope(head_dim=16, window=window), true.clamp(max=window)),
        (LeakyReRope(head_dim=16, window=window, factor=8.0), leaked),
    ):
        got = torch.full_like(true, math.nan)
        for branch in encoding.branches(ids, ids):
            distance = branch.q_positions.double()[:, None] - branch.k_positions.double()
            got = torch.where(branch.allowed, distance, got)
        numbers[encoding.config.name] = largest((got - wanted).tril().nan_to_num(nan=1e9))
    return all_within(numbers, 1e-9)


@About("self_extend").holds(
    "extension.self-extend-far",
    "Self-Extend's far distances never pass (d - w) / G + w + 1, so trained distances reach G times as far.",
    "Self-Extend 的远距离不超过 (d - w)/G + w + 1，因此训练过的距离可覆盖约 G 倍长度。",
    says="Jin et al. 2024, Self-Extend",
    how="Distances of the far branch for every pair of 400 positions, w = 16, G = 4.",
    how_zh="w = 16、G = 4，400 个位置每一对的远分支距离。",
)
def self_extend_far() -> Finding:
    ids, window, group = torch.arange(400), 16, 4
    _, far = SelfExtend(head_dim=16, window=window, group=group).branches(ids, ids)
    distance, true = (far.q_positions[:, None] - far.k_positions).double(), (ids[:, None] - ids).double()
    over = (distance - ((true - window) / group + window))[far.allowed]
    seen = distance[far.allowed]
    numbers = {"largest distance": seen.max(), "over the line": over.max(), "under it": -over.min()}
    but = Both("a far distance is elsewhere", "某个远距离不在应有之处")
    return decide(largest(over) < 1 and seen.min() >= window - 1, numbers, but)


@About("log_n", "llama4_temperature").holds_within(
    "extension.log-n",
    "log-n leaves queries alone up to the trained length L and multiplies them by ln n / ln L after it.",
    "log-n 在训练长度 L 以内不改动查询，之后乘以 ln n / ln L。",
    says="Su 2021, kexue.fm 8823",
    how="Factors at 0, 511, 512, 4,095 and 262,143 for L = 512, and Llama 4's at 8,190, 8,191, 131,071 and 1,048,575.",
    how_zh="L = 512 时 0、511、512、4095、262143 处的因子，以及 Llama 4 在 8190、8191、131071、1048575 处的因子。",
)
def log_n() -> Finding:
    wanted = doubles([1.0, 1.0, math.log(513) / math.log(512), math.log(4096) / math.log(512), 2.0])
    own = LogN(trained_length=512).query_factor(torch.tensor([0, 511, 512, 4095, 262_143]))[0]
    known = doubles([1.0, 1.06931, 1.28332, 1.48598])
    llama = Llama4Temperature().query_factor(torch.tensor([8190, 8191, 131_071, 1_048_575]))[0]
    return all_within({"log-n": largest(own - wanted), "Llama 4": largest(llama - known)}, 5.1e-6)
