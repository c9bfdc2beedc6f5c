"""Probes of whether far text is used at all: texts made from samples, and which of their tokens are asked for.

A repeated text is said again and again, one token longer than the trained length, so that a window of that length never
reaches back to what it heard the last time; below twice the trained length it is half the length. A hidden key and its
value stand somewhere in a text, and the key again at its end: what is asked for is the value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RETRIEVALS, REPEATED = 100, 32  # probes at each length, where there are samples enough
KEY, VALUE = 8, 8  # letters


class Probe(NamedTuple):
    """Tokens (probes, length + 1), from which target on they are asked for, and how deep a key lies, as shares."""

    tokens: Tensor
    asked: int
    depth: list[float]


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
    return Probe(tokens, length - VALUE, [depth / room for depth in depths])
