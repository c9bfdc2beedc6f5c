"""Exact tables built on the GPU, at about the speed of writing them.

An angle is reduced in turns before any trigonometry: position times w / 2 pi, less its whole and quarter turns, with
the product kept to the last bit by a fused multiply-add and the rest of w / 2 pi added behind it. What is left lies
within an eighth of a turn, where a short polynomial in float64 is exact to 1e-10, far below the rounding of the result.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from whorl.kernels.triton_launch import Launch, kernel, power_of_2
from whorl.plans import plan_of

TILE = 1024  # entries of one table that a program makes
WARPS = 2


@triton.jit
def cos_and_sin(b_m, b_w, factor_high, factor_low):
    """cos and sin of positions times frequencies, both float64 that broadcast, each times a factor; float32."""
    # 1 / 2 pi as a sum of two numbers, so that w / 2 pi is one too
    b_inverse = tl.full(b_w.shape, 0.15915494309189535, tl.float64)
    b_high = b_w * b_inverse
    b_low = tl.fma(b_w, b_inverse, -b_high) - b_w * 9.839338337591243e-18
    b_quarters = tl.floor(b_m * b_high * 4.0 + 0.5)
    b_r = tl.fma(b_m, b_high, -0.25 * b_quarters) + b_m * b_low
    b_x = b_r * b_r
    # the series of sin(2 pi r) / r and cos(2 pi r) in r^2
    b_sin = -15.09464257682299 * b_x + 42.05869394489765
    b_sin = b_sin * b_x - 76.70585975306139
    b_sin = b_sin * b_x + 81.60524927607505
    b_sin = b_sin * b_x - 41.34170224039976
    b_sin = (b_sin * b_x + 6.283185307179586) * b_r
    b_cos = 7.903536371318469 * b_x - 26.4262567833744
    b_cos = b_cos * b_x + 60.24464137187666
    b_cos = b_cos * b_x - 85.45681720669373
    b_cos = b_cos * b_x + 64.93939402266829
    b_cos = b_cos * b_x - 19.739208802178716
    b_cos = b_cos * b_x + 1.0
    # a quarter turn more: (cos, sin) becomes (-sin, cos)
    b_quarter = (b_quarters - 4.0 * tl.floor(b_quarters * 0.25)).to(tl.int32)
    m_odd = (b_quarter & 1) == 1
    b_first = tl.where(m_odd, b_sin, b_cos)
    b_second = tl.where(m_odd, b_cos, b_sin)
    factor = tl.cast(factor_high, tl.float64) + tl.cast(factor_low, tl.float64)  # arguments are float32
    b_first = tl.where((b_quarter == 1) | (b_quarter == 2), -b_first, b_first) * factor
    b_second = tl.where(b_quarter >= 2, -b_second, b_second) * factor
    return b_first.to(tl.float32), b_second.to(tl.float32)


@kernel(pointers=4)
def _tables_kernel(
    p_positions, p_frequencies, p_cos, p_sin, count, factor_high, factor_low,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    o_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_p = tl.arange(0, PADDED)[None, :]
    m = (o_m < count) & (o_p < PAIRS)
    b_m = tl.load(p_positions + o_m, mask=o_m < count, other=0).to(tl.float64)
    b_w = tl.load(p_frequencies + o_p, mask=o_p < PAIRS, other=0.0)
    b_cos, b_sin = cos_and_sin(b_m, b_w, factor_high, factor_low)
    tl.store(p_cos + o_m * PAIRS + o_p, b_cos, mask=m)
    tl.store(p_sin + o_m * PAIRS + o_p, b_sin, mask=m)


def in_two(factor: float) -> tuple[float, float]:
    """A number as a sum of two, the first of which float32 holds: arguments of kernels are float32."""
    high = struct.unpack("f", struct.pack("f", factor))[0]
    return high, factor - high


def exact(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """cos and sin of positions (…) times frequencies (pairs,), each times ``factor``, float32, shape (…, pairs)."""
    assert frequencies.device == positions.device
    pairs = frequencies.numel()
    flat, frequencies = positions.contiguous().view(-1), frequencies.contiguous()
    out = torch.empty(2, *positions.shape, pairs, dtype=torch.float32, device=positions.device)
    cos, sin = out.unbind(0)
    if not out.numel():
        return cos, sin
    launch = plan_of(("exact tables", factor), (flat, frequencies), lambda: _launch(flat.numel(), pairs, factor))
    launch(flat, frequencies, cos, sin)
    return cos, sin


def _launch(count: int, pairs: int, factor: float) -> Launch:
    padded = power_of_2(pairs)
    rows = max(1, TILE // padded)
    numbers, grid = (count, *in_two(factor)), (-(-count // rows), 1, 1)
    return Launch(_tables_kernel, grid, numbers, (rows, pairs, padded), warps=WARPS)
