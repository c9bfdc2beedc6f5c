"""Learned absolute positions: a vector for each position, added to the token's embedding.

Gehring, Auli, Grangier, Yarats, Dauphin 2017, "Convolutional Sequence to Sequence Learning"; BERT, GPT-2, OPT.
    x_t + table[position_t],   table of shape (length, width), started from N(0, 0.02)
There is no row past the table. ``extend`` makes a longer one of it:
    linear   row t is read at t (length - 1) / (new_length - 1), linear between rows; the first and the last are kept
    tile     the table again and again, as Longformer started from RoBERTa
Position enters once, at the input. length * width parameters; one row read and one addition per token.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding
from whorl.errors import invalid, unknown
from whorl.position_checks import INTEGERS, check_embeddings, check_precision
from whorl.tracing import may_read_values

Extension = Literal["linear", "tile"]

START = 0.02  # standard deviation of the rows to start from, as in BERT and GPT-2


@config
class LearnedConfig(Config):
    """The size of the table.

    width          dimensions of a token's embedding
    length         how many positions have a row
    """

    name: ClassVar[str] = "learned"
    width: int
    length: int

    def check(self) -> None:
        self.check_positive("width", "length")


def interpolate(table: Tensor, new_length: int) -> Tensor:
    """The rows of a table (length, width) read at new_length places, evenly spaced from the first to the last.

    >>> interpolate(torch.tensor([[0.0], [6.0]]), 4).flatten().tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    steps = max(new_length - 1, 1)
    places = torch.arange(new_length, device=table.device) * (table.shape[0] - 1)
    low = torch.div(places, steps, rounding_mode="floor")  # in whole numbers, so that kept rows are kept exactly
    weight = ((places - low * steps).double() / steps).unsqueeze(-1)
    high = (low + 1).clamp(max=table.shape[0] - 1)
    return ((1 - weight) * table[low] + weight * table[high]).to(table.dtype)


def tile(table: Tensor, new_length: int) -> Tensor:
    """The rows of a table (length, width) from the first to the last and again, new_length of them."""
    return table[torch.arange(new_length, device=table.device) % table.shape[0]]


class Learned(Encoding):
    """A learned vector for each position, added to the input.

    A position outside the table is an error. On the CPU it is found before the table is read; on a device
    and in a compiled graph values are not looked at, which would stall it, and the read of the row fails.

    >>> import torch, whorl
    >>> learned = whorl.Learned(width=8, length=16)
    >>> learned.add_to_input(torch.zeros(2, 5, 8), whorl.positions(5)).shape
    torch.Size([2, 5, 8])
    >>> learned.extend(64).table.shape
    torch.Size([64, 8])
    """

    Config = LearnedConfig
    config: LearnedConfig
    claims = Claims(
        relative=False,  # each position is learned by itself; nothing ties equal distances together
        norm_preserving=False,
        linear_attention=True,  # the scores are those of any other input
        decays=False,
        extrapolates=False,  # no row past the table
    )

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = nn.Parameter(torch.empty(self.config.length, self.config.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the table anew, as loading through the meta device needs."""
        nn.init.normal_(self.table, std=START)

    def add_to_input(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (…, length, width) with the row of each position added, in the dtype of x."""
        call = type(self).__name__
        check_embeddings(call, x, positions, self.config.width)
        check_precision(call, "positions", positions)
        if positions.dtype not in INTEGERS:
            raise invalid(call, "positions", "int32 or int64", positions, "A table has a row for whole positions only.")
        if positions.numel() and may_read_values(positions):
            self._check_range(positions)
        # not table[positions]: an index below zero would count from the end
        return (x + nn.functional.embedding(positions, self.table)).to(x.dtype)

    def _check_range(self, positions: Tensor) -> None:
        low, high = (int(bound) for bound in torch.aminmax(positions))
        length = self.config.length
        if low < 0 or high >= length:
            worst = low if low < 0 else high
            remedy = "Shift padded positions to 0." if low < 0 else f"A longer table is extend({high + 1})."
            raise invalid(type(self).__name__, "positions", f"between 0 and {length - 1}", worst, remedy)

    def extend(self, new_length: int, mode: Extension = "linear") -> Learned:
        """A new encoding with a longer table made of this one, ``"linear"`` between its rows or ``"tile"``."""
        call, length = f"{type(self).__name__}.extend", self.config.length
        if mode not in get_args(Extension):
            raise unknown("mode", mode, get_args(Extension), call=call)
        if isinstance(new_length, bool) or not isinstance(new_length, int) or new_length < length:
            remedy = "A table of fewer positions needs no extending; pass fewer positions."
            raise invalid(call, "new_length", f"an integer of at least length={length}", new_length, remedy)
        stretch = interpolate if mode == "linear" else tile
        out = type(self)(width=self.config.width, length=new_length)
        rows = stretch(self.table.detach(), new_length)
        out.table = nn.Parameter(rows, requires_grad=self.table.requires_grad)
        return out.train(self.training)
