"""``rotate`` and ``rotate_qk``: the public calls that check a rotation and run it by the implementation asked for.

triton   one launch for queries and keys, on a CUDA device
numba    one pass over memory, on the CPU
torch    everywhere, and where tables need gradients or torch.func transforms the call
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.forks import uncut
from whorl.graphs import constant_in_graphs, equals_any
from whorl.kernels.choose import Impl, check_impl, choose, why_not_installed
from whorl.kernels.ops import (
    Ready,
    check_into,
    not_in_place,
    ready_kernel,
    turn_ready,
    why_not_memory,
    why_not_transformed,
)
from whorl.memory import check_dense, check_floating
from whorl.position_checks import INTEGERS
from whorl.rotary.rotation import LAYOUTS, Layout, inverse_tables, layout_ends, turn_pairs
from whorl.tracing import may_read_addresses, operators_are_watched, takes_gradients

Order = Literal["bhld", "blhd", "thd"]

ORDERS: tuple[str, ...] = get_args(Order)

# What the kernels read and write.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# What "auto" stands for, by the kind of device; torch elsewhere.
AUTO = {"cuda": "triton", "cpu": "numba"}

# Kernels made ready for calls that passed every check. The key is the settings and the shape, strides, dtype and device
# of each tensor, so that the next call of the kind runs its kernel without checking anything again.
_READY: dict[tuple[Any, ...], Ready] = {}
MOST_READY = 1024


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: Layout = "half",
    *,
    inverse: bool = False,
    start: int = 0,
    blocks: int = 1,
    heads: Sequence[int] | None = None,
    order: Order = "bhld",
    rows: Tensor | None = None,
    out: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """x with its pairs turned by the angles whose cos and sin are given, in x's dtype.

    Dimensions [start, start + 2 * pairs) of the last axis are rotated, the rest is passed through.
    ``cos`` and ``sin`` have shape (length, pairs), (batch, length, pairs), or (batch, heads, length,
    pairs) for angles that differ by head, whatever the order of x. ``rows`` (length,) or (batch, length)
    says which row of the tables each token takes, and NaN comes of one that is not there.
    ``inverse=True`` undoes the rotation, an attention factor inside the tables included. With ``blocks`` > 1
    the rotated dimensions are that many heads side by side, each with a layout of its own. ``heads`` limits
    the rotation to some heads. ``out`` is memory to write into: x itself to rotate in place, or memory apart from x
    and the tables.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=4, layout="interleaved")
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = rope.tables(torch.tensor([2]))
    >>> whorl.rotate(x, cos, sin, layout="interleaved")
    tensor([[-2.2347,  0.0770,  2.9194,  4.0592]])
    """
    how = (layout, inverse, start, blocks, order, impl)
    if out is not None:
        return _rotate_into(out, x, cos, sin, rows, heads, how)
    key = None
    if heads is None:
        key, ready = look_up(how, cos, sin, rows, x)
        if ready is not None:
            return turn_ready(ready, (x,), cos, sin, rows)[0]
    _check("rotate", "x", x, cos, sin, rows, how)
    if heads is not None:
        turns = _turning_heads(x, heads, order)
        turned = rotate(
            x, cos, sin, layout, inverse=inverse, start=start, blocks=blocks, order=order, rows=rows, impl=impl
        )
        return torch.where(turns, turned, x)
    kernel = _kernel_for(impl, x, cos, sin)
    if kernel == "torch":
        return turn_by_torch(x, cos, sin, rows, layout, inverse, start, blocks, order)
    if not _wide(cos, sin, x):
        cos, sin, key = cos.to(wide_dtype(x)), sin.to(wide_dtype(x)), None
    turn = turn_of(layout, inverse, order, start, blocks, kernel)
    if key is None:
        return torch.ops.whorl.rotate(x, cos, sin, rows, *turn)
    return turn_ready(_keep_ready(key, (x,), cos, sin, rows, turn), (x,), cos, sin, rows)[0]


def _rotate_into(
    out: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    heads: Sequence[int] | None,
    how: tuple[Any, ...],
) -> Tensor:
    """``rotate`` with memory to write into."""
    layout, inverse, start, blocks, order, impl = how
    key = ready = None
    if heads is None:
        key, ready = look_up((*how, "in place" if out is x else "into"), cos, sin, rows, x, out)
    if ready is None:
        _check("rotate", "x", x, cos, sin, rows, how)
        _check_out(x, out, layout)
    if takes_gradients(x, out, cos, sin):
        raise WhorlError("rotate: out= keeps no gradient. Leave it out, or call under torch.no_grad().")
    if ready is not None or may_read_addresses(out, x, cos, sin, rows):
        check_into(out, x, cos, sin, rows, *layout_ends(layout))
    if ready is None:
        kernel = _kernel_for(impl, x, cos, sin)
        if kernel == "torch" or heads is not None:
            return out.copy_(
                rotate(
                    *(x, cos, sin, layout), inverse=inverse, start=start, blocks=blocks, heads=heads, order=order,
                    rows=rows, impl=impl,
                )
            )  # fmt: skip
        turn = turn_of(layout, inverse, order, start, blocks, kernel)
        if not _wide(cos, sin, x):
            cos, sin, key = cos.to(wide_dtype(x)), sin.to(wide_dtype(x)), None
        if key is None:
            torch.ops.whorl.rotate_into(out, x, cos, sin, rows, *turn)
            return out
        ready = _keep_ready(key, (x,), cos, sin, rows, turn, (out,))
    ready[0]((x,), cos, sin, (out,), rows)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)  # so that a backward pass sees that it was written into
    return out


def rotate_qk(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: Layout = "half",
    *,
    inverse: bool = False,
    start: int = 0,
    blocks: int = 1,
    order: Order = "bhld",
    rows: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the same tokens turned as ``rotate`` does, in one launch on a GPU.

    Their numbers of heads may differ.

    >>> import torch, whorl
    >>> cos, sin = whorl.Rope(head_dim=64).tables(whorl.positions(10))
    >>> q, k = whorl.rotate_qk(torch.randn(2, 8, 10, 64), torch.randn(2, 2, 10, 64), cos, sin)
    >>> q.shape, k.shape
    (torch.Size([2, 8, 10, 64]), torch.Size([2, 2, 10, 64]))
    """
    how = (layout, inverse, start, blocks, order, impl)
    key, ready = look_up(how, cos, sin, rows, q, k)
    if ready is not None:
        turned_q, turned_k = turn_ready(ready, (q, k), cos, sin, rows)
        return turned_q, turned_k
    check_pair("rotate_qk", q, k, cos, sin, rows, how)
    kernel = _kernel_for(impl, q, cos, sin)
    if kernel == "torch" or type(k) is not type(q):
        given = (cos, sin, rows, layout, inverse, start, blocks, order)
        return turn_by_torch(q, *given), turn_by_torch(k, *given)
    if not _wide(cos, sin, q):
        cos, sin, key = cos.to(wide_dtype(q)), sin.to(wide_dtype(q)), None
    turn = turn_of(layout, inverse, order, start, blocks, kernel)
    if key is None:
        return torch.ops.whorl.rotate_qk(q, k, cos, sin, rows, *turn)
    turned_q, turned_k = turn_ready(_keep_ready(key, (q, k), cos, sin, rows, turn), (q, k), cos, sin, rows)
    return turned_q, turned_k


def explain_rotate(x: Tensor, cos: Tensor, sin: Tensor, *, impl: Impl = "auto") -> str:
    """Which implementation the same call of ``rotate`` takes, and why where it is not the kernel of the device.

    >>> import torch, whorl
    >>> cos, sin = (t.requires_grad_() for t in whorl.Rope(head_dim=4).tables(whorl.positions(3)))
    >>> whorl.explain_rotate(torch.randn(3, 4), cos, sin)
    'torch: numba cannot run here, the tables need gradients'
    """
    for name, tensor, remedy in (("x", x, ""), ("cos", cos, FROM_TABLES), ("sin", sin, FROM_TABLES)):
        check_floating("explain_rotate", name, tensor, remedy)
    check_impl(impl, "explain_rotate")
    if impl != "auto":
        return _kernel_for(impl, x, cos, sin)
    kernel = AUTO.get(x.device.type)
    if kernel is None:
        return f"torch: there is no kernel for {x.device.type}"
    reason = why_not(kernel, x, cos, sin)
    return kernel if reason is None else f"torch: {kernel} cannot run here, {reason}"


def why_not(kernel: str, x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    """What keeps a kernel from this rotation, or None."""
    return why_not_here(kernel, x.device.type, x.dtype) or _why_not_tensors(x, cos, sin)


@constant_in_graphs
def why_not_here(kernel: str, device: str, dtype: torch.dtype | None = None) -> str | None:
    """What keeps a kernel from running on a kind of device, or with a dtype, or None."""
    missing = why_not_installed(kernel)
    if missing is not None:
        return missing
    with uncut:  # imports
        if kernel == "numba":
            from whorl.kernels.rotate_numba import why_not as why_not_numba

            return why_not_numba(dtype) if device == "cpu" else f"it runs on the CPU, the tensors are on {device}"
        from whorl.kernels.triton_launch import why_not_triton

        return why_not_triton(device)


def _why_not_tensors(x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    unreadable = why_not_memory("x", x)
    if unreadable is not None:
        return unreadable
    if x.dtype not in DTYPES:
        return f"it has no {x.dtype}"
    if x.ndim > 4:
        return "x has more than four axes"
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return "the tables need gradients"
    return why_not_transformed()


def _kernel_for(impl: Impl, x: Tensor, cos: Tensor, sin: Tensor) -> str:
    check_impl(impl, "rotate")
    if impl == "torch":
        return "torch"
    if impl == "auto":
        kernel = AUTO.get(x.device.type)
        return "torch" if kernel is None or why_not(kernel, x, cos, sin) else kernel
    return choose(impl, "rotate", {impl: why_not(impl, x, cos, sin)} if impl in ("triton", "numba") else None)


def look_up(
    how: tuple[Any, ...], cos: Tensor, sin: Tensor, rows: Tensor | None, x: Tensor, *others: Tensor
) -> tuple[tuple[Any, ...] | None, Ready | None]:
    """The key of a call in ``_READY``, and the kernel that is ready for it; None for what there is not.

    There is no key where a kernel may not be called directly: somebody traces or transforms what happens here, or a
    tensor is of a kind that only the dispatcher knows to read. A decoding step waits for this, hence every tensor
    written out.
    """
    if operators_are_watched() or type(x) is not Tensor or type(cos) is not Tensor or type(sin) is not Tensor:
        return None, None
    if x.is_neg() or cos.is_neg() or sin.is_neg():  # ``may_read_memory``, but for what gradients alone can be
        return None, None
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return None, None
    try:
        key = (
            *(how, x.shape, x.stride(), x.dtype, x.device),
            *(cos.shape, cos.stride(), cos.dtype, cos.device),
            *(sin.shape, sin.stride(), sin.dtype, sin.device),
        )
        for other in others:
            if type(other) is not Tensor or other.is_neg():
                return None, None
            key += (other.shape, other.stride(), other.dtype, other.device)
        if rows is not None:
            if type(rows) is not Tensor:
                return None, None
            key += ("rows", rows.shape, rows.stride(), rows.dtype, rows.device)
        return key, _READY.get(key)
    except (TypeError, RuntimeError):  # a setting without hash, a tensor without strides: the checks will name it
        return None, None


def _keep_ready(
    key: tuple[Any, ...],
    xs: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    turn: tuple[Any, ...],
    outs: tuple[Tensor, ...] | None = None,
) -> Ready:
    """The kernel made ready for a call, kept for the next call of the kind."""
    if outs is None:
        outs = tuple(torch.empty_like(x) for x in xs)
    ready = ready_kernel(xs, cos, sin, outs, rows, *turn), turn
    keep(key, ready)
    return ready


def keep(key: tuple[Any, ...], ready: Ready) -> None:
    """Keeps a kernel that is ready for the next call of the kind."""
    if len(_READY) >= MOST_READY:
        _READY.clear()
    _READY[key] = ready


def turn_of(layout: Layout, inverse: bool, order: Order, start: int, blocks: int, kernel: str) -> tuple[Any, ...]:
    """The last arguments of the operators (``ops.TURN``)."""
    reads, writes = layout_ends(layout)
    if inverse:
        reads, writes = writes, reads
    return order, reads, writes, start, blocks, inverse, inverse, kernel


def turn_by_torch(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    layout: Layout,
    inverse: bool,
    start: int,
    blocks: int,
    order: Order,
) -> Tensor:
    """The rotation written in torch, everything checked."""
    if rows is not None:
        cos, sin = _taken(cos, rows), _taken(sin, rows)
    cos, sin = _aligned(cos, x, order), _aligned(sin, x, order)
    if inverse:
        cos, sin = inverse_tables(cos, sin)
    return turn_pairs(x, cos, sin, layout, start=start, blocks=blocks, reverse=inverse)


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """The rows of a table, NaN for those it does not have."""
    count = table.shape[-2]
    known = (rows >= 0) & (rows < count)
    rows = rows.clamp(0, max(count - 1, 0)).long()
    if table.ndim == 2 and count:
        taken = table[rows]
    elif count:
        batch = max(rows.shape[0] if rows.ndim > 1 else 1, table.shape[0])
        index = rows.expand(batch, rows.shape[-1])
        table = table.expand(batch, *table.shape[1:])
        index = index[:, None, :, None] if table.ndim == 4 else index[..., None]
        taken = table.gather(-2, index.expand(*table.shape[:-2], rows.shape[-1], table.shape[-1]))
    else:
        taken = table.new_zeros(*rows.shape, table.shape[-1])
    known = known[:, None, :, None] if taken.ndim == 4 and known.ndim > 1 else known[..., None]
    return torch.where(known, taken, float("nan"))


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype the rotation of x runs in, and that of tables that lose nothing on it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _wide(cos: Tensor, sin: Tensor, x: Tensor) -> bool:
    return cos.dtype == sin.dtype == wide_dtype(x)


# What a message says of wrong tables.
FROM_TABLES = "Take both from one call of tables()."


def _check(
    call: str, name: str, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, how: tuple[Any, ...]
) -> None:
    """Raises a WhorlError unless everything fits; ``how`` is (layout, inverse, start, blocks, order, …)."""
    layout, inverse, start, blocks, order = how[:5]
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS, call=call)
    if not isinstance(inverse, int) or inverse not in (0, 1):
        raise invalid(call, "inverse", "True or False", inverse)
    for setting, value in (("start", start), ("blocks", blocks)):
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise invalid(call, setting, "an integer", value)
    check_input(x, order, call, name)
    _check_tables(call, name, x, cos, sin, order, start, blocks)
    _check_rows(call, name, x, cos, rows, order)


def check_pair(
    call: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, how: tuple[Any, ...]
) -> None:
    """Raises a WhorlError unless everything fits both tensors, and they differ in heads only."""
    _check(call, "q", q, cos, sin, rows, how)
    _check(call, "k", k, cos, sin, rows, how)
    same = q.dtype == k.dtype and q.shape[-1] == k.shape[-1] and q.ndim == k.ndim and q.device == k.device
    if not same or (q.ndim == 4 and q.shape[0] != k.shape[0]):
        raise WhorlError(
            f"{call}: q and k must have one dtype, batch, length and head_dim, got {tuple(q.shape)} of {q.dtype} "
            f"and {tuple(k.shape)} of {k.dtype}. Rotate them one by one with whorl.rotate."
        )


def _check_out(x: Tensor, out: Tensor, layout: Layout) -> None:
    expected = f"of shape {tuple(x.shape)}, {x.dtype} on {x.device}"
    check_dense("rotate", "out", out, expected, "Use empty_like(x).")
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise invalid("rotate", "out", expected, out, "Use empty_like(x).")
    reads, writes = layout_ends(layout)
    if out is x and reads != writes:
        raise not_in_place()


def check_input(x: Tensor, order: Order, call: str = "rotate", name: str = "x") -> None:
    """Raises a WhorlError unless x is a floating tensor of the named order."""
    if not isinstance(order, str) or order not in ORDERS:
        raise unknown("order", order, ORDERS, call=call)
    check_floating(call, name, x)
    if (order == "blhd" and x.ndim != 4) or (order == "thd" and x.ndim != 3) or x.ndim < 2:
        shape = {
            "bhld": "(batch, heads, length, head_dim)",
            "blhd": "(batch, length, heads, head_dim)",
            "thd": "(tokens, heads, head_dim)",
        }[order]
        raise invalid(call, name, f"of shape {shape} for order={order!r}", x, f"Orders: {', '.join(ORDERS)}.")


def length_of(x: Tensor, order: Order) -> int:
    """The number of positions of x."""
    return x.shape[{"bhld": -2, "blhd": 1, "thd": 0}[order]]


def _heads_axis(order: Order) -> int:
    """Which axis of a tensor that has heads holds them."""
    return -3 if order == "bhld" else -2


def _check_tables(
    call: str, name: str, x: Tensor, cos: Tensor, sin: Tensor, order: Order, start: int, blocks: int
) -> None:
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
    dim, pairs = x.shape[-1], cos.shape[-1]
    if start < 0 or start + 2 * pairs > dim:
        raise WhorlError(
            f"{call}: tables of {pairs} pairs from dimension {start} need {start + 2 * pairs} dimensions, {name} has "
            f"{dim}. Use tables of fewer pairs or a smaller start."
        )
    if blocks < 1 or pairs % blocks:
        raise invalid(call, "blocks", f"a divisor of the {pairs} pairs", blocks)
    if cos.ndim > 2 and order == "thd":
        raise WhorlError(f"{call}: order='thd' takes tables of shape (tokens, pairs). Flatten the batch into tokens.")
    if cos.ndim > 2 and (x.ndim != 4 or not equals_any(cos.shape[0], 1, x.shape[0])):
        raise WhorlError(
            f"{call}: tables are for a batch of {cos.shape[0]}, {name} has shape {tuple(x.shape)}. "
            "Pass positions of shape (length,) or (batch, length)."
        )
    if cos.ndim == 4 and not equals_any(cos.shape[1], 1, x.shape[_heads_axis(order)]):
        raise WhorlError(
            f"{call}: tables are for {cos.shape[1]} heads, {name} has {x.shape[_heads_axis(order)]}. "
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


def _aligned(table: Tensor, x: Tensor, order: Order) -> Tensor:
    """The table with axes in x's order, in the dtype the rotation runs in."""
    table = table.to(wide_dtype(x))
    if table.ndim == 2:
        return table if order == "bhld" else table.unsqueeze(-2)
    if table.ndim == 3:
        return table.unsqueeze(1) if order == "bhld" else table.unsqueeze(2)
    return table if order == "bhld" else table.transpose(1, 2)


def _turning_heads(x: Tensor, heads: Sequence[int], order: Order) -> Tensor:
    """Which heads of x turn, as bools that broadcast against it."""
    axis = _heads_axis(order)
    if x.ndim < 3:
        raise invalid(
            "rotate", "x", "a tensor with an axis of heads where only some turn", x, "Pass x of shape (1, length, dim)."
        )
    count = x.shape[axis]
    try:
        named = None if isinstance(heads, Tensor) else {index(head) for head in heads}
    except TypeError:
        named = None
    if named is None:  # a tensor neither: its numbers may be on a device
        raise invalid("rotate", "heads", "a sequence of head indices", heads, "Use None for all heads.")
    if not all(0 <= head < count for head in named):
        raise invalid("rotate", "heads", f"between 0 and {count - 1}", tuple(heads))
    shape = [1] * x.ndim
    shape[axis] = count
    return torch.tensor([head in named for head in range(count)], device=x.device).view(shape)
