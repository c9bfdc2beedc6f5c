"""The tokens a cache was given, and what attention over them is: row by row, without padding, in float64.

Nothing here asks a cache, and nothing is kept between calls but what the user passed: positions are Python numbers,
which no dtype rounds, and every answer is a full pass by ``dense_flow`` over the real tokens of one row.
"""

from __future__ import annotations

import copy

import torch

import dense_flow
import whorl


def parts(encoding: whorl.Encoding) -> list[whorl.Encoding]:
    """The encodings that are joined in this one, or itself."""
    return [leaf for part in getattr(encoding, "encodings", ()) for leaf in parts(part)] or [encoding]


def reader(encoding: whorl.Encoding) -> whorl.Encoding | None:
    """The part that reads hidden states."""
    return next((part for part in parts(encoding) if part.reads_hidden), None)


class Tokens:
    """The tokens so far: queries, keys, values, hidden states, positions[axis][row][slot] and which are real."""

    def __init__(self, *, batch: int, axes: int) -> None:
        self.given: list[torch.Tensor] | None = None  # q, k, v and hidden, in float64
        self.positions: list[list[list[float]]] = [[[] for _ in range(batch)] for _ in range(axes)]
        self.real: list[list[bool]] = [[] for _ in range(batch)]
        self.fractions = False  # whether a float tensor was among the positions

    def __len__(self) -> int:
        return len(self.real[0])

    @property
    def batch(self) -> int:
        return len(self.real)

    def next_position(self, row: int) -> float:
        """What comes after the largest position of the row's real tokens on any axis; 0 where there is none."""
        found = [p for axis in self.positions for p, real in zip(axis[row], self.real[row], strict=True) if real]
        return max(found) + 1 if found else 0

    def default_positions(self, real: list[list[bool]]) -> list[list[list[float]]]:
        """Positions of new tokens that go on from the real ones; what padding has is nobody's business."""
        out = []
        for row, marks in enumerate(real):
            following, own = self.next_position(row), []
            for mark in marks:
                own.append(following)
                following += mark
            out.append(own)
        return [out for _ in self.positions]

    def add(self, q, k, v, hidden, positions: list[list[list[float]]], real: list[list[bool]]) -> None:
        new = [x.double() for x in (q, k, v, hidden)]
        axes = (2, 2, 2, 1)
        before = self.given
        joined = zip(before, new, axes, strict=True) if before else ()
        self.given = [torch.cat((old, more), dim=axis) for old, more, axis in joined] or new
        for mine, more in zip(self.positions, positions, strict=True):
            for row, numbers in enumerate(more):
                mine[row] = mine[row] + list(numbers)
        self.real = [mine + list(more) for mine, more in zip(self.real, real, strict=True)]

    def crop(self, count: int) -> None:
        self.given = [
            self.given[0][:, :, :count],
            *(x[:, :, :count] for x in self.given[1:3]),
            self.given[3][:, :count],
        ]
        self.positions = [[row[:count] for row in axis] for axis in self.positions]
        self.real = [row[:count] for row in self.real]
        self.fractions = self.fractions and count > 0

    def reorder(self, rows: list[int]) -> None:
        self.given = [x[rows] for x in self.given]
        self.positions = [[axis[row] for row in rows] for axis in self.positions]
        self.real = [self.real[row] for row in rows]

    def expected(self, encoding, count: int, *, length: int | None = None, causal: bool = True):
        """(row, slots among the last ``count``, output) of every row with a real token among them."""
        if any(parameter.dtype != torch.float64 for parameter in encoding.parameters()):
            encoding = copy.deepcopy(encoding).double()
        for row in range(self.batch):
            kept = [slot for slot in range(len(self)) if self.real[row][slot]]
            asked = [slot for slot in kept if slot >= len(self) - count]
            if asked:
                yield (
                    row,
                    [slot - len(self) + count for slot in asked],
                    self._row(encoding, row, kept, asked, length=length, causal=causal),
                )

    @torch.no_grad()
    def _row(self, encoding, row: int, kept: list[int], asked: list[int], **options):
        q, k, v, hidden = (x[row : row + 1] for x in self.given)
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1)[:, :, kept] for x in (k, v))
        memory = encoding.remember(hidden[:, kept]) if reader(encoding) is not None else None
        q_positions, k_positions = self._ids(row, asked), self._ids(row, kept)
        found = dense_flow.attend(encoding, q[:, :, asked], k, v, q_positions, k_positions, hidden=memory, **options)
        return found.out[0]

    def _ids(self, row: int, slots: list[int]) -> torch.Tensor:
        numbers = [[axis[row][slot] for slot in slots] for axis in self.positions]
        whole = all(isinstance(p, int) for axis in numbers for p in axis)
        ids = torch.tensor(numbers, dtype=torch.int64 if whole else torch.float64)
        return ids[0] if len(numbers) == 1 else ids
