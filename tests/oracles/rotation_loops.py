"""The rotation of whole tensors in plain fp64 loops: orders, table rows, blocks, layouts, factors. numpy in and out."""

import math
from itertools import product

import numpy as np


def rotate(x, cos, sin, rows, order, reads, writes, start=0, blocks=1, conjugate=False, divide=False):
    """x with [start, start + 2 * pairs) of every row turned; a row that the tables do not have gives NaN there."""
    out = np.array(x, dtype=np.float64)
    pairs = cos.shape[-1]
    inner = pairs // blocks
    for place in np.ndindex(*x.shape[:-1]):
        batch, head, token = _where(place, order)
        row = token if rows is None else _row_of(rows, batch, token)
        if not 0 <= row < cos.shape[-2]:
            out[place][start : start + 2 * pairs] = math.nan
            continue
        for block, i in product(range(blocks), range(inner)):
            c, s = (_value(table, batch, head, row, block * inner + i) for table in (cos, sin))
            scale = c * c + s * s if divide else 1.0
            c, s = c / scale, (-s if conjugate else s) / scale
            base = start + block * 2 * inner
            a, b = (float(x[place][base + cell]) for cell in _cells(i, inner, reads))
            first, second = _cells(i, inner, writes)
            out[place][base + first] = a * c - b * s
            out[place][base + second] = b * c + a * s
    return out


def _where(place, order):
    """(batch, head, token) of a place in the leading axes."""
    if order == "blhd":
        batch, token, head = place
        return batch, head, token
    if order == "thd":
        token, head = place
        return 0, head, token
    return (0,) * (3 - len(place)) + tuple(place)


def _cells(i, pairs, layout):
    return (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)


def _row_of(rows, batch, token):
    """The table row of a token; rows are (length,) or (batch, length), or one batch for all."""
    return int(rows[token] if rows.ndim == 1 else rows[batch % rows.shape[0], token])


def _value(table, batch, head, row, pair):
    """An entry of a table whose batch and head axes may be missing, or of size 1."""
    if table.ndim == 4:
        table = table[batch % table.shape[0], head % table.shape[1]]
    elif table.ndim == 3:
        table = table[batch % table.shape[0]]
    return float(table[row, pair])
