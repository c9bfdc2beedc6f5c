"""FIRE (Li et al. 2023): a small network of the distance, measured against the query's position."""

import math

import numpy as np


def ratio(i, j, c, threshold, eps=1e-6):
    """psi(|i - j|) / (psi(max(i, threshold)) + eps), psi(x) = ln(|c x| + 1). Positions start at 0."""

    def psi(x):
        return math.log(abs(c * x) + 1)

    return psi(abs(i - j)) / (psi(max(i, threshold)) + eps)


def bias(c, threshold, w1, b1, w2, b2, q_positions, k_positions, eps=1e-6):
    """w2 relu(w1 x + b1) + b2 with x the ratio above, shape (heads, queries, keys).

    threshold is |m L0|, already multiplied. w1, b1 (hidden,); w2 (heads, hidden); b2 (heads,). The denominator looks
    at the query only, so the same distance has another bias at another place. Keys after the query use |i - j|.
    """
    out = np.zeros((len(b2), len(q_positions), len(k_positions)))
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            x = ratio(i, j, c, threshold, eps)
            for h in range(len(b2)):
                total = float(b2[h])
                for n in range(len(w1)):
                    total += w2[h][n] * max(w1[n] * x + b1[n], 0.0)
                out[h, a, b] = total
    return out
