"""What queries and keys become before linear attention sums them: a feature map, then the encoding's rotation.

Rotation comes after the feature map, because a map such as elu + 1 does not commute with it: rotated first, the
weights would no longer depend on the distance alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whorl.attend.features import Form, feature_map, unit
from whorl.attend.linear_checks import Rule
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Placement, QueryScale, first
from whorl.errors import WhorlError


class Terms(NamedTuple):
    """out_i = sum_j (a_i . b_j) values_j over sum_j plain_a_i . plain_b_j, or over the same weights' sum.

    Axes are (batch, key heads, groups, length, dim): query heads are key heads times groups.
    """

    a: Tensor
    b: Tensor  # one group; zero for keys that are left out
    values: Tensor  # one group; a last column of ones where the weights' sum is needed
    plain: tuple[Tensor, Tensor] | None


def make_terms(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, places: tuple[Tensor, Tensor], key_mask: Tensor | None, *, ones: bool
) -> Terms:
    """What a form sums, in float32 or, for float64 input, in float64; with ``ones`` always a column of ones."""
    encoding, feature, form = rule.encoding, rule.feature, rule.form
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    hidden = None if key_mask is None else ~key_mask[:, None, :, None]
    if hidden is not None:  # what they hold may be NaN, and 0 * NaN is NaN, in gradients of the feature map too
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    a, b, values = feature_map(q.to(wide), feature), feature_map(k.to(wide), feature), v.to(wide)
    if form == "one_plus_cosine":
        if not q.shape[-1]:
            raise WhorlError(
                f"{rule.call}: form='one_plus_cosine' compares directions, and q and k have no dimensions. "
                "Use another form."
            )
        a, b = unit(a), unit(b)
    plain = None if form == "unnormalised" or _one_sum(encoding, form) else (a, b)
    if encoding is not None:
        a, b = encoding.linear_qk(a, b, *places, rule.length)
    if form == "one_plus_cosine":
        a, b = (torch.cat((x, torch.ones_like(x[..., :1])), dim=-1) for x in (a, b))
    if ones or (form != "unnormalised" and plain is None):
        values = torch.cat((values, values.new_ones(*values.shape[:-1], 1)), dim=-1)
    if hidden is not None:
        b = b.masked_fill(hidden, 0.0)
        plain = None if plain is None else (plain[0], plain[1].masked_fill(hidden, 0.0))
    by_group = (k.shape[1], q.shape[1] // k.shape[1])
    if plain is not None:
        plain = (plain[0].unflatten(1, by_group), plain[1].unsqueeze(2))
    return Terms(a.unflatten(1, by_group), b.unsqueeze(2), values.unsqueeze(2), plain)


def _one_sum(encoding: Encoding | None, form: Form) -> bool:
    """Whether the denominator is the sum of the numerator's weights."""
    return form in ("both", "one_plus_cosine") or encoding is None or not first(encoding, Placement, QueryScale)
