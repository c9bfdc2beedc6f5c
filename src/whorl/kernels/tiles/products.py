"""Rows, products and scores of a tile, and what dropout keeps of it: what the kernels of both passes compute alike.

``CASE`` is the record of constants that a kernel is compiled for (``launch.Case``).
"""

# Kernels are written in Triton's language, whose types are not those of the functions that pyright sees.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from whorl.kernels.tiles.biases import bias_of
from whorl.kernels.tiles.visits import places_of

# The interpreter multiplies matrices of bfloat16 by their bits: there the operands are float32.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def rows_at(p, strides, i_b, i_h, o_l, PADDED: tl.constexpr):
    """Pointers to rows o_l of a head, and the step from row to row, int64.

    Of strides in a tuple the compiler knows which are multiples of 16, and so that rows are aligned.
    """
    s_b, s_h, s_l = strides
    s_l = tl.cast(s_l, tl.int64)
    return p + i_b * s_b + i_h * s_h + o_l[:, None] * s_l + tl.arange(0, PADDED)[None, :], s_l


@triton.jit
def load_rows(p_rows, m_row, DIM: tl.constexpr, BY_ROW: tl.constexpr):
    """Rows of a matrix, zero outside of it; what is known to lie inside is loaded without a mask."""
    PADDED: tl.constexpr = p_rows.shape[1]
    m_dim = tl.arange(0, PADDED) < DIM
    if BY_ROW and PADDED != DIM:
        b_rows = tl.load(p_rows, mask=m_row[:, None] & m_dim[None, :], other=0.0)
    elif BY_ROW:
        b_rows = tl.load(p_rows, mask=m_row[:, None], other=0.0)
    elif PADDED != DIM:
        b_rows = tl.load(p_rows, mask=m_dim[None, :], other=0.0)
    else:
        b_rows = tl.load(p_rows)
    return b_rows


@triton.jit
def store_rows(p_rows, b_rows, m_row, DIM: tl.constexpr):
    """Rows of a matrix in its dtype, without what lies outside of it."""
    m_dim = tl.arange(0, b_rows.shape[1]) < DIM
    tl.store(p_rows, b_rows.to(p_rows.dtype.element_ty), mask=m_row[:, None] & m_dim[None, :])


@triton.jit
def product(b_one, b_other, b_sum=None):
    """The product of two matrices in float32, added to a sum where one is given."""
    PRECISION: tl.constexpr = "tf32x3" if b_one.dtype == tl.float32 else "tf32"
    if INTERPRETED:
        b_one, b_other = b_one.to(tl.float32), b_other.to(tl.float32)
    return tl.dot(b_one, b_other, b_sum, input_precision=PRECISION)


@triton.jit
def scores_of(b_products, o_i, o_j, corner, text, scoring, CASE: tl.constexpr, FAR: tl.constexpr):
    """Scores of queries at o_i and keys at o_j, before any key is hidden: numbers, and the factor and the offset that
    make scores of them, in powers of two.

    Where the bias is one number for the whole tile, the numbers are the products themselves. What is subtracted from
    scores next takes factor and offset along, so that a score costs one fused multiplication and addition.

    ``corner`` is where the first query and the first key of the tile are; ``scoring`` is the scale, which is positive,
    the soft limit of scores, and what ``numbers_of`` says of the bias, all in powers of two, and then what ``keeps``
    reads.
    """
    scale, cap, numbers, _ = scoring
    factor, offset = scale, 0.0
    if FAR:
        offset = numbers[0]
    elif CASE.kind != "none":
        o_i, o_j = places_of(o_i, o_j, text, CASE)
        b_products = b_products * scale + bias_of(o_i, o_j, corner, numbers, CASE)
        factor = 1.0
    if CASE.capped:
        # tanh(x) = 1 - 2 / (1 + e^2x), and e^2x is a power of two of what is in powers of two already
        steep = 2.8853900817779268 / cap
        b_capped = cap * (1.0 - 2.0 / (1.0 + tl.exp2(b_products * (factor * steep) + offset * steep)))
        if CASE.kind == "table":  # a bias of minus infinity hides keys, which no limit opens
            b_capped = tl.where(b_products + offset == float("-inf"), float("-inf"), b_capped)
        b_products, factor, offset = b_capped, 1.0, 0.0
    return b_products, factor, offset


@triton.jit
def keeps(o_i, o_j, chance):
    """What multiplies the weights of queries at o_i and keys at o_j: 0 for a share of them, 1 / (1 - share) for others.

    A number is drawn by counting, of the seed, the row of heads and the pair alone: both passes draw the same, however
    they cut their tiles. Seven rounds of Philox are as many as statistical tests ask for.
    """
    p_seed, i_row, share = chance
    b_bits, _, _, _ = tl.philox(tl.load(p_seed), o_j, o_i, i_row.to(tl.int32), 0, n_rounds=7)
    b_number = (b_bits >> 8).to(tl.float32) * 5.9604644775390625e-08  # of 0 to 1, by 24 bits
    return tl.where(b_number >= share, 1.0 / (1.0 - share), 0.0)
