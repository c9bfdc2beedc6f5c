"""A list of numbers as a tensor in a compiled graph, by an operator that calls with equal numbers share.

``torch.tensor`` of a list leaves a constant of its own in the graph for each call, and no compiler finds two of them
equal: a model of eight layers made its tables of cos and sin eight times. Two calls of an operator with the same
arguments are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from whorl.kernels.ops import operator


def numbers(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor, for a graph that torch.compile makes.

    >>> numbers((1.0, 0.5), torch.float64, torch.device("cpu"))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    return torch.ops.whorl.numbers(values, dtype, device)


@operator(
    "numbers(float[] values, ScalarType dtype, Device device) -> Tensor",
    lambda values, dtype, device: torch.empty(len(values), dtype=dtype, device=device),
    keys=("CompositeExplicitAutograd",),  # no tensor is given whose device would choose
)
def _numbers(values: list[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return _pinned(tuple(values), dtype).to(device, non_blocking=True)


@cache  # without limit: a CUDA graph reads this memory at every replay
def _pinned(values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype, device="cpu", pin_memory=True)
