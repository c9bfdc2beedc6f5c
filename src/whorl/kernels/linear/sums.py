"""Sums over the past or the future of a tile of rows, from states of chunks and the rows of its own chunk.

    sum_i = x_i S + sum_j (x_i . y_j) w_j        j in the chunk of i, up to i, or from i on with REVERSE

With queries, keys and values for x, y and w this is the output; with keys, queries and gradients of outputs, reversed,
the gradient of values; and with S^T, gradients of outputs, values and keys the gradient of queries, that of keys from
values, gradients of outputs and queries, reversed. States are (dim, value dim).
"""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: branches are taken when it is compiled.
from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.linear_triton import bottom_of, compiled, load_values, place_of, product, store_values


@triton.jit
def sums_of_tile(
    p_x, p_y, p_w, p_states, p_more, o_first, length, stride_x, stride_y, stride_w, chunks,
    REVERSE: tl.constexpr, TRANSPOSED: tl.constexpr, TOTALS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of the rows from ``o_first`` on, float32, and with TOTALS those of x_i . y_j within the chunk.

    ``p_more``, unless None, are numbers added to x . y_j.
    """
    X_DIM: tl.constexpr = VALUE_DIM if TRANSPOSED else DIM
    X_BLOCK: tl.constexpr = BLOCK_V if TRANSPOSED else DIM
    W_DIM: tl.constexpr = DIM if TRANSPOSED else VALUE_DIM
    W_BLOCK: tl.constexpr = DIM if TRANSPOSED else BLOCK_V
    o_row = o_first + tl.arange(0, ROWS)
    i_chunk = o_first // CHUNK
    b_x = load_values(p_x, o_row, o_row < length, stride_x, X_DIM, X_BLOCK)
    p_state = p_states + i_chunk * (DIM * BLOCK_V)
    b_state = tl.load(p_state + tl.arange(0, DIM)[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :])
    if TRANSPOSED:
        b_state = tl.trans(b_state)
    b_sum = product(b_x, b_state, tl.zeros([ROWS, W_BLOCK], tl.float32), DOT, PRECISION)
    b_total = tl.zeros([ROWS], tl.float32)
    o_begin = o_first if REVERSE else i_chunk * CHUNK
    o_end = tl.minimum((i_chunk + 1) * CHUNK, length) if REVERSE else o_first + 1
    for i_step in range(0, tl.cdiv(o_end - o_begin, ROWS).to(tl.int32)):
        o_other = o_begin + i_step * ROWS + tl.arange(0, ROWS)
        b_y = load_values(p_y, o_other, o_other < length, stride_y, X_DIM, X_BLOCK)
        b_w = load_values(p_w, o_other, o_other < length, stride_w, W_DIM, W_BLOCK)
        b_weights = product(b_x, tl.trans(b_y), tl.zeros([ROWS, ROWS], tl.float32), DOT, PRECISION)
        if p_more is not None:
            b_weights += tl.load(p_more + o_other, mask=o_other < length, other=0.0)[None, :]
        m_seen = o_row[:, None] <= o_other[None, :] if REVERSE else o_row[:, None] >= o_other[None, :]
        b_weights = tl.where(m_seen, b_weights, 0.0)
        if TOTALS:
            b_total += tl.sum(b_weights, 1)
        b_sum = product(b_weights.to(DOT), b_w, b_sum, DOT, PRECISION)
    return b_sum, b_total


@compiled("heads_in_all", "heads", "groups_x", "groups_y", "length", "chunks", "slots")
def write_sums(
    p_x, p_y, p_w, p_states, p_begin, p_sums, p_sum, p_scale, stride_x, stride_y, stride_w,
    heads_in_all, heads, groups_x, groups_y, length, chunks, slots, eps,
    DIVIDED: tl.constexpr, HAS_MASK: tl.constexpr, REVERSE: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, SLOT: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs, or gradients of values. Outputs may have to be DIVIDED, by the sum of their "own" weights or by the root
    of their mean square for "norm": one over that is written too.
    """
    i_head, i_tile = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_other = i_b * (heads // groups_y) + i_h // groups_y
    p_x += i_b * stride_x[0] + i_h // groups_x * stride_x[1]
    b_sum, b_bottom = sums_of_tile(
        p_x,
        p_y + i_b * stride_y[0] + i_h // groups_y * stride_y[1],
        p_w + i_b * stride_w[0] + i_h // groups_y * stride_w[1],
        p_states + i_other * chunks * (DIM * BLOCK_V),
        None, i_tile * ROWS, length, stride_x, stride_y, stride_w, chunks,
        REVERSE, False, DIVIDED == "own", DIM, VALUE_DIM, BLOCK_V, CHUNK, ROWS, DOT, PRECISION,
    )  # fmt: skip
    o_row = i_tile * ROWS + tl.arange(0, ROWS)
    m_row = o_row < length
    if DIVIDED != "not":
        if DIVIDED == "own":  # with the keys before the chunk
            i_slot = (i_tile * ROWS) // CHUNK * (CHUNK // SLOT) - 1
            o_dim = tl.arange(0, DIM)
            m_dim = o_dim < tl.where(i_slot >= 0, DIM, 0)
            b_before = tl.load(p_sums + (i_other * slots + i_slot) * DIM + o_dim, mask=m_dim, other=0.0)
            b_x = load_values(p_x, o_row, m_row, stride_x, DIM, DIM).to(tl.float32)
            b_bottom += tl.sum(b_x * b_before[None, :], 1) + eps
            b_scale = 1.0 / bottom_of(b_bottom, p_begin, i_b, o_row, m_row, HAS_MASK)
        else:
            b_square = tl.sum(b_sum * b_sum, 1) / VALUE_DIM + eps
            b_scale = tl.rsqrt(bottom_of(b_square, p_begin, i_b, o_row, m_row, HAS_MASK))
        tl.store(p_scale + i_head * length + o_row, b_scale, mask=m_row)
        b_sum *= b_scale[:, None]
    store_values(p_sum + i_head * length * VALUE_DIM, b_sum, o_row, m_row, VALUE_DIM, BLOCK_V)
