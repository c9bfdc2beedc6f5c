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
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from whorl.kernels.decode import Kept, Rules
from whorl.kernels.decode_triton_terms import between_rows, broken_line, kept_after, key_products
from whorl.kernels.decode_triton_turns import faded, members, turned, unturned
from whorl.kernels.triton_launch import Launch, kernel, multiprocessors, power_of_2, shared_memory

# The interpreter multiplies matrices of bfloat16 by their bits: there the operands are float32.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)

# Programs for each multiprocessor: one that does little but read keys and values keeps it busy; those that wait for
# further tables on the way do not. And keys below which a part is not worth its own.
PROGRAMS, WAITING_PROGRAMS, FEWEST_KEYS = 1, 4, 64
MOST_PARTS = 64


@triton.jit
def _add_scores(b_sum, b_q, b_k):
    """A sum in float32 and the products of queries and keys."""
    if INTERPRETED:
        b_sum = tl.dot(b_q.to(tl.float32), tl.trans(b_k.to(tl.float32)), b_sum)
    else:
        b_sum = tl.dot(b_q, tl.trans(b_k), b_sum, input_precision="ieee")
    return b_sum


@triton.jit
def _add_product(b_sum, b_weights, b_values):
    """A sum in float32 and one more product."""
    b_weights = b_weights.to(b_values.dtype)
    if INTERPRETED:
        b_sum = tl.dot(b_weights.to(tl.float32), b_values.to(tl.float32), b_sum)
    else:
        b_sum = tl.dot(b_weights, b_values, b_sum, input_precision="ieee")
    return b_sum


@kernel(pointers=18)
def _decode_kernel(
    p_q, p_k, p_v, p_out, p_slots, p_bias, p_positions, p_real, p_cos, p_sin, p_fades, p_rows, p_key_rows,
    p_value_rows, p_memory, p_factors, p_sums, p_done,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l, s_b_b, s_b_h, s_b_q, s_p_b, s_r_b, s_c_p, s_c_s,
    s_w_b, s_w_h, s_w_q, s_y_h, s_m_b, s_m_h, s_f_h, kv_heads, parts, room, scale, softcap, before, first, near,
    most_rows, most_key_rows, most_value_rows,
    UNIT: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr, COUNTS: tl.constexpr, BIAS: tl.constexpr, LINES: tl.constexpr, STEPS: tl.constexpr,
    POSITIONS: tl.constexpr, COUNTED: tl.constexpr, PADDED: tl.constexpr, WINDOW: tl.constexpr, SKIPS: tl.constexpr,
    SOFTCAP: tl.constexpr, SUMS: tl.constexpr, BY_DISTANCE: tl.constexpr, KEY_ROWS: tl.constexpr,
    VALUE_ROWS: tl.constexpr, PLACEMENTS: tl.constexpr, FADES: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr,
    PAIRS_PADDED: tl.constexpr, REST_PADDED: tl.constexpr, BLOCKS: tl.constexpr, READS_HALF: tl.constexpr,
    FACTORS: tl.constexpr,
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
    p_q += i_b * s_q_b + o_head[:, None] * s_q_h + o_query[:, None] * s_q_l
    p_k += i_b * s_k_b + i_kv * s_k_h + o_n[:, None] * s_k_l
    p_v += i_b * s_v_b + i_kv * s_v_h + o_n[:, None] * s_v_l + o_e[None, :]
    p_positions += i_b * s_p_b
    p_real += i_b * s_r_b
    p_bias += (i_b * s_b_b + o_head * s_b_h + o_query * s_b_q)[:, None]
    p_rows += (i_b * s_w_b + o_head * s_w_h + o_query * s_w_q)[:, None]
    p_memory += (i_b * s_m_b + o_head * s_m_h)[:, None]
    p_factors += o_head * s_f_h

    filled = tl.load(p_slots).to(tl.int32)  # before this step
    last = tl.minimum(filled + QUERIES, room)
    o_place = filled + o_query
    m_kept = o_place < room  # a token that found no room must not pass unseen
    o_position = tl.load(p_positions + o_place, mask=m_row & m_kept, other=0) if POSITIONS else o_place
    if COUNTED:  # those that were given may be anywhere
        o_position = o_position.to(tl.int32)
    DTYPE: tl.constexpr = p_q.dtype.element_ty
    m_placed = m_row & m_kept
    if PLACEMENTS == 0:
        b_q = tl.load(p_q + o_d[None, :], mask=m_row[:, None] & m_d[None, :], other=0.0)
        if FACTORS:
            b_q = (b_q.to(tl.float32) * tl.load(p_factors + o_position, mask=m_placed, other=1.0)[:, None]).to(DTYPE)
    else:
        b_first_q, b_second_q = members(p_q, m_row, START, PAIRS, PAIRS_PADDED, BLOCKS, READS_HALF)
        if REST_PADDED:
            b_rest_q = unturned(p_q, m_row, DIM, START, PAIRS, REST_PADDED)
        if FACTORS:
            b_factor = tl.load(p_factors + o_position, mask=m_placed, other=1.0)[:, None]
            b_first_q, b_second_q = b_first_q.to(tl.float32) * b_factor, b_second_q.to(tl.float32) * b_factor
            if REST_PADDED:
                b_rest_q = (b_rest_q.to(tl.float32) * b_factor).to(DTYPE)
        if PLACEMENTS == 2:
            b_first_far, b_second_far = turned(
                b_first_q, b_second_q, m_placed, p_cos + s_c_p, p_sin + s_c_p, o_position, PAIRS, DTYPE
            )
        if FADES:  # around the middle of the queries
            newest = tl.max(tl.where(m_placed, o_position, 0), 0)
            middle = (newest - tl.min(tl.where(m_placed, o_position, newest), 0)).to(tl.float32) * 0.5
            b_way = (o_position - newest).to(tl.float32) + middle
            b_first_q, b_second_q = faded(b_first_q, b_second_q, b_way, p_fades, PAIRS)
        b_first_q, b_second_q = turned(b_first_q, b_second_q, m_placed, p_cos, p_sin, o_position, PAIRS, DTYPE)

    # slots behind a window are not visited; the first part sees the first ones too
    begin, start = 0, 0
    if COUNTED:
        # As many slots are padding as positions lag behind. If the first real token comes after so many, they are the
        # first ones, and nobody looks at them.
        lag = last - 1 - tl.load(p_positions + last - 1).to(tl.int32)
        begins = tl.where(tl.load(p_positions + lag) == 0, tl.load(p_real + lag).to(tl.int32), 0)
        begin = begins * lag
        start = begin
    if SKIPS:
        behind = tl.maximum(0, filled - before)
        if COUNTED:
            # Real tokens differ in position. So if the slot where the window begins is real and `before` positions
            # back, all that is seen is behind it, but for the first ones, whose slots are known if padding is first.
            back = tl.load(p_positions + filled, mask=filled < room, other=0) - tl.load(p_positions + behind)
            is_edge = tl.where(back == before, tl.load(p_real + behind).to(tl.int32), 0)
            is_edge = tl.where(first > 0, is_edge * begins, is_edge)
            behind = is_edge * behind
        start = tl.maximum(begin, behind)
    span = tl.cdiv(tl.cdiv(last - start, parts), KEYS) * KEYS
    low = start + i_part * span
    high = tl.minimum(low + span, last)
    if COUNTED:
        # Counted positions never fall, and grow by one at most. So where they grow by one from slot to slot between
        # two real tokens, all are real, and no position and no padding is read any more.
        position = tl.load(p_positions + tl.minimum(low, last - 1)).to(tl.int32)
        grown = tl.load(p_positions + high - 1).to(tl.int32) - position
        real_ends = tl.load(p_real + tl.minimum(low, last - 1)).to(tl.int32) * tl.load(p_real + high - 1).to(tl.int32)
        is_known = high - 1 - low - grown + 1 - real_ends == 0

    b_out = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_best = tl.full([ROWS], -1e30, tl.float32)  # finite, so that rows that see nothing stay numbers
    b_after = tl.zeros([ROWS], tl.float32)  # what is summed over the keys behind those of a tile
    i_heads = i_b * kv_heads + i_kv
    p_sums_end = p_sums + tl.num_programs(2).to(tl.int64) * kv_heads * parts * VALID * VALUE_DIM
    # behind all sums, the largest score of each row and the sum of its weights; behind those, open gates of each part
    p_counts = p_sums_end + (tl.num_programs(2).to(tl.int64) * kv_heads * 2 + i_heads) * parts * VALID + o_row
    if SUMS == "kept":
        b_after = kept_after(p_memory, o_place, m_row, high, last, KEYS)
    if SUMS == "gates" and not COUNTS:
        for i in range(i_part + 1, parts):
            b_after += tl.load(p_counts + i * VALID, mask=m_row, other=0.0)
    stop_first = tl.where(i_part == 0, tl.minimum(begin + first, start), begin) if SKIPS else 0
    tiles_first = tl.cdiv(stop_first - begin, KEYS) if SKIPS else 0
    tiles = tiles_first + tl.maximum(tl.cdiv(high - low, KEYS), 0)
    # Where positions are counted one of two loops runs: the first knows those of its slots, the second reads them.
    for READS in tl.static_range(0 if COUNTED else 1, 2):
        count = tl.where(is_known == (READS == 0), tiles, 0) if COUNTED else tiles
        for i_tile in range(0, count):
            end = high
            if SKIPS:
                is_first = i_tile < tiles_first
                n = tl.where(is_first, begin + i_tile * KEYS, low + (i_tile - tiles_first) * KEYS)
                end = tl.where(is_first, stop_first, high)
            elif SUMS != "none":  # from the last key on
                n = low + (tiles - 1 - i_tile) * KEYS
            else:
                n = low + i_tile * KEYS
            o_key = n + o_n
            m_n = o_key < end
            m_seen = m_n[None, :] & (o_key[None, :] <= o_place[:, None])
            o_there = o_key
            if POSITIONS and READS:
                o_there = tl.load(p_positions + o_key, mask=m_n, other=0)
            if POSITIONS and COUNTED:
                o_there = o_there.to(tl.int32) if READS else position + (o_key - low)
            b_distance = o_position[:, None] - o_there[None, :]
            if PADDED and READS:
                m_seen = m_seen & (tl.load(p_real + o_key, mask=m_n, other=0) != 0)[None, :]
            if WINDOW:
                # first is 0 where there are no sinks, and then no position is one, not a negative one either
                m_sink = (o_there < first) & (o_n * 0 < first)
                m_seen = m_seen & ((b_distance <= before) | m_sink[None, :])
            m_pair = m_seen & m_row[:, None]

            if PLACEMENTS == 0 or KEY_ROWS:
                b_k = tl.load(p_k + n * s_k_l + o_d[None, :], mask=m_n[:, None] & m_d[None, :], other=0.0)
            b_s = tl.zeros([ROWS, KEYS], tl.float32)
            if PLACEMENTS == 0:
                b_s = _add_scores(b_s, b_q, b_k)
            else:
                b_first, b_second = members(p_k + n * s_k_l, m_n, START, PAIRS, PAIRS_PADDED, BLOCKS, READS_HALF)
                if FADES:
                    b_back = (newest - o_there).to(tl.float32) - middle
                    b_first, b_second = faded(b_first, b_second, b_back, p_fades, PAIRS)
                if PLACEMENTS == 1:
                    b_a, b_b = turned(b_first, b_second, m_n, p_cos + s_c_s, p_sin + s_c_s, o_there, PAIRS, DTYPE)
                    b_s = _add_scores(_add_scores(b_s, b_first_q, b_a), b_second_q, b_b)
                else:
                    if tl.min(tl.min(tl.where(m_pair, b_distance, 2147483647), 1), 0) < near:
                        b_a, b_b = turned(b_first, b_second, m_n, p_cos + s_c_s, p_sin + s_c_s, o_there, PAIRS, DTYPE)
                        b_s = _add_scores(_add_scores(b_s, b_first_q, b_a), b_second_q, b_b)
                    if tl.max(tl.max(tl.where(m_pair, b_distance, -1), 1), 0) >= near:
                        p_far_cos, p_far_sin = p_cos + s_c_p + s_c_s, p_sin + s_c_p + s_c_s
                        b_a, b_b = turned(b_first, b_second, m_n, p_far_cos, p_far_sin, o_there, PAIRS, DTYPE)
                        b_far = _add_scores(tl.zeros([ROWS, KEYS], tl.float32), b_first_far, b_a)
                        b_s = tl.where(b_distance < near, b_s, _add_scores(b_far, b_second_far, b_b))
                if REST_PADDED:
                    b_rest = unturned(p_k + n * s_k_l, m_n, DIM, START, PAIRS, REST_PADDED)
                    b_s = _add_scores(b_s, b_rest_q, b_rest)
            b_s = b_s * scale

            if BIAS == "distance":
                b_bias = tl.load(p_bias + b_distance, mask=m_pair, other=0.0)
            elif BIAS == "slot":
                b_bias = tl.load(p_bias + o_key[None, :], mask=m_pair, other=0.0)
            elif BIAS == "lines":
                b_bias = broken_line(b_distance, o_position, p_bias, m_row & m_kept, m_pair, LINES, STEPS)
            if SUMS == "gates":
                m_gate = m_pair if BIAS == "none" else m_pair & (b_bias > float("-inf"))
                b_gates = tl.where(m_gate, 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * b_s)), 0.0)
                b_count = b_after[:, None] + tl.cumsum(b_gates, 1, reverse=True)
                b_after += tl.sum(b_gates, 1)
                b_s += between_rows(b_count, p_rows, m_pair, most_rows)
            if SUMS == "kept":
                m_next = m_row[:, None] & m_n[None, :] & (o_key[None, :] < o_place[:, None])
                b_next = tl.load(p_memory + o_key[None, :] + 1, mask=m_next, other=0.0).to(tl.float32)
                b_s += b_after[:, None] + tl.cumsum(b_next, 1, reverse=True)
                b_after += tl.sum(b_next, 1)
            if BY_DISTANCE:
                o_at = tl.minimum(tl.maximum(b_distance, 0), most_rows)
                b_s += tl.load(p_rows + o_at, mask=m_pair, other=0.0)
            if KEY_ROWS:
                b_s += key_products(
                    b_k, o_there, p_key_rows, i_kv, s_y_h, filled, room, p_positions, most_key_rows, m_n,
                    ROWS, GROUP, QUERIES, DIM, DIM_PADDED, POSITIONS,
                )  # fmt: skip
            if BIAS != "none":
                b_s += b_bias
            if not COUNTS:
                if SOFTCAP:  # tanh x = 1 - 2 / (e^2x + 1); what a bias of minus infinity hides stays hidden
                    b_capped = softcap * (1.0 - 2.0 / (tl.exp2(b_s * (2.0 * 1.4426950408889634 / softcap)) + 1.0))
                    b_s = tl.where(b_s == float("-inf"), b_s, b_capped)
                b_s = tl.where(m_seen, b_s * 1.4426950408889634, float("-inf"))
                b_more = tl.maximum(b_best, tl.max(b_s, 1))
                b_p = tl.exp2(b_s - b_more[:, None])
                b_shrink = tl.exp2(b_best - b_more)
                b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
                b_best = b_more
                b_v = tl.load(p_v + n * s_v_l, mask=m_n[:, None] & m_e[None, :], other=0.0)
                b_out = _add_product(b_out * b_shrink[:, None], b_p, b_v)
                if VALUE_ROWS:
                    for i in tl.static_range(0, QUERIES):
                        from_query = tl.max(tl.where(m_row & m_kept & (o_query == i), o_position, 0), 0) - o_there
                        o_at = tl.minimum(tl.maximum(from_query, 0), most_value_rows)
                        p_value = p_value_rows + o_at[:, None] * VALUE_DIM + o_e[None, :]
                        b_value = tl.load(p_value, mask=m_n[:, None] & m_e[None, :], other=0.0)
                        b_own = b_p if QUERIES == 1 else tl.where((o_query == i)[:, None], b_p, 0.0)
                        b_out = _add_product(b_out, b_own, b_value)

    p_out += (i_heads * VALID + o_row[:, None]) * VALUE_DIM + o_e[None, :]
    m_out = m_row[:, None] & m_e[None, :]
    if COUNTS:
        tl.store(p_counts + i_part * VALID, b_after, mask=m_row)
    elif not SPLIT:
        b_sum = tl.where(m_kept, tl.where(b_sum > 0, b_sum, 1.0), float("nan"))
        tl.store(p_out, (b_out / b_sum[:, None]).to(p_out.dtype.element_ty), mask=m_out)
    else:
        p_sums += i_heads * parts * VALID * VALUE_DIM + o_row[:, None] * VALUE_DIM + o_e[None, :]
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
    ``counting`` goes before it where parts need to know how many gates are open behind them.
    """

    launch: Launch
    counting: Launch | None
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
        keys, values, slots, *read = kept
        pointers = q, keys, values, out, slots, *[slots if x is None else x for x in read], numbers, counters
        if self.counting is not None:
            self.counting(*pointers)
        self.launch(*pointers)


def ready(q: Tensor, kept: Kept, rules: Rules) -> Decode:
    """The launch for tensors of these shapes and strides."""
    batch, heads, queries, dim = q.shape
    _, kv_heads, capacity, value_dim = kept.values.shape
    strides = (*q.stride()[:3], *kept.keys.stride()[:3], *kept.values.stride()[:3])
    unit = 8 if all(stride % 8 == 0 for stride in strides) else 1
    group = heads // kv_heads
    rows, padded, value_padded = (max(16, power_of_2(n)) for n in (group * queries, dim, value_dim))
    memory, further = shared_memory(q.device), _further(kept, padded, value_padded)
    tile = tile_of(rows, padded, value_padded, q.dtype, memory, further)
    waits = further or rules.lines or rules.sums != "none" or kept.rows is not None
    programs = WAITING_PROGRAMS if waits else PROGRAMS
    parts = parts_of(batch * kv_heads, capacity, programs * multiprocessors(q.device))
    bias, positions, real = kept.bias, kept.positions, kept.real
    kind = "none" if bias is None else "lines" if rules.lines else "slot" if bias.ndim == 4 else "distance"
    by_place = rules.by_place and positions is not None
    counted = rules.counted and positions is not None and real is not None
    bias_strides = (0, 0, 0) if bias is None else bias.stride()[:3] if kind == "slot" else (0, bias.stride(0), 0)
    sized = kept.rows, kept.key_rows, kept.value_rows
    numbers = [stride // unit for stride in strides]
    numbers += [*bias_strides, *(0 if x is None else x.stride(0) for x in (positions, real))]
    numbers += [*_strides(kept.cos, 2), *_strides(kept.rows, 3), *_strides(kept.key_rows, 1), *_strides(kept.memory, 2)]
    numbers += [0 if kept.factors is None or kept.factors.shape[0] == 1 else kept.factors.stride(0)]
    numbers += [kv_heads, parts, capacity, rules.scale, rules.softcap or 1.0, *(rules.window or (0, 0)), rules.near]
    numbers += [0 if x is None else x.shape[-1 if x is kept.rows else -2] - 1 for x in sized]

    windowed = rules.window is not None

    def launch(*, counts: bool) -> Launch:
        constants = (
            unit, group, queries, rows, dim, padded, value_dim, value_padded, tile.keys, parts > 1, counts,
            kind, rules.lines, rules.lines.bit_length(), by_place,
            counted, real is not None, windowed, windowed and rules.sums == "none" and (counted or not by_place),
            rules.softcap is not None, rules.sums, kept.rows is not None and rules.sums != "gates",
            kept.key_rows is not None, kept.value_rows is not None, 0 if kept.cos is None else kept.cos.shape[0],
            kept.fades is not None, *_turn(kept, rules, dim), kept.factors is not None,
        )  # fmt: skip
        grid = parts, kv_heads, batch
        return Launch(_decode_kernel, grid, numbers, constants, warps=tile.warps, stages=tile.stages)

    before = launch(counts=True) if rules.sums == "gates" and parts > 1 else None
    needed = batch * heads * queries * parts * (value_dim + 3) if parts > 1 else 1
    return Decode(launch(counts=False), before, needed, batch * kv_heads)


def _strides(x: Tensor | None, count: int) -> tuple[int, ...]:
    return (0,) * count if x is None else x.stride()[:count]


def _turn(kept: Kept, rules: Rules, dim: int) -> tuple[int, int, int, int, int, bool]:
    """Where pairs begin, how many there are, padded; dimensions that are not turned, padded; blocks; how pairs lie."""
    if rules.rotation is None or kept.cos is None:
        return 0, 1, 16, 0, 1, True
    pairs = kept.cos.shape[-1]
    rest = dim - 2 * pairs
    padded = [max(16, power_of_2(count)) for count in (pairs, rest)]
    return (
        rules.rotation.start,
        pairs,
        padded[0],
        rest and padded[1],
        rules.rotation.blocks,
        rules.rotation.reads == "half",
    )


def tile_of(rows: int, dim: int, value_dim: int, dtype: torch.dtype, memory: int, further: int = 0) -> Tile:
    """The tile for heads of these padded sizes within so many bytes of shared memory: fewer stages, then fewer keys.

    ``further`` bytes are read for each key beside itself and its value: then half as many keys fill the registers.
    Measured on an H200 with heads of 128 in bfloat16.
    """
    tile = Tile(32, 4, 2) if dtype == torch.float32 else Tile(64, 4, 3)
    if further:
        tile = Tile(tile.keys // 2, 4, 2)
    held = rows * (dim + value_dim) * dtype.itemsize
    while tile.keys > 16 or tile.stages > 1:
        if held + tile.stages * tile.keys * ((dim + value_dim) * dtype.itemsize + further) <= memory:
            break
        tile = tile._replace(stages=tile.stages - 1) if tile.stages > 1 else tile._replace(keys=tile.keys // 2)
    return tile


def too_large(rows: int, dim: int, value_dim: int, dtype: torch.dtype, memory: int) -> bool:
    """Whether so many rows of queries leave too little of so many bytes of shared memory for the fewest keys."""
    wide = max(16, power_of_2(dim), power_of_2(value_dim))
    return (max(16, power_of_2(rows)) + 32) * wide * dtype.itemsize > memory


def _further(kept: Kept, dim: int, value_dim: int) -> int:
    """Bytes that are read for each key beside itself and its value, in rows of the head's size."""
    turns = 0 if kept.cos is None else dim * 4  # cos and sin of its pairs
    key_rows = 0 if kept.key_rows is None else dim * 4
    value_rows = 0 if kept.value_rows is None else value_dim * kept.values.element_size()
    return turns + key_rows + value_rows


def parts_of(heads: int, capacity: int, programs: int) -> int:
    """Into how many parts the keys of each head are cut, so that there are so many programs."""
    wanted = -(-programs // max(heads, 1))
    return max(1, min(wanted, -(-capacity // FEWEST_KEYS), MOST_PARTS))
