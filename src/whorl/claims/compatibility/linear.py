"""Claims about linear attention: its forms, their weights, what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whorl import registry
from whorl.attend.features import feature_map
from whorl.attend.linear import LinearState, linear_attention
from whorl.attend.softmax import attention
from whorl.claims import flags
from whorl.claims.compatibility.caches import COUNT, DIM, tokens
from whorl.claims.ledger import About, Finding, all_within, close, decide, shared
from whorl.claims.probes import build, largest, normal
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Fade, Input, first
from whorl.encodings.rope import Rope
from whorl.encodings.xpos import XPos

SU = "Su et al. 2021, RoFormer, section 3.3"
about_rope = About("rope", rows=("N20",))
about_rope_and_xpos = About("rope", "xpos", rows=("N20",))


@about_rope.holds_within(
    "linear.forms-agree",
    "Chunked, parallel and recurrent linear attention with RoPE are the same numbers.",
    "带 RoPE 的线性注意力，分块、并行、递推三种算法结果相同。",
    says="N20",
    how="256 tokens by chunks of 16, in one chunk and one by one, five forms, float64.",
)
def forms_agree() -> Finding:
    rope, (q, k, v), numbers = Rope(head_dim=DIM), tokens(), {}
    for form in ("numerator", "both", "one_plus_cosine", "decay", "unnormalised"):
        options = {"encoding": rope, "form": form, "decay": 0.01 if form == "decay" else None}
        chunked = linear_attention(q, k, v, chunk=16, **options)
        parallel = linear_attention(q, k, v, chunk=COUNT, **options)
        state = LinearState(**options)
        steps = torch.cat([state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(32)], dim=2)
        # the denominator of "both" may cancel, and what float64 leaves grows with it
        numbers[form] = max(largest(chunked - parallel), largest(steps - chunked[:, :, :32]))
    return all_within(numbers, 1e-8)


@about_rope.holds_within(
    "linear.relative",
    "Rotated after the feature map, linear attention weights depend on the distance only.",
    "在特征映射之后旋转，线性注意力的权重只取决于距离。",
    says=f"{SU}, equation 19; N20",
    how="Outputs of 64 tokens at positions from 0 and from 1,000, elu + 1.",
)
def linear_relative() -> Finding:
    rope, given = Rope(head_dim=DIM), [x[:, :, :64] for x in tokens()]
    here, there = (linear_attention(*given, encoding=rope, positions=torch.arange(64) + s) for s in (0, 1000))
    return close(here - there, 1e-9)


@about_rope.fails(
    "linear.rotate-before",
    "It makes no difference whether queries and keys are rotated before or after the feature map.",
    "先旋转再做特征映射与先做特征映射再旋转没有区别。",
    says="codes that rotate first",
    how="Weights of elu + 1 of rotated q, k at one distance and two places, and of rotated elu + 1.",
)
def rotate_before() -> Finding:
    rope = Rope(head_dim=DIM)
    q, k = normal(2, 50, DIM, seed=21)

    def weight(place: int, before: bool) -> Tensor:
        def put(x: Tensor, at: int) -> Tensor:
            ids = torch.full((50,), at)
            return feature_map(rope.rotate(x, ids), "elu+1") if before else rope.rotate(feature_map(x, "elu+1"), ids)

        return (put(q, place) * put(k, place + 5)).sum(-1)

    first, after = (largest(weight(0, before) - weight(100, before)) for before in (True, False))
    numbers = {"rotated before: largest change": first, "rotated after: largest change": after}
    text = f"rotated before, a weight at distance 5 changes by {first:.2f} between two places"
    return decide(first < 1e-9, numbers, text)


@shared
def stats(form: str) -> dict[str, float]:
    """Statistics of the weights of a form, with RoPE and elu + 1."""
    _, found = linear_attention(*tokens(), encoding=Rope(head_dim=DIM), form=form, return_stats=True)  # pyright: ignore[reportArgumentType]
    return {
        "share of negative weights": float(found.negative_share),
        "least row sum": float(found.row_sums.min()),
        "largest row sum": float(found.row_sums.max()),
        "near-zero denominators": float(found.near_zero),
        "least denominator": float(found.min_denominator),
    }


@about_rope.fails(
    "linear.numerator-probability",
    "With RoPE in the numerator alone, the weights of linear attention are still a probability.",
    "只在分子中使用 RoPE 时，线性注意力的权重仍是概率分布。",
    says=f"{SU} leaves it open; N20",
    how="The share of negative weights and the row sums of 256 tokens.",
)
def numerator_probability() -> Finding:
    negative, least, most, *_ = stats("numerator").values()
    text = f"{negative:.1%} of the weights are negative, and rows sum to {least:.2f} … {most:.2f}"
    return decide(negative == 0 and abs(least - 1) < 1e-6, stats("numerator"), text)


@about_rope.fails(
    "linear.both-safe",
    "Rotated products may stand in the denominator too: they sum to 1 and nothing goes wrong.",
    "分母也可用旋转后的内积：权重和为 1，不会出问题。",
    says="the notes; N20",
    how="Row sums, and how far the denominators of 256 x 50 tokens of 4 dimensions cancel.",
)
def both_safe() -> Finding:
    given = normal(3, 50, 1, COUNT, 4, seed=22)
    _, found = linear_attention(*given, encoding=Rope(head_dim=4), form="both", return_stats=True)
    sums = found.row_sums[found.denominators.abs() > 1e-3]
    zeros, negative, count = int(found.near_zero), int((found.denominators < 0).sum()), found.denominators.numel()
    numbers = {
        "near-zero denominators": zeros,
        "negative denominators": negative,
        "least |denominator|": found.min_denominator,
        "largest |row sum - 1|": largest(sums - 1),
        "tokens": count,
    }
    text = f"{zeros} of {count:,} denominators cancel to a thousandth and {negative} are negative"
    return decide(zeros == negative == 0, numbers, text)


@about_rope.holds(
    "linear.one-plus-cosine",
    "1 + cos(q, k) with RoPE stays a probability: no weight is negative and rows sum to 1.",
    "带 RoPE 的 1 + cos(q, k) 仍是概率：权重非负，每行和为 1。",
    says="Su, kexue.fm 8265; N20",
    how="The same 256 tokens.",
)
def one_plus_cosine() -> Finding:
    negative, least, most, _, denominator = stats("one_plus_cosine").values()
    good = negative == 0 and max(abs(least - 1), abs(most - 1)) < 1e-5 and denominator > 0
    return decide(good, stats("one_plus_cosine"), "a weight is negative, or a row does not sum to 1")


@About(rows=("N20",)).fails(
    "linear.one-plus-cosine-sharp",
    "1 + cos(q, k) can be as sharp as a softmax.",
    "1 + cos(q, k) 可以像 softmax 一样尖锐。",
    says="its use in place of a softmax",
    how="The weight of a key equal to the query over that of an orthogonal one, at equal positions and any length.",
)
def one_plus_cosine_sharp() -> Finding:
    values, place = torch.eye(8, dtype=torch.float64)[None, None], torch.zeros(8, dtype=torch.int64)
    keys, at = 1000 * values, {"positions": place[:1], "key_positions": place, "encoding": Rope(head_dim=8)}
    weights = linear_attention(
        keys[:, :, :1], keys, values, form="one_plus_cosine", feature="identity", causal=False, **at
    )
    ratio = float(weights[..., 0] / weights[..., 1])
    text = f"an equal key weighs {ratio:.2f} times an orthogonal one, however long they are"
    return decide(ratio > 2 + 1e-6, {"equal key over orthogonal key": ratio}, text)


@about_rope.fails(
    "linear.rotated-larger",
    "A rotated weight is never larger than the plain one: |R_i a . R_j b| <= a . b for positive features.",
    "旋转后的权重不会大于原来的：对正特征有 |R_i a · R_j b| <= a · b。",
    says="an easy reading of the numerator form",
    how="1,000 pairs of random positive features, two positions apart.",
)
def rotated_larger() -> Finding:
    rope = Rope(head_dim=DIM)
    a, b = feature_map(normal(2, 1000, DIM, seed=23), "elu+1")
    turned = (rope.rotate(a, torch.full((1000,), 2)) * b).sum(-1).abs()
    ratio = float((turned / (a * b).sum(-1)).max())
    cauchy = float((turned / (a.norm(dim=-1) * b.norm(dim=-1))).max())
    numbers = {"largest rotated over plain": ratio, "largest over |a| |b|": cauchy}
    return decide(ratio <= 1, numbers, f"a rotated weight is {ratio:.2f} times the plain one; only |a| |b| bounds it")


@about_rope.fails(
    "note.decay-not-linear",
    "phi(q) phi(k) e^(-lambda |i - j|) is not linear: it needs the whole matrix.",
    "φ(q)φ(k)e^(-λ|i-j|) 不是线性的：需要完整的矩阵。",
    says="the notes; N20",
    how="The causal linear form against the matrix, and multiplications at 256 and 512 tokens.",
)
def decay_not_linear() -> Finding:
    q, k, v = tokens()
    ids = torch.arange(COUNT)
    fade = torch.exp(-0.02 * (ids[:, None] - ids).double()).tril()
    a, b = feature_map(q, "elu+1"), feature_map(k, "elu+1")
    plain = (a @ b.mT) * fade
    quadratic = plain @ v / plain.sum(-1, keepdim=True)
    apart = largest(linear_attention(q, k, v, form="decay", decay=0.02, chunk=16, eps=0.0) - quadratic)
    growth = _growth(_linear(None, decay=0.02))
    text = f"the sums are the same to {apart:.0e}, and work doubles with the length"
    numbers = {"largest difference": apart, "work at 512 over 256": growth}
    return decide(apart > 1e-6 or growth > 2.5, numbers, f"e^(-l(i-j)) = e^(-li) e^(lj): {text}")


class Multiplications(TorchFunctionMode):
    """Counts the multiplications of matrix products; torch's own counter would import a compiler to do it."""

    PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.PRODUCTS:
            self.count += out.numel() * args[0].shape[-1]
        return out


def _growth(call: Callable[[Tensor, Tensor, Tensor], Any]) -> float:
    """The growth of the multiplications when the length doubles from 256."""
    found = []
    for count in (COUNT, 2 * COUNT):
        with Multiplications() as counter:
            call(*normal(3, 1, 1, count, DIM))
        found.append(counter.count)
    return found[1] / found[0]


def _linear(encoding: Encoding | None, decay: float | None = None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    form = "decay" if decay else "numerator"
    return lambda q, k, v: linear_attention(q, k, v, encoding=encoding, form=form, decay=decay, chunk=32)


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, encoding=Rope(head_dim=DIM), return_weights=True)[0]


@about_rope_and_xpos.holds(
    "linear.cost",
    (
        "Linear attention with RoPE and with xPos is linear: twice the tokens are twice the multiplications, softmax "
        "four times."
    ),
    "带 RoPE 或 xPos 的线性注意力是线性的：词数加倍，乘法加倍；softmax 则为四倍。",
    says="N20",
    how="Multiplications counted at 256 and 512 tokens, chunks of 32.",
)
def cost() -> Finding:
    rope, xpos = (_growth(_linear(encoding)) for encoding in (Rope(head_dim=DIM), XPos(head_dim=DIM)))
    softmax = _growth(_softmax)
    numbers = {"RoPE": rope, "xPos": xpos, "softmax with RoPE": softmax}
    return decide(max(rope, xpos) < 2.2 and softmax > 3.5, numbers, "work grows faster than the length")


@about_rope_and_xpos.fails(
    "note.only-rope-linear",
    "RoPE is the only relative encoding that works with linear attention.",
    "RoPE 是唯一可用于线性注意力的相对位置编码。",
    says="the notes, after RoFormer; N20",
    how="Every registered encoding that is relative: the linear form against the quadratic.",
)
def only_rope_linear() -> Finding:
    works = []
    for name in registry.names():
        encoding = build(name)
        stated = encoding.claims.relative and encoding.claims.linear_attention
        if stated and flags.linear(encoding, True).verdict.kind == "holds within":
            works.append(name)
    others = [name for name in works if first(build(name), Input, Fade)]
    numbers = {"relative encodings that work": len(works), "that are no RoPE, nor none": len(others)}
    return decide(not others, numbers, f"{', '.join(others)} works as well: it fades its sums dimension by dimension")


@About("xpos", rows=("N20",)).fails(
    "note.xpos-quadratic",
    "xPos costs O(L^2).",
    "xPos 的代价是 O(L²)。",
    says="the notes; N20",
    how="Multiplications of linear attention with xPos at 256 and 512 tokens.",
)
def xpos_quadratic() -> Finding:
    growth = _growth(_linear(XPos(head_dim=DIM)))
    text = f"twice the tokens are {growth:.2f} times the work; xPos itself touches each query and key once"
    return decide(growth > 3, {"work at 512 over 256": growth}, text)
