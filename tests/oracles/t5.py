"""T5's bucketed bias (Raffel et al. 2019). Bucket edges are decided in whole numbers, so no logarithm can round."""

import numpy as np


def one_sided(distance, buckets, max_distance):
    """The bucket of a distance >= 0: exact below buckets / 2, then

    exact + floor(ln(distance / exact) / ln(max_distance / exact) * (buckets - exact)), at most buckets - 1.
    The floor is at least t when (distance / exact)^(buckets - exact) >= (max_distance / exact)^t.
    """
    exact = buckets // 2
    assert max_distance > exact, "the logarithmic buckets need room above the exact ones"
    if distance < exact:
        return distance
    steps, t = buckets - exact, 0
    while t < steps - 1 and distance**steps * exact ** (t + 1) >= max_distance ** (t + 1) * exact**steps:
        t += 1
    return exact + t


def bucket(relative_position, buckets=32, max_distance=128, bidirectional=False):
    """The bucket of relative_position = key - query, an int.

    Causal: keys after the query share bucket 0 with the query itself. Bidirectional: half of the buckets for
    each side, the upper half for keys after the query.
    """
    relative_position = int(relative_position)  # a numpy integer would overflow in the powers
    if not bidirectional:
        return one_sided(max(-relative_position, 0), buckets, max_distance)
    half = buckets // 2
    after = half if relative_position > 0 else 0
    return after + one_sided(abs(relative_position), half, max_distance)


def bias(table, q_positions, k_positions, buckets=32, max_distance=128, bidirectional=False):
    """(heads, queries, keys) from a table of shape (buckets, heads). T5 adds it to scores that are not scaled."""
    out = np.zeros((len(table[0]), len(q_positions), len(k_positions)))
    for a, i in enumerate(q_positions):
        for b, j in enumerate(k_positions):
            row = table[bucket(j - i, buckets, max_distance, bidirectional)]
            for h in range(out.shape[0]):
                out[h, a, b] = row[h]
    return out
