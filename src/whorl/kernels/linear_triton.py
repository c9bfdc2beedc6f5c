"""Causal linear attention in Triton: tiles, sizes and functions that the kernels of both passes share.

    out_i = sum_(j <= i) (a_i . b_j) v_j / (sum_(j <= i) p_i . r_j + eps)      a = R p, b = R r, p = f(q), r = f(k)

A program walks through a segment of the length, some rows at a time: rows see each other by a small masked product,
and all rows before through a state of dim x value dim numbers, which it keeps in registers. The states that segments
begin with come from a pass over keys and values and a running sum over segments; everything else is computed again
wherever it is needed, because reading q, k and v once more costs less than any intermediate of their size.

Products do not change when the dimensions of queries and keys are permuted alike, so a head is two halves here: the
first and the second dimension of every pair that turns. Dimensions that do not turn are paired up behind them with
cos 1 and sin 0. A layout is nothing but where the two halves lie in memory.

Sizes of a record, one for each segment: first half of the state (value dim, pairs), second half, and the sums of plain
keys that denominators need, (pairs,) twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from whorl.kernels.triton_launch import power_of_2
from whorl.kernels.triton_side_by_side import Start

# The interpreter multiplies matrices of bfloat16 by their bits: there the operands stay float32.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)

# Segments are a multiple of the most rows that a kernel takes at a time.
MOST_ROWS = 128


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work: rows at a time, warps of a program, and how many loads ahead."""

    rows: int
    warps: int
    stages: int


# By kernel, whether a head has more than 64 dimensions, and whether products are in float32. The fastest on an H200
# among those that stay within shared memory: in bfloat16, Triton 3.6 compiles grad_keys with 4 warps and one stage, and
# outputs of wide heads with 8 warps, to code that reads beyond it (compute-sanitizer's memcheck says where).
TILES: dict[tuple[str, bool, bool], Tile] = {
    ("states", False, False): Tile(128, 4, 2),
    ("states", True, False): Tile(64, 4, 2),
    ("states", False, True): Tile(64, 4, 1),
    ("states", True, True): Tile(32, 8, 1),
    ("outputs", False, False): Tile(64, 4, 2),
    ("outputs", True, False): Tile(64, 4, 2),
    ("outputs", False, True): Tile(16, 4, 1),
    ("outputs", True, True): Tile(16, 8, 1),
    ("grad_states", False, False): Tile(64, 4, 1),
    ("grad_states", True, False): Tile(64, 8, 1),
    ("grad_states", False, True): Tile(32, 4, 1),
    ("grad_states", True, True): Tile(32, 8, 1),
    ("grad_queries", False, False): Tile(64, 4, 2),
    ("grad_queries", True, False): Tile(64, 8, 2),
    ("grad_queries", False, True): Tile(16, 4, 2),
    ("grad_queries", True, True): Tile(16, 8, 2),
    ("grad_values", True, False): Tile(64, 8, 2),
    ("grad_values", False, True): Tile(32, 4, 1),
    ("grad_values", True, True): Tile(16, 4, 1),
    ("grad_keys", False, False): Tile(64, 4, 2),  # and values
    ("grad_keys", True, False): Tile(64, 8, 2),
    ("grad_keys", False, True): Tile(16, 4, 2),
    ("grad_keys", True, True): Tile(16, 8, 2),
}


@dataclass(frozen=True)
class Split:
    """How a length is cut into segments: about ``programs`` over all heads, none shorter than ``shortest``."""

    programs: int
    shortest: int  # in units of MOST_ROWS


SPLIT = Split(programs=528, shortest=2)


class TurningPairs(NamedTuple):
    """The pairs of a head that turn: where they lie, and their tables (1 or batch, length, pairs), or None."""

    cos: Tensor | None
    sin: Tensor | None
    interleaved: bool
    start: int
    blocks: int


class Shape(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    key_heads: int
    length: int
    dim: int
    value_dim: int

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor) -> Shape:
        return Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], int(q.shape[3]), int(v.shape[3]))

    @property
    def segment(self) -> int:
        """Rows of a segment; plain arithmetic, so that a symbolic length stays symbolic."""
        units = -(-self.length // MOST_ROWS)
        share = -(-units * self.batch * self.heads // SPLIT.programs)
        return MOST_ROWS * max(share, SPLIT.shortest)

    @property
    def segments(self) -> int:
        return -(-self.length // self.segment)

    @property
    def slots(self) -> int:
        """The number of states that are kept: one for each segment but the one that begins with nothing."""
        return max(self.segments - 1, 0)

    @property
    def wide(self) -> bool:
        """Whether a head has more than 64 dimensions."""
        return max(self.dim, self.value_dim) > 64

    @property
    def half(self) -> int:
        """Pairs of a head, padded to what a matrix product takes."""
        return max(16, power_of_2(-(-self.dim // 2)))

    @property
    def block_v(self) -> int:
        return max(16, power_of_2(self.value_dim))

    @property
    def record(self) -> int:
        """Numbers of a segment's state."""
        return 2 * self.half * (self.block_v + 1)


def has_tile(kernel: str, shape: Shape, dtype: torch.dtype) -> bool:
    """Whether a kernel has a tile for these sizes."""
    return (kernel, shape.wide, dtype != torch.bfloat16) in TILES


def tile_of(kernel: str, shape: Shape, dtype: torch.dtype) -> Tile:
    """The tile of a kernel for these sizes."""
    return TILES[kernel, shape.wide, dtype != torch.bfloat16]


def settings(kernel: str, shape: Shape, dtype: torch.dtype, turning: TurningPairs, feature: str) -> dict[str, Any]:
    """The constants a kernel is compiled for. Float16 goes with float32: it has no room for sums over a length."""
    tile, wide = tile_of(kernel, shape, dtype), dtype != torch.bfloat16
    pairs = 0 if turning.cos is None else turning.cos.shape[-1]
    neighbours = turning.interleaved and shape.dim == 2 * pairs == 2 * shape.half
    return {
        "HEAD": (shape.dim, shape.half, pairs, turning.start, turning.blocks, turning.interleaved, neighbours),
        "VALUE_DIM": shape.value_dim,
        "BLOCK_V": shape.block_v,
        "FEATURE": feature,
        "ROWS": tile.rows,
        "DOT": tl.float32 if wide else tl.bfloat16,
        "PRECISION": "tf32x3" if wide else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def table_arguments(turning: TurningPairs) -> tuple[Any, ...]:
    """The tables, and their strides of batch and length."""
    if turning.cos is None or turning.sin is None:
        return None, None, (0, 0)
    cos, sin = (t.contiguous() for t in (turning.cos, turning.sin))
    return cos, sin, (0 if len(cos) == 1 else cos.stride(0), cos.stride(1))


def mask_arguments(key_mask: Tensor | None) -> tuple[Any, ...]:
    """The mask as bytes, and its strides."""
    return (None, (0, 0)) if key_mask is None else (key_mask.view(torch.uint8), key_mask.stride())


def compiled(*free: str) -> Any:
    """Triton's compiler for a kernel; no value of a number named here compiles anew, as strides do when they align."""
    return triton.jit(do_not_specialize=free)


@triton.jit
def place_of(heads_in_all):
    """The head, counted over the whole batch, and the segment of its length that a program takes.

    Heads run fastest: those of one batch row read the same tables, from cache.
    """
    return (tl.program_id(0) % heads_in_all).to(tl.int64), (tl.program_id(0) // heads_in_all).to(tl.int64)


@triton.jit
def steps_of(i_segment, segment, length, ROWS: tl.constexpr):
    """In how many steps a program walks through its segment."""
    return tl.cdiv(tl.minimum(segment, length - i_segment * segment), ROWS).to(tl.int32)


@triton.jit
def exp(b_x):
    """exp by exp2, which flushes results below 1e-38 to 0; ``tl.exp`` scales them, at three more instructions each."""
    return tl.exp2(b_x * 1.4426950408889634)


@triton.jit
def feature_of(b_x, FEATURE: tl.constexpr):
    """The feature map in float32; comparisons are so that NaN stays NaN."""
    b_x = b_x.to(tl.float32)
    if FEATURE == "elu+1":
        return tl.where(b_x > 0, b_x + 1, exp(b_x))
    elif FEATURE == "relu":
        return tl.where(b_x <= 0, 0.0, b_x)
    elif FEATURE == "squared_relu":
        return tl.where(b_x <= 0, 0.0, b_x * b_x)
    else:
        return b_x


@triton.jit
def slope_of(b_x, FEATURE: tl.constexpr):
    """The derivative of the feature map."""
    b_x = b_x.to(tl.float32)
    if FEATURE == "elu+1":
        return tl.where(b_x > 0, 1.0, exp(b_x))
    elif FEATURE == "relu":
        return tl.where(b_x > 0, 1.0, 0.0)
    elif FEATURE == "squared_relu":
        return tl.where(b_x > 0, 2 * b_x, 0.0)
    else:
        return tl.full(b_x.shape, 1.0, tl.float32)


@triton.jit
def product(b_x, b_y, b_sum, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """b_sum + b_x @ b_y, added up in float32."""
    if INTERPRETED:
        return tl.dot(b_x.to(tl.float32), b_y.to(tl.float32), b_sum)
    else:
        return tl.dot(b_x.to(DOT), b_y.to(DOT), b_sum, input_precision=PRECISION)


@triton.jit
def in_columns(b_sum, DOT: tl.constexpr):
    """Numbers split over two of 16 columns for a matrix product: the rounded number, and what rounding took away.

    Sums over a long text are all but equal, and rounding them once would scale every output alike.
    """
    o_column = tl.arange(0, 16)[None, :]
    b_high = b_sum.to(DOT).to(tl.float32)
    b_low = tl.where(o_column == 1, (b_sum - b_high)[:, None], 0.0)
    return tl.where(o_column == 0, b_high[:, None], b_low)


@triton.jit
def pair_dims(HEAD: tl.constexpr):
    """The dimensions of both halves, and masks of those that exist."""
    DIM: tl.constexpr = HEAD[0]
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    START: tl.constexpr = HEAD[3]
    BLOCKS: tl.constexpr = HEAD[4]
    INTERLEAVED: tl.constexpr = HEAD[5]
    REST: tl.constexpr = DIM - 2 * PAIRS
    LEFT: tl.constexpr = (REST + 1) // 2
    o_pair = tl.arange(0, HALF)
    if PAIRS == 0:
        o_first, o_second = o_pair, o_pair + LEFT
        m_first, m_second = o_pair < LEFT, o_pair + LEFT < REST
    else:
        WIDTH: tl.constexpr = PAIRS // BLOCKS
        if INTERLEAVED:
            o_first, o_second = START + 2 * o_pair, START + 1 + 2 * o_pair
        elif BLOCKS == 1:
            o_first, o_second = START + o_pair, START + WIDTH + o_pair
        else:
            o_first = START + (o_pair // WIDTH) * (2 * WIDTH) + o_pair % WIDTH
            o_second = o_first + WIDTH
        m_first, m_second = o_pair < PAIRS, o_pair < PAIRS
        if REST > 0:
            o_rest, o_other = o_pair - PAIRS, o_pair - PAIRS + LEFT
            o_first = tl.where(m_first, o_first, tl.where(o_rest < START, o_rest, o_rest + 2 * PAIRS))
            o_second = tl.where(m_second, o_second, tl.where(o_other < START, o_other, o_other + 2 * PAIRS))
            m_first, m_second = o_rest < LEFT, o_other < REST
    return o_first.to(tl.int64), o_second.to(tl.int64), m_first, m_second


@triton.jit
def masks_of_pairs(m_row, m_first, m_second, HEAD: tl.constexpr):
    """Masks of the entries of both halves that exist: a mask of rows alone unless dimensions are padded."""
    m_1, m_2 = m_row[:, None], m_row[:, None]
    if HEAD[0] < 2 * HEAD[1]:
        m_1, m_2 = m_1 & m_first[None, :], m_2 & m_second[None, :]
    return m_1, m_2


@triton.jit
def load_pairs(p_x, o_row, m_row, stride_x, HEAD: tl.constexpr):
    """Both halves of rows, as they are; 0 where there is nothing."""
    HALF: tl.constexpr = HEAD[1]
    if HEAD[6]:  # neighbours in memory: one load, taken apart in registers
        o_dim = tl.arange(0, 2 * HALF).to(tl.int64)
        p_row = p_x + o_row[:, None] * stride_x[2] + o_dim[None, :] * stride_x[3]
        b_x = tl.load(p_row, mask=m_row[:, None], other=0.0)
        b_first, b_second = tl.split(tl.reshape(b_x, (b_x.shape[0], HALF, 2)))
    else:
        o_first, o_second, m_first, m_second = pair_dims(HEAD)
        m_first, m_second = masks_of_pairs(m_row, m_first, m_second, HEAD)
        p_row = p_x + o_row[:, None] * stride_x[2]
        b_first = tl.load(p_row + o_first[None, :] * stride_x[3], mask=m_first, other=0.0)
        b_second = tl.load(p_row + o_second[None, :] * stride_x[3], mask=m_second, other=0.0)
    return b_first, b_second


@triton.jit
def store_pairs(p_x, b_first, b_second, o_row, m_row, HEAD: tl.constexpr):
    """Writes both halves into contiguous rows."""
    DIM: tl.constexpr = HEAD[0]
    HALF: tl.constexpr = HEAD[1]
    b_first, b_second = b_first.to(p_x.dtype.element_ty), b_second.to(p_x.dtype.element_ty)
    if HEAD[6]:
        o_dim = tl.arange(0, 2 * HALF)
        b_x = tl.reshape(tl.join(b_first, b_second), (b_first.shape[0], 2 * HALF))
        tl.store(p_x + o_row[:, None] * DIM + o_dim[None, :], b_x, mask=m_row[:, None])
    else:
        o_first, o_second, m_first, m_second = pair_dims(HEAD)
        m_first, m_second = masks_of_pairs(m_row, m_first, m_second, HEAD)
        p_row = p_x + o_row[:, None] * DIM
        tl.store(p_row + o_first[None, :], b_first, mask=m_first)
        tl.store(p_row + o_second[None, :], b_second, mask=m_second)


@triton.jit
def query_features(b_x1, b_x2, FEATURE: tl.constexpr):
    """Features of both halves of queries."""
    return feature_of(b_x1, FEATURE), feature_of(b_x2, FEATURE)


@triton.jit
def key_features(b_x1, b_x2, m_key, HAS_MASK: tl.constexpr, HEAD: tl.constexpr, FEATURE: tl.constexpr):
    """Features of both halves of keys, 0 for hidden keys and padded dimensions: the feature of a 0 may be 1.

    Rows beyond the last need none of this. Nothing that is kept comes after them.
    """
    b_f1, b_f2 = feature_of(b_x1, FEATURE), feature_of(b_x2, FEATURE)
    if HEAD[0] < 2 * HEAD[1]:
        _, _, m_first, m_second = pair_dims(HEAD)
        b_f1, b_f2 = tl.where(m_first[None, :], b_f1, 0.0), tl.where(m_second[None, :], b_f2, 0.0)
    if HAS_MASK:
        b_f1, b_f2 = tl.where(m_key[:, None], b_f1, 0.0), tl.where(m_key[:, None], b_f2, 0.0)
    return b_f1, b_f2


@triton.jit
def turned(b_x1, b_x2, b_cos, b_sin, PAIRS: tl.constexpr):
    """Both halves rotated."""
    if PAIRS > 0:
        return b_x1 * b_cos - b_x2 * b_sin, b_x2 * b_cos + b_x1 * b_sin
    else:
        return b_x1, b_x2


@triton.jit
def turned_back(b_x1, b_x2, b_cos, b_sin, PAIRS: tl.constexpr):
    """Gradients of both halves from those of the rotated ones."""
    if PAIRS > 0:
        return b_x1 * b_cos + b_x2 * b_sin, b_x2 * b_cos - b_x1 * b_sin
    else:
        return b_x1, b_x2


@triton.jit
def load_tables(p_cos, p_sin, i_b, o_row, m_row, stride_t, HEAD: tl.constexpr):
    """cos and sin of rows, 1 and 0 for dimensions that do not turn; numbers that nobody uses where none turns."""
    HALF: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    if PAIRS == 0:
        return 1.0, 0.0
    else:
        o_pair = tl.arange(0, HALF)
        o_table = i_b * stride_t[0] + o_row[:, None] * stride_t[1] + o_pair[None, :]
        if PAIRS == HALF:
            b_cos = tl.load(p_cos + o_table, mask=m_row[:, None], other=0.0)
            return b_cos, tl.load(p_sin + o_table, mask=m_row[:, None], other=0.0)
        else:
            m_table = m_row[:, None] & (o_pair < PAIRS)[None, :]
            b_cos = tl.load(p_cos + o_table, mask=m_table, other=1.0)
            return b_cos, tl.load(p_sin + o_table, mask=m_table, other=0.0)


@triton.jit
def load_values(p_v, o_row, m_row, stride_v, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    """Rows of v, or of a tensor with its dimensions, as they are; 0 where there is nothing."""
    o_v = tl.arange(0, BLOCK_V).to(tl.int64)
    p_row = p_v + o_row[:, None] * stride_v[2] + o_v[None, :] * stride_v[3]
    return tl.load(p_row, mask=mask_of_values(m_row, VALUE_DIM, BLOCK_V), other=0.0)


@triton.jit
def store_values(p_v, b_v, o_row, m_row, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    """Writes rows with the dimensions of v into contiguous memory."""
    p_row = p_v + o_row[:, None] * VALUE_DIM + tl.arange(0, BLOCK_V)[None, :]
    tl.store(p_row, b_v.to(p_v.dtype.element_ty), mask=mask_of_values(m_row, VALUE_DIM, BLOCK_V))


@triton.jit
def mask_of_values(m_row, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    """The mask of the entries of such rows that exist."""
    m_value = m_row[:, None]
    if VALUE_DIM < BLOCK_V:
        m_value = m_value & (tl.arange(0, BLOCK_V) < VALUE_DIM)[None, :]
    return m_value


@triton.jit
def mask_of_keys(p_mask, i_b, o_row, m_row, stride_m, HAS_MASK: tl.constexpr):
    """The mask of rows that are keys which may be seen."""
    if HAS_MASK:
        return m_row & (tl.load(p_mask + i_b * stride_m[0] + o_row * stride_m[1], mask=m_row, other=0) != 0)
    else:
        return m_row


@triton.jit
def bottom_of(b_bottom, p_begin, i_b, o_row, m_row, HAS_MASK: tl.constexpr):
    """Denominators of queries; infinite before the first key that is seen: output and every gradient are 0."""
    if HAS_MASK:
        m_row = m_row & (o_row >= tl.load(p_begin + i_b))
    return tl.where(m_row, b_bottom, float("inf"))


@triton.jit
def load_record(p_record, i_any, HALF: tl.constexpr, BLOCK_V: tl.constexpr):
    """A segment's state: two halves of (value dim, pairs), two sums (pairs,); 0 where i_any is 0."""
    o_sum = tl.arange(0, HALF)
    o_state = tl.arange(0, BLOCK_V)[:, None] * HALF + o_sum[None, :]
    m_sum, m_state = o_sum < i_any * HALF, o_state < i_any * (BLOCK_V * HALF)
    b_first = tl.load(p_record + o_state, mask=m_state, other=0.0)
    b_second = tl.load(p_record + BLOCK_V * HALF + o_state, mask=m_state, other=0.0)
    p_sums = p_record + 2 * BLOCK_V * HALF + o_sum
    return b_first, b_second, tl.load(p_sums, mask=m_sum, other=0.0), tl.load(p_sums + HALF, mask=m_sum, other=0.0)


@triton.jit
def store_record(p_record, b_first, b_second, b_sum_1, b_sum_2, HALF: tl.constexpr, BLOCK_V: tl.constexpr):
    """Writes a segment's state."""
    o_state = tl.arange(0, BLOCK_V)[:, None] * HALF + tl.arange(0, HALF)[None, :]
    p_sums = p_record + 2 * BLOCK_V * HALF + tl.arange(0, HALF)
    tl.store(p_record + o_state, b_first)
    tl.store(p_record + BLOCK_V * HALF + o_state, b_second)
    tl.store(p_sums, b_sum_1)
    tl.store(p_sums + HALF, b_sum_2)


@compiled("slots")
def _running_sums(
    p_states, slots, RECORD: tl.constexpr, REVERSE: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr
):
    BLOCKS: tl.constexpr = (RECORD + BLOCK - 1) // BLOCK
    i_head = (tl.program_id(0) // BLOCKS).to(tl.int64)
    o_number = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    p_numbers = p_states + i_head * slots * RECORD + o_number
    b_before = tl.zeros([BLOCK], tl.float32)
    for i_slot in range(0, slots, SLOTS):
        o_step = i_slot + tl.arange(0, SLOTS)
        o_slot = (slots - 1 - o_step if REVERSE else o_step).to(tl.int64)
        p_slots = p_numbers[None, :] + o_slot[:, None] * RECORD
        m_slots = (o_step < slots)[:, None] & (o_number < RECORD)[None, :]
        b_added = tl.load(p_slots, mask=m_slots, other=0.0)
        tl.store(p_slots, tl.cumsum(b_added, 0) + b_before[None, :], mask=m_slots)
        b_before += tl.sum(b_added, 0)


def running_sums(states: Tensor, *, reverse: bool) -> Start:
    """The kernel that makes running sums over segments, in place, along the second axis of (heads, slots, record).

    No sum is taken apart again: a suffix found by subtracting could be far smaller than what it is left of.
    """
    heads, slots, record = states.shape
    # records of states are long and few; sums of keys, one number for each dimension, are short and many
    at_once, block = (32, 128) if record > 256 else (256, 16)
    programs = heads * triton.cdiv(record, block)
    return Start(
        _running_sums, programs, states, slots, RECORD=record, REVERSE=reverse, SLOTS=at_once, BLOCK=block, num_warps=4
    )
