"""The gradients of attention: keys and values by tiles of keys, queries and learned numbers by tiles of queries.

    w_ij = exp(s_ij - lse_i)     dv_j = sum_i w_ij do_i     ds_ij = w_ij (do_i . v_j - delta_i) cap'(s_ij)
    dk_j = scale sum_i ds_ij q_i     dq_i = scale sum_j ds_ij k_j     gradient of a bias = sum of ds over its pairs
with delta_i = do_i . out_i, less the gradient of lse_i. Weights are computed again from the log-sum-exp.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases import numbers_of, sums_of
from whorl.kernels.tiles.biases.table import add_diagonals
from whorl.kernels.tiles.products import add_product, load_rows, product, scores_of, wide_strides
from whorl.kernels.tiles.visits import edge_at, keys_of, queries_of, seen
from whorl.kernels.triton_launch import kernel


@kernel(pointers=6)
def row_deltas(
    p_do, p_out, p_rest, p_lse, p_dlse, p_delta,
    s_o_b, s_o_h, s_o_l, heads, queries,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, PRECISE: tl.constexpr,
    HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """Of each query: do . out less the gradient of lse, and behind all of them lse in powers of two.

    Rows that see nothing have lse of plus infinity there, so that no weight comes of it.
    """
    s_o_b, s_o_h, s_o_l = wide_strides(s_o_b, s_o_h, s_o_l, UNIT)
    blocks = tl.cdiv(queries, ROWS)
    i = tl.program_id(0)
    i_head = (i // blocks).to(tl.int64)
    o_row = (i % blocks) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_e = tl.arange(0, PADDED)
    o_x = (i_head // heads) * s_o_b + (i_head % heads) * s_o_h + o_row[:, None] * s_o_l + o_e[None, :]
    m_x = m_row[:, None] & (o_e < DIM)[None, :]
    b_do = tl.load(p_do + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_out = tl.load(p_out + o_x, mask=m_x, other=0.0).to(tl.float32)
    if PRECISE:
        b_out += tl.load(p_rest + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_delta = tl.sum(b_do * b_out, 1)
    i_row = i_head * queries + o_row
    if HAS_DLSE:
        b_delta -= tl.load(p_dlse + i_row, mask=m_row, other=0.0)
    tl.store(p_delta + i_row, b_delta, mask=m_row)
    b_lse = tl.load(p_lse + i_row, mask=m_row, other=0.0)
    b_lse = tl.where(b_lse == float("-inf"), float("inf"), b_lse * 1.4426950408889634)
    total = (tl.num_programs(0) // blocks).to(tl.int64) * queries
    tl.store(p_delta + total + i_row, b_lse, mask=m_row)


@triton.jit
def weights_and_ds(
    b_products, b_dp, b_lse, b_delta, o_i, o_j, nearest, keys, before, first,
    scale, one, other, p_table, lowest, highest, cap, KIND: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """w and ds of a tile above; rows and columns may be either way round, as long as all are."""
    b_s = scores_of(b_products, o_i, o_j, nearest, scale, one, other, p_table, lowest, highest, cap, KIND, FAR, CAPPED)
    b_w = tl.exp2(b_s - b_lse)
    if EDGE:
        b_w = tl.where(seen(o_i, o_j, keys, before, first, CAUSAL, WINDOW), b_w, 0.0)
    b_ds = b_w * (b_dp - b_delta)
    if CAPPED:
        b_ds *= 1.0 - (b_s / cap) * (b_s / cap)
    return b_w, b_ds


@triton.jit
def take_queries(
    b_k, b_v, p_q, p_do, p_lse, p_delta, s_q, s_o, o_j, m, start, b_dk, b_dv,
    queries, keys, before, first, scale, one, other, p_table, lowest, highest, cap,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, EDGE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The queries from m on joined to the gradients of a tile of keys and values."""
    KEYS: tl.constexpr = b_k.shape[0]
    PADDED: tl.constexpr = b_k.shape[1]
    VALUE_PADDED: tl.constexpr = b_v.shape[1]
    o_row = m + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_i = o_row + (keys - queries)
    b_q = load_rows(p_q + m * s_q, m_row, tl.arange(0, PADDED) < DIM, BY_ROW=EDGE, BY_DIM=PADDED != DIM)
    b_do = load_rows(
        p_do + m * s_o, m_row, tl.arange(0, VALUE_PADDED) < VALUE_DIM, BY_ROW=EDGE, BY_DIM=VALUE_PADDED != VALUE_DIM
    )
    b_lse = tl.load(p_lse + o_row, mask=m_row, other=float("inf")) if EDGE else tl.load(p_lse + o_row)
    b_delta = tl.load(p_delta + o_row, mask=m_row, other=0.0) if EDGE else tl.load(p_delta + o_row)
    b_w, b_ds = weights_and_ds(
        product(b_k, tl.trans(b_q)), product(b_v, tl.trans(b_do)), b_lse[None, :], b_delta[None, :],
        o_i[None, :], o_j[:, None], m + keys - queries - start - (KEYS - 1), keys, before, first,
        scale, one, other, p_table, lowest, highest, cap, KIND, CAUSAL, WINDOW, CAPPED, EDGE, FAR,
    )  # fmt: skip
    b_dv = add_product(b_dv, b_w.to(b_do.dtype), b_do)
    b_dk = add_product(b_dk, b_ds.to(b_q.dtype), b_q)
    return b_dk, b_dv


@triton.jit
def take_head(
    b_k, b_v, p_q, p_do, p_delta, p_numbers, p_reach, s_q_h, s_q_l, s_o_h, s_o_l, o_j, start, i_b, i_h, b_dk, b_dv,
    batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """All queries of one head joined to the gradients of a tile of keys and values."""
    KEYS: tl.constexpr = b_k.shape[0]
    p_lse = p_delta + batch.to(tl.int64) * heads * queries
    one, other, p_table = numbers_of(p_numbers, i_h, count, lowest, highest, KIND)
    left, lefts, right, rights, full, full_end = queries_of(
        start, queries, keys, before, first, ROWS, KEYS, CAUSAL, WINDOW
    )
    if SKIPS:  # queries that are farther give these keys no weight
        reach = tl.load(p_reach + i_b * heads + i_h)
        end = tl.maximum(tl.cdiv(start + KEYS + reach - (keys - queries), ROWS) * ROWS, full)
        rights = tl.where(end <= right, 0, rights)
        full_end = tl.minimum(full_end, end)
    p_q_h = p_q + i_h * s_q_h
    p_do_h = p_do + i_h * s_o_h
    i_rows = (i_b * heads + i_h) * queries
    for t in range(0, lefts + rights):
        m = edge_at(t, 0, left, lefts, right, ROWS)
        b_dk, b_dv = take_queries(
            b_k, b_v, p_q_h, p_do_h, p_lse + i_rows, p_delta + i_rows, s_q_l, s_o_l, o_j, m, start, b_dk, b_dv,
            queries, keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, ROWS, KIND, CAUSAL, WINDOW, CAPPED, EDGE=True, FAR=False,
        )  # fmt: skip
    near_end = full_end
    if KIND == "table":
        far = start + KEYS - 1 + highest - (keys - queries)
        near_end = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(far, 0), ROWS) * ROWS, full), full_end)
        for m in range(near_end, full_end, ROWS):
            b_dk, b_dv = take_queries(
                b_k, b_v, p_q_h, p_do_h, p_lse + i_rows, p_delta + i_rows, s_q_l, s_o_l, o_j, m, start, b_dk, b_dv,
                queries, keys, before, first, scale, one, other, p_table, lowest, highest, cap,
                DIM, VALUE_DIM, ROWS, KIND, CAUSAL, WINDOW, CAPPED, EDGE=False, FAR=True,
            )  # fmt: skip
    for m in range(full, near_end, ROWS):
        b_dk, b_dv = take_queries(
            b_k, b_v, p_q_h, p_do_h, p_lse + i_rows, p_delta + i_rows, s_q_l, s_o_l, o_j, m, start, b_dk, b_dv,
            queries, keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, ROWS, KIND, CAUSAL, WINDOW, CAPPED, EDGE=False, FAR=False,
        )  # fmt: skip
    return b_dk, b_dv


@kernel(pointers=9)
def grad_keys(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_reach, p_dk, p_dv,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l,
    s_dk_b, s_dk_h, s_dk_l, s_dv_b, s_dv_h, s_dv_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, scale, cap,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, SKIPS: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, from all query heads that share them."""
    s_q_b, s_q_h, s_q_l = wide_strides(s_q_b, s_q_h, s_q_l, UNIT)
    s_k_b, s_k_h, s_k_l = wide_strides(s_k_b, s_k_h, s_k_l, UNIT)
    s_v_b, s_v_h, s_v_l = wide_strides(s_v_b, s_v_h, s_v_l, UNIT)
    s_o_b, s_o_h, s_o_l = wide_strides(s_o_b, s_o_h, s_o_l, UNIT)
    s_dk_b, s_dk_h, s_dk_l = wide_strides(s_dk_b, s_dk_h, s_dk_l, UNIT)
    s_dv_b, s_dv_h, s_dv_l = wide_strides(s_dv_b, s_dv_h, s_dv_l, UNIT)
    i = tl.program_id(0)
    blocks = tl.cdiv(keys, KEYS)
    start = (i % blocks) * KEYS  # the first keys are seen by most queries
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_kv = (i // (blocks * batch)).to(tl.int64)

    o_j = start + tl.arange(0, KEYS)
    m_j = o_j < keys
    o_d = tl.arange(0, PADDED)
    o_e = tl.arange(0, VALUE_PADDED)
    o_r = tl.arange(0, ROWS)
    p_k += i_b * s_k_b + i_kv * s_k_h + o_j[:, None] * s_k_l + o_d[None, :]
    p_v += i_b * s_v_b + i_kv * s_v_h + o_j[:, None] * s_v_l + o_e[None, :]
    b_k = load_rows(p_k, m_j, o_d < DIM, BY_ROW=True, BY_DIM=PADDED != DIM)
    b_v = load_rows(p_v, m_j, o_e < VALUE_DIM, BY_ROW=True, BY_DIM=VALUE_PADDED != VALUE_DIM)
    p_q += i_b * s_q_b + o_r[:, None] * s_q_l + o_d[None, :]
    p_do += i_b * s_o_b + o_r[:, None] * s_o_l + o_e[None, :]
    b_dk = tl.zeros([KEYS, PADDED], tl.float32)
    b_dv = tl.zeros([KEYS, VALUE_PADDED], tl.float32)

    if ALONE:  # without a loop, whose variables would take registers
        b_dk, b_dv = take_head(
            b_k, b_v, p_q, p_do, p_delta, p_numbers, p_reach, s_q_h, s_q_l, s_o_h, s_o_l, o_j, start, i_b, i_kv,
            b_dk, b_dv, batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap,
            DIM, VALUE_DIM, ROWS, KIND, CAUSAL, WINDOW, CAPPED, SKIPS,
        )  # fmt: skip
    else:
        for i_h in range(i_kv * groups, (i_kv + 1) * groups):
            b_dk, b_dv = take_head(
                b_k, b_v, p_q, p_do, p_delta, p_numbers, p_reach, s_q_h, s_q_l, s_o_h, s_o_l, o_j, start, i_b, i_h,
                b_dk, b_dv, batch, heads, queries, keys, before, first, count, lowest, highest, scale, cap,
                DIM, VALUE_DIM, ROWS, KIND, CAUSAL, WINDOW, CAPPED, SKIPS,
            )  # fmt: skip

    b_dk = b_dk * (scale * 0.6931471805599453)
    p_dk += i_b * s_dk_b + i_kv * s_dk_h + o_j[:, None] * s_dk_l + o_d[None, :]
    p_dv += i_b * s_dv_b + i_kv * s_dv_h + o_j[:, None] * s_dv_l + o_e[None, :]
    tl.store(p_dk, b_dk.to(p_dk.dtype.element_ty), mask=m_j[:, None] & (o_d < DIM)[None, :])
    tl.store(p_dv, b_dv.to(p_dv.dtype.element_ty), mask=m_j[:, None] & (o_e < VALUE_DIM)[None, :])


@triton.jit
def take_keys(
    b_q, b_do, b_lse, b_delta, p_k, p_v, s_k, s_v, o_i, n, start, b_dq, b_one, b_other, p_grad,
    keys, before, first, scale, one, other, p_table, lowest, highest, cap,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, LEARNED: tl.constexpr, EDGE: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """The keys from n on joined to the gradients of a tile of queries, and of the numbers of their head."""
    PADDED: tl.constexpr = b_q.shape[1]
    VALUE_PADDED: tl.constexpr = b_do.shape[1]
    o_j = n + tl.arange(0, KEYS)
    m_j = o_j < keys
    b_k = load_rows(p_k + n * s_k, m_j, tl.arange(0, PADDED) < DIM, BY_ROW=EDGE, BY_DIM=PADDED != DIM)
    b_v = load_rows(
        p_v + n * s_v, m_j, tl.arange(0, VALUE_PADDED) < VALUE_DIM, BY_ROW=EDGE, BY_DIM=VALUE_PADDED != VALUE_DIM
    )
    nearest = start - n - (KEYS - 1)
    _, b_ds = weights_and_ds(
        product(b_q, tl.trans(b_k)), product(b_do, tl.trans(b_v)), b_lse[:, None], b_delta[:, None],
        o_i[:, None], o_j[None, :], nearest, keys, before, first,
        scale, one, other, p_table, lowest, highest, cap, KIND, CAUSAL, WINDOW, CAPPED, EDGE, FAR,
    )  # fmt: skip
    b_dq = add_product(b_dq, b_ds.to(b_k.dtype), b_k)
    if LEARNED:
        if KIND == "table" and not FAR:
            add_diagonals(b_ds, start - n, p_grad, lowest, highest)
        else:
            b_more, b_other_more = sums_of(b_ds, o_i[:, None], o_j[None, :], one, other, KIND)
            b_one += b_more
            b_other += b_other_more
    return b_dq, b_one, b_other


@kernel(pointers=9)
def grad_queries(
    p_q, p_k, p_v, p_do, p_delta, p_numbers, p_reach, p_dq, p_grad,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_o_b, s_o_h, s_o_l, s_dq_b, s_dq_h, s_dq_l,
    batch, heads, groups, queries, keys, before, first, count, lowest, highest, scale, cap,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, SKIPS: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of queries, and what it adds to those of the numbers of its head."""
    s_q_b, s_q_h, s_q_l = wide_strides(s_q_b, s_q_h, s_q_l, UNIT)
    s_k_b, s_k_h, s_k_l = wide_strides(s_k_b, s_k_h, s_k_l, UNIT)
    s_v_b, s_v_h, s_v_l = wide_strides(s_v_b, s_v_h, s_v_l, UNIT)
    s_o_b, s_o_h, s_o_l = wide_strides(s_o_b, s_o_h, s_o_l, UNIT)
    s_dq_b, s_dq_h, s_dq_l = wide_strides(s_dq_b, s_dq_h, s_dq_l, UNIT)
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = (i // (blocks * batch)).to(tl.int64)
    i_kv = i_h // groups
    one, other, p_table = numbers_of(p_numbers, i_h, count, lowest, highest, KIND)
    p_grad_table = p_grad + i_h * count - lowest

    o_row = i_block * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_d = tl.arange(0, PADDED)
    o_e = tl.arange(0, VALUE_PADDED)
    o_n = tl.arange(0, KEYS)
    p_q += i_b * s_q_b + i_h * s_q_h + o_row[:, None] * s_q_l + o_d[None, :]
    p_do += i_b * s_o_b + i_h * s_o_h + o_row[:, None] * s_o_l + o_e[None, :]
    b_q = load_rows(p_q, m_row, o_d < DIM, BY_ROW=True, BY_DIM=PADDED != DIM)
    b_do = load_rows(p_do, m_row, o_e < VALUE_DIM, BY_ROW=True, BY_DIM=VALUE_PADDED != VALUE_DIM)
    p_k += i_b * s_k_b + i_kv * s_k_h + o_n[:, None] * s_k_l + o_d[None, :]
    p_v += i_b * s_v_b + i_kv * s_v_h + o_n[:, None] * s_v_l + o_e[None, :]
    p_delta += (i_b * heads + i_h) * queries + o_row
    b_delta = tl.load(p_delta, mask=m_row, other=0.0)
    b_lse = tl.load(p_delta + batch.to(tl.int64) * heads * queries, mask=m_row, other=float("inf"))

    start = i_block * ROWS + keys - queries
    o_i = start + tl.arange(0, ROWS)
    sinks, left, lefts, right, rights, full, full_end = keys_of(start, keys, before, first, ROWS, KEYS, CAUSAL, WINDOW)
    if SKIPS:
        reach = tl.load(p_reach + i_b * heads + i_h)
        full = tl.minimum(tl.maximum(full, (start - reach) // KEYS * KEYS), full_end)
    b_dq = tl.zeros([ROWS, PADDED], tl.float32)
    b_one = tl.zeros([ROWS], tl.float32)
    b_other = tl.zeros([ROWS], tl.float32)
    near = full
    if KIND == "table":
        near = tl.minimum(tl.maximum(full, (start - highest + 1) // KEYS * KEYS), full_end)
        for n in range(full, near, KEYS):
            b_dq, b_one, b_other = take_keys(
                b_q, b_do, b_lse, b_delta, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_dq, b_one, b_other, p_grad_table,
                keys, before, first, scale, one, other, p_table, lowest, highest, cap,
                DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, LEARNED, EDGE=False, FAR=True,
            )  # fmt: skip
    for n in range(near, full_end, KEYS):
        b_dq, b_one, b_other = take_keys(
            b_q, b_do, b_lse, b_delta, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_dq, b_one, b_other, p_grad_table,
            keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, LEARNED, EDGE=False, FAR=False,
        )  # fmt: skip
    for t in range(0, sinks + lefts + rights):
        n = edge_at(t, sinks, left, lefts, right, KEYS)
        b_dq, b_one, b_other = take_keys(
            b_q, b_do, b_lse, b_delta, p_k, p_v, s_k_l, s_v_l, o_i, n, start, b_dq, b_one, b_other, p_grad_table,
            keys, before, first, scale, one, other, p_table, lowest, highest, cap,
            DIM, VALUE_DIM, KEYS, KIND, CAUSAL, WINDOW, CAPPED, LEARNED, EDGE=True, FAR=False,
        )  # fmt: skip

    b_dq = (b_dq * (scale * 0.6931471805599453)).to(p_dq.dtype.element_ty)
    p_dq += i_b * s_dq_b + i_h * s_dq_h + o_row[:, None] * s_dq_l + o_d[None, :]
    tl.store(p_dq, b_dq, mask=m_row[:, None] & (o_d < DIM)[None, :])
    if LEARNED:
        if KIND == "table":
            tl.atomic_add(p_grad_table + highest, tl.sum(b_one, 0), sem="relaxed")
        else:
            tl.atomic_add(p_grad + i_h * count, tl.sum(b_one, 0), sem="relaxed")
            if KIND != "line":
                tl.atomic_add(p_grad + i_h * count + 1, tl.sum(b_other, 0), sem="relaxed")
