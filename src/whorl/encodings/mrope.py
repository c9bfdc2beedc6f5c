"""M-RoPE, the rotary position embedding of tokens that have a time, a row and a column.

Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution".
    pair j of a token at position (t, h, w) is turned by the angle position[axis(j)] * w_j
    w_j are the frequencies of RoPE, scaled as there, and axis(j) is one vector:
        chunked      t t t … h h h … w w w …     Qwen2-VL, Qwen2.5-VL, GLM-4V; HunYuan's XD-RoPE with four axes
        interleaved  t h w t h w … t t t         Qwen3-VL
        ernie        h w h w … t t t             Ernie 4.5 VL
        alternating  h w h w …                   NeoMME, with no axis of time
A text token has one position on all axes and is turned as RoPE turns it. Scores depend on the
difference of two positions along each axis, and norms are kept as in RoPE.
Position enters in every layer, on queries and keys. No parameters; two multiplications and an addition per element of
q and k.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whorl.config import config
from whorl.encodings.rope import Rope, RopeConfig
from whorl.errors import WhorlError
from whorl.rotary.frequencies import Ladder

Arrangement = Literal["chunked", "interleaved", "ernie", "alternating"]

TIME, ROW, COLUMN = range(3)  # the axes of positions, whatever the order of the sections


@config
class MRopeConfig(RopeConfig):
    """Everything that makes one M-RoPE differ from another, beside what RoPE has.

    sections       how many pairs each axis turns, all pairs in sum: (t, h, w), and (h, w, t) for "ernie";
                   None for the shares of Qwen2-VL, a quarter to time and the rest to rows and columns
    arrangement    how the axes lie on the ladder of frequencies; independent of ``layout``
    own_ladders    whether each axis has the frequencies of a head of its own size, as in Flux, in place of its part of
                   one ladder
    """

    name: ClassVar[str] = "mrope"
    later: ClassVar[tuple[str, ...]] = (*RopeConfig.later, "own_ladders")
    sections: tuple[int, ...] | None = None
    arrangement: Arrangement = "chunked"
    own_ladders: bool = False

    def check(self) -> None:
        super().check()
        self._check_own_ladders()
        if self.sections is None:
            found = shares(self.pairs, self.arrangement)
            if not _shares_all(found, self.pairs):
                smallest = next(n for n in count(1) if _shares_all(shares(n, self.arrangement), n))
                wanted = "divisible by 4" if self.arrangement == "alternating" else f"of at least {2 * smallest}"
                raise WhorlError(
                    f"{self.call()}: rotary_dim={2 * self.pairs} cannot be shared among {len(found)} axes as "
                    f"arrangement={self.arrangement!r} does. Choose one {wanted}; it is head_dim unless given."
                )
            object.__setattr__(self, "sections", found)
        call, sections = self.call(), self.shared
        remedy = "Each is the number of pairs one axis turns; with one axis use Rope."
        several = len(sections) >= 2 and min(sections) >= 1
        self.must(several, "sections", "at least 2 positive integers", sections, remedy)
        if sum(sections) != self.pairs:
            raise WhorlError(
                f"{call}: sections must sum to rotary_dim / 2 = {self.pairs}, got {sections}, which sum to "
                f"{sum(sections)}. Every rotated pair belongs to one axis."
            )
        if self.arrangement == "alternating":
            if len(set(sections)) > 1:
                raise WhorlError(
                    f"{call}: arrangement='alternating' gives each axis every n-th pair, so sections must be equal, "
                    f"got {sections}. NeoMME has (16, 16)."
                )
        elif self.arrangement != "chunked":
            self._check_three_axes()

    def _check_own_ladders(self) -> None:
        unusual = {"scaling": self.scaling, "frequencies": self.frequencies}
        if self.arrangement != "chunked":
            unusual["arrangement"] = self.arrangement
        given = next((name for name, value in unusual.items() if value is not None), None)
        if self.own_ladders and given is not None:
            raise WhorlError(
                f"{self.call()}: own_ladders=True has a ladder for each axis, one after another, and none of {given}. "
                f"Leave {given} out, or pass the numbers as frequencies=… with own_ladders=False."
            )

    def _check_three_axes(self) -> None:
        call, sections, arrangement = self.call(), self.shared, self.arrangement
        if len(sections) != 3:
            raise WhorlError(
                f"{call}: arrangement={arrangement!r} takes 3 sections, got {sections}. "
                "Use arrangement='chunked' for another number of axes."
            )
        if arrangement == "ernie" and sections[0] != sections[1]:
            raise WhorlError(
                f"{call}: arrangement='ernie' alternates rows and columns, so sections (h, w, t) must have h == w, "
                f"got {sections}. Ernie 4.5 VL has (22, 22, 20), with time last."
            )
        if arrangement == "interleaved":
            # rows sit at 1, 4, 7 …, columns at 2, 5, 8 …: this many of each fit below pairs
            most = ((self.pairs + 1) // 3, self.pairs // 3)
            if sections[ROW] > most[0] or sections[COLUMN] > most[1]:
                raise WhorlError(
                    f"{call}: arrangement='interleaved' has room for at most {most[0]} row and {most[1]} column pairs "
                    f"of {self.pairs}, got sections (t, h, w) = {sections}. Larger ones would come out short; "
                    "use arrangement='chunked' or give more to t."
                )

    @property
    def shared(self) -> tuple[int, ...]:
        """The sections, which ``check`` has filled in."""
        assert self.sections is not None
        return self.sections

    @property
    def axes(self) -> int:
        return len(self.shared)

    def scaled_frequencies(self, length: int | None = None) -> Tensor:
        if not self.own_ladders:
            return super().scaled_frequencies(length)
        ladders = torch.cat([Ladder(2 * size, self.base, dtype=self.dtype).frequencies() for size in self.shared])
        return -ladders if self.backwards else ladders

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        return ARRANGEMENTS[self.arrangement](self.shared)


def shares(pairs: int, arrangement: Arrangement) -> tuple[int, ...]:
    """Sections in the shares of the models that use the arrangement: Qwen2-VL, Qwen3-VL, Ernie 4.5 VL, NeoMME.

    >>> shares(64, "chunked"), shares(64, "interleaved"), shares(64, "ernie")
    ((16, 24, 24), (24, 20, 20), (22, 22, 20))
    """
    if arrangement == "alternating":
        return (pairs // 2, pairs // 2)
    space = {"chunked": 24, "interleaved": 20, "ernie": 22}[arrangement] * pairs // 64
    time = pairs - 2 * space
    return (space, space, time) if arrangement == "ernie" else (time, space, space)


def _shares_all(sections: tuple[int, ...], pairs: int) -> bool:
    """Whether every axis turns a pair, and every pair has an axis."""
    return min(sections) >= 1 and sum(sections) == pairs


def chunked(sections: tuple[int, ...]) -> tuple[int, ...]:
    """The axis of each pair: one axis after another.

    >>> chunked((2, 1, 3))
    (0, 0, 1, 2, 2, 2)
    """
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))


def interleaved(sections: tuple[int, ...]) -> tuple[int, ...]:
    """The axis of each pair: time, row, column in turn, and time where rows and columns have had their share.

    >>> interleaved((4, 2, 1))
    (0, 1, 2, 0, 1, 0, 0)
    """
    turn = (j % 3 for j in range(sum(sections)))
    return tuple(axis if axis != TIME and j < 3 * sections[axis] else TIME for j, axis in enumerate(turn))


def ernie(sections: tuple[int, ...]) -> tuple[int, ...]:
    """The axis of each pair: row and column in turn, then time; sections are (h, w, t) with h == w.

    >>> ernie((2, 2, 3))
    (1, 2, 1, 2, 0, 0, 0)
    """
    return (ROW, COLUMN) * sections[0] + (TIME,) * sections[2]


def alternating(sections: tuple[int, ...]) -> tuple[int, ...]:
    """The axis of each pair: all axes in turn; sections are equal.

    >>> alternating((3, 3))
    (0, 1, 0, 1, 0, 1)
    """
    return tuple(range(len(sections))) * sections[0]


ARRANGEMENTS: dict[Arrangement, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "chunked": chunked,
    "interleaved": interleaved,
    "ernie": ernie,
    "alternating": alternating,
}


class MRope(Rope):
    """Rotary position embedding with several position axes, each turning its own pairs.

    Positions are (axes, length) or (axes, batch, length), axes in the order time, row, column, as
    whorl.multimodal returns them (HunYuan's four are index, column, row, time); (length,) stands for text,
    the same on all axes.

    >>> import torch, whorl
    >>> mrope = whorl.MRope(head_dim=128, sections=(16, 24, 24), base=1_000_000.0)
    >>> positions = whorl.multimodal([whorl.Text(1), whorl.Image(4, 4), whorl.Text(1)], rule="qwen2_vl")
    >>> q, k = torch.randn(1, 8, 6, 128), torch.randn(1, 2, 6, 128)
    >>> q, k = mrope.transform_qk(q, k, positions, positions)
    >>> q.shape, k.shape
    (torch.Size([1, 8, 6, 128]), torch.Size([1, 2, 6, 128]))

    Blocks of unequal size with a ladder each, as models of images and video have, are sections with their own ladders:

    >>> flux = whorl.MRope(head_dim=128, sections=(8, 28, 28), own_ladders=True, layout="interleaved")
    """

    Config = MRopeConfig
    config: MRopeConfig
