"""Sizes of linear attention's kernels, in one table, and what follows from the sizes of a call."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work: rows at a time, warps of a program, how many loads ahead, the most registers."""

    rows: int
    warps: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True)
class Block:
    """The part of a state that one program keeps in registers."""

    dims: int
    values: int


# By kernel, and whether products are in float32. Three kernels take a slot at a time; all other rows are a multiple of
# it, and a chunk is a multiple of all.
TILES: dict[tuple[str, bool], Tile] = {
    ("features", False): Tile(64, 1, 1),  # a slot
    ("features", True): Tile(16, 1, 1),
    ("key_sums", False): Tile(64, 2, 1),  # a slot
    ("key_sums", True): Tile(16, 1, 1),
    ("grad_rows", False): Tile(64, 8, 1),  # a slot
    ("grad_rows", True): Tile(16, 4, 1),
    ("states", False): Tile(64, 4, 4),
    ("states", True): Tile(32, 4, 2),
    ("outputs", False): Tile(64, 4, 1, registers=168),  # and gradients of values; three programs fit a multiprocessor
    ("outputs", True): Tile(16, 4, 1),
    ("grad_queries", False): Tile(64, 4, 1),
    ("grad_queries", True): Tile(16, 4, 1),
    ("grad_keys", False): Tile(64, 4, 1, registers=168),
    ("grad_keys", True): Tile(16, 4, 1),
}

CHUNK = {False: 128, True: 64}

BLOCK = {False: Block(64, 64), True: Block(32, 64)}

# Programs that walk along the length: fewer than this, and the length is cut into segments.
WALKS = 256


def tile_of(kernel: str, wide: bool) -> Tile:
    """The tile of a kernel."""
    return TILES[kernel, wide]


def slot_of(wide: bool) -> int:
    """Rows of a slot: what one number of the running sums adds up."""
    return tile_of("key_sums", wide).rows


def is_wide(dtype: torch.dtype) -> bool:
    """Whether products are in float32. Those of float16 are: it has no room for sums over a length."""
    return dtype != torch.bfloat16
