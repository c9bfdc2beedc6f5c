"""The rotation on a GPU: one launch turns queries and keys, reading and writing each element once.

A program takes a tile of tokens x heads. Its rows stay whole, so that the table row of a token is read once for all
heads of the tile, and the two members of a pair meet in one thread. Sizes are arguments and not part of the compiled
kernel, so another length compiles nothing.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
# A kernel is written in Triton's language: numbers stand for constants, and branches are taken when it is compiled.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whorl.kernels.axes import row_strides, sizes_of, strides_of, table_strides
from whorl.kernels.tables_triton import cos_and_sin, in_two
from whorl.kernels.triton_launch import Launch, kernel, power_of_2
from whorl.rotary.rotation import Rotation

# Bytes of half the rows that a program reads: eight of 128 dimensions in bfloat16, whether all of them turn or not.
TILE_BYTES = 1024

MOST_TABLE = 4 * 2**20  # bytes of tables that the cache of a GPU keeps while everything else passes through
INVERSE_BITS = tl.constexpr(47)  # n / m is n * ceil(2^47 / m) / 2^47, rounded down, while n m < 2^47
MOST_TILES = 65_535  # along the second and third axis of a grid


@triton.jit
def pairs_at(o_p, PAIRS: tl.constexpr, BLOCKS: tl.constexpr):
    """Where the first members of pairs o_p lie in the layout "half"."""
    if BLOCKS == 1:
        return o_p
    SIDE: tl.constexpr = PAIRS // BLOCKS
    return (o_p // SIDE) * (2 * SIDE) + o_p % SIDE


@triton.jit
def table_rows(
    p_cos, p_sin, o_row, m_row, m_known, PAIRS: tl.constexpr, PADDED: tl.constexpr,
    CONJUGATE: tl.constexpr, DIVIDE: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """cos and sin of some rows; NaN for rows outside the table, which must not pass unseen."""
    o_p = tl.arange(0, PADDED)[None, None, :]
    m_p = (o_p < PAIRS) if PAIRS < PADDED else (o_p >= 0)
    # every head reads them again, and nothing else is read twice
    b_cos = tl.load(p_cos + o_row + o_p, mask=m_row & m_p, other=1.0, eviction_policy="evict_last")
    b_sin = tl.load(p_sin + o_row + o_p, mask=m_row & m_p, other=0.0, eviction_policy="evict_last")
    if DIVIDE:
        b_scale = b_cos * b_cos + b_sin * b_sin
        b_cos = b_cos / b_scale
        b_sin = b_sin / b_scale
    if CONJUGATE:
        b_sin = -b_sin
    if CHECKED:
        b_cos = tl.where(m_known, b_cos, float("nan"))
        b_sin = tl.where(m_known, b_sin, float("nan"))
    return b_cos, b_sin


@triton.jit
def load_pairs(
    p_x, o_x, s_d, m_row, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
    HALF: tl.constexpr, DENSE: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Both members of the pairs of rows that begin at o_x, 0 where there are none."""
    if DENSE:  # dimensions side by side in memory, which lets a thread move several at once
        s_d = 1
    if HALF:
        o_p = tl.arange(0, PADDED)[None, None, :]
        m = m_row & (o_p < PAIRS) if PAIRS < PADDED else m_row & (o_p >= 0)
        o_a = START + pairs_at(o_p, PAIRS, BLOCKS)
        b_a = tl.load(p_x + o_x + o_a * s_d, mask=m, other=0.0)
        b_b = tl.load(p_x + o_x + (o_a + PAIRS // BLOCKS) * s_d, mask=m, other=0.0)
    else:  # whole rows, which neighbouring threads read side by side
        o_d = tl.arange(0, 2 * PADDED)[None, None, :]
        m = m_row & (o_d < 2 * PAIRS) if PAIRS < PADDED else m_row & (o_d >= 0)
        b_x = tl.load(p_x + o_x + (START + o_d) * s_d, mask=m, other=0.0)
        b_a, b_b = tl.split(tl.reshape(b_x, (TOKENS, HEADS, PADDED, 2)))
    return b_a, b_b


@triton.jit
def store_pairs(
    p_x, o_x, s_d, m_row, b_a, b_b, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr,
    BLOCKS: tl.constexpr, HALF: tl.constexpr, DENSE: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Writes both members of pairs where ``load_pairs`` would read them, rounded once."""
    if DENSE:
        s_d = 1
    b_a = b_a.to(p_x.dtype.element_ty)
    b_b = b_b.to(p_x.dtype.element_ty)
    if HALF:
        o_p = tl.arange(0, PADDED)[None, None, :]
        m = m_row & (o_p < PAIRS) if PAIRS < PADDED else m_row & (o_p >= 0)
        o_a = START + pairs_at(o_p, PAIRS, BLOCKS)
        tl.store(p_x + o_x + o_a * s_d, b_a, mask=m)
        tl.store(p_x + o_x + (o_a + PAIRS // BLOCKS) * s_d, b_b, mask=m)
    else:
        o_d = tl.arange(0, 2 * PADDED)[None, None, :]
        m = m_row & (o_d < 2 * PAIRS) if PAIRS < PADDED else m_row & (o_d >= 0)
        b_x = tl.reshape(tl.join(b_a, b_b), (TOKENS, HEADS, 2 * PADDED))
        tl.store(p_x + o_x + (START + o_d) * s_d, b_x, mask=m)


@triton.jit
def load_run(
    p_x, o_x, s_d, m_row, FIRST: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """Dimensions [FIRST, FIRST + COUNT) of rows that begin at o_x, 0 in the padding."""
    o_d = tl.arange(0, PADDED)[None, None, :]
    if DENSE:  # without a stride the compiler sees that they are side by side, and moves 16 bytes at a time
        s_d = 1
    return tl.load(p_x + o_x + (FIRST + o_d) * s_d, mask=m_row & (o_d < COUNT), other=0.0)


@triton.jit
def store_run(
    p_x, o_x, s_d, m_row, b_x, FIRST: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """Writes what ``load_run`` would read, rounded once."""
    o_d = tl.arange(0, PADDED)[None, None, :]
    if DENSE:
        s_d = 1
    tl.store(p_x + o_x + (FIRST + o_d) * s_d, b_x.to(p_x.dtype.element_ty), mask=m_row & (o_d < COUNT))


@triton.jit
def turn_tile(
    p_x, p_out, o_x, o_out, m_row, s_d, s_out_d, b_cos, b_sin, p_weight, eps,
    DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr,
    DENSE: tl.constexpr, NORM: tl.constexpr, IN_PLACE: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Reads rows that begin at o_x, turns them and writes them at o_out; the dimensions that do not turn are copied."""
    END: tl.constexpr = START + 2 * PAIRS
    MOVES: tl.constexpr = NORM or not IN_PLACE
    BEFORE: tl.constexpr = MOVES and START > 0
    AFTER: tl.constexpr = MOVES and END < DIM
    b_a, b_b = load_pairs(p_x, o_x, s_d, m_row, START, PAIRS, PADDED, BLOCKS, READS_HALF, DENSE, TOKENS, HEADS)
    b_a = b_a.to(b_cos.dtype)
    b_b = b_b.to(b_cos.dtype)
    if BEFORE:
        b_before = load_run(p_x, o_x, s_d, m_row, 0, START, BEFORE_PADDED, DENSE)
    if AFTER:
        b_after = load_run(p_x, o_x, s_d, m_row, END, DIM - END, AFTER_PADDED, DENSE)
    if NORM:
        b_square = tl.sum(b_a * b_a, axis=2) + tl.sum(b_b * b_b, axis=2)
        if BEFORE:
            b_before = b_before.to(b_cos.dtype)
            b_square += tl.sum(b_before * b_before, axis=2)
        if AFTER:
            b_after = b_after.to(b_cos.dtype)
            b_square += tl.sum(b_after * b_after, axis=2)
        b_scale = tl.rsqrt(b_square / DIM + eps)[:, :, None]
        o_weight, m_weight = tl.zeros((1, 1, 1), tl.int64), tl.full((1, 1, 1), True, tl.int1)
        b_gain_a, b_gain_b = load_pairs(
            p_weight, o_weight, 1, m_weight, START, PAIRS, PADDED, BLOCKS, READS_HALF, True, 1, 1
        )
        b_a = b_a * b_scale * b_gain_a.to(b_cos.dtype)
        b_b = b_b * b_scale * b_gain_b.to(b_cos.dtype)
        if BEFORE:
            b_gain = load_run(p_weight, o_weight, 1, m_weight, 0, START, BEFORE_PADDED, True)
            b_before = b_before * b_scale * b_gain.to(b_cos.dtype)
        if AFTER:
            b_gain = load_run(p_weight, o_weight, 1, m_weight, END, DIM - END, AFTER_PADDED, True)
            b_after = b_after * b_scale * b_gain.to(b_cos.dtype)
    b_first = b_a * b_cos - b_b * b_sin
    b_second = b_b * b_cos + b_a * b_sin
    store_pairs(
        p_out, o_out, s_out_d, m_row, b_first, b_second,
        START, PAIRS, PADDED, BLOCKS, WRITES_HALF, DENSE, TOKENS, HEADS,
    )  # fmt: skip
    if BEFORE:
        store_run(p_out, o_out, s_out_d, m_row, b_before, 0, START, BEFORE_PADDED, DENSE)
    if AFTER:
        store_run(p_out, o_out, s_out_d, m_row, b_after, END, DIM - END, AFTER_PADDED, DENSE)


@kernel(pointers=9)
def _turn_kernel(
    p_q, p_k, p_q_out, p_k_out, p_cos, p_sin, p_rows, p_q_weight, p_k_weight,
    s_q_b, s_q_l, s_q_h, s_q_d, s_k_b, s_k_l, s_k_h, s_k_d,
    s_qo_b, s_qo_l, s_qo_h, s_qo_d, s_ko_b, s_ko_l, s_ko_h, s_ko_d,
    s_t_b, s_t_l, s_t_h, s_r_b, s_r_l, length, q_heads, k_heads, table_length, batch, batch_inverse, eps,
    factor_high, factor_low,
    UNIT: tl.constexpr, TABLE_UNIT: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
    AXIS_T: tl.constexpr, AXIS_H: tl.constexpr, AXIS_B: tl.constexpr, GROUPED: tl.constexpr,
    DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr,
    CONJUGATE: tl.constexpr, DIVIDE: tl.constexpr, HAS_ROWS: tl.constexpr, BY_HEAD: tl.constexpr,
    DENSE: tl.constexpr, NORM: tl.constexpr, IN_PLACE: tl.constexpr, AT_POSITIONS: tl.constexpr,
):  # fmt: skip
    # strides count units of 8 elements where they can: by the multiplication the compiler learns that rows are aligned
    s_q_b, s_q_l, s_q_h = s_q_b.to(tl.int64) * UNIT, s_q_l.to(tl.int64) * UNIT, s_q_h.to(tl.int64) * UNIT
    s_k_b, s_k_l, s_k_h = s_k_b.to(tl.int64) * UNIT, s_k_l.to(tl.int64) * UNIT, s_k_h.to(tl.int64) * UNIT
    s_qo_b, s_qo_l, s_qo_h = s_qo_b.to(tl.int64) * UNIT, s_qo_l.to(tl.int64) * UNIT, s_qo_h.to(tl.int64) * UNIT
    s_ko_b, s_ko_l, s_ko_h = s_ko_b.to(tl.int64) * UNIT, s_ko_l.to(tl.int64) * UNIT, s_ko_h.to(tl.int64) * UNIT
    s_t_b, s_t_l = s_t_b.to(tl.int64) * TABLE_UNIT, s_t_l.to(tl.int64) * TABLE_UNIT
    i_t, i_h, i_b = tl.program_id(AXIS_T), tl.program_id(AXIS_H), tl.program_id(AXIS_B)
    i_b = i_b.to(tl.int64)
    if GROUPED:  # divided by a product: a division keeps the first loads waiting
        i_group = (i_b * batch_inverse) >> INVERSE_BITS
        i_b -= i_group * batch
        i_t += i_group.to(tl.int32) * tl.num_programs(AXIS_T)
    q_tiles = tl.cdiv(q_heads, HEADS)
    is_q = i_h < q_tiles
    o_h = tl.where(is_q, i_h, i_h - q_tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]
    o_t = i_t * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    m_t = o_t < length
    m_row = m_t & (o_h < tl.where(is_q, q_heads, k_heads))
    o_h, o_t = o_h.to(tl.int64), o_t.to(tl.int64)
    if AT_POSITIONS:  # p_rows are positions and p_cos frequencies: no table is read
        o_p = tl.arange(0, PADDED)[None, None, :]
        b_m = tl.load(p_rows + i_b * s_r_b + o_t * s_r_l, mask=m_t, other=0).to(tl.float64)
        b_w = tl.load(p_cos + o_p, mask=o_p < PAIRS, other=0.0)
        b_cos, b_sin = cos_and_sin(b_m, b_w, factor_high, factor_low)
    else:
        if HAS_ROWS:
            o_row = tl.load(p_rows + i_b * s_r_b + o_t * s_r_l, mask=m_t, other=0).to(tl.int64)
            m_known = (o_row >= 0) & (o_row < table_length)
        else:
            o_row = o_t
            m_known = m_t
        if BY_HEAD:
            o_table = i_b * s_t_b + o_row * s_t_l + o_h * (s_t_h.to(tl.int64) * TABLE_UNIT)
            m_table = m_row & m_known
        else:
            o_table = i_b * s_t_b + o_row * s_t_l
            m_table = m_t & m_known
        b_cos, b_sin = table_rows(p_cos, p_sin, o_table, m_table, m_known, PAIRS, PADDED, CONJUGATE, DIVIDE, HAS_ROWS)
    if is_q:
        turn_tile(
            p_q, p_q_out,
            i_b * s_q_b + o_t * s_q_l + o_h * s_q_h,
            i_b * s_qo_b + o_t * s_qo_l + o_h * s_qo_h,
            m_row, s_q_d, s_qo_d, b_cos, b_sin, p_q_weight, eps,
            DIM, START, PAIRS, PADDED, BEFORE_PADDED, AFTER_PADDED, BLOCKS, READS_HALF, WRITES_HALF,
            DENSE, NORM, IN_PLACE, TOKENS, HEADS,
        )  # fmt: skip
    else:
        turn_tile(
            p_k, p_k_out,
            i_b * s_k_b + o_t * s_k_l + o_h * s_k_h,
            i_b * s_ko_b + o_t * s_ko_l + o_h * s_ko_h,
            m_row, s_k_d, s_ko_d, b_cos, b_sin, p_k_weight, eps,
            DIM, START, PAIRS, PADDED, BEFORE_PADDED, AFTER_PADDED, BLOCKS, READS_HALF, WRITES_HALF,
            DENSE, NORM, IN_PLACE, TOKENS, HEADS,
        )  # fmt: skip


def ready(
    xs: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    outs: tuple[Tensor, ...],
    rows: Tensor | None,
    rotation: Rotation,
    *,
    eps: float | None = None,
) -> Callable[..., None]:
    """The function of (xs, cos, sin, outs, rows, weights) that turns one or two tensors of these shapes and strides.

    It writes each of ``xs`` into its ``outs``, which may be ``xs``. The two have one batch and length, and may differ
    in heads. ``rows`` (length,) or (batch, length) says which row of the tables each token takes. With ``eps``, every
    head is scaled to a root mean square of 1 times its ``weights`` first.
    """
    dense = are_dense(cos, sin)
    launch = _plan(xs, cos if dense else cos.contiguous(), outs, rows, rotation, eps)

    def run(
        xs: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        outs: tuple[Tensor, ...],
        rows: Tensor | None,
        weights: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if not dense:
            cos, sin = cos.contiguous(), sin.contiguous()
        gains = (cos, cos) if weights is None else weights
        launch(xs[0], xs[-1], outs[0], outs[-1], cos, sin, cos if rows is None else rows, *gains)

    return run


def ready_at(
    q: Tensor, k: Tensor, positions: Tensor, frequencies: Tensor, factor: float, rotation: Rotation
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The function of (q, k, positions) that turns both to their positions, angles being computed on the way.

    For few tokens: every head computes them anew, by the formula of ``tables_triton``.
    """
    outs = torch.empty_like(q), torch.empty_like(k)
    launch = _plan((q, k), frequencies[None], outs, positions, rotation, None, factor)

    def run(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = torch.empty_like(q), torch.empty_like(k)
        launch(q, k, turned_q, turned_k, frequencies, frequencies, positions, frequencies, frequencies)
        return turned_q, turned_k

    return run


def are_dense(cos: Tensor, sin: Tensor) -> bool:
    """Whether both tables have the same strides, and pairs side by side, as kernels read them."""
    return cos.stride() == sin.stride() and cos.stride(-1) == 1


def _plan(
    xs: tuple[Tensor, ...],
    cos: Tensor,
    outs: tuple[Tensor, ...],
    rows: Tensor | None,
    rotation: Rotation,
    eps: float | None,
    factor: float | None = None,
) -> Launch:
    order, reads, writes, start, blocks, conjugate, divide = rotation
    q, k, pairs, norm = xs[0], xs[-1], cos.shape[-1], eps is not None
    batch, length, q_heads, dim = sizes_of(q, order)
    k_heads = sizes_of(k, order)[2] if len(xs) > 1 else 0
    moved = [strides_of(x, order) for x in (q, k, outs[0], outs[-1])]
    table, ids = table_strides(cos), row_strides(rows)
    # one token each: the batch is a sequence of them, unless rows are looked up in tables of its own
    if length == 1 and batch > 1 and not (rows is not None and table[0]):
        batch, length = 1, batch
        moved = [(0, *strides[:1], *strides[2:]) for strides in moved]
        table, ids = (0, table[0], table[2]) if rows is None else table, (0, ids[0])
    side_by_side = moved[0][2] < moved[0][1]  # the heads of a token, not the tokens of a head
    in_place = q is outs[0]
    width = 2 * pairs if in_place and not norm else dim  # what is moved of a row
    row_bytes = power_of_2(width) // 2 * q.element_size()
    tokens, heads, warps = tile_of(row_bytes, length, max(q_heads, k_heads), side_by_side)
    tiles = -(-length // tokens), -(-q_heads // heads) + -(-k_heads // heads)
    # along the tokens, by groups of equal size: all heads pass by a group while its table rows are still in the cache
    groups = -(-2 * length * pairs * cos.element_size() // MOST_TABLE)
    axes = 0, 1, 2  # of the grid, where tokens of a group, heads, and batch rows times groups lie
    if side_by_side and tiles[0] <= MOST_TILES:  # all heads of a token in turn
        groups, axes = 1, (1, 0, 2)
    group = -(-tiles[0] // max(1, groups))
    groups = -(-tiles[0] // max(1, group))
    if batch * groups > MOST_TILES:
        axes = 2, 1, 0
    sizes = dict(zip(axes, (group, tiles[1], batch * groups), strict=True))
    unit = 8 if all(stride % 8 == 0 for strides in moved for stride in strides[:3]) else 1
    table_unit = 4 if all(stride % 4 == 0 for stride in table) else 1
    numbers: list[Any] = [
        number for strides in moved for number in (*(stride // unit for stride in strides[:3]), strides[3])
    ]
    numbers += [*(stride // table_unit for stride in table), *ids, length, q_heads, k_heads, cos.shape[-2]]
    numbers += [batch, -(-(1 << INVERSE_BITS.value) // max(batch, 1)), eps or 0.0, *in_two(factor or 0.0)]
    constants = (
        unit, table_unit, tokens, heads, *axes, groups > 1, *pieces_of(dim, start, pairs), blocks,
        reads == "half", writes == "half", conjugate, divide, rows is not None, table[2] != 0,
        all(strides[3] == 1 for strides in moved), norm, in_place, factor is not None,
    )  # fmt: skip
    return Launch(_turn_kernel, (sizes[0], sizes[1], sizes[2]), numbers, constants, warps=warps)


def pieces_of(dim: int, start: int, pairs: int) -> tuple[int, ...]:
    """DIM, START, PAIRS and the padded sizes of a head's pairs, of what is before and of what is after them."""
    return dim, start, pairs, power_of_2(pairs), power_of_2(start), power_of_2(dim - start - 2 * pairs)


def tile_of(row_bytes: int, length: int, heads: int, heads_side_by_side: bool) -> tuple[int, int, int]:
    """Tokens, heads and warps of a program, measured on an H200: 2 KiB of rows."""
    rows = max(1, TILE_BYTES // row_bytes)
    if heads_side_by_side:  # all heads of a token, and of several tokens where heads are few
        every = min(rows, power_of_2(heads))
        return min(rows // every, power_of_2(length)), every, 2
    both = min(2, rows, power_of_2(heads))  # two heads share the table rows of their tokens
    return min(rows // both, power_of_2(length)), both, 1
