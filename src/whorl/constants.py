"""Numbers of a config as tensors on a device: copying them there would wait for it at every call."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.tracing import kept_where_plain


@kept_where_plain
def numbers_on(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor that is shared: nobody may write into it."""
    return torch.tensor(numbers, dtype=dtype, device=device)
