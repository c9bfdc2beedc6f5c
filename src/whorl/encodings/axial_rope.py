"""Axial RoPE, the rotary position embedding of image patches, video patches and voxels.

Heo, Park, Han, Yun 2024, "Rotary Position Embedding for Vision Transformer", and the vision towers named below.
    pair j of a patch at position (row, column) is turned by the angle position[axis(j)] * w_j
    the axes share the head equally, and each has the frequencies of a head of its own size:
        w = base^(-2i/b),   b = head_dim / axes,   i < b/2
The public conventions differ in base, in the axis that comes first, and in which dimensions make a pair:
    rope_vit       100      column first  interleaved                    RoPE-ViT; SAM 2 with base=10_000
    qwen_vision    10,000   row first     half, over the whole head      Qwen2-VL, Qwen2.5-VL, Qwen3-VL
    apex           10,000   row first     half, inside each axis' share  NVIDIA apex; Gemma 4: base=100, columns first
    llama4_vision  10,000   column first  interleaved                    Llama 4, which counts positions from 1
    pixtral        10,000   row first     half, over the whole head      Pixtral: w = base^(-2i/head_dim), of which
                                                                         rows have the even i, columns the odd
    dinov3         100      row first     half, over the whole head      DINOv3: positions in -1 … 1, w times 2 pi
    kimi_vision    10,000   columns and rows in turn, column first       Kimi-K2.5: half, over the whole head
    loftr          10,000   rows and columns in turn, row first          EfficientLoFTR: interleaved, over all heads as
                                                                         one, and positions count from 1
    minimax_vision 10,000   row first     half, over what is shared      MiniMax-M3: three axes with time first; what
                                                                         equal shares leave of the head is not turned
rope_vit, qwen_vision, apex and minimax_vision go on to three axes and more (time, row, column), the others are for
images.
This is one rotation per axis on its own dimensions, and no Kronecker product of rotations: axes add, and
scores depend on the difference of two positions along each axis. Norms are kept.
Position enters in every layer, on queries and keys. No parameters; two multiplications and an addition per element of
q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whorl.config import config
from whorl.encodings.rotary import Rotary
from whorl.encodings.rotary_config import RotaryConfig
from whorl.errors import WhorlError
from whorl.position_checks import check_positions
from whorl.rotary.frequencies import Ladder
from whorl.rotary.rotation import Layout
from whorl.rotary.tables import Tables

ConventionName = Literal[
    "rope_vit", "qwen_vision", "pixtral", "llama4_vision", "dinov3", "apex", "kimi_vision", "loftr", "minimax_vision"
]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What a public convention fixes."""

    base: float
    layout: Layout
    last_axis_first: bool = False  # whether columns turn the first pairs
    own_blocks: bool = False  # whether the layout is applied to each axis' dimensions by themselves
    in_turn: bool = False  # whether axes alternate from pair to pair, each on its own ladder
    leaves_rest: bool = False  # whether dimensions that no equal share takes are left as they are
    images_only: bool = True  # whether it has no form beyond two axes
    unit: float = 1.0  # the angle of frequency 1 at position 1


CONVENTIONS: dict[str, Convention] = {
    "rope_vit": Convention(base=100.0, layout="interleaved", last_axis_first=True, images_only=False),
    "qwen_vision": Convention(base=10_000.0, layout="half", images_only=False),
    "pixtral": Convention(base=10_000.0, layout="half"),
    "llama4_vision": Convention(base=10_000.0, layout="interleaved", last_axis_first=True),
    "dinov3": Convention(base=100.0, layout="half", unit=2 * math.pi),
    "apex": Convention(base=10_000.0, layout="half", own_blocks=True, images_only=False),
    "kimi_vision": Convention(base=10_000.0, layout="half", last_axis_first=True, in_turn=True),
    "loftr": Convention(base=10_000.0, layout="interleaved", in_turn=True),
    "minimax_vision": Convention(base=10_000.0, layout="half", images_only=False, leaves_rest=True),
}


@config
class AxialRopeConfig(RotaryConfig):
    """Everything that makes one axial RoPE differ from another, beside what every rotary config has.

    convention     whose frequencies, order of axes and layout
    base           the base of the frequencies; None for the convention's own
    axes           2 for images; 3 for video and volumes, where the convention has a form for them
    """

    name: ClassVar[str] = "axial_rope"
    convention: ConventionName = "rope_vit"
    base: float | None = None
    axes: int = 2  # pyright: ignore[reportIncompatibleMethodOverride]  # a setting here, where others answer

    def check(self) -> None:
        super().check()
        if self.base is None:
            object.__setattr__(self, "base", self.fixed.base)
        else:
            self.check_base(self.base, f"{self.convention} uses {self.fixed.base:g}.")
        self.must(self.axes >= 2, "axes", "2 or more", remedy="With one axis use Rope.")
        if self.fixed.images_only and self.axes != 2:
            more = " or ".join(repr(name) for name, each in CONVENTIONS.items() if not each.images_only)
            raise WhorlError(
                f"{self.call()}: convention={self.convention!r} is for images, with 2 axes, got axes={self.axes}. "
                f"Use {more}."
            )
        step = 2 * self.axes
        fits, above = self.head_dim % step == 0 or self.fixed.leaves_rest, self.head_dim + step - self.head_dim % step
        remedy = f"{self.axes} axes share its pairs equally; use head_dim={above}, or MRope for unequal shares."
        expected = f"at least {step}" if self.fixed.leaves_rest else f"a multiple of {step}"
        self.must(self.head_dim >= step and fits, "head_dim", expected, remedy=remedy)

    @property
    def fixed(self) -> Convention:
        """What the convention fixes."""
        return CONVENTIONS[self.convention]

    @property
    def unit(self) -> float:
        return self.fixed.unit

    @property
    def pairs(self) -> int:
        return self.head_dim // (2 * self.axes) * self.axes

    @property
    def blocks(self) -> int:
        return self.axes if self.fixed.own_blocks else 1

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        order, share = tuple(range(self.axes)), self.pairs // self.axes
        order = order[::-1] if self.fixed.last_axis_first else order
        return order * share if self.fixed.in_turn else tuple(axis for axis in order for _ in range(share))

    def scaled_frequencies(self, length: int | None = None) -> Tensor:
        assert self.base is not None
        return axial_frequencies(self.convention, self.head_dim, self.axes, self.base, self.dtype)


def axial_frequencies(convention: ConventionName, head_dim: int, axes: int, base: float, dtype: torch.dtype) -> Tensor:
    """w of each pair before the convention's unit, shape (pairs,).

    >>> axial_frequencies("qwen_vision", 8, 2, 10_000.0, torch.float64)
    tensor([1.0000, 0.0100, 1.0000, 0.0100], dtype=torch.float64)
    """
    if convention == "pixtral":
        whole = Ladder(head_dim, base, dtype=dtype).frequencies()
        return torch.cat((whole[0::2], whole[1::2]))
    if convention == "dinov3":
        # its steps in float32 are those of arange; a rounded step may give one number too many
        exponents = torch.arange(0, 1, 4 / head_dim, dtype=dtype, device="cpu")[: head_dim // 4]
        return (1.0 / base**exponents).repeat(2)
    ladder = Ladder(head_dim // (2 * axes) * 2, base, dtype=dtype).frequencies()
    return ladder.repeat_interleave(axes) if CONVENTIONS[convention].in_turn else ladder.repeat(axes)


class AxialRope(Rotary):
    """Rotary position embedding of a grid: each axis turns an equal share of the pairs.

    Positions are (axes, length) or (axes, batch, length), axis 0 the row and the last the column, with time
    in front for video, as whorl.grid returns them. A position of 0 on all axes leaves a token as it is,
    which is how class and register tokens are passed.

    >>> import torch, whorl
    >>> rope = whorl.AxialRope(head_dim=64, convention="rope_vit")
    >>> q, k = torch.randn(1, 8, 197, 64), torch.randn(1, 8, 197, 64)
    >>> positions = torch.cat((torch.zeros(2, 1, dtype=torch.int64), whorl.grid(14, 14)), dim=1)  # class token first
    >>> q, k = rope.transform_qk(q, k, positions, positions)

    Llama 4 counts rows and columns from 1 and has its class token at the end:

    >>> llama4 = whorl.AxialRope(head_dim=88, convention="llama4_vision")
    >>> positions = torch.cat((whorl.grid(24, 24, offset=1), torch.zeros(2, 1, dtype=torch.int64)), dim=1)

    DINOv3 takes the centres of patches, in -1 to 1 at every resolution:

    >>> dinov3 = whorl.AxialRope(head_dim=64, convention="dinov3")
    >>> cos, sin = dinov3.tables(whorl.normalized_grid(14, 14))
    """

    Config = AxialRopeConfig
    config: AxialRopeConfig

    @property
    def layout(self) -> Layout:
        return self.config.fixed.layout

    def tables(self, positions: Tensor, length: int | None = None, *, dtype: torch.dtype = torch.float32) -> Tables:
        unit = self.config.unit
        if unit != 1.0:
            # on the positions and not on the frequencies: the order in which DINOv3 rounds in float32
            axes_first = check_positions(type(self).__name__, positions, self.config.axes)
            positions = unit * axes_first.to(self.config.dtype)
        return super().tables(positions, length, dtype=dtype)
