"""Numbers of a config as tensors on a device: copying them there would wait for it at every call."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.tracing import is_symbol, kept_in_graphs, making_graph


def numbers_on(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor that is shared: nobody may write into it."""
    if making_graph() and any(is_symbol(number) for number in numbers):  # computed of sizes that the graph leaves free
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _numbers_on(numbers, dtype, device)


@kept_in_graphs
def _numbers_on(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)
