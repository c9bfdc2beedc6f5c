"""Every encoding of the registry, built small, with the inputs its hooks need."""

from __future__ import annotations

import warnings

import torch

import whorl
from helpers import SCALINGS

HEADS, HEAD_DIM, WIDTH, LENGTH = 4, 16, 64, 64
NAMES = whorl.names()


def build(name: str) -> whorl.Encoding:
    """The encoding with the sizes used here and its own defaults; learned numbers are moved from their start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # T5 warns where max_distance passes the trained length
        encoding = whorl.build_for(name, heads=HEADS, head_dim=HEAD_DIM, width=WIDTH, length=LENGTH)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return encoding


def scaled_ropes() -> dict[str, whorl.Rope]:
    """One RoPE for each scaling, with a head of 64."""
    return {name: whorl.Rope(head_dim=64, scaling=scaling) for name, scaling in SCALINGS.items()}


def tokens(length, *, batch=2, heads=HEADS, kv_heads=None, dim=HEAD_DIM, seed=0, dtype=torch.float32, grad=False):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, dim)] + [(batch, kv_heads or heads, length, dim)] * 2
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad) for shape in shapes
    ]


def hidden_for(encoding, length, *, batch=2, seed=3, dtype=torch.float32):
    """Hidden states where the encoding reads them, as keyword arguments of attention."""
    if not encoding.reads_hidden:
        return {}
    generator = torch.Generator().manual_seed(seed)
    return {"hidden": torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)}


def attended(encoding: whorl.Encoding, length: int = 12) -> torch.Tensor:
    """What attention makes of the tokens with this encoding, and what it adds to an input of zeros."""
    q, k, v = tokens(length)
    out = whorl.attention(q, k, v, encoding=encoding, causal=True, **hidden_for(encoding, length))
    added = encoding.add_to_input(torch.zeros(2, length, WIDTH), whorl.positions(length))
    return torch.cat((out.flatten(), added.flatten())).detach()
