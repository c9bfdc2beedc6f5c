"""What the kernel of a decoding step reads and follows, known without importing it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Kept(NamedTuple):
    """What a step reads beside its queries: the memory of a cache, and what is added to scores or hidden from them.

    slots      (queries,) int64: the slots of the new tokens, the last ones that are filled
    bias       (heads, distances) by distance, or (batch, heads, queries, slots) by slot; float32, or None
    positions  (batch, slots) where distances are not those of the slots, or None
    real       (batch, slots), False for padding, or None
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    bias: Tensor | None = None
    positions: Tensor | None = None
    real: Tensor | None = None


class Rules(NamedTuple):
    """The numbers of a step. ``window``: how many positions back a query sees, and how many of the first ones."""

    scale: float
    softcap: float | None = None
    window: tuple[int, int] | None = None
