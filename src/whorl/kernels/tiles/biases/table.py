"""A table by distance, its ends held beyond it: any bias that is a function of the distance, and T5's buckets.

A head has a number for each distance from ``lowest`` to ``highest``; what is farther has the number at that end, so the
table of a bias that is constant from some distance on is short, and tiles beyond need one number. The pointer is that
of distance 0.

The gradient is a sum over each diagonal of the scores. A tile is sheared by a gather so that its diagonals become
columns; the sums of columns are then added to the table, one atomic addition for each distance.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def looked_up(o_i, o_j, p_table, lowest, highest, BOUNDED: tl.constexpr):
    """The number of each pair. ``BOUNDED``: distances may lie below the lowest one."""
    o_d = tl.minimum(o_i - o_j, highest)
    if BOUNDED:
        o_d = tl.maximum(o_d, lowest)
    return tl.load(p_table + o_d)


@triton.jit
def gathered(o_i, o_j, nearest, p_table, lowest, highest):
    """The same by one load for each distance in the tile, from the nearest on, which shared memory hands out."""
    o_index = o_i - o_j - nearest
    ROWS: tl.constexpr = o_index.shape[0]
    COLUMNS: tl.constexpr = o_index.shape[1]
    o_d = nearest + tl.arange(0, 2 * ROWS if ROWS > COLUMNS else 2 * COLUMNS)
    b_numbers = tl.load(p_table + tl.maximum(tl.minimum(o_d, highest), lowest))
    return tl.reshape(tl.gather(b_numbers, tl.reshape(o_index, [ROWS * COLUMNS]), 0), [ROWS, COLUMNS])


@triton.jit
def add_diagonals(b_ds, nearest, p_grad, lowest, highest):
    """Adds the sum of each diagonal of a tile to the gradient of its distance; rows of the tile are queries."""
    ROWS: tl.constexpr = b_ds.shape[0]
    KEYS: tl.constexpr = b_ds.shape[1]
    o_w = tl.arange(
        0, 2 * ROWS if ROWS > KEYS else 2 * KEYS
    )  # a diagonal, counted from the nearest one: row r has column r + KEYS - 1 - w there
    o_c = tl.arange(0, ROWS)[:, None] + (KEYS - 1) - o_w[None, :]
    b_sheared = tl.gather(b_ds, tl.minimum(tl.maximum(o_c, 0), KEYS - 1), 1)
    b_sums = tl.sum(tl.where((o_c >= 0) & (o_c < KEYS), b_sheared, 0.0), 0)
    o_d = tl.maximum(tl.minimum(nearest + o_w, highest), lowest)
    tl.atomic_add(p_grad + o_d, b_sums, mask=o_w < ROWS + KEYS - 1, sem="relaxed")
