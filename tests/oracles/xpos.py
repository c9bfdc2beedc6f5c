"""xPos (Sun et al. 2022): rotary pairs that also fade. Only the distance m - n is ever exponentiated."""

import numpy as np
from mpmath import mp, mpf

from .rotation import cells


@mp.workdps(50)
def score(q, k, m, n, base=10000, scale_base=512, layout="interleaved", gamma=0.4):
    """q at position m against k at position n, not divided by sqrt(dim): a float.

    Pair i contributes zeta_i^((m - n) / scale_base) (R(m w_i) q_i) . (R(n w_i) k_i), with w_i = base^(-2i / dim)
    and zeta_i = (2i / dim + gamma) / (1 + gamma); gamma = 0.4 is the paper's (2i + 0.4 dim) / (1.4 dim).
    It fades for m > n and grows for m < n.
    """
    dim = len(q)
    total = mpf(0)
    for i in range(dim // 2):
        (first, second), _ = cells(i, dim // 2, layout)
        frequency = mpf(base) ** (mpf(-2 * i) / dim)
        zeta = (mpf(2 * i) / dim + mpf(gamma)) / (1 + mpf(gamma))
        a = mp.mpc(float(q[first]), float(q[second]))
        b = mp.mpc(float(k[first]), float(k[second]))
        turned = a * mp.conj(b) * mp.expj((m - n) * frequency)
        total += zeta ** (mpf(m - n) / scale_base) * turned.real
    return float(total)


def scores(q, k, q_positions, k_positions, base=10000, scale_base=512, layout="interleaved", gamma=0.4):
    """The score of every pair, shape (heads, queries, keys), not divided by sqrt(dim) and not masked."""
    out = np.zeros((len(q), len(q_positions), len(k_positions)))
    for h in range(len(q)):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                out[h, a, b] = score(q[h][a], k[h][b], int(i), int(j), base, scale_base, layout, gamma)
    return out
