"""Long-range decay: what a score can be at a distance, by Abel summation, and what it is for given content.

Su et al. 2021, "RoFormer", section 3.4.3. With pairs as complex numbers the score at distance k = m - n is
    s(k) = Re sum_i h_i e^(i k w_i),      h_i = q_i conj(k_i)
and with S_j = sum_(i < j) e^(i k w_i), h_(d/2) = 0, S_0 = 0, summing by parts gives
    s(k) = Re sum_(j=1)^(d/2) (h_(j-1) - h_j) S_j,   |s(k)| <= max_j |h_(j-1) - h_j| sum_j |S_j|
The last difference is h_(d/2-1) itself and enters the maximum, so the bound is tight for smooth and small h only.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whorl.analysis.wavelengths import Array, real
from whorl.errors import invalid, unknown

Complex = NDArray[np.complex128]

LADDERS = ("exponential", "linear", "power")


def cosine_sum(frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """sum_i cos(w_i k): the score of two vectors with every h_i = 1, the product of two sinusoidal codes.

    >>> import whorl
    >>> cosine_sum(whorl.reference.frequencies(128), [0, 1, 8, 256]).round(4).tolist()
    [64.0, 62.0937, 45.7205, 20.5248]
    """
    return np.cos(_phases("cosine_sum", frequencies, distances)).sum(-1)


def partial_sums(frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """|S_1| … |S_(d/2)| at each distance, shape (…, pairs)."""
    return np.abs(np.cumsum(np.exp(1j * _phases("partial_sums", frequencies, distances)), axis=-1))


def abel_bound(frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """mean_j |S_j| at each distance: RoFormer's decay curve, the part of the bound that does not depend on content.

    >>> import whorl
    >>> abel_bound(whorl.reference.frequencies(128), [0, 1, 2, 128, 256]).round(4).tolist()
    [32.5, 31.5382, 28.956, 9.2729, 6.5431]
    """
    return partial_sums(frequencies, distances).mean(-1)


def pair_products(query: ArrayLike, key: ArrayLike, layout: Literal["half", "interleaved"] = "half") -> Complex:
    """h_i = q_i conj(k_i) of each pair, shape (…, pairs), from vectors of shape (…, 2 pairs)."""
    return _pairs(query, layout) * np.conj(_pairs(key, layout))


def scores(products: ArrayLike, frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """The score q . R_k k of given content at each distance, shape (…, distances).

    >>> scores([1.0, 1.0], [1.0, 0.1], [0.0, 10.0]).round(4).tolist()
    [2.0, -0.2988]
    """
    waves = np.exp(1j * _phases("scores", frequencies, distances))
    return np.einsum("...p,kp->...k", _products("scores", products, frequencies), waves).real


def score_bound(products: ArrayLike, frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """max_j |h_(j-1) - h_j| sum_j |S_j|, which no score of this content passes, shape (…, distances)."""
    products = _products("score_bound", products, frequencies)
    padded = np.concatenate((products, np.zeros_like(products[..., :1])), axis=-1)
    largest = np.abs(np.diff(padded, axis=-1)).max(-1)
    return largest[..., None] * partial_sums(frequencies, distances).sum(-1)


def aligned_products(frequencies: ArrayLike, distance: float) -> Complex:
    """The products of size 1 whose score is largest at this distance: content that decay does not touch.

    >>> w = [1.0, 0.1, 0.01]
    >>> float(scores(aligned_products(w, 300.0), w, [300.0])[0])
    3.0
    """
    return np.exp(-1j * _phases("aligned_products", frequencies, distance))


def ladder(kind: str, pairs: int, base: float = 10_000.0) -> Array:
    """Frequencies that fall from 1 along another curve, t = i / pairs: to see what decay owes to the exponential.

    exponential   base^-t, as RoPE
    linear        1 - t
    power         (1 - t)^2
    """
    if pairs <= 0:
        raise invalid("ladder", "pairs", "positive", pairs)
    t = np.arange(pairs) / pairs
    if kind not in LADDERS:
        raise unknown("ladder", kind, LADDERS, call="ladder")
    return {"exponential": lambda: base**-t, "linear": lambda: 1 - t, "power": lambda: (1 - t) ** 2}[kind]()


def rises(values: ArrayLike) -> int:
    """The number of steps of a curve that go up: 0 for one that falls step by step.

    >>> rises([3.0, 2.0, 2.5, 1.0])
    1
    """
    return int((np.diff(real("rises", "values", values)) > 0).sum())


def _phases(call: str, frequencies: ArrayLike, distances: ArrayLike) -> Array:
    return real(call, "distances", distances)[..., None] * real(call, "frequencies", frequencies)


def _products(call: str, products: ArrayLike, frequencies: ArrayLike) -> Complex:
    out, pairs = np.asarray(products, dtype=np.complex128), np.shape(frequencies)[-1]
    if out.shape[-1] != pairs:
        raise invalid(call, "products", f"one for each of {pairs} frequencies", out)
    return out


def _pairs(x: ArrayLike, layout: str) -> Complex:
    x = real("pair_products", "vectors", x)
    if x.shape[-1] % 2:
        raise invalid("pair_products", "vectors", "of even size", x)
    if layout == "half":
        first, second = np.split(x, 2, axis=-1)
    elif layout == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        raise unknown("layout", layout, ("half", "interleaved"), call="pair_products")
    return first + 1j * second
