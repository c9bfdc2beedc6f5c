"""The gradient of RMSNorm and rotation together, on a GPU, in one pass over the input and the incoming gradient.

    y = R(w x s),   s = (mean x^2 + eps)^(-1/2);   with g = R^T dy:   dx = s w g - x s^3 mean(w g x),   dw = sum g x s
A program walks over tiles, so that the sums for dw stay in registers until its end.
"""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: numbers stand for constants, and branches are taken when it is compiled.
from __future__ import annotations

from collections.abc import Callable

import torch
import triton.language as tl
from torch import Tensor

from whorl.kernels.axes import row_strides, sizes_of, strides_of, table_strides
from whorl.kernels.rotate_triton import are_dense, load_pairs, load_run, pieces_of, store_pairs, store_run, table_rows
from whorl.kernels.triton_launch import Launch, kernel, power_of_2
from whorl.rotary.rotation import Rotation

PROGRAMS = 1024
HEADS = 8
WARPS = 4


@kernel(pointers=8)
def _back_kernel(
    p_x, p_dy, p_dx, p_dw, p_cos, p_sin, p_rows, p_weight,
    s_x_b, s_x_l, s_x_h, s_x_d, s_dy_b, s_dy_l, s_dy_h, s_dy_d, s_dx_b, s_dx_l, s_dx_h, s_dx_d,
    s_t_b, s_t_l, s_t_h, s_r_b, s_r_l, tiles, length, heads, table_length, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr, AFTER_PADDED: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr,
    WRITES_HALF: tl.constexpr, CONJUGATE: tl.constexpr, DIVIDE: tl.constexpr, HAS_ROWS: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    END: tl.constexpr = START + 2 * PAIRS
    AFTER: tl.constexpr = DIM - END
    dtype = p_cos.dtype.element_ty
    m_all = tl.full((1, 1, 1), True, tl.int1)
    o_weight = tl.zeros((1, 1, 1), tl.int64)
    b_gain_a, b_gain_b = load_pairs(p_weight, o_weight, 1, m_all, START, PAIRS, PADDED, BLOCKS, READS_HALF, True, 1, 1)
    b_gain_a, b_gain_b = b_gain_a.to(dtype), b_gain_b.to(dtype)
    b_gain_before = load_run(p_weight, o_weight, 1, m_all, 0, START, BEFORE_PADDED, True).to(dtype)
    b_gain_after = load_run(p_weight, o_weight, 1, m_all, END, AFTER, AFTER_PADDED, True).to(dtype)
    b_dw_a = tl.zeros((1, 1, PADDED), dtype)
    b_dw_b = tl.zeros((1, 1, PADDED), dtype)
    b_dw_before = tl.zeros((1, 1, BEFORE_PADDED), dtype)
    b_dw_after = tl.zeros((1, 1, AFTER_PADDED), dtype)
    head_tiles = tl.cdiv(heads, HEADS)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        o_h = ((i % head_tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]).to(tl.int64)
        i_t = (i // head_tiles % length).to(tl.int64)
        i_b = (i // head_tiles // length).to(tl.int64)
        m_row = o_h < heads
        o_row = tl.full((1, 1, 1), 0, tl.int64) + i_t
        m_known = m_all
        if HAS_ROWS:
            o_row = tl.load(p_rows + i_b * s_r_b + o_row * s_r_l).to(tl.int64)
            m_known = (o_row >= 0) & (o_row < table_length)
        o_table = i_b * s_t_b + o_row * s_t_l + o_h * s_t_h
        b_cos, b_sin = table_rows(
            p_cos, p_sin, o_table, m_row & m_known, m_known, PAIRS, PADDED, CONJUGATE, DIVIDE, HAS_ROWS
        )
        o_x = i_b * s_x_b + i_t * s_x_l + o_h * s_x_h
        o_dy = i_b * s_dy_b + i_t * s_dy_l + o_h * s_dy_h
        o_dx = i_b * s_dx_b + i_t * s_dx_l + o_h * s_dx_h
        b_a, b_b = load_pairs(p_x, o_x, s_x_d, m_row, START, PAIRS, PADDED, BLOCKS, READS_HALF, DENSE, 1, HEADS)
        b_a, b_b = b_a.to(dtype), b_b.to(dtype)
        b_before = load_run(p_x, o_x, s_x_d, m_row, 0, START, BEFORE_PADDED, DENSE).to(dtype)
        b_after = load_run(p_x, o_x, s_x_d, m_row, END, AFTER, AFTER_PADDED, DENSE).to(dtype)
        b_1, b_2 = load_pairs(p_dy, o_dy, s_dy_d, m_row, START, PAIRS, PADDED, BLOCKS, WRITES_HALF, DENSE, 1, HEADS)
        b_1, b_2 = b_1.to(dtype), b_2.to(dtype)
        b_g_before = load_run(p_dy, o_dy, s_dy_d, m_row, 0, START, BEFORE_PADDED, DENSE).to(dtype)
        b_g_after = load_run(p_dy, o_dy, s_dy_d, m_row, END, AFTER, AFTER_PADDED, DENSE).to(dtype)
        b_g_a = b_1 * b_cos + b_2 * b_sin
        b_g_b = b_2 * b_cos - b_1 * b_sin
        b_square = tl.sum(b_a * b_a, axis=2) + tl.sum(b_b * b_b, axis=2)
        b_square += tl.sum(b_before * b_before, axis=2) + tl.sum(b_after * b_after, axis=2)
        b_scale = tl.rsqrt(b_square / DIM + eps)[:, :, None]
        b_dw_a += tl.sum(tl.where(m_row, b_g_a * b_a * b_scale, 0.0), axis=1)[:, None, :]
        b_dw_b += tl.sum(tl.where(m_row, b_g_b * b_b * b_scale, 0.0), axis=1)[:, None, :]
        b_dw_before += tl.sum(tl.where(m_row, b_g_before * b_before * b_scale, 0.0), axis=1)[:, None, :]
        b_dw_after += tl.sum(tl.where(m_row, b_g_after * b_after * b_scale, 0.0), axis=1)[:, None, :]
        b_g_a, b_g_b = b_g_a * b_gain_a, b_g_b * b_gain_b
        b_g_before, b_g_after = b_g_before * b_gain_before, b_g_after * b_gain_after
        b_dot = tl.sum(b_g_a * b_a, axis=2) + tl.sum(b_g_b * b_b, axis=2)
        b_dot += tl.sum(b_g_before * b_before, axis=2) + tl.sum(b_g_after * b_after, axis=2)
        b_pull = b_dot[:, :, None] / DIM * b_scale * b_scale
        store_pairs(
            p_dx, o_dx, s_dx_d, m_row, (b_g_a - b_a * b_pull) * b_scale, (b_g_b - b_b * b_pull) * b_scale,
            START, PAIRS, PADDED, BLOCKS, READS_HALF, DENSE, 1, HEADS,
        )  # fmt: skip
        b_dx_before = (b_g_before - b_before * b_pull) * b_scale
        b_dx_after = (b_g_after - b_after * b_pull) * b_scale
        store_run(p_dx, o_dx, s_dx_d, m_row, b_dx_before, 0, START, BEFORE_PADDED, DENSE)
        store_run(p_dx, o_dx, s_dx_d, m_row, b_dx_after, END, AFTER, AFTER_PADDED, DENSE)
    o_dw = tl.zeros((1, 1, 1), tl.int64) + tl.program_id(0) * DIM
    store_pairs(
        p_dw, o_dw, 1, m_all, b_dw_a, b_dw_b, START, PAIRS, PADDED, BLOCKS, READS_HALF, True, 1, 1
    )  # fmt: skip
    store_run(p_dw, o_dw, 1, m_all, b_dw_before, 0, START, BEFORE_PADDED, True)
    store_run(p_dw, o_dw, 1, m_all, b_dw_after, END, AFTER, AFTER_PADDED, True)


def ready_back(
    x: Tensor,
    dy: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    weight: Tensor,
    rotation: Rotation,
    eps: float,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function of (x, dy, cos, sin, rows, weight) that gives the gradients of x and of its weight.

    ``dy`` is the gradient of what the norm and the rotation made of x.
    """
    order, reads, writes, start, blocks, conjugate, divide = rotation
    (batch, length, heads, dim), pairs, dense = sizes_of(x, order), cos.shape[-1], are_dense(cos, sin)
    tile = min(HEADS, power_of_2(heads))
    tiles = batch * length * -(-heads // tile)
    programs = min(PROGRAMS, tiles)
    moved = [strides_of(tensor, order) for tensor in (x, dy, torch.empty_like(x))]
    table = table_strides(cos if dense else cos.contiguous())
    sizes = (*table, *row_strides(rows), tiles, length, heads, cos.shape[-2], eps)
    numbers = [*(stride for strides in moved for stride in strides), *sizes]
    constants = (
        tile, *pieces_of(dim, start, pairs), blocks, reads == "half", writes == "half", conjugate, divide,
        rows is not None, all(strides[3] == 1 for strides in moved),
    )  # fmt: skip
    launch = Launch(_back_kernel, (programs, 1, 1), numbers, constants, warps=WARPS)

    def run(
        x: Tensor, dy: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        dx = torch.empty_like(x)
        if not x.numel():
            return dx, torch.zeros_like(weight)
        sums = torch.empty(programs, dim, dtype=cos.dtype, device=x.device)
        if not dense:
            cos, sin = cos.contiguous(), sin.contiguous()
        launch(x, dy, dx, sums, cos, sin, cos if rows is None else rows, weight.contiguous())
        return dx, sums.sum(0).to(weight.dtype)

    return run
