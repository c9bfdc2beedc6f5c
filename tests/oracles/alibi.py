"""ALiBi (Press et al. 2021): a slope per head times the distance. Biases are (heads, queries, keys)."""

import numpy as np


def powers(count):
    """2^(-8/count), 2^(-16/count), ..., 2^-8."""
    return [2.0 ** (-8 * (t + 1) / count) for t in range(count)]


def slopes(heads, rule="press"):
    """One slope per head, shape (heads,).

    press: the paper's code (BLOOM, MPT): for a number of heads that is no power of two, the slopes of the
    nearest smaller power c, then every second slope of 2c. geometric: the paper's sentence, 2^(-8(h+1)/heads).
    """
    if rule == "geometric":
        return np.array(powers(heads))
    if rule != "press":
        raise ValueError(rule)
    c = 1
    while 2 * c <= heads:
        c *= 2
    return np.array(powers(c) + powers(2 * c)[0::2][: heads - c])


def bias(q_positions, k_positions, slopes, form="causal"):
    """causal: -m (i - j) for every key, so keys after the query get a positive value that a mask has to hide.

    symmetric: -m |i - j|.
    """
    out = np.zeros((len(slopes), len(q_positions), len(k_positions)))
    for h, m in enumerate(slopes):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                out[h, a, b] = -m * {"causal": i - j, "symmetric": abs(i - j)}[form]
    return out


def split(q_positions, k_positions, slopes):
    """The split-head form: heads 0 .. n-1 see themselves and the left, heads n .. 2n-1 themselves and the right.

    `slopes` has n entries, used once for each side; the result has 2n heads. -m |i - j| where a head may look,
    -inf where it may not.
    """
    n = len(slopes)
    out = np.full((2 * n, len(q_positions), len(k_positions)), -np.inf)
    for h, m in enumerate(slopes):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                if j <= i:
                    out[h, a, b] = -m * (i - j)
                if j >= i:
                    out[n + h, a, b] = -m * (j - i)
    return out


def offset(q_positions, k_positions, slopes, offset):
    """The offset form: -m (i - j) for j <= i, and -m ((j - i) + offset) for j > i."""
    out = np.zeros((len(slopes), len(q_positions), len(k_positions)))
    for h, m in enumerate(slopes):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                out[h, a, b] = -m * (i - j) if j <= i else -m * ((j - i) + offset)
    return out
