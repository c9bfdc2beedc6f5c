"""Aliasing: which positions look alike, to one pair, to all of them, and after rounding."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from whorl.analysis.decay import cosine_sum
from whorl.analysis.wavelengths import Array, angles, real, wavelengths
from whorl.errors import invalid, unknown

DTYPES = ("float64", "float32", "float16", "bfloat16")


def first_wrap(frequencies: ArrayLike) -> Array:
    """The first whole position at which each pair has passed a full turn; infinite for one that does not turn.

    >>> first_wrap([1.0, 0.1, 0.0]).tolist()
    [7.0, 63.0, inf]
    """
    return np.ceil(wavelengths(frequencies))


def code_distances(frequencies: ArrayLike, distances: ArrayLike) -> Array:
    """|p_t - p_(t+k)| of sinusoidal codes at each distance k, the same for every t: sqrt(2 sum_i (1 - cos(w_i k))).

    >>> code_distances([1.0], [0.0, 3.0]).round(4).tolist()
    [0.0, 1.995]
    """
    distances = real("code_distances", "distances", distances)
    half = np.sin(distances[..., None] * real("code_distances", "frequencies", frequencies) / 2)
    return 2 * np.sqrt((half**2).sum(-1))  # 1 - cos x = 2 sin^2(x/2), which does not cancel


def nearest_alias(frequencies: ArrayLike, length: int, beyond: int = 1) -> tuple[int, float]:
    """The distance from ``beyond`` up to length - 1 whose codes are closest, and how far apart they are.

    >>> nearest_alias([1.0], 100)
    (44, 0.017...)
    """
    if not 1 <= beyond < length:
        raise invalid("nearest_alias", "beyond", f"from 1 to {length - 1}", beyond)
    distances = np.arange(beyond, length)
    apart = code_distances(frequencies, distances)
    at = int(apart.argmin())
    return int(distances[at]), float(apart[at])


def distinct_positions(length: int, dtype: str) -> int:
    """The number of ids 0 … length - 1 that stay different when they are rounded to a dtype.

    >>> distinct_positions(2048, "bfloat16"), distinct_positions(2048, "float16")
    (641, 2048)
    """
    return torch.arange(length, device="cpu").to(_dtype("distinct_positions", dtype)).unique().numel()


def distinct_codes(frequencies: ArrayLike, length: int, dtype: str) -> int:
    """The number of positions 0 … length - 1 whose code stays unique when cos and sin are rounded to a dtype.

    >>> distinct_codes([1.0, 0.01], 1000, "float64"), distinct_codes([0.001], 1000, "bfloat16")
    (1000, 551)
    """
    turned = angles(frequencies, np.arange(length))
    codes = torch.from_numpy(np.concatenate((np.cos(turned), np.sin(turned)), axis=-1))
    rounded = codes.to(_dtype("distinct_codes", dtype)).double() + 0.0  # -0 and 0 are one number
    return np.unique(rounded.numpy(), axis=0).shape[0]


def recovered_share(frequencies: ArrayLike, length: int, noise: float, *, draws: int = 8, seed: int = 0) -> float:
    """The share of positions found again from a noisy code as the nearest of all codes.

    ``noise`` is the standard deviation of what is added to each sine and cosine.

    >>> import whorl
    >>> recovered_share(whorl.reference.frequencies(64), 100, 0.1)
    1.0
    """
    generator = np.random.default_rng(seed)
    turned = angles(frequencies, np.arange(length))
    codes = np.concatenate((np.cos(turned), np.sin(turned)), axis=-1)
    found = 0
    for _ in range(draws):  # all codes have one norm, so the nearest has the largest product
        seen = codes + noise * generator.standard_normal(codes.shape)
        found += int(((seen @ codes.T).argmax(-1) == np.arange(length)).sum())
    return found / (draws * length)


def distances_with_sum(frequencies: ArrayLike, length: int, distance: int, tolerance: float) -> list[int]:
    """The other distances below ``length`` whose sum_i cos(w_i k) is as that of ``distance``: the sum is no ruler."""
    sums = cosine_sum(frequencies, np.arange(length))
    return [int(k) for k in np.flatnonzero(np.abs(sums - sums[distance]) <= tolerance) if k != distance]


def _dtype(call: str, name: str) -> torch.dtype:
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES, call=call)
    return getattr(torch, name)
