"""CoPE (Golovneva et al. 2024): positions counted by gates that look at the content."""

import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def attention_scores(q, k, table, causal=True, scale=None):
    """scale q_i.k_j plus the bias of its contextual position, shape (heads, queries, keys).

    q, k (heads, length, dim); table (max_pos, dim), shared by all heads; scale is 1 / sqrt(dim) by default. Keys are
    numbered 0, 1, ... and the queries are the last ones: with fewer queries than keys, query a is number
    keys - queries + a.

    gate_it = sigmoid(scale q_i.k_t), p_ij = min(sum of gate_it over t = j .. i, max_pos - 1), and the bias is
    q_i.e[p_ij], linear between whole positions, not scaled. Keys after the query score -inf. Without causal the sum
    runs from j to the last key (the paper's code without its mask).
    """
    heads, queries, dim = np.shape(q)
    keys = np.shape(k)[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    out = np.full((heads, queries, keys), -np.inf)
    for h in range(heads):
        for a in range(queries):
            last = keys - queries + a if causal else keys - 1
            logits = [scale * np.dot(q[h][a], k[h][t]) for t in range(last + 1)]
            gates = [sigmoid(x) for x in logits]
            for j in range(last + 1):
                p = min(math.fsum(gates[j:]), len(table) - 1)
                low, high = math.floor(p), math.ceil(p)
                at_low, at_high = np.dot(q[h][a], table[low]), np.dot(q[h][a], table[high])
                out[h, a, j] = logits[j] + at_low + (p - low) * (at_high - at_low)
    return out
