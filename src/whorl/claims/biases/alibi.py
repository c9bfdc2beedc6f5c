"""Claims about ALiBi: its slopes, its line, what a head sees."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.attend.softmax import attention
from whorl.claims import evidence
from whorl.claims.ledger import About, Finding, all_within, close, decide, depends, needs_training, shared
from whorl.claims.probes import doubles, largest, normal
from whorl.encodings.alibi import Alibi
from whorl.encodings.bias import Bias

PRESS = "Press et al. 2021, ALiBi"
about_alibi = About("alibi", rows=("N5",))


def bias(encoding: Bias, distances: Tensor, head: int = 0) -> Tensor:
    """The bias of one head for keys these distances before a query, float64."""
    last = int(distances.max()) + 1000
    return encoding.score_bias(torch.tensor([last]), last - distances)[head, 0].double()


@about_alibi.holds_within(
    "alibi.slopes",
    "ALiBi's slopes are 2^-1 … 2^-8 for 8 heads, 2^-0.5 … 2^-8 for 16, and for 12 those of 8 and four between.",
    "ALiBi 的斜率：8 头为 2^-1 … 2^-8，16 头为 2^-0.5 … 2^-8，12 头为 8 头的斜率再加四个中间值。",
    says=f"{PRESS}, the authors' code; N5",
    how="Base-2 logarithms of Alibi(heads).slopes() against known ones for 1, 3, 6, 8, 12 and 16 heads.",
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
    says="attention-gym and mlx, by using it",
    how='slopes="geometric" against slopes="press" for 8 and for 12 heads.',
)
def slope_rules() -> Finding:
    few, many = (largest(Alibi(heads=n, slopes="geometric").slopes() - Alibi(heads=n).slopes()) for n in (8, 12))
    numbers = {"largest difference, 8 heads": few, "largest difference, 12 heads": many}
    return depends("the number of heads", few == 0, many == 0, numbers, f"with 12 heads a slope differs by {many:.3f}")


@about_alibi.holds(
    "alibi.linear",
    "ALiBi takes slope times distance off the score of each key before the query.",
    "ALiBi 从每个先前的键的分数中减去“斜率×距离”。",
    says=f"{PRESS}; N5",
    how="Biases of 8 heads at distances 0, 1, 2, 100 and 5,000 against -m d.",
)
def alibi_linear() -> Finding:
    distances, alibi = torch.tensor([0, 1, 2, 100, 5000]), Alibi(heads=8)
    good = sum(torch.equal(bias(alibi, distances, h), -(2.0 ** -(h + 1)) * distances) for h in range(8))
    return decide(good == 8, {"heads that agree, of 8": good}, f"head 0 has {bias(alibi, distances).tolist()}")


@about_alibi.holds_within(
    "alibi.bias-unscaled",
    "ALiBi adds its bias to scores that are divided by sqrt(d); the bias itself is not.",
    "ALiBi 的偏置加在已除以 √d 的分数上；偏置本身不除以 √d。",
    says=f"{PRESS}, footnote 10; N5",
    how="Attention weights of 12 tokens against softmax(q k / sqrt(d) - m d).",
)
def bias_unscaled() -> Finding:
    own, scaled, _, _ = alibi_weights()
    return close(own - scaled, 1e-6)


@shared
def alibi_weights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ALiBi's weights by whorl, then by hand: scores divided by sqrt(d), nothing divided, both divided."""
    q, k, v = normal(3, 1, 8, 12, 64)
    _, weights = attention(q, k, v, encoding=Alibi(heads=8), return_weights=True)
    ids = torch.arange(12)
    line = -(2.0 ** -torch.arange(1, 9, dtype=torch.float64))[:, None, None] * (ids[:, None] - ids)
    hidden = (ids[:, None] < ids).expand(8, 12, 12)

    def by_hand(scores: Tensor) -> Tensor:
        return scores[0].masked_fill(hidden, -torch.inf).softmax(-1)

    products = q @ k.mT
    return weights[0], by_hand(products / 8 + line), by_hand(products + line), by_hand((products + line) / 8)


@about_alibi.holds(
    "alibi.receptive-field",
    "An ALiBi head sees ln(100) / m positions: 99 % of the weight of like keys lies there, however long the text.",
    "ALiBi 每个头的视野约为 ln(100)/m 个位置：内容相同时 99% 的权重在其中，与文本长度无关。",
    says="Chi et al. 2022, on receptive fields",
    how="Weights of keys that are all alike at 4,096 and 16,384 keys: the keys that hold 99 % of them, for 8 heads.",
)
def receptive_field() -> Finding:
    alibi, numbers, good = Alibi(heads=8), {}, True
    for keys in (4096, 16_384):
        weights = alibi.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[:, 0].double().softmax(-1).flip(-1)
        reach = ((weights.cumsum(-1) < 0.99).sum(-1) + 1).tolist()
        # the geometric series: 1 - e^(-m n) = 0.99
        wanted = [math.ceil(math.log(100) * 2 ** (h + 1)) for h in range(8)]
        good &= reach == wanted
        numbers |= {f"head {h}, {keys:,} keys": reach[h] for h in (0, 7)}
    return decide(good, numbers, "a head sees another number of keys")


@about_alibi.holds_within(
    "alibi.key-form",
    "Slope times key position gives the same weights as slope times distance: a softmax drops what a row shares.",
    "“斜率×键位置”与“斜率×距离”给出相同权重：softmax 会消去一行共有的常数。",
    says=f"{PRESS}, the authors' code",
    how="Softmax of key_bias against that of score_bias, 8 heads, 600 keys.",
)
def key_form() -> Finding:
    alibi, ids = Alibi(heads=8), torch.arange(600)
    scores = normal(8, 600)
    by_key = (scores + alibi.key_bias(ids).double()).softmax(-1)
    by_distance = (scores + alibi.score_bias(ids[-1:], ids)[:, 0].double()).softmax(-1)
    return close(by_key - by_distance, 1e-6)


@about_alibi.fails(
    "alibi.symmetric",
    "The symmetric form for encoders, -m |i - j|, tells left from right.",
    "编码器用的对称形式 -m |i - j| 能区分左右。",
    says="ofirpress#5 asks; N5",
    how="Biases of keys before and after the query: symmetric, and split heads.",
)
def symmetric() -> Finding:
    ids = torch.arange(9)
    both, split = (Alibi(heads=8, form=form).score_bias(ids[4:5], ids)[:, 0] for form in ("symmetric", "split"))
    apart = largest(both[:, :4].flip(-1) - both[:, 5:])
    one_sided = split[:, :4].isinf().all(-1) ^ split[:, 5:].isinf().all(-1)
    numbers = {"symmetric: left against right": apart, "split: heads that see only one side": one_sided.sum()}
    text = "a key 3 before the query and one 3 after it have the same bias; split heads see one side each"
    return decide(apart > 0, numbers, text)


@About("alibi", rows=("N32",)).fails(
    "alibi.slopes-robust",
    "ALiBi's slopes make no difference: random ones in (0, 1) give the loss of the usual ones.",
    "ALiBi 的斜率怎么取都一样：在 (0, 1) 内随机取，损失与默认斜率相同。",
    says="the notes, who call slopes robust; N32",
    how="Loss of three draws of slopes less that of the usual ones, seed by seed, in an ablation of the lab.",
    trained=True,
)
def slopes_robust() -> Finding:
    differences = evidence.differences("slopes")
    if not differences:
        return needs_training("whorl lab ablate slopes --seeds 3")
    numbers = {f"{setting}, bits per byte": mean for setting, mean, _, _ in differences}
    apart = [difference for difference in differences if difference.low > 0 or difference.high < 0]
    texts = (
        f"{name} differs by {mean:+.2f} bits per byte, {low:+.2f} to {high:+.2f}" for name, mean, low, high in apart
    )
    text = f"{'; '.join(texts)}, in small models that are little trained"
    return decide(not apart, numbers, text, "experiments/ablations.json")
