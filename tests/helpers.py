"""What several test files share: the scalings to try, and tolerances that are the same on every machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whorl
from whorl import plans

HEAD_DIM = 64

# One of each scheme and each variant, all for a head of 64 dimensions trained on 256 positions.
SCALINGS = {
    "none": None,
    "linear": whorl.Linear(factor=4.0),
    "ntk": whorl.Ntk(factor=4.0),
    "ntk_fixed": whorl.Ntk(factor=4.0, variant="fixed"),
    "ntk_mixed": whorl.Ntk(factor=4.0, variant="mixed", exponent=0.625),
    "dynamic_ntk": whorl.DynamicNtk(factor=4.0, original_length=256),
    "ntk_by_parts": whorl.NtkByParts(factor=4.0, original_length=256),
    "ntk_by_parts_v1": whorl.NtkByParts(factor=4.0, original_length=256, variant="v1"),
    "yarn": whorl.Yarn(factor=4.0, original_length=256),
    "yarn_smooth": whorl.Yarn(factor=4.0, original_length=256, truncate=False, extrapolation_factor=0.5),
    "yarn_mscale": whorl.Yarn(factor=40.0, original_length=256, mscale=1.0, mscale_all_dim=0.707, scale_softmax=True),
    "longrope": whorl.LongRope(
        short_factor=[1.0 + i / 32 for i in range(32)],
        long_factor=[1.0 + i for i in range(32)],
        original_length=256,
        factor=8.0,
    ),
    "llama3": whorl.Llama3(factor=8.0, original_length=256),
    "llama4": whorl.Llama3(factor=16.0, original_length=256, low_freq_factor=1.0, high_freq_factor=1.0),
    "proportional": whorl.Proportional(fraction=0.25),
    "resonance": whorl.Resonance(inner=whorl.Yarn(factor=4.0, original_length=256)),
}

# Kernels of the rotation and where they run, for the fixture ``kernel``.
KERNELS = [
    pytest.param(("triton", "cpu"), id="triton-interpreted"),
    pytest.param(("numba", "cpu"), id="numba"),
    pytest.param(("triton", "cuda"), id="triton", marks=pytest.mark.gpu),
]

# Where kernels in Triton run, for the fixture ``device``.
TRITON_DEVICES = [pytest.param("cpu", id="interpreted"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]

LAYOUTS = ("half", "interleaved", "interleaved_to_half")

# What one rounding changes, relative to the value; float32 and float64 with room for the three of a rotation.
ROUNDING = {torch.float64: 2**-51, torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def ulps32(got: torch.Tensor, expected: torch.Tensor) -> int:
    """The largest distance in float32 units of the last place, after rounding both."""
    a, b = (t.to(torch.float32).view(torch.int32).long() for t in (got.contiguous(), expected.contiguous()))
    return int((a - b).abs().max())


def draw(*shape, dtype=torch.float32, device="cpu", seed=0) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def qkv(batch, heads, key_heads, queries, keys, dim, value_dim, dtype=torch.float32, device="cpu"):
    """Queries, keys and values of these sizes."""
    shapes = (batch, heads, queries, dim), (batch, key_heads, keys, dim), (batch, key_heads, keys, value_dim)
    return [draw(*shape, dtype=dtype, device=device, seed=seed) for seed, shape in enumerate(shapes)]


def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with weights large enough that attention is far from uniform and no bias is zero."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad and not name.startswith("plan."):
                size = 0.2 if weight.ndim > 1 else 0.1
                is_norm = "norm" in name.lower() or "ln_" in name
                weight.copy_(size * torch.randn(weight.shape, generator=draw) + is_norm)
    return model.eval()


def planned(encoding):
    """Whether attention remembers a plan for a kind of call with this encoding."""
    return any(settings[:2] == ("attention", id(encoding)) for _, _, settings, *_ in plans.PLANS._used)
