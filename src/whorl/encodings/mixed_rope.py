"""Mixed RoPE, the rotary position embedding of images whose frequencies are learned for each head.

Heo, Park, Han, Yun 2024, "Rotary Position Embedding for Vision Transformer" (RoPE-Mixed).
    pair j of head h at position (row, column) is turned by the angle row * u_hj + column * v_hj
    so a pair reads diagonal directions too, which axial RoPE cannot
    start: with s_j = base^(-4j/d), j < d/4, and a random direction p_h in 0 … 2 pi of each head,
        v_h = [s cos(p_h) | s cos(p_h + pi/2)],   u_h = [s sin(p_h) | s sin(p_h + pi/2)]
Scores depend on the differences in row and column only, whatever is learned, and norms are kept.
Position enters in every layer, on queries and keys; the authors learn frequencies of their own for each layer.
heads * head_dim parameters. The tables of all heads are made anew in every call, as they are being trained:
heads * length * head_dim / 2 cosines and sines in float64, then two multiplications and an addition per element
of q and k.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whorl.config import config
from whorl.encodings.rotary import Rotary
from whorl.encodings.rotary_config import RotaryConfig
from whorl.errors import WhorlError, invalid
from whorl.position_checks import check_positions
from whorl.rotary.frequencies import Ladder
from whorl.rotary.rotation import Layout, Order
from whorl.rotary.tables import Tables

AXES = 2


@config
class MixedRopeConfig(RotaryConfig):
    """Everything that makes one mixed RoPE differ from another, beside what every rotary config has.

    heads          how many heads, each with frequencies of its own
    base           the base of the magnitudes that the frequencies start from
    seed           what the random directions that they start from are drawn with; give each layer its own
    """

    name: ClassVar[str] = "mixed_rope"
    heads: int
    base: float = 10.0
    seed: int = 0

    def check(self) -> None:
        super().check()
        self.check_positive("heads")
        there = self.rotated_heads is None or max(self.rotated_heads) < self.heads
        self.must(there, "rotated_heads", f"between 0 and {self.heads - 1}")
        above = self.head_dim + 4 - self.head_dim % 4
        remedy = f"Pairs start in two directions at right angles; use head_dim={above}."
        self.must(self.head_dim % 4 == 0, "head_dim", "a multiple of 4", remedy=remedy)
        self.check_base(self.base, "RoPE-Mixed uses 10.")
        self.must(self.seed >= 0, "seed", "between 0 and 2^63 - 1")
        if self.angles == "float32":
            raise WhorlError(f"{self.call()}: learned frequencies have no float32 mode. Use angles='exact'.")

    @property
    def axes(self) -> int:
        return AXES

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        raise WhorlError(f"{self.call()}: every pair reads both axes, there is no axis of a pair. Use tables().")


def initial_frequencies(head_dim: int, heads: int, base: float, seed: int) -> Tensor:
    """The frequencies to start from, of rows and of columns: float64, shape (2, heads, head_dim / 2)."""
    sizes = Ladder(head_dim // 2, base).frequencies().repeat(2)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    direction = 2 * math.pi * torch.rand(heads, 1, generator=generator, dtype=torch.float64, device="cpu")
    quarter = head_dim // 4
    directions = torch.cat((direction.expand(-1, quarter), (direction + math.pi / 2).expand(-1, quarter)), dim=-1)
    return torch.stack((sizes * directions.sin(), sizes * directions.cos()))


def mixed_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """The angle of each pair of each head, float64, shape (1 or batch, heads, length, pairs).

    ``positions`` are (2, length) or (2, batch, length), ``frequencies`` (2, heads, pairs).
    """
    batched = positions if positions.ndim == 3 else positions.unsqueeze(1)
    row, column = batched.to(torch.float64)[:, :, None, :, None]
    of_rows, of_columns = frequencies.to(torch.float64)[:, :, None, :]
    return row * of_rows + column * of_columns


class MixedRope(Rotary):
    """Rotary position embedding of images with frequencies learned for each head, in all directions.

    Positions are (2, length) or (2, batch, length), row and column, as whorl.grid returns them. A position of
    0 on both axes leaves a token as it is, which is how class tokens are passed. The parameter
    ``frequencies_2d`` of shape (2, heads, head_dim / 2), rows first, stays float32 or wider when the module is
    cast, and is best kept out of weight decay. RoPE-ViT's checkpoints have columns first and all layers in
    one: ``freqs[:, layer].view(2, heads, -1).flip(0)``.

    >>> import torch, whorl
    >>> rope = whorl.MixedRope(head_dim=64, heads=6)
    >>> q, k = torch.randn(1, 6, 196, 64), torch.randn(1, 6, 196, 64)
    >>> positions = whorl.grid(14, 14)
    >>> q, k = rope.transform_qk(q, k, positions, positions)
    >>> rope.tables(positions)[0].shape
    torch.Size([1, 6, 196, 32])
    """

    Config = MixedRopeConfig
    config: MixedRopeConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        shape = (AXES, self.config.heads, self.config.pairs)
        self.frequencies_2d = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts back the frequencies to start from, as after loading through the meta device."""
        own = self.config
        with torch.no_grad():
            self.frequencies_2d.copy_(initial_frequencies(own.head_dim, own.heads, own.base, own.seed))

    @property
    def layout(self) -> Layout:
        return "interleaved"

    def _frequencies(self, length: int | None, device: torch.device | None = None) -> Tensor:
        """The learned frequencies of rows and of columns, float64, shape (2, heads, pairs)."""
        self._served(length)
        return self.frequencies_2d.double().to(device or self.frequencies_2d.device)

    def tables(self, positions: Tensor, length: int | None = None, *, dtype: torch.dtype = torch.float32) -> Tables:
        """cos and sin for these positions, shape (1 or batch, heads, length, pairs)."""
        axes_first = check_positions(type(self).__name__, positions, AXES)
        angles = mixed_angles(axes_first, self.frequencies(length).to(positions.device))
        cos, sin, factor = angles.cos(), angles.sin(), self.attention_factor(length)
        if factor != 1.0:  # of a class that writes it over
            cos, sin = cos * factor, sin * factor
        return cos.to(dtype), sin.to(dtype)

    def _check_head(self, name: str, x: Tensor, positions: Tensor, order: Order) -> None:
        super()._check_head(name, x, positions, order)
        call, heads = type(self).__name__, self.config.heads
        if x.ndim not in (3, 4):
            raise invalid(call, "x", "of shape (heads, length, head_dim) or (batch, heads, length, head_dim)", x)
        found = x.shape[-3 if order == "bhld" else -2]
        if found != heads:
            raise WhorlError(
                f"{call}: heads is {heads}, got a tensor with {found} heads in order {order!r}. Each head has its own "
                "frequencies; repeat keys that several heads share, or check the order of the axes."
            )
