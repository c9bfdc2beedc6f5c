"""The output of attention and the log-sum-exp of its scores: one program for each tile of queries.

    score of a query at i and a key at j:   cap(scale q_i . k_j + bias(i, j))        where j is seen from i

A program holds its queries and walks over tiles of keys, first those where some pairs are hidden, then those that all
its queries see: without a mask, and beyond the reach of a table with one number for the bias. ALiBi's line is known to
hide keys that are far, so their tiles are not visited (``biases/line.py``). Scores are in powers of two. Where the last
queries have attended to other keys before, they go on from the output and log-sum-exp of that.

The programs with most work are started first: the last queries before the first, and heads in the order that is given.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases import near_from, numbers_of
from whorl.kernels.tiles.biases.line import bound_of, reach_of
from whorl.kernels.tiles.products import keeps, load_rows, product, rows_at, scores_of, store_rows
from whorl.kernels.tiles.visits import edge_at, keys_of, may_meet, seen, text_of
from whorl.kernels.triton_launch import kernel


@triton.jit
def take_keys(side, gathered, n, text, scoring, CASE: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr):
    """The keys from n on joined to what queries have gathered: output, sum of weights, largest score."""
    b_q, start, p_k, s_k, p_v, s_v = side
    b_out, b_sum, b_best = gathered
    if not CASE.documents or may_meet(start, n, text, CASE):
        o_i = start + tl.arange(0, CASE.rows)[:, None]
        o_n = n + tl.arange(0, CASE.keys)
        o_j, m_j = o_n[None, :], o_n < text[0]
        b_k = load_rows(p_k + n * s_k, m_j, CASE.dim, BY_ROW=EDGE)
        b_products = product(b_q, tl.trans(b_k))
        b_s, factor, offset = scores_of(b_products, o_i, o_j, (start, n), text, scoring, CASE, FAR)
        if EDGE:
            b_s = tl.where(seen(o_i, o_j, text, CASE), b_s, float("-inf"))
        b_more = tl.maximum(b_best, tl.max(b_s, 1) * factor + offset)
        b_base = tl.where(b_more == float("-inf"), 0.0, b_more)  # a row that has seen nothing yet
        b_p = tl.exp2(b_s * factor - (b_base - offset)[:, None])
        b_shrink = tl.exp2(b_best - b_base)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        if CASE.drops:  # after the sum: what is left out is left out of the output alone
            b_p *= keeps(o_i, o_j, scoring[3])
        b_v = load_rows(p_v + n * s_v, m_j, CASE.value_dim, BY_ROW=EDGE)
        b_out = product(b_p.to(b_v.dtype), b_v, b_out * b_shrink[:, None])
        b_best = b_more
    return b_out, b_sum, b_best


@kernel(pointers=14)
def attend(
    p_q, p_k, p_v, p_out, p_lse, p_numbers, p_order, p_q_tokens, p_k_tokens, p_seed, p_norms, p_reach, p_earlier,
    p_earlier_lse, strides_q, strides_k, strides_v, strides_o,
    batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap, share, earlier,
    CASE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, CASE.rows)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    if CASE.ordered:
        i_h = tl.load(p_order + i_h).to(tl.int64)
    i_kv, i_row = i_h // CASE.groups, i_b * heads + i_h
    text = text_of(keys, before, first, p_q_tokens, p_k_tokens, i_b, batch, queries, CASE)
    numbers = numbers_of(p_numbers, i_h, i_row, count, lowest, highest, CASE)
    scoring = scale, cap, numbers, (p_seed, i_row, share)

    o_row = i_block * CASE.rows + tl.arange(0, CASE.rows)
    m_row = o_row < queries
    o_n = tl.arange(0, CASE.keys)
    p_q, _ = rows_at(p_q, strides_q, i_b, i_h, o_row, CASE.padded)
    p_k, s_k = rows_at(p_k, strides_k, i_b, i_kv, o_n, CASE.padded)
    p_v, s_v = rows_at(p_v, strides_v, i_b, i_kv, o_n, CASE.value_padded)
    b_q = load_rows(p_q, m_row, CASE.dim, BY_ROW=True)

    start = i_block * CASE.rows + keys - queries  # where queries stand among keys
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, text, CASE)
    side = b_q, start, p_k, s_k, p_v, s_v
    b_out = tl.full([CASE.rows, CASE.value_padded], 0.0, tl.float32)
    b_sum = tl.full([CASE.rows], 0.0, tl.float32)
    b_best = tl.full([CASE.rows], float("-inf"), tl.float32)
    if CASE.goes_on:  # the last ``earlier`` of the queries
        o_earlier = o_row - (queries - earlier)
        m_earlier = m_row & (o_earlier >= 0)
        i_earlier = i_row * earlier + o_earlier
        b_best = tl.load(p_earlier_lse + i_earlier, mask=m_earlier, other=float("-inf")) * 1.4426950408889634
        b_sum = tl.where(b_best == float("-inf"), 0.0, 1.0)
        p_earlier += i_earlier[:, None] * CASE.value_dim + tl.arange(0, CASE.value_padded)[None, :]
        b_out = load_rows(p_earlier, m_earlier, CASE.value_dim, BY_ROW=True)
    gathered = b_out, b_sum, b_best

    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, CASE.keys)
        gathered = take_keys(side, gathered, n, text, scoring, CASE, EDGE=True, FAR=False)
    if CASE.skips:
        chunks = tl.cdiv(keys, CASE.chunk)
        b_bound = bound_of(b_q, p_norms + (i_b * (heads // CASE.groups) + i_kv) * chunks, chunks, scale)
        reach = reach_of(b_bound, gathered[2], numbers[0], m_row, keys, CASE.margin)
        full = tl.minimum(tl.maximum(full, (start - reach) // CASE.keys * CASE.keys), full_end)
    near = near_from(start, full, full_end, highest, CASE)
    if CASE.ends:
        for n in range(full, near, CASE.keys):
            gathered = take_keys(side, gathered, n, text, scoring, CASE, EDGE=False, FAR=True)
    for n in range(near, full_end, CASE.keys):
        gathered = take_keys(side, gathered, n, text, scoring, CASE, EDGE=False, FAR=False)

    b_out, b_sum, b_best = gathered
    blind = b_sum == 0.0
    b_lse = b_best + tl.log2(tl.where(blind, 1.0, b_sum))
    tl.store(p_lse + i_row * queries + o_row, b_lse * 0.6931471805599453, mask=m_row)
    if CASE.skips:
        reach = reach_of(b_bound, b_lse, numbers[0], m_row, keys, CASE.margin)
        tl.atomic_max(p_reach + i_row, reach, sem="relaxed")
    p_out, _ = rows_at(p_out, strides_o, i_b, i_h, o_row, CASE.value_padded)
    store_rows(p_out, b_out / tl.where(blind, 1.0, b_sum)[:, None], m_row, CASE.value_dim)
