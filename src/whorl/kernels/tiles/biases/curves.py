"""KERPLE's logarithm -p ln(1 + a d) and power -a d^p of the distance, and the gradients of their two numbers."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def distance(o_i, o_j):
    """|i - j|, as ``ahead`` has it."""
    return tl.abs(ahead(o_i, o_j))


@triton.jit
def ahead(o_i, o_j):
    """i - j. Whole numbers of float32 are exact to 2^24, and vectors are cheaper to convert than tiles; positions that
    are given, int64, can be larger.
    """
    WIDE: tl.constexpr = o_i.dtype == tl.int64
    return (o_i - o_j).to(tl.float32) if WIDE else o_i.to(tl.float32) - o_j.to(tl.float32)


@triton.jit
def log2(b_x):
    """The logarithm to base 2 by the instruction that has it, to 2^-22: the library's own takes some twenty."""
    if INTERPRETED:
        b_log = tl.log2(b_x)
    else:
        b_log = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [b_x], dtype=tl.float32, is_pure=True, pack=1
        )
    return b_log


@triton.jit
def logarithm(o_i, o_j, p, a):
    """The bias in powers of two: a logarithm to base 2 is in these units as it is."""
    return -p * log2(1.0 + a * distance(o_i, o_j))


@triton.jit
def logarithm_sums(b_ds, o_i, o_j, p, a):
    """What a tile adds to the gradients of p and a, by row."""
    b_d = distance(o_i, o_j)
    b_x = 1.0 + a * b_d
    b_p = tl.sum(b_ds * log2(b_x), 1) * -0.6931471805599453
    return b_p, tl.sum(b_ds * (b_d / b_x), 1) * -p


@triton.jit
def power(o_i, o_j, p, a):
    """The bias in powers of two."""
    b_power, _ = powers(distance(o_i, o_j), p)
    return b_power * (-1.4426950408889634 * a)


@triton.jit
def powers(b_d, p):
    """d^p and the logarithm of d to base 2, which is 0 at distance 0: there p changes nothing."""
    b_log = log2(tl.maximum(b_d, 1.0))
    return tl.where(b_d == 0, 0.0, tl.exp2(p * b_log)), b_log


@triton.jit
def power_sums(b_ds, o_i, o_j, p, a):
    """What a tile adds to the gradients of p and a, by row."""
    b_power, b_log = powers(distance(o_i, o_j), p)
    b_power *= b_ds
    return tl.sum(b_power * b_log, 1) * (-0.6931471805599453 * a), -tl.sum(b_power, 1)
