"""A small reference in NumPy, without torch: the formulas as one would write them on paper, in float64.

For teaching and for checking; the library itself computes elsewhere and is tested against these.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whorl.errors import invalid, unknown

Array = NDArray[np.float64]


def frequencies(dim: int, base: float = 10_000.0) -> Array:
    """w_i = base^(-2i/dim) for i < dim/2, fastest first."""
    if dim <= 0 or dim % 2:
        raise invalid("frequencies", "dim", "even and positive", dim)
    return base ** (-np.arange(0, dim, 2) / dim)


def sinusoidal(positions: ArrayLike, width: int, base: float = 10_000.0) -> Array:
    """The sinusoidal code of each position, sin and cos interleaved (Vaswani et al. 2017), shape (…, width).

    >>> sinusoidal(2, 8).round(5).tolist()
    [0.9093, -0.41615, 0.19867, 0.98007, 0.02, 0.9998, 0.002, 1.0]
    """
    angles = np.asarray(positions, dtype=np.float64)[..., None] * frequencies(width, base)
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(*angles.shape[:-1], width)


def rope(
    x: ArrayLike, positions: ArrayLike, *, base: float = 10_000.0, layout: Literal["half", "interleaved"] = "half"
) -> Array:
    """x of shape (…, length, dim) with each pair turned by position times frequency (Su et al. 2021).

    >>> rope([[1.0, 2.0, 3.0, 4.0]], [2], layout="interleaved").round(6).tolist()
    [[-2.234742, 0.077004, 2.919405, 4.059196]]
    """
    x = np.asarray(x, dtype=np.float64)
    angles = np.asarray(positions, dtype=np.float64)[..., None] * frequencies(x.shape[-1], base)
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(x)
    if layout == "half":
        first, second = np.s_[..., : x.shape[-1] // 2], np.s_[..., x.shape[-1] // 2 :]
    elif layout == "interleaved":
        first, second = np.s_[..., 0::2], np.s_[..., 1::2]
    else:
        raise unknown("layout", layout, ("half", "interleaved"), call="rope")
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out


def alibi_slopes(heads: int) -> Array:
    """The slope of each head in the authors' rule (Press et al. 2021).

    A power of two has the geometric sequence 2^(-8h/heads). Any other number takes that of the next
    lower power, then every other slope of the next higher one.

    >>> alibi_slopes(8).tolist()[:3], alibi_slopes(3).tolist()
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    if heads <= 0:
        raise invalid("alibi_slopes", "heads", "positive", heads)
    lower = 1 << (heads.bit_length() - 1)
    whole = 2.0 ** (-8 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-4 * np.arange(1, 2 * lower + 1, 2) / lower)
    return np.concatenate((whole, between[: heads - lower]))


def similarity(distances: ArrayLike, dim: int, base: float = 10_000.0) -> Array:
    """sum_i cos(w_i k): the inner product of two sinusoidal codes at distance k.

    >>> similarity([0, 1, 8, 256], 128).round(4).tolist()
    [64.0, 62.0937, 45.7205, 20.5248]
    """
    return np.cos(np.asarray(distances, dtype=np.float64)[..., None] * frequencies(dim, base)).sum(-1)


def decay(distances: ArrayLike, dim: int, base: float = 10_000.0) -> Array:
    """mean_j |S_j| with S_j = sum_(i<j) e^(i k w_i): the bound on a RoPE score by Abel summation.

    It falls as a trend with the distance k, not step by step.

    >>> decay([0, 1, 16, 256], 128).round(4).tolist()
    [32.5, 31.5382, 15.775, 6.5431]
    """
    angles = np.asarray(distances, dtype=np.float64)[..., None] * frequencies(dim, base)
    return np.abs(np.cumsum(np.exp(1j * angles), axis=-1)).mean(-1)
