"""Biases of a tile, one file for each kind, and which function is which.

A head has a row of numbers. ``line``: its slope; ``log`` and ``power``: KERPLE's p and a; ``table``: a number for
each distance; ``broken``: FIRE's lines, and its numbers of queries; ``gate``, for each batch row and head: running
sums of its tokens. Queries at o_i and keys at o_j are places in the text, or given positions.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases.broken import broken_line, broken_line_sums
from whorl.kernels.tiles.biases.curves import logarithm, logarithm_sums, power, power_sums
from whorl.kernels.tiles.biases.gate import add_rows, row_less_column
from whorl.kernels.tiles.biases.line import sloped
from whorl.kernels.tiles.biases.table import add_diagonals, add_pairs, looked_up, looked_up_by_pair


@triton.jit
def numbers_of(p_numbers, i_h, i_row, count, lowest, highest, CASE: tl.constexpr):
    """Up to two numbers of a head; the pointer to its table, at distance 0, and where that begins and ends.

    The first number of a table is that of its far end. Of a broken line it is c, the pointer is that to all numbers,
    and the last two are the count of lines and where queries begin. A gate has ``highest`` + 1 tokens.
    """
    one, other = 0.0, 0.0
    p_table = p_numbers + (i_row if CASE.kind == "gate" else i_h) * count
    if CASE.kind == "line":
        one = tl.load(p_table) * 1.4426950408889634
    elif CASE.kind == "log" or CASE.kind == "power":
        one, other = tl.load(p_table), tl.load(p_table + 1)
    elif CASE.kind == "broken":
        one = tl.load(p_table + 3 * lowest)
    elif CASE.kind == "table":
        p_table -= lowest
        one = tl.load(p_table + highest) * 1.4426950408889634
    else:
        tl.static_assert(CASE.kind == "gate" or CASE.kind == "none", "a bias of a kind that is not known")
    return one, other, p_table, lowest, highest


@triton.jit
def near_from(start, full, full_end, highest, CASE: tl.constexpr):
    """The first of the tiles of keys that are not all as far as a table goes, or farther."""
    if CASE.ends:
        full = tl.minimum(tl.maximum(full, (start - highest + 1) // CASE.keys * CASE.keys), full_end)
    return full


@triton.jit
def bias_of(o_i, o_j, corner, numbers, CASE: tl.constexpr):
    """The biases of queries at o_i and keys at o_j, in powers of two."""
    one, other, p_table, lowest, highest = numbers
    if CASE.kind == "line":
        b_bias = sloped(o_i, o_j, one)
    elif CASE.kind == "log":
        b_bias = logarithm(o_i, o_j, one, other)
    elif CASE.kind == "power":
        b_bias = power(o_i, o_j, one, other)
    elif CASE.kind == "broken":
        b_bias = broken_line(o_i, o_j, corner, one, p_table, lowest, highest)
    elif CASE.kind == "gate":
        b_bias = row_less_column(o_i, o_j, p_table, highest)
    elif CASE.placed:
        b_bias = looked_up_by_pair(o_i, o_j, p_table, lowest, highest)
    else:
        b_bias = looked_up(o_i, o_j, corner, p_table, lowest, highest)
    return b_bias


@triton.jit
def sums_of(b_ds, o_i, o_j, corner, numbers, p_grad, CASE: tl.constexpr, FAR: tl.constexpr):
    """What a tile adds to the gradients of one and the other number, by row; others are added in memory.

    Of a table it is that of the far end, of a broken line those of c and of the query's own number, of a gate that of
    the query.
    """
    one, other, p_table, lowest, highest = numbers
    b_one = tl.full([CASE.rows], 0.0, tl.float32)
    b_other = b_one
    if CASE.kind == "line":
        b_one = tl.sum(sloped(o_i, o_j, 1.0) * b_ds, 1)
    elif CASE.kind == "log":
        b_one, b_other = logarithm_sums(b_ds, o_i, o_j, one, other)
    elif CASE.kind == "power":
        b_one, b_other = power_sums(b_ds, o_i, o_j, one, other)
    elif CASE.kind == "broken":
        b_one, b_other = broken_line_sums(b_ds, o_i, o_j, corner, one, p_table, lowest, highest, p_grad)
    elif CASE.kind == "gate" or FAR:
        b_one = tl.sum(b_ds, 1)
    elif CASE.placed:
        add_pairs(b_ds, o_i, o_j, p_grad - lowest, lowest, highest)
    else:
        add_diagonals(b_ds, corner, p_grad - lowest, lowest, highest)
    return b_one, b_other


@triton.jit
def add_sums(b_one, b_other, o_row, queries, numbers, p_grad, CASE: tl.constexpr):
    """Adds what ``sums_of`` has found in all tiles of the queries o_row to the gradients of their head."""
    lowest, highest = numbers[3], numbers[4]
    m_row = o_row < queries
    if CASE.kind == "gate":
        add_rows(b_one, highest + 1 - queries + o_row, m_row, p_grad, highest)
    elif CASE.kind == "table":
        tl.atomic_add(p_grad - lowest + highest, tl.sum(b_one, 0), sem="relaxed")
    elif CASE.kind == "broken":  # behind the lines
        tl.atomic_add(p_grad + 3 * lowest, tl.sum(b_one, 0), sem="relaxed")
        tl.atomic_add(p_grad + 3 * lowest + 1 + o_row, b_other, mask=m_row, sem="relaxed")
    else:
        tl.atomic_add(p_grad, tl.sum(b_one, 0), sem="relaxed")
        if CASE.kind != "line":
            tl.atomic_add(p_grad + 1, tl.sum(b_other, 0), sem="relaxed")
