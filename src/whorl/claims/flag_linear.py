"""The flag ``linear_attention``, measured: whether an encoding has a linear form, and why not where it is refused."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import Encoding, attention, linear_attention
from whorl.attend.features import feature_map
from whorl.claims.flag_words import EQUAL, FOLD, KEPT, SEEN
from whorl.claims.ledger import Both, Finding, decide, within
from whorl.claims.probes import FARTHEST, doubles, largest, moved, normal, reach, refusal, sizes_of, spread, tokens
from whorl.encodings.parts import Fade, QueryScale, RowLessColumn, first


def linear(encoding: Encoding, stated: bool) -> Finding:
    """Whether attention is made of products of placed queries and keys, and the linear form computes them."""
    encoding = moved(encoding)
    places = [spread(encoding, 12, min(farthest, reach(encoding))) for farthest in (11, 1650, FARTHEST)]
    apart = largest(_off_products(encoding, positions) for positions in places)
    numbers = {"attention against products of placed vectors": apart}
    if not stated:
        given = tokens(encoding, places[0])
        refused = refusal(lambda: linear_attention(*given[:3], encoding=encoding, positions=places[0]))
        taken = Both("linear attention takes it", "线性注意力接受了它")
        return _no_linear_form(encoding, numbers) if refused else decide(False, numbers, taken)
    scale = first(encoding, QueryScale)
    if scale is not None and (left := _after_normalising(scale.encoding)) < KEPT:
        lost = Both("normalising takes away its factor on queries", "归一化会消去它在查询上的因子")
        return decide(False, numbers | {"left of the factor after normalising": left}, lost)
    worst = largest(_off_quadratic(encoding, positions) for positions in places)
    if apart > EQUAL:
        text = Both(f"weights are no products, off by {apart:.3g}", f"权重不是内积，相差 {apart:.3g}")
    else:
        text = Both(f"the linear form is off by {worst:.3g}", f"线性形式相差 {worst:.3g}")
    return within(largest(doubles([apart, worst])), EQUAL, numbers | {"linear against quadratic": worst}, text)


def _no_linear_form(encoding: Encoding, numbers: dict[str, float]) -> Finding:
    """Whether linear attention is right to refuse the encoding."""
    (apart,) = numbers.values()
    right = apart > SEEN
    if encoding.folds:
        off, dims = _off_when_folded(encoding)
        numbers = numbers | {"folded products against the bias": off, "further dimensions": dims}
        if off > FOLD or dims != encoding.fold_dims:
            return decide(False, numbers, Both(f"folded products are off by {off:.3g}", f"折入后的内积相差 {off:.3g}"))
    if first(encoding, RowLessColumn):
        off = _off_when_separated(encoding)
        numbers = numbers | {"the term against a number of the query less one of the key": off}
        if off > EQUAL:
            return decide(False, numbers, Both(f"the term is off by {off:.3g}", f"该项相差 {off:.3g}"))
    scale = first(encoding, QueryScale)
    if scale is not None:  # weights may be products then, but normalising takes the factor away
        left = _after_normalising(scale.encoding)
        numbers = numbers | {"left of the factor after normalising": left}
        if left >= KEPT:
            return decide(False, numbers, Both("its factor stays after normalising", "归一化之后因子仍在"))
        right = True
    if first(encoding, Fade):  # weights are products then too, which need not fade in all heads alike
        off = _off_when_faded(encoding)
        numbers = numbers | {"products that fade alike in all heads against its own": off}
        right = right or off > SEEN
    products = Both("weights are products of placed queries and keys", "权重就是放好位置的查询与键的内积")
    return decide(right, numbers, products)


def _off_when_folded(encoding: Encoding) -> tuple[float, int]:
    """The bias against the products of the further dimensions, up to a number per query; and how many they are."""
    positions = torch.arange(40)
    a, b = encoding.fold(positions, positions, torch.float64, 1.0)
    bias = encoding.score_bias(positions, positions)
    assert bias is not None  # what folds is a bias
    off = (a @ b.mT - bias.double()).tril()
    return largest((off - off[..., :1]).tril()), a.shape[-1]


def _off_when_faded(encoding: Encoding) -> float:
    """The difference between products of placed vectors and those that fade by ``linear_decay`` in every head."""
    heads, head_dim, _ = sizes_of(encoding)
    positions = torch.arange(12) * 150
    q, k = normal(2, 1, heads, 12, head_dim)
    a, b = encoding.transform_qk(q, k, positions, positions)
    plain_a, plain_b = encoding.linear_qk(q, k, positions, positions)
    logs = doubles(encoding.linear_decay() or [0.0] * head_dim)
    fading = ((positions[:, None] - positions).clamp(min=0)[..., None] * logs).exp()
    return largest((a @ b.mT - torch.einsum("bhid,bhjd,ijd->bhij", plain_a, plain_b, fading)).tril())


def _off_when_separated(encoding: Encoding) -> float:
    """How far the terms of two queries are from differing by one number for all keys."""
    heads, _, _ = sizes_of(encoding)
    positions = torch.arange(12)
    given = tokens(encoding, positions)
    assert given.hidden is not None  # what gates are read from
    kept, zeros = encoding.remember(given.hidden), torch.zeros(1, heads, 12, 12, dtype=torch.float64)
    term = encoding.adjust_scores(zeros, given.q, given.k, positions, positions, kept, scale=1.0)
    apart = term[..., -1, :11] - term[..., -2, :11]
    return largest(apart - apart[..., :1])


def _off_products(encoding: Encoding, positions: Tensor) -> Tensor:
    """Causal attention, weights and outputs, less that of queries and keys placed by ``transform_qk`` alone."""
    given = tokens(encoding, positions)
    out, weights = attention(*given[:3], encoding=encoding, positions=positions, return_weights=True, **given.options())
    q, k = encoding.transform_qk(given.q, given.k, positions, positions)
    scores = q @ k.mT * encoding.softmax_scale(q.shape[-1])
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    products = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.cat((weights - products, out - products @ given.v), dim=-1)


def _off_quadratic(encoding: Encoding, positions: Tensor) -> Tensor:
    """The linear form less RoFormer's equation 19 with the whole matrix: placed features above, plain ones below."""
    q, k, v, _ = tokens(encoding, positions)
    a, b = feature_map(q, "elu+1"), feature_map(k, "elu+1")
    placed_a, placed_b = encoding.transform_qk(a, b, positions, positions)
    top, bottom = (placed_a @ placed_b.mT).tril(), (a @ b.mT).tril()
    linear = linear_attention(q, k, v, encoding=encoding, positions=positions, chunk=4, eps=0.0)
    return linear - top @ v / bottom.sum(-1, keepdim=True)


def _after_normalising(encoding: Encoding) -> float:
    """The change that a factor on queries makes to weights that are divided by their sum."""
    heads, head_dim, _ = sizes_of(encoding)
    positions = spread(encoding, 12, FARTHEST)
    q, k = feature_map(normal(2, 1, heads, 12, head_dim), "elu+1")

    def weights(a: Tensor, b: Tensor) -> Tensor:
        products = (a @ b.mT).tril()[..., 1:, :]  # the first query sees one key
        return products / products.sum(-1, keepdim=True)

    return largest(weights(*encoding.transform_qk(q, k, positions, positions)) - weights(q, k))
