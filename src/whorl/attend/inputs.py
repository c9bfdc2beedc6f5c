"""What both kinds of attention ask of queries, keys, values, their positions and the mask of padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid
from whorl.memory import check_dense, is_dense, wrong_tensor
from whorl.position_checks import INTEGERS, check_precision
from whorl.position_ids import positions as make_positions
from whorl.tracing import may_read_values


def check_shapes(call: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises a WhorlError unless the three tensors fit each other."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        expected = "a floating tensor of shape (batch, heads, length, dim)"
        check_dense(call, name, x, expected)
        if x.ndim != 4 or not x.is_floating_point():
            raise invalid(call, name, expected, x)
        if x.device != q.device or x.dtype != q.dtype:
            raise WhorlError(
                f"{call}: q, k and v must share device and dtype, got {q.dtype} on {q.device} and {name} in {x.dtype} "
                f"on {x.device}. Move them with .to()."
            )
    if k.shape[:3] != v.shape[:3]:
        raise WhorlError(
            f"{call}: k and v must have the same batch, heads and length, got {tuple(k.shape)} and {tuple(v.shape)}. "
            "Only their last axes may differ."
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise WhorlError(
            f"{call}: q and k must have the same batch and dim, got {tuple(q.shape)} and {tuple(k.shape)}. "
            "Axes are (batch, heads, length, dim)."
        )
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise WhorlError(
            f"{call}: {q.shape[1]} query heads cannot share {k.shape[1]} key heads equally. "
            "Use a number of key heads that divides the query heads."
        )


def check_key_mask(call: str, mask: Tensor | None, k: Tensor) -> None:
    """Raises a WhorlError unless a mask has one bool per key."""
    if mask is None:
        return
    wanted = (k.shape[0], k.shape[2])
    if not is_dense(mask) or mask.dtype != torch.bool or tuple(mask.shape) != wanted:
        raise wrong_tensor(call, "key_mask", mask, f"a bool tensor of shape (batch, keys) = {wanted}")
    check_device(call, "key_mask", mask, k)


def check_device(call: str, name: str, given: Tensor, other: Tensor, other_name: str = "q") -> None:
    """Raises a WhorlError unless a tensor lies where the queries do, or another tensor."""
    if given.device != other.device:
        raise WhorlError(
            f"{call}: {name} must be on the device of {other_name}, {other.device}, got {given.device}. "
            "Move it with .to()."
        )


def with_positions(
    call: str, q: Tensor, keys: int, positions: Tensor | None, key_positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The positions of queries and of keys: given, or 0, 1, 2, … of the keys and the last of them.

    Only their precision is checked yet.
    """
    queries = q.shape[2]
    for name, given in (("positions", positions), ("key_positions", key_positions)):
        if given is not None:
            check_dense(call, name, given, "a tensor", "Make one with whorl.positions(length).")
            check_precision(call, name, given)
    if key_positions is None:
        if positions is not None and queries != keys:
            raise WhorlError(
                f"{call}: positions of {queries} queries do not tell those of {keys} keys. Pass key_positions too."
            )
        key_positions = make_positions(keys, device=q.device) if positions is None else positions
    if positions is None:
        if queries > keys:
            raise WhorlError(
                f"{call}: {queries} queries cannot be the last of {keys} keys. Pass positions and key_positions."
            )
        positions = key_positions if queries == keys else key_positions[..., keys - queries :]
    return positions, key_positions


def row_numbers(call: str, rows: Sequence[int] | Tensor, batch: int) -> Tensor:
    """Numbers of rows of a batch as a tensor, or a WhorlError.

    Rows on a device are not looked at, which would wait for it. ``index_select`` stops one that is not there, or
    negative, on the device itself, where an index in brackets would count a negative one from the end.
    """
    try:
        index = rows if isinstance(rows, Tensor) else torch.as_tensor(rows, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise invalid(call, "rows", "a list of row numbers", rows) from error
    check_dense(call, "rows", index, "a list of row numbers")
    if index.ndim != 1 or index.dtype not in INTEGERS or not index.numel() or index.is_meta:
        raise invalid(call, "rows", "a list of row numbers", rows)
    if may_read_values(index) and any(not 0 <= int(bound) < batch for bound in torch.aminmax(index)):
        raise invalid(call, "rows", f"between 0 and {batch - 1}", index.tolist())
    return index


@contextmanager
def stopped_rows(call: str, rows: object, batch: int) -> Iterator[None]:
    """A context in which rows that ``row_numbers`` could not look at, of another class, raise what it would."""
    try:
        yield
    except IndexError as error:
        raise invalid(call, "rows", f"between 0 and {batch - 1}", rows) from error
