"""What the kernel of a decoding step reads and follows, known without importing it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from whorl.rotary.rotation import Rotation

# What is summed from a key on, up to the query: nothing; numbers that the cache keeps; gates of the scores.
Sums = Literal["none", "kept", "gates"]


class Kept(NamedTuple):
    """What a step reads beside its queries: the memory of a cache, and what is added to scores or hidden from them.

    slots       (queries,) int64: the slots of the new tokens, the last ones that are filled
    bias        float32: (heads, distances) by distance; (batch, heads, queries, slots) by slot; or (heads, numbers) of
                straight lines, as ``Rules.lines`` says
    positions   (batch, slots) where distances are not those of the slots, or padding is to be found
    real        (batch, slots), False for padding
    cos, sin    (placements, 2, slots, pairs) float32, of queries and of keys at each position: keys are kept raw, and
                turned as they are read
    fades       (pairs,) float32: the logarithm of what the product of each pair loses by position
    rows        (batch, heads, queries, rows) float32, added to scores: by distance, the last row for all beyond it; or,
                with sums of gates, by how many are open, linear between two
    key_rows    (heads, rows, dim) float32, whose product with a raw key is added to its score, by distance
    value_rows  (rows, value dim), added to values by distance
    memory      (batch, heads, slots) float32: what is summed from key to query and added to its score
    factors     (heads or 1, slots) float32, by which queries are multiplied, by position
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    bias: Tensor | None = None
    positions: Tensor | None = None
    real: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    fades: Tensor | None = None
    rows: Tensor | None = None
    key_rows: Tensor | None = None
    value_rows: Tensor | None = None
    memory: Tensor | None = None
    factors: Tensor | None = None


class Rules(NamedTuple):
    """The numbers of a step, and how what it reads is meant.

    window    how many positions back a query sees, and how many of the first ones
    by_place  whether distances or positions count, and not the order of slots alone
    counted   whether each position is the number of real tokens before it
    lines     how many straight lines a bias of lines has; 0 for another
    rotation  how raw keys are turned, with ``cos`` and ``sin``
    near      the distance up to which a pair is placed by the first of two placements
    """

    scale: float
    softcap: float | None = None
    window: tuple[int, int] | None = None
    by_place: bool = False
    counted: bool = True
    lines: int = 0
    rotation: Rotation | None = None
    near: int = 0
    sums: Sums = "none"
