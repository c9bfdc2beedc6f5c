"""Claims about kernels of the distance: KERPLE, FIRE, Sandwich."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from whorl import Alibi, Kerple, Sandwich, attention
from whorl.claims.biases.alibi import bias
from whorl.claims.ledger import About, Both, Finding, all_within, decide, depends, within
from whorl.claims.probes import doubles, generator, ladder, largest, normal
from whorl.encodings.fire import Fire, progress

about_fire = About("fire")


@About("kerple").holds(
    "kerple.alibi",
    "KERPLE's power kernel with p = 1 and a = m, added to scaled scores as by its authors' code, is ALiBi with slope "
    "m, for slopes of 0.01 and more.",
    "p = 1、a = m 的 KERPLE 幂核按作者代码加在已缩放的分数上，就是斜率为 m 的 ALiBi（斜率不小于 0.01 时）。",
    says="Chi et al. 2022, KERPLE, section 4; by the authors' code that the bias is not divided by sqrt(d), as it is "
    "in equation 1, and that a is 0.01 at least",
    how="Biases with p = 1 and a = ALiBi's slopes at distances 0 … 1,000, bit for bit, for the 6 of 8 heads whose "
    "slope is not below 0.01, the least a that counts; and the weights of attention of 50 random tokens, to 1e-9.",
    how_zh="p = 1、a 取 ALiBi 斜率时，距离 0 … 1000 处的偏置逐位比较：8 个头中斜率不小于 0.01（a 的下限）的 6 个；以及 "
    "50 个随机词的注意力权重（容差 1e-9）。",
)
def kerple_alibi() -> Finding:
    kerple, alibi, distances = Kerple(heads=8, variant="power"), Alibi(heads=8), torch.arange(1001)
    kerple.p.fill_(1.0)
    kerple.a.copy_(alibi.slopes().clamp(min=0.01))
    heads = range(6)  # slopes below 0.01 are held at 0.01
    good = sum(torch.equal(bias(kerple, distances, h), bias(alibi, distances, h)) for h in heads)
    q, k, v = normal(3, 1, 8, 50, 16)
    own, wanted = (attention(q, k, v, encoding=one, return_weights=True)[1][:, :6] for one in (kerple, alibi))
    numbers = {"heads that agree, of 6": good, "weights differ by": largest(own - wanted)}
    but = Both("a bias or a weight differs", "某个偏置或权重不同")
    return decide(good == 6 and numbers["weights differ by"] < 1e-9, numbers, but)


@About("kerple").holds(
    "kerple.held",
    "Whatever is learned, p and a between -5 and 5, KERPLE falls at every step up to distance 5,000: both count as "
    "0.01 at least.",
    "无论 p 与 a 在 -5 到 5 之间学成什么，KERPLE 在距离 5000 以内每一步都下降：两者至少按 0.01 计。",
    says="Chi et al. 2022, KERPLE, the authors' code, of the bound 0.01; the distance by this ledger",
    how="Both kernels in float32 with p and a from -5 to 5, nine of each, all 81 pairs of them: the largest step of "
    "the bias up to distance 5,000 is below zero, and the bias is that of p and a put up to 0.01 where they are less "
    "(p of the power kernel down to 2 where it is more), to 1e-6 of its size.",
    how_zh="两种核，float32，p 与 a 从 -5 到 5 各取九个，共 81 组：距离 5000 以内偏置的最大一步小于零，且偏置等于把小于"
    " 0.01 的 p、a 提到 0.01（幂核中大于 2 的 p 降到 2）之后的偏置，相差不到自身的 1e-6。",
)
def kerple_held() -> Finding:
    steps, off, d = [], [], torch.arange(5001)
    p, a = torch.cartesian_prod(torch.linspace(-5, 5, 9), torch.linspace(-5, 5, 9)).unbind(-1)
    for variant in ("log", "power"):
        kerple = Kerple(heads=81, variant=variant)
        kerple.p.copy_(p)
        kerple.a.copy_(a)
        own = kerple.score_bias(d[-1:], 5000 - d)[:, 0].double()
        least_p, least_a = (x.double().clamp(min=0.01)[:, None] for x in (p, a))
        power = -least_a * d.double() ** least_p.clamp(max=2)
        wanted = -least_p * torch.log1p(least_a * d) if variant == "log" else power
        steps.append(own.diff().max())
        off.append((own - wanted)[:, 1:] / wanted[:, 1:])  # at distance 0 both are 0
    worst, apart = float(torch.stack(steps).max()), largest(off)
    but = Both(
        f"a farther key gains {worst:.3g}, or a bias is off by {apart:.3g} of its size",
        f"更远的键增加 {worst:.3g}，或某个偏置相差自身的 {apart:.3g}",
    )
    return decide(worst < 0 and apart < 1e-6, {"largest step": worst, "largest relative difference": apart}, but)


@about_fire.holds_within(
    "fire.progress",
    "FIRE's argument is ln(c (i - j) + 1) / ln(c max(i, L) + 1): with c = 0.1 and L = 512 it is 0.02410, 0.60628, "
    "0.02065, 0.85194, 1.00000 at (i, j) = (100, 99), (100, 0), (1000, 999), (1000, 500), (1000, 0).",
    "FIRE 的自变量为 ln(c (i - j) + 1)/ln(c max(i, L) + 1)：c = 0.1、L = 512 时，在 (i, j) = (100, 99)、(100, 0)、"
    "(1000, 999)、(1000, 500)、(1000, 0) 处为 0.02410、0.60628、0.02065、0.85194、1.00000。",
    says="Li et al. 2023, FIRE",
    how="progress() of whorl's FIRE at these five pairs against the five decimals; and at 1,000 random pairs up to "
    "4,000, with c from 0.1 to 5 and L from 16 to 2,000, against the formula. whorl adds 1e-6 to the denominator.",
    how_zh="whorl 的 FIRE 的 progress() 在这五组处与五位小数比较；并在 4000 以内的 1000 组随机位置（c 取 0.1 到 5，L "
    "取 16 到 2000）与公式比较。whorl 在分母上加 1e-6。",
)
def fire_progress() -> Finding:
    i, j = torch.tensor([[100, 99], [100, 0], [1000, 999], [1000, 500], [1000, 0]]).mT
    own = progress(i, j, doubles(0.1), doubles(512.0))
    worst = largest(own - doubles([0.0241, 0.60628, 0.02065, 0.85194, 1.0]))
    numbers = {f"({a}, {b})": x for a, b, x in zip(i, j, own, strict=True)} | {"off by": worst}
    first, second, c, reach = torch.rand(4, 1000, generator=generator(4), dtype=torch.float64)
    i, c, reach = (4000 * first).long(), 0.1 + 4.9 * c, 16 + 1984 * reach
    j = (second * i).long()
    formula = torch.log(c * (i - j) + 1) / torch.log(c * torch.maximum(i, reach) + 1)
    numbers["off by, random pairs"] = off = largest(progress(i, j, c, reach) - formula)
    return within(largest(doubles([worst, off])), 5.1e-6, numbers)


@about_fire.depends(
    "fire.relative",
    "FIRE's bias depends on the distance only.",
    "FIRE 的偏置只取决于距离。",
    says="Li et al. 2023, FIRE, by its name: functional interpolation for relative positions",
    how="The biases at distances 1, 5 and 40, random weights, 4 heads, L = 64: for queries at 40, 50 and 64 they are "
    "the same to 1e-6; for those at 64, 500 and 4,096 they would have to be to 1e-3. All of them are the network of "
    "the formula's argument, to 1e-9.",
    how_zh="4 个头、随机权重、L = 64，距离 1、5、40 处的偏置：查询在 40、50、64 处时相同（容差 1e-6）；在 64、500、"
    "4096 处时须相差不到 1e-3 才算。它们都须等于以公式的自变量算出的网络输出（容差 1e-9）。",
)
def fire_relative() -> Finding:
    fire = Fire(heads=4, length=64)
    for name, parameter in fire.named_parameters():
        if name in ("w1", "b1", "w2"):
            parameter += normal(*parameter.shape, seed=9).float()
    fire.double()
    distances = torch.tensor([1, 5, 40])

    def by_formula(i: int) -> Tensor:
        x = torch.log1p(fire.c * distances) / (torch.log1p(fire.c * max(i, 64)) + 1e-6)
        return fire.w2 @ (fire.w1[:, None] * x + fire.b1[:, None]).relu() + fire.b2[:, None]

    found = {i: fire.score_bias(torch.tensor([i]), i - distances)[:, 0] for i in (40, 50, 64, 500, 4096)}
    trained, beyond = (largest(found[i] - found[64] for i in places) for places in ((40, 50), (500, 4096)))
    off = largest(found[i] - by_formula(i) for i in found)
    numbers = {"change for queries at 40 … 64": trained, "change for queries at 64 … 4,096": beyond}
    numbers["off the formula by"] = off
    text = "past L the denominator knows where the query is, so equal distances have other biases"
    but = Both(text, "超过 L 后，分母与查询所在的位置有关，相同的距离偏置不同")
    on = Both("the place of the query", "查询所在的位置")
    return depends(on, trained < 1e-6 and off < 1e-9, beyond < 1e-3, numbers, but)


@About("sandwich").holds_within(
    "sandwich.products",
    (
        "The Sandwich bias of head h of H is H / (8h) times the product of two sinusoidal codes, which for codes of "
        "128 dimensions is 64, 62.0937, 45.7205, 30.5201, 14.0432 at distances 0, 1, 8, 64, 512."
    ),
    "H 个头中第 h 个的 Sandwich 偏置等于 H/(8h) 乘以两个正弦编码的内积；128 维编码的内积在距离 0、1、8、64、512 处为 "
    "64、62.0937、45.7205、30.5201、14.0432。",
    says="Chi et al. 2022, Sandwich",
    how="Biases of every head of 8, of 12 and of 2, codes of 128 dimensions, over H / (8h), against these decimals.",
    how_zh="8、12、2 个头中每一个头的偏置（编码为 128 维）除以 H/(8h)，与这些小数比较。",
)
def sandwich_products() -> Finding:
    distances, known = torch.tensor([0, 1, 8, 64, 512]), doubles([64, 62.0937, 45.7205, 30.5201, 14.0432])
    numbers = {}
    for heads in (8, 12, 2):  # of 8 alone H / 8 is 1
        sandwich = Sandwich(heads=heads)
        off = [bias(sandwich, distances, head) * 8 * (head + 1) / heads - known for head in range(heads)]
        numbers[f"heads of {heads}"] = largest(off)
    return all_within(numbers, 5.1e-5)


@About("sandwich").depends(
    "sandwich.falls",
    "Sandwich's bias decays with the distance.",
    "Sandwich 的偏置随距离衰减。",
    says="Chi et al. 2022, Sandwich, abstract: a logarithmic decaying temporal bias pattern",
    how="The first of 8 heads, codes of 128 dimensions: means of the bias over 1-15, 16-31, 32-63 and so on, "
    "doubling, up to 8,192-16,383, each of which must be below the one before; and its steps from distance 0 to 256, "
    "none of which may rise. The mean over 16,384-32,767 is above the last of them, and every bias is the sum of "
    "cosines, to 1e-4.",
    how_zh="8 头中的第一个，编码为 128 维：偏置在 1-15、16-31、32-63 …（逐次加倍）8192-16383 各段上的均值，须一段低于"
    "一段；以及距离 0 到 256 的每一步，都不得上升。16384-32767 上的均值须又高于其前一段，且每个偏置都须等于余弦之和（"
    "容差 1e-4）。",
)
def sandwich_falls() -> Finding:
    distances = torch.arange(2**15)
    curve = bias(Sandwich(heads=8), distances)
    off = largest(curve - (distances[:, None] * ladder(128)).cos().sum(-1))
    rises = (curve[:257].diff() > 0).nonzero().flatten().tolist()
    edges = [1, *(2**n for n in range(4, 16))]
    *means, past = (float(curve[low:high].mean()) for low, high in pairwise(edges))
    numbers = {"steps that rise, of 256": len(rises), "first rises after": rises[0] if rises else -1}
    numbers |= {"mean over 1-15": means[0], "mean over 128-255": means[4]}
    numbers |= {"mean over 8,192-16,383": means[-1], "mean over 16,384-32,767": past, "off the cosines by": off}
    falls = all(later < earlier for earlier, later in pairwise(means))
    after = numbers["first rises after"]
    text = Both(
        f"over doubling ranges it falls, up to 16,383, and rises past it; {len(rises)} of 256 steps rise, the first "
        f"after {after}",
        f"按加倍区间看，到 16383 为止在下降，其后回升；但 256 步中有 {len(rises)} 步上升，首次在 {after} 之后",
    )
    on = Both("whether the trend or every step is meant", "指的是趋势还是每一步")
    return depends(on, falls and past > means[-1] and off < 1e-4, not rises, numbers, text)


@About("kerple").fails(
    "note.kerple-exponential",
    "KERPLE is phi(q) phi(k) e^(-lambda |i - j|) with O(L d) memory.",
    "KERPLE 是 φ(q)φ(k)e^(-λ|i-j|)，需要 O(L d) 内存。",
    says="study notes",
    how="Memory is taken as what both kernels keep, their parameters: it would have to be more than the 2 numbers a "
    "head that they have whatever L and d; and the bias of the log kernel, p = a = 1, at distances 1, 2 and 4: the "
    "exponent of a fading product is a line, which would double it from 1 to 2, to a tenth. It is -ln(1 + d); and with "
    "p = 1.5 and a = 0.5 both kernels are the formulas of KERPLE, -p ln(1 + a d) and -a d^p, to 1e-6. Of the power "
    "kernel only p = 1 is such a line.",
    how_zh="内存指两种核自身所存的参数：每个头 2 个，与 L、d 无关，须多于此才算；以及 p = a = 1 的对数核在距离 1、2、4 "
    "处的偏置：指数衰减的指数是直线，距离从 1 到 2 应加倍（容差十分之一）。它须等于 -ln(1 + d)；p = 1.5、a = 0.5 时，两"
    "种核须为 KERPLE 的公式 -p ln(1 + a d) 与 -a d^p（容差 1e-6）。幂核只有 p = 1 时才是这样的直线。",
)
def kerple_exponential() -> Finding:
    kernels = [Kerple(heads=8, variant=variant) for variant in ("log", "power")]
    per_head = [sum(p.numel() for p in kernel.parameters()) / 8 for kernel in kernels]
    distances = torch.tensor([1, 2, 4])

    def at(kernel: Kerple, p: float, a: float) -> Tensor:
        kernel.p.fill_(p)
        kernel.a.fill_(a)
        return bias(kernel, distances)

    plain = at(kernels[0], 1.0, 1.0)
    log, power = (at(kernel, 1.5, 0.5) for kernel in kernels)
    one, two, _ = plain.tolist()
    d = distances.double()
    off = largest((plain + d.log1p(), log + 1.5 * (0.5 * d).log1p(), power + 0.5 * d**1.5))
    numbers = {"numbers a head, log": per_head[0], "numbers a head, power": per_head[1]}
    numbers |= {"log, p = a = 1: bias at 2 over bias at 1": two / one, "off the formulas by": off}
    text = Both(
        f"it is a bias inside the softmax, -r1 ln(1 + r2 d) or -r1 d^r2, of {per_head[0]:g} numbers a head; with r2 = "
        f"1 the first grows from 1 to 2 to {two / one:.2f} times, a line to 2",
        f"它是 softmax 内的偏置 -r1 ln(1 + r2 d) 或 -r1 d^r2，每个头 {per_head[0]:g} 个数；r2 = 1 时，距离从 1 到 2，"
        f"前者变为 {two / one:.2f} 倍，直线则为 2 倍",
    )
    line, more = abs(two / one - 2) < 0.1, max(per_head) > 2
    return decide(line and more, numbers, text, instead=not line and not more and off < 1e-6)
