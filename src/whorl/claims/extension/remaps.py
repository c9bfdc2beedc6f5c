"""Claims about remapped positions and scaled queries: ReRoPE, Self-Extend, log-n, Llama 4."""

from __future__ import annotations

import math

import torch

from whorl.claims.ledger import About, Finding, all_within, decide
from whorl.claims.probes import doubles, largest, weights_at
from whorl.encodings.base import Encoding
from whorl.encodings.position_remaps import LeakyReRope, ReRope, SelfExtend
from whorl.encodings.rope import Rope
from whorl.encodings.score_scaling import Llama4Temperature, LogN


@About("rerope", "leaky_rerope", "self_extend", rows=("N14",)).holds_within(
    "extension.rerope-near",
    (
        "ReRoPE, leaky ReRoPE and Self-Extend are RoPE within their window; leaky ReRoPE with a factor of 1 is RoPE "
        "throughout."
    ),
    "ReRoPE、leaky ReRoPE 与 Self-Extend 在窗口内就是 RoPE；因子为 1 的 leaky ReRoPE 处处等于 RoPE。",
    says="Su 2023, kexue.fm 9708; Jin et al. 2024",
    how="Attention weights of 24 tokens against RoPE's, with windows of 24 and more, and a window of 4 at factor 1.",
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


@About("rerope", "leaky_rerope", rows=("N14",)).holds_within(
    "extension.rerope-far",
    "Beyond the window w ReRoPE scores every key as if it stood at w, leaky ReRoPE at w + (d - w) / k.",
    "超出窗口 w 后，ReRoPE 把每个键都当作在距离 w 处，leaky ReRoPE 当作在 w + (d - w)/k 处。",
    says="Su 2023, kexue.fm 9708",
    how="Distances of the far branch for every pair of 64 positions, and where the near branch ends.",
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


@About("self_extend", rows=("N14",)).holds(
    "extension.self-extend-far",
    "Self-Extend's far distances never pass (d - w) / G + w + 1, so trained distances reach G times as far.",
    "Self-Extend 的远距离不超过 (d - w)/G + w + 1，因此训练过的距离可覆盖约 G 倍长度。",
    says="Jin et al. 2024",
    how="Distances of the far branch for every pair of 400 positions, w = 16, G = 4.",
)
def self_extend_far() -> Finding:
    ids, window, group = torch.arange(400), 16, 4
    _, far = SelfExtend(head_dim=16, window=window, group=group).branches(ids, ids)
    distance, true = (far.q_positions[:, None] - far.k_positions).double(), (ids[:, None] - ids).double()
    over = (distance - ((true - window) / group + window))[far.allowed]
    seen = distance[far.allowed]
    numbers = {"largest distance": seen.max(), "over the line": over.max(), "under it": -over.min()}
    return decide(largest(over) < 1 and seen.min() >= window - 1, numbers, "a far distance is elsewhere")


@About("log_n", "llama4_temperature", rows=("N14",)).holds_within(
    "extension.log-n",
    "log-n leaves queries alone up to the trained length L and multiplies them by ln n / ln L after it.",
    "log-n 在训练长度 L 以内不改动查询，之后乘以 ln n / ln L。",
    says="Su, kexue.fm 8823",
    how="Factors at 0, 511, 512, 4,095 and 262,143 for L = 512, and Llama 4's at 8,190, 8,191, 131,071 and 1,048,575.",
)
def log_n() -> Finding:
    wanted = doubles([1.0, 1.0, math.log(513) / math.log(512), math.log(4096) / math.log(512), 2.0])
    own = LogN(trained_length=512).query_factor(torch.tensor([0, 511, 512, 4095, 262_143]))[0]
    known = doubles([1.0, 1.06931, 1.28332, 1.48598])
    llama = Llama4Temperature().query_factor(torch.tensor([8190, 8191, 131_071, 1_048_575]))[0]
    return all_within({"log-n": largest(own - wanted), "Llama 4": largest(llama - known)}, 5.1e-6)
