"""Feature maps and forms of linear attention, and which encodings have a linear form.

An encoding whose ``transform_qk`` also scales queries and keys by their positions (xPos) would overflow if it were
applied to the whole length. Linear attention fades its sums by ``linear_decay`` instead, and takes ``linear_qk``.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from whorl.encodings.base import Encoding
from whorl.encodings.parts import (
    Bias,
    Branches,
    Fade,
    OutputTerm,
    Part,
    Placement,
    QueryScale,
    ScoreTerm,
    Visibility,
    first,
)
from whorl.errors import WhorlError, invalid

Feature = Literal["elu+1", "relu", "squared_relu", "identity"]
Form = Literal["numerator", "both", "one_plus_cosine", "decay", "unnormalised"]

FEATURES: tuple[str, ...] = get_args(Feature)
FORMS: tuple[str, ...] = get_args(Form)

# Why an encoding with such a part has no linear form, the first that applies.
REASONS: dict[type[Part], str] = {
    Bias: "adds a bias to the score of each query and key",
    ScoreTerm: "changes the score of each query and key by their content",
    OutputTerm: "adds a term for each query and key to the output",
    Branches: "places a pair of query and key by their distance",
    Visibility: "hides keys by their distance",
    QueryScale: "scales queries for a softmax",
    Placement: "scales queries for a softmax",
}


def feature_map(x: Tensor, feature: Feature) -> Tensor:
    """The feature of every entry.

    >>> feature_map(torch.tensor([-1.0, 0.0, 2.0]), "elu+1")
    tensor([0.3679, 1.0000, 3.0000])
    """
    if feature == "elu+1":  # not elu(x) + 1, which loses e^x below the rounding of 1
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
    if feature == "identity":
        return x
    return x.relu() if feature == "relu" else x.relu().square()


def unit(x: Tensor) -> Tensor:
    """Every vector divided by its length; a zero vector stays zero, with a gradient of zero."""
    peak = x.detach().abs().amax(-1, keepdim=True)  # squares of tiny entries would vanish
    x = x / peak.masked_fill(peak == 0, 1.0)
    squares = x.square().sum(-1, keepdim=True)
    return x * squares.masked_fill(peak == 0, 1.0).rsqrt()


def check_encoding(call: str, encoding: Encoding | None) -> None:
    """Raises a WhorlError for an encoding that needs the score of each query and key."""
    if encoding is None:
        return
    if not isinstance(encoding, Encoding):
        raise invalid(call, "encoding", "an encoding or None", encoding, "Build one by name: whorl.build('rope', …).")
    for each in encoding.joined or (encoding,):
        if each.claims.linear_attention:
            continue
        reasons = [reason for kind, reason in REASONS.items() if first(each, kind)]
        why = f"it {reasons[0]}, and linear attention never forms scores" if reasons else "its claim says so"
        if first(each, Fade):
            why = "with these settings it does not fade all heads alike"
        remedy = "Use RoPE, xPos or another encoding whose claims.linear_attention is True"
        if first(each, Bias):
            remedy += "; a bias that is linear in the distance, as ALiBi's, becomes decay=… with its slopes"
        raise WhorlError(f"{call}: {type(each).__name__} has no linear form: {why}. {remedy}.")


def decay_rates(encoding: Encoding | None, form: Form) -> tuple[float, ...] | None:
    """How fast each dimension of ``Terms.a`` times ``Terms.b`` fades by the encoding alone, or None."""
    logs = None if encoding is None else encoding.linear_decay()
    if logs is None:
        return None
    rates = tuple(-log for log in logs)
    return (*rates, 0.0) if form == "one_plus_cosine" else rates


def position_axes(encoding: Encoding | None) -> int:
    """How many position axes a token has."""
    return 1 if encoding is None else encoding.axes
