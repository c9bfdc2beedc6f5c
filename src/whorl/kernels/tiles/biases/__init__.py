"""Biases of a tile, one file for each kind, and which function is which.

A head has a row of numbers. ``line``: its slope; ``log`` and ``power``: KERPLE's p and a; ``table``: a number for
each distance, in powers of two; ``broken``: FIRE's lines, and its numbers of queries.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases.broken import broken_line, broken_line_sums
from whorl.kernels.tiles.biases.curves import logarithm, logarithm_sums, power, power_sums
from whorl.kernels.tiles.biases.line import sloped
from whorl.kernels.tiles.biases.table import looked_up


@triton.jit
def numbers_of(p_numbers, i_h, count, lowest, highest, KIND: tl.constexpr):
    """Up to two numbers of a head; the pointer to its table, at distance 0, and where that begins and ends.

    The first number of a table is that of its far end. Of a broken line it is c, the pointer is that to all numbers,
    and the last two are the count of lines and where queries begin.
    """
    one, other = 0.0, 0.0
    p_table = p_numbers
    if KIND == "line":
        one = tl.load(p_numbers + i_h) * 1.4426950408889634
    elif KIND == "log" or KIND == "power":
        one, other = tl.load(p_numbers + 2 * i_h), tl.load(p_numbers + 2 * i_h + 1)
    elif KIND == "broken":
        p_table = p_numbers + i_h * count
        one = tl.load(p_table + 3 * lowest)
    elif KIND != "none":
        tl.static_assert(KIND == "table", "a bias of a kind that is not known")
        p_table = p_numbers + i_h * count - lowest
        one = tl.load(p_table + highest)
    return one, other, p_table, lowest, highest


@triton.jit
def bias_of(o_i, o_j, corner, numbers, KIND: tl.constexpr, FAR: tl.constexpr):
    """The biases of queries at o_i and keys at o_j, in powers of two. ``FAR``: all are at or beyond the far end."""
    one, other, p_table, lowest, highest = numbers
    if KIND == "line":
        b_bias = sloped(o_i, o_j, one)
    elif KIND == "log":
        b_bias = logarithm(o_i, o_j, one, other)
    elif KIND == "power":
        b_bias = power(o_i, o_j, one, other)
    elif KIND == "broken":
        b_bias = broken_line(o_i, o_j, corner, one, p_table, lowest, highest)
    elif FAR:
        b_bias = one
    else:
        b_bias = looked_up(o_i, o_j, corner, p_table, lowest, highest)
    return b_bias


@triton.jit
def sums_of(b_ds, o_i, o_j, corner, numbers, p_grad, KIND: tl.constexpr):
    """What a tile adds to the gradients of one and the other number, by row; of a table it is that of the far end.

    Of a broken line they are those of c and of the query's own number; the others are added in memory.
    """
    one, other, p_table, lowest, highest = numbers
    if KIND == "line":
        b_one = tl.sum(sloped(o_i, o_j, 1.0) * b_ds, 1)
        b_other = b_one
    elif KIND == "log":
        b_one, b_other = logarithm_sums(b_ds, o_i, o_j, one, other)
    elif KIND == "power":
        b_one, b_other = power_sums(b_ds, o_i, o_j, one, other)
    elif KIND == "broken":
        b_one, b_other = broken_line_sums(b_ds, o_i, o_j, corner, one, p_table, lowest, highest, p_grad)
    else:
        b_one = tl.sum(b_ds, 1)
        b_other = b_one
    return b_one, b_other
