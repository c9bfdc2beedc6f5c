"""Attention by the hooks of an encoding, written out as the contract of ``encodings/base.py`` says."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Attended(NamedTuple):
    scores: torch.Tensor  # before the mask
    weights: torch.Tensor
    out: torch.Tensor


def attend(encoding, q, k, v, q_positions, k_positions, *, hidden=None, causal=True, length=None, documents=None):
    """q, k, v (batch, heads, length, dim). Causal goes by order, the last query standing at the last key."""
    scale = encoding.softmax_scale(q.shape[-1], length)
    branches = encoding.branches(q_positions, k_positions)
    if branches is None:
        scores = product(*encoding.transform_qk(q, k, q_positions, k_positions, length)) * scale
    else:
        counted = sum(branch.allowed.int() for branch in branches)
        assert bool((counted == 1).all()), "every pair belongs to one branch"
        scores = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
        scaled = encoding.scale_queries(q, q_positions, length)
        for branch in branches:
            places = branch.q_positions, branch.k_positions
            here = product(*encoding.transform_branch(scaled, k, *places, length)) * scale
            scores = torch.where(by_head(branch.allowed), here, scores)
    scores = encoding.adjust_scores(scores, q, k, q_positions, k_positions, hidden, scale=scale)
    bias = encoding.score_bias(q_positions, k_positions, length)
    scores = scores if bias is None else scores + bias
    queries, keys = scores.shape[-2:]
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        allowed = allowed.tril(keys - queries)
    own = encoding.mask(q_positions, k_positions)
    if own is not None:
        assert own.dtype == torch.bool
        allowed = allowed & by_head(own)
    if documents is not None:
        allowed = allowed & (documents[keys - queries :, None] == documents)
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    out = encoding.adjust_output(weights @ v, weights, v, q_positions, k_positions)
    return Attended(scores, weights, out)


def product(q, k):
    return q @ k.mT


def by_head(grid):
    return grid if grid.ndim == 2 else grid.unsqueeze(1)


def normal(*shape, seed=0, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def tokens(length, *, batch=1, heads=2, dim=8, seed=0, dtype=torch.float64, grad=False):
    """Queries, keys and values."""
    return [normal(batch, heads, length, dim, seed=10 * seed + i, dtype=dtype, grad=grad) for i in range(3)]


def trained(encoding, seed=5, spread=0.5):
    """The encoding in float64 with parameters that are no longer those it started from."""
    encoding = encoding.double()
    with torch.no_grad():
        for i, parameter in enumerate(encoding.parameters()):
            parameter += spread * normal(*parameter.shape, seed=seed + i)
    return encoding


def by_parameters(encoding, compute):
    """The parameters, and a function of them that computes with the encoding: what gradcheck wants."""
    names = [name for name, _ in encoding.named_parameters()]

    def call(*values):
        encoding.forward = compute
        return torch.func.functional_call(encoding, dict(zip(names, values, strict=True)), ())

    return call, tuple(p.detach().clone().requires_grad_() for p in encoding.parameters())
