"""Relative attention of Transformer-XL (Dai et al. 2019), by its definition and without the shift trick."""

import math

import numpy as np

from . import sinusoidal


def scores(q, k, u, v_bias, w_r, q_positions, k_positions, clamp=None):
    """((q_i + u) . k_j + (q_i + v_bias) . W_R R_{i-j}) / sqrt(dim), shape (heads, queries, keys).

    q, k (heads, length, dim); u, v_bias (heads, dim); w_r (heads, dim, width). R is the concatenated sinusoidal
    code of i - j, with `width` entries and base 10000. `clamp` limits i - j to [-clamp, clamp] (the paper's code
    has no negative distances; this is XLNet's rule). Nothing is masked: a key after the query has the code of a
    negative distance.
    """
    heads, queries, dim = np.shape(q)
    width = np.shape(w_r)[2]
    out = np.zeros((heads, queries, np.shape(k)[1]))
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            distance = i - j
            if clamp is not None:
                distance = min(max(distance, -clamp), clamp)
            code = sinusoidal.code(distance, width, order="concatenated")
            for h in range(heads):
                content = np.dot(q[h][a] + u[h], k[h][b])
                position = np.dot(q[h][a] + v_bias[h], w_r[h] @ code)
                out[h, a, b] = (content + position) / math.sqrt(dim)
    return out
