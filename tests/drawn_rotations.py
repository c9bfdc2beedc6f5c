"""Queries, keys and tables that are drawn, and what counts as the same rotation of them."""

import torch

CLOSE = {torch.float32: 4e-7, torch.float64: 4e-16, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def draw(*shape, dtype=torch.float64, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def tables(*shape, dtype, device, seed=1):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return draw(*shape, dtype=wide, device=device, seed=seed), draw(*shape, dtype=wide, device=device, seed=seed + 1)


def same(got, expected):
    """Equal but for one rounding of the result, the torch path's included."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    scale = expected.double().abs().clamp(min=1.0)
    bad = ((got.double() - expected.double()).abs() > 4 * CLOSE[got.dtype] * scale) | got.isnan()
    assert not bool(bad.any()), float(((got.double() - expected.double()) / scale).abs().max())
