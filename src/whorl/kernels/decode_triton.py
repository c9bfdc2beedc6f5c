"""A decoding step's attention on a GPU: few queries over all that a cache keeps, in one launch.

    programs   (parts of the keys, heads of keys, batch): each reads its part of K and V once, for every query head that
               shares them
    parts      each leaves a sum, its largest score and the sum of its weights; the program that is done last for a
               head joins them, so that no second launch waits for the first

How many slots are filled is read on the device, and the parts are cut by it there. So one launch, and one captured
graph, serves a text that grows.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from whorl.kernels.decode import Kept, Rules
from whorl.kernels.triton_launch import Launch, kernel, multiprocessors, power_of_2, shared_memory

# The interpreter multiplies matrices of bfloat16 by their bits: there the operands are float32.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)

# Programs for each multiprocessor, and keys below which a part is not worth its own.
PROGRAMS, FEWEST_KEYS = 1, 64
MOST_PARTS = 64


@triton.jit
def _scores(
    b_q, b_k, o_key, o_place, o_position, p_bias, p_positions, p_real, m_row, last, scale, softcap, before, first,
    KEYS: tl.constexpr, BY_DISTANCE: tl.constexpr, BY_SLOT: tl.constexpr, POSITIONS: tl.constexpr,
    PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of keys in powers of two, minus infinity where a query may not see."""
    if INTERPRETED:
        b_s = tl.dot(b_q.to(tl.float32), tl.trans(b_k.to(tl.float32)))
    else:
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
    b_s = b_s * scale
    m_key = o_key < last
    if POSITIONS:
        o_there = tl.load(p_positions + o_key, mask=m_key, other=0).to(tl.int32)
        b_distance = o_position[:, None] - o_there[None, :]
    else:
        o_there = o_key
        b_distance = o_position[:, None] - o_key[None, :]
    m_seen = m_key[None, :] & (o_key[None, :] <= o_place[:, None])
    if PADDED:
        m_seen = m_seen & (tl.load(p_real + o_key, mask=m_key, other=0) != 0)[None, :]
    if WINDOW:
        m_seen = m_seen & ((b_distance <= before) | (o_there < first)[None, :])
    if BY_DISTANCE:
        b_s += tl.load(p_bias + b_distance, mask=m_seen & m_row[:, None], other=0.0)
    if BY_SLOT:
        b_s += tl.load(p_bias + o_key[None, :], mask=m_seen & m_row[:, None], other=0.0)
    if SOFTCAP:  # tanh x = 1 - 2 / (e^2x + 1)
        b_s = softcap * (1.0 - 2.0 / (tl.exp2(b_s * (2.0 * 1.4426950408889634 / softcap)) + 1.0))
    return tl.where(m_seen, b_s * 1.4426950408889634, float("-inf"))


@kernel(pointers=10)
def _decode_kernel(
    p_q, p_k, p_v, p_out, p_slots, p_bias, p_positions, p_real, p_sums, p_done,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_b_b, s_b_h, s_b_q, s_p_b, s_r_b,
    kv_heads, parts, room, scale, softcap, before, first,
    UNIT: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr, BY_DISTANCE: tl.constexpr, BY_SLOT: tl.constexpr, POSITIONS: tl.constexpr,
    PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    # strides count units of 8 elements where they can: by the multiplication the compiler learns that rows are aligned
    s_q_b, s_q_h, s_q_l = s_q_b.to(tl.int64) * UNIT, s_q_h.to(tl.int64) * UNIT, s_q_l.to(tl.int64) * UNIT
    s_k_b, s_k_h, s_k_l = s_k_b.to(tl.int64) * UNIT, s_k_h.to(tl.int64) * UNIT, s_k_l.to(tl.int64) * UNIT
    s_v_b, s_v_h, s_v_l = s_v_b.to(tl.int64) * UNIT, s_v_h.to(tl.int64) * UNIT, s_v_l.to(tl.int64) * UNIT
    i_part, i_kv, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    VALID: tl.constexpr = GROUP * QUERIES
    o_row = tl.arange(0, ROWS)
    m_row = o_row < VALID
    o_head = i_kv * GROUP + o_row // QUERIES
    o_query = o_row % QUERIES
    o_d = tl.arange(0, DIM_PADDED)
    o_e = tl.arange(0, VALUE_PADDED)
    o_n = tl.arange(0, KEYS)
    m_d = o_d < DIM
    m_e = o_e < VALUE_DIM
    p_q += i_b * s_q_b + o_head[:, None] * s_q_h + o_query[:, None] * s_q_l + o_d[None, :]
    b_q = tl.load(p_q, mask=m_row[:, None] & m_d[None, :], other=0.0)
    p_k += i_b * s_k_b + i_kv * s_k_h + o_n[:, None] * s_k_l + o_d[None, :]
    p_v += i_b * s_v_b + i_kv * s_v_h + o_n[:, None] * s_v_l + o_e[None, :]
    p_positions += i_b * s_p_b
    p_real += i_b * s_r_b
    p_bias += (i_b * s_b_b + o_head * s_b_h + o_query * s_b_q)[:, None]

    filled = tl.load(p_slots).to(tl.int32)  # before this step
    last = tl.minimum(filled + QUERIES, room)
    o_place = filled + o_query
    m_kept = o_place < room  # a token that found no room must not pass unseen
    o_position = tl.load(p_positions + o_place, mask=m_row & m_kept, other=0).to(tl.int32) if POSITIONS else o_place
    # slots behind a window are not visited where they are positions; the first part sees the first ones too
    start = 0
    if WINDOW and not POSITIONS:
        start = tl.maximum(0, filled - before)
    span = tl.cdiv(tl.cdiv(last - start, parts), KEYS) * KEYS
    low = start + i_part * span
    high = tl.minimum(low + span, last)

    b_out = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_best = tl.full([ROWS], -1e30, tl.float32)  # finite, so that rows that see nothing stay numbers
    stop_first = tl.where(i_part == 0, tl.minimum(first, start), 0) if WINDOW and not POSITIONS else 0
    tiles_first = tl.cdiv(stop_first, KEYS)
    tiles = tiles_first + tl.maximum(tl.cdiv(high - low, KEYS), 0)
    for i_tile in range(0, tiles):
        if WINDOW and not POSITIONS:
            is_first = i_tile < tiles_first
            n = tl.where(is_first, i_tile * KEYS, low + (i_tile - tiles_first) * KEYS)
            end = tl.where(is_first, stop_first, high)
        else:
            n = low + i_tile * KEYS
            end = high
        o_key = n + o_n
        m_n = o_key < end
        b_k = tl.load(p_k + n * s_k_l, mask=m_n[:, None] & m_d[None, :], other=0.0)
        b_s = _scores(
            b_q, b_k, o_key, o_place, o_position, p_bias, p_positions, p_real, m_row, end, scale, softcap, before,
            first, KEYS, BY_DISTANCE, BY_SLOT, POSITIONS, PADDED, WINDOW, SOFTCAP,
        )  # fmt: skip
        b_more = tl.maximum(b_best, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - b_more[:, None])
        b_shrink = tl.exp2(b_best - b_more)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_best = b_more
        b_v = tl.load(p_v + n * s_v_l, mask=m_n[:, None] & m_e[None, :], other=0.0)
        b_out = b_out * b_shrink[:, None]
        if INTERPRETED:
            b_out = tl.dot(b_p.to(b_v.dtype).to(tl.float32), b_v.to(tl.float32), b_out)
        else:
            b_out = tl.dot(b_p.to(b_v.dtype), b_v, b_out, input_precision="ieee")

    i_heads = i_b * kv_heads + i_kv
    p_out += (i_heads * VALID + o_row[:, None]) * VALUE_DIM + o_e[None, :]
    m_out = m_row[:, None] & m_e[None, :]
    if not SPLIT:
        b_sum = tl.where(m_kept, tl.where(b_sum > 0, b_sum, 1.0), float("nan"))
        tl.store(p_out, (b_out / b_sum[:, None]).to(p_out.dtype.element_ty), mask=m_out)
    else:
        p_sums_end = p_sums + tl.num_programs(2).to(tl.int64) * kv_heads * parts * VALID * VALUE_DIM
        p_sums += i_heads * parts * VALID * VALUE_DIM + o_row[:, None] * VALUE_DIM + o_e[None, :]
        # behind all sums, the largest score of each row and the sum of its weights
        p_best = p_sums_end + i_heads * parts * VALID * 2 + o_row * 2
        tl.store(p_sums + i_part * VALID * VALUE_DIM, b_out, mask=m_out)
        tl.store(p_best + i_part * VALID * 2, b_best, mask=m_row)
        tl.store(p_best + i_part * VALID * 2 + 1, b_sum, mask=m_row)
        tl.debug_barrier()  # all of this program's numbers are written before it counts as done
        done = tl.atomic_add(p_done + i_heads, 1, sem="acq_rel")
        if done == parts - 1:
            tl.debug_barrier()
            tl.store(p_done + i_heads, 0)  # for the next step
            b_all = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
            b_weights = tl.zeros([ROWS], tl.float32)
            b_best = tl.full([ROWS], -1e30, tl.float32)
            for i in range(0, parts):
                b_here = tl.load(p_best + i * VALID * 2, mask=m_row, other=-1e30, cache_modifier=".cg")
                b_sum = tl.load(p_best + i * VALID * 2 + 1, mask=m_row, other=0.0, cache_modifier=".cg")
                b_out = tl.load(p_sums + i * VALID * VALUE_DIM, mask=m_out, other=0.0, cache_modifier=".cg")
                b_more = tl.maximum(b_best, b_here)
                b_old, b_new = tl.exp2(b_best - b_more), tl.exp2(b_here - b_more)
                b_all = b_all * b_old[:, None] + b_out * b_new[:, None]
                b_weights = b_weights * b_old + b_sum * b_new
                b_best = b_more
            b_weights = tl.where(m_kept, tl.where(b_weights > 0, b_weights, 1.0), float("nan"))
            tl.store(p_out, (b_all / b_weights[:, None]).to(p_out.dtype.element_ty), mask=m_out)


class Tile(NamedTuple):
    """Keys at a time, warps, and how many loads ahead."""

    keys: int
    warps: int
    stages: int


class Decode(NamedTuple):
    """The launch for a kind of step, and the memory that it works in: float32 numbers, and counters that begin at 0.

    Counters are 0 again when the launch is done. Memory is shared by steps that run one after another only.
    """

    launch: Launch
    numbers: int
    counters: int

    def memory(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Memory to work in."""
        with torch.inference_mode(False):
            return (
                torch.empty(self.numbers, dtype=torch.float32, device=device),
                torch.zeros(self.counters, dtype=torch.int32, device=device),
            )

    def __call__(self, q: Tensor, kept: Kept, out: Tensor, numbers: Tensor, counters: Tensor) -> None:
        """Attends; ``out`` is contiguous, (batch, heads, queries, value dim)."""
        keys, values, slots, bias, positions, real = kept
        self.launch(
            q, keys, values, out, slots, slots if bias is None else bias, slots if positions is None else positions,
            slots if real is None else real, numbers, counters,
        )  # fmt: skip


def ready(q: Tensor, kept: Kept, rules: Rules) -> Decode:
    """The launch for tensors of these shapes and strides."""
    batch, heads, queries, dim = q.shape
    _, kv_heads, capacity, value_dim = kept.values.shape
    strides = (*q.stride()[:3], *kept.keys.stride()[:3], *kept.values.stride()[:3])
    unit = 8 if all(stride % 8 == 0 for stride in strides) else 1
    group = heads // kv_heads
    rows, padded, value_padded = (max(16, power_of_2(n)) for n in (group * queries, dim, value_dim))
    tile = tile_of(rows, padded, value_padded, q.dtype, shared_memory(q.device))
    parts = parts_of(batch * kv_heads, capacity, multiprocessors(q.device))
    bias, by_slot = kept.bias, kept.bias is not None and kept.bias.ndim == 4
    bias_strides = (0, 0, 0)
    if bias is not None:
        bias_strides = bias.stride()[:3] if by_slot else (0, bias.stride(0), 0)
    numbers = [stride // unit for stride in strides]
    numbers += [
        *bias_strides,
        *(0 if x is None else x.stride(0) for x in (kept.positions, kept.real)),
        kv_heads,
        parts,
        capacity,
    ]
    numbers += [rules.scale, rules.softcap or 1.0, *(rules.window or (0, 0))]
    constants = (
        unit, group, queries, rows, dim, padded, value_dim, value_padded, tile.keys, parts > 1,
        bias is not None and not by_slot, by_slot, kept.positions is not None, kept.real is not None,
        rules.window is not None, rules.softcap is not None,
    )  # fmt: skip
    launch = Launch(_decode_kernel, (parts, kv_heads, batch), numbers, constants, warps=tile.warps, stages=tile.stages)
    return Decode(launch, batch * heads * queries * parts * (value_dim + 2) if parts > 1 else 1, batch * kv_heads)


def tile_of(rows: int, dim: int, value_dim: int, dtype: torch.dtype, memory: int) -> Tile:
    """The tile for heads of these padded sizes within so many bytes of shared memory: fewer stages, then fewer keys.

    Measured on an H200 with heads of 128 in bfloat16.
    """
    tile = Tile(32, 4, 2) if dtype == torch.float32 else Tile(64, 4, 3)
    held = rows * (dim + value_dim) * dtype.itemsize
    while tile.keys > 16 or tile.stages > 1:
        if held + tile.stages * tile.keys * (dim + value_dim) * dtype.itemsize <= memory:
            break
        tile = tile._replace(stages=tile.stages - 1) if tile.stages > 1 else tile._replace(keys=tile.keys // 2)
    return tile


def parts_of(heads: int, capacity: int, processors: int) -> int:
    """Into how many parts the keys of each head are cut, so that every multiprocessor has work."""
    wanted = -(-PROGRAMS * processors // max(heads, 1))
    return max(1, min(wanted, -(-capacity // FEWEST_KEYS), MOST_PARTS))
