"""Raw keys and queries of a decoding step, turned to where they stand as they are read."""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned(
    p_rows, m_row, p_cos, p_sin, o_at, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, START: tl.constexpr,
    PAIRS: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr,
):  # fmt: skip
    """Rows of DIM numbers in float32, each turned by its row o_at of the tables; 0 for rows that are not there.

    Each number of the result is one of its own place and one of its pair's other member.
    """
    SIDE: tl.constexpr = PAIRS // BLOCKS
    o_d = tl.arange(0, DIM_PADDED)
    m_turned = (o_d >= START) & (o_d < START + 2 * PAIRS)
    o_in = tl.where(m_turned, o_d - START, 0)
    o_block = o_in // (2 * SIDE)
    o_in = o_in % (2 * SIDE)
    if WRITES_HALF:
        is_second, o_pair = o_in // SIDE, o_in % SIDE
    else:
        is_second, o_pair = o_in % 2, o_in // 2
    if READS_HALF:
        o_first, STEP = START + o_block * 2 * SIDE + o_pair, SIDE
    else:
        o_first, STEP = START + o_block * 2 * SIDE + 2 * o_pair, 1
    o_own = tl.where(m_turned, o_first + is_second * STEP, o_d)
    o_other = tl.where(m_turned, o_first + (1 - is_second) * STEP, o_d)
    m_own = m_row[:, None] & (o_d < DIM)[None, :]
    m_other = m_row[:, None] & m_turned[None, :]
    o_table = o_at[:, None] * PAIRS + (o_block * SIDE + o_pair)[None, :]
    b_own = tl.load(p_rows + o_own[None, :], mask=m_own, other=0.0).to(tl.float32)
    b_other = tl.load(p_rows + o_other[None, :], mask=m_other, other=0.0).to(tl.float32)
    b_cos = tl.load(p_cos + o_table, mask=m_other, other=1.0)
    b_sin = tl.load(p_sin + o_table, mask=m_other, other=0.0)
    return b_own * b_cos + b_other * tl.where(is_second[None, :] == 1, b_sin, -b_sin)


@triton.jit
def faded(b_rows, b_after, p_fades, DIM: tl.constexpr, DIM_PADDED: tl.constexpr):
    """Rows that lie so many positions after where nothing fades, each dimension by its own rate."""
    o_d = tl.arange(0, DIM_PADDED)
    b_rates = tl.load(p_fades + o_d, mask=o_d < DIM, other=0.0) * 1.4426950408889634
    return b_rows * tl.exp2(b_after[:, None] * b_rates[None, :])
