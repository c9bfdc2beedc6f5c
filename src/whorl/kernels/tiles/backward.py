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

from whorl.kernels.tiles.biases import add_sums, near_from, numbers_of, sums_of
from whorl.kernels.tiles.biases.gate import put_columns
from whorl.kernels.tiles.products import keeps, load_rows, product, rows_at, scores_of, store_rows
from whorl.kernels.tiles.visits import edge_at, keys_of, may_meet, places_of, queries_of, seen, text_of
from whorl.kernels.triton_launch import kernel


@kernel(pointers=5)
def row_deltas(
    p_do, p_out, p_lse, p_dlse, p_delta, strides_o, heads, queries,
    ROWS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PRECISE: tl.constexpr, HAS_DLSE: tl.constexpr,
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
    p_do, _ = rows_at(p_do, strides_o, i_head // heads, i_head % heads, o_row, PADDED)
    p_out, _ = rows_at(p_out, strides_o, i_head // heads, i_head % heads, o_row, PADDED)
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
    CASE: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """w as values have it, ds, and ds without cap' of a tile; rows and columns may be either way round, if all are."""
    b_s, factor, offset = scores_of(b_products, o_i, o_j, corner, text, scoring, CASE, FAR)
    b_w = tl.exp2(b_s * factor - (b_lse - offset))
    if EDGE:
        b_w = tl.where(seen(o_i, o_j, text, CASE), b_w, 0.0)
    b_kept = b_w
    if CASE.drops:
        b_kept = keeps(o_i, o_j, scoring[3])
        b_dp *= b_kept
        b_kept *= b_w
    b_straight = b_w * (b_dp - b_delta)
    b_ds = b_straight
    if CASE.capped:
        b_part = tl.maximum(b_s / scoring[1], -1.0)  # where a bias hides a key, ds is 0, and times infinity NaN
        b_ds *= 1.0 - b_part * b_part
    return b_kept, b_ds, b_straight


@triton.jit
def take_queries(side, gathered, m, queries, text, scoring, CASE: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr):
    """The queries from m on joined to the gradients of a tile of keys and values, and to the sums of its ds by key."""
    b_k, b_v, start, p_q, s_q, p_do, s_o, p_delta, total = side
    b_dk, b_dv, b_columns = gathered
    shift = text[0] - queries
    if not CASE.documents or may_meet(m + shift, start, text, CASE):
        o_row = m + tl.arange(0, CASE.rows)
        m_row = o_row < queries
        b_q = load_rows(p_q + m * s_q, m_row, CASE.dim, BY_ROW=EDGE)
        b_do = load_rows(p_do + m * s_o, m_row, CASE.value_dim, BY_ROW=EDGE)
        p_rows = p_delta + o_row
        b_delta = tl.load(p_rows, mask=m_row, other=0.0) if EDGE else tl.load(p_rows)
        b_lse = tl.load(p_rows + total, mask=m_row, other=float("inf")) if EDGE else tl.load(p_rows + total)
        b_w, b_ds, b_straight = weights_and_ds(
            product(b_k, tl.trans(b_q)), product(b_v, tl.trans(b_do)), b_lse[None, :], b_delta[None, :],
            (o_row + shift)[None, :], (start + tl.arange(0, CASE.keys))[:, None], (m + shift, start), text, scoring,
            CASE, EDGE, FAR,
        )  # fmt: skip
        if CASE.precise:
            tl.atomic_add(p_rows + 2 * total, tl.sum(b_straight, 0), mask=m_row, sem="relaxed")
        if CASE.learned and CASE.kind == "gate":
            b_columns += tl.sum(b_ds, 1)
        b_dv = product(b_w.to(b_do.dtype), b_do, b_dv)
        b_dk = product(b_ds.to(b_q.dtype), b_q, b_dk)
    return b_dk, b_dv, b_columns


@kernel(pointers=13)
def grad_keys(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_q_tokens, p_k_tokens, p_seed, p_reach, p_dk, p_dv, p_grad,
    strides_q, strides_k, strides_v, strides_o, strides_dk, strides_dv,
    batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap, share,
    CASE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, from all query heads that share them."""
    i = tl.program_id(0)
    blocks = tl.cdiv(keys, CASE.keys)
    start = (i % blocks) * CASE.keys  # the first keys are seen by most queries
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_kv = (i // (blocks * batch)).to(tl.int64)
    text = text_of(keys, before, first, p_q_tokens, p_k_tokens, i_b, batch, queries, CASE)

    o_j, o_m = start + tl.arange(0, CASE.keys), tl.arange(0, CASE.rows)
    m_j = o_j < keys
    p_k, _ = rows_at(p_k, strides_k, i_b, i_kv, o_j, CASE.padded)
    p_v, _ = rows_at(p_v, strides_v, i_b, i_kv, o_j, CASE.value_padded)
    b_k = load_rows(p_k, m_j, CASE.dim, BY_ROW=True)
    b_v = load_rows(p_v, m_j, CASE.value_dim, BY_ROW=True)
    total = batch.to(tl.int64) * heads * queries
    b_dk = tl.full([CASE.keys, CASE.padded], 0.0, tl.float32)
    b_dv = tl.full([CASE.keys, CASE.value_padded], 0.0, tl.float32)

    for i_group in range(0, CASE.groups):  # a constant: the compiler takes a loop over one head apart
        i_h = i_kv * CASE.groups + i_group
        i_row = i_b * heads + i_h
        scoring = scale, cap, numbers_of(p_numbers, i_h, i_row, count, lowest, highest, CASE), (p_seed, i_row, share)
        left, lefts, right, rights, full, full_end = queries_of(start, queries, text, CASE)
        if CASE.skips:  # queries that are farther give these keys no weight
            reach = tl.load(p_reach + i_row)
            end = tl.maximum(tl.cdiv(start + CASE.keys + reach - (keys - queries), CASE.rows) * CASE.rows, full)
            rights = tl.where(end <= right, 0, rights)
            full_end = tl.minimum(full_end, end)
        p_q_h, s_q = rows_at(p_q, strides_q, i_b, i_h, o_m, CASE.padded)
        p_do_h, s_o = rows_at(p_do, strides_o, i_b, i_h, o_m, CASE.value_padded)
        side = b_k, b_v, start, p_q_h, s_q, p_do_h, s_o, p_delta + i_row * queries, total
        gathered = b_dk, b_dv, tl.full([CASE.keys], 0.0, tl.float32)
        for t in range(0, lefts + rights):
            m = edge_at(t, 0, left, lefts, right, CASE.rows)
            gathered = take_queries(side, gathered, m, queries, text, scoring, CASE, EDGE=True, FAR=False)
        near_end = full_end
        if CASE.ends:
            far = tl.maximum(start + CASE.keys - 1 + highest - (keys - queries), 0)
            near_end = tl.minimum(tl.maximum(tl.cdiv(far, CASE.rows) * CASE.rows, full), full_end)
            for m in range(near_end, full_end, CASE.rows):
                gathered = take_queries(side, gathered, m, queries, text, scoring, CASE, EDGE=False, FAR=True)
        for m in range(full, near_end, CASE.rows):
            gathered = take_queries(side, gathered, m, queries, text, scoring, CASE, EDGE=False, FAR=False)
        b_dk, b_dv, b_columns = gathered
        if CASE.learned and CASE.kind == "gate":
            put_columns(b_columns, o_j, m_j, p_grad + i_row * count, highest)

    p_dk, _ = rows_at(p_dk, strides_dk, i_b, i_kv, o_j, CASE.padded)
    p_dv, _ = rows_at(p_dv, strides_dv, i_b, i_kv, o_j, CASE.value_padded)
    store_rows(p_dk, b_dk * (scale * 0.6931471805599453), m_j, CASE.dim)
    store_rows(p_dv, b_dv, m_j, CASE.value_dim)


@triton.jit
def take_keys(side, gathered, n, p_grad, text, scoring, CASE: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr):
    """The keys from n on joined to the gradients of a tile of queries, and of the numbers of their head."""
    b_q, b_do, b_lse, b_delta, start, p_k, s_k, p_v, s_v = side
    b_dq, b_one, b_other = gathered
    if not CASE.documents or may_meet(start, n, text, CASE):
        o_i = start + tl.arange(0, CASE.rows)[:, None]
        o_n = n + tl.arange(0, CASE.keys)
        o_j, m_j = o_n[None, :], o_n < text[0]
        b_k = load_rows(p_k + n * s_k, m_j, CASE.dim, BY_ROW=EDGE)
        b_v = load_rows(p_v + n * s_v, m_j, CASE.value_dim, BY_ROW=EDGE)
        _, b_ds, _ = weights_and_ds(
            product(b_q, tl.trans(b_k)), product(b_do, tl.trans(b_v)), b_lse[:, None], b_delta[:, None],
            o_i, o_j, (start, n), text, scoring, CASE, EDGE, FAR,
        )  # fmt: skip
        b_dq = product(b_ds.to(b_k.dtype), b_k, b_dq)
        if CASE.learned:
            o_i, o_j = places_of(o_i, o_j, text, CASE)
            b_more, b_other_more = sums_of(b_ds, o_i, o_j, (start, n), scoring[2], p_grad, CASE, FAR)
            b_one += b_more
            b_other += b_other_more
    return b_dq, b_one, b_other


@kernel(pointers=12)
def grad_queries(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_q_tokens, p_k_tokens, p_seed, p_reach, p_dq, p_grad,
    strides_q, strides_k, strides_v, strides_o, strides_dq,
    batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap, share,
    CASE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of queries, and what it adds to those of the numbers of its head."""
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, CASE.rows)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    i_kv, i_row = i_h // CASE.groups, i_b * heads + i_h
    text = text_of(keys, before, first, p_q_tokens, p_k_tokens, i_b, batch, queries, CASE)
    scoring = scale, cap, numbers_of(p_numbers, i_h, i_row, count, lowest, highest, CASE), (p_seed, i_row, share)
    p_grad += (i_row if CASE.kind == "gate" else i_h) * count

    o_row = i_block * CASE.rows + tl.arange(0, CASE.rows)
    m_row = o_row < queries
    o_n = tl.arange(0, CASE.keys)
    p_q, _ = rows_at(p_q, strides_q, i_b, i_h, o_row, CASE.padded)
    p_do, _ = rows_at(p_do, strides_o, i_b, i_h, o_row, CASE.value_padded)
    p_k, s_k = rows_at(p_k, strides_k, i_b, i_kv, o_n, CASE.padded)
    p_v, s_v = rows_at(p_v, strides_v, i_b, i_kv, o_n, CASE.value_padded)
    b_q = load_rows(p_q, m_row, CASE.dim, BY_ROW=True)
    b_do = load_rows(p_do, m_row, CASE.value_dim, BY_ROW=True)
    p_delta += i_row * queries + o_row
    total = batch.to(tl.int64) * heads * queries
    b_lse = tl.load(p_delta + total, mask=m_row, other=float("inf"))
    b_delta = tl.load(p_delta + 2 * total if CASE.precise else p_delta, mask=m_row, other=0.0)

    start = i_block * CASE.rows + keys - queries
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, text, CASE)
    if CASE.skips:
        reach = tl.load(p_reach + i_row)
        full = tl.minimum(tl.maximum(full, (start - reach) // CASE.keys * CASE.keys), full_end)
    side = b_q, b_do, b_lse, b_delta, start, p_k, s_k, p_v, s_v
    b_none = tl.full([CASE.rows], 0.0, tl.float32)
    gathered = tl.full([CASE.rows, CASE.padded], 0.0, tl.float32), b_none, b_none
    near = near_from(start, full, full_end, highest, CASE)
    if CASE.ends:
        for n in range(full, near, CASE.keys):
            gathered = take_keys(side, gathered, n, p_grad, text, scoring, CASE, EDGE=False, FAR=True)
    for n in range(near, full_end, CASE.keys):
        gathered = take_keys(side, gathered, n, p_grad, text, scoring, CASE, EDGE=False, FAR=False)
    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, CASE.keys)
        gathered = take_keys(side, gathered, n, p_grad, text, scoring, CASE, EDGE=True, FAR=False)

    b_dq, b_one, b_other = gathered
    p_dq, _ = rows_at(p_dq, strides_dq, i_b, i_h, o_row, CASE.padded)
    store_rows(p_dq, b_dq * (scale * 0.6931471805599453), m_row, CASE.dim)
    if CASE.learned:
        add_sums(b_one, b_other, o_row, queries, scoring[2], p_grad, CASE)
