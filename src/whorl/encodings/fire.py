"""FIRE, functional interpolation of relative positions: a small network of the distance, measured by the query's place.

Li, You, Guruganesh, Ainslie, Ontanon, Zaheer, Sanghai, Yang, Kumar, Bhojanapalli 2023, "Functional Interpolation for
Relative Positions Improves Long Context Transformers".
    x = psi(|i - j|) / (psi(max(i, |m L0|)) + 1e-6),   psi(y) = ln(|c y| + 1)
    bias of head h:   w2_h . relu(w1 x + b1) + b2_h,   a network 1 -> 32 -> heads
c starts from 0.1 and m from 1; both are learned. x is between 0 and 1 for every causal pair, however long the text:
it interpolates. The denominator looks at the query's position, so equal distances have different biases at different
places once i passes |m L0|, and decoding with a cache needs the true position of the query. Keys after the query count
by their distance |i - j|.
Position enters in the scores of each layer; the paper has parameters for every layer (FIRE) or shares them (FIRE-S).
2 + 64 + 33 heads parameters. Relus of one number make a broken line, so dense it is a logarithm and a search among 32
knots per pair of positions, and two table reads and a multiply-add per score.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.bias import Bias
from whorl.position_checks import check_one_axis
from whorl.position_ids import difference
from whorl.tracing import operators_are_watched, takes_gradients

EPSILON = 1e-6
START_C = 0.1


@config
class FireConfig(Config):
    """Everything that makes one FIRE differ from another.

    heads          how many heads
    length         L0, the position up to which all queries measure alike, in the paper below the trained length
    hidden         units in the middle of the network
    """

    name: ClassVar[str] = "fire"
    heads: int
    length: int = 512
    hidden: int = 32

    def check(self) -> None:
        self.check_positive("heads", "length", "hidden")


def progress(i: Tensor, j: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    """x above: how far a key at j is from a query at i, on a logarithmic scale that ends where the query's text begins.

    >>> i, j, c = torch.tensor([100, 1000]), torch.tensor([99, 500]), torch.tensor(0.1)
    >>> progress(i, j, c, torch.tensor(512.0))
    tensor([0.0241, 0.8519])
    """
    distance = difference(i, j).abs().to(c.dtype)
    reach = torch.maximum(i.to(c.dtype), threshold)
    return torch.log1p((c * distance).abs()) / (torch.log1p((c * reach).abs()) + EPSILON)


def segments(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The network as straight lines: knots (hidden,) in order, and slopes and starts of the lines (hidden + 1, heads).

    relu(w1 x + b1) bends at x = -b1 / w1 and nowhere else, so the network is slope * x + start between two knots.
    """
    knots, active = bends(w1, b1)
    return knots, *lines(active, w1, b1, w2, b2)


def lines(active: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes and starts of the lines on which these units are active."""
    active = active.unsqueeze(-1)
    return (active * (w1[:, None] * w2.mT)).sum(1), (active * (b1[:, None] * w2.mT)).sum(1) + b2


def bends(w1: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
    """The knots in order, and 1 where a unit is above zero between two of them, (hidden + 1, hidden)."""
    flat = w1 == 0
    knots, order = torch.where(flat, 0.0, -b1 / torch.where(flat, 1.0, w1)).detach().sort()  # lines meet: no gradient
    passed = torch.arange(w1.shape[0] + 1, device=w1.device)[:, None] > order.argsort()  # (segment, unit)
    return knots, torch.where(flat, b1 > 0, passed == (w1 > 0)).to(w1.dtype)


class LineNumbers(torch.autograd.Function):
    """``Fire.line_numbers`` with a gradient of few operations: calls wait for Python, and autograd's own has fifty."""

    @staticmethod
    def forward(ctx: Any, fire: Fire, q_positions: Tensor, room: int, *learned: Tensor) -> Tensor:
        numbers, active = fire.formed_lines(q_positions, room)
        ctx.save_for_backward(numbers, active, q_positions, *learned)
        ctx.length, ctx.wide = fire.config.length, fire._wide
        return numbers

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        numbers, active, q_positions, *learned = ctx.saved_tensors
        c, multiplier, w1, b1, w2, _ = (x.to(ctx.wide) for x in learned)
        count, end_of_lines, grad = q_positions.shape[0], 3 * len(active), grad.to(ctx.wide)
        of_lines = grad[:, : 2 * len(active)].unflatten(1, (2, -1))  # slopes, starts
        of_products = (of_lines.unsqueeze(-1) * active).sum(2)  # of w1 w2 and b1 w2, (heads, 2, hidden)
        of_w2 = (of_products * torch.stack((w1, b1))).sum(1)
        of_w1, of_b1 = (of_products * w2.unsqueeze(1)).sum(0)
        # r = ln 2 / (ln(1 + |c| end) + epsilon):   dr = -r^2 / ln 2 (end d|c| + |c| d end) / (1 + |c| end)
        of_c, of_r = grad[:, end_of_lines : end_of_lines + 1 + count].sum(0).split((1, count))
        r, positions = numbers[0, end_of_lines + 1 :][:count].to(ctx.wide), q_positions.to(ctx.wide)
        least = (multiplier * ctx.length).abs()
        end = torch.maximum(positions, least)
        of_both = of_r * r * r / (-math.log(2.0) * (1.0 + c.abs() * end))
        by_least = torch.where(positions == least, 0.5, (positions < least).to(ctx.wide))
        of_c = (of_c + (of_both * end).sum()) * c.sign()
        of_multiplier = (of_both * by_least).sum() * c.abs() * multiplier.sign() * ctx.length
        found = of_c, of_multiplier, of_w1, of_b1, of_w2, of_lines[:, 1].sum(1)
        return None, None, None, *(each.to(x.dtype) for each, x in zip(found, learned, strict=True))


class Fire(Bias):
    """A learned function of the distance over the distance there is.

    >>> import torch, whorl
    >>> fire = whorl.Fire(heads=8, length=256)
    >>> fire.score_bias(whorl.positions(5), whorl.positions(5)).shape
    torch.Size([8, 5, 5])

    ``c`` and ``multiplier`` (m) have one number each; ``w1``, ``b1`` (hidden,), ``w2`` (heads, hidden) and ``b2``
    (heads,) are the network.
    """

    Config = FireConfig
    config: FireConfig
    claims = Claims(
        relative=False,  # the denominator knows where the query is
        norm_preserving=True,  # queries and keys are left alone
        linear_attention=False,  # a bias inside a softmax
        decays=False,  # as learned
        extrapolates=False,  # no committed result tells
    )

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        heads, hidden = self.config.heads, self.config.hidden
        self.c = nn.Parameter(torch.empty(1))  # one axis: parameters without any cannot be sharded
        self.multiplier = nn.Parameter(torch.empty(1))
        self.w1 = nn.Parameter(torch.empty(hidden))
        self.b1 = nn.Parameter(torch.empty(hidden))
        self.w2 = nn.Parameter(torch.empty(heads, hidden))
        self.b2 = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the network anew, as torch's linear layers start, and sets c and m to 0.1 and 1."""
        nn.init.constant_(self.c, START_C)
        nn.init.ones_(self.multiplier)
        for fan_in, parameters in ((1, (self.w1, self.b1)), (self.config.hidden, (self.w2, self.b2))):
            for parameter in parameters:
                nn.init.uniform_(parameter, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def declare(self) -> tuple[parts.Part, ...]:
        # a network of one number, unrolled, needs more shared memory than there is, or does not compile
        refusal = "FlexAttention cannot compile the network of Fire there"
        return (parts.BiasByPair(self, formula=True, not_in_flex=refusal, lines=self.config.hidden + 1),)

    @property
    def _wide(self) -> torch.dtype:
        return torch.float64 if self.w1.dtype == torch.float64 else torch.float32

    def bias_at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        wide, x = self._wide, self._progress(i, j)
        out = self.b2[head].to(wide)
        for unit in range(self.config.hidden):  # unrolled: inside a kernel there is no axis for the units
            w1, b1, w2 = self.w1[unit].to(wide), self.b1[unit].to(wide), self.w2[head, unit].to(wide)
            out = out + w2 * torch.relu(w1 * x + b1)
        return out

    def _network(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = self._wide
        return self.w1.to(wide), self.b1.to(wide), self.w2.to(wide), self.b2.to(wide)

    def line_numbers(self, q_positions: Tensor, room: int) -> Tensor:
        """What kernels compute the bias from, (heads, numbers) in float32, with room for so many queries.

        Slopes and starts of the head's lines; the knots between them and infinity; |c|; and for each query the number
        by which log2(1 + |c| distance) is multiplied to be x.
        """
        learned = self.c, self.multiplier, self.w1, self.b1, self.w2, self.b2
        if operators_are_watched() or not takes_gradients(*learned):
            return self.formed_lines(q_positions, room)[0]
        return LineNumbers.apply(self, q_positions, room, *learned)

    def formed_lines(self, q_positions: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """As ``line_numbers``, by torch's operations; and which units are active on which line."""
        w1, b1, w2, b2 = self._network()
        knots, active = bends(w1, b1)
        slopes, starts = lines(active, w1, b1, w2, b2)
        c = self.c.to(self._wide).abs()
        end = torch.maximum(q_positions.to(self._wide), (self.multiplier.to(self._wide) * self.config.length).abs())
        by_query = math.log(2.0) / (torch.log1p(c * end) + EPSILON)
        shared = torch.cat((knots, knots.new_full((1,), torch.inf), c, pad(by_query, (0, room - len(by_query)))))
        return torch.cat((slopes.mT, starts.mT, shared.expand(self.heads, -1)), dim=1).float(), active

    def _progress(self, i: Tensor, j: Tensor) -> Tensor:
        c, multiplier = self.c[0].to(self._wide), self.multiplier[0].to(self._wide)
        return progress(i, j, c, (multiplier * self.config.length).abs())

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor:
        """The bias (heads, queries, keys), with a batch axis in front where positions have one.

        x is the same for every head, and so is the straight line it falls on: one search for each pair of positions.
        """
        if type(self).bias_at is not Fire.bias_at:  # a subclass has a formula of its own
            return super().score_bias(q_positions, k_positions, length)
        call = type(self).__name__
        check_one_axis(call, q_positions)
        check_one_axis(call, k_positions)
        x = self._progress(q_positions[..., :, None], k_positions[..., None, :]).unsqueeze(-3)
        knots, slopes, starts = segments(*self._network())
        segment = torch.searchsorted(knots, x, right=True)
        head = torch.arange(self.heads, device=x.device)[:, None, None]
        return slopes[segment, head] * x + starts[segment, head]
