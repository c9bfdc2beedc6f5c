"""FIRE's bias as the broken line that its network is: a straight line between two knots, in

    x = log2(1 + c d) r_i      d the distance, c a number of all pairs, r_i one of the query

A head has the slopes and starts of its lines, then the knots between them, infinity, c, and the r of all queries. The x
of a tile lie between two that are known, so that few knots can be among them, mostly none: the line of the smallest
one is taken first, and those that follow where x has passed their knots.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases.curves import distance, log2

# Knots that are looked at together.
MOST_KNOTS = tl.constexpr(64)


@triton.jit
def progress(o_i, o_j, corner, c, p_numbers, lines, shift):
    """log2(1 + c d) of a tile; r; and the lines of the smallest and of the largest x. Queries begin at ``shift``.

    r falls from query to query, or stays.
    """
    b_u = log2(1.0 + c * distance(o_i, o_j))
    p_r = p_numbers + 3 * lines + 1 - shift
    b_r = tl.load(p_r + o_i)
    ROWS: tl.constexpr = o_i.shape[0] * o_i.shape[1]
    KEYS: tl.constexpr = o_j.shape[0] * o_j.shape[1]
    start, n = corner
    nearest, farthest = start - n - (KEYS - 1), start - n + (ROWS - 1)
    near = tl.maximum(tl.maximum(nearest, -farthest), 0).to(tl.float32)
    far = tl.maximum(farthest, -nearest).to(tl.float32)
    least = tl.log2(1.0 + c * near) * tl.load(p_r + start + ROWS - 1)
    most = tl.log2(1.0 + c * far) * tl.load(p_r + start)
    o_knot = tl.arange(0, MOST_KNOTS)
    b_knots = tl.load(p_numbers + 2 * lines + o_knot, mask=o_knot < lines, other=float("inf"))
    first = tl.sum((b_knots <= least).to(tl.int32), 0)
    last = tl.sum((b_knots <= most).to(tl.int32), 0)
    return b_u, b_r, first, last


@triton.jit
def broken_line(o_i, o_j, corner, c, p_numbers, lines, shift):
    """The bias in powers of two."""
    b_u, b_r, first, last = progress(o_i, o_j, corner, c, p_numbers, lines, shift)
    b_x = b_u * b_r
    b_bias = b_x * tl.load(p_numbers + first) + tl.load(p_numbers + lines + first)
    for i in range(first + 1, last + 1):
        b_next = b_x * tl.load(p_numbers + i) + tl.load(p_numbers + lines + i)
        b_bias = tl.where(b_x >= tl.load(p_numbers + 2 * lines + i - 1), b_next, b_bias)
    return b_bias * 1.4426950408889634


@triton.jit
def broken_line_sums(b_ds, o_i, o_j, corner, c, p_numbers, lines, shift, p_grad):
    """What a tile adds to the gradients of c and r, by row; those of slopes and starts are added in memory.

    No gradient reaches the knots: lines meet there.
    """
    b_u, b_r, first, last = progress(o_i, o_j, corner, c, p_numbers, lines, shift)
    b_x = b_u * b_r
    b_rate = distance(o_i, o_j) * tl.exp2(-b_u) * 1.4426950408889634  # of u with c
    b_rows = tl.reshape(b_r, [b_ds.shape[0]])
    b_c = tl.zeros_like(b_rows)
    b_pull = tl.zeros_like(b_rows)
    for i in range(first, last + 1):
        before = tl.load(p_numbers + 2 * lines + i - 1, mask=i > first, other=float("-inf"))
        after = tl.load(p_numbers + 2 * lines + i, mask=i < last, other=float("inf"))
        b_own = tl.where((b_x >= before) & (b_x < after), b_ds, 0.0)
        b_of_u = tl.sum(b_own * b_u, 1)
        slope = tl.load(p_numbers + i)
        b_pull += slope * b_of_u
        b_c += slope * b_rows * tl.sum(b_own * b_rate, 1)
        tl.atomic_add(p_grad + i, tl.sum(b_of_u * b_rows, 0), sem="relaxed")
        tl.atomic_add(p_grad + lines + i, tl.sum(tl.sum(b_own, 1), 0), sem="relaxed")
    return b_c, b_pull
