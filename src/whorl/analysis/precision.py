"""Precision by position: what cos and sin of m w_i lose where a step is rounded."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from whorl.analysis.wavelengths import Array, real, whole
from whorl.errors import invalid, unknown
from whorl.rotary import tables

# The thing that is rounded; every later step is exact, so that its damage is seen alone. "float32 angles" rounds
# frequencies too. Frameworks also take powers in float32, which moves single positions, not the size of the error.
MODES = {
    "bfloat16 positions": "positions in bfloat16",
    "bfloat16 frequencies": "frequencies in bfloat16",
    "float32 angles": "angles in float32 (frameworks)",
    "float64 angles": "angles in float64 (whorl)",
}

# cos and sin are at most 1, so rounding one to bfloat16 moves it by at most half a unit of 2^-8.
BFLOAT16_ROUNDING = 2.0**-9


def table_errors(frequencies: ArrayLike, positions: ArrayLike, mode: str) -> Array:
    """The largest error over pairs of cos and sin at each whole position, shape (positions,).

    >>> table_errors([1.0], [256, 257], "bfloat16 positions").round(4).tolist()
    [0.0, 0.8591]
    """
    w = torch.from_numpy(real("table_errors", "frequencies", frequencies).copy())
    ids = torch.from_numpy(whole("table_errors", "positions", positions))
    angles = ids.double()[:, None] * w
    cos, sin = _rounded(w, ids, mode)
    off = torch.maximum((cos.double() - angles.cos()).abs(), (sin.double() - angles.sin()).abs())
    return off.amax(-1).numpy()


def sampled_octaves(farthest: int, samples: int = 64) -> list[NDArray[np.int64]]:
    """Positions of each octave [2^k, 2^(k+1)) up to ``farthest``: at most ``samples``, spread out, the last included.

    >>> [octave.tolist() for octave in sampled_octaves(7, samples=2)]
    [[1], [2, 3], [5, 7]]
    """
    if farthest < 1:
        raise invalid("sampled_octaves", "farthest", "at least 1", farthest)
    octaves, low = [], 1
    while low <= farthest:
        count = min(2 * low - 1, farthest) - low + 1
        taken = min(samples, count)
        # the last of equal parts: odd in a full octave, where bfloat16 cannot hide an error behind trailing zeros
        octaves.append(low - 1 + np.arange(1, taken + 1, dtype=np.int64) * count // taken)
        low *= 2
    return octaves


def errors_by_octave(
    frequencies: ArrayLike, farthest: int, mode: str, samples: int = 64
) -> tuple[NDArray[np.int64], Array]:
    """The last position looked at in each octave, and the largest error among those looked at."""
    octaves = sampled_octaves(farthest, samples)
    ends = np.array([octave[-1] for octave in octaves])
    return ends, np.array([table_errors(frequencies, octave, mode).max() for octave in octaves])


def _rounded(w: torch.Tensor, ids: torch.Tensor, mode: str) -> tables.Tables:
    if mode == "float64 angles":
        return tables.exact(ids, w)
    if mode == "float32 angles":
        return tables.float32(ids, w.float())
    if mode == "bfloat16 positions":
        ids = ids.bfloat16().long()
    elif mode == "bfloat16 frequencies":
        w = w.bfloat16().double()
    else:
        raise unknown("mode", mode, MODES, call="table_errors")
    return tables.exact(ids, w, dtype=torch.float64)
