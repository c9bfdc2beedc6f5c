"""Relative representations (Shaw et al. 2018): a vector per clipped distance, added to keys and to values."""

import math

import numpy as np

from . import softmax_attention


def attention(q, k, v, key_table, value_table, q_positions, k_positions, clip, causal):
    """(scores, weights, out) for q, k, v (heads, length, dim) and tables (2 clip + 1, dim), shared by all heads.

    s_ij = q_i . (k_j + key_table[c]) / sqrt(dim), out_i = sum_j p_ij (v_j + value_table[c]), where
    c = min(max(j - i, -clip), clip) + clip. value_table may be None. Scores of keys after the query are -inf when
    causal; a query that sees no key has output 0.
    """
    heads, queries, dim = np.shape(q)
    keys = np.shape(k)[1]

    def row(i, j):
        return min(max(j - i, -clip), clip) + clip

    scores = np.full((heads, queries, keys), -np.inf)
    for h in range(heads):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                if j <= i or not causal:
                    scores[h, a, b] = np.dot(q[h][a], k[h][b] + key_table[row(i, j)]) / math.sqrt(dim)
    out, weights, _ = softmax_attention.attention(scores, v)
    if value_table is not None:
        for h in range(heads):
            for a, i in enumerate(q_positions):
                for b, j in enumerate(k_positions):
                    out[h, a] += weights[h, a, b] * value_table[row(i, j)]
    return scores, weights, out
