"""The output of attention and the log-sum-exp of its scores: one program for each tile of queries.

    score of a query at i and a key at j:   cap(scale q_i . k_j + bias(i, j))        where j is seen from i

A program holds its queries and walks over tiles of keys, first those where some pairs are hidden, then those that all
its queries see: without a mask, and beyond the reach of a table with one number for the bias. ALiBi's line is known to
hide keys that are far, so their tiles are not visited (``biases/line.py``). Scores are in powers of two.

Where numbers of the bias are learned from half precision, what rounding takes off the weights is multiplied as well,
and what it takes off the output is kept: gradients of those numbers are sums of ds (``backward.py``) over many pairs
that nearly cancel, and an error of delta, the same for all pairs of a row, does not.

The programs with most work are started first: the last queries before the first, and heads in the order that is given.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases import numbers_of
from whorl.kernels.tiles.biases.line import bound_of, reach_of
from whorl.kernels.tiles.products import add_product, load_rows, product, scores_of, wide_strides
from whorl.kernels.tiles.visits import edge_at, keys_of, seen
from whorl.kernels.triton_launch import kernel


@triton.jit
def take_tile(
    b_q, p_k, p_v, s_k, s_v, o_i, n, start, b_out, b_sum, b_best,
    keys, before, first, scale, one, other, p_table, lowest, highest, cap,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRECISE: tl.constexpr,
    EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The keys from n on joined to what queries have gathered: output, sum of weights, largest score."""
    PADDED: tl.constexpr = b_q.shape[1]
    VALUE_PADDED: tl.constexpr = b_out.shape[1]
    o_j = n + tl.arange(0, KEYS)
    m_j = o_j < keys
    b_k = load_rows(p_k + n * s_k, m_j, tl.arange(0, PADDED) < DIM, BY_ROW=EDGE, BY_DIM=PADDED != DIM)
    b_s = scores_of(
        product(b_q, tl.trans(b_k)), o_i[:, None], o_j[None, :], start - n - (KEYS - 1), scale,
        one, other, p_table, lowest, highest, cap, KIND, FAR, CAPPED,
    )  # fmt: skip
    if EDGE:
        m_seen = seen(o_i[:, None], o_j[None, :], keys, before, first, CAUSAL, WINDOW)
        b_s = tl.where(m_seen, b_s, float("-inf"))
    b_more = tl.maximum(b_best, tl.max(b_s, 1))
    b_base = tl.where(b_more == float("-inf"), 0.0, b_more)  # a row that has seen nothing yet
    b_p = tl.exp2(b_s - b_base[:, None])
    b_shrink = tl.exp2(b_best - b_base)
    b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
    b_v = load_rows(
        p_v + n * s_v, m_j, tl.arange(0, VALUE_PADDED) < VALUE_DIM, BY_ROW=EDGE, BY_DIM=VALUE_PADDED != VALUE_DIM
    )
    b_rounded = b_p.to(b_v.dtype)
    b_out = add_product(b_out * b_shrink[:, None], b_rounded, b_v)
    if PRECISE:
        b_out = add_product(b_out, (b_p - b_rounded.to(tl.float32)).to(b_v.dtype), b_v)
    return b_out, b_sum, b_more


@kernel(pointers=10)
def attend(
    p_q, p_k, p_v, p_out, p_rest, p_lse, p_numbers, p_order, p_norms, p_reach,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, chunks, scale, cap,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, ORDERED: tl.constexpr, SKIPS: tl.constexpr, PRECISE: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    s_q_b, s_q_h, s_q_l = wide_strides(s_q_b, s_q_h, s_q_l, UNIT)
    s_k_b, s_k_h, s_k_l = wide_strides(s_k_b, s_k_h, s_k_l, UNIT)
    s_v_b, s_v_h, s_v_l = wide_strides(s_v_b, s_v_h, s_v_l, UNIT)
    s_o_b, s_o_h, s_o_l = wide_strides(s_o_b, s_o_h, s_o_l, UNIT)
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    if ORDERED:
        i_h = tl.load(p_order + i_h).to(tl.int64)
    i_kv = i_h // groups
    one, other, p_table = numbers_of(p_numbers, i_h, count, lowest, highest, KIND)

    o_row = i_block * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_d = tl.arange(0, PADDED)
    o_e = tl.arange(0, VALUE_PADDED)
    o_n = tl.arange(0, KEYS)
    p_q += i_b * s_q_b + i_h * s_q_h + o_row[:, None] * s_q_l + o_d[None, :]
    b_q = load_rows(p_q, m_row, o_d < DIM, BY_ROW=True, BY_DIM=PADDED != DIM)
    p_k += i_b * s_k_b + i_kv * s_k_h + o_n[:, None] * s_k_l + o_d[None, :]
    p_v += i_b * s_v_b + i_kv * s_v_h + o_n[:, None] * s_v_l + o_e[None, :]

    start = i_block * ROWS + keys - queries  # where queries stand among keys
    o_i = start + tl.arange(0, ROWS)
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, keys, before, first, ROWS, KEYS, CAUSAL, WINDOW)
    b_out = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_best = tl.full([ROWS], float("-inf"), tl.float32)

    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, KEYS)
        b_out, b_sum, b_best = take_tile(
            b_q, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_out, b_sum, b_best,
            keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, PRECISE, EDGE=True, FAR=False,
        )  # fmt: skip
    if SKIPS:
        b_bound = bound_of(b_q, p_norms + (i_b * (heads // groups) + i_kv) * chunks, chunks, scale)
        reach = reach_of(b_bound, b_best, one, m_row, keys, MARGIN)
        full = tl.minimum(tl.maximum(full, (start - reach) // KEYS * KEYS), full_end)
    near = full
    if KIND == "table":  # tiles whose pairs are all as far as the table goes, or farther
        near = tl.minimum(tl.maximum(full, (start - highest + 1) // KEYS * KEYS), full_end)
        for n in range(full, near, KEYS):
            b_out, b_sum, b_best = take_tile(
                b_q, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_out, b_sum, b_best,
                keys, before, first, scale, one, other, p_table, lowest, highest, cap,
                DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, PRECISE, EDGE=False, FAR=True,
            )  # fmt: skip
    for n in range(near, full_end, KEYS):
        b_out, b_sum, b_best = take_tile(
            b_q, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_out, b_sum, b_best,
            keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, PRECISE, EDGE=False, FAR=False,
        )  # fmt: skip

    blind = b_sum == 0.0
    b_lse = b_best + tl.log2(tl.where(blind, 1.0, b_sum))
    i_row = (i_b * heads + i_h) * queries + o_row
    tl.store(p_lse + i_row, b_lse * 0.6931471805599453, mask=m_row)
    if SKIPS:
        reach = reach_of(b_bound, b_lse, one, m_row, keys, MARGIN)
        tl.atomic_max(p_reach + i_b * heads + i_h, reach, sem="relaxed")
    b_out = b_out / tl.where(blind, 1.0, b_sum)[:, None]
    b_rounded = b_out.to(p_out.dtype.element_ty)
    o_out = i_b * s_o_b + i_h * s_o_h + o_row[:, None] * s_o_l + o_e[None, :]
    m_out = m_row[:, None] & (o_e < VALUE_DIM)[None, :]
    tl.store(p_out + o_out, b_rounded, mask=m_out)
    if PRECISE:
        tl.store(p_rest + o_out, (b_out - b_rounded.to(tl.float32)).to(p_rest.dtype.element_ty), mask=m_out)
