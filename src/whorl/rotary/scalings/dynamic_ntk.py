"""Dynamic NTK: the NTK-aware base grows with the length that is served, and is untouched up to the original.

emozilla 2023 (the "dynamically scaled RoPE" post), in the form of transformers:
    base' = base * (s * length / original - (s - 1))^(d / (d - 2))      for length > original
Qwen-1 (Bai et al. 2023) has s = 2 and takes steps: a length stands for the next one that is the original doubled, and
doubled again.
Keys rotated at one length do not fit another: cache them unrotated, or move them with ``rerotate``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from whorl.config import config
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings.base import Scaling
from whorl.rotary.scalings.ntk import ntk_base


@config
class DynamicNtk(Scaling):
    """Dynamic NTK scaling; the length to serve is an argument of every call. ``doubling`` takes Qwen-1's steps."""

    name: ClassVar[str] = "dynamic_ntk"
    later: ClassVar[tuple[str, ...]] = ("doubling",)
    length_dependent: ClassVar[bool] = True
    factor: float
    original_length: int
    doubling: bool = False

    def check(self) -> None:
        self.check_at_least_one("factor")
        self.check_positive("original_length")

    def check_ladder(self, ladder: Ladder) -> None:
        ladder.need_base("DynamicNtk")
        self.check_more_than_one_pair(ladder)

    def served(self, length: int | None) -> int | None:
        if length is None or length <= self.original_length:
            return None
        if not self.doubling:
            return length
        step = self.original_length
        while step < length:
            step *= 2
        return step

    def frequencies(self, ladder: Ladder, length: int | None = None) -> Tensor:
        length = self.served(length)
        if length is None:
            return ladder.frequencies()
        # a tensor of the ladder's dtype: in float32 the base itself is rounded, as frameworks do in their forward
        served = torch.tensor(length, dtype=ladder.dtype, device="cpu")
        stretch = self.factor * served / self.original_length - (self.factor - 1)
        return ladder.frequencies(ntk_base(ladder.need_base("DynamicNtk"), stretch, ladder.dim))
