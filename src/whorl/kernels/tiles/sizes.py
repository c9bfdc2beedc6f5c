"""Sizes of tiles: how each kernel cuts its work.

Heads of 128 in half precision, and gradients with heads of 64: the fastest of those tried on an H200 on 2026-11-18
(torch 2.11, triton 3.6, bfloat16; 16 heads, 4096 positions; windows at 16384; heads of 64 as a decoder of 25 M
parameters has them). The other sizes are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from whorl.kernels.triton_launch import shared_memory


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile, warps of a program, and how many loads ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


# By kernel (the output; the gradients of keys and values; those of queries), the dimensions of a head, and whether
# products are in float32.
TILES: dict[tuple[str, int, bool], Tile] = {
    ("forward", 64, False): Tile(128, 64, 4, 3),
    ("forward", 128, False): Tile(64, 64, 4, 3),
    ("forward", 256, False): Tile(64, 64, 8, 2),
    ("forward", 64, True): Tile(64, 32, 4, 2),
    ("forward", 128, True): Tile(64, 32, 4, 2),
    ("forward", 256, True): Tile(32, 32, 4, 1),
    ("keys", 64, False): Tile(64, 64, 4, 3),
    ("keys", 128, False): Tile(32, 64, 4, 3),
    ("keys", 256, False): Tile(32, 64, 8, 1),
    ("keys", 64, True): Tile(32, 32, 4, 1),
    ("keys", 128, True): Tile(32, 32, 4, 1),
    ("keys", 256, True): Tile(16, 32, 4, 1),
    ("queries", 64, False): Tile(64, 64, 4, 3),
    ("queries", 128, False): Tile(64, 64, 4, 2),
    ("queries", 256, False): Tile(64, 32, 8, 1),
    ("queries", 64, True): Tile(32, 32, 4, 1),
    ("queries", 128, True): Tile(32, 32, 4, 1),
    ("queries", 256, True): Tile(32, 16, 4, 1),
}

# Where another tile is faster with heads of 128 in half precision, by kernel and what most of its tiles are: of a kind
# of bias, or of a table whose numbers end before half of the keys.
APART: dict[tuple[str, str], Tile] = {
    ("forward", "table"): Tile(128, 64, 8, 3),
    ("forward", "short table"): Tile(128, 64, 8, 3),
    ("queries", "log"): Tile(64, 32, 4, 3),
    ("queries", "power"): Tile(64, 32, 4, 3),
    ("queries", "table"): Tile(64, 32, 4, 3),
    ("queries", "broken"): Tile(64, 32, 4, 3),
}

# For few queries, as in decoding.
SHORT = Tile(16, 64, 4, 3)


# A product takes 16 rows and 16 columns at least.
SMALLEST = 16

# Bytes of shared memory beside tiles, where rows are added up.
BESIDE = 2048


def tile_of(
    kernel: str, most: str, queries: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Tile:
    """The tile of a kernel for heads of padded dimensions, made smaller until the device has memory for it."""
    dim, wide = max(64, *dims), dtype == torch.float32
    tile = TILES[kernel, dim, wide]
    if dim == 128 and not wide:
        tile = APART.get((kernel, most), tile)
    if kernel == "forward" and queries <= SHORT.rows:
        tile = SHORT
    room = (shared_memory(device) - BESIDE) // dtype.itemsize
    while _taken(kernel, replace(tile, stages=1), dims, wide) > room and max(tile.rows, tile.keys) > SMALLEST:
        larger = "rows" if tile.rows >= tile.keys else "keys"
        tile = replace(tile, **{larger: getattr(tile, larger) // 2})
    while _taken(kernel, tile, dims, wide) > room and tile.stages > 1:
        tile = replace(tile, stages=tile.stages - 1)
    return tile


def _taken(kernel: str, tile: Tile, dims: tuple[int, int], wide: bool) -> int:
    """About how many numbers a tile keeps in shared memory: what is held all along, and the loads ahead."""
    held, moving = (tile.rows, tile.keys) if kernel != "keys" else (tile.keys, tile.rows)
    held *= dims[0] if kernel == "forward" else sum(dims)
    if wide:
        held *= 2  # products of three keep a rest of the operands
    return held + tile.stages * moving * sum(dims)
