"""The forgetting gate (FoX, Lin et al. 2025): what is forgotten between a key and a query adds up."""

import math

import numpy as np


def bias(log_gates, q_positions, k_positions):
    """The sum of log f_t over t = j + 1 .. i, shape (heads, queries, keys).

    log_gates (heads, tokens) are the logarithms of the gates of all tokens; positions are indices into them. For a
    key after the query the same difference F_i - F_j is minus the sum over t = i + 1 .. j; a mask has to hide it.
    """
    out = np.zeros((len(log_gates), len(q_positions), len(k_positions)))
    for h, gates in enumerate(log_gates):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                if j <= i:
                    out[h, a, b] = math.fsum(gates[t] for t in range(j + 1, i + 1))
                else:
                    out[h, a, b] = -math.fsum(gates[t] for t in range(i + 1, j + 1))
    return out
