"""Claims about context extension: interpolation, NTK, YaRN, remapped positions, and what scales scores (N13-N16)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.claims import evidence
from whorl.claims.ledger import Finding, Verdict, claim, decide, needs_training, within
from whorl.claims.probes import largest, normal, weights_at
from whorl.encodings.base import Encoding
from whorl.encodings.position_remaps import LeakyReRope, ReRope, SelfExtend
from whorl.encodings.rope import Rope
from whorl.encodings.score_scaling import Llama4Temperature, LogN
from whorl.encodings.xpos import XPos
from whorl.errors import WhorlError
from whorl.rotary.frequencies import wavelengths
from whorl.rotary.scalings.base import Scaling, factor_for
from whorl.rotary.scalings.dynamic_ntk import DynamicNtk
from whorl.rotary.scalings.linear import Linear
from whorl.rotary.scalings.llama3 import Llama3
from whorl.rotary.scalings.longrope import LongRope
from whorl.rotary.scalings.ntk import Ntk
from whorl.rotary.scalings.ntk_by_parts import NtkByParts
from whorl.rotary.scalings.resonance import Resonance
from whorl.rotary.scalings.yarn import Yarn

CHEN = "Chen et al. 2023, PI"
PENG = "Peng et al. 2023, YaRN"
DIM, BASE = 128, 10_000.0


def scaled(scaling: Scaling | None, dim: int = DIM, length: int | None = None) -> Tensor:
    """The frequencies with a scaling."""
    return Rope(head_dim=dim, scaling=scaling).frequencies(length)


def plain(dim: int = DIM, base: float = BASE) -> Tensor:
    """base^(-2i/d), from the definition."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


@claim(
    "extension.factor-one",
    (
        "With a factor of 1 every scheme is plain RoPE: PI, NTK, NTK-by-parts, Llama 3, YaRN, and dynamic NTK in its "
        "length."
    ),
    "因子为 1 时各方案都退化为普通 RoPE：PI、NTK、NTK-by-parts、Llama 3、YaRN，以及原长度以内的动态 NTK。",
    says="N13-N15",
    how=(
        "Frequencies and factors of eight schemes with factor 1 against base^(-2i/d), at the original and a longer "
        "length."
    ),
    expected="holds within",
    about=("rope",),
    rows=("N13", "N14", "N15"),
)
def factor_one() -> Finding:
    schemes = (
        Linear(factor=1.0),
        Ntk(factor=1.0),
        Ntk(factor=1.0, variant="fixed"),
        Ntk(factor=1.0, variant="mixed", exponent=0.625),
        NtkByParts(factor=1.0, original_length=4096),
        NtkByParts(factor=1.0, original_length=4096, variant="v1"),
        Llama3(factor=1.0, original_length=4096),
        Yarn(factor=1.0, original_length=4096),
    )
    numbers = {}
    for scheme in schemes:
        variant = getattr(scheme, "variant", "")
        off = largest(scaled(scheme, length=8192) / plain() - 1) + abs(scheme.factors(8192).attention - 1)
        numbers[f"{scheme.name} {variant}".strip()] = off
    numbers["dynamic_ntk within its length"] = largest(
        scaled(DynamicNtk(factor=1.0, original_length=4096), length=4096) / plain() - 1
    )
    return within(max(numbers.values()), 1e-12, numbers)


@claim(
    "extension.pi-divides",
    "Linear interpolation by s is the same as dividing every position by s.",
    "按 s 做线性插值等价于把每个位置除以 s。",
    says=f"{CHEN}; N13",
    how="Rotations at positions 0 … 4,000 with Linear(4) against plain RoPE at a quarter of them.",
    expected="holds within",
    about=("rope",),
    rows=("N13",),
)
def pi_divides() -> Finding:
    x, ids = normal(9, DIM), torch.arange(9) * 500
    squeezed = Rope(head_dim=DIM, scaling=Linear(factor=4.0)).rotate(x, ids)
    worst = largest(squeezed - Rope(head_dim=DIM).rotate(x, ids.double() / 4))
    return within(worst, 1e-9, {"largest difference": worst})


@claim(
    "extension.ntk-ends",
    "NTK-aware scaling leaves the fastest pair alone and divides the slowest by exactly s.",
    "NTK-aware 缩放不改变最快的一对，并把最慢的一对恰好除以 s。",
    says="bloc97 2023; N14",
    how="Frequencies of Ntk(8) over plain ones, first and last pair, and whether the ratio falls between.",
    expected="holds within",
    about=("rope",),
    rows=("N14",),
)
def ntk_ends() -> Finding:
    ratio = scaled(Ntk(factor=8.0)) / plain()
    numbers = {
        "first pair": float(ratio[0]),
        "last pair": float(ratio[-1]),
        "largest step up": float(ratio.diff().max()),
    }
    worst = max(abs(numbers["first pair"] - 1), abs(numbers["last pair"] * 8 - 1), max(numbers["largest step up"], 0.0))
    return within(worst, 1e-12, numbers)


@claim(
    "extension.dynamic-within",
    "Dynamic NTK changes nothing up to the original length; at s times it the slowest w is divided by s^2 - s + 1.",
    "动态 NTK 在原长度以内不作改动；长度为原来的 s 倍时，最慢一对的频率除以 s² - s + 1。",
    says="emozilla 2023, in transformers' form; N14",
    how="Frequencies at 1, 4,096 and 16,384 for DynamicNtk(factor=4, original_length=4,096).",
    expected="holds within",
    about=("rope",),
    rows=("N14",),
)
def dynamic_within() -> Finding:
    dynamic = DynamicNtk(factor=4.0, original_length=4096)
    numbers = {
        "at 1": largest(scaled(dynamic, length=1) / plain() - 1),
        "at 4,096": largest(scaled(dynamic, length=4096) / plain() - 1),
        "slowest pair at 16,384 is divided by": float((plain() / scaled(dynamic, length=16_384))[-1]),
    }
    worst = max(numbers["at 1"], numbers["at 4,096"], abs(numbers["slowest pair at 16,384 is divided by"] / 13 - 1))
    return within(worst, 1e-9, numbers)


@claim(
    "extension.yarn-ramp",
    "YaRN keeps pairs 0-20 and divides pairs 46-63 by s (128 dimensions, base 10,000, trained on 4,096).",
    "YaRN 保留第 0-20 对，把第 46-63 对除以 s（128 维，底数 10000，训练长度 4096）。",
    says=f"{PENG}, the authors' code; N15",
    how="Frequencies of Yarn(16) over plain ones: where the ratio leaves 1, and where it reaches 1/16.",
    expected="holds",
    about=("rope",),
    rows=("N15",),
)
def yarn_ramp() -> Finding:
    ratio = scaled(Yarn(factor=16.0, original_length=4096)) / plain()
    kept = int((ratio > 1 - 1e-9).sum())
    divided = int((ratio < 1 / 16 + 1e-9).sum())
    # the pair of r turns is d ln(L / 2 pi r) / (2 ln base): 20.95 for 32 turns and 45.03 for one
    edges = [DIM * math.log(4096 / (2 * math.pi * turns)) / (2 * math.log(BASE)) for turns in (32, 1)]
    numbers = {
        "pairs kept": float(kept),
        "pairs divided": float(divided),
        "32 turns at pair": edges[0],
        "1 turn at pair": edges[1],
        "half-way pair 33": float(ratio[33]),
    }
    half = abs(numbers["half-way pair 33"] - (1 / 16 + 15 / 16 * 0.5)) < 1e-9
    straight = bool((ratio[20:47].diff().diff().abs() < 1e-9).all())
    return decide(
        (kept, divided) == (21, 18) and half and straight, numbers, f"{kept} pairs are kept and {divided} divided"
    )


@claim(
    "extension.yarn-short",
    "YaRN with its default betas leaves the fast pairs alone, whatever length the model was trained on.",
    "无论训练长度多少，YaRN 用默认 beta 都会保留快的那些维度。",
    says=f"{PENG}, as its defaults are used",
    how="Pairs that Yarn(4) and NtkByParts(4) leave within 1 % at trained lengths 64 and 4,096, heads of 64.",
    expected="fails",
    about=("rope",),
    rows=("N15",),
)
def yarn_short() -> Finding:
    numbers = {}
    for length in (64, 4096):
        for scheme in (Yarn(factor=4.0, original_length=length), NtkByParts(factor=4.0, original_length=length)):
            kept = int((scaled(scheme, 64) / plain(64) > 0.99).sum())
            numbers[f"{scheme.name}, trained on {length:,}"] = float(kept)
        numbers[f"turns of the fastest pair in {length:,}"] = length / (2 * math.pi)
    text = (
        "trained on 64 positions no pair makes 32 turns (the fastest makes 10): YaRN keeps "
        f"{numbers['yarn, trained on 64']:.0f} "
        f"of 32 pairs and NTK-by-parts {numbers['ntk_by_parts, trained on 64']:.0f}, the rest is interpolated"
    )
    return decide(numbers["yarn, trained on 64"] >= 8, numbers, text)


@claim(
    "extension.yarn-temperature",
    "YaRN multiplies cos and sin by 0.1 ln s + 1, and so every score by its square.",
    "YaRN 把 cos 和 sin 乘以 0.1 ln s + 1，从而分数乘以它的平方。",
    says=f"{PENG}, section 3.4; N15",
    how="Scores of random q, k with Yarn(16) over those of the same frequencies without a factor.",
    expected="holds within",
    about=("rope",),
    rows=("N15",),
)
def yarn_temperature() -> Finding:
    yarn = Rope(head_dim=DIM, scaling=Yarn(factor=16.0, original_length=4096))
    bare = Rope(head_dim=DIM, frequencies=tuple(yarn.frequencies().tolist()))
    q, k, ids = normal(9, DIM), normal(9, DIM, seed=1), torch.arange(9) * 777
    ratio = (yarn.rotate(q, ids) @ yarn.rotate(k, ids).mT) / (bare.rotate(q, ids) @ bare.rotate(k, ids).mT)
    wanted = (0.1 * math.log(16) + 1) ** 2
    worst = largest(ratio / wanted - 1)
    return within(
        worst, 1e-9, {"scores are multiplied by": float(ratio.mean()), "(0.1 ln 16 + 1)^2": wanted, "off by": worst}
    )


@claim(
    "extension.longrope-factor",
    "LongRoPE switches its factors past the original length and multiplies cos and sin by sqrt(1 + ln s / ln L).",
    "LongRoPE 超过原长度后切换因子，并把 cos、sin 乘以 √(1 + ln s / ln L)。",
    says="Ding et al. 2024; N14",
    how="Frequencies at 4,096 and 4,097, and the attention factor at s = 32.",
    expected="holds within",
    about=("rope",),
    rows=("N14",),
)
def longrope_factor() -> Finding:
    short, long = (1.0,) * 32, tuple(1.0 + i for i in range(32))
    scheme = LongRope(short_factor=short, long_factor=long, original_length=4096, factor=32.0)
    numbers = {
        "at 4,096": largest(scaled(scheme, 64, 4096) / plain(64) - 1),
        "at 4,097": largest(scaled(scheme, 64, 4097) * torch.tensor(long, dtype=torch.float64) / plain(64) - 1),
        "attention factor": Rope(head_dim=64, scaling=scheme).attention_factor(8192),
    }
    wanted = math.sqrt(1 + math.log(32) / math.log(4096))
    return within(
        max(numbers["at 4,096"], numbers["at 4,097"], abs(numbers["attention factor"] - wanted)), 1e-12, numbers
    )


@claim(
    "extension.llama3-bands",
    "Llama 3 keeps wavelengths below L/4, divides those above L by s, and blends between.",
    "Llama 3 保留波长小于 L/4 的维度，把波长大于 L 的除以 s，中间平滑过渡。",
    says="Dubey et al. 2024",
    how="Frequencies with Llama3(8, original_length=8,192) at base 500,000 over plain ones, by wavelength.",
    expected="holds",
    about=("rope",),
    rows=("N14",),
)
def llama3_bands() -> Finding:
    base = 500_000.0
    rope = Rope(head_dim=DIM, base=base, scaling=Llama3(factor=8.0, original_length=8192))
    ratio, length = rope.frequencies() / plain(DIM, base), 2 * math.pi / plain(DIM, base)
    fast, slow = length < 2048, length > 8192
    between = ratio[~fast & ~slow]
    turns = 8192 / length[~fast & ~slow]
    wanted = 1 / 8 + 7 / 8 * (turns - 1) / 3
    numbers = {
        "kept": largest(ratio[fast] - 1),
        "divided": largest(ratio[slow] * 8 - 1),
        "blended": largest(between / wanted - 1),
        "pairs between": float(len(between)),
    }
    good = max(numbers["kept"], numbers["divided"], numbers["blended"]) < 1e-9 and len(between) > 3
    return decide(good, numbers, "a pair is scaled otherwise")


@claim(
    "extension.resonance",
    "Resonance gives every pair a whole wavelength, so that it repeats itself exactly.",
    "Resonance 使每一对的波长为整数，从而严格周期重复。",
    says="Wang et al. 2024",
    how="Wavelengths of 64 dimensions, and tables one wavelength on.",
    expected="holds within",
    about=("rope",),
    rows=("N14", "N29"),
)
def resonance() -> Finding:
    rope = Rope(head_dim=64, scaling=Resonance())
    length = wavelengths(rope.frequencies())
    worst = largest(length - length.round())
    wave = largest(length.round() / (2 * math.pi / plain(64)) - 1)  # not far from what they were
    for i in (0, 5, 31):
        here = torch.tensor([3, 3 + int(length[i].round())])
        tables = torch.stack(rope.tables(here, dtype=torch.float64))[..., i]
        worst = max(worst, largest(tables[:, 0] - tables[:, 1]))
    return within(
        worst if wave < 0.1 else math.inf, 1e-9, {"largest difference": worst, "largest change of a wavelength": wave}
    )


@claim(
    "extension.factor-from-data",
    (
        "With a window of 4,096 filled to 3,072, serving 8,192 needs a factor of 8/3 for no position to leave what "
        "was seen."
    ),
    "窗口 4096 而数据只到 3072 时，要服务 8192，因子须为 8/3 才能让所有位置都落在见过的范围内。",
    says='the notes\' "reverse extrapolation"; N16',
    how="factor_for, and the largest position it leaves after interpolation.",
    expected="holds",
    about=("rope",),
    rows=("N16",),
)
def factor_from_data() -> Finding:
    factor = factor_for(8192, trained_length=3072)
    numbers = {"factor": factor, "last position becomes": 8191 / factor, "with a factor of 2": 8191 / 2}
    good = abs(factor - 8 / 3) < 1e-12 and 8191 / factor < 3072 <= 8191 / 2
    return decide(good, numbers, "positions leave what was seen")


@claim(
    "extension.factor-from-data-helps",
    "Such a factor serves better than one taken from the window.",
    "这样取的因子比按窗口取的效果更好。",
    says="the notes, who call it unproven; N16",
    how="Two factors for one model whose texts end at three quarters of its window, in the lab.",
    expected="holds",
    about=("rope",),
    rows=("N16",),
    trained=True,
)
def factor_from_data_helps() -> Finding:
    return needs_training(
        "whorl lab sweep FILE.toml: train on 3,072 of a window of 4,096, then Linear 8/3 against Linear 2 at 8,192"
    )


@claim(
    "extension.pi-untrained",
    "Interpolation (PI) repairs a RoPE model past its trained length without any training.",
    "无需训练，线性插值（PI）就能修复 RoPE 模型在训练长度之外的表现。",
    says="how PI is often read; the paper fine-tunes",
    how="Bits per byte at 4 times the trained length with PI against nothing, from the lab.",
    expected="fails",
    about=("rope",),
    rows=("N13",),
    trained=True,
)
def pi_untrained() -> Finding:
    return _repair("pi")


@claim(
    "extension.ntk-untrained",
    "NTK-aware scaling repairs part of it without any training.",
    "无需训练，NTK-aware 缩放就能部分修复。",
    says="bloc97 2023; N14",
    how="The same with NTK.",
    expected="holds",
    about=("rope",),
    rows=("N14",),
    trained=True,
)
def ntk_untrained() -> Finding:
    return _repair("ntk")


def _repair(variant: str) -> Finding:
    """Whether a repair of a trained RoPE is better than nothing at 4 times its length, in every lab result."""
    bare = {one.source: one.by_ratio.get(4.0) for one in evidence.losses("rope")}
    gains = {}
    for one in evidence.losses("rope", variant):
        before, after = bare.get(one.source), one.by_ratio.get(4.0)
        if before is not None and after is not None:
            gains[one.source] = before - after
    if not gains:
        return needs_training("whorl compare rope --preset laptop --seeds 3")
    source = min(gains, key=gains.__getitem__)
    numbers = {"loss taken off at 4x, bits per byte": gains[source]}
    held = gains[source] > 0
    text = f"at 4 times the trained length it is {-gains[source]:.2f} bits per byte worse than nothing"
    return Finding(
        verdict=Verdict("holds" if held else "fails"),
        numbers=numbers,
        counterexample="" if held else text,
        source=source,
    )


# -- remapped positions, scaled queries, xPos -------------------------------------------------------------------------


@claim(
    "extension.rerope-near",
    (
        "ReRoPE, leaky ReRoPE and Self-Extend are RoPE within their window; leaky ReRoPE with a factor of 1 is RoPE "
        "throughout."
    ),
    "ReRoPE、leaky ReRoPE 与 Self-Extend 在窗口内就是 RoPE；因子为 1 的 leaky ReRoPE 处处等于 RoPE。",
    says="Su 2023, kexue.fm 9708; Jin et al. 2024",
    how="Attention weights of 24 tokens against RoPE's, with windows of 24 and more, and a window of 4 at factor 1.",
    expected="holds within",
    about=("rerope", "leaky_rerope", "self_extend"),
    rows=("N14",),
)
def rerope_near() -> Finding:
    ids, rope = torch.arange(24), Rope(head_dim=16)
    others: dict[str, Encoding] = {
        "rerope": ReRope(head_dim=16, window=24),
        "leaky_rerope": LeakyReRope(head_dim=16, window=24),
        "self_extend": SelfExtend(head_dim=16, window=24, group=3),
        "leaky_rerope, factor 1": LeakyReRope(head_dim=16, window=4, factor=1.0),
    }
    numbers = {name: largest(weights_at(one, ids) - weights_at(rope, ids)) for name, one in others.items()}
    return within(max(numbers.values()), 1e-9, numbers)


@claim(
    "extension.rerope-far",
    "Beyond the window w ReRoPE scores every key as if it stood at w, leaky ReRoPE at w + (d - w) / k.",
    "超出窗口 w 后，ReRoPE 把每个键都当作在距离 w 处，leaky ReRoPE 当作在 w + (d - w)/k 处。",
    says="Su 2023, kexue.fm 9708",
    how="Distances of the far branch for every pair of 64 positions, and where the near branch ends.",
    expected="holds within",
    about=("rerope", "leaky_rerope"),
    rows=("N14",),
)
def rerope_far() -> Finding:
    ids, window = torch.arange(64), 16
    true = (ids[:, None] - ids).double()
    wanted = {
        "rerope": true.clamp(max=window),
        "leaky_rerope": torch.where(true < window, true, window + (true - window) / 8),
    }
    made = {
        "rerope": ReRope(head_dim=16, window=window),
        "leaky_rerope": LeakyReRope(head_dim=16, window=window, factor=8.0),
    }
    numbers = {}
    for name, encoding in made.items():
        got = torch.full_like(true, math.nan)
        for branch in encoding.branches(ids, ids):
            distance = branch.q_positions.double()[:, None] - branch.k_positions.double()
            got = torch.where(branch.allowed, distance, got)
        numbers[name] = largest((got - wanted[name]).tril().nan_to_num(nan=1e9))
    return within(max(numbers.values()), 1e-9, numbers)


@claim(
    "extension.self-extend-far",
    "Self-Extend's far distances never pass (d - w) / G + w + 1, so trained distances reach G times as far.",
    "Self-Extend 的远距离不超过 (d - w)/G + w + 1，因此训练过的距离可覆盖约 G 倍长度。",
    says="Jin et al. 2024",
    how="Distances of the far branch for every pair of 400 positions, w = 16, G = 4.",
    expected="holds",
    about=("self_extend",),
    rows=("N14",),
)
def self_extend_far() -> Finding:
    ids, window, group = torch.arange(400), 16, 4
    _, far = SelfExtend(head_dim=16, window=window, group=group).branches(ids, ids)
    distance, true = (far.q_positions[:, None] - far.k_positions).double(), (ids[:, None] - ids).double()
    over = (distance - ((true - window) / group + window))[far.allowed]
    numbers = {
        "largest distance": float(distance[far.allowed].max()),
        "over the line": float(over.max()),
        "under it": float(-over.min()),
    }
    good = numbers["over the line"] < 1 and numbers["under it"] < 1 and float(distance[far.allowed].min()) >= window - 1
    return decide(good, numbers, "a far distance is elsewhere")


@claim(
    "extension.log-n",
    "log-n leaves queries alone up to the trained length L and multiplies them by ln n / ln L after it.",
    "log-n 在训练长度 L 以内不改动查询，之后乘以 ln n / ln L。",
    says="Su, kexue.fm 8823",
    how="Factors at 0, 511, 512, 4,095 and 262,143 for L = 512, and Llama 4's at 8,190, 8,191, 131,071 and 1,048,575.",
    expected="holds within",
    about=("log_n", "llama4_temperature"),
    rows=("N14",),
)
def log_n() -> Finding:
    ids = torch.tensor([0, 511, 512, 4095, 262_143])
    wanted = [1.0, 1.0, math.log(513) / math.log(512), math.log(4096) / math.log(512), 2.0]
    llama = torch.tensor([8190, 8191, 131_071, 1_048_575])
    known = [1.0, 1.06931, 1.28332, 1.48598]
    numbers = {
        "log-n": largest(LogN(trained_length=512).query_factor(ids)[0] - torch.tensor(wanted, dtype=torch.float64)),
        "Llama 4": largest(Llama4Temperature().query_factor(llama)[0] - torch.tensor(known, dtype=torch.float64)),
    }
    return within(max(numbers.values()), 5.1e-6, numbers)


@claim(
    "xpos.factor",
    "A pair's part of an xPos score fades by zeta_i^(distance / 512), zeta_i = (2i/d + 0.4) / 1.4.",
    "xPos 中第 i 对的分数按 ζ_i^(距离/512) 衰减，ζ_i = (2i/d + 0.4)/1.4。",
    says="Sun et al. 2022",
    how="Length of the complex score of one pair at distances 0 … 2,000 against the formula, all 32 pairs.",
    expected="holds within",
    about=("xpos",),
    rows=("N7", "N27"),
)
def xpos_factor() -> Finding:
    xpos, worst = XPos(head_dim=64, layout="interleaved"), 0.0
    zeta = (torch.arange(32, dtype=torch.float64) / 32 + 0.4) / 1.4
    one, turned = (torch.tensor(x, dtype=torch.float64).repeat(32)[None, None, None] for x in ([1.0, 0.0], [0.0, 1.0]))
    for distance in (0, 1, 512, 2000):
        there = torch.tensor([7000])
        parts = [
            (a * b)[0, 0, 0].view(32, 2).sum(-1)
            for key in (one, turned)
            for a, b in [xpos.transform_qk(one, key, there + distance, there)]
        ]
        size = torch.hypot(*parts)
        worst = max(worst, largest(size / zeta ** (distance / 512) - 1))
    return within(worst, 1e-9, {"largest relative difference": worst})


@claim(
    "xpos.centre",
    "xPos scores do not depend on which queries are computed together: queries and keys share one centre.",
    "xPos 的分数与哪些查询一起计算无关：查询与键共用一个中心。",
    says="rotary-embedding-torch#27 is the bug",
    how="Scores of 40 queries at once against one at a time and in two halves, each with all keys before it.",
    expected="holds within",
    about=("xpos",),
    rows=("N7", "N19"),
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
    numbers = {"one at a time": largest(single - whole), "two halves": largest(halves - whole)}
    return within(max(numbers.values()), 1e-9, numbers)


@claim(
    "xpos.overflow",
    (
        "Centred on the queries, xPos takes 32,862 of them in float32 and 1,134 in float16 without overflow, and "
        "refuses more."
    ),
    "以查询为中心时，xPos 在 float32 下可容纳 32862 个查询、float16 下 1134 个而不溢出，超出则拒绝。",
    says="whorl",
    how=(
        "The fastest pair of the first and last query at the limit, and one query more; and where an uncentred one "
        "ends."
    ),
    expected="holds",
    about=("xpos",),
    rows=("N7", "N29"),
)
def xpos_overflow() -> Finding:
    xpos, numbers, good = XPos(head_dim=64), {}, 0
    rate = -math.log(0.4 / 1.4) / 512
    for dtype, known in ((torch.float32, 32_862), (torch.float16, 1_134)):
        word = str(dtype).removeprefix("torch.")
        limit = xpos.query_limit(dtype)
        ends = torch.tensor([0, limit - 1])
        x = torch.ones(1, 1, 2, 64, dtype=dtype)
        a, b = xpos.transform_qk(x, x, ends, ends)
        finite = bool(a.isfinite().all() and b.isfinite().all())
        try:
            xpos.transform_qk(x, x, torch.tensor([0, limit]), ends)
            refused = False
        except WhorlError:
            refused = True
        good += limit == known and finite and refused
        numbers |= {
            f"queries, {word}": float(limit),
            f"uncentred ends at, {word}": math.log(torch.finfo(dtype).max) / rate,
        }
    return decide(good == 2, numbers, "a limit is elsewhere, or a number within it overflows")


@claim(
    "xpos.bidirectional",
    "xPos fades in both directions, so an encoder can use it.",
    "xPos 向两个方向都衰减，因此可用于编码器。",
    says="rotary-embedding-torch#3 asks",
    how="What is left of the fastest pair's score for keys 512 before and 512 after one of two queries.",
    expected="fails",
    about=("xpos",),
    rows=("N7", "N27"),
)
def xpos_bidirectional() -> Finding:
    xpos = XPos(head_dim=16, layout="interleaved")
    ids, keys = torch.tensor([1000, 3000]), torch.tensor([488, 1000, 1512])  # the last key comes before one query
    one, turned = (torch.tensor(x, dtype=torch.float64).repeat(8).view(1, 1, 1, 16) for x in ([1.0, 0.0], [0.0, 1.0]))
    parts = []
    for key in (one, turned):
        a, b = xpos.transform_qk(one.expand(1, 1, 2, 16), key.expand(1, 1, 3, 16), ids, keys)
        parts.append(b[0, 0, :, :2] @ a[0, 0, 0, :2])
    before, at, after = torch.hypot(*parts).tolist()
    numbers = {
        "key 512 before": before / at,
        "key 512 after": after / at,
        "whorl refuses encoders": float(xpos.causal_only),
    }
    text = f"a key 512 after the query grows by {after / at:.2f} in the fastest pair, and without bound beyond"
    return decide(numbers["key 512 after"] < 1, numbers, text)
