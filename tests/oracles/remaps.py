"""Rotary attention whose relative position is remapped for each pair of query and key."""

import math

import numpy as np

from . import rotation, softmax_attention


def rerope(distance, window):
    """ReRoPE (Su 2023): min(distance, window); for keys after the query the mirror image."""
    if distance < 0:
        return -rerope(-distance, window)
    return min(distance, window)


def leaky(distance, window, k):
    """Leaky ReRoPE: beyond the window a step counts 1 / k. For keys after the query the mirror image."""
    if distance < 0:
        return -leaky(-distance, window, k)
    return distance if distance < window else window + (distance - window) / k


def self_extend(i, j, group, window):
    """Self-Extend (Jin et al. 2024): i - j inside the window, else the difference of grouped positions.

    Grouped positions are i // group + window - window // group for the query and j // group for the key. They
    depend on i and j, not only on i - j. Causal only.
    """
    if i - j < window:
        return i - j
    return (i // group + window - window // group) - j // group


def attention(q, k, v, frequencies, relative, q_positions, k_positions, causal=True, scale=None):
    """(scores, weights, out): score_ij = scale (R(relative(i, j) w) q_i) . k_j, half layout.

    q, k, v (heads, length, dim), dim = 2 len(frequencies); scale is 1 / sqrt(dim) by default. With relative = i - j
    this is RoPE: (R(i w) q_i) . (R(j w) k_j). Keys after the query score -inf when causal.
    """
    heads, queries, dim = np.shape(q)
    scale = 1 / math.sqrt(dim) if scale is None else scale
    scores = np.full((heads, queries, np.shape(k)[1]), -np.inf)
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            if causal and j > i:
                continue
            turn = rotation.matrix([relative(i, j) * float(w) for w in frequencies], "half")
            for h in range(heads):
                scores[h, a, b] = scale * np.dot(turn @ q[h][a], k[h][b])
    out, weights, _ = softmax_attention.attention(scores, v)
    return scores, weights, out
