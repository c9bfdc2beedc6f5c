"""Biases as arrays: by head, query and key, by distance, and the distance that a head still sees."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from whorl import Encoding
from whorl.analysis.wavelengths import Array, real, whole
from whorl.errors import WhorlError, invalid


def bias_map(encoding: Encoding, length: int, *, causal: bool = True) -> Array:
    """The bias of each head for every query and key, shape (heads, length, length); NaN where a query may not look.

    >>> import whorl
    >>> bias_map(whorl.Alibi(heads=8), 3)[0].tolist()
    [[0.0, nan, nan], [-0.5, 0.0, nan], [-1.0, -0.5, 0.0]]
    """
    ids = torch.arange(length, device="cpu")
    out = _bias(encoding, ids, ids)
    return np.where(np.tri(length, dtype=bool), out, np.nan) if causal else out


def bias_by_distance(encoding: Encoding, distances: ArrayLike) -> Array:
    """The bias of each head for keys at these distances before the query, shape (heads, distances).

    The query stands at the largest distance, which matters to FIRE alone.
    """
    back = torch.from_numpy(whole("bias_by_distance", "distances", distances))
    last = back.max().clamp(min=0)
    return _bias(encoding, last[None], last - back)[:, 0]


def receptive_field(bias: ArrayLike, share: float = 0.99) -> NDArray[np.int64]:
    """The number of nearest keys that hold this share of the weight when all content is the same, by head.

    ``bias`` is (heads, distances) for the distances 0, 1, 2 ….

    >>> import whorl
    >>> receptive_field(bias_by_distance(whorl.Alibi(heads=8), range(2048)))[:3].tolist()
    [10, 19, 37]
    """
    if not 0 < share < 1:
        raise invalid("receptive_field", "share", "between 0 and 1", share)
    bias = np.atleast_2d(real("receptive_field", "bias", bias))
    weights = np.exp(bias - bias.max(-1, keepdims=True))
    within = np.cumsum(weights, axis=-1) / weights.sum(-1, keepdims=True)
    return (within < share * (1 - math.ulp(1.0))).sum(-1) + 1


def _bias(encoding: Encoding, queries: torch.Tensor, keys: torch.Tensor) -> Array:
    with torch.no_grad():
        bias = encoding.score_bias(queries, keys)
    if bias is None:
        raise WhorlError(
            f"bias_map: {encoding.config.name} adds no bias to the scores. Use one that does: alibi, t5, kerple, fire, "
            "sandwich."
        )
    return bias.double().cpu().numpy()
