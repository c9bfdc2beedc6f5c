"""Moving cached keys: from one rotary encoding, position or served length to another, without the raw keys.

A rotated key is R_old(m) k. What is wanted is R_new(n) k = (R_new(n) R_old(m)^-1) R_old(m) k, and the
product of the two is again a rotation wherever both turn the same pairs. So one turn by the difference
of the angles moves the key, rounding it once. This is what dynamic NTK, LongRoPE, evicted or shifted
caches and reused prefixes need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.encodings.parts import lone_rotation
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError, invalid
from whorl.kernels.rotate import rotate
from whorl.rotary.rotation import Order, layout_ends, quotient_tables
from whorl.rotary.tables import Tables


def rerotate(
    keys: Tensor,
    old: Rotary,
    new: Rotary,
    positions: Tensor,
    *,
    new_positions: Tensor | None = None,
    old_length: int | None = None,
    new_length: int | None = None,
    order: Order = "bhld",
) -> Tensor:
    """Keys rotated by ``old`` at ``positions``, as if ``new`` had rotated them, at ``new_positions`` if given.

    ``old_length`` and ``new_length`` are the lengths served before and now, for schemes that depend on them. Positions
    of one axis serve every axis of ``new``; from several axes to another number of them ``new_positions`` are needed.

    >>> import torch, whorl
    >>> rope, positions = whorl.Rope(head_dim=8), whorl.positions(4)
    >>> raw = torch.randn(1, 1, 4, 8)
    >>> shifted = whorl.rerotate(rope.rotate(raw, positions), rope, rope, positions, new_positions=positions + 100)
    >>> torch.allclose(shifted, rope.rotate(raw, positions + 100), atol=1e-6)
    True
    """
    for name, encoding in (("old", old), ("new", new)):
        if not isinstance(encoding, Rotary):
            raise invalid("rerotate", name, "a rotary encoding", encoding, "Other encodings leave keys as they are.")
        if not encoding._own_rotation and lone_rotation(encoding) is None:
            raise WhorlError(
                f"rerotate: {name} is {type(encoding).__name__}, whose transform_qk does more than its rotation, and "
                "cannot be undone. Write rotate over in its place."
            )
    if new_positions is None:
        new_positions = on_axes("rerotate", positions, old.axes, new.axes)
    if _turn_the_same_pairs(old, new):
        old_tables = old.tables(positions, old_length, dtype=torch.float64)
        new_tables = new.tables(new_positions, new_length, dtype=torch.float64)
        # keys lie as old wrote them, and stay so
        written = "half" if layout_ends(old.layout)[1] == "half" else "interleaved"
        return rotate(
            keys,
            *quotient_tables(*_by_head(new_tables, old_tables)),
            written,
            start=old.config.start,
            blocks=old.config.blocks,
            heads=old.config.rotated_heads,
            order=order,
        )
    raw = old.rotate(keys.double(), positions, old_length, inverse=True, order=order)
    return new.rotate(raw, new_positions, new_length, order=order).to(keys.dtype)


def on_axes(call: str, positions: Tensor, old_axes: int, new_axes: int) -> Tensor:
    """Positions for an encoding with another number of axes: those of one axis serve every axis, as text has them."""
    if old_axes == new_axes or not isinstance(positions, Tensor) or positions.ndim == 1:
        return positions
    if old_axes == 1:
        return positions.expand(new_axes, *positions.shape)
    raise WhorlError(
        f"{call}: positions of {old_axes} axes do not tell those on {new_axes}. "
        f"Pass {'new_positions' if call == 'rerotate' else 'positions'}=…."
    )


def _by_head(one: Tables, two: Tables) -> tuple[Tables, Tables]:
    """Both tables with an axis for heads where one of them has it, so that a batch meets a batch."""
    if max(one[0].ndim, two[0].ndim) < 4:
        return one, two
    (a, b), (c, d) = ((t.unsqueeze(-3) if t.ndim == 3 else t for t in tables) for tables in (one, two))
    return (a, b), (c, d)


def _turn_the_same_pairs(old: Rotary, new: Rotary) -> bool:
    def place(rope: Rotary) -> tuple[object, ...]:
        own = rope.config
        return own.pairs, own.start, own.blocks, own.rotated_heads, rope.layout

    if old._own_rotation or new._own_rotation:
        return False
    return place(old) == place(new)
