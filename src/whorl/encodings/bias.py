"""Bias: what every encoding that adds a number to the score shares, whatever the number is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.encodings import parts
from whorl.encodings.base import Encoding
from whorl.position_checks import check_one_axis
from whorl.position_ids import difference


class Bias(Encoding):
    """Base of the encodings whose score bias depends on the head and the two positions only.

    A subclass writes ``bias_at`` once, element by element, or ``bias_of`` as a ``DistanceBias``. The dense bias is that
    formula over a grid of queries and keys, and FlexAttention calls the same formula inside its kernel.
    """

    @property
    def heads(self) -> int:
        """How many heads have a bias of their own."""
        return self.config.heads  # pyright: ignore[reportAttributeAccessIssue]

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.BiasByPair(self, formula=True),)

    def bias_at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The bias of a head for a query at i and a key at j, float32; the three broadcast against each other."""
        raise NotImplementedError

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor:
        """The bias (heads, queries, keys), with a batch axis in front where positions have one."""
        i, j = self._grid(q_positions, k_positions)
        hook = "bias_of" if type(self).bias_at is DistanceBias.bias_at else "bias_at"
        return self._whole(hook, self.bias_at(self._every_head(i), i, j), i, j)

    def _every_head(self, grid: Tensor) -> Tensor:
        return torch.arange(self.heads, device=grid.device)[:, None, None]

    def _whole(self, hook: str, bias: object, *grids: Tensor) -> Tensor:
        """What a formula gave, as numbers with axes for queries and keys."""
        found = parts.numbers_of(f"{type(self).__name__}.{hook}", bias)
        if found.ndim > 2:
            return found
        return found.expand(torch.broadcast_shapes(found.shape, *(grid.shape for grid in grids)))

    def _grid(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of queries and of keys that broadcast against each other and against heads."""
        call = type(self).__name__
        check_one_axis(call, q_positions)
        check_one_axis(call, k_positions)
        if q_positions.ndim != k_positions.ndim:
            q_positions, k_positions = torch.atleast_2d(q_positions), torch.atleast_2d(k_positions)
        return q_positions[..., None, :, None], k_positions[..., None, None, :]


class DistanceBias(Bias):
    """Base of the encodings whose score bias is of the head and the distance only: ``bias_of`` is all they write."""

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.BiasByDistance(self, formula=True),)

    def bias_of(self, head: Tensor, distance: Tensor) -> Tensor:
        """The bias of a head for a query so many positions after the key, float32; the two broadcast.

        Distances are negative for keys after the query.
        """
        raise NotImplementedError

    def bias_at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.bias_of(head, difference(i, j))

    def _bias_where_seen(self, q_positions: Tensor, k_positions: Tensor, seen: Tensor) -> Tensor:
        """As ``score_bias``, but where nobody sees the key that of a distance which somebody does see.

        A formula may have no number for keys after the query, and one that is hidden still makes every gradient NaN.
        ``seen`` broadcasts against (batch, heads, queries, keys).
        """
        i, j = self._grid(q_positions, k_positions)
        distance = difference(i, j)  # of all heads, and of all rows of a batch unless positions are of each
        if seen.ndim > 2:
            seen = seen.any(-3, keepdim=True)
        if seen.ndim > distance.ndim:
            seen = seen.any(0)
        if distance.numel():
            lowest = -torch.inf if distance.is_floating_point() else torch.iinfo(distance.dtype).min
            largest = distance.masked_fill(~seen, lowest).amax()
            distance = torch.where(seen, distance, torch.where(seen.any(), largest, 0))
        return self._whole("bias_of", self.bias_of(self._every_head(i), distance), distance)
