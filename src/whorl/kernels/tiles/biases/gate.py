"""A number of the query less one of the key: the forgetting gate, whose numbers are running sums over tokens.

Sums grow with the text and their differences do not, so each is two float32, a rounded one and its rest: a head has
those of all tokens, then the rests. Gradients are of the rests: a sum over the row less one over the column. One
program after another writes each of them, so they are the same at every call.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_less_column(o_i, o_j, p_sums, last):
    """The bias in powers of two; what is beyond the last token stands for that one."""
    p_i, p_j = p_sums + tl.minimum(o_i, last), p_sums + tl.minimum(o_j, last)
    b_rests = tl.load(p_i + last + 1) - tl.load(p_j + last + 1)
    return (tl.load(p_i) - tl.load(p_j) + b_rests) * 1.4426950408889634


@triton.jit
def put_columns(b_columns, o_j, m_j, p_grad, last):
    """Writes what keys have of the gradient, before that of queries is added."""
    tl.store(p_grad + last + 1 + o_j, -b_columns, mask=m_j)


@triton.jit
def add_rows(b_rows, o_i, m_row, p_grad, last):
    """Adds what queries have of the gradient."""
    p_rows = p_grad + last + 1 + o_i
    tl.store(p_rows, tl.load(p_rows, mask=m_row, other=0.0) + b_rows, mask=m_row)
