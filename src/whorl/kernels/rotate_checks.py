"""Checks of a rotation's settings and tensors. They look at sizes, dtypes and devices, never at numbers on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.graphs import equals_any
from whorl.kernels.axes import HEADS_AXIS, length_of
from whorl.memory import check_dense, check_floating, check_written, same_place
from whorl.position_checks import INTEGERS
from whorl.rotary.rotation import LAYOUTS, ORDERS, Layout, Order, Rotation, layout_ends

# What a message says of wrong tables.
FROM_TABLES = "Take both from one call of tables()."

SHAPES = {
    "bhld": "(batch, heads, length, head_dim)",
    "blhd": "(batch, length, heads, head_dim)",
    "thd": "(tokens, heads, head_dim)",
}


def checked_rotation(
    call: str, layout: Layout, inverse: bool, start: int, blocks: int, order: Order = "bhld"
) -> Rotation:
    """The rotation that these settings describe, or a WhorlError."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS, call=call)
    if not isinstance(inverse, int) or inverse not in (0, 1):
        raise invalid(call, "inverse", "True or False", inverse)
    for setting, value in (("start", start), ("blocks", blocks)):
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise invalid(call, setting, "an integer", value)
    check_order(call, order)
    reads, writes = layout_ends(layout)
    if inverse:
        reads, writes = writes, reads
    return Rotation(order, reads, writes, start, blocks, bool(inverse), bool(inverse))


def check_order(call: str, order: Order) -> None:
    """Raises a WhorlError unless there is such an order of axes."""
    if not isinstance(order, str) or order not in ORDERS:
        raise unknown("order", order, ORDERS, call=call)


def check_input(x: Tensor, order: Order, call: str = "rotate", name: str = "x") -> None:
    """Raises a WhorlError unless x is a floating tensor of the named order."""
    check_order(call, order)
    check_floating(call, name, x)
    if (order == "blhd" and x.ndim != 4) or (order == "thd" and x.ndim != 3) or x.ndim < 2:
        expected = f"of shape {SHAPES[order]} for order={order!r}"
        raise invalid(call, name, expected, x, f"Orders: {', '.join(ORDERS)}.")


def check_tensors(
    call: str, name: str, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, rotation: Rotation
) -> None:
    """Raises a WhorlError unless x, its tables and their rows fit each other and the rotation."""
    check_input(x, rotation.order, call, name)
    _check_tables(call, name, x, cos, sin, rotation)
    _check_rows(call, name, x, cos, rows, rotation.order)


def check_pair(
    call: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, rotation: Rotation
) -> None:
    """Raises a WhorlError unless everything fits both tensors, and they differ in heads only."""
    check_tensors(call, "q", q, cos, sin, rows, rotation)
    check_tensors(call, "k", k, cos, sin, rows, rotation)
    same = q.dtype == k.dtype and q.shape[-1] == k.shape[-1] and q.ndim == k.ndim and q.device == k.device
    if not same or (q.ndim == 4 and q.shape[0] != k.shape[0]):
        raise WhorlError(
            f"{call}: q and k must have one dtype, batch, length and head_dim, got {tuple(q.shape)} of {q.dtype} "
            f"and {tuple(k.shape)} of {k.dtype}. Rotate them one by one with whorl.rotate."
        )


def check_out(x: Tensor, out: Tensor, rotation: Rotation) -> None:
    """Raises a WhorlError unless out is as x is, and not x itself where the layout changes."""
    expected = f"of shape {tuple(x.shape)}, {x.dtype} on {x.device}"
    check_dense("rotate", "out", out, expected, "Use empty_like(x).")
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise invalid("rotate", "out", expected, out, "Use empty_like(x).")
    if out is x and rotation.reads != rotation.writes:
        raise _not_in_place()


def check_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, moves: bool) -> None:
    """Raises a WhorlError unless out is x itself, element by element, or has memory apart from all that is read.

    ``moves`` says that pairs lie elsewhere afterwards: then out may not be x.
    """
    in_place = same_place(out, x)
    if in_place and moves:
        raise _not_in_place()
    read = (("x", None if in_place else x), ("cos", cos), ("sin", sin), ("rows", rows))
    check_written("rotate", (("out", out),), read)


def _not_in_place() -> WhorlError:
    return WhorlError(
        "rotate: layout='interleaved_to_half' writes where it has yet to read, so not in place. "
        "Pass other memory as out=."
    )


def _check_tables(call: str, name: str, x: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
    for table_name, table in (("cos", cos), ("sin", sin)):
        check_floating(call, table_name, table, FROM_TABLES)
        if table.device != x.device:
            raise WhorlError(
                f"{call}: tables are on {table.device} and {name} on {x.device}. "
                f"Make the positions on the device of {name}."
            )
    if cos.shape != sin.shape or not 2 <= cos.ndim <= 4:
        raise WhorlError(
            f"{call}: cos and sin must have one shape (…, length, pairs), got {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}. {FROM_TABLES}"
        )
    dim, pairs, start = x.shape[-1], cos.shape[-1], rotation.start
    if start < 0 or start + 2 * pairs > dim:
        raise WhorlError(
            f"{call}: tables of {pairs} pairs from dimension {start} need {start + 2 * pairs} dimensions, {name} has "
            f"{dim}. Use tables of fewer pairs or a smaller start."
        )
    if rotation.blocks < 1 or pairs % rotation.blocks:
        raise invalid(call, "blocks", f"a divisor of the {pairs} pairs", rotation.blocks)
    if cos.ndim > 2 and rotation.order == "thd":
        raise WhorlError(f"{call}: order='thd' takes tables of shape (tokens, pairs). Flatten the batch into tokens.")
    if cos.ndim > 2 and (x.ndim != 4 or not equals_any(cos.shape[0], 1, x.shape[0])):
        raise WhorlError(
            f"{call}: tables are for a batch of {cos.shape[0]}, {name} has shape {tuple(x.shape)}. "
            "Pass positions of shape (length,) or (batch, length)."
        )
    if cos.ndim == 4 and not equals_any(cos.shape[1], 1, heads := x.shape[HEADS_AXIS[rotation.order]]):
        raise WhorlError(
            f"{call}: tables are for {cos.shape[1]} heads, {name} has {heads}. "
            f"Pass tables of as many heads as {name}, or of one."
        )


def _check_rows(call: str, name: str, x: Tensor, cos: Tensor, rows: Tensor | None, order: Order) -> None:
    length = length_of(x, order)
    if rows is None:
        if cos.shape[-2] != length:
            raise WhorlError(
                f"{call}: tables are for {cos.shape[-2]} positions, {name} has {length} in order {order!r}. "
                "Pass one position per token, or name the order of x."
            )
        return
    expected = f"integers of shape ({length},)" + ("" if order == "thd" else f" or (batch, {length})")
    remedy = "One row of the tables per token, int32 or int64."
    check_dense(call, "rows", rows, expected, remedy)
    batched = order != "thd" and rows.ndim == 2 and equals_any(rows.shape[0], 1, x.shape[0] if x.ndim == 4 else 1)
    if rows.dtype not in INTEGERS or not (rows.ndim == 1 or batched) or rows.shape[-1] != length:
        raise invalid(call, "rows", expected, rows, remedy)
    if rows.device != x.device:
        raise WhorlError(f"{call}: rows are on {rows.device} and {name} on {x.device}. Make them there.")
