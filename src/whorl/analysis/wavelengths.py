"""The speed of each pair: frequencies, wavelengths, turns within a context, and the angles themselves."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from whorl import Encoding, Sandwich, Sinusoidal, XPos
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError, invalid
from whorl.rotary.frequencies import Ladder
from whorl.rotary.frequencies import wavelengths as _wavelengths

Array = NDArray[np.float64]


def has_frequencies(encoding: Encoding) -> bool:
    """Whether an encoding is made of waves, one frequency for each pair of dimensions."""
    if isinstance(encoding, Rotary):
        return encoding.frequencies().ndim == 1
    return isinstance(encoding, (XPos, Sinusoidal, Sandwich))


def frequencies_of(encoding: Encoding, length: int | None = None) -> Array:
    """w_i of each pair in radians per position, fastest first, shape (pairs,); scaled for this length.

    >>> import whorl
    >>> frequencies_of(whorl.Sinusoidal(width=8)).tolist()
    [1.0, 0.1, 0.01, 0.001]
    """
    if not has_frequencies(encoding):
        raise WhorlError(
            f"frequencies_of: {encoding.config.name} has no frequency for each pair. Use rope, a rotary relative of "
            "it on one set of frequencies, sinusoidal or sandwich."
        )
    if isinstance(encoding, Rotary):
        return encoding.frequencies(length).detach().cpu().numpy()
    if isinstance(encoding, XPos):
        return encoding.rope.frequencies(length).detach().cpu().numpy()
    if isinstance(encoding, Sinusoidal):
        return Ladder(encoding.config.width, encoding.config.base).frequencies().numpy()
    assert isinstance(encoding, Sandwich)
    return Ladder(encoding.config.code_width, encoding.config.base).frequencies().numpy()


def wavelengths(frequencies: ArrayLike) -> Array:
    """2 pi / w_i, the positions of one full turn; infinite for a pair that does not turn.

    >>> wavelengths([1.0, 0.1, 0.01, 0.001]).round(3).tolist()
    [6.283, 62.832, 628.319, 6283.185]
    """
    return _wavelengths(torch.from_numpy(real("wavelengths", "frequencies", frequencies).copy()).abs()).numpy()


def turns(frequencies: ArrayLike, context: float) -> Array:
    """The number of turns of each pair within a context: context w_i / 2 pi, the variable of YaRN's ramp.

    >>> turns([1.0, 0.01], 64).round(3).tolist()
    [10.186, 0.102]
    """
    return context / wavelengths(frequencies)


def angles(frequencies: ArrayLike, positions: ArrayLike) -> Array:
    """position times w_i, brought into one turn, [0, 2 pi): where each clock hand points, shape (…, pairs)."""
    positions = real("angles", "positions", positions)
    # a tiny negative angle comes out of the remainder as 2 pi itself
    wrapped = np.mod(positions[..., None] * real("angles", "frequencies", frequencies), 2 * math.pi)
    return np.where(wrapped == 2 * math.pi, 0.0, wrapped)


def whole(call: str, name: str, values: ArrayLike) -> NDArray[np.int64]:
    """The values as an int64 array, or a WhorlError where one is no whole number."""
    numbers = real(call, name, values)
    if not (numbers == np.rint(numbers)).all():
        raise invalid(call, name, "whole numbers", values)
    return numbers.astype(np.int64)


def real(call: str, name: str, values: ArrayLike) -> Array:
    """The values as a float64 array, or a WhorlError where one is not a finite number."""
    try:
        out = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise invalid(call, name, "real numbers", values) from None
    if not np.isfinite(out).all():
        raise invalid(call, name, "finite", values)
    return out
