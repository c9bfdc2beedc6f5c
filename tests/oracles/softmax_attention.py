"""Softmax attention from finished scores: one row at a time, fp64."""

import math

import numpy as np


def attention(scores, v, allowed=None):
    """(out, weights, logsumexp) of scores (heads, queries, keys) and v (heads, keys, dim).

    `allowed` is None or boolean, (queries, keys) or (heads, queries, keys). A score of -inf is not allowed either.
    A row with nothing allowed has weights 0, output 0 and logsumexp -inf.
    """
    heads, queries, keys = np.shape(scores)
    out = np.zeros((heads, queries, np.shape(v)[2]))
    weights = np.zeros((heads, queries, keys))
    logsumexp = np.full((heads, queries), -np.inf)
    for h in range(heads):
        for a in range(queries):
            row = []
            for b in range(keys):
                open_ = True if allowed is None else (allowed[h][a][b] if np.ndim(allowed) == 3 else allowed[a][b])
                row.append(float(scores[h][a][b]) if open_ else -math.inf)
            top = max(row)
            if top == -math.inf:
                continue
            total = math.fsum(math.exp(s - top) for s in row)
            logsumexp[h, a] = top + math.log(total)
            for b in range(keys):
                weights[h, a, b] = math.exp(row[b] - top) / total
                out[h, a] += weights[h, a, b] * np.asarray(v[h][b], dtype=np.float64)
    return out, weights, logsumexp


def grouped(k, groups):
    """Keys or values (kv_heads, keys, dim) for grouped queries: each head `groups` times in a row."""
    return np.array([head for head in k for _ in range(groups)], dtype=np.float64)
