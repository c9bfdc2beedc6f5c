"""ALiBi's line: slope * (key - query), and the keys that it makes too light to count.

A score is at most scale |q_i| K + m (j - i), K being the longest key. The kernel looks at the keys around the query
first, so it knows a score c that counts, and the keys with
    j < i - (scale |q_i| K - c + MARGIN + ln(min(keys, 1 + 1 / m))) / m
have weights that add up to less than exp(-MARGIN) of the rest: they fall by exp(m) from key to key, so their sum is at
most 1 + 1 / m times the first. What is left out is below the rounding of float32, whatever the data; where keys are so
long that nothing can be left out, all keys are visited. The backward pass knows c as the sum of all that counts.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from whorl.kernels.tiles.biases.curves import ahead
from whorl.kernels.triton_launch import kernel

# Keys are skipped once the sum of all their weights is below exp(-MARGIN) = 4e-11.
MARGIN = 24.0

# Keys whose norms one program looks at.
CHUNK = 512


@triton.jit
def sloped(o_i, o_j, slope):
    """The bias, in the units of the slope."""
    return ahead(o_i, o_j) * -slope


@kernel(pointers=2)
def longest_keys(
    p_k, p_norms, strides_k, heads, keys, chunks,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The longest key of each chunk, squared; infinity where one is not a number."""
    s_b, s_h, s_l = strides_k
    i = tl.program_id(0)
    i_chunk = i % chunks
    i_h = ((i // chunks) % heads).to(tl.int64)
    i_b = (i // (chunks * heads)).to(tl.int64)
    o_d = tl.arange(0, PADDED)[None, :]
    p_rows = p_k + i_b * s_b + i_h * s_h + o_d
    b_longest = tl.zeros([ROWS], tl.float32)
    for start in range(0, CHUNK, ROWS):
        o_l = i_chunk * CHUNK + start + tl.arange(0, ROWS)[:, None]
        b_k = tl.load(p_rows + o_l.to(tl.int64) * s_l, mask=(o_l < keys) & (o_d < DIM), other=0.0).to(tl.float32)
        b_square = tl.sum(b_k * b_k, 1)
        b_longest = tl.maximum(b_longest, tl.where(b_square < float("inf"), b_square, float("inf")))
    tl.store(p_norms + i, tl.max(b_longest, 0))


@triton.jit
def bound_of(b_q, p_norms, chunks, scale):
    """The largest product that each query can have with any key, in powers of two."""
    b_square = tl.zeros([64], tl.float32)
    for start in range(0, chunks, 64):
        o_chunk = start + tl.arange(0, 64)
        b_square = tl.maximum(b_square, tl.load(p_norms + o_chunk, mask=o_chunk < chunks, other=0.0))
    b_wide = b_q.to(tl.float32)
    return tl.sqrt(tl.sum(b_wide * b_wide, 1)) * tl.sqrt(tl.max(b_square, 0)) * scale


@triton.jit
def reach_of(b_bound, b_counts, slope, m_row, keys, MARGIN: tl.constexpr):
    """The distance beyond which keys weigh less than MARGIN allows, for all rows; ``keys`` where there is none.

    ``b_counts`` is a score that counts, at distance 0 of the line; it, the bound and the slope are in powers of two.
    """
    slope = tl.maximum(slope, 1e-30)  # a slope of 0 needs every key
    few = 1.0 + 1.4426950408889634 / slope
    margin = MARGIN * 1.4426950408889634 + tl.log2(tl.minimum(few, keys.to(tl.float32)))
    b_reach = (b_bound - b_counts + margin) / slope
    b_reach = tl.where(b_reach < keys, b_reach, keys)  # also where it is not a number
    return tl.max(tl.where(m_row & (b_reach > 0), b_reach, 0.0), 0).to(tl.int32) + 1
