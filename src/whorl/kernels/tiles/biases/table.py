"""A table by distance, its ends held beyond it: any bias that is a function of the distance, and T5's buckets.

A head has a number for each distance from ``lowest`` to ``highest``; what is farther has the number at that end, so the
table of a bias that is constant from some distance on is short, and tiles beyond need one number. The pointer is that
of distance 0.

The gradient is a sum over each diagonal of the scores. A tile is sheared by a gather so that its diagonals become
columns; the sums of columns are then added to the table, one atomic addition for each distance. Where positions are
given, tiles have no diagonals, and each pair reads and adds for itself.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def looked_up(o_i, o_j, corner, p_table, lowest, highest):
    """The bias of each pair in powers of two, by one load for each distance in the tile, from the nearest on.

    Shared memory hands them out: a load for each pair takes half as long again.
    """
    nearest = corner[0] - corner[1] - (o_j.shape[0] * o_j.shape[1] - 1)
    o_index = o_i - o_j - nearest
    ROWS: tl.constexpr = o_index.shape[0]
    COLUMNS: tl.constexpr = o_index.shape[1]
    o_d = nearest + tl.arange(0, 2 * ROWS if ROWS > COLUMNS else 2 * COLUMNS)
    b_numbers = tl.load(p_table + tl.maximum(tl.minimum(o_d, highest), lowest)) * 1.4426950408889634
    return tl.reshape(tl.gather(b_numbers, tl.reshape(o_index, [ROWS * COLUMNS]), 0), [ROWS, COLUMNS])


@triton.jit
def looked_up_by_pair(o_i, o_j, p_table, lowest, highest):
    """The bias of each pair in powers of two where positions are given, which can be anything."""
    return tl.load(p_table + tl.maximum(tl.minimum(o_i - o_j, highest), lowest)) * 1.4426950408889634


@triton.jit
def add_pairs(b_ds, o_i, o_j, p_grad, lowest, highest):
    """Adds each pair of a tile to the gradient of its distance, where positions are given."""
    tl.atomic_add(p_grad + tl.maximum(tl.minimum(o_i - o_j, highest), lowest), b_ds, sem="relaxed")


@triton.jit
def add_diagonals(b_ds, corner, p_grad, lowest, highest):
    """Adds the sum of each diagonal of a tile to the gradient of its distance; rows of the tile are queries.

    A tile is squares of as many rows as it has columns. In each, row r is turned by r places, so that column w holds
    the diagonals r - c = w, and w - KEYS above row w.
    """
    KEYS: tl.constexpr = b_ds.shape[1]
    SQUARES: tl.constexpr = b_ds.shape[0] // KEYS
    o_r = tl.arange(0, SQUARES * KEYS)[:, None] % KEYS
    o_w = tl.arange(0, KEYS)[None, :]
    b_turned = tl.gather(b_ds, (o_r - o_w) & (KEYS - 1), 1)
    b_below = tl.reshape(tl.where(o_r >= o_w, b_turned, 0.0), [SQUARES, KEYS, KEYS])
    b_above = tl.reshape(tl.where(o_r >= o_w, 0.0, b_turned), [SQUARES, KEYS, KEYS])
    o_d = corner[0] - corner[1] + tl.arange(0, SQUARES)[:, None] * KEYS + o_w
    tl.atomic_add(p_grad + tl.maximum(tl.minimum(o_d, highest), lowest), tl.sum(b_below, 1), sem="relaxed")
    tl.atomic_add(p_grad + tl.maximum(tl.minimum(o_d - KEYS, highest), lowest), tl.sum(b_above, 1), sem="relaxed")
