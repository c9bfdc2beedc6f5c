"""Probes of whether far text is used at all: texts made from samples, and which of their tokens are asked for.

A repeated text is said again and again, one token longer than the trained length, so that a window of that length never
reaches back to what it heard the last time; below twice the trained length it is half the length. A hidden key and its
value stand somewhere in a text, and the key again at its end: what is asked for is the value.

A small model does not learn in minutes to find a key of letters. So that it has something to find, a share of the rows
that it is trained on may carry a mark (``RunConfig.recall``): a byte that no UTF-8 text has, behind another that asks
for it, said now and then and asked for at the end of the row. The probe is then such a mark, said once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RETRIEVALS, REPEATED = 100, 16  # probes at each length, where there are samples enough
KEY, VALUE = 8, 8  # letters
ASK, MARKS = 0xFF, tuple(range(0xF5, 0xFF))  # bytes that no UTF-8 text has
MOST_SAID = 8  # times in a row that is trained on


class Probe(NamedTuple):
    """Tokens (probes, length + 1), from which target on they are asked for, and how deep a key lies, as shares.

    ``chance`` is the share of answers that are right where one of those that may be asked for is guessed.
    """

    tokens: Tensor
    asked: int
    depth: list[float]
    chance: float | None = None


class Letters(NamedTuple):
    """The tokens that a key is written in: letters, and what stands before, between and behind them."""

    letters: tuple[int, ...]
    line: int
    space: int


BYTES = Letters(tuple(range(97, 123)), 10, 32)


def repeated(samples: Tensor, length: int, trained: int) -> Probe | None:
    """Samples (n, longest + 1) said over and over at a length; None where there is no room."""
    block = trained + 1 if length >= 2 * trained else length // 2
    if block < 8:
        return None
    texts = samples[:REPEATED, -block:]
    return Probe(texts.repeat(1, length // block + 2)[:, : length + 1], block - 1, [])


def retrieval(samples: Tensor, length: int, letters: Letters = BYTES) -> Probe | None:
    """Samples (n, longest + 1) cut to a length, each with a key and a value in it; None where there is no room.

    >>> probe = retrieval(torch.full((2, 65), 46), 64)
    >>> bytes(probe.tokens[0].tolist())
    b'\\nnywngbai nwxcmztq\\n............................\\nnywngbai nwxcmztq'
    """
    needle = KEY + VALUE + 3
    if length < 3 * needle:
        return None
    tokens = samples[:RETRIEVALS, -length - 1 :].clone()
    random = np.random.default_rng(length)
    room = length + 1 - 2 * needle
    depths = np.linspace(0, room, len(tokens)).astype(int).tolist()
    for row, depth in zip(tokens, depths, strict=True):
        drawn = torch.tensor(letters.letters)[torch.from_numpy(random.integers(len(letters.letters), size=KEY + VALUE))]
        key, value = drawn.split((KEY, VALUE))
        line, space = torch.tensor([letters.line]), torch.tensor([letters.space])
        said = torch.cat((line, key, space, value, line))
        row[depth : depth + needle] = said
        row[-needle + 1 :] = said[:-1]
    return Probe(tokens, length - VALUE, [depth / room for depth in depths], 1 / len(letters.letters))


def mark(row: np.ndarray, places: np.ndarray, value: int) -> None:
    """Writes a mark into a row of bytes at these places, and asks for it at the end."""
    for place in (*places, len(row) - 2):
        row[place], row[place + 1] = ASK, value


def mark_rows(tokens: np.ndarray, share: float, random: np.random.Generator) -> None:
    """Marks a share of the rows (rows, length + 1), each by a value said once to MOST_SAID times, wherever it falls."""
    slots = (tokens.shape[1] - 2) // 2
    for row in tokens[: round(share * len(tokens))]:
        said = min(slots, int(random.integers(1, MOST_SAID + 1)))
        mark(row, 2 * random.choice(slots, said, replace=False), int(random.choice(MARKS)))


def marked(samples: Tensor, length: int) -> Probe | None:
    """Samples (n, longest + 1) cut to a length, each with a mark said once in it; None where there is no room.

    >>> probe = marked(torch.full((2, 65), 46), 8)
    >>> probe.tokens[0].tolist()
    [255, 252, 46, 46, 46, 46, 46, 255, 252]
    """
    room = length - 3
    if room < 1:
        return None
    tokens = samples[:RETRIEVALS, -length - 1 :].clone()
    random = np.random.default_rng(length)
    depths = np.linspace(0, room, len(tokens)).astype(int).tolist()
    for row, depth in zip(tokens.numpy(), depths, strict=True):
        mark(row, np.array([depth]), int(random.choice(MARKS)))
    return Probe(tokens, length - 1, [depth / room for depth in depths], 1 / len(MARKS))
