"""Claims about linear attention: whether its weights are a probability, and how sharp they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from whorl import Rope, attention, linear_attention
from whorl.attend.features import Feature, Form, feature_map
from whorl.claims.compatibility.caches import COUNT, DIM, tokens
from whorl.claims.compatibility.linear import SU
from whorl.claims.ledger import About, Both, Finding, decide, shared
from whorl.claims.probes import doubles, largest, normal

about_rope = About("rope")


@shared
def stats(form: Form, feature: Feature = "elu+1") -> dict[str, float]:
    """Statistics of the weights of a form and feature, with RoPE."""
    _, found = linear_attention(*tokens(), encoding=Rope(head_dim=DIM), form=form, feature=feature, return_stats=True)
    return {
        "share of negative weights": float(found.negative_share),
        "least row sum": float(found.row_sums.min()),
        "largest row sum": float(found.row_sums.max()),
        "near-zero denominators": float(found.near_zero),
        "least denominator": float(found.min_denominator),
    }


@about_rope.holds(
    "linear.numerator-probability",
    "With RoPE in the numerator alone weights may be negative and rows need not sum to 1: they are no probability.",
    "只在分子中使用 RoPE 时，权重可能为负、每行之和不一定为 1：不再是概率分布。",
    says=f"{SU}, which says so of equation 19",
    how="256 tokens, causal, 2 heads of 16, elu + 1: more than 1 % of the weights are negative, and some row sums to "
    "less than 0.99; share and sums as counted from whole matrices, to 1e-7.",
    how_zh="256 个词、因果、2 个 16 维的头，elu + 1：超过 1% 的权重为负，且有某行之和小于 0.99；占比与各行之和均与由完"
    "整矩阵数出的相同，容差 1e-7。",
)
def numerator_probability() -> Finding:
    negative, least, most, *_ = stats("numerator").values()
    rope, ids, (a, b) = Rope(head_dim=DIM), torch.arange(COUNT), (elu(x) + 1 for x in tokens()[:2])
    weights = (rope.rotate(a, ids) @ rope.rotate(b, ids).mT).tril() / (a @ b.mT).tril().sum(-1, keepdim=True)
    rows, past = weights.sum(-1), torch.ones(COUNT, COUNT).tril().bool()
    share = (weights[..., past] < 0).double().mean()
    off = largest(doubles([negative, least, most]) - torch.stack((share, rows.min(), rows.max())))
    text = Both(f"rows sum to {least:.2f} … {most:.2f}", f"每行之和为 {least:.2f} … {most:.2f}")
    numbers = stats("numerator") | {"off the whole matrices by": off}
    return decide(negative > 0.01 and least < 0.99 and off < 1e-7, numbers, text)


@about_rope.holds(
    "linear.both-safe",
    "Rotated products in the denominator as well risk dividing by zero: they can cancel and change sign. Those of "
    "random tokens do in heads of 4 dimensions within 256 tokens; in heads of 64 they stay above zero there.",
    "分母也用旋转后的内积有除以零的风险：它们可能相互抵消、变号。随机的词在 4 维的头中 256 个词以内就会如此，在 64 维的"
    "头中此时都大于零。",
    says=f"{SU}, which keeps the denominator for this reason",
    how="256 x 50 tokens of 4 dimensions, elu + 1: some denominators are below a thousandth of the most they could be, "
    "some are negative; every plain one is above zero; all as summed from whole matrices, to 1e-9. Of as many of 64 "
    "dimensions none is negative, and one is where elu + 1 leaves nothing but the first of the fastest pair.",
    how_zh="4 维、256 × 50 个词，elu + 1：有的分母小于其可能最大值的千分之一，有的为负；不旋转的分母都为正；"
    "均与完整矩阵求和的结果比较，容差 1e-9。同样多的 64 维的词没有一个为负；若 elu + 1 只留下最快一对的第一维，则有分母"
    "为负。",
)
def both_safe() -> Finding:
    given, rope, ids = normal(3, 50, 1, COUNT, 4, seed=22), Rope(head_dim=4), torch.arange(COUNT)
    form = {"encoding": rope, "return_stats": True}
    _, found = linear_attention(*given, form="both", **form)
    _, plain = linear_attention(*given, form="numerator", **form)
    sums = found.row_sums[found.denominators.abs() > 1e-3]
    zeros, negative = int(found.near_zero), int((found.denominators < 0).sum())
    a, b = (elu(x) + 1 for x in given[:2])  # from the definitions, as whole matrices
    both, unturned = (x.tril().sum(-1) for x in (rope.rotate(a, ids) @ rope.rotate(b, ids).mT, a @ b.mT))
    most = a.norm(dim=-1) * b.norm(dim=-1).cumsum(-1)
    off = largest((found.denominators - both, plain.denominators - unturned))
    right = off < 1e-9 and zeros == int((both.abs() < most / 1000).sum())
    right = right and abs(float(found.min_denominator - both.abs().min())) < 1e-9
    usual, fast = _denominators(*normal(3, 50, 1, COUNT, 64, seed=22)), _denominators(*_fastest_pair_alone())
    right = right and float(usual.min()) > 0 > float(fast.min())
    numbers = {
        "near-zero denominators": zeros,
        "negative denominators": negative,
        "least |denominator|": found.min_denominator,
        "least plain denominator": plain.denominators.min(),
        "least denominator, heads of 64": usual.min(),
        "least of the fastest pair alone, heads of 64": fast.min(),
        "largest |row sum - 1|": largest(sums - 1),
        "denominators against whole matrices": off,
        "tokens": found.denominators.numel(),
    }
    text = Both(
        f"{zeros} denominators cancel and {negative} are negative, or they are not the sums of whole matrices",
        f"{zeros} 个分母抵消，{negative} 个为负，或与完整矩阵之和不符",
    )
    return decide(zeros > 0 and negative > 0 and right and float(plain.denominators.min()) > 0, numbers, text)


def _denominators(*given: Tensor) -> Tensor:
    """Those of form ``both``, heads of 64."""
    return linear_attention(*given, encoding=Rope(head_dim=64), form="both", return_stats=True)[1].denominators


def _fastest_pair_alone() -> tuple[Tensor, Tensor, Tensor]:
    """Four tokens of which elu + 1 leaves the first dimension alone, and of keys only the first's."""
    q = torch.full((1, 1, 4, 64), -30.0, dtype=torch.float64)
    k = q.clone()
    q[..., 0], k[:, :, 0, 0] = 10, 10
    return q, k, k


@about_rope.holds(
    "linear.one-plus-cosine",
    "1 + cos(q, k) with RoPE, no temperature in it, stays a probability: no weight is negative and rows sum to 1, "
    "unless all keys that a query sees are opposite to it once both are rotated, exactly or so nearly that eps, 1e-6, "
    "counts beside the weights' sum.",
    "带 RoPE（不含温度因子）的 1 + cos(q, k) 仍是概率：权重非负，每行和为 1，除非查询看到的键在旋转后都与它正好相反，或"
    "接近到 eps（1e-6）与权重之和相比不可忽略。",
    says="study notes, without the exception",
    how="256 tokens, 2 heads of 16, float64, as they are (identity) and by elu + 1: no weight below zero, row sums of "
    "1 to 1e-5, no denominator of zero; weights, read off with one-hot values, are 1 + cos over their sum, to 1e-5. "
    "And a first key that is opposite to its query, three times as long, identity: that row must sum to 0 to 1e-5; to "
    "D / (D + 1e-6), D = 1 - cos(0.001), to 1e-5, where the key is off by 0.001 radian; and to 1 there without eps. "
    "The other rows must sum to 1 to 1e-5.",
    how_zh="256 个词、2 个 16 维的头，float64，原样（identity）与 elu + 1：没有负权重，每行之和为 1（容差 1e-5），没有"
    "为零的分母；用独热的值读出的权重为 1 + cos 除以其和（容差 1e-5）。以及第一个键与其查询相反、长为三倍（identity）："
    "该行之和须为 0；键偏离 0.001 弧度时须为 D / (D + 1e-6)，D = 1 - cos(0.001)，不加 eps 则为 1；其余各行须为 1（容差"
    "都是 1e-5）。",
)
def one_plus_cosine() -> Finding:
    numbers, good = {}, True
    features: tuple[Feature, ...] = ("identity", "elu+1")
    for feature in features:
        found = stats("one_plus_cosine", feature)
        negative, least, most, _, denominator = found.values()
        good = good and negative == 0 and max(abs(least - 1), abs(most - 1)) < 1e-5 and denominator > 0
        numbers |= {f"{name}, {feature}": number for name, number in found.items()}
        numbers[f"weights off theirs, {feature}"] = apart = _off_one_plus_cosine(feature)
        good = good and apart < 1e-5
    off = 0.001
    nearly = 1 - math.cos(off)
    for name, angle, eps, right in (
        ("an opposite key alone", 0.0, 1e-6, 0.0),
        ("a key nearly opposite", off, 1e-6, nearly / (nearly + 1e-6)),
        ("a key nearly opposite, without eps", off, 0.0, 1.0),
    ):
        rows = _rows_of_opposite_key(angle, eps)
        numbers[f"row sum with {name}"] = rows[0, 0, 0]
        good = good and largest(rows[..., 0] - right) < 1e-5 and largest(rows[..., 1:] - 1) < 1e-5
    but = Both("a weight is negative, or a row does not sum to 1", "某个权重为负，或某行之和不为 1")
    return decide(good, numbers, but)


def _off_one_plus_cosine(feature: Feature) -> float:
    """How far weights, read off with one-hot values, are from 1 + cos of rotated features over their sum."""
    q, k, _ = tokens()
    rope, ids = Rope(head_dim=DIM), torch.arange(COUNT)
    a, b = (rope.rotate(normalize(feature_map(x, feature), dim=-1), ids) for x in (q, k))
    wanted = (1 + a @ b.mT).tril()
    one_hot = torch.eye(COUNT, dtype=q.dtype).expand(*q.shape[:2], COUNT, COUNT)
    own = linear_attention(q, k, one_hot, encoding=rope, form="one_plus_cosine", feature=feature)
    return largest(own - wanted / wanted.sum(-1, keepdim=True))


def _rows_of_opposite_key(angle: float, eps: float) -> Tensor:
    """Row sums where the first key, which its query sees alone, is ``angle`` off the opposite of that query."""
    q, k, v = tokens()
    here, side = q[:, :, :1], k[:, :, :1]
    side = side - here * (side * here).sum(-1, keepdim=True) / here.square().sum(-1, keepdim=True)
    side = side * here.norm(dim=-1, keepdim=True) / side.norm(dim=-1, keepdim=True)
    k = torch.cat((-3 * (math.cos(angle) * here + math.sin(angle) * side), k[:, :, 1:]), dim=2)
    form = {"form": "one_plus_cosine", "feature": "identity", "return_stats": True}
    return linear_attention(q, k, v, encoding=Rope(head_dim=DIM), eps=eps, **form)[1].row_sums


@about_rope.holds(
    "linear.one-plus-cosine-sharp",
    "1 + cos(q, k) of vectors as they are does not get sharper as they get longer, as a softmax does: at the query's "
    "position an equal key weighs twice an orthogonal one, however long both are. By elu + 1 it does, up to these two "
    "times.",
    "对原样的向量，1 + cos(q, k) 不会像 softmax 那样随其变长而变得尖锐：在查询所在的位置，无论向量多长，相同的键只有正"
    "交的键的两倍权重。经 elu + 1 则会变尖锐，但至多为这两倍。",
    says="whorl 0.2, docs/performance.md",
    how="The weight of a key equal to the query over that of an orthogonal one, 8 dimensions, as they are (identity), "
    "at equal positions and lengths 0.5, 1 and 1,000: 2 to 1e-6. By elu + 1 it must rise from length to length, 1, 4 "
    "and 1,000, and not pass 2. Of a softmax it must be e^(length^2 / sqrt(8)), to 1e-6 of it, at lengths 1 and 4.",
    how_zh="8 维、原样（identity）、位置相同、向量长度 0.5、1、1000：与查询相同的键的权重除以与之正交的键的权重：为 2（"
    "容差 1e-6）。经 elu + 1 须随长度（1、4、1000）增大且不超过 2。softmax 的须为 e^(长度² / √8)，长度取 1 与 4（相对容"
    "差 1e-6）。",
)
def one_plus_cosine_sharp() -> Finding:
    values, place = torch.eye(8, dtype=torch.float64)[None, None], torch.zeros(8, dtype=torch.int64)
    at, ratios = {"positions": place[:1], "key_positions": place, "encoding": Rope(head_dim=8), "causal": False}, {}

    def ratio_at(length: float, feature: Feature) -> float:
        keys = length * values
        weights = linear_attention(keys[:, :, :1], keys, values, form="one_plus_cosine", feature=feature, **at)
        return float(weights[..., 0] / weights[..., 1])

    for length in (0.5, 1.0, 1000.0):
        ratios[f"equal key over orthogonal key, length {length:g}"] = ratio_at(length, "identity")
    said = ", ".join(f"{ratio:.2f}" for ratio in ratios.values())
    text = Both(f"an equal key weighs {said} times an orthogonal one", f"相同的键是正交的键的 {said} 倍")
    stays = largest(doubles(list(ratios.values())) - 2) < 1e-6
    mapped = {f"by elu + 1, length {length:g}": ratio_at(length, "elu+1") for length in (1.0, 4.0, 1000.0)}
    short, middle, long = mapped.values()
    stays, ratios = stays and short < middle < long <= 2, ratios | mapped
    for length in (1.0, 4.0):
        keys = length * values
        weights = attention(keys[:, :, :1], keys, values, **at)
        ratio = float(weights[..., 0] / weights[..., 1])
        stays = stays and abs(ratio / math.exp(length**2 / math.sqrt(8)) - 1) < 1e-6
        ratios[f"by a softmax, length {length:g}"] = ratio
    return decide(stays, ratios, text)
