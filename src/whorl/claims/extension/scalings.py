"""Claims about scaled frequencies: interpolation, NTK, YaRN, LongRoPE, Llama 3, Resonance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import DynamicNtk, Linear, Llama3, LongRope, Ntk, NtkByParts, Resonance, Rope, Yarn, attention
from whorl.claims.ledger import NOTHING, About, Both, Finding, all_within, close, decide, within
from whorl.claims.probes import doubles, ladder, largest, normal
from whorl.rotary.frequencies import wavelengths
from whorl.rotary.scalings.base import Scaling

CHEN = "Chen et al. 2023, PI"
PENG = "Peng et al. 2023, YaRN"
DIM, BASE = 128, 10_000.0
HEADS = ((DIM, BASE), (64, 500_000.0))  # dimensions and base: what holds for one must hold for the other
about_rope = About("rope")


def scaled(scaling: Scaling | None, dim: int = DIM, length: int | None = None, base: float = BASE) -> Tensor:
    """The frequencies with a scaling."""
    return Rope(head_dim=dim, base=base, scaling=scaling).frequencies(length)


@About("rope").holds_within(
    "extension.factor-one",
    (
        "With a factor of 1 these schemes are plain RoPE: PI, NTK, NTK-by-parts, Llama 3, YaRN with its "
        "default temperature, and dynamic NTK up to its original length."
    ),
    "因子为 1 时下列方案都退化为普通 RoPE：PI、NTK、NTK-by-parts、Llama 3、默认温度的 YaRN，以及原长度以内的动态 NTK。",
    says="whorl 0.2, docs/rotary.md",
    how="Frequencies of eight schemes with factor 1 at a length of 8,192, trained on 4,096, against base^(-2i/d), "
    "128 dimensions at base 10,000 and 64 at 500,000, and their factors on cos and sin and on the softmax against 1; "
    "dynamic NTK's frequencies at 4,096.",
    how_zh="128 维、底数 10000 与 64 维、底数 500000，训练长度 4096：八种方案取因子 1、长度 8192 处的频率与 "
    "base^(-2i/d) 比较，乘在 cos、sin 上与 softmax 上的因子与 1 比较；动态 NTK 取长度 4096 处的频率。",
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
        name = f"{scheme.name} {getattr(scheme, 'variant', '')}".strip()
        factors = largest(doubles(scheme.factors(8192)) - 1)
        numbers[f"{name}, off by"] = _off(scheme, 8192) + factors
    dynamic = DynamicNtk(factor=1.0, original_length=4096)
    return all_within(numbers | {"dynamic_ntk within its length, off by": _off(dynamic, 4096)}, 1e-12)


def _off(scaling: Scaling, length: int) -> float:
    """The largest relative difference of the frequencies from those without a scaling."""
    return largest(scaled(scaling, dim, length, base) / ladder(dim, base) - 1 for dim, base in HEADS)


@About("rope").holds_within(
    "extension.pi-divides",
    "Linear interpolation by s is the same as dividing every position by s.",
    "按 s 做线性插值等价于把每个位置除以 s。",
    says=f"{CHEN}, equation 4",
    how="Nine vectors of 128 dimensions at base 10,000, and of 64 at 500,000, at positions 0, 499 … 3,992 turned with "
    "Linear(4) and Linear(2.5) against plain RoPE at these positions divided by 4 and 2.5, of which most are no whole "
    "numbers.",
    how_zh="九个 128 维（底数 10000）与 64 维（底数 500000）的向量：Linear(4) 与 Linear(2.5) 在位置 0、499 … 3992 处的"
    "旋转，与普通 RoPE 在这些位置除以 4 与 2.5 处（多数不是整数）比较。",
)
def pi_divides() -> Finding:
    ids, differences = torch.arange(9) * 499, []
    for dim, base in HEADS:
        x, plain = normal(9, dim), Rope(head_dim=dim, base=base)
        for factor in (4.0, 2.5):
            squeezed = Rope(head_dim=dim, base=base, scaling=Linear(factor=factor))
            differences.append(squeezed.rotate(x, ids) - plain.rotate(x, ids.double() / factor))
    return close(differences, 1e-9)


@about_rope.holds_within(
    "extension.ntk-ends",
    "NTK-aware scaling by s > 1 leaves the fastest pair alone, divides the slowest by exactly s, and slows each pair "
    "between more than the one before.",
    "按 s > 1 做 NTK-aware 缩放不改变最快的一对，把最慢的一对恰好除以 s，其间每一对都比前一对放慢得更多。",
    says=f"{PENG}, appendix A.1, of the base of bloc97 2023, r/LocalLLaMA 14lz7j5",
    how="Frequencies of Ntk(8) of 128 dimensions at base 10,000 and of Ntk(3) of 64 at 500,000 over plain ones: the "
    "first pair, the last, and that the ratio falls from each pair to the next.",
    how_zh="128 维、底数 10000 的 Ntk(8) 与 64 维、底数 500000 的 Ntk(3)，频率除以原频率：第一对、最后一对，以及比值逐"
    "对下降。",
)
def ntk_ends() -> Finding:
    numbers, worst = {}, 0.0
    for factor, (dim, base) in zip((8.0, 3.0), HEADS, strict=True):
        ratio = scaled(Ntk(factor=factor), dim, base=base) / ladder(dim, base)
        first, last, step = float(ratio[0]), float(ratio[-1]), float(ratio.diff().max())
        names = ("first pair", "last pair", "least fall from pair to pair")
        numbers |= {f"{name}, Ntk({factor:g})": x for name, x in zip(names, (first, last, -step), strict=True)}
        worst = max(worst, abs(first - 1), abs(last * factor - 1)) if step < 0 else math.inf
    slower = Both("a pair is slowed no more", "某一对没有放慢得更多")
    return within(worst, 1e-12, numbers, slower if worst == math.inf else NOTHING)


@about_rope.holds_within(
    "extension.dynamic-within",
    "Dynamic NTK changes nothing up to the original length; at s > 1 times it, with factor a, the slowest w is divided "
    "by a s - a + 1, which is s^2 - s + 1 only where a = s.",
    "动态 NTK 在原长度以内不作改动；长度为原来的 s 倍（s > 1）、因子为 a 时，最慢一对的频率除以 a s - a + 1，仅当 a = "
    "s 时才是 s² - s + 1。",
    says="transformers 5.22, dynamic RoPE after emozilla 2023",
    how="Frequencies of 128 dimensions at base 10,000 and of 64 at 500,000, for factors of 4 and 2 and original "
    "lengths of 4,096 and 1,000: all at 1 and at the original length, and the slowest at 4, 2.5 and 1.001 times it.",
    how_zh="128 维、底数 10000 与 64 维、底数 500000，因子 4 与 2，原长度 4096 与 1000：在长度 1 与原长度处的全部频率，"
    "以及在原长度的 4 倍、2.5 倍、1.001 倍处最慢一对的频率。",
)
def dynamic_within() -> Finding:
    numbers, apart = {}, []
    for factor, trained in ((4.0, 4096), (2.0, 4096), (4.0, 1000), (2.0, 1000)):
        dynamic = DynamicNtk(factor=factor, original_length=trained)
        apart += [_off(dynamic, 1), _off(dynamic, trained)]
        for length in (round(s * trained) for s in (4, 2.5, 1.001)):
            wanted = factor * length / trained - factor + 1
            slower = [ladder(dim, base)[-1] / scaled(dynamic, dim, length, base)[-1] for dim, base in HEADS]
            apart += [float(x / wanted - 1) for x in slower]
            if length == 16_384:
                numbers[f"factor {factor:g}: slowest pair at 16,384 is divided by"] = slower[0]
    worst = largest(doubles(apart))
    return within(worst, 1e-9, numbers | {"largest difference": worst})


@About("rope").holds(
    "extension.yarn-ramp",
    "YaRN keeps the frequencies of pairs 0-20 and divides those of pairs 46-63 by s (128 dimensions, base 10,000, "
    "trained on 4,096).",
    "YaRN 保留第 0-20 对的频率，把第 46-63 对的频率除以 s（128 维，底数 10000，训练长度 4096）。",
    says=f"{PENG}, the authors' code",
    how="Frequencies of Yarn(16) and Yarn(2.5) over plain ones, pair by pair, to 1e-9: 1 up to pair 20, 1/s from pair "
    "46 on, and on a straight line between, half-way at pair 33.",
    how_zh="Yarn(16) 与 Yarn(2.5) 的频率除以原频率，逐对比较（容差 1e-9）：到第 20 对为止是 1，从第 46 对起是 1/s，其间"
    "直线下降，第 33 对处恰在 1 与 1/s 的正中。",
)
def yarn_ramp() -> Finding:
    # the pair of r turns is d ln(L / 2 pi r) / (2 ln base): 20.94 for 32 turns and 45.03 for one
    edges = [DIM * math.log(4096 / (2 * math.pi * turns)) / (2 * math.log(BASE)) for turns in (32, 1)]
    numbers, good = {"32 turns at pair": edges[0], "1 turn at pair": edges[1]}, True
    keep = 1 - ((torch.arange(DIM // 2, dtype=torch.float64) - 20) / 26).clamp(0, 1)
    for s in (16.0, 2.5):
        ratio = scaled(Yarn(factor=s, original_length=4096)) / ladder(DIM)
        off = largest(ratio - (1 / s + (1 - 1 / s) * keep))
        kept, divided = int((abs(ratio - 1) < 1e-9).sum()), int((abs(ratio - 1 / s) < 1e-9).sum())
        good = good and off < 1e-9 and (kept, divided) == (21, 18)
        numbers |= {f"pairs kept, s = {s:g}": kept, f"pairs divided, s = {s:g}": divided, f"off by, s = {s:g}": off}
    return decide(good, numbers, Both("a pair is scaled otherwise", "某一对的缩放不同"))


@About("rope").holds(
    "extension.yarn-short",
    "YaRN's betas are to be tuned to the model: trained on 64 positions, the default ones leave hardly a pair alone.",
    "YaRN 的 beta 需按模型调整：训练长度为 64 时，默认值几乎不保留任何一对。",
    says=f"{PENG}, section 3.2, which gives 1 and 32 for Llama and asks to tune them case by case",
    how="Pairs of 32, base 10,000, that Yarn(4) and NtkByParts(4) leave within 1 %: at most 2 each where trained on 64 "
    "positions, and at least 8 each where trained on 4,096.",
    how_zh="底数 10000，32 对中 Yarn(4) 与 NtkByParts(4) 改动不超过 1% 的有多少对：训练长度 64 时各不超过 2 对，4096 时"
    "各不少于 8 对。",
)
def yarn_short() -> Finding:
    numbers = {}
    for length in (64, 4096):
        for scheme in (Yarn(factor=4.0, original_length=length), NtkByParts(factor=4.0, original_length=length)):
            kept = int((abs(scaled(scheme, 64) / ladder(64) - 1) < 0.01).sum())
            numbers[f"{scheme.name}, trained on {length:,}"] = kept
        numbers[f"turns of the fastest pair in {length:,}"] = length / (2 * math.pi)
    *short, _, yarn, parts, _ = numbers.values()
    text = Both(
        f"of 32 pairs {short[0]} and {short[1]} are kept after 64 positions, {yarn} and {parts} after 4,096",
        f"32 对中，训练长度 64 时保留 {short[0]} 与 {short[1]} 对，4096 时保留 {yarn} 与 {parts} 对",
    )
    return decide(max(short) <= 2 and min(yarn, parts) >= 8, numbers, text)


@About("rope").holds_within(
    "extension.yarn-temperature",
    "YaRN multiplies cos and sin by 0.1 ln s + 1, unless a config gives another number, and so every score of a head "
    "that is rotated whole by its square.",
    "除非配置另给一个数，YaRN 把 cos 和 sin 乘以 0.1 ln s + 1，从而在全部维度都旋转的头中把每个分数乘以它的平方。",
    says=f"{PENG}, section 3.4",
    how="Scores of nine random q, k of 128 dimensions with Yarn(16), Yarn(2.5) and Yarn(40) over those of the same "
    "frequencies without a factor, the tables of the two against each other, and the weights of attention against a "
    "softmax of those scores over sqrt(128).",
    how_zh="九组 128 维随机 q、k 用 Yarn(16)、Yarn(2.5)、Yarn(40) 的分数，除以频率相同而不带因子的分数；比较两者的表；"
    "并把 attention 的权重与这些分数除以 √128 后的 softmax 比较。",
)
def yarn_temperature() -> Finding:
    q, k, ids, off, means = normal(9, DIM), normal(9, DIM, seed=1), torch.arange(9) * 777, [], []
    for s in (16.0, 2.5, 40.0):
        yarn = Rope(head_dim=DIM, scaling=Yarn(factor=s, original_length=4096))
        bare = Rope(head_dim=DIM, frequencies=tuple(yarn.frequencies().tolist()))
        turned, unscaled = (rope.rotate(q, ids) @ rope.rotate(k, ids).mT for rope in (yarn, bare))
        given, factor = (x[None, None] for x in (q, k, k)), 0.1 * math.log(s) + 1
        _, weights = attention(*given, encoding=yarn, causal=False, positions=ids, return_weights=True)
        own, plain = (torch.stack(rope.tables(ids, dtype=torch.float64)) for rope in (yarn, bare))
        off += [turned / unscaled / factor**2 - 1, own - factor * plain]
        off += [weights[0, 0] - (factor**2 * unscaled / DIM**0.5).softmax(-1)]
        means.append((turned / unscaled).mean())
    worst, wanted = largest(off), (0.1 * math.log(16) + 1) ** 2
    return within(worst, 1e-9, {"scores are multiplied by": means[0], "(0.1 ln 16 + 1)^2": wanted, "off by": worst})


@about_rope.holds_within(
    "extension.longrope-factor",
    "LongRoPE switches its factors past the original length and multiplies cos and sin by sqrt(1 + ln s / ln L), "
    "unless a config gives another number, or one for each of the two.",
    "LongRoPE 超过原长度后切换因子，并把 cos、sin 乘以 √(1 + ln s / ln L)，除非配置另给一个数，或为两种因子各给一个。",
    says="Ding et al. 2024, LongRoPE, as released with Phi-3",
    how="Tables of 64 dimensions at positions 5 and 700 for lengths L and L + 1, with L = 4,096 and s = 32 and with "
    "L = 1,000 and s = 2.5, against cosines and sines, times that root, of angles divided by the short and by the long "
    "factors, which all differ; and at both lengths times 1.25 where attention_factor gives that.",
    how_zh="64 维，L = 4096、s = 32 与 L = 1000、s = 2.5，长度 L 与 L + 1：位置 5 与 700 处的表，与角度除以短因子、长因"
    "子（各不相同）之后的余弦、正弦乘以该根式比较；以及 attention_factor 给定 1.25 时，两种长度都乘以 1.25。",
)
def longrope_factor() -> Finding:
    short, long = tuple(1.0 + i / 100 for i in range(32)), tuple(2.0 + i for i in range(32))
    ids, numbers, factors = torch.tensor([5, 700]), {}, {}
    for trained, s in ((4096, 32.0), (1000, 2.5)):
        scheme = LongRope(short_factor=short, long_factor=long, original_length=trained, factor=s)
        given = LongRope(short_factor=short, long_factor=long, original_length=trained, attention_factor=1.25)
        rope, other = (Rope(head_dim=64, scaling=scaling) for scaling in (scheme, given))
        root = math.sqrt(1 + math.log(s) / math.log(trained))
        for length, divided_by in ((trained, short), (trained + 1, long)):
            own, told = (torch.stack(one.tables(ids, length, dtype=torch.float64)) for one in (rope, other))
            angles = ids.double()[:, None] * ladder(64) / doubles(divided_by)
            wanted = torch.stack((angles.cos(), angles.sin()))
            numbers[f"off by, length {length:,}"] = largest(own - root * wanted)
            numbers[f"off by, length {length:,}, 1.25 given"] = largest(told - 1.25 * wanted)
        factors[f"attention factor, L = {trained:,}, s = {s:g}"] = rope.attention_factor(trained + 1)
    return within(largest(doubles(list(numbers.values()))), 1e-12, numbers | factors)


@about_rope.holds(
    "extension.llama3-bands",
    "Llama 3.1 keeps the frequencies of wavelengths below L/4, divides those of wavelengths above L by s, and blends "
    "between.",
    "Llama 3.1 保留波长小于 L/4 的频率，把波长大于 L 的频率除以 s，中间平滑过渡。",
    says="Dubey et al. 2024, Llama 3.1, the released code",
    how="Frequencies of 128 dimensions over plain ones, by wavelength, to 1e-9: s = 8, L = 8,192 at base 500,000, "
    "which are Llama 3.1's, and s = 32, L = 2,048 at base 10,000; more than 3 pairs lie between.",
    how_zh="128 维的频率除以原频率，按波长分段，容差 1e-9：s = 8、L = 8192、底数 500000（Llama 3.1 的设置），以及 s = "
    "32、L = 2048、底数 10000；居中的都多于 3 对。",
)
def llama3_bands() -> Finding:
    numbers, good = {}, True
    for s, trained, base in ((8.0, 8192, 500_000.0), (32.0, 2048, 10_000.0)):
        rope = Rope(head_dim=DIM, base=base, scaling=Llama3(factor=s, original_length=trained))
        ratio, length = rope.frequencies() / ladder(DIM, base), 2 * math.pi / ladder(DIM, base)
        fast, slow = length < trained / 4, length > trained
        between = ~fast & ~slow
        wanted = 1 / s + (1 - 1 / s) * (trained / length[between] - 1) / 3
        off = {"kept": ratio[fast] - 1, "divided": ratio[slow] * s - 1, "blended": ratio[between] / wanted - 1}
        found = {f"{name}, off by, s = {s:g}": largest(difference) for name, difference in off.items()}
        good = good and max(found.values()) < 1e-9 and int(between.sum()) > 3
        numbers |= found | {f"pairs between, s = {s:g}": between.sum()}
    return decide(good, numbers, Both("a pair is scaled otherwise", "某一对的缩放不同"))


@About("rope").holds_within(
    "extension.resonance",
    "Resonance rounds the wavelength of every pair to the nearest whole number, so that it repeats itself exactly.",
    "Resonance 把每一对的波长舍入为最近的整数，从而严格周期重复。",
    says="Wang et al. 2024, Resonance RoPE",
    how="Wavelengths of 64 dimensions at base 10,000 and of 128 at 100,000 against 2 pi / w_i of the definition, "
    "rounded, and the tables of each pair at position 3 and one such wavelength on.",
    how_zh="64 维、底数 10000 与 128 维、底数 100000 的各波长与按定义舍入后的 2π / w_i 比较，以及每一对在位置 3 与一个"
    "这样的波长之后的表。",
)
def resonance() -> Finding:
    apart, repeated, changes = [], [], []
    for dim, base in ((64, BASE), (DIM, 100_000.0)):
        rope, plain = Rope(head_dim=dim, base=base, scaling=Resonance()), 2 * math.pi / ladder(dim, base)
        whole = plain.round()
        here, on = (rope.tables(3 + ahead, dtype=torch.float64) for ahead in (0 * whole.long(), whole.long()))
        repeated += [(a - b).diagonal() for a, b in zip(here, on, strict=True)]  # pair i after its own wavelength
        apart.append(wavelengths(rope.frequencies()) - whole)
        changes.append(whole / plain - 1)
    numbers = {"wavelengths against whole ones": largest(apart), "tables one wavelength on": largest(repeated)}
    worst = largest(doubles(list(numbers.values())))
    return within(worst, 1e-9, numbers | {"largest relative change of a wavelength": largest(changes)})
