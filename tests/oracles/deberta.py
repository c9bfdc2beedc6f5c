"""Disentangled attention of DeBERTa (He et al. 2020), with the log buckets of version 2 and 3."""

import math
from functools import cache

import numpy as np


@cache
def bucket(relative, buckets, max_distance):
    """The signed bucket of relative = query - key, an int.

    |r| <= mid = buckets / 2 stays; beyond it sign(r) (mid + ceil(ln(|r| / mid) / ln((max_distance - 1) / mid)
    * (mid - 1))), which nothing limits here. The ceiling is the first t with
    ((max_distance - 1) / mid)^t >= (|r| / mid)^(mid - 1), decided in whole numbers.
    """
    relative = int(relative)  # a numpy integer would overflow in the powers
    mid, far, size = buckets // 2, max_distance - 1, abs(relative)
    if size <= mid:
        return relative
    assert far > mid, "the logarithmic buckets need room above the exact ones"
    t = 0
    while far**t * mid ** (mid - 1) < size ** (mid - 1) * mid**t:
        t += 1
    return (mid + t) * (1 if relative > 0 else -1)


def index(relative, span, buckets=None, max_distance=None):
    """delta: the row of a table of 2 span rows for query - key; the clip makes it [0, 2 span - 1]."""
    if buckets is not None:
        relative = bucket(relative, buckets, max_distance)
    return min(max(relative + span, 0), 2 * span - 1)


def scores(
    qc, kc, kr, qr, q_positions, k_positions, span, buckets=None, max_distance=None, position_to_content="paper"
):
    """(Qc_i . Kc_j + Qc_i . Kr[delta(i, j)] + Kc_j . Qr[delta']) / sqrt(3 dim), shape (heads, queries, keys).

    qc, kc (heads, length, dim); kr, qr (heads, 2 span, dim), either may be None: the term goes and 3 becomes the
    number of terms left. delta' is delta(j, i) in the paper (equation 4), position_to_content="paper". The released
    code and transformers read row delta(i, j) instead, position_to_content="code": released weights need that one.
    """
    heads, queries, dim = np.shape(qc)
    terms = 1 + (kr is not None) + (qr is not None)
    out = np.zeros((heads, queries, np.shape(kc)[1]))
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            forward = index(i - j, span, buckets, max_distance)
            backward = index(j - i, span, buckets, max_distance)
            row = {"paper": backward, "code": forward}[position_to_content]
            for h in range(heads):
                score = np.dot(qc[h][a], kc[h][b])
                if kr is not None:
                    score += np.dot(qc[h][a], kr[h][forward])
                if qr is not None:
                    score += np.dot(kc[h][b], qr[h][row])
                out[h, a, b] = score / math.sqrt(terms * dim)
    return out
