"""Raw keys and queries of a decoding step, turned to where they stand as they are read.

Scores are inner products, so the order of dimensions does not matter as long as queries and keys have the same one:
the first members of all pairs, the second ones, and the dimensions that are not turned are three products.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.rotate_triton import pairs_at


@triton.jit
def members(
    p_rows, m_row, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """The first and the second members of the pairs of rows, 0 where there are none."""
    o_p = tl.arange(0, PADDED)
    m = m_row[:, None] & (o_p < PAIRS)[None, :]
    if HALF:
        o_first = START + pairs_at(o_p, PAIRS, BLOCKS)
        o_second = o_first + PAIRS // BLOCKS
    else:
        o_first = START + 2 * o_p
        o_second = o_first + 1
    b_first = tl.load(p_rows + o_first[None, :], mask=m, other=0.0)
    b_second = tl.load(p_rows + o_second[None, :], mask=m, other=0.0)
    return b_first, b_second


@triton.jit
def turned(b_first, b_second, m_row, p_cos, p_sin, o_at, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    """Both members, each row turned by its row o_at of the tables."""
    o_p = tl.arange(0, b_first.shape[1])
    m = m_row[:, None] & (o_p < PAIRS)[None, :]
    o_table = o_at[:, None] * PAIRS + o_p[None, :]
    b_cos = tl.load(p_cos + o_table, mask=m, other=1.0)
    b_sin = tl.load(p_sin + o_table, mask=m, other=0.0)
    b_a, b_b = b_first.to(tl.float32), b_second.to(tl.float32)
    return (b_a * b_cos - b_b * b_sin).to(DTYPE), (b_b * b_cos + b_a * b_sin).to(DTYPE)


@triton.jit
def faded(b_first, b_second, b_way, p_fades, PAIRS: tl.constexpr):
    """Both members in float32, so many positions away from where nothing fades, each pair by its own rate."""
    o_p = tl.arange(0, b_first.shape[1])
    b_rates = tl.load(p_fades + o_p, mask=o_p < PAIRS, other=0.0) * 1.4426950408889634
    b_factor = tl.exp2(b_way[:, None] * b_rates[None, :])
    return b_first.to(tl.float32) * b_factor, b_second.to(tl.float32) * b_factor


@triton.jit
def unturned(p_rows, m_row, DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr):
    """The dimensions before and after those that are turned."""
    o_r = tl.arange(0, PADDED)
    o_d = tl.where(o_r < START, o_r, o_r + 2 * PAIRS)
    return tl.load(p_rows + o_d[None, :], mask=m_row[:, None] & (o_d < DIM)[None, :], other=0.0)
