"""The gradients of attention: keys and values by tiles of keys, queries and learned numbers by tiles of queries.

    w_ij = exp(s_ij - lse_i)     dv_j = sum_i w_ij do_i     ds_ij = w_ij (do_i . v_j - delta_i) cap'(s_ij)
    dk_j = scale sum_i ds_ij q_i     dq_i = scale sum_j ds_ij k_j     gradient of a bias = sum of ds over its pairs
with delta_i = do_i . out_i, less the gradient of lse_i. Weights are computed again from the log-sum-exp.

Gradients of learned numbers are sums of ds over many pairs that nearly cancel. What half precision took off the weights
and the output is in delta, and an error of delta, the same for all pairs of a row, does not cancel. So where numbers
are learned from half precision, delta is computed again as sum_j w_ij (do_i . v_j), less the gradient of lse_i: the
pass over keys adds what its tiles contribute, and the pass over queries, which comes after it, takes the sum.

How far gradients in bfloat16 are from exact ones (relative; normal inputs, 1024 positions, heads of 128, one rounding
at a time in float64): the results' own rounding alone is 1.7e-3 of dq, dk and dv; that of ds for its two
products 1.6e-3 of dq and dk, that of w 1.6e-3 of dv, that in delta 0.8e-3 of dq and dk. Together they are 2.4e-3, with
a precise delta 2.3e-3. Torch's own flash attention on a CPU (2.13) has 2.5e-3, 3.6e-3 and 3.5e-3 on the same inputs.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases import numbers_of, sums_of
from whorl.kernels.tiles.biases.table import add_diagonals
from whorl.kernels.tiles.products import add_product, load_rows, product, rows_at, scores_of, store_rows
from whorl.kernels.tiles.visits import DOCUMENTS, edge_at, keys_of, may_meet, queries_of, seen
from whorl.kernels.triton_launch import kernel


@kernel(pointers=5)
def row_deltas(
    p_do, p_out, p_lse, p_dlse, p_delta,
    s_o_b, s_o_h, s_o_l, heads, queries,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, PRECISE: tl.constexpr,
    HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """Of each query: do . out less the gradient of lse; behind all of them lse in powers of two; and behind those what
    becomes the precise delta when sum_j w_ij (do_i . v_j - delta_i) is added.

    Rows that see nothing have lse of plus infinity there, so that no weight comes of it.
    """
    blocks = tl.cdiv(queries, ROWS)
    i = tl.program_id(0)
    i_head = (i // blocks).to(tl.int64)
    o_row = (i % blocks) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    p_do, _ = rows_at(p_do, s_o_b, s_o_h, s_o_l, i_head // heads, i_head % heads, o_row, PADDED, UNIT)
    p_out, _ = rows_at(p_out, s_o_b, s_o_h, s_o_l, i_head // heads, i_head % heads, o_row, PADDED, UNIT)
    b_do = load_rows(p_do, m_row, DIM, BY_ROW=True).to(tl.float32)
    b_out = load_rows(p_out, m_row, DIM, BY_ROW=True).to(tl.float32)
    i_row = i_head * queries + o_row
    b_dlse = tl.load(p_dlse + i_row, mask=m_row, other=0.0) if HAS_DLSE else tl.zeros([ROWS], tl.float32)
    b_delta = tl.sum(b_do * b_out, 1) - b_dlse
    tl.store(p_delta + i_row, b_delta, mask=m_row)
    b_lse = tl.load(p_lse + i_row, mask=m_row, other=0.0)
    b_lse = tl.where(b_lse == float("-inf"), float("inf"), b_lse * 1.4426950408889634)
    total = (tl.num_programs(0) // blocks).to(tl.int64) * queries
    tl.store(p_delta + total + i_row, b_lse, mask=m_row)
    if PRECISE:
        tl.store(p_delta + 2 * total + i_row, b_delta - b_dlse, mask=m_row)


@triton.jit
def weights_and_ds(
    b_products, b_dp, b_lse, b_delta, o_i, o_j, corner, text, scoring,
    KIND: tl.constexpr, RULES: tl.constexpr, CAPPED: tl.constexpr,
    EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """w, ds, and ds without cap' of a tile; rows and columns may be either way round, as long as all are."""
    b_s = scores_of(b_products, o_i, o_j, corner, scoring, KIND, FAR, CAPPED)
    b_w = tl.exp2(b_s - b_lse)
    if EDGE:
        b_w = tl.where(seen(o_i, o_j, text, RULES), b_w, 0.0)
    b_straight = b_w * (b_dp - b_delta)
    b_ds = b_straight
    if CAPPED:
        b_part = b_s / scoring[1]
        b_ds *= 1.0 - b_part * b_part
    return b_w, b_ds, b_straight


@triton.jit
def take_queries(
    b_k, b_v, p_q, p_do, p_delta, total, s_q, s_o, start, m, b_dk, b_dv, queries, text, scoring,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, PRECISE: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The queries from m on joined to the gradients of a tile of keys and values, which begins at start."""
    KEYS: tl.constexpr = b_k.shape[0]
    shift = text[0] - queries
    if not DOCUMENTS & RULES or may_meet(m + shift, start, text, p_q.shape[0], KEYS):
        o_row = m + tl.arange(0, p_q.shape[0])
        m_row = o_row < queries
        b_q = load_rows(p_q + m * s_q, m_row, DIM, BY_ROW=EDGE)
        b_do = load_rows(p_do + m * s_o, m_row, VALUE_DIM, BY_ROW=EDGE)
        p_rows = p_delta + o_row
        b_delta = tl.load(p_rows, mask=m_row, other=0.0) if EDGE else tl.load(p_rows)
        b_lse = tl.load(p_rows + total, mask=m_row, other=float("inf")) if EDGE else tl.load(p_rows + total)
        b_w, b_ds, b_straight = weights_and_ds(
            product(b_k, tl.trans(b_q)), product(b_v, tl.trans(b_do)), b_lse[None, :], b_delta[None, :],
            (o_row + shift)[None, :], (start + tl.arange(0, KEYS))[:, None], (m + shift, start), text, scoring,
            KIND, RULES, CAPPED, EDGE, FAR,
        )  # fmt: skip
        if PRECISE:
            tl.atomic_add(p_rows + 2 * total, tl.sum(b_straight, 0), mask=m_row, sem="relaxed")
        b_dv = add_product(b_dv, b_w.to(b_do.dtype), b_do)
        b_dk = add_product(b_dk, b_ds.to(b_q.dtype), b_q)
    return b_dk, b_dv


@kernel(pointers=11)
def grad_keys(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_reach, p_dk, p_dv, p_q_documents, p_k_documents,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l,
    s_dk_b, s_dk_h, s_dk_l, s_dv_b, s_dv_h, s_dv_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, scale, cap,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, SKIPS: tl.constexpr, PRECISE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, from all query heads that share them."""
    i = tl.program_id(0)
    blocks = tl.cdiv(keys, KEYS)
    start = (i % blocks) * KEYS  # the first keys are seen by most queries
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_kv = (i // (blocks * batch)).to(tl.int64)
    text = keys, before, first, p_q_documents + i_b * queries - (keys - queries), p_k_documents + i_b * keys

    o_j = start + tl.arange(0, KEYS)
    m_j = o_j < keys
    p_k, _ = rows_at(p_k, s_k_b, s_k_h, s_k_l, i_b, i_kv, o_j, PADDED, UNIT)
    p_v, _ = rows_at(p_v, s_v_b, s_v_h, s_v_l, i_b, i_kv, o_j, VALUE_PADDED, UNIT)
    b_k = load_rows(p_k, m_j, DIM, BY_ROW=True)
    b_v = load_rows(p_v, m_j, VALUE_DIM, BY_ROW=True)
    p_q, s_q = rows_at(p_q, s_q_b, s_q_h, s_q_l, i_b, 0, tl.arange(0, ROWS), PADDED, UNIT)
    p_do, s_o = rows_at(p_do, s_o_b, s_o_h, s_o_l, i_b, 0, tl.arange(0, ROWS), VALUE_PADDED, UNIT)
    s_q_h, s_o_h = s_q_h.to(tl.int64) * UNIT, s_o_h.to(tl.int64) * UNIT
    total = batch.to(tl.int64) * heads * queries
    b_dk = tl.zeros([KEYS, PADDED], tl.float32)
    b_dv = tl.zeros([KEYS, VALUE_PADDED], tl.float32)

    for i_group in range(0, GROUPS):  # a constant: the compiler takes a loop over one head apart
        i_h = i_kv * GROUPS + i_group
        scoring = scale, cap, numbers_of(p_numbers, i_h, count, lowest, highest, KIND)
        left, lefts, right, rights, full, full_end = queries_of(start, queries, text, ROWS, KEYS, RULES)
        if SKIPS:  # queries that are farther give these keys no weight
            reach = tl.load(p_reach + i_b * heads + i_h)
            end = tl.maximum(tl.cdiv(start + KEYS + reach - (keys - queries), ROWS) * ROWS, full)
            rights = tl.where(end <= right, 0, rights)
            full_end = tl.minimum(full_end, end)
        p_q_h, p_do_h = p_q + i_h * s_q_h, p_do + i_h * s_o_h
        p_delta_h = p_delta + (i_b * heads + i_h) * queries
        for t in range(0, lefts + rights):
            m = edge_at(t, 0, left, lefts, right, ROWS)
            b_dk, b_dv = take_queries(
                b_k, b_v, p_q_h, p_do_h, p_delta_h, total, s_q, s_o, start, m, b_dk, b_dv, queries, text, scoring,
                DIM, VALUE_DIM, KIND, RULES, CAPPED, PRECISE, EDGE=True, FAR=False,
            )  # fmt: skip
        near_end = full_end
        if KIND == "table":
            far = tl.maximum(start + KEYS - 1 + highest - (keys - queries), 0)
            near_end = tl.minimum(tl.maximum(tl.cdiv(far, ROWS) * ROWS, full), full_end)
            for m in range(near_end, full_end, ROWS):
                b_dk, b_dv = take_queries(
                    b_k, b_v, p_q_h, p_do_h, p_delta_h, total, s_q, s_o, start, m, b_dk, b_dv, queries, text, scoring,
                    DIM, VALUE_DIM, KIND, RULES, CAPPED, PRECISE, EDGE=False, FAR=True,
                )  # fmt: skip
        for m in range(full, near_end, ROWS):
            b_dk, b_dv = take_queries(
                b_k, b_v, p_q_h, p_do_h, p_delta_h, total, s_q, s_o, start, m, b_dk, b_dv, queries, text, scoring,
                DIM, VALUE_DIM, KIND, RULES, CAPPED, PRECISE, EDGE=False, FAR=False,
            )  # fmt: skip

    p_dk, _ = rows_at(p_dk, s_dk_b, s_dk_h, s_dk_l, i_b, i_kv, o_j, PADDED, UNIT)
    p_dv, _ = rows_at(p_dv, s_dv_b, s_dv_h, s_dv_l, i_b, i_kv, o_j, VALUE_PADDED, UNIT)
    store_rows(p_dk, b_dk * (scale * 0.6931471805599453), m_j, DIM)
    store_rows(p_dv, b_dv, m_j, VALUE_DIM)


@triton.jit
def take_keys(
    b_q, b_do, b_lse, b_delta, p_k, p_v, s_k, s_v, start, n, b_dq, b_one, b_other, p_grad, text, scoring,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, LEARNED: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The keys from n on joined to the gradients of a tile of queries, and of the numbers of their head."""
    KEYS: tl.constexpr = p_k.shape[0]
    if not DOCUMENTS & RULES or may_meet(start, n, text, b_q.shape[0], KEYS):
        o_i = start + tl.arange(0, b_q.shape[0])[:, None]
        o_j = n + tl.arange(0, KEYS)
        m_j = o_j < text[0]
        b_k = load_rows(p_k + n * s_k, m_j, DIM, BY_ROW=EDGE)
        b_v = load_rows(p_v + n * s_v, m_j, VALUE_DIM, BY_ROW=EDGE)
        _, b_ds, _ = weights_and_ds(
            product(b_q, tl.trans(b_k)), product(b_do, tl.trans(b_v)), b_lse[:, None], b_delta[:, None],
            o_i, o_j[None, :], (start, n), text, scoring, KIND, RULES, CAPPED, EDGE, FAR,
        )  # fmt: skip
        b_dq = add_product(b_dq, b_ds.to(b_k.dtype), b_k)
        if LEARNED:
            numbers = scoring[2]
            if KIND == "table" and not FAR:
                add_diagonals(b_ds, start - n, p_grad, numbers[3], numbers[4])
            else:
                b_more, b_other_more = sums_of(b_ds, o_i, o_j[None, :], (start, n), numbers, p_grad, KIND)
                b_one += b_more
                b_other += b_other_more
    return b_dq, b_one, b_other


@kernel(pointers=11)
def grad_queries(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_reach, p_dq, p_grad, p_q_documents, p_k_documents,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l, s_dq_b, s_dq_h, s_dq_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, scale, cap,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, RULES: tl.constexpr,
    CAPPED: tl.constexpr, SKIPS: tl.constexpr, PRECISE: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of queries, and what it adds to those of the numbers of its head."""
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    i_kv = i_h // groups
    text = keys, before, first, p_q_documents + i_b * queries - (keys - queries), p_k_documents + i_b * keys
    scoring = scale, cap, numbers_of(p_numbers, i_h, count, lowest, highest, KIND)
    p_grad += i_h * count

    o_row = i_block * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_n = tl.arange(0, KEYS)
    p_q, _ = rows_at(p_q, s_q_b, s_q_h, s_q_l, i_b, i_h, o_row, PADDED, UNIT)
    p_do, _ = rows_at(p_do, s_o_b, s_o_h, s_o_l, i_b, i_h, o_row, VALUE_PADDED, UNIT)
    p_k, s_k = rows_at(p_k, s_k_b, s_k_h, s_k_l, i_b, i_kv, o_n, PADDED, UNIT)
    p_v, s_v = rows_at(p_v, s_v_b, s_v_h, s_v_l, i_b, i_kv, o_n, VALUE_PADDED, UNIT)
    b_q = load_rows(p_q, m_row, DIM, BY_ROW=True)
    b_do = load_rows(p_do, m_row, VALUE_DIM, BY_ROW=True)
    p_delta += (i_b * heads + i_h) * queries + o_row
    total = batch.to(tl.int64) * heads * queries
    b_lse = tl.load(p_delta + total, mask=m_row, other=float("inf"))
    b_delta = tl.load(p_delta + 2 * total if PRECISE else p_delta, mask=m_row, other=0.0)

    start = i_block * ROWS + keys - queries
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, text, ROWS, KEYS, RULES)
    if SKIPS:
        reach = tl.load(p_reach + i_b * heads + i_h)
        full = tl.minimum(tl.maximum(full, (start - reach) // KEYS * KEYS), full_end)
    b_dq = tl.zeros([ROWS, PADDED], tl.float32)
    b_one = tl.zeros([ROWS], tl.float32)
    b_other = tl.zeros([ROWS], tl.float32)
    near = full
    if KIND == "table":
        p_grad -= lowest
        near = tl.minimum(tl.maximum(full, (start - highest + 1) // KEYS * KEYS), full_end)
        for n in range(full, near, KEYS):
            b_dq, b_one, b_other = take_keys(
                b_q, b_do, b_lse, b_delta, p_k, p_v, s_k, s_v, start, n, b_dq, b_one, b_other, p_grad, text, scoring,
                DIM, VALUE_DIM, KIND, RULES, CAPPED, LEARNED, EDGE=False, FAR=True,
            )  # fmt: skip
    for n in range(near, full_end, KEYS):
        b_dq, b_one, b_other = take_keys(
            b_q, b_do, b_lse, b_delta, p_k, p_v, s_k, s_v, start, n, b_dq, b_one, b_other, p_grad, text, scoring,
            DIM, VALUE_DIM, KIND, RULES, CAPPED, LEARNED, EDGE=False, FAR=False,
        )  # fmt: skip
    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, KEYS)
        b_dq, b_one, b_other = take_keys(
            b_q, b_do, b_lse, b_delta, p_k, p_v, s_k, s_v, start, n, b_dq, b_one, b_other, p_grad, text, scoring,
            DIM, VALUE_DIM, KIND, RULES, CAPPED, LEARNED, EDGE=True, FAR=False,
        )  # fmt: skip

    p_dq, _ = rows_at(p_dq, s_dq_b, s_dq_h, s_dq_l, i_b, i_h, o_row, PADDED, UNIT)
    store_rows(p_dq, b_dq * (scale * 0.6931471805599453), m_row, DIM)
    if LEARNED:
        if KIND == "table":
            tl.atomic_add(p_grad + highest, tl.sum(b_one, 0), sem="relaxed")
        elif KIND == "broken":  # behind the lines
            tl.atomic_add(p_grad + 3 * lowest, tl.sum(b_one, 0), sem="relaxed")
            tl.atomic_add(p_grad + 3 * lowest + 1 + o_row, b_other, mask=m_row, sem="relaxed")
        else:
            tl.atomic_add(p_grad, tl.sum(b_one, 0), sem="relaxed")
            if KIND != "line":
                tl.atomic_add(p_grad + 1, tl.sum(b_other, 0), sem="relaxed")
