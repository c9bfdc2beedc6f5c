"""States of linear attention: sums of x_j^T w_j over the rows before every chunk, or after it.

Of keys and values they are what queries see, of queries and gradients of outputs what keys see. A program walks along
the length with one block of the state in registers. Where heads are too few to fill the device, the length is cut into
segments, which are added up first.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel is written in Triton's language, whose types are not those of the functions that pyright sees.
from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.linear_triton import compiled, place_of, product


@triton.jit
def load_block(p_x, o_row, o_dim, length, stride_x, DIM: tl.constexpr, PADDED: tl.constexpr):
    """Some dimensions of rows; 0 where there is nothing."""
    m_x = (o_row < length)[:, None]
    if DIM < PADDED:
        m_x = m_x & (o_dim < DIM)[None, :]
    return tl.load(p_x + o_row[:, None] * stride_x[2] + o_dim[None, :] * stride_x[3], mask=m_x, other=0.0)


@compiled("heads_in_all", "heads", "length", "chunks", "segment", "segments")
def write_states(
    p_x, p_w, p_sums, p_states, stride_x, stride_w, heads_in_all, heads, length, chunks, segment, segments,
    LAST: tl.constexpr, REVERSE: tl.constexpr,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr, VALUES: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state of every chunk of a segment; or, unless it is the LAST pass, the sum over the segment.

    ``segment`` counts chunks. The LAST pass begins with running sums over segments, which are not read where the whole
    length is one.
    """
    BLOCKS: tl.constexpr = (DIM // DIMS) * (BLOCK_V // VALUES)
    STEPS: tl.constexpr = CHUNK // ROWS
    i_place, i_segment = place_of(heads_in_all * BLOCKS)
    i_head, i_block = i_place // BLOCKS, i_place % BLOCKS
    i_b, i_h = i_head // heads, i_head % heads
    o_x = (i_block // (BLOCK_V // VALUES)) * DIMS
    o_w = (i_block % (BLOCK_V // VALUES)) * VALUES
    p_x += i_b * stride_x[0] + i_h * stride_x[1]
    p_w += i_b * stride_w[0] + i_h * stride_w[1]
    o_state = (o_x + tl.arange(0, DIMS))[:, None] * BLOCK_V + (o_w + tl.arange(0, VALUES))[None, :]
    b_state = tl.zeros([DIMS, VALUES], tl.float32)
    if LAST:
        o_before = tl.zeros_like(o_state) + (i_segment + 1 if REVERSE else i_segment - 1)
        p_before = p_sums + (i_head * segments + o_before) * (DIM * BLOCK_V) + o_state
        b_state += tl.load(p_before, mask=(o_before >= 0) & (o_before < segments), other=0.0)
    first = i_segment * segment
    steps = (tl.minimum(segment, chunks - first) * STEPS).to(tl.int32)
    for i_step in range(0, steps):
        i_row = first * STEPS + (steps - 1 - i_step if REVERSE else i_step)
        if LAST:  # a mask, not a branch: loads are fetched ahead across branches nowhere
            p_state = p_states + (i_head * chunks + i_row // STEPS) * (DIM * BLOCK_V) + o_state
            tl.store(p_state, b_state.to(DOT), mask=tl.zeros_like(o_state) == i_step % STEPS)
        o_row = i_row * ROWS + tl.arange(0, ROWS)
        b_x = load_block(p_x, o_row, o_x + tl.arange(0, DIMS), length, stride_x, DIM, DIM)
        b_w = load_block(p_w, o_row, o_w + tl.arange(0, VALUES), length, stride_w, VALUE_DIM, BLOCK_V)
        b_state = product(tl.trans(b_x), b_w, b_state, DOT, PRECISION)
    if not LAST:
        tl.store(p_sums + (i_head * segments + i_segment) * (DIM * BLOCK_V) + o_state, b_state)
