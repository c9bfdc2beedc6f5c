"""KERPLE (Chi et al. 2022): two learned kernels of the distance |i - j|. Biases are (heads, queries, keys)."""

import math

import numpy as np


def over_distances(heads, q_positions, k_positions, value):
    """value(head, |i - j|) everywhere."""
    out = np.zeros((heads, len(q_positions), len(k_positions)))
    for h in range(heads):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                out[h, a, b] = value(h, abs(int(i) - int(j)))
    return out


def log_bias(p, a, q_positions, k_positions):
    """-p ln(1 + a d), p and a of shape (heads,), both positive."""
    return over_distances(len(p), q_positions, k_positions, lambda h, d: -p[h] * math.log(1 + a[h] * d))


def power_bias(a, p, q_positions, k_positions):
    """-a d^p, a and p of shape (heads,), a positive and 0 < p <= 2. At distance 0 it is 0."""
    return over_distances(len(a), q_positions, k_positions, lambda h, d: -a[h] * d ** p[h] if d else 0.0)
