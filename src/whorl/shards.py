"""Shards: the part of a sequence that one rank of a context-parallel group holds.

Positions are cut by the same call as tokens, so every rank keeps the ids its tokens have in the whole
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from whorl.errors import invalid, unknown
from whorl.position_ids import whole_number

Scheme = Literal["contiguous", "zigzag"]


def shard(x: torch.Tensor, *, rank: int, world: int, scheme: Scheme = "contiguous", dim: int = -1) -> torch.Tensor:
    """Returns the part of x along dim that rank holds, out of world ranks with equal parts.

    ``"contiguous"`` cuts world chunks. ``"zigzag"`` cuts 2 world chunks and gives rank the chunk of its
    number from the front and the one from the end, so that under a causal mask all ranks have the same work
    (the order of Megatron-LM and Transformer Engine).

    >>> shard(torch.arange(8), rank=0, world=2).tolist()
    [0, 1, 2, 3]
    >>> shard(torch.arange(8), rank=0, world=2, scheme="zigzag").tolist()
    [0, 1, 6, 7]
    """
    _check_scheme("shard", scheme)
    world = whole_number("shard", "world", world, least=1)
    if whole_number("shard", "rank", rank) >= world:
        raise invalid("shard", "rank", f"below world={world}", rank, f"Ranks count from 0 to {world - 1}.")
    length, chunks = _length("shard", x, dim), world if scheme == "contiguous" else 2 * world
    if length % chunks:
        expected = f"a multiple of {chunks} for {scheme} over {world} ranks"
        raise invalid("shard", "length", expected, length, f"Pad to {length + chunks - length % chunks}.")
    size = length // chunks
    if scheme == "contiguous":
        return x.narrow(dim, rank * size, size)
    return torch.cat([x.narrow(dim, chunk * size, size) for chunk in (rank, chunks - 1 - rank)], dim)


def unshard(parts: Sequence[torch.Tensor], *, scheme: Scheme = "contiguous", dim: int = -1) -> torch.Tensor:
    """Returns the whole sequence from the parts of all ranks, in the order of the ranks; undoes ``shard``.

    >>> unshard([torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])], scheme="zigzag").tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    _check_scheme("unshard", scheme)
    parts = list(parts)
    if not parts:
        raise invalid("unshard", "parts", "a list of tensors, one per rank", parts)
    length = _length("unshard", parts[0], dim)
    odd = next((part for part in parts if getattr(part, "shape", None) != parts[0].shape), None)
    if odd is not None:
        raise invalid("unshard", "parts", f"of one shape, {tuple(parts[0].shape)} as the first", odd)
    if scheme == "contiguous":
        return torch.cat(parts, dim)
    if length % 2:
        raise invalid("unshard", "length of a part", "even for zigzag", length, "It is two chunks of one size.")
    heads = [part.narrow(dim, 0, length // 2) for part in parts]
    tails = [part.narrow(dim, length // 2, length // 2) for part in parts]
    return torch.cat(heads + tails[::-1], dim)


def _check_scheme(call: str, scheme: object) -> None:
    if scheme not in ("contiguous", "zigzag"):
        raise unknown("scheme", scheme, ("contiguous", "zigzag"), call=call)


def _length(call: str, x: object, dim: int) -> int:
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        raise invalid(call, "x" if call == "shard" else "parts[0]", "a tensor with at least one axis", x)
    axis = whole_number(call, "dim", dim, least=None)
    if not -x.ndim <= axis < x.ndim:
        raise invalid(call, "dim", f"between {-x.ndim} and {x.ndim - 1} for shape {tuple(x.shape)}", dim)
    return x.shape[axis]
