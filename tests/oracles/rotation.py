"""Rotating one head vector: the explicit matrix, and complex multiplication. Results are numpy fp64.

Angles are floats or mpf; an mpf angle loses no digit before its cosine is taken.
"""

import numpy as np
from mpmath import mp


def cells(i, pairs, layout):
    """((read first, read second), (write first, write second)): where pair i lives, and where it goes."""
    half, interleaved = (i, i + pairs), (2 * i, 2 * i + 1)
    return {
        "half": (half, half),
        "interleaved": (interleaved, interleaved),
        "interleaved_to_half": (interleaved, half),
    }[layout]


def matrix(angles, layout):
    """The block matrix R, so that the rotated vector is R @ x. Shape (2 * pairs, 2 * pairs)."""
    pairs = len(angles)
    out = np.zeros((2 * pairs, 2 * pairs))
    for i, angle in enumerate(angles):
        c, s = float(mp.cos(angle)), float(mp.sin(angle))
        (a, b), (first, second) = cells(i, pairs, layout)
        out[first, a], out[first, b] = c, -s
        out[second, a], out[second, b] = s, c
    return out


def rotate(x, angles, layout, start=0, factor=1.0):
    """x with [start, start + 2 * pairs) rotated and multiplied by factor; every other entry as it was."""
    out = np.array(x, dtype=np.float64)
    stop = start + 2 * len(angles)
    assert start >= 0 and stop <= len(out), "the rotated slice must lie inside the vector"
    out[start:stop] = factor * (matrix(angles, layout) @ out[start:stop])
    return out


def rotate_complex(x, angles):
    """Interleaved rotation of the whole vector: (x[2i] + j x[2i+1]) * e^(j angle_i)."""
    assert len(x) == 2 * len(angles), "one angle per pair"
    out = []
    for i, angle in enumerate(angles):
        z = complex(x[2 * i], x[2 * i + 1]) * complex(mp.expj(angle))
        out += [z.real, z.imag]
    return np.array(out)
