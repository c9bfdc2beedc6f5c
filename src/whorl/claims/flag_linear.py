"""The flag ``linear_attention``, measured: whether an encoding has a linear form, and why not where it is refused."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import Encoding, linear_attention
from whorl.attend.features import feature_map
from whorl.claims.flag_words import EQUAL, FOLD, KEPT, SEEN
from whorl.claims.ledger import Both, Finding, decide, within
from whorl.claims.probes import doubles, largest, moved, normal, reach, refusal, sizes_of, spread, tokens, weights_at
from whorl.encodings.parts import Fade, QueryScale, RowLessColumn, first


def linear(encoding: Encoding, stated: bool) -> Finding:
    """Whether weights are products of placed queries and keys, and the linear form computes them."""
    encoding = moved(encoding)
    positions = spread(encoding, 12, reach(encoding))
    given = tokens(encoding, positions)
    apart = largest(weights_at(encoding, positions) - _weights_of_products(encoding, given.q, given.k, positions))
    numbers = {"weights against products of placed vectors": apart}
    if not stated:
        refused = refusal(lambda: linear_attention(*given[:3], encoding=encoding, positions=positions))
        taken = Both("linear attention takes it", "线性注意力接受了它")
        return _no_linear_form(encoding, numbers) if refused else decide(False, numbers, taken)
    a, b = feature_map(given.q, "elu+1"), feature_map(given.k, "elu+1")
    quadratic = _quadratic(encoding, a, b, given.v, positions)
    worst = largest(linear_attention(*given[:3], encoding=encoding, positions=positions, chunk=4, eps=0.0) - quadratic)
    if apart > EQUAL:
        text = Both(f"weights are no products, off by {apart:.3g}", f"权重不是内积，相差 {apart:.3g}")
    else:
        text = Both(f"the linear form is off by {worst:.3g}", f"线性形式相差 {worst:.3g}")
    return within(largest(doubles([apart, worst])), EQUAL, numbers | {"linear against quadratic": worst}, text)


def _no_linear_form(encoding: Encoding, numbers: dict[str, float]) -> Finding:
    """Whether linear attention is right to refuse the encoding."""
    if first(encoding, QueryScale):  # weights are products then, but normalising takes the factor away
        left = _after_normalising(encoding)
        numbers = numbers | {"left of the factor after normalising": left}
        return decide(left < KEPT, numbers, Both("its factor stays after normalising", "归一化之后因子仍在"))
    (apart,) = numbers.values()
    products = Both("weights are products of placed queries and keys", "权重就是放好位置的查询与键的内积")
    if encoding.folds:
        off = _off_when_folded(encoding)
        numbers = numbers | {"folded products against the bias": off, "further dimensions": encoding.fold_dims}
        if off > FOLD:
            return decide(False, numbers, Both(f"folded products are off by {off:.3g}", f"折入后的内积相差 {off:.3g}"))
    if first(encoding, RowLessColumn):
        off = _off_when_separated(encoding)
        numbers = numbers | {"the term against a number of the query less one of the key": off}
        if off > EQUAL:
            return decide(False, numbers, Both(f"the term is off by {off:.3g}", f"该项相差 {off:.3g}"))
    uneven = first(encoding, Fade) is not None  # refused because it leaves heads out, not because it has no linear form
    return decide(apart > SEEN or uneven, numbers, products)


def _off_when_folded(encoding: Encoding) -> float:
    """The difference between the bias and the products of the further dimensions, up to a number per query."""
    positions = torch.arange(40)
    a, b = encoding.fold(positions, positions, torch.float64, 1.0)
    bias = encoding.score_bias(positions, positions)
    assert bias is not None  # what folds is a bias
    off = (a @ b.mT - bias.double()).tril()
    return largest((off - off[..., :1]).tril())


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


def _weights_of_products(encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """Causal softmax weights of queries and keys placed by ``transform_qk`` alone."""
    q, k = encoding.transform_qk(q, k, positions, positions)
    scores = q @ k.mT * encoding.softmax_scale(q.shape[-1])
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)[0]


def _quadratic(encoding: Encoding, a: Tensor, b: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """RoFormer's equation 19 with the whole matrix of weights: placed features above, plain ones below."""
    placed_a, placed_b = encoding.transform_qk(a, b, positions, positions)
    top, bottom = (placed_a @ placed_b.mT).tril(), (a @ b.mT).tril()
    return top @ v / bottom.sum(-1, keepdim=True)


def _after_normalising(encoding: Encoding) -> float:
    """The change that a factor on queries makes to weights that are divided by their sum."""
    heads, head_dim, _ = sizes_of(encoding)
    positions = spread(encoding, 12, 16_500)
    q, k = feature_map(normal(2, 1, heads, 12, head_dim), "elu+1")

    def weights(a: Tensor, b: Tensor) -> Tensor:
        products = (a @ b.mT).tril()[..., 1:, :]  # the first query sees one key
        return products / products.sum(-1, keepdim=True)

    return largest(weights(*encoding.transform_qk(q, k, positions, positions)) - weights(q, k))
