"""Exact tables by the fastest implementation that makes them on the device of the positions."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.kernels.choose import why_not_installed
from whorl.rotary import tables
from whorl.tracing import may_keep_tensors, takes_derivatives


def exact_tables(
    positions: Tensor, frequencies: Tensor, factor: float = 1.0, dtype: torch.dtype = torch.float32
) -> tables.Tables:
    """cos and sin of positions (…) times frequencies (pairs,), each times ``factor``, shape (…, pairs).

    Those of ``whorl.rotary.tables.exact``, made in one launch where positions are on a CUDA device.
    """
    if _has_kernel(positions, frequencies, dtype):
        from whorl.kernels.tables_triton import exact

        return exact(positions, frequencies, factor)
    return tables.exact(positions, frequencies, factor, dtype)


def _has_kernel(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> bool:
    if positions.device.type != "cuda" or dtype != torch.float32 or not may_keep_tensors():
        return False
    plain = type(positions) is Tensor and not takes_derivatives(positions, frequencies)
    return plain and why_not_installed("triton") is None
