"""A decoding step's writes on a GPU in one launch: queries turned, keys turned into their slots, values beside them."""

# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: numbers stand for constants, and branches are taken when it is compiled.
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import triton.language as tl
from torch import Tensor

from whorl.kernels.axes import row_strides, sizes_of, strides_of, table_strides
from whorl.kernels.rotate_triton import are_dense, load_run, pieces_of, store_run, table_rows, turn_tile
from whorl.kernels.triton_launch import Launch, kernel, power_of_2
from whorl.rotary.rotation import Rotation

if TYPE_CHECKING:
    from whorl.kernels.append import Step

HEADS = 8
WARPS = 1


@kernel(pointers=10)
def _append_kernel(
    p_q, p_k, p_v, p_out, p_keys, p_values, p_cos, p_sin, p_rows, p_slots,
    s_q_b, s_q_l, s_q_h, s_q_d, s_k_b, s_k_l, s_k_h, s_k_d, s_v_b, s_v_l, s_v_h, s_v_d,
    s_o_b, s_o_l, s_o_h, s_o_d, s_kc_b, s_kc_l, s_kc_h, s_kc_d, s_vc_b, s_vc_l, s_vc_h, s_vc_d,
    s_t_b, s_t_l, s_r_b, s_r_l, s_s_b, s_s_l, q_heads, k_heads, table_length, capacity,
    HEADS: tl.constexpr, DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr, AFTER_PADDED: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr,
    WRITES_HALF: tl.constexpr, HAS_ROWS: tl.constexpr, ROWS_BY_SLOT: tl.constexpr, DENSE: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
):  # fmt: skip
    i_h, i_t, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    q_tiles, k_tiles = tl.cdiv(q_heads, HEADS), tl.cdiv(k_heads, HEADS)
    o_h = (tl.arange(0, HEADS)[None, :, None]).to(tl.int64)
    o_row = tl.zeros((1, 1, 1), tl.int64) + i_t
    i_slot = tl.load(p_slots + i_b * s_s_b + o_row * s_s_l).to(tl.int64)
    m_known = tl.full((1, 1, 1), True, tl.int1)
    if ROWS_BY_SLOT:
        m_slot = (i_slot >= 0) & (i_slot < capacity)
        o_row = tl.load(p_rows + i_b * s_r_b + i_slot * s_r_l, mask=m_slot, other=-1).to(tl.int64)
        m_known = (o_row >= 0) & (o_row < table_length)
    elif HAS_ROWS:
        o_row = tl.load(p_rows + i_b * s_r_b + o_row * s_r_l).to(tl.int64)
        m_known = (o_row >= 0) & (o_row < table_length)
    m_known = m_known & (i_slot < capacity)  # a token that finds no room must not pass unseen
    m_table = m_known & (o_h >= 0)
    b_cos, b_sin = table_rows(
        p_cos, p_sin, i_b * s_t_b + o_row * s_t_l + o_h * 0, m_table, m_known, PAIRS, PADDED, False, False, True
    )
    m_kept = (i_slot >= 0) & (i_slot < capacity)
    if i_h < q_tiles:
        o_h += i_h * HEADS
        turn_tile(
            p_q, p_out, i_b * s_q_b + i_t * s_q_l + o_h * s_q_h, i_b * s_o_b + i_t * s_o_l + o_h * s_o_h,
            o_h < q_heads, s_q_d, s_o_d, b_cos, b_sin, p_cos, 0.0,
            DIM, START, PAIRS, PADDED, BEFORE_PADDED, AFTER_PADDED, BLOCKS, READS_HALF, WRITES_HALF,
            DENSE, False, False, 1, HEADS,
        )  # fmt: skip
    elif i_h < q_tiles + k_tiles:
        o_h += (i_h - q_tiles) * HEADS
        turn_tile(
            p_k, p_keys, i_b * s_k_b + i_t * s_k_l + o_h * s_k_h, i_b * s_kc_b + i_slot * s_kc_l + o_h * s_kc_h,
            (o_h < k_heads) & m_kept, s_k_d, s_kc_d, b_cos, b_sin, p_cos, 0.0,
            DIM, START, PAIRS, PADDED, BEFORE_PADDED, AFTER_PADDED, BLOCKS, READS_HALF, WRITES_HALF,
            DENSE, False, False, 1, HEADS,
        )  # fmt: skip
    else:
        o_h += (i_h - q_tiles - k_tiles) * HEADS
        m_row = (o_h < k_heads) & m_kept
        o_v, o_values = i_b * s_v_b + i_t * s_v_l + o_h * s_v_h, i_b * s_vc_b + i_slot * s_vc_l + o_h * s_vc_h
        b_v = load_run(p_v, o_v, s_v_d, m_row, 0, VALUE_DIM, VALUE_PADDED, DENSE)
        store_run(p_values, o_values, s_vc_d, m_row, b_v, 0, VALUE_DIM, VALUE_PADDED, DENSE)


@kernel(pointers=7)
def _copy_kernel(
    p_k, p_v, p_keys, p_values, p_slots, p_new, p_memory,
    s_k_b, s_k_l, s_k_h, s_k_d, s_v_b, s_v_l, s_v_h, s_v_d,
    s_kc_b, s_kc_l, s_kc_h, s_kc_d, s_vc_b, s_vc_l, s_vc_h, s_vc_d, s_s_b, s_s_l, s_n_b, s_n_h, s_n_l, s_m_b, s_m_h,
    heads, capacity, numbers,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    DENSE: tl.constexpr, NUMBERS_PADDED: tl.constexpr,
):  # fmt: skip
    i_h, i_t, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i_slot = tl.load(p_slots + i_b * s_s_b + (tl.zeros((1, 1, 1), tl.int64) + i_t) * s_s_l).to(tl.int64)
    tiles = tl.cdiv(heads, HEADS)
    o_h = (tl.where(i_h < tiles, i_h, i_h - tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]).to(tl.int64)
    m_row = (o_h < heads) & (i_slot >= 0) & (i_slot < capacity)
    if i_h < tiles:
        o_to = i_b * s_kc_b + i_slot * s_kc_l + o_h * s_kc_h
        b_k = load_run(p_k, i_b * s_k_b + i_t * s_k_l + o_h * s_k_h, s_k_d, m_row, 0, DIM, PADDED, DENSE)
        store_run(p_keys, o_to, s_kc_d, m_row, b_k, 0, DIM, PADDED, DENSE)
    else:
        o_to = i_b * s_vc_b + i_slot * s_vc_l + o_h * s_vc_h
        b_v = load_run(p_v, i_b * s_v_b + i_t * s_v_l + o_h * s_v_h, s_v_d, m_row, 0, VALUE_DIM, VALUE_PADDED, DENSE)
        store_run(p_values, o_to, s_vc_d, m_row, b_v, 0, VALUE_DIM, VALUE_PADDED, DENSE)
    if NUMBERS_PADDED and i_h == 0:
        o_n = tl.arange(0, NUMBERS_PADDED)[None, :, None].to(tl.int64)
        m_n = (o_n < numbers) & (i_slot >= 0) & (i_slot < capacity)
        b_new = tl.load(p_new + i_b * s_n_b + o_n * s_n_h + i_t * s_n_l, mask=m_n, other=0.0)
        tl.store(p_memory + i_b * s_m_b + o_n * s_m_h + i_slot, b_new.to(p_memory.dtype.element_ty), mask=m_n)


def ready_copy(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor, new: Tensor | None, memory: Tensor | None
) -> Callable[..., None]:
    """The function of (k, v, keys, values, slots, new, memory) that puts keys and values, (b, h, l, d), into slots.

    ``new`` (b, numbers, l) are further numbers of each token, which go to ``memory`` (b, numbers, slots); or None.
    """
    moved = [strides_of(x, "bhld") for x in (k, v, keys, values)]
    batch, heads, length, dim = k.shape
    tile = min(HEADS, power_of_2(heads))
    numbers = [stride for strides in moved for stride in strides]
    numbers += row_strides(slots)
    if new is None or memory is None:
        numbers += [0, 0, 0, 0, 0]
    else:
        numbers += [*new.stride(), *memory.stride()[:2]]
    further = 0 if new is None else new.shape[1]
    numbers += [heads, keys.shape[2], further]
    dense = all(strides[3] == 1 for strides in moved)
    constants = (
        tile,
        dim,
        power_of_2(dim),
        v.shape[-1],
        power_of_2(v.shape[-1]),
        dense,
        further and power_of_2(further),
    )
    launch = Launch(_copy_kernel, (2 * -(-heads // tile), length, batch), numbers, constants, warps=WARPS)

    def run(*moved: Tensor | None) -> None:
        slots = moved[4]
        launch(*[slots if x is None else x for x in moved])

    return run


def ready(step: Step, out: Tensor, rotation: Rotation, *, rows_by_slot: bool = False) -> Callable[[Step, Tensor], None]:
    """The function of (step, out) that writes q, turned, into ``out``, and k, turned, and v into their slots.

    Rows are those of the tokens, or of all slots with ``rows_by_slot``.
    """
    order, reads, writes, start, blocks, *_ = rotation
    q, k, v, cos, sin, rows, keys, values, slots = step
    (batch, length, q_heads, dim), k_heads, pairs = sizes_of(q, order), sizes_of(k, order)[2], cos.shape[-1]
    dense = are_dense(cos, sin)
    moved = [strides_of(x, order) for x in (q, k, v, out, keys, values)]
    heads = min(HEADS, power_of_2(max(q_heads, k_heads)))
    table = table_strides(cos if dense else cos.contiguous())
    numbers = [stride for strides in moved for stride in strides] + [*table[:2], *row_strides(rows)]
    numbers += [*row_strides(slots), q_heads, k_heads, cos.shape[-2], sizes_of(keys, order)[1]]
    constants = (
        heads, *pieces_of(dim, start, pairs), blocks, reads == "half", writes == "half",
        rows is not None, rows_by_slot, all(strides[3] == 1 for strides in moved), v.shape[-1], power_of_2(v.shape[-1]),
    )  # fmt: skip
    tiles = -(-q_heads // heads) + 2 * -(-k_heads // heads)
    launch = Launch(_append_kernel, (tiles, length, batch), numbers, constants, warps=WARPS)

    def run(step: Step, out: Tensor) -> None:
        q, k, v, cos, sin, rows, keys, values, slots = step
        if not dense:
            cos, sin = cos.contiguous(), sin.contiguous()
        launch(q, k, v, out, keys, values, cos, sin, cos if rows is None else rows, slots)

    return run
