"""The backward pass of causal linear attention in Triton. With N and D the two sums of a query, s = 1 / D, out = s N:

    c_i = -dout_i . out_i             s_i dout_i and s_i c_i are the gradients of N_i and D_i
    da_i = s_i sum_(j <= i) (dout_i . v_j) b_j        dp_i = s_i c_i sum_(j <= i) r_j        df(q) = R^T da + dp
    db_j = sum_(i >= j) (dout_i . v_j) s_i a_i        dr_j = sum_(i >= j) c_i s_i p_i        df(k) = R^T db + dr
    dv_j = sum_(i >= j) (b_j . s_i a_i) dout_i

Queries look back, through the states of the forward pass. Keys and values look ahead, through states of their own, sums
of s a dout^T and of c s p, which go from the last segment to the first. The factor s is never given to dout, which so
enters products as it came. Where weights are their own denominator, a and b take the places of p and r.

For an output divided by the root of its mean square, c = -mean(dout * out), dout + c out takes the place of dout, and
there is no dp and no dr.
"""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: branches are taken when it is compiled.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whorl.kernels.linear_triton import (
    Shape,
    TurningPairs,
    compiled,
    has_tile,
    key_features,
    load_pairs,
    load_record,
    load_tables,
    load_values,
    mask_arguments,
    mask_of_keys,
    place_of,
    product,
    query_features,
    running_sums,
    settings,
    slope_of,
    steps_of,
    store_pairs,
    store_record,
    store_values,
    table_arguments,
    turned,
    turned_back,
)
from whorl.kernels.triton_side_by_side import Start, run_all


@triton.jit
def load_out(p_out, o_row, m_row, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    """Rows of the output, float32."""
    return load_values(p_out, o_row, m_row, (0, 0, VALUE_DIM, 1), VALUE_DIM, BLOCK_V).to(tl.float32)


@triton.jit
def load_grads(
    p_grad, p_out, p_c, o_row, m_row, stride_g,
    DENOMINATOR: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Rows of dout, or of what takes its place."""
    b_grad = load_values(p_grad, o_row, m_row, stride_g, VALUE_DIM, BLOCK_V)
    if DENOMINATOR == "norm":
        b_c = tl.load(p_c + o_row, mask=m_row, other=0.0)
        b_grad = b_grad.to(tl.float32) + b_c[:, None] * load_out(p_out, o_row, m_row, VALUE_DIM, BLOCK_V)
    return b_grad


@compiled("heads_in_all", "heads", "length", "segment", "slots")
def _grad_states(
    p_q, p_cos, p_sin, p_grad, p_out, p_scale, p_c, p_states, stride_q, stride_t, stride_g,
    heads_in_all, heads, length, segment, slots,
    DENOMINATOR: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    FEATURE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    i_head, i_segment = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    p_q += i_b * stride_q[0] + i_h * stride_q[1]
    p_grad += i_b * stride_g[0] + i_h * stride_g[1]
    p_out += i_head * length * VALUE_DIM
    p_scale += i_head * length
    p_c += i_head * length
    b_t1 = tl.zeros([BLOCK_V, HALF], tl.float32)
    b_t2 = tl.zeros([BLOCK_V, HALF], tl.float32)
    b_y1 = tl.zeros([HALF], tl.float32)
    b_y2 = tl.zeros([HALF], tl.float32)
    for i_step in range(0, steps_of(i_segment, segment, length, ROWS)):
        o_row = i_segment * segment + i_step * ROWS + tl.arange(0, ROWS)
        m_row = o_row < length
        b_grad = load_values(p_grad, o_row, m_row, stride_g, VALUE_DIM, BLOCK_V)
        b_out = load_out(p_out, o_row, m_row, VALUE_DIM, BLOCK_V)
        b_q1, b_q2 = load_pairs(p_q, o_row, m_row, stride_q, HEAD)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_scale = tl.load(p_scale + o_row, mask=m_row, other=0.0)[:, None]
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        b_p1, b_p2 = b_p1 * b_scale, b_p2 * b_scale
        b_a1, b_a2 = turned(b_p1, b_p2, b_cos, b_sin, PAIRS)
        b_c = tl.zeros([ROWS], tl.float32) - tl.sum(b_grad.to(tl.float32) * b_out, 1)
        if DENOMINATOR == "norm":
            b_c = b_c / VALUE_DIM
            b_grad = b_grad.to(tl.float32) + b_c[:, None] * b_out
        else:
            b_y1 += tl.sum(b_c[:, None] * (b_a1 if DENOMINATOR == "own" else b_p1), 0)
            b_y2 += tl.sum(b_c[:, None] * (b_a2 if DENOMINATOR == "own" else b_p2), 0)
        tl.store(p_c + o_row, b_c, mask=m_row)
        b_t1 = product(tl.trans(b_grad), b_a1, b_t1, DOT, PRECISION)
        b_t2 = product(tl.trans(b_grad), b_a2, b_t2, DOT, PRECISION)
    if i_segment > 0:
        p_record = p_states + (i_head * slots + i_segment - 1) * (2 * HALF * (BLOCK_V + 1))
        store_record(p_record, b_t1, b_t2, b_y1, b_y2, HALF, BLOCK_V)


@compiled("heads_in_all", "heads", "groups", "length", "segment", "slots")
def _grad_queries(
    p_q, p_k, p_v, p_cos, p_sin, p_mask, p_grad, p_out, p_scale, p_c, p_states, p_dq,
    stride_q, stride_k, stride_v, stride_t, stride_m, stride_g,
    heads_in_all, heads, groups, length, segment, slots, eps,
    DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    DIM: tl.constexpr = HEAD[0]
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    i_head, i_segment = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_key_head = i_h // groups
    p_q += i_b * stride_q[0] + i_h * stride_q[1]
    p_k += i_b * stride_k[0] + i_key_head * stride_k[1]
    p_v += i_b * stride_v[0] + i_key_head * stride_v[1]
    p_grad += i_b * stride_g[0] + i_h * stride_g[1]
    p_out += i_head * length * VALUE_DIM
    p_scale += i_head * length
    p_c += i_head * length
    p_dq += i_head * length * DIM
    m_seen = tl.arange(0, ROWS)[:, None] >= tl.arange(0, ROWS)[None, :]
    p_record = p_states + ((i_b * (heads // groups) + i_key_head) * slots + i_segment - 1) * (2 * HALF * (BLOCK_V + 1))
    b_s1, b_s2, b_z1, b_z2 = load_record(p_record, i_segment, HALF, BLOCK_V)
    for i_step in range(0, steps_of(i_segment, segment, length, ROWS)):
        o_row = i_segment * segment + i_step * ROWS + tl.arange(0, ROWS)
        m_row = o_row < length
        m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
        b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
        b_v = load_values(p_v, o_row, m_key, stride_v, VALUE_DIM, BLOCK_V)
        b_grad = load_grads(p_grad, p_out, p_c, o_row, m_row, stride_g, DENOMINATOR, VALUE_DIM, BLOCK_V)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
        b_b1, b_b2 = turned(b_r1, b_r2, b_cos, b_sin, PAIRS)
        b_b1, b_b2 = b_b1.to(DOT), b_b2.to(DOT)

        b_weights = product(b_grad, tl.trans(b_v), tl.zeros([ROWS, ROWS], tl.float32), DOT, PRECISION)
        b_weights = tl.where(m_seen, b_weights, 0.0).to(DOT)
        b_d1 = product(b_grad, b_s1, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION)
        b_d2 = product(b_grad, b_s2, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION)
        b_d1 = product(b_weights, b_b1, b_d1, DOT, PRECISION)
        b_d2 = product(b_weights, b_b2, b_d2, DOT, PRECISION)
        b_s1 = product(tl.trans(b_v), b_b1, b_s1, DOT, PRECISION)
        b_s2 = product(tl.trans(b_v), b_b2, b_s2, DOT, PRECISION)

        b_q1, b_q2 = load_pairs(p_q, o_row, m_row, stride_q, HEAD)
        b_scale = tl.load(p_scale + o_row, mask=m_row, other=0.0)
        if DENOMINATOR == "norm":
            b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, PAIRS)
        else:
            b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
            b_a1, b_a2 = turned(b_p1, b_p2, b_cos, b_sin, PAIRS)
            if DENOMINATOR == "own":
                b_r1, b_r2 = b_b1.to(tl.float32), b_b2.to(tl.float32)
            b_ones = tl.where(m_seen, 1.0, 0.0).to(DOT)
            b_sum1 = product(b_ones, b_r1, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION) + b_z1[None, :]
            b_sum2 = product(b_ones, b_r2, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION) + b_z2[None, :]
            b_z1 += tl.sum(b_r1, 0)
            b_z2 += tl.sum(b_r2, 0)
            # c = -a . da, not -dout . out: da and dp nearly cancel, and so they do with the same rounding in both
            b_c = tl.sum(b_a1 * b_d1 + b_a2 * b_d2, 1)
            if DENOMINATOR == "own":
                b_bottom = tl.sum(b_a1 * b_sum1 + b_a2 * b_sum2, 1) + eps
                b_c = -(b_c / tl.where(b_scale == 0.0, 1.0, b_bottom))[:, None]
                b_d1, b_d2 = b_d1 + b_c * b_sum1, b_d2 + b_c * b_sum2
                b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, PAIRS)
            else:
                b_c = -(b_c * b_scale)[:, None]
                b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, PAIRS)
                b_d1, b_d2 = b_d1 + b_c * b_sum1, b_d2 + b_c * b_sum2
        b_d1 *= b_scale[:, None] * slope_of(b_q1, FEATURE)
        b_d2 *= b_scale[:, None] * slope_of(b_q2, FEATURE)
        store_pairs(p_dq, b_d1, b_d2, o_row, m_row, HEAD)


@compiled("heads_in_all", "heads", "groups", "length", "segment", "slots")
def _grad_keys(
    p_q, p_k, p_v, p_cos, p_sin, p_mask, p_grad, p_out, p_scale, p_c, p_states, p_dk, p_dv,
    stride_q, stride_k, stride_v, stride_t, stride_m, stride_g,
    heads_in_all, heads, groups, length, segment, slots,
    PART: tl.constexpr, DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    DIM: tl.constexpr = HEAD[0]
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    i_head, i_segment = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_key_head = i_h // groups
    p_q += i_b * stride_q[0] + i_h * stride_q[1]
    p_k += i_b * stride_k[0] + i_key_head * stride_k[1]
    p_v += i_b * stride_v[0] + i_key_head * stride_v[1]
    p_grad += i_b * stride_g[0] + i_h * stride_g[1]
    p_out += i_head * length * VALUE_DIM
    p_scale += i_head * length
    p_c += i_head * length
    p_dk += i_head * length * DIM
    p_dv += i_head * length * VALUE_DIM
    m_sees = tl.arange(0, ROWS)[:, None] <= tl.arange(0, ROWS)[None, :]  # by key and query
    p_record = p_states + (i_head * slots + i_segment) * (2 * HALF * (BLOCK_V + 1))
    b_t1, b_t2, b_y1, b_y2 = load_record(p_record, slots - i_segment, HALF, BLOCK_V)
    steps = steps_of(i_segment, segment, length, ROWS)
    for i_step in range(0, steps):
        o_row = i_segment * segment + (steps - 1 - i_step) * ROWS + tl.arange(0, ROWS)
        m_row = o_row < length
        m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
        if PART != "keys":
            b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
        b_q1, b_q2 = load_pairs(p_q, o_row, m_row, stride_q, HEAD)
        if PART != "values":
            b_v = load_values(p_v, o_row, m_key, stride_v, VALUE_DIM, BLOCK_V)
        b_grad = load_grads(p_grad, p_out, p_c, o_row, m_row, stride_g, DENOMINATOR, VALUE_DIM, BLOCK_V)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_scale = tl.load(p_scale + o_row, mask=m_row, other=0.0)[:, None]
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        b_p1, b_p2 = b_p1 * b_scale, b_p2 * b_scale
        b_a1, b_a2 = turned(b_p1, b_p2, b_cos, b_sin, PAIRS)
        # all that needs float32 comes first, so that fewer registers hold what goes into products
        if PART != "keys":
            b_b1, b_b2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
            b_b1, b_b2 = turned(b_b1, b_b2, b_cos, b_sin, PAIRS)
            b_b1, b_b2 = b_b1.to(DOT), b_b2.to(DOT)
        if PART != "values":
            b_after1, b_after2 = b_y1, b_y2
            b_c = tl.load(p_c + o_row, mask=m_row, other=0.0)
            if DENOMINATOR != "norm":
                b_p1 = b_c[:, None] * (b_a1 if DENOMINATOR == "own" else b_p1)
                b_p2 = b_c[:, None] * (b_a2 if DENOMINATOR == "own" else b_p2)
                b_y1 += tl.sum(b_p1, 0)
                b_y2 += tl.sum(b_p2, 0)
            b_p1, b_p2 = b_p1.to(DOT), b_p2.to(DOT)
        b_a1, b_a2 = b_a1.to(DOT), b_a2.to(DOT)

        if PART != "keys":
            b_weights = product(b_b1, tl.trans(b_a1), tl.zeros([ROWS, ROWS], tl.float32), DOT, PRECISION)
            b_weights = product(b_b2, tl.trans(b_a2), b_weights, DOT, PRECISION)
            b_weights = tl.where(m_sees, b_weights, 0.0).to(DOT)
            b_dv = product(b_b1, tl.trans(b_t1), tl.zeros([ROWS, BLOCK_V], tl.float32), DOT, PRECISION)
            b_dv = product(b_b2, tl.trans(b_t2), b_dv, DOT, PRECISION)
            b_dv = product(b_weights, b_grad, b_dv, DOT, PRECISION)
            if HAS_MASK:
                b_dv = tl.where(m_key[:, None], b_dv, 0.0)
            store_values(p_dv, b_dv, o_row, m_row, VALUE_DIM, BLOCK_V)

        if PART != "values":
            b_weights = product(b_v, tl.trans(b_grad), tl.zeros([ROWS, ROWS], tl.float32), DOT, PRECISION)
            if DENOMINATOR == "own":  # before they are rounded: they nearly cancel where an output is near a value
                b_weights += b_c[None, :]
            b_weights = tl.where(m_sees, b_weights, 0.0).to(DOT)
            b_d1 = product(b_v, b_t1, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION)
            b_d2 = product(b_v, b_t2, tl.zeros([ROWS, HALF], tl.float32), DOT, PRECISION)
            b_d1 = product(b_weights, b_a1, b_d1, DOT, PRECISION)
            b_d2 = product(b_weights, b_a2, b_d2, DOT, PRECISION)
        b_t1 = product(tl.trans(b_grad), b_a1, b_t1, DOT, PRECISION)
        b_t2 = product(tl.trans(b_grad), b_a2, b_t2, DOT, PRECISION)
        if PART != "values":
            if DENOMINATOR == "own":
                b_d1, b_d2 = b_d1 + b_after1[None, :], b_d2 + b_after2[None, :]
            b_d1, b_d2 = turned_back(b_d1, b_d2, b_cos, b_sin, PAIRS)
            if DENOMINATOR == "plain":
                b_ones = tl.where(m_sees, 1.0, 0.0).to(DOT)
                b_d1 = product(b_ones, b_p1, b_d1 + b_after1[None, :], DOT, PRECISION)
                b_d2 = product(b_ones, b_p2, b_d2 + b_after2[None, :], DOT, PRECISION)
            if PART == "keys":
                b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
            b_d1, b_d2 = b_d1 * slope_of(b_k1, FEATURE), b_d2 * slope_of(b_k2, FEATURE)
            if HAS_MASK:
                b_d1, b_d2 = tl.where(m_key[:, None], b_d1, 0.0), tl.where(m_key[:, None], b_d2, 0.0)
            store_pairs(p_dk, b_d1, b_d2, o_row, m_row, HEAD)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    turning: TurningPairs,
    key_mask: Tensor | None,
    out: Tensor,
    scale: Tensor,
    states: Tensor,
    feature: str,
    denominator: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    shape = Shape.of(q, k, v)
    groups = shape.heads // shape.key_heads
    dq, dk, dv = gradients_of(q, k, v)
    if not q.numel() or not v.numel():
        return dq.zero_(), dk.zero_(), dv.zero_()
    c = torch.empty_like(scale)
    later = torch.empty(shape.batch * shape.heads, *states.shape[1:], dtype=states.dtype, device=states.device)
    cos, sin, stride_t = table_arguments(turning)
    mask, stride_m = mask_arguments(key_mask)
    heads_in_all = shape.batch * shape.heads
    programs = heads_in_all * shape.segments
    lengths = (shape.length, shape.segment, shape.slots)
    find_states = Start(
        *(_grad_states, programs),
        *(q, cos, sin, grad, out, scale, c, later, q.stride(), stride_t, grad.stride()),
        *(heads_in_all, shape.heads, *lengths),
        DENOMINATOR=denominator,
        **settings("grad_states", shape, q.dtype, turning, feature),
    )
    kernels = [find_states, *([running_sums(later, reverse=True)] if shape.slots else [])]
    given = (q, k, v, cos, sin, mask, grad, out, scale, c)
    sizes = (
        *(q.stride(), k.stride(), v.stride(), stride_t, stride_m, grad.stride()),
        *(heads_in_all, shape.heads, groups, *lengths),
    )
    switches = {"DENOMINATOR": denominator, "HAS_MASK": key_mask is not None}
    tile = settings("grad_queries", shape, q.dtype, turning, feature)
    kernels.append(Start(_grad_queries, programs, *given, states, dq, *sizes, eps, **switches, **tile))
    # heads that share a key head are added up afterwards: adding as they come would depend on their order
    by_head = [
        x if groups == 1 else torch.empty(*q.shape[:3], x.shape[-1], dtype=torch.float32, device=x.device)
        for x in (dk, dv)
    ]
    # one kernel for both needs more registers than there are, unless heads are narrow and products in bfloat16
    apart = has_tile("grad_values", shape, q.dtype)
    for part, kernel in (("values", "grad_values"), ("keys", "grad_keys")) if apart else (("both", "grad_keys"),):
        tile = settings(kernel, shape, q.dtype, turning, feature)
        kernels.append(Start(_grad_keys, programs, *given, later, *by_head, *sizes, PART=part, **switches, **tile))
    run_all(kernels)
    if groups > 1:
        for x, parts in zip((dk, dv), by_head, strict=True):
            x.copy_(parts.unflatten(1, (shape.key_heads, groups)).sum(2))
    return dq, dk, dv


def gradients_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what ``backward`` returns."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv
