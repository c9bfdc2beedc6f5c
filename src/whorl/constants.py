"""Numbers of a config as tensors on a device: copying them there would wait for it at every call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from whorl.tracing import is_symbol, kept_in_graphs, making_graph, may_keep_tensors


def numbers_on(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A short list as a tensor that is shared: nobody may write into it, and it outlives whoever asked."""
    if making_graph() and any(is_symbol(number) for number in numbers):  # computed of sizes that the graph leaves free
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _numbers_on(numbers, dtype, device)


@kept_in_graphs
def _numbers_on(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)


class WholeNumbers:
    """A list that may be long, held by an encoding: its tensors go when the encoding goes."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = tuple(numbers)
        self._made: dict[torch.device, Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return WholeNumbers, (self.numbers,)  # a copy may be for another machine

    def on(self, device: torch.device) -> Tensor:
        """The numbers in int64 as a tensor that is shared: nobody may write into it."""
        if not may_keep_tensors():
            return torch.tensor(self.numbers, dtype=torch.int64, device=device)
        made = self._made.get(device)
        if made is None:
            with torch.inference_mode(False):  # training may come after
                made = self._made[device] = torch.tensor(self.numbers, dtype=torch.int64, device=device)
        return made
