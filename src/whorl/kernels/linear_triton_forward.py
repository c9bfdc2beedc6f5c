"""The forward pass of causal linear attention in Triton: states of segments, then outputs."""

# pyright: reportArgumentType=false
# A kernel is written in Triton's language, whose types are not those of the functions that pyright sees.
from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from whorl.kernels.linear_triton import (
    Shape,
    TurningPairs,
    bottom_of,
    compiled,
    in_columns,
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
    steps_of,
    store_record,
    store_values,
    table_arguments,
    turned,
)
from whorl.kernels.triton_side_by_side import Start, run_all


@compiled("heads_in_all", "heads", "length", "segment", "slots")
def _states(
    p_k, p_v, p_cos, p_sin, p_mask, p_states, stride_k, stride_v, stride_t, stride_m,
    heads_in_all, heads, length, segment, slots,
    OWN_WEIGHTS: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    i_head, i_segment = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    p_k += i_b * stride_k[0] + i_h * stride_k[1]
    p_v += i_b * stride_v[0] + i_h * stride_v[1]
    b_s1 = tl.zeros([BLOCK_V, HALF], tl.float32)
    b_s2 = tl.zeros([BLOCK_V, HALF], tl.float32)
    b_z1 = tl.zeros([HALF], tl.float32)
    b_z2 = tl.zeros([HALF], tl.float32)
    for i_step in range(0, segment // ROWS):
        o_row = i_segment * segment + i_step * ROWS + tl.arange(0, ROWS)
        m_row = o_row < length
        m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
        b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
        b_v = load_values(p_v, o_row, m_key, stride_v, VALUE_DIM, BLOCK_V)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
        b_b1, b_b2 = turned(b_r1, b_r2, b_cos, b_sin, PAIRS)
        b_b1, b_b2 = b_b1.to(DOT), b_b2.to(DOT)
        b_z1 += tl.sum(b_b1.to(tl.float32) if OWN_WEIGHTS else b_r1, 0)
        b_z2 += tl.sum(b_b2.to(tl.float32) if OWN_WEIGHTS else b_r2, 0)
        b_s1 = product(tl.trans(b_v), b_b1, b_s1, DOT, PRECISION)
        b_s2 = product(tl.trans(b_v), b_b2, b_s2, DOT, PRECISION)
    p_record = p_states + (i_head * slots + i_segment) * (2 * HALF * (BLOCK_V + 1))
    store_record(p_record, b_s1, b_s2, b_z1, b_z2, HALF, BLOCK_V)


@compiled("heads_in_all", "heads", "groups", "length", "segment", "slots")
def _outputs(
    p_q, p_k, p_v, p_cos, p_sin, p_mask, p_begin, p_states, p_out, p_scale,
    stride_q, stride_k, stride_v, stride_t, stride_m,
    heads_in_all, heads, groups, length, segment, slots, eps,
    DENOMINATOR: tl.constexpr, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, FEATURE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    i_head, i_segment = place_of(heads_in_all)
    i_b, i_h = i_head // heads, i_head % heads
    i_key_head = i_h // groups
    p_q += i_b * stride_q[0] + i_h * stride_q[1]
    p_k += i_b * stride_k[0] + i_key_head * stride_k[1]
    p_v += i_b * stride_v[0] + i_key_head * stride_v[1]
    p_out += i_head * length * VALUE_DIM
    p_scale += i_head * length
    m_seen = tl.arange(0, ROWS)[:, None] >= tl.arange(0, ROWS)[None, :]
    p_record = p_states + ((i_b * (heads // groups) + i_key_head) * slots + i_segment - 1) * (2 * HALF * (BLOCK_V + 1))
    b_s1, b_s2, b_z1, b_z2 = load_record(p_record, i_segment, HALF, BLOCK_V)
    for i_step in range(0, steps_of(i_segment, segment, length, ROWS)):
        o_row = i_segment * segment + i_step * ROWS + tl.arange(0, ROWS)
        m_row = o_row < length
        m_key = mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK)
        b_k1, b_k2 = load_pairs(p_k, o_row, m_key, stride_k, HEAD)
        b_v = load_values(p_v, o_row, m_key, stride_v, VALUE_DIM, BLOCK_V)
        b_q1, b_q2 = load_pairs(p_q, o_row, m_row, stride_q, HEAD)
        b_cos, b_sin = load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD)
        b_r1, b_r2 = key_features(b_k1, b_k2, m_key, HAS_MASK, HEAD, FEATURE)
        b_b1, b_b2 = turned(b_r1, b_r2, b_cos, b_sin, PAIRS)
        b_p1, b_p2 = query_features(b_q1, b_q2, FEATURE)
        b_a1, b_a2 = turned(b_p1, b_p2, b_cos, b_sin, PAIRS)
        b_b1, b_b2 = b_b1.to(DOT), b_b2.to(DOT)
        b_bottom = tl.zeros([ROWS], tl.float32) + eps
        # all that needs float32 comes first, so that fewer registers hold what goes into products
        if DENOMINATOR == "own":
            b_bottom += tl.sum(b_a1 * b_z1[None, :] + b_a2 * b_z2[None, :], 1)
            # keys and weights as rounded as in the numerator: what rounding does to both then cancels
            b_z1 += tl.sum(b_b1.to(tl.float32), 0)
            b_z2 += tl.sum(b_b2.to(tl.float32), 0)
        if DENOMINATOR == "plain":
            b_before = tl.zeros([ROWS, 16], tl.float32)
            b_before = product(b_p1, in_columns(b_z1, DOT), b_before, DOT, PRECISION)
            b_before = product(b_p2, in_columns(b_z2, DOT), b_before, DOT, PRECISION)
            b_bottom += tl.sum(b_before, 1)
            b_z1 += tl.sum(b_r1, 0)
            b_z2 += tl.sum(b_r2, 0)
            b_plain = tl.zeros([ROWS, ROWS], tl.float32)
            b_plain = product(b_p1, tl.trans(b_r1), b_plain, DOT, PRECISION)
            b_plain = product(b_p2, tl.trans(b_r2), b_plain, DOT, PRECISION)
            b_bottom += tl.sum(tl.where(m_seen, b_plain, 0.0), 1)
        b_a1, b_a2 = b_a1.to(DOT), b_a2.to(DOT)

        b_weights = tl.zeros([ROWS, ROWS], tl.float32)
        b_weights = product(b_a1, tl.trans(b_b1), b_weights, DOT, PRECISION)
        b_weights = product(b_a2, tl.trans(b_b2), b_weights, DOT, PRECISION)
        b_weights = tl.where(m_seen, b_weights, 0.0).to(DOT)
        if DENOMINATOR == "own":
            b_bottom += tl.sum(b_weights.to(tl.float32), 1)
        b_out = tl.zeros([ROWS, BLOCK_V], tl.float32)
        b_out = product(b_a1, tl.trans(b_s1), b_out, DOT, PRECISION)
        b_out = product(b_a2, tl.trans(b_s2), b_out, DOT, PRECISION)
        b_out = product(b_weights, b_v, b_out, DOT, PRECISION)
        if DENOMINATOR == "norm":
            b_bottom = tl.sum(b_out * b_out, 1) / VALUE_DIM + eps
        b_bottom = bottom_of(b_bottom, p_begin, i_b, o_row, m_row, HAS_MASK)
        b_scale = tl.rsqrt(b_bottom) if DENOMINATOR == "norm" else 1.0 / b_bottom
        store_values(p_out, b_out * b_scale[:, None], o_row, m_row, VALUE_DIM, BLOCK_V)
        tl.store(p_scale + o_row, b_scale, mask=m_row)
        b_s1 = product(tl.trans(b_v), b_b1, b_s1, DOT, PRECISION)
        b_s2 = product(tl.trans(b_v), b_b2, b_s2, DOT, PRECISION)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    turning: TurningPairs,
    key_mask: Tensor | None,
    feature: str,
    denominator: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, what its sums were multiplied by (batch, heads, length), and the state every
    segment but the first begins with."""
    shape = Shape.of(q, k, v)
    out, scale, states = outputs_of(q, k, v)
    if not out.numel():
        return out, scale, states
    cos, sin, stride_t = table_arguments(turning)
    mask, stride_m = mask_arguments(key_mask)
    lengths = (shape.length, shape.segment, shape.slots)
    kernels: list[Start] = []
    if shape.slots:
        heads_in_all = shape.batch * shape.key_heads
        find_states = Start(
            *(_states, heads_in_all * shape.slots),
            *(k, v, cos, sin, mask, states, k.stride(), v.stride(), stride_t, stride_m),
            *(heads_in_all, shape.key_heads, *lengths),
            OWN_WEIGHTS=denominator == "own",
            HAS_MASK=key_mask is not None,
            **settings("states", shape, q.dtype, turning, feature),
        )
        kernels = [find_states, running_sums(states, reverse=False)]
    heads_in_all = shape.batch * shape.heads
    begin = None if key_mask is None else first_seen(key_mask)
    find_outputs = Start(
        *(_outputs, heads_in_all * shape.segments),
        *(q, k, v, cos, sin, mask, begin, states, out, scale, q.stride(), k.stride(), v.stride(), stride_t, stride_m),
        *(heads_in_all, shape.heads, shape.heads // shape.key_heads, *lengths, eps),
        DENOMINATOR=denominator,
        HAS_MASK=key_mask is not None,
        **settings("outputs", shape, q.dtype, turning, feature),
    )
    run_all([*kernels, find_outputs])
    return out, scale, states


def outputs_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what ``forward`` returns."""
    shape = Shape.of(q, k, v)
    out = torch.empty(shape.batch, shape.heads, shape.length, shape.value_dim, dtype=v.dtype, device=v.device)
    scale = torch.empty(shape.batch, shape.heads, shape.length, dtype=torch.float32, device=v.device)
    records = (shape.batch * shape.key_heads, shape.slots, shape.record)
    return out, scale, torch.empty(records, dtype=torch.float32, device=v.device)


def first_seen(key_mask: Tensor) -> Tensor:
    """The first key of each row that may be seen, or the length where none may."""
    length = key_mask.shape[1]
    places = torch.arange(length, device=key_mask.device)
    return torch.where(key_mask, places, length).amin(1)
