"""Gradients of linear attention. With N and D the two sums of a query, s = 1 / D, out = s N:

    c_i = -dout_i . out_i             s_i dout_i and s_i c_i are the gradients of N_i and D_i
    da_i = s_i sum_(j <= i) (dout_i . v_j) b_j        dp_i = s_i c_i sum_(j <= i) r_j        df(q) = R^T da + dp
    db_j = sum_(i >= j) (dout_i . v_j) s_i a_i        dr_j = sum_(i >= j) c_i s_i p_i        df(k) = R^T db + dr
    dv_j = sum_(i >= j) (b_j . s_i a_i) dout_i

The factor s is never given to dout, which so enters products as it came: s a is what forward products read as well.
Where weights are their own denominator, a and b take the places of p and r.

For an output divided by the root of its mean square, c = -mean(dout * out), s (dout + c out) takes the place of dout
and a that of s a, and there is no dp and no dr.
"""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: branches are taken when it is compiled.
from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.linear.features import load_halves, load_sums, store_sums
from whorl.kernels.linear.sums import sums_of_tile
from whorl.kernels.linear_triton import (
    compiled,
    key_features,
    load_pairs,
    load_tables,
    load_values,
    mask_of_keys,
    place_of,
    product,
    query_features,
    slope_of,
    store_pairs,
    store_values,
    turned_back,
)


@triton.jit
def halves_of(b_x, HALF: tl.constexpr):
    """Both halves of rows of features in registers."""
    return tl.split(tl.permute(tl.reshape(b_x, (b_x.shape[0], 2, HALF)), (0, 2, 1)))


@triton.jit
def sums_by_row(b_first, b_second, b_rest1, b_rest2, REVERSE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of both halves over the rows up to each, or from each on with REVERSE, and the rest of the text."""
    o_row, o_other = tl.arange(0, b_first.shape[0])[:, None], tl.arange(0, b_first.shape[0])[None, :]
    b_ones = tl.where(o_row <= o_other if REVERSE else o_row >= o_other, 1.0, 0.0)
    b_none = tl.zeros(b_first.shape, tl.float32)
    b_sum1 = product(b_ones, b_first, b_none, DOT, PRECISION) + b_rest1[None, :]
    return b_sum1, product(b_ones, b_second, b_none, DOT, PRECISION) + b_rest2[None, :]


@compiled("heads_in_all", "heads", "length", "slots")
def write_grad_rows(
    p_grad, p_out, p_scale, p_q, p_a, p_c, p_sums, p_placed, stride_g, stride_q, heads_in_all, heads, length, slots,
    DENOMINATOR: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    FEATURE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """c of some rows, and their sum of c s p or c s a; for "norm" what takes the place of dout instead."""
    HALF: tl.constexpr = HEAD[1]
    i_head, i_slot = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    o_row = i_slot * ROWS + tl.arange(0, ROWS)
    m_row = o_row < length
    p_grad += i_b * stride_g[0] + i_h * stride_g[1]
    b_grad = load_values(p_grad, o_row, m_row, stride_g, VALUE_DIM, BLOCK_V).to(tl.float32)
    p_out += i_head * length * VALUE_DIM
    b_out = load_values(p_out, o_row, m_row, (0, 0, VALUE_DIM, 1), VALUE_DIM, BLOCK_V).to(tl.float32)
    b_scale = tl.load(p_scale + i_head * length + o_row, mask=m_row, other=0.0)[:, None]
    b_c = tl.sum(-b_grad * b_out, 1)
    if DENOMINATOR == "norm":
        b_placed = (b_grad + b_c[:, None] / VALUE_DIM * b_out) * b_scale
        store_values(p_placed + i_head * length * VALUE_DIM, b_placed, o_row, m_row, VALUE_DIM, BLOCK_V)
    else:
        tl.store(p_c + i_head * length + o_row, b_c, mask=m_row)
        if DENOMINATOR == "own":
            b_p1, b_p2 = load_halves(p_a + i_head * length * (2 * HALF), o_row, m_row, HEAD)
        else:
            b_q1, b_q2 = load_pairs(p_q + i_b * stride_q[0] + i_h * stride_q[1], o_row, m_row, stride_q, HEAD)
            b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
            b_p1, b_p2 = b_p1 * b_scale, b_p2 * b_scale
        store_sums(p_sums, i_head, i_slot, slots, b_c[:, None] * b_p1, b_c[:, None] * b_p2, HALF)


@compiled("heads_in_all", "heads", "groups", "length", "chunks", "slots")
def write_grad_queries(
    p_q, p_k, p_b, p_v, p_cos, p_sin, p_mask, p_grad, p_scale, p_sums, p_states, p_dq,
    stride_q, stride_k, stride_b, stride_v, stride_t, stride_m, stride_g,
    heads_in_all, heads, groups, length, chunks, slots, eps,
    DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, CHUNK: tl.constexpr, SLOT: tl.constexpr, ROWS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of some queries."""
    HALF: tl.constexpr = HEAD[1]
    i_head, i_tile = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_key_head = i_b * (heads // groups) + i_h // groups
    p_b += i_key_head * length * (2 * HALF)
    b_d, _ = sums_of_tile(
        p_grad + i_b * stride_g[0] + i_h * stride_g[1],
        p_v + i_b * stride_v[0] + i_h // groups * stride_v[1],
        p_b,
        p_states + i_key_head * chunks * (2 * HALF * BLOCK_V),
        None, i_tile * ROWS, length, stride_g, stride_v, stride_b, chunks,
        False, True, False, 2 * HALF, VALUE_DIM, BLOCK_V, CHUNK, ROWS, DOT, PRECISION,
    )  # fmt: skip
    o_row = i_tile * ROWS + tl.arange(0, ROWS)
    m_row = o_row < length
    b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
    b_d1, b_d2 = halves_of(b_d, HALF)
    b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, HEAD[2])
    b_q1, b_q2 = load_pairs(p_q + i_b * stride_q[0] + i_h * stride_q[1], o_row, m_row, stride_q, HEAD)
    if DENOMINATOR != "norm":
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        b_scale = tl.load(p_scale + i_head * length + o_row, mask=m_row, other=0.0)
        # c = -p . df, not -dout . out: both terms nearly cancel, and so they do with the same rounding in both
        b_c = tl.sum(b_p1 * b_d1 + b_p2 * b_d2, 1)
        if DENOMINATOR == "own":
            b_r1, b_r2 = load_halves(p_b, o_row, m_row, HEAD)
        else:
            b_c *= b_scale
            m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
            p_k += i_b * stride_k[0] + i_h // groups * stride_k[1]
            b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
            b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
        b_z1, b_z2 = load_sums(p_sums, i_key_head, i_tile * (ROWS // SLOT) - 1, slots, HALF)
        b_sum1, b_sum2 = sums_by_row(b_r1, b_r2, b_z1, b_z2, False, DOT, PRECISION)
        if DENOMINATOR == "own":
            b_sum1, b_sum2 = turned_back(b_sum1, b_sum2, b_cos, b_sin, HEAD[2])
            b_bottom = tl.sum(b_p1 * b_sum1 + b_p2 * b_sum2, 1) + eps
            b_c = b_c / tl.where(b_scale == 0.0, 1.0, b_bottom)
        b_d1 = (b_d1 - b_c[:, None] * b_sum1) * b_scale[:, None]
        b_d2 = (b_d2 - b_c[:, None] * b_sum2) * b_scale[:, None]
    b_d1, b_d2 = b_d1 * slope_of(b_q1, FEATURE), b_d2 * slope_of(b_q2, FEATURE)
    store_pairs(p_dq + i_head * length * HEAD[0], b_d1, b_d2, o_row, m_row, HEAD)


@compiled("heads_in_all", "heads", "groups", "length", "chunks", "slots")
def write_grad_keys(
    p_q, p_k, p_a, p_v, p_cos, p_sin, p_mask, p_grad, p_scale, p_c, p_sums, p_states, p_dk,
    stride_q, stride_k, stride_a, stride_v, stride_t, stride_m, stride_g,
    heads_in_all, heads, groups, length, chunks, slots,
    DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, CHUNK: tl.constexpr, SLOT: tl.constexpr, ROWS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of some keys, of one of the heads that share them."""
    HALF: tl.constexpr = HEAD[1]
    i_head, i_tile = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    p_c += i_head * length
    b_d, _ = sums_of_tile(
        p_v + i_b * stride_v[0] + i_h // groups * stride_v[1],
        p_grad + i_b * stride_g[0] + i_h * stride_g[1],
        p_a + i_head * length * (2 * HALF),
        p_states + i_head * chunks * (2 * HALF * BLOCK_V),
        # before weights are rounded: both terms nearly cancel where an output is near a value
        p_c if DENOMINATOR == "own" else None,
        i_tile * ROWS, length, stride_v, stride_g, stride_a, chunks,
        True, True, False, 2 * HALF, VALUE_DIM, BLOCK_V, CHUNK, ROWS, DOT, PRECISION,
    )  # fmt: skip
    b_d1, b_d2 = halves_of(b_d, HALF)
    if DENOMINATOR == "own":
        after = ((i_tile * ROWS) // CHUNK + 1) * (CHUNK // SLOT)
        b_y1, b_y2 = load_sums(p_sums, i_head, after, slots, HALF)
        b_d1, b_d2 = b_d1 + b_y1[None, :], b_d2 + b_y2[None, :]
    o_row = i_tile * ROWS + tl.arange(0, ROWS)
    m_row = o_row < length
    b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
    b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, HEAD[2])
    if DENOMINATOR == "plain":
        b_q1, b_q2 = load_pairs(p_q + i_b * stride_q[0] + i_h * stride_q[1], o_row, m_row, stride_q, HEAD)
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        b_scale = tl.load(p_scale + i_head * length + o_row, mask=m_row, other=0.0)
        b_c = (b_scale * tl.load(p_c + o_row, mask=m_row, other=0.0))[:, None]
        b_y1, b_y2 = load_sums(p_sums, i_head, (i_tile + 1) * (ROWS // SLOT), slots, HALF)
        b_sum1, b_sum2 = sums_by_row(b_c * b_p1, b_c * b_p2, b_y1, b_y2, True, DOT, PRECISION)
        b_d1, b_d2 = b_d1 + b_sum1, b_d2 + b_sum2
    m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
    b_k1, b_k2 = load_pairs(p_k + i_b * stride_k[0] + i_h // groups * stride_k[1], o_row, m_key, stride_k, HEAD)
    b_d1, b_d2 = b_d1 * slope_of(b_k1, FEATURE), b_d2 * slope_of(b_k2, FEATURE)
    if HAS_MASK:
        b_d1, b_d2 = tl.where(m_key[:, None], b_d1, 0.0), tl.where(m_key[:, None], b_d2, 0.0)
    store_pairs(p_dk + i_head * length * HEAD[0], b_d1, b_d2, o_row, m_row, HEAD)
