"""Features of queries and keys, rotated and written once: what every product of linear attention reads.

Where denominators are sums of plain features, a query's feature is multiplied by one over its own,
s_i = 1 / (sum_(j <= i) p_i . r_j + eps), before it is rounded: the products that follow know of no denominator, in
either pass. Other denominators come with the output (``sums``), and the backward pass knows them all.

A slot is some rows of a head whose keys are added up before: what a denominator needs to know of all earlier rows. What
the rows of a slot add is a running sum in float32, a few rows at a time: a key that is not a number stays unseen by the
queries before it, and where a program is one warp, a running sum needs no shared memory. A masked product of the slot's
rows takes longer: its layout in registers is not that of a rotation, so that rows have to be loaded a second time.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false
# A kernel is written in Triton's language: branches are taken when it is compiled.
from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.linear_triton import (
    bottom_of,
    compiled,
    key_features,
    load_pairs,
    load_tables,
    mask_of_keys,
    place_of,
    query_features,
    turned,
)

STEP = tl.constexpr(8)  # rows that features are written of at a time
AHEAD = tl.constexpr(3)  # steps whose rows are on their way


@triton.jit
def load_halves(p_x, o_row, m_row, HEAD: tl.constexpr):
    """Both halves of rows of features, float32; 0 where there is nothing."""
    HALF: tl.constexpr = HEAD[1]
    p_row = p_x + o_row[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    b_first = tl.load(p_row, mask=m_row[:, None], other=0.0)
    b_second = tl.load(p_row + HALF, mask=m_row[:, None], other=0.0)
    return b_first.to(tl.float32), b_second.to(tl.float32)


@triton.jit
def store_halves(p_x, b_first, b_second, o_row, m_row, HEAD: tl.constexpr):
    """Writes both halves of rows of features, one behind the other."""
    HALF: tl.constexpr = HEAD[1]
    p_row = p_x + o_row[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    tl.store(p_row, b_first.to(p_x.dtype.element_ty), mask=m_row[:, None])
    tl.store(p_row + HALF, b_second.to(p_x.dtype.element_ty), mask=m_row[:, None])


@triton.jit
def load_sums(p_sums, i_head, i_slot, slots, HALF: tl.constexpr):
    """Both halves of the running sums of a slot; 0 for a slot that is not there."""
    o_sum = tl.arange(0, HALF)
    o_slot = i_slot + tl.zeros([HALF], tl.int64)
    m_sum = (o_slot >= 0) & (o_slot < slots)
    p_slot = p_sums + (i_head * slots + i_slot) * (2 * HALF) + o_sum
    return tl.load(p_slot, mask=m_sum, other=0.0), tl.load(p_slot + HALF, mask=m_sum, other=0.0)


@triton.jit
def store_sums(p_sums, i_head, i_slot, slots, b_first, b_second, HALF: tl.constexpr):
    """Writes what a slot adds to the running sums."""
    p_slot = p_sums + (i_head * slots + i_slot) * (2 * HALF) + tl.arange(0, HALF)
    tl.store(p_slot, tl.sum(b_first, 0))
    tl.store(p_slot + HALF, tl.sum(b_second, 0))


@triton.jit
def rounded(b_x, DOT: tl.constexpr):
    """Numbers as products read them."""
    return b_x.to(DOT).to(tl.float32)


@compiled("heads_in_all", "heads", "length", "slots")
def add_keys(
    p_k, p_cos, p_sin, p_mask, p_sums, stride_k, stride_t, stride_m, heads_in_all, heads, length, slots,
    DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """The sum of r over a slot, or of b where weights are their own denominator."""
    i_head, i_slot = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    o_row = i_slot * ROWS + tl.arange(0, ROWS)
    m_row = o_row < length
    m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
    b_k1, b_k2 = load_pairs(p_k + i_b * stride_k[0] + i_h * stride_k[1], o_row, m_key, stride_k, HEAD)
    b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
    if DENOMINATOR == "own":  # as rounded as in the numerator: what rounding does to both then cancels
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_r1, b_r2 = turned(b_r1, b_r2, b_cos, b_sin, HEAD[2])
        b_r1, b_r2 = rounded(b_r1, DOT), rounded(b_r2, DOT)
    store_sums(p_sums, i_head, i_slot, slots, b_r1, b_r2, HEAD[1])


@compiled("heads_in_all", "heads", "groups", "length", "slots")
def write_features(
    p_q, p_k, p_cos, p_sin, p_mask, p_begin, p_sums, p_scale, p_a, p_b, stride_q, stride_k, stride_t, stride_m,
    heads_in_all, heads, groups, length, slots, eps,
    SCALE: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """b = R r and s a = s R p of a slot; s is "found" here, and written, or "known", or comes "later" and is 1."""
    HALF: tl.constexpr = HEAD[1]
    i_head, i_slot = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_key_head = i_b * (heads // groups) + i_h // groups
    p_q += i_b * stride_q[0] + i_h * stride_q[1]
    p_k += i_b * stride_k[0] + i_h // groups * stride_k[1]
    p_scale += i_head * length
    if SCALE == "found":
        b_z1, b_z2 = load_sums(p_sums, i_key_head, i_slot - 1, slots, HALF)
    for i_step in tl.range(ROWS // STEP, num_stages=AHEAD):
        o_row = i_slot * ROWS + i_step * STEP + tl.arange(0, STEP)
        m_row = o_row < length
        m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
        b_q1, b_q2 = load_pairs(p_q, o_row, m_row, stride_q, HEAD)
        b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
        b_b1, b_b2 = turned(b_r1, b_r2, b_cos, b_sin, HEAD[2])
        m_written = o_row < tl.where(i_h % groups == 0, length, 0)  # heads that share keys write them once
        store_halves(p_b + i_key_head * length * (2 * HALF), b_b1, b_b2, o_row, m_written, HEAD)
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        if SCALE == "found":
            b_seen1, b_seen2 = tl.cumsum(b_r1, 0) + b_z1[None, :], tl.cumsum(b_r2, 0) + b_z2[None, :]
            b_bottom = tl.sum(b_p1 * b_seen1 + b_p2 * b_seen2, 1) + eps
            b_scale = 1.0 / bottom_of(b_bottom, p_begin, i_b, o_row, m_row, HAS_MASK)
            tl.store(p_scale + o_row, b_scale, mask=m_row)
            b_z1 += tl.sum(b_r1, 0)
            b_z2 += tl.sum(b_r2, 0)
        elif SCALE == "known":
            b_scale = tl.load(p_scale + o_row, mask=m_row, other=0.0)
        if SCALE != "later":
            b_p1, b_p2 = b_p1 * b_scale[:, None], b_p2 * b_scale[:, None]
        b_a1, b_a2 = turned(b_p1, b_p2, b_cos, b_sin, HEAD[2])
        store_halves(p_a + i_head * length * (2 * HALF), b_a1, b_a2, o_row, m_row, HEAD)
