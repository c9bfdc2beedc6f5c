"""Sandwich (Chi et al. 2022): the product of two sinusoidal codes, divided by a ratio per head."""

import math

import numpy as np


def kernel(distance, width=128, base=10000):
    """sum over k < width / 2 of cos(distance * base^(-2k / width)), a float."""
    return math.fsum(math.cos(distance * float(base) ** (-2 * k / width)) for k in range(width // 2))


def bias(heads, q_positions, k_positions, width=128, base=10000):
    """kernel(i - j) * heads / (8 (h + 1)), h from 0, shape (heads, queries, keys)."""
    out = np.zeros((heads, len(q_positions), len(k_positions)))
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            value = kernel(i - j, width, base)
            for h in range(heads):
                out[h, a, b] = value * heads / (8 * (h + 1))
    return out
