"""Stretching a learned table of positions (rows) to another length."""

import numpy as np


def interpolate(table, new_length):
    """(new_length, width): row t is read at t (old - 1) / (new_length - 1), linear between the rows.

    The first and the last row are kept (align_corners=True in torch's words). One row asked for is the first row.
    """
    old = len(table)
    out = np.zeros((new_length, np.shape(table)[1]))
    for t in range(new_length):
        whole, rest = divmod(t * (old - 1), new_length - 1) if new_length > 1 else (0, 0)
        fraction = rest / max(new_length - 1, 1)
        low = np.asarray(table[whole], dtype=np.float64)
        high = np.asarray(table[min(whole + 1, old - 1)], dtype=np.float64)
        out[t] = (1 - fraction) * low + fraction * high
    return out
