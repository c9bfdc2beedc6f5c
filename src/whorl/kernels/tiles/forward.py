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

from whorl.kernels.tiles.biases import numbers_of
from whorl.kernels.tiles.biases.line import bound_of, reach_of
from whorl.kernels.tiles.products import add_product, load_rows, product, rows_at, scores_of, store_rows
from whorl.kernels.tiles.visits import DOCUMENTS, edge_at, keys_of, may_meet, seen
from whorl.kernels.triton_launch import kernel


@triton.jit
def take_tile(
    b_q, p_k, p_v, s_k, s_v, start, n, b_out, b_sum, b_best, text, scoring,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The keys from n on joined to what queries have gathered: output, sum of weights, largest score."""
    KEYS: tl.constexpr = p_k.shape[0]
    if not DOCUMENTS & RULES or may_meet(start, n, text, b_q.shape[0], KEYS):
        o_i = start + tl.arange(0, b_q.shape[0])[:, None]
        o_j = n + tl.arange(0, KEYS)
        m_j = o_j < text[0]
        b_k = load_rows(p_k + n * s_k, m_j, DIM, BY_ROW=EDGE)
        b_products = product(b_q, tl.trans(b_k))
        b_s = scores_of(b_products, o_i, o_j[None, :], (start, n), scoring, KIND, FAR, CAPPED)
        if EDGE:
            b_s = tl.where(seen(o_i, o_j[None, :], text, RULES), b_s, float("-inf"))
        b_more = tl.maximum(b_best, tl.max(b_s, 1))
        b_base = tl.where(b_more == float("-inf"), 0.0, b_more)  # a row that has seen nothing yet
        b_p = tl.exp2(b_s - b_base[:, None])
        b_shrink = tl.exp2(b_best - b_base)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_v = load_rows(p_v + n * s_v, m_j, VALUE_DIM, BY_ROW=EDGE)
        b_out = add_product(b_out * b_shrink[:, None], b_p.to(b_v.dtype), b_v)
        b_best = b_more
    return b_out, b_sum, b_best


@kernel(pointers=13)
def attend(
    p_q, p_k, p_v, p_out, p_lse, p_numbers, p_order, p_norms, p_reach, p_earlier, p_earlier_lse,
    p_q_documents, p_k_documents,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, scale, cap, earlier,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, SKIPS: tl.constexpr, ORDERED: tl.constexpr, MARGIN: tl.constexpr, CHUNK: tl.constexpr,
    GOES_ON: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    if ORDERED:
        i_h = tl.load(p_order + i_h).to(tl.int64)
    i_kv = i_h // groups
    text = keys, before, first, p_q_documents + i_b * queries - (keys - queries), p_k_documents + i_b * keys
    numbers = numbers_of(p_numbers, i_h, count, lowest, highest, KIND)
    scoring = scale, cap, numbers

    o_row = i_block * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_n = tl.arange(0, KEYS)
    p_q, _ = rows_at(p_q, s_q_b, s_q_h, s_q_l, i_b, i_h, o_row, PADDED, UNIT)
    p_k, s_k = rows_at(p_k, s_k_b, s_k_h, s_k_l, i_b, i_kv, o_n, PADDED, UNIT)
    p_v, s_v = rows_at(p_v, s_v_b, s_v_h, s_v_l, i_b, i_kv, o_n, VALUE_PADDED, UNIT)
    b_q = load_rows(p_q, m_row, DIM, BY_ROW=True)

    start = i_block * ROWS + keys - queries  # where queries stand among keys
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, text, ROWS, KEYS, RULES)
    b_out = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_best = tl.full([ROWS], float("-inf"), tl.float32)
    if GOES_ON:  # the last ``earlier`` of the queries
        o_earlier = o_row - (queries - earlier)
        m_earlier = m_row & (o_earlier >= 0)
        i_earlier = (i_b * heads + i_h) * earlier + o_earlier
        b_best = tl.load(p_earlier_lse + i_earlier, mask=m_earlier, other=float("-inf")) * 1.4426950408889634
        b_sum = tl.where(b_best == float("-inf"), 0.0, 1.0)
        p_earlier += i_earlier[:, None] * VALUE_DIM + tl.arange(0, VALUE_PADDED)[None, :]
        b_out = load_rows(p_earlier, m_earlier, VALUE_DIM, BY_ROW=True)

    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, KEYS)
        b_out, b_sum, b_best = take_tile(
            b_q, p_k, p_v, s_k, s_v, start, n, b_out, b_sum, b_best, text, scoring,
            DIM, VALUE_DIM, KIND, RULES, CAPPED, EDGE=True, FAR=False,
        )  # fmt: skip
    if SKIPS:
        chunks = tl.cdiv(keys, CHUNK)
        b_bound = bound_of(b_q, p_norms + (i_b * (heads // groups) + i_kv) * chunks, chunks, scale)
        reach = reach_of(b_bound, b_best, numbers[0], m_row, keys, MARGIN)
        full = tl.minimum(tl.maximum(full, (start - reach) // KEYS * KEYS), full_end)
    near = full
    if KIND == "table":  # tiles whose pairs are all as far as the table goes, or farther
        near = tl.minimum(tl.maximum(full, (start - highest + 1) // KEYS * KEYS), full_end)
        for n in range(full, near, KEYS):
            b_out, b_sum, b_best = take_tile(
                b_q, p_k, p_v, s_k, s_v, start, n, b_out, b_sum, b_best, text, scoring,
                DIM, VALUE_DIM, KIND, RULES, CAPPED, EDGE=False, FAR=True,
            )  # fmt: skip
    for n in range(near, full_end, KEYS):
        b_out, b_sum, b_best = take_tile(
            b_q, p_k, p_v, s_k, s_v, start, n, b_out, b_sum, b_best, text, scoring,
            DIM, VALUE_DIM, KIND, RULES, CAPPED, EDGE=False, FAR=False,
        )  # fmt: skip

    blind = b_sum == 0.0
    b_lse = b_best + tl.log2(tl.where(blind, 1.0, b_sum))
    tl.store(p_lse + (i_b * heads + i_h) * queries + o_row, b_lse * 0.6931471805599453, mask=m_row)
    if SKIPS:
        reach = reach_of(b_bound, b_lse, numbers[0], m_row, keys, MARGIN)
        tl.atomic_max(p_reach + i_b * heads + i_h, reach, sem="relaxed")
    p_out, _ = rows_at(p_out, s_o_b, s_o_h, s_o_l, i_b, i_h, o_row, VALUE_PADDED, UNIT)
    store_rows(p_out, b_out / tl.where(blind, 1.0, b_sum)[:, None], m_row, VALUE_DIM)
