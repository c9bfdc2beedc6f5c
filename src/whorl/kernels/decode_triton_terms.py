"""What a decoding step adds to the scores of a tile of keys, one function for each kind."""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def broken_line(b_distance, o_position, p_numbers, m_row, m_seen, LINES: tl.constexpr, STEPS: tl.constexpr):
    """A bias of straight lines in x = log2(1 + c distance) r, r being the query's: FIRE's.

    A head has slopes and starts of its lines, the knots between them and infinity, c, and r by position. Each x looks
    for its line by halving, all heads alike.
    """
    c = tl.load(p_numbers + 3 * LINES, mask=m_row[:, None], other=0.0)
    b_r = tl.load(p_numbers + 3 * LINES + 1 + o_position[:, None], mask=m_row[:, None], other=0.0)
    b_x = tl.log2(1.0 + c * tl.abs(b_distance.to(tl.float32))) * b_r
    b_line = tl.zeros_like(b_distance)
    m = m_seen & m_row[:, None]
    for i in tl.static_range(0, STEPS):
        o_next = b_line + (1 << (STEPS - 1 - i))
        m_next = m & (o_next < LINES)
        b_knot = tl.load(p_numbers + 2 * LINES + o_next - 1, mask=m_next, other=float("inf"))
        b_line = tl.where(b_x >= b_knot, o_next, b_line)
    return tl.load(p_numbers + b_line, mask=m, other=0.0) * b_x + tl.load(p_numbers + LINES + b_line, mask=m, other=0.0)


@triton.jit
def between_rows(b_place, p_rows, m_seen, most):
    """The number of each query at a place between two of its rows, linear, and the last row's beyond them."""
    b_place = tl.minimum(b_place, most.to(tl.float32))
    b_low = tl.floor(b_place)
    o_low = tl.where(b_low == b_low, b_low, 0.0).to(tl.int32)  # what is no number is no index; it stays in the fraction
    b_here = tl.load(p_rows + o_low, mask=m_seen, other=0.0)
    b_next = tl.load(p_rows + tl.minimum(o_low + 1, most), mask=m_seen, other=0.0)
    return b_here + (b_place - b_low) * (b_next - b_here)


@triton.jit
def kept_after(p_memory, o_place, m_row, start, last, KEYS: tl.constexpr):
    """The sum of what is kept of the slots behind ``start``, up to each query's own."""
    b_sum = tl.zeros_like(o_place).to(tl.float32)
    for n in range(start, last, KEYS):
        o_next = n + tl.arange(0, KEYS) + 1
        m = m_row[:, None] & (o_next[None, :] <= o_place[:, None])
        b_sum += tl.sum(tl.load(p_memory + o_next[None, :], mask=m, other=0.0).to(tl.float32), 1)
    return b_sum


@triton.jit
def key_products(
    b_k, o_there, p_key_rows, i_kv, s_h, filled, room, p_positions, most, m_key,
    ROWS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    POSITIONS: tl.constexpr,
):  # fmt: skip
    """The product of each raw key and the row that a query has for its distance, not scaled."""
    o_d = tl.arange(0, DIM_PADDED)
    o_row = tl.arange(0, ROWS)
    b_sum = tl.zeros([ROWS, b_k.shape[0]], tl.float32)
    m = m_key[:, None] & (o_d < DIM)[None, :]
    b_k = b_k.to(tl.float32)
    for r in range(0, GROUP * QUERIES):
        place = filled + r % QUERIES
        position = tl.load(p_positions + place, mask=place < room, other=0).to(tl.int32) if POSITIONS else place
        o_at = tl.minimum(tl.maximum(position - o_there, 0), most)
        p_head = p_key_rows + (i_kv * GROUP + r // QUERIES) * s_h
        b_rows = tl.load(p_head + o_at[:, None] * DIM + o_d[None, :], mask=m, other=0.0)
        b_sum += tl.where(o_row[:, None] == r, tl.sum(b_k * b_rows, 1)[None, :], 0.0)
    return b_sum
