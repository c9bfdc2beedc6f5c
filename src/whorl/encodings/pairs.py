"""Every pair of a query and a key: their distance, their inner product, and checks that positions and tensors fit.

For encodings that put terms of their own into the scores, or say which pairs are seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.errors import WhorlError
from whorl.position_checks import check_one_axis
from whorl.position_ids import difference


def distances(call: str, q_positions: Tensor, k_positions: Tensor, *, whole: bool = False) -> Tensor:
    """Query position minus key position of every pair: (queries, keys), with a batch axis in front where they have one.

    ``whole`` demands integers, as an index into a table needs.
    """
    for positions in (q_positions, k_positions):
        check_one_axis(call, positions, whole=whole)
    return difference(q_positions[..., :, None], k_positions[..., None, :])


def check_pairs(call: str, scores: Tensor, q_positions: Tensor, k_positions: Tensor) -> None:
    """Raises a WhorlError unless there is one position for each query and each key of scores (…, queries, keys)."""
    for what, positions, count in (("queries", q_positions, scores.shape[-2]), ("keys", k_positions, scores.shape[-1])):
        if isinstance(positions, Tensor) and positions.ndim and positions.shape[-1] != count:
            raise WhorlError(
                f"{call}: positions are for {positions.shape[-1]} {what}, there are {count}. "
                "Pass one position per token."
            )


def over_heads(grid: Tensor, shape: torch.Size) -> Tensor:
    """A grid (queries, keys) or (batch, queries, keys) as (batch, heads, queries, keys), without copying."""
    return (grid if grid.ndim == 2 else grid.unsqueeze(-3)).expand(*shape[:-1], grid.shape[-1])


def products(x: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """The inner product of each vector of x (…, d) and each row of a table (…, rows, d), in dtype or wider."""
    wide = torch.promote_types(torch.promote_types(x.dtype, table.dtype), dtype)
    return x.to(wide) @ table.to(wide).mT


def check_head(call: str, x: Tensor, head_dim: int, heads: int | None = None) -> None:
    """Raises a WhorlError unless x is (…, heads, length, head_dim)."""
    if x.shape[-1] != head_dim:
        raise WhorlError(
            f"{call}: head_dim is {head_dim}, got a tensor with {x.shape[-1]} dimensions per head. "
            f"Build {call} with head_dim={x.shape[-1]}, or check the order of the axes."
        )
    if heads is not None and (x.ndim < 3 or x.shape[-3] != heads):
        given = x.shape[-3] if x.ndim > 2 else "no axis of"
        raise WhorlError(
            f"{call}: heads is {heads}, got a tensor with {given} heads. "
            f"Build {call} with the heads of the queries, and repeat keys that several heads share."
        )
