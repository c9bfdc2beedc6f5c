"""Claims about precision: biases of distances in float32 and below."""

from __future__ import annotations

import math
from itertools import product

import torch

from whorl import Alibi, Kerple
from whorl.claims.ledger import About, Both, Finding, close, decide, within
from whorl.claims.probes import generator, largest

about_alibi = About("alibi")
about_kerple = About("kerple")


@about_alibi.fails(
    "precision.alibi-key-form",
    "ALiBi's bias may be computed as slope times key position in bfloat16.",
    "ALiBi 的偏置可以用 bfloat16 按“斜率×键位置”计算。",
    says="transformers 5.22, build_alibi_tensor of Falcon, and of BLOOM loaded in bfloat16, by computing it so",
    how='Alibi(rounding="hf_falcon") and Alibi(rounding="hf_bf16"), which is BLOOM\'s, against the exact bias of the '
    "head of slope 1/2, where the two are one, up to a number per row, at 512, 2,048 and 8,192 keys: two keys off each "
    "other by less than 0.01 would do. Each key must be off by what rounding half of its position to bfloat16 makes, "
    "to 1e-6. Falcon divides its bias by sqrt(d) as well, which is left out.",
    how_zh='512、2048、8192 个键，斜率 1/2 的头（两者在此相同）：Alibi(rounding="hf_falcon") 与 BLOOM 的 '
    'Alibi(rounding="hf_bf16") 与精确偏置比较，每行相差的常数不计：任两个键之间的误差小于 0.01 才算可以；各键的误差须'
    "与其位置的一半舍入到 bfloat16 的误差相同（容差 1e-6）。Falcon 还把偏置除以 √d，此处略去。",
)
def alibi_key_form() -> Finding:
    roundings = {"Falcon": Alibi(heads=8, rounding="hf_falcon"), "BLOOM": Alibi(heads=8, rounding="hf_bf16")}
    exact, numbers, apart = Alibi(heads=8), {}, []
    for (name, rounded), keys in product(roundings.items(), (512, 2048, 8192)):
        query, ids = torch.tensor([keys - 1]), torch.arange(keys)
        off = (rounded.score_bias(query, ids) - exact.score_bias(query, ids)).double()[0, 0]
        numbers[f"{name}: two keys off each other by, {keys:,} keys"] = off.max() - off.min()
        half = ids.double() / 2
        apart.append(off - off[0] - (half.bfloat16().double() - half))
    few, _, many, *_ = numbers.values()
    text = Both(
        f"with slope 1/2 and before any scaling, weights of two of 512 keys are off each other by up to e^{few:g}, of "
        f"8,192 by e^{many:g}",
        f"斜率 1/2、缩放之前，512 个键中两个键的权重之比可差 e^{few:g} 倍，8192 个键中可差 e^{many:g} 倍",
    )
    return decide(max(numbers.values()) < 0.01, numbers, text, instead=largest(apart) < 1e-6)


@about_alibi.holds_within(
    "precision.alibi-relative-form",
    "Taken from the distance, in float32, ALiBi's bias is exact to 2^-23 of its size at any position, for keys under "
    "2^24 away.",
    "以 float32 按距离计算时，键在 2^24 以内，ALiBi 的偏置在任何位置都精确到自身大小的 2^-23。",
    says="whorl 0.2, docs/encodings/alibi.md: the distance in whole numbers, multiplied in float32",
    how="Biases of 8, 12 and 32 heads for queries at 4,096, 2^24 - 1 and 2^40 + 1 against float64: the 4,096 keys "
    "before each, and, where there are any, those of 4,096 drawn up to 2^24 - 1 away.",
    how_zh="8、12 与 32 头，4096、2^24 - 1 与 2^40 + 1 处的查询，偏置与 float64 比较：各自之前的 4096 个键，以及 "
    "2^24 - 1 以内随机抽取的 4096 个距离中有键的那些。",
)
def alibi_relative_form() -> Finding:
    errors = []
    far = torch.randint(2**24, (4096,), generator=generator(10))
    for heads in (8, 12, 32):
        for start in (4096, 2**24 - 1, 2**40 + 1):
            query, keys = torch.tensor([start]), torch.cat((torch.arange(start - 4096, start + 1), start - far))
            keys = keys[keys >= 0]
            true = torch.tensor(_press(heads), dtype=torch.float64)[:, None] * (keys - start).double()
            own = Alibi(heads=heads).score_bias(query, keys)[:, 0].double()
            errors.append((own - true) / true.clamp(max=-1e-9))
    return close(errors, 2**-23, "largest relative error")


def _press(heads: int) -> list[float]:
    """The authors' slopes from their rule: powers of two by themselves, then every other one of twice as many."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return own + [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]


@about_kerple.holds_within(
    "precision.kerple-exact",
    "KERPLE's biases, with the two numbers p and a of each head anywhere that training may start from, all differ in "
    "each head at distances up to 5,000, and are those of float64 to a millionth of their size.",
    "每个头的两个参数 p 与 a 取初始范围内的任何值时，KERPLE 的每个头在直到 5000 的各个距离上的偏置互不相同，与 float64 "
    "的结果相差不到自身大小的百万分之一。",
    says="whorl 0.2, docs/encodings/kerple.md",
    how="Both kernels of 16 heads, p drawn between 0.01 and 2 and a between 0.01 and 1, at distances 0 … 5,000, "
    "positions around a million, against their formulas; and how many differ in the head with the fewest.",
    how_zh="两种核，16 个头，p 在 0.01 到 2 之间、a 在 0.01 到 1 之间随机，距离 0 … 5000，位置在一百万附近，与各自的公"
    "式比较；并数不同偏置最少的头有多少个不同。",
)
def kerple_exact() -> Finding:
    distance, numbers, counts = torch.arange(5001), {}, {}
    for variant in ("log", "power"):
        kerple, source = Kerple(heads=16, variant=variant), generator(10)
        for parameter, high in ((kerple.p, 2.0), (kerple.a, 1.0)):
            parameter.copy_(0.01 + (high - 0.01) * torch.rand(16, generator=source))
        p, a, d = kerple.p.double()[:, None], kerple.a.double()[:, None], distance.double()
        true = -p * torch.log1p(a * d) if variant == "log" else -a * d**p
        own = kerple.score_bias(torch.tensor([1_000_000]), 1_000_000 - distance)[:, 0].double()
        numbers[f"relative error, {variant}"] = largest((own - true) / true.clamp(max=-1e-9))
        counts[f"different biases, {variant}"] = min(len(head.unique()) for head in own)
    worst = max(numbers.values()) if min(counts.values()) == len(distance) else math.inf
    return within(worst, 1e-6, numbers | counts)
