"""Causal attention with ALiBi on a GPU: the bias inside the kernel, and keys that cannot weigh anything skipped.

    score of a query at i and a key at j:   scale q_i . k_j + m (j - i)         m > 0, j <= i
A score is at most scale |q_i| K + m (j - i), K being the longest key. The kernel looks at the keys around the query
first, so it knows a score c that counts, and the keys with
    j < i - (scale |q_i| K - c + MARGIN + ln(min(keys, 1 + 1 / m))) / m
have weights that add up to less than exp(-MARGIN) of the rest: they fall by exp(m) from key to key, so their sum is at
most 1 + 1 / m times the first. What is left out is below the rounding of float32, whatever the data; where keys are so
long that nothing can be left out, all keys are visited.

Steep heads see few keys and the others many, so the programs with most work are started first: gentle slopes before
steep ones, the last queries before the first.
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from whorl.kernels.launches import prepared
from whorl.kernels.triton_launch import Launch, kernel, power_of_2, shared_memory

# The interpreter multiplies matrices of bfloat16 by their bits: there the operands are float32.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)

# Keys are skipped once the sum of all their weights is below exp(-MARGIN) = 4e-11.
MARGIN = 24.0

# Where scores exceed the largest near the query by less, in powers of two, weights stay within the dtype against that.
STEADY_BELOW = {torch.float32: 64.0, torch.bfloat16: 64.0, torch.float16: 15.0}

# Keys whose norms one program looks at.
CHUNK = 512


@dataclass(frozen=True)
class Tile:
    """How the work is cut: queries of a program, keys at a time, warps, and how many loads ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


# By whether a head has more than 64 dimensions, and whether products are in float32.
TILES: dict[tuple[bool, bool], Tile] = {
    (False, False): Tile(128, 64, 4, 3),
    (True, False): Tile(128, 64, 8, 3),
    (False, True): Tile(64, 32, 4, 2),
    (True, True): Tile(64, 32, 4, 2),
}

# For few queries, as in decoding.
SHORT_TILE = Tile(16, 64, 4, 3)


@kernel(pointers=2)
def _norms_kernel(
    p_k, p_norms, s_b, s_h, s_l, heads, keys, chunks,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The longest key of each chunk, squared; infinity where one is not a number."""
    s_b, s_h, s_l = s_b.to(tl.int64) * UNIT, s_h.to(tl.int64) * UNIT, s_l.to(tl.int64) * UNIT
    i = tl.program_id(0)
    i_chunk = i % chunks
    i_h = ((i // chunks) % heads).to(tl.int64)
    i_b = (i // (chunks * heads)).to(tl.int64)
    o_d = tl.arange(0, PADDED)[None, :]
    p_rows = p_k + i_b * s_b + i_h * s_h + o_d
    b_longest = tl.zeros([ROWS], tl.float32)
    for start in range(0, CHUNK, ROWS):
        o_l = i_chunk * CHUNK + start + tl.arange(0, ROWS)[:, None]
        b_k = tl.load(p_rows + o_l * s_l, mask=(o_l < keys) & (o_d < DIM), other=0.0).to(tl.float32)
        b_square = tl.sum(b_k * b_k, 1)
        b_longest = tl.maximum(b_longest, tl.where(b_square < float("inf"), b_square, float("inf")))
    tl.store(p_norms + i, tl.max(b_longest, 0))


@triton.jit
def longest_of(p_norms, chunks):
    """The length of the longest of all keys, from the squares of chunks."""
    b_square = tl.zeros([64], tl.float32)
    for start in range(0, chunks, 64):
        o_chunk = start + tl.arange(0, 64)
        b_square = tl.maximum(b_square, tl.load(p_norms + o_chunk, mask=o_chunk < chunks, other=0.0))
    return tl.sqrt(tl.max(b_square, 0))


@triton.jit
def first_key(b_bound, b_best, b_origin, slope, m_row, keys, MARGIN: tl.constexpr):
    """The first key that any row needs: the one before it weighs less than MARGIN allows in all of them.

    ``b_bound`` is the largest product of a query with any key and ``b_best`` the largest score so far, whose bias
    counts from ``b_origin``; both, and the slope, are in powers of two.
    """
    slope = tl.maximum(slope, 1e-30)  # a slope of 0 needs every key
    few = 1.0 + 1.4426950408889634 / slope
    margin = MARGIN * 1.4426950408889634 + tl.log2(tl.minimum(few, keys.to(tl.float32)))
    b_first = b_origin.to(tl.float32) - (b_bound - b_best + margin) / slope
    b_first = tl.where(b_first > 0, b_first, 0.0)  # also where it is not a number
    b_first = tl.where(m_row, b_first, 2147483520.0)
    return tl.min(b_first, 0).to(tl.int32)


@triton.jit
def take_keys(
    b_q, p_k, p_v, m_k, m_v, b_bias, m_seen, b_out, b_sum, b_best, scale,
    LOADS_MASKED: tl.constexpr, SEES_ALL: tl.constexpr, STEADY: tl.constexpr,
):  # fmt: skip
    """One block of keys joined to what a block of queries has gathered: output, sum of weights, largest score."""
    PRECISION: tl.constexpr = "tf32x3" if b_q.dtype == tl.float32 else "tf32"
    b_k = tl.load(p_k, mask=m_k, other=0.0) if LOADS_MASKED else tl.load(p_k)
    if INTERPRETED:
        b_s = tl.dot(b_q.to(tl.float32), b_k.to(tl.float32))
    else:
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION)
    b_s = b_s * scale + b_bias
    if not SEES_ALL:
        b_s = tl.where(m_seen, b_s, float("-inf"))
    if STEADY:
        b_p = tl.exp2(b_s - b_best[:, None])
        b_sum += tl.sum(b_p, 1)
    else:
        b_more = tl.maximum(b_best, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - b_more[:, None])
        b_shrink = tl.exp2(b_best - b_more)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_out = b_out * b_shrink[:, None]
        b_best = b_more
    b_v = tl.load(p_v, mask=m_v, other=0.0) if LOADS_MASKED else tl.load(p_v)
    b_p = b_p.to(b_v.dtype)
    if INTERPRETED:
        b_out = tl.dot(b_p.to(tl.float32), b_v.to(tl.float32), b_out)
    else:
        b_out = tl.dot(b_p, b_v, b_out, input_precision=PRECISION)
    return b_out, b_sum, b_best


@triton.jit
def take_all(
    b_q, p_k, p_v, s_k, s_v, first, last, o_origin, slope, b_out, b_sum, b_best, scale,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEYS: tl.constexpr, STEADY: tl.constexpr,
):  # fmt: skip
    """All blocks of keys from first to last, which every query sees."""
    PADDED: tl.constexpr = b_q.shape[1]
    VALUE_PADDED: tl.constexpr = b_out.shape[1]
    EVEN: tl.constexpr = DIM == PADDED and VALUE_DIM == VALUE_PADDED
    m_k = (tl.arange(0, PADDED) < DIM)[:, None]
    m_v = (tl.arange(0, VALUE_PADDED) < VALUE_DIM)[None, :]
    for n in range(first, last, KEYS):
        b_bias = (n + tl.arange(0, KEYS)[None, :] - o_origin[:, None]).to(tl.float32) * slope
        b_out, b_sum, b_best = take_keys(
            b_q, p_k + n * s_k, p_v + n * s_v, m_k, m_v, b_bias, None, b_out, b_sum, b_best, scale,
            LOADS_MASKED=not EVEN, SEES_ALL=True, STEADY=STEADY,
        )  # fmt: skip
    return b_out, b_sum, b_best


@kernel(pointers=7)
def _attend_kernel(
    p_q, p_k, p_v, p_out, p_slopes, p_order, p_norms,
    s_q_b, s_q_h, s_q_l, s_k_b, s_k_h, s_k_l, s_v_b, s_v_h, s_v_l,
    batch, heads, groups, queries, keys, chunks, scale,
    UNIT: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, MARGIN: tl.constexpr, STEADY_BELOW: tl.constexpr,
):  # fmt: skip
    # strides count units of 8 elements where they can: by the multiplication the compiler learns that rows are aligned
    s_q_b, s_q_h, s_q_l = s_q_b.to(tl.int64) * UNIT, s_q_h.to(tl.int64) * UNIT, s_q_l.to(tl.int64) * UNIT
    s_k_b, s_k_h, s_k_l = s_k_b.to(tl.int64) * UNIT, s_k_h.to(tl.int64) * UNIT, s_k_l.to(tl.int64) * UNIT
    s_v_b, s_v_h, s_v_l = s_v_b.to(tl.int64) * UNIT, s_v_h.to(tl.int64) * UNIT, s_v_l.to(tl.int64) * UNIT
    i = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    i_block = blocks - 1 - i % blocks
    i_b = ((i // blocks) % batch).to(tl.int64)
    i_h = tl.load(p_order + i // (blocks * batch)).to(tl.int64)
    i_kv = i_h // groups
    slope = tl.load(p_slopes + i_h) * 1.4426950408889634

    o_row = i_block * ROWS + tl.arange(0, ROWS)
    m_row = o_row < queries
    o_d = tl.arange(0, PADDED)
    o_e = tl.arange(0, VALUE_PADDED)
    o_n = tl.arange(0, KEYS)
    p_q += i_b * s_q_b + i_h * s_q_h
    b_q = tl.load(
        p_q + o_row[:, None] * s_q_l + o_d[None, :],
        mask=m_row[:, None] & (o_d < DIM)[None, :],
        other=0.0,
    )
    p_k += i_b * s_k_b + i_kv * s_k_h + o_d[:, None] + o_n[None, :] * s_k_l  # transposed
    p_v += i_b * s_v_b + i_kv * s_v_h + o_n[:, None] * s_v_l + o_e[None, :]

    # where queries stand among keys; the bias of a block of keys counts from one place for all rows, which differs
    # from the true one by a number per row that no softmax sees, or from each row where float32 is to be kept
    start = i_block * ROWS + keys - queries
    o_place = start + tl.arange(0, ROWS)
    o_origin = o_place if WIDE else start + ROWS // 2 + tl.zeros([1], tl.int32)
    b_out = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_best = tl.full([ROWS], float("-inf"), tl.float32)

    # the keys around the queries; every query sees the first of them
    around = (start // KEYS) * KEYS
    for n in range(around, tl.minimum(start + ROWS, keys), KEYS):
        o_key = n + o_n
        m_key = o_key < keys
        b_out, b_sum, b_best = take_keys(
            b_q,
            p_k + n * s_k_l,
            p_v + n * s_v_l,
            m_key[None, :] & (o_d < DIM)[:, None],
            m_key[:, None] & (o_e < VALUE_DIM)[None, :],
            (o_key[None, :] - o_origin[:, None]).to(tl.float32) * slope,
            o_place[:, None] >= o_key[None, :],
            b_out, b_sum, b_best, scale,
            LOADS_MASKED=True, SEES_ALL=False, STEADY=False,
        )  # fmt: skip

    # the keys before, which every query sees, from the first that can count
    b_wide = b_q.to(tl.float32)
    b_bound = tl.sqrt(tl.sum(b_wide * b_wide, 1)) * scale
    b_bound = b_bound * longest_of(p_norms + (i_b * (heads // groups) + i_kv) * chunks, chunks)
    first = first_key(b_bound, b_best, o_origin, slope, m_row, keys, MARGIN)
    first = tl.minimum(first, around) // KEYS * KEYS
    # where no score can exceed what was seen by much, weights are taken against that, and nothing is rescaled
    b_above = b_bound - b_best + (around - 1 - o_origin).to(tl.float32) * slope
    steady = tl.max(tl.where(m_row, b_above, 0.0), 0) < STEADY_BELOW
    change = tl.where(steady, first, around)  # two loops of which one is empty share their memory, two branches do not
    b_out, b_sum, b_best = take_all(
        b_q, p_k, p_v, s_k_l, s_v_l, first, change, o_origin, slope, b_out, b_sum, b_best, scale,
        DIM=DIM, VALUE_DIM=VALUE_DIM, KEYS=KEYS, STEADY=False,
    )  # fmt: skip
    b_out, b_sum, b_best = take_all(
        b_q, p_k, p_v, s_k_l, s_v_l, change, around, o_origin, slope, b_out, b_sum, b_best, scale,
        DIM=DIM, VALUE_DIM=VALUE_DIM, KEYS=KEYS, STEADY=True,
    )  # fmt: skip

    b_out = (b_out / b_sum[:, None]).to(p_out.dtype.element_ty)
    p_out += ((i_b * heads + i_h) * queries + o_row[:, None]) * VALUE_DIM + o_e[None, :]
    tl.store(p_out, b_out, mask=m_row[:, None] & (o_e < VALUE_DIM)[None, :])


def alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, order: Tensor, scale: float) -> Tensor:
    """The causal attention output (batch, heads, queries, value dim), the last query standing at the last key.

    ``slopes`` (heads,) are float32, and ``order`` (heads,) names the heads, those with the gentlest slope first.
    """
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    prepared(("alibi_attention", scale), (q, k, v), lambda: _ready(q, k, v, scale))(q, k, v, out, slopes, order)
    return out


class Shape(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    queries: int
    dim: int
    key_heads: int
    keys: int
    value_dim: int

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor) -> Shape:
        return Shape(q.shape[0], q.shape[1], q.shape[2], q.shape[3], k.shape[1], k.shape[2], v.shape[3])

    @property
    def chunks(self) -> int:
        """How many programs look at the norms of the keys of a head."""
        return -(-self.keys // CHUNK)

    @property
    def padded(self) -> tuple[int, int]:
        """Dimensions of a head and of a value, as many as a matrix product takes."""
        return max(16, power_of_2(self.dim)), max(16, power_of_2(self.value_dim))


def _ready(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Callable[..., None]:
    """The function of (q, k, v, out, slopes, order) that attends with tensors of these shapes and strides."""
    shape, dtype = Shape.of(q, k, v), q.dtype
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])  # of batch, heads and length
    unit = 8 if all(stride % 8 == 0 for stride in strides) else 1
    steps = [stride // unit for stride in strides]
    padded, value_padded = shape.padded
    norms_of = Launch(
        _norms_kernel,
        (shape.batch * shape.key_heads * shape.chunks, 1, 1),
        [*steps[3:6], shape.key_heads, shape.keys, shape.chunks],
        (unit, shape.dim, padded, 64, CHUNK),
        warps=4,
    )
    tile = tile_of(shape, dtype, q.device)
    groups = shape.heads // shape.key_heads
    sizes = [shape.batch, shape.heads, groups, shape.queries, shape.keys, shape.chunks]
    heads = (shape.dim, padded, shape.value_dim, value_padded)
    attend = Launch(
        _attend_kernel,
        (shape.batch * shape.heads * -(-shape.queries // tile.rows), 1, 1),
        [*steps, *sizes, scale * math.log2(math.e)],
        (unit, *heads, tile.rows, tile.keys, dtype == torch.float32, MARGIN, STEADY_BELOW[dtype]),
        warps=tile.warps,
        stages=tile.stages,
    )

    def run(q: Tensor, k: Tensor, v: Tensor, out: Tensor, slopes: Tensor, order: Tensor) -> None:
        norms = torch.empty(shape.batch, shape.key_heads, shape.chunks, dtype=torch.float32, device=q.device)
        norms_of(k, norms)
        attend(q, k, v, out, slopes, order, norms)

    return run


def tile_of(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tile:
    """The tile for these sizes, with no more stages than the device has memory for."""
    padded, value_padded = shape.padded
    tile = TILES[max(padded, value_padded) > 64, dtype == torch.float32]
    tile = SHORT_TILE if shape.queries <= SHORT_TILE.rows else tile
    held = tile.rows * padded * (2 if dtype == torch.float32 else 1)  # products of three keep a rest of the queries
    room = shared_memory(device) // dtype.itemsize - held
    return replace(tile, stages=max(1, min(tile.stages, room // (tile.keys * (padded + value_padded)))))
