"""Sizes of tiles: how each kernel cuts its work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from whorl.kernels.triton_launch import interpreted


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile, warps of a program, and how many loads ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


# By kernel (the output; the gradients of keys and values; those of queries), the dimensions of a head, and whether
# products are in float32. Not measured yet.
TILES: dict[tuple[str, int, bool], Tile] = {
    ("forward", 64, False): Tile(128, 64, 4, 3),
    ("forward", 128, False): Tile(128, 64, 8, 3),
    ("forward", 256, False): Tile(64, 64, 8, 2),
    ("forward", 64, True): Tile(64, 32, 4, 2),
    ("forward", 128, True): Tile(64, 32, 4, 2),
    ("forward", 256, True): Tile(32, 32, 4, 1),
    ("keys", 64, False): Tile(64, 128, 8, 2),
    ("keys", 128, False): Tile(64, 128, 8, 2),
    ("keys", 256, False): Tile(32, 64, 8, 1),
    ("keys", 64, True): Tile(32, 32, 4, 1),
    ("keys", 128, True): Tile(32, 32, 4, 1),
    ("keys", 256, True): Tile(16, 32, 4, 1),
    ("queries", 64, False): Tile(128, 64, 8, 2),
    ("queries", 128, False): Tile(128, 64, 8, 2),
    ("queries", 256, False): Tile(64, 32, 8, 1),
    ("queries", 64, True): Tile(32, 32, 4, 1),
    ("queries", 128, True): Tile(32, 32, 4, 1),
    ("queries", 256, True): Tile(32, 16, 4, 1),
}

# For few queries, as in decoding.
SHORT = Tile(16, 64, 4, 3)

LARGEST_DIM = 256


def tile_of(kernel: str, queries: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tile:
    """The tile of a kernel for heads of padded dimensions, with no more stages than the device has memory for."""
    tile = TILES[kernel, max(64, *dims), dtype == torch.float32]
    if kernel == "forward" and queries <= SHORT.rows:
        tile = SHORT
    held, moving = (tile.rows, tile.keys) if kernel != "keys" else (tile.keys, tile.rows)
    held *= dims[0] if kernel == "forward" else sum(dims)
    if dtype == torch.float32:
        held *= 2  # products of three keep a rest of the operands
    room = shared_memory(device) // dtype.itemsize - held
    return replace(tile, stages=max(1, min(tile.stages, room // (moving * sum(dims)))))


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    if interpreted():
        return 2**17
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
