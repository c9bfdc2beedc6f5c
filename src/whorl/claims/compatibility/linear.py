"""Claims about linear attention: its forms, their weights, what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize
from torch.overrides import TorchFunctionMode

from whorl import Encoding, LinearState, NoPE, Rope, XPos, attention, linear_attention, registry
from whorl.attend.features import Feature, Form, feature_map
from whorl.claims.compatibility.caches import COUNT, DIM, tokens
from whorl.claims.flag_linear import linear
from whorl.claims.ledger import About, Both, Finding, all_within, decide, shared, within
from whorl.claims.probes import build, doubles, largest, normal
from whorl.encodings.parts import Placement, SoftmaxScale, settled

LONG = 2048  # where a product of all chunks with all would show; at 256 it is lost beside the rest
LINEAR = 2.2  # work that grows by less when the length doubles counts as linear
SU = "Su et al. 2021, RoFormer, section 3.3"
about_rope = About("rope")
about_rope_and_xpos = About("rope", "xpos")


@about_rope.holds_within(
    "linear.forms-agree",
    "Chunked, parallel and recurrent linear attention with RoPE are the same numbers.",
    "带 RoPE 的线性注意力，分块、并行、递推三种算法结果相同。",
    says="whorl 0.2, docs/performance.md",
    how="256 tokens, 2 heads of 16, by chunks of 16 and in one chunk, the first 32 one by one, five forms (that with "
    "decay at 0.01), float64: differences over the largest entry of the same output.",
    how_zh="256 个词、2 个 16 维的头，按 16 分块与整块计算，前 32 个逐个计算，五种形式（带衰减的取 0.01），float64：差"
    "别除以同一输出的最大分量。",
)
def forms_agree() -> Finding:
    rope, (q, k, v), numbers = Rope(head_dim=DIM), tokens(), {}
    for form in ("numerator", "both", "one_plus_cosine", "decay", "unnormalised"):
        options = {"encoding": rope, "form": form, "decay": 0.01 if form == "decay" else None}
        chunked = linear_attention(q, k, v, chunk=16, **options)
        parallel = linear_attention(q, k, v, chunk=COUNT, **options)
        state = LinearState(**options)
        steps = torch.cat([state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(32)], dim=2)
        apart = torch.cat((chunked - parallel, steps - chunked[:, :, :32]), dim=2)
        # the denominator of "both" may nearly cancel, and outputs grow with what float64 leaves of it
        size = torch.cat((chunked, chunked[:, :, :32]), dim=2).abs().amax(-1, keepdim=True)
        numbers[form] = largest(apart / size)
    return all_within(numbers, 1e-8)


@about_rope.holds_within(
    "linear.relative",
    "Rotated after the feature map, linear attention weights depend on the distance only.",
    "在特征映射之后旋转，线性注意力的权重只取决于距离。",
    says=f"{SU}, equation 19, by equation 16",
    how="Outputs of 64 tokens, 2 heads of 16, elu + 1, with a causal mask and without, at positions from 0 and from 1, "
    "37 and 1,000, bases 10,000 and 100: the same; and at distances three times as large: other by more than 0.01.",
    how_zh="64 个词、2 个 16 维的头，elu + 1，有因果掩码与没有，底数 10000 与 100，位置从 0 与从 1、37、1000 开始的输出"
    "：相同；距离扩大到三倍时的输出：相差超过 0.01。",
)
def linear_relative() -> Finding:
    given, ids, shifted, spread = [x[:, :, :64] for x in tokens()], torch.arange(64), [], []
    for base, causal in product((10_000.0, 100.0), (True, False)):
        rope = Rope(head_dim=DIM, base=base)
        here, apart, *there = (
            linear_attention(*given, encoding=rope, positions=at, causal=causal)
            for at in (ids, 3 * ids, *(ids + s for s in (1, 37, 1000)))
        )
        shifted += [each - here for each in there]
        spread.append(largest(apart - here))
    least = float(doubles(spread).min())  # NaN where one is, which min would pass by
    numbers = {"largest change, shifted": largest(shifted), "least change, three times as far": least}
    if not least > 0.01:
        text = f"at three times the distance outputs change by {least:.3g} only"
        return decide(False, numbers, Both(text, f"距离为三倍时输出只变化 {least:.3g}"))
    return within(largest(shifted), 1e-9, numbers)


@about_rope.holds(
    "linear.rotate-before",
    "Rotated before the feature map elu + 1 or relu, linear attention weights are not relative; rotated after it they "
    "are.",
    "先旋转再做特征映射 elu + 1 或 relu，线性注意力的权重不是相对的；先做特征映射再旋转才是。",
    says=f"{SU}, equation 19, which rotates after",
    how="Weights of 16 tokens, 2 heads of 16, both feature maps, read off linear_attention with one-hot values, at "
    "positions from 0 and from 100: with RoPE as its encoding, which rotates after, they change by less than 1e-9, and "
    "by more than 0.01 where positions are three apart; with none, on queries and keys that were rotated before, they "
    "change by more than 0.01.",
    how_zh="16 个词、2 个 16 维的头，两种特征映射，用独热的值从 linear_attention 读出权重，位置从 0 与从 100 开始：以 "
    "RoPE 作其编码（之后旋转），权重变化不到 1e-9，而位置间隔为三时变化超过 0.01；不用编码、先旋转好查询和键再送入，变"
    "化超过 0.01。",
)
def rotate_before() -> Finding:
    rope, (q, k, _) = Rope(head_dim=DIM), (x[:, :, :16] for x in tokens())
    one_hot = torch.eye(16, dtype=q.dtype).expand(1, 2, 16, 16)

    def weights(feature: Feature, before: bool, start: int, step: int = 1) -> Tensor:
        ids = torch.arange(16) * step + start
        if before:
            q_turned, k_turned = rope.rotate(q, ids), rope.rotate(k, ids)
            return linear_attention(q_turned, k_turned, one_hot, encoding=NoPE(), positions=ids, feature=feature)
        return linear_attention(q, k, one_hot, encoding=rope, positions=ids, feature=feature)

    def change(before: bool, **other: int) -> Tensor:
        maps: tuple[Feature, ...] = ("elu+1", "relu")
        return doubles([largest(weights(one, before, 0) - weights(one, before, **other)) for one in maps])

    # of tensors: NaN where one is, which min and max of Python would pass by
    first, after = float(change(True, start=100).min()), float(change(False, start=100).max())
    spread = float(change(False, start=0, step=3).min())
    numbers = {"rotated before: least change": first, "rotated after: largest change": after}
    numbers |= {"rotated after, positions three apart: least change": spread}
    text = Both(
        f"weights change by {first:.3g} and {after:.3g} between places", f"两处权重之差为 {first:.3g} 与 {after:.3g}"
    )
    return decide(first > 0.01 and after < 1e-9 and spread > 0.01, numbers, text)


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


@about_rope.fails(
    "note.decay-not-linear",
    "phi(q) phi(k) e^(-lambda |i - j|) is not linear: it needs the whole matrix.",
    "φ(q)φ(k)e^(-λ|i-j|) 不是线性的：需要完整的矩阵。",
    says="study notes",
    how="256 tokens, 2 heads of 16, lambda = 0.02 and 2, with a causal mask and without: the linear form against the "
    "matrix, to 1e-6; and multiplications of matrix products, lambda = 0.02, chunks of 32, at 512 tokens over those at "
    "256 and at 4,096 over those at 2,048, with the mask and without, and entries of the largest product: 2.2 or "
    "more would not be linear, and 1.8 or less no doubling.",
    how_zh="256 个词、2 个 16 维的头，λ = 0.02 与 2，有因果掩码与没有：线性形式与完整矩阵比较（容差 1e-6）；以及分块 "
    "32、λ = 0.02 时 512 个词与 256 个词、4096 个词与 2048 个词的矩阵乘积中的乘法次数之比（有掩码与没有），以及最大"
    "乘积的元素数之比：达到 2.2 才算不是线性，不超过 1.8 则不算加倍。",
)
def decay_not_linear() -> Finding:
    (q, k, v), ids, apart = tokens(), torch.arange(COUNT), []
    weights = feature_map(q, "elu+1") @ feature_map(k, "elu+1").mT
    for rate in (0.02, 2.0):
        faded = weights * torch.exp(-rate * (ids[:, None] - ids).abs().double())
        for causal in (True, False):
            plain = faded.tril() if causal else faded
            quadratic = plain @ v / plain.sum(-1, keepdim=True)
            own = linear_attention(q, k, v, form="decay", decay=rate, chunk=16, eps=0.0, causal=causal)
            apart.append(largest(own - quadratic))
    runs = [_linear(None, decay=0.02, causal=causal) for causal in (True, False)]
    growths = [_growth(run, count) for run in runs for count in (COUNT, LONG)]
    worst, growth = largest(doubles(apart)), max(growths)
    text = f"the sums are the same to {worst:.0e}, and work doubles with the length"
    numbers = {"largest difference": worst, "largest growth of the work at twice the length": growth}
    but = Both(
        f"for j before i, e^(-lambda (i-j)) = e^(-lambda i) e^(lambda j), and the other way round after it: {text}",
        f"j 在 i 之前时 e^(-λ(i-j)) = e^(-λi) e^(λj)，之后则相反：两者只差 {worst:.0e}，计算量随长度加倍",
    )
    return decide(worst > 1e-6 or growth >= LINEAR, numbers, but, instead=min(growths) > 1.8)


class Multiplications(TorchFunctionMode):
    """Counts the multiplications of matrix products, and keeps the entries of the largest product.

    Torch's own counter would import a compiler to do it.
    """

    PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__)

    def __init__(self) -> None:
        super().__init__()
        self.count = self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.PRODUCTS:
            self.count += out.numel() * args[0].shape[-1]
        if func in (*self.PRODUCTS, torch.einsum, torch.bmm, torch.baddbmm):
            self.largest = max(self.largest, out.numel())
        return out


def _growth(call: Callable[[Tensor, Tensor, Tensor], Any], count: int = COUNT) -> float:
    """The growth of the multiplications or of the largest product, when the length doubles from this one."""
    found = []
    for length in (count, 2 * count):
        with Multiplications() as counter:
            call(*normal(3, 1, 1, length, DIM))
        found.append((counter.count, counter.largest))
    return max(twice / once for once, twice in zip(*found, strict=True))


def _linear(
    encoding: Encoding | None, decay: float | None = None, causal: bool = True
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    form = "decay" if decay else "numerator"
    return lambda *qkv: linear_attention(*qkv, encoding=encoding, form=form, decay=decay, causal=causal, chunk=32)


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, encoding=Rope(head_dim=DIM), return_weights=True)[0]


@about_rope_and_xpos.holds(
    "linear.cost",
    "Linear attention with RoPE and with xPos is linear: twice the tokens are twice the multiplications, softmax four "
    "times.",
    "带 RoPE 或 xPos 的线性注意力是线性的：词数加倍，乘法加倍；softmax 则为四倍。",
    says="whorl 0.2, docs/performance.md; the study notes say that xPos costs O(L^2)",
    how="Multiplications of matrix products, counted at 256 and at 512 tokens of 16 dimensions, chunks of 32: between "
    "1.8 and 2.2 times as many with RoPE and with xPos, also from 2,048 to 4,096 tokens, and between 3.5 and 4.5 times "
    "as many in a softmax; and so the entries of the largest product.",
    how_zh="16 维、分块 32，统计 256 与 512 个词时矩阵乘积的乘法次数：RoPE 与 xPos 的为 1.8 到 2.2 倍（从 2048 到 4096 "
    "个词也是），softmax 的为 3.5 到 4.5 倍；最大乘积的元素数也如此。",
)
def cost() -> Finding:
    encodings = {"RoPE": Rope(head_dim=DIM), "xPos": XPos(head_dim=DIM)}
    numbers = {
        f"{name}, {2 * count:,} tokens over {count:,}": _growth(_linear(encoding), count)
        for name, encoding in encodings.items()
        for count in (COUNT, LONG)
    }
    least, most, softmax = min(numbers.values()), max(numbers.values()), _growth(_softmax)
    text = Both(
        f"at twice the length the work grows to {least:.2f} … {most:.2f} times, in a softmax to {softmax:.2f}",
        f"长度加倍时计算量增至 {least:.2f} … {most:.2f} 倍，softmax 增至 {softmax:.2f} 倍",
    )
    so = least > 1.8 and most < LINEAR and 3.5 < softmax < 4.5
    return decide(so, numbers | {"softmax with RoPE": softmax}, text)


@about_rope_and_xpos.fails(
    "note.only-rope-linear",
    "RoPE is the only relative encoding that works with linear attention.",
    "RoPE 是唯一可用于线性注意力的相对位置编码。",
    says="study notes, without the hedge of the RoFormer authors' README (github.com/ZhuiyiTechnology/roformer): to "
    "the best of our knowledge",
    how="Every registered encoding that is relative and said to work there, 12 tokens, near and far apart: the linear "
    "form against the quadratic, and attention against products of placed queries and keys, to 1e-6. It is so if all "
    "that do are rotations or none; each other one must fade in every dimension, and not in all alike.",
    how_zh="每个声明可用的已注册相对编码，12 个词（远近都有）：线性形式与平方形式比较，注意力与放好位置的查询、键的内积"
    "比较，容差 1e-6。若可用的只有旋转与不加编码，则成立；其余的每一维都须衰减，且快慢不全相同。",
)
def only_rope_linear() -> Finding:
    works = []
    for name in registry.names():
        encoding = build(name)
        stated = encoding.claims.relative and encoding.claims.linear_attention
        if stated and linear(encoding, True).verdict.kind == "holds within":
            works.append(name)
    others = [name for name in works if not _turns_only(build(name))]
    numbers = {"relative encodings that work": len(works), "that are no RoPE, nor none": len(others)}
    but = Both(
        f"{', '.join(others)} works as well: it fades its sums dimension by dimension",
        f"{', '.join(others)} 同样可用：它逐维对累积的和作衰减",
    )
    rates = [build(name).linear_decay() or (0.0,) for name in others]
    return decide(not others, numbers, but, instead=all(max(own) < 0 and len(set(own)) > 1 for own in rates))


def _turns_only(encoding: Encoding) -> bool:
    """Whether all that an encoding does to queries and keys is to turn them."""
    turned = [part for part in settled(encoding) if not isinstance(part, SoftmaxScale)]
    return all(isinstance(part, Placement) and part.rotary is not None for part in turned)
