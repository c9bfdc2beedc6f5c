"""Claims about ALiBi: its slopes, its line, what a head sees."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import Alibi, attention
from whorl.claims import evidence
from whorl.claims.ledger import (
    About,
    Both,
    Finding,
    all_within,
    decide,
    depends,
    inconclusive,
    needs_training,
    within,
)
from whorl.claims.probes import doubles, largest, normal
from whorl.encodings.bias import Bias

PRESS = "Press et al. 2021, ALiBi"
about_alibi = About("alibi")


def bias(encoding: Bias, distances: Tensor, head: int = 0) -> Tensor:
    """The bias of one head for keys these distances before a query, float64."""
    last = int(distances.max()) + 1000
    return encoding.score_bias(torch.tensor([last]), last - distances)[head, 0].double()


@about_alibi.holds_within(
    "alibi.slopes",
    "ALiBi's slopes are 2^-1, 2^-2 … 2^-8 for 8 heads, 2^-0.5, 2^-1 … 2^-8 for 16, and for 12 those of 8 heads and "
    "then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.",
    "ALiBi 的斜率：8 头为 2^-1、2^-2 … 2^-8，16 头为 2^-0.5、2^-1 … 2^-8，12 头为 8 头的斜率再加 2^-0.5、2^-1.5、"
    "2^-2.5、2^-3.5。",
    says=f"{PRESS}, the authors' code",
    how="Base-2 logarithms of Alibi(heads).slopes() against known ones for 1, 3, 6, 8, 12 and 16 heads.",
    how_zh="Alibi(heads).slopes() 以 2 为底的对数，与 1、3、6、8、12、16 头的已知值比较。",
)
def slopes() -> Finding:
    known = {
        1: [-8],
        3: [-4, -8, -2],
        6: [-2, -4, -6, -8, -1, -3],
        8: list(range(-1, -9, -1)),
        12: [*range(-1, -9, -1), -0.5, -1.5, -2.5, -3.5],
        16: [-0.5 * h for h in range(1, 17)],
    }
    logarithms = {heads: Alibi(heads=heads).slopes().double().log2() for heads in known}
    return all_within({f"{n} heads": largest(logarithms[n] - doubles(known[n])) for n in known}, 1e-6)


@about_alibi.depends(
    "alibi.slope-rules",
    "The rule of the paper's sentence, 2^(-8h/n) for any n, gives the slopes of the authors' code.",
    "论文正文的规则（任意 n 都用 2^(-8h/n)）与作者代码的斜率一致。",
    says=f"{PRESS}, section 3, by its rule for n heads in general",
    how='slopes="geometric" against slopes="press", from the largest to the smallest, since the order of heads is no '
    "matter: 1, 2, 4 … 64 heads, where all are equal, and 3, 6, 12, 20, 40, where they would have to be. The base-2 "
    "logarithms of both are those of their rules, to 1e-6.",
    how_zh='slopes="geometric" 与 slopes="press" 从大到小比较（头的次序无关紧要）：1、2、4 … 64 头时全部相等；3、6、'
    "12、20、40 头时也须相等才算。两者以 2 为底的对数都须与各自的规则相符（容差 1e-6）。",
)
def slope_rules() -> Finding:
    def by_rule(n: int) -> list[float]:
        return [-8 * h / n for h in range(1, n + 1)]

    apart, off = {}, []
    for n in (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 20, 40):
        lower = 2 ** int(math.log2(n))
        rules = doubles(by_rule(n)), doubles(by_rule(lower) + by_rule(2 * lower)[::2][: n - lower])
        both = Alibi(heads=n, slopes="geometric").slopes(), Alibi(heads=n).slopes()
        apart[n] = largest(both[0].sort()[0] - both[1].sort()[0])
        off += [slopes.double().log2() - rule for slopes, rule in zip(both, rules, strict=True)]
    powers, others = (doubles([apart[n] for n in apart if (n.bit_count() == 1) is power]) for power in (True, False))
    least = float(others.min())
    numbers = {f"largest difference, {n} heads": apart[n] for n in (8, 12, 40)}
    numbers |= {"largest difference, powers of two": powers.max(), "least of 3, 6, 12, 20 and 40 heads": least}
    numbers["logarithms off their rules by"] = wrong = largest(off)
    but = Both(
        f"with 3, 6, 12, 20 and 40 heads a slope differs by at least {least:.2f}, with 12 by {apart[12]:.2f}",
        f"3、6、12、20、40 头时各有斜率至少相差 {least:.2f}，12 头时相差 {apart[12]:.2f}",
    )
    on = Both("whether the number of heads is a power of two", "头数是否为 2 的幂")
    return depends(on, powers.max() == 0 and wrong < 1e-6, others.max() == 0, numbers, but)


@about_alibi.holds(
    "alibi.linear",
    "ALiBi takes slope times distance off the score of each key before the query.",
    "ALiBi 从每个先前的键的分数中减去“斜率×距离”。",
    says=f"{PRESS}, section 3",
    how="Biases of 8 heads for queries and keys at 0, 1, 2, 100 and 5,000 against -m d, bit for bit; and the scores of "
    "12 tokens, 8 heads of 64, read off attention as the logarithm of a weight plus that of its row's sum, against "
    "q k / sqrt(d) - m d, to 1e-9.",
    how_zh="8 个头，查询与键在 0、1、2、100、5000 处的偏置与 -m d 逐位比较；以及 12 个词、8 个 64 维的头的分数（由注意"
    "力读出：权重的对数加该行之和的对数）与 q k / √d - m d 比较，容差 1e-9。",
)
def alibi_linear() -> Finding:
    def line(ids: Tensor) -> Tensor:
        return (-(2.0 ** -torch.arange(1, 9, dtype=torch.float64))[:, None, None] * (ids[:, None] - ids)).tril()

    places, alibi, (q, k, v) = torch.tensor([0, 1, 2, 100, 5000]), Alibi(heads=8), normal(3, 1, 8, 12, 64)
    own = alibi.score_bias(places, places).double().tril()
    good = sum(torch.equal(one, wanted) for one, wanted in zip(own, line(places), strict=True))
    _, lse, weights = attention(q, k, v, encoding=alibi, return_lse=True, return_weights=True)
    scores = (weights.log() + lse[..., None]).masked_fill(weights == 0, 0.0)  # 0 is what the causal mask hides
    off = largest(scores - (q @ k.mT / 8 + line(torch.arange(12))).tril())
    numbers = {"heads whose biases agree, of 8": good, "scores off by": off}
    but = Both(
        f"{good} of 8 heads agree, and scores are off by {off:.3g}", f"8 个头中 {good} 个相符，分数相差 {off:.3g}"
    )
    return decide(good == 8 and off < 1e-9, numbers, but)


@about_alibi.holds_within(
    "alibi.bias-unscaled",
    "ALiBi adds its bias to scores that are divided by sqrt(d); the bias itself is not.",
    "ALiBi 的偏置加在已除以 √d 的分数上；偏置本身不除以 √d。",
    says=f"{PRESS}, section 3; the study notes say that the attention is not scaled by sqrt(d)",
    how="Weights of 12 tokens, 8 heads of 64 and of 20, against softmax(q k / sqrt(d) - m (i - j)), and against "
    "nothing or both divided, which must differ by more than 0.01; and outputs of the path that attention takes by "
    "itself against those weights times the values.",
    how_zh="12 个词、8 个 64 维与 20 维的头的注意力权重，与 softmax(q k / √d - m (i - j)) 比较，并与都不除、都除的结果"
    "比较：后两者须相差超过 0.01；attention 自行选择的路径的输出，与这些权重乘以值的结果比较。",
)
def bias_unscaled() -> Finding:
    numbers, good = {}, True
    for dim in (64, 20):
        own, output, *by_hand = alibi_weights(dim)
        scaled, unscaled, both = (largest(own - weights) for weights in by_hand)
        good = good and min(unscaled, both) > 0.01  # weights that tell the three apart
        numbers |= {f"scores scaled, bias not, d = {dim}": scaled}
        numbers |= {f"nothing scaled, d = {dim}": unscaled, f"both scaled, d = {dim}": both}
        numbers[f"outputs, d = {dim}"] = largest(output)
    compared = [f"{what}, d = {dim}" for what in ("scores scaled, bias not", "outputs") for dim in (64, 20)]
    worst = max(numbers[name] for name in compared) if good else 1.0
    return within(worst, 1e-6, numbers)


def alibi_weights(dim: int) -> tuple[Tensor, ...]:
    """ALiBi's weights by whorl and how far outputs are off them, then by hand: scores scaled, nothing, both."""
    q, k, v = normal(3, 1, 8, 12, dim)
    _, weights = attention(q, k, v, encoding=Alibi(heads=8), return_weights=True)
    ids = torch.arange(12)
    line = -(2.0 ** -torch.arange(1, 9, dtype=torch.float64))[:, None, None] * (ids[:, None] - ids)
    hidden = (ids[:, None] < ids).expand(8, 12, 12)

    def by_hand(scores: Tensor) -> Tensor:
        return scores[0].masked_fill(hidden, -torch.inf).softmax(-1)

    products, root = q @ k.mT, dim**0.5
    right = by_hand(products / root + line)
    off = attention(q, k, v, encoding=Alibi(heads=8))[0] - right @ v[0]
    return weights[0], off, right, by_hand(products + line), by_hand((products + line) / root)


@about_alibi.holds(
    "alibi.receptive-field",
    "An ALiBi head sees the last ln(100) / m positions: 99 % of the weight of like keys lies there, however long the "
    "text.",
    "ALiBi 每个头的视野为最近的 ln(100)/m 个位置：内容相同时 99% 的权重在其中，与文本长度无关。",
    says="Chi et al. 2022, Sandwich, of ALiBi's receptive field; the number by the sum of a geometric series",
    how="Weights of keys that are all alike, for 8 heads: the last keys that hold 99 % of them are ln(100) / m, "
    "rounded up, at 4,096 and 16,384 keys, and no more at 5, 300 and 2,000.",
    how_zh="8 个头，内容相同的键：占 99% 权重的最近的键数，在 4096 与 16384 个键时等于 ln(100)/m 向上取整，"
    "在 5、300、2000 个键时不多于它。",
)
def receptive_field() -> Finding:
    alibi, numbers, good = Alibi(heads=8), {}, True
    for keys in (5, 300, 2000, 4096, 16_384):
        weights = alibi.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[:, 0].double().softmax(-1).flip(-1)
        reach = ((weights.cumsum(-1) < 0.99).sum(-1) + 1).tolist()
        # the geometric series: 1 - e^(-m n) = 0.99
        wanted = [math.ceil(math.log(100) * 2 ** (h + 1)) for h in range(8)]
        good &= all(own <= most for own, most in zip(reach, wanted, strict=True))
        if keys > 2000:  # what is cut off the series is too little to matter
            good &= reach == wanted
            numbers |= {f"head {h}, {keys:,} keys": reach[h] for h in (0, 7)}
    but = Both("a head sees another number of keys", "某个头看到的键数不同")
    return decide(good, numbers, but)


@about_alibi.holds_within(
    "alibi.key-form",
    "Under a causal mask adding slope times key position gives the same weights as taking off slope times distance, "
    "but for rounding, which in float32 at 600 keys is below 1e-4 of a weight and grows with the position: a softmax "
    "drops what a row shares.",
    "因果掩码下，加上“斜率×键位置”与减去“斜率×距离”给出相同权重，只差舍入：softmax 会消去一行共有的常数。float32、600 "
    "个键时舍入不到权重的 1e-4，并随位置增大。",
    says=f"{PRESS}, the authors' code",
    how="Softmax of random scores plus key_bias against that of scores plus score_bias, 600 keys, queries at 0, 7, 300 "
    "and 599: 8 and 12 heads, to 1e-4 of each weight. Products of slopes of 12 heads with positions are rounded in "
    "float32, by more the farther they are; slopes of 8 heads are powers of two, and there 1e-6 is the bound.",
    how_zh="600 个键，查询在 0、7、300、599 处：随机分数加 key_bias 的 softmax 与加 score_bias 的 softmax 比较，8 头与 "
    "12 头每个权重相差不到自身的 1e-4。12 头的斜率与位置的乘积在 float32 中有舍入，位置越远越大；8 头的斜率为 2 的幂，"
    "容差为 1e-6。",
)
def key_form() -> Finding:
    ids, rows = torch.arange(600), torch.tensor([0, 7, 300, 599])
    hidden, found = rows[:, None] < ids, {}
    for heads in (8, 12):
        alibi, scores = Alibi(heads=heads), normal(heads, 4, 600).masked_fill(hidden, -torch.inf)
        by_key = (scores + alibi.key_bias(ids)[:, None].double()).softmax(-1)
        found[heads] = by_key, (scores + alibi.score_bias(rows, ids).double()).softmax(-1)
    exact, off = (largest((own - true)[true > 0] / true[true > 0]) for own, true in found.values())
    numbers = {"largest relative difference, 8 heads": exact, "largest relative difference, 12 heads": off}
    return within(off if exact < 1e-6 else math.inf, 1e-4, numbers)


@about_alibi.holds(
    "alibi.symmetric",
    "The symmetric form for encoders, -m |i - j|, cannot tell left from right; split heads can.",
    "编码器用的对称形式 -m |i - j| 不能区分左右；分头的形式可以。",
    says="whorl 0.2, docs/encodings/alibi.md",
    how="Biases of 8 heads for the 4 keys before the query, its own and the 4 after it, bit for bit. Symmetric: -m d "
    "on both sides, d the distance. Split: -m d with the slopes of 4 heads, on the left for the first 4 heads and on "
    "the right for the last 4, and minus infinity on the other side.",
    how_zh="8 个头，查询前的 4 个键、自身与其后的 4 个键的偏置，逐位比较。对称形式：两侧都是 -m d，d 为距离。分头形"
    "式：用 4 头的斜率，前 4 个头在左侧为 -m d，后 4 个头在右侧为 -m d，另一侧为负无穷。",
)
def symmetric() -> Finding:
    ids, four = torch.arange(9), Alibi(heads=4).slopes().repeat(2)[:, None]
    both, split = (Alibi(heads=8, form=form).score_bias(ids[4:5], ids)[:, 0] for form in ("symmetric", "split"))
    apart = largest(both[:, :4].flip(-1) - both[:, 5:])
    distance, right = (ids - 4).abs(), torch.arange(8)[:, None] >= 4
    unseen = torch.where(right, ids < 4, ids > 4)
    line = int((both == -Alibi(heads=8).slopes()[:, None] * distance).all(-1).sum())
    one_sided = int((split == (-four * distance).masked_fill(unseen, -torch.inf)).all(-1).sum())
    numbers = {"symmetric: left against right": apart, "symmetric: heads of -m d, of 8": line}
    numbers |= {"split: heads that see only their side, of 8": one_sided}
    text = Both(
        f"{line} of 8 symmetric heads have -m d, sides differ by {apart:.3g}, {one_sided} of 8 split heads see only "
        "their side",
        f"8 个对称的头中 {line} 个为 -m d，左右相差 {apart:.3g}；8 个分头中 {one_sided} 个只看自己一侧",
    )
    return decide(apart == 0 and line == one_sided == 8, numbers, text)


@about_alibi.holds(
    "alibi.slopes-robust",
    "A decoder of 2 layers, width 64 and 4 heads, trained for 300 updates on 64 bytes of Python source, does no worse "
    "at that length with random slopes in (0, 1) than with ALiBi's own.",
    "2 层、宽 64、4 头的解码器在 64 字节的 Python 源码上训练 300 步，在该长度处用 (0, 1) 内的随机斜率，损失不比用 "
    "ALiBi 自己的斜率差。",
    says="study notes, which call it robust to its slopes",
    how="Bits per byte of the last 16 of 64 bytes, texts of Python's standard library: three draws of slopes less the "
    "usual ones, three seeds, paired. No draw's Student's 95 % interval may lie above zero, and each must end below "
    "0.02. Models trained longer, on longer texts or on other tasks are not asked.",
    how_zh="Python 标准库文本，64 个字节中最后 16 个的比特每字节：三组随机斜率减去默认斜率，三个种子配对。任何一组的 "
    "Student 95% 区间都不得在零以上，且上端都须小于 0.02。未检验训练更久、文本更长或其他任务的模型。",
    trained=True,
)
def slopes_robust() -> Finding:
    differences = evidence.differences("slopes")
    if not differences:
        return needs_training("whorl lab ablate slopes --seeds 3 --steps 300")
    numbers: dict[str, float] = {}
    for one in differences:
        numbers |= {f"{one.setting} less press, bits per byte": one.mean}
        numbers |= {f"low, {one.setting}": one.low, f"high, {one.setting}": one.high}
    worse = [one for one in differences if one.low > 0]
    said = "; ".join(f"{one.setting} differs by {one}" for one in worse or differences)
    text = Both(f"{said} bits per byte", f"与默认斜率之差（比特每字节）：{said}")
    source = "experiments/ablations.json"
    if not worse and not all(one.high < evidence.TIE for one in differences):
        return inconclusive(numbers, text, source)
    return decide(not worse, numbers, text, source)
