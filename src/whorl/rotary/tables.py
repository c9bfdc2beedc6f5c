"""Tables of cos and sin: angles in float64, values rounded once to float32.

An angle position * w_i in float32 is wrong by up to half a unit of its last place, which at position
131,072 is 4e-3 radian and at 10 million more than half a radian. Here the angle is never formed in
float32, so a table entry differs from the true cosine only by its own rounding (3.0e-8).

For integer positions on the CPU the angle is split, m = BLOCK * c + f, and the addition
theorem joins two small tables with four multiplications instead of two trigonometric calls:
    cos(m w) = cos(B c w) cos(f w) - sin(B c w) sin(f w)
and the coarse table is split once more where positions pass BLOCK^2. Contiguous and arbitrary positions
take the same arithmetic, so the entry of a position is one value whatever else is asked for beside it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.forks import uncut
from whorl.position_checks import INTEGERS, first_of_consecutive
from whorl.position_ids import FARTHEST
from whorl.tracing import may_read_values, takes_derivatives, values_are_hidden

# Fine positions per coarse step. One number for every head, so that an entry never depends on what is beside it.
BLOCK = 512

# Elements worked on at a time: large enough that threads are started seldom, since each start may wait for a
# descheduled worker, and small enough that the float64 temporaries stay in cache.
CHUNK = 2**19

# Positions so few that finding out which of their rows are the same takes longer than making each.
FEW = 16

Tables = tuple[Tensor, Tensor]


def exact(positions: Tensor, frequencies: Tensor, factor: float = 1.0, dtype: torch.dtype = torch.float32) -> Tables:
    """cos and sin of positions (…) times frequencies (pairs,), each times ``factor``, shape (…, pairs).

    ``frequencies`` are float64. Differentiable in both arguments.
    """
    if _splits(positions, frequencies):
        with uncut:  # torch prepares each of its operations when it is first called
            return _split(positions, frequencies, factor, dtype)
    if values_are_hidden() or takes_derivatives(positions, frequencies):
        angles = positions.to(torch.float64).unsqueeze(-1) * frequencies.to(positions.device)
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
    return _direct(positions, frequencies.to(positions.device), factor, dtype)


def by_distance(positions: Tensor, frequencies: Tensor, dtype: torch.dtype = torch.float32) -> Tables:
    """cos and sin of positions (…) times float64 frequencies (pairs,) of up to 1, for products of the distance alone.

    Angles are whole numbers of 2^-64 turns, from which whole turns drop out as int64 wraps around. So two angles differ
    by the angle of their distance to the last bit, wherever the positions are; ``exact`` rounds each by itself, by more
    than a turn where a position is 2^53.
    """
    frequencies = frequencies.to(positions.device)
    steps = (frequencies * (2.0**64 / math.tau)).round().long()
    whole = positions.detach().floor().clamp(-FARTHEST, FARTHEST) if positions.is_floating_point() else positions
    angles = (whole.long().unsqueeze(-1) * steps).double() * (math.tau / 2.0**64)
    if positions.is_floating_point():
        angles = angles + (positions.double() - whole).unsqueeze(-1) * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def float32(positions: Tensor, frequencies: Tensor, factor: float = 1.0) -> Tables:
    """The same tables as most frameworks compute them, bit for bit: every step in float32."""
    angles = positions.unsqueeze(-1).float() * frequencies.to(positions.device)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def chunk_rows(pairs: int) -> int:
    """How many positions make a chunk, at least one block."""
    return max(1, CHUNK // (max(pairs, 1) * BLOCK)) * BLOCK


def _splits(positions: Tensor, frequencies: Tensor) -> bool:
    whole = positions.dtype in INTEGERS and positions.numel() > 0
    return whole and may_read_values(positions) and not takes_derivatives(frequencies)


def _split(positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype) -> Tables:
    out = torch.empty(2, positions.numel(), frequencies.numel(), dtype=dtype, device="cpu")
    if positions.numel() <= FEW:
        ids = positions.flatten().tolist()
        if max(map(abs, ids)) < BLOCK**2:
            _fill_few(out, ids, frequencies, factor)
            return out[0].view(*positions.shape, -1), out[1].view(*positions.shape, -1)
    flat = positions.reshape(-1).long()
    _fill(out, flat.abs(), 1, frequencies, factor)
    if int(flat.min()) < 0:
        out[1].mul_(flat.sign().unsqueeze(-1))  # sin is odd, cos is even
    shape = (*positions.shape, frequencies.numel())
    return out[0].view(shape), out[1].view(shape)


def _fill_few(out: Tensor, ids: list[int], frequencies: Tensor, factor: float) -> None:
    """What ``_fill`` writes, bit for bit, for ids below BLOCK^2: a decoding step waits for one."""
    steps = [[abs(i) // BLOCK * BLOCK for i in ids], [abs(i) % BLOCK for i in ids]]
    angles = torch.tensor(steps, dtype=torch.float64, device="cpu").unsqueeze(-1) * frequencies
    waves = torch.stack((angles.cos(), angles.sin()))
    (cos_c, cos_f), (sin_c, sin_f) = waves
    if factor != 1.0:
        cos_c *= factor
        sin_c *= factor
    _join(out, (cos_c, sin_c), (cos_f, sin_f), *torch.empty_like(angles))
    for row, i in enumerate(ids):
        if i < 0:  # sin is odd, cos is even
            out[1, row].neg_()


def _fill(out: Tensor, ids: Tensor, unit: int, frequencies: Tensor, factor: float) -> None:
    """Writes factor times cos and sin of ids * unit * frequencies into out (2, ids, pairs); no id is negative."""
    count = ids.numel()
    coarse_ids = torch.div(ids, BLOCK, rounding_mode="floor")
    fine_ids = ids - coarse_ids * BLOCK
    low, high = (int(bound) for bound in torch.aminmax(coarse_ids))
    contiguous = count > BLOCK and first_of_consecutive(ids) is not None
    if count < BLOCK:  # few positions: only the fine rows they need
        fine_steps, fine_ids = torch.unique(fine_ids, return_inverse=True)
    else:
        fine_steps = torch.arange(BLOCK, device="cpu")
    if high - low >= count:  # far-apart positions: only the coarse rows they need
        coarse_steps, coarse_ids = torch.unique(coarse_ids, return_inverse=True)
    else:
        coarse_steps, coarse_ids = torch.arange(low, high + 1, device="cpu"), coarse_ids - low
    fine = _waves(fine_steps, unit, frequencies)
    if high < BLOCK:
        coarse = _waves(coarse_steps, unit * BLOCK, frequencies)
    else:  # the same split once more
        coarse = torch.empty(2, coarse_steps.numel(), frequencies.numel(), dtype=torch.float64, device="cpu")
        _fill(coarse, coarse_steps, unit * BLOCK, frequencies, 1.0)
    if factor != 1.0:
        coarse *= factor
    if contiguous:
        _join_blocks(out, int(ids[0]), coarse, fine)
    else:
        _join_gathered(out, coarse, coarse_ids, fine, fine_ids)


def _waves(steps: Tensor, unit: int, frequencies: Tensor) -> Tensor:
    """(2, steps, pairs): cos and sin of steps * unit * frequencies in float64; the first product is a whole number."""
    angles = (steps * unit).double().unsqueeze(-1) * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def _join_blocks(out: Tensor, first: int, coarse: Tensor, fine: Tensor) -> None:
    """Joins every coarse row with the fine rows of its block, for contiguous positions."""
    count, pairs = out.shape[1:]
    together, start, end = chunk_rows(pairs) // BLOCK, first // BLOCK, first + count
    scratch = torch.empty(2, together, BLOCK, pairs, dtype=torch.float64, device="cpu")
    block = start
    while block * BLOCK < end:
        low = max(first, block * BLOCK)
        blocks, rows = min(together, (end - low) // BLOCK), slice(0, BLOCK)
        if low % BLOCK or not blocks:  # the ragged ends
            blocks, rows = 1, slice(low % BLOCK, min(BLOCK, end - block * BLOCK))
        cos, sin = coarse[:, block - start : block - start + blocks, None]
        left, right = scratch[:, :blocks, : rows.stop - rows.start]
        target = out[:, low - first : low - first + left.shape[0] * left.shape[1]].view(2, *left.shape)
        _join(target, (cos, sin), (fine[0, rows], fine[1, rows]), left, right)
        block += blocks


def _join_gathered(out: Tensor, coarse: Tensor, coarse_ids: Tensor, fine: Tensor, fine_ids: Tensor) -> None:
    """Joins for each position its coarse and its fine row."""
    count, pairs = out.shape[1:]
    size = min(count, chunk_rows(pairs))
    scratch = torch.empty(6, size, pairs, dtype=torch.float64, device="cpu")
    for begin in range(0, count, size):
        part = slice(begin, min(begin + size, count))
        rows = scratch[:, : part.stop - part.start]
        for k in (0, 1):
            torch.index_select(coarse[k], 0, coarse_ids[part], out=rows[k])
            torch.index_select(fine[k], 0, fine_ids[part], out=rows[2 + k])
        _join(out[:, part], (rows[0], rows[1]), (rows[2], rows[3]), rows[4], rows[5])


def _join(out: Tensor, coarse: Tables, fine: Tables, left: Tensor, right: Tensor) -> None:
    """The addition theorem, one correctly rounded float64 step at a time, into ``out``; the last two are scratch."""
    (cos_c, sin_c), (cos_f, sin_f) = coarse, fine
    torch.mul(cos_c, cos_f, out=left)
    torch.mul(sin_c, sin_f, out=right)
    out[0].copy_(left.sub_(right))
    torch.mul(sin_c, cos_f, out=left)
    torch.mul(cos_c, sin_f, out=right)
    out[1].copy_(left.add_(right))


def _direct(positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype) -> Tables:
    """Trigonometry on every element, by chunks that keep the float64 temporaries small."""
    pairs, flat = frequencies.numel(), positions.reshape(-1)
    out = torch.empty(2, flat.numel(), pairs, dtype=dtype, device=positions.device)
    size = chunk_rows(pairs) if positions.device.type == "cpu" else max(1, flat.numel())
    for begin in range(0, flat.numel(), size):
        angles = flat[begin : begin + size].to(torch.float64).unsqueeze(-1) * frequencies
        cos, sin = angles.cos(), angles.sin_()
        if factor != 1.0:
            cos, sin = cos.mul_(factor), sin.mul_(factor)
        out[0, begin : begin + size].copy_(cos)
        out[1, begin : begin + size].copy_(sin)
    return out[0].view(*positions.shape, pairs), out[1].view(*positions.shape, pairs)
