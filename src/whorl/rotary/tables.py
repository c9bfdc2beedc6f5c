"""Tables of cos and sin: angles in float64, values rounded once to float32.

An angle position * w_i in float32 is wrong by up to half a unit of its last place, which at position
131,072 is 4e-3 radian and at 10 million more than half a radian. Here the angle is never formed in
float32, so a table entry differs from the true cosine only by its own rounding (3.0e-8).

For integer positions on the CPU the angle is split, m = BLOCK * coarse + fine, and the addition
theorem joins two small tables with four multiplications instead of two trigonometric calls:
    cos(m w) = cos(B c w) cos(f w) - sin(B c w) sin(f w)
Contiguous and arbitrary positions take the same arithmetic, so the entry of a position is one value
whatever else is asked for beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.errors import invalid

INTEGERS = (torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)

# Elements worked on at a time: torch runs up to this many on one thread, which keeps the float64
# temporaries in cache and never waits for a descheduled worker.
CHUNK = 32768

Tables = tuple[Tensor, Tensor]


def check_positions(call: str, positions: Tensor, axes: int) -> Tensor:
    """The positions with their axes in front, (axes, …), or a WhorlError.

    One-dimensional positions serve every axis of a multi-axis encoding (text among images).
    """
    if not isinstance(positions, Tensor):
        raise invalid(call, "positions", "a tensor", positions, "Make one with whorl.positions(length).")
    if positions.dtype not in INTEGERS + FLOATS:
        raise invalid(
            call,
            "positions",
            "int32, int64, float32 or float64",
            positions,
            "Half precision cannot tell neighbouring positions apart; convert with positions.long().",
        )
    if axes == 1:
        if positions.ndim not in (1, 2):
            raise invalid(call, "positions", "of shape (length,) or (batch, length)", positions)
        return positions.unsqueeze(0)
    if positions.ndim == 1:
        return positions.expand(axes, -1)
    if positions.ndim not in (2, 3) or positions.shape[0] != axes:
        raise invalid(
            call,
            "positions",
            f"of shape (length,), ({axes}, length) or ({axes}, batch, length)",
            positions,
            "Axes come first, as whorl.grid and whorl.multimodal return them.",
        )
    return positions


def exact(positions: Tensor, frequencies: Tensor, factor: float = 1.0, dtype: torch.dtype = torch.float32) -> Tables:
    """cos and sin of positions (…) times frequencies (pairs,), each times ``factor``, shape (…, pairs).

    ``frequencies`` are float64. Differentiable in both arguments.
    """
    if _splits(positions, frequencies):
        return _split(positions, frequencies, factor, dtype)
    if _traced() or _wants_grad(positions, frequencies):
        angles = positions.to(torch.float64).unsqueeze(-1) * frequencies.to(positions.device)
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
    return _direct(positions, frequencies.to(positions.device), factor, dtype)


def float32(positions: Tensor, frequencies: Tensor, factor: float = 1.0) -> Tables:
    """The same tables as frameworks compute them, bit for bit: every step in float32."""
    angles = positions.unsqueeze(-1).float() * frequencies.to(positions.device)
    return angles.cos() * factor, angles.sin() * factor


def block_rows(pairs: int) -> int:
    """The number of fine positions per coarse step: a power of two that fits CHUNK, from the pairs alone."""
    return max(16, min(1024, 1 << ((CHUNK // pairs).bit_length() - 1))) if pairs else 16


def readable(positions: Tensor) -> bool:
    """Whether the values may be looked at: a plain CPU tensor, outside compile, export and functorch transforms."""
    return type(positions) is Tensor and positions.device.type == "cpu" and not _traced()


def _traced() -> bool:
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is not None


def _wants_grad(*tensors: Tensor) -> bool:
    """Whether derivatives are taken, in reverse or in forward mode: then nothing is written into given memory."""
    forward = torch.autograd.forward_ad._current_level >= 0
    return forward or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def _splits(positions: Tensor, frequencies: Tensor) -> bool:
    whole = positions.dtype in INTEGERS and positions.numel() > 0
    return whole and readable(positions) and not _wants_grad(frequencies)


def _split(positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype) -> Tables:
    pairs, rows = frequencies.numel(), block_rows(frequencies.numel())
    flat = positions.reshape(-1)
    out = torch.empty(2, flat.numel(), pairs, dtype=dtype, device="cpu")
    fine = _waves(torch.arange(rows, dtype=torch.float64, device="cpu"), frequencies)
    first = int(flat[0])
    if _contiguous(flat, first):
        _fill_contiguous(out, first, fine, frequencies, factor)
    else:
        _fill_gathered(out, flat, fine, frequencies, factor)
    return out[0].view(*positions.shape, pairs), out[1].view(*positions.shape, pairs)


def _contiguous(flat: Tensor, first: int) -> bool:
    count = flat.numel()
    if int(flat[-1]) - first != count - 1:
        return False
    return torch.equal(flat, torch.arange(first, first + count, dtype=flat.dtype, device="cpu"))


def _waves(steps: Tensor, frequencies: Tensor, factor: float = 1.0) -> Tensor:
    """(2, steps, pairs): cos and sin in float64."""
    angles = steps.unsqueeze(-1) * frequencies
    return torch.stack((angles.cos(), angles.sin())) * factor


def _fill_contiguous(out: Tensor, first: int, fine: Tensor, frequencies: Tensor, factor: float) -> None:
    rows, count = fine.shape[1], out.shape[1]
    start = first // rows
    steps = torch.arange(start, (first + count - 1) // rows + 1, dtype=torch.float64, device="cpu") * rows
    coarse = _waves(steps, frequencies, factor)
    one, two = torch.empty_like(fine[0]), torch.empty_like(fine[0])
    for i, (cos, sin) in enumerate(zip(*coarse.unbind(), strict=True)):
        block = (start + i) * rows - first  # where this block's first row falls in the output
        low, high = max(0, -block), min(rows, count - block)
        own = slice(low, high)
        _join(out[:, block + low : block + high], (cos, sin), (fine[0, own], fine[1, own]), one[own], two[own])


def _fill_gathered(out: Tensor, flat: Tensor, fine: Tensor, frequencies: Tensor, factor: float) -> None:
    rows, count, pairs = fine.shape[1], *out.shape[1:]
    coarse_ids = torch.div(flat, rows, rounding_mode="floor").long()
    fine_ids = flat.long() - coarse_ids * rows
    low, high = int(coarse_ids.min()), int(coarse_ids.max())
    if high - low >= count:  # far-apart positions: one coarse row each instead of all between them
        steps, coarse_ids = torch.unique(coarse_ids, return_inverse=True)
    else:
        steps = torch.arange(low, high + 1, dtype=torch.int64, device="cpu")
        coarse_ids = coarse_ids - low
    coarse = _waves(steps.double() * rows, frequencies, factor)
    size = min(count, max(1, CHUNK // max(pairs, 1)))
    scratch = torch.empty(6, size, pairs, dtype=torch.float64, device="cpu")
    for begin in range(0, count, size):
        part = slice(begin, min(begin + size, count))
        own = scratch[:, : part.stop - part.start]
        for k in (0, 1):
            torch.index_select(coarse[k], 0, coarse_ids[part], out=own[k])
            torch.index_select(fine[k], 0, fine_ids[part], out=own[2 + k])
        _join(out[:, part], (own[0], own[1]), (own[2], own[3]), own[4], own[5])


def _join(out: Tensor, coarse: Tables, fine: Tables, one: Tensor, two: Tensor) -> None:
    """The addition theorem, one correctly rounded float64 step at a time, into ``out``."""
    (cos_c, sin_c), (cos_f, sin_f) = coarse, fine
    torch.mul(cos_c, cos_f, out=one)
    torch.mul(sin_c, sin_f, out=two)
    out[0].copy_(one.sub_(two))
    torch.mul(sin_c, cos_f, out=one)
    torch.mul(cos_c, sin_f, out=two)
    out[1].copy_(one.add_(two))


def _direct(positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype) -> Tables:
    """Trigonometry on every element, a cache-sized chunk at a time on the CPU."""
    pairs, flat = frequencies.numel(), positions.reshape(-1)
    out = torch.empty(2, flat.numel(), pairs, dtype=dtype, device=positions.device)
    size = max(1, CHUNK // max(pairs, 1)) if positions.device.type == "cpu" else max(1, flat.numel())
    for begin in range(0, flat.numel(), size):
        angles = flat[begin : begin + size].to(torch.float64).unsqueeze(-1) * frequencies
        cos, sin = angles.cos(), angles.sin_()
        if factor != 1.0:
            cos, sin = cos.mul_(factor), sin.mul_(factor)
        out[0, begin : begin + size].copy_(cos)
        out[1, begin : begin + size].copy_(sin)
    return out[0].view(*positions.shape, pairs), out[1].view(*positions.shape, pairs)
