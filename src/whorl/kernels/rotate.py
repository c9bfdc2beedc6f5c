"""``rotate`` and ``rotate_qk``: the public calls that check a rotation and run it by the implementation asked for.

triton   one launch for queries and keys, on a CUDA device
numba    one pass over memory, on the CPU
torch    everywhere, and where tables need gradients or torch.func transforms the call
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.graphs import constant_in_graphs, equals_any
from whorl.kernels.choose import Impl, choose, why_not_installed
from whorl.kernels.ops import Ready, ready_kernel, rotate_into, traced, turn_ready, why_not_memory, why_not_transformed
from whorl.rotary.rotation import LAYOUTS, Layout, inverse_tables, layout_ends, turn_pairs
from whorl.rotary.tables import INTEGERS

Order = Literal["bhld", "blhd", "thd"]

ORDERS: tuple[str, ...] = get_args(Order)

# What the kernels read and write.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# What "auto" stands for, by the kind of device; torch elsewhere.
AUTO = {"cuda": "triton", "cpu": "numba"}

# Calls that were checked, with what is ready for them, by all that was looked at.
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
    the rotation to some heads. ``out`` is memory to write into, x itself to rotate in place.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=4, layout="interleaved")
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = rope.tables(torch.tensor([2]))
    >>> whorl.rotate(x, cos, sin, layout="interleaved")
    tensor([[-2.2347,  0.0770,  2.9194,  4.0592]])
    """
    how = (layout, inverse, start, blocks, order, impl)
    key = None
    if heads is None and out is None and _eager((x,), cos, sin):
        key = _signature(x, cos, sin, how, rows)
        found = _READY.get(key)
        if found is not None:
            return turn_ready(found, (x,), cos, sin, rows)[0]
    _check(x, cos, sin, rows, layout, order, start, blocks)
    kernel = _kernel_for(impl, x, cos, sin)
    if out is not None:
        _check_out(x, out, cos, layout)
    if heads is not None:
        turned = rotate(
            x, cos, sin, layout, inverse=inverse, start=start, blocks=blocks, order=order, rows=rows, impl=impl
        )
        turned = _only_heads(x, turned, heads, order)
        return turned if out is None else out.copy_(turned)
    if kernel == "torch":
        turned = turn_by_torch(x, cos, sin, rows, layout, inverse, start, blocks, order)
        return turned if out is None else out.copy_(turned)
    if not _wide(cos, sin, x):
        cos, sin, key = cos.to(wide_dtype(x)), sin.to(wide_dtype(x)), None
    turn = turn_of(layout, inverse, order, start, blocks, kernel)
    if out is not None:
        if _eager((x, out), cos, sin):
            rotate_into(out, x, cos, sin, rows, *turn)
            if not out.is_inference():
                torch.autograd.graph.increment_version(out)  # so that a backward pass sees that it was written into
        else:
            torch.ops.whorl.rotate_into(out, x, cos, sin, rows, *turn)
        return out
    if key is None:
        return torch.ops.whorl.rotate(x, cos, sin, rows, *turn)
    return turn_ready(_keep_ready(key, (x,), cos, sin, rows, turn), (x,), cos, sin, rows)[0]


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
    key = None
    if _eager((q, k), cos, sin):
        key = _signature(q, cos, sin, how, k, rows)
        found = _READY.get(key)
        if found is not None:
            turned_q, turned_k = turn_ready(found, (q, k), cos, sin, rows)
            return turned_q, turned_k
    check_pair("rotate_qk", q, k, cos, sin, rows, layout, order, start, blocks)
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
    if impl == "torch":
        return "torch"
    if impl == "auto":
        kernel = AUTO.get(x.device.type)
        return "torch" if kernel is None or why_not(kernel, x, cos, sin) else kernel
    known = impl in ("triton", "numba")
    return choose(impl, "rotate", {impl: why_not(impl, x, cos, sin)} if known else None)


def _eager(xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor) -> bool:
    """Whether nobody traces or transforms what happens here: a kernel may be called directly."""
    if traced():
        return False
    for one in (*xs, cos, sin):  # ``readable``, but for what gradients alone can be: a decoding step waits for this
        if type(one) is not Tensor or one.is_neg():
            return False
    return not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))


def _signature(x: Tensor, cos: Tensor, sin: Tensor, how: tuple[Any, ...], *more: Tensor | None) -> tuple[Any, ...]:
    """All that a kernel is made ready for. The tensors of every call are written out, which a loop is slower than."""
    key = (
        *(how, x.shape, x.stride(), x.dtype, x.device),
        *(cos.shape, cos.stride(), cos.dtype, cos.device),
        *(sin.shape, sin.stride(), sin.dtype, sin.device),
    )
    for one in more:
        key += (None,) if one is None else (one.shape, one.stride(), one.dtype, one.device)
    return key


def _keep_ready(
    key: tuple[Any, ...], xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, rows: Tensor | None, turn: tuple[Any, ...]
) -> Ready:
    """The kernel made ready for a call, and for the next like it."""
    outs = tuple(torch.empty_like(x) for x in xs)
    found = ready_kernel(xs, cos, sin, outs, rows, *turn), turn
    if len(_READY) >= MOST_READY:
        _READY.clear()
    _READY[key] = found
    return found


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


def _check(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    layout: Layout,
    order: Order,
    start: int,
    blocks: int,
) -> None:
    """Raises a WhorlError unless everything fits."""
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS, call="rotate")
    check_input(x, order)
    _check_tables(x, cos, sin, rows, order, start, blocks)


def check_pair(
    call: str,
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    layout: Layout,
    order: Order,
    start: int,
    blocks: int,
) -> None:
    """Raises a WhorlError unless everything fits both tensors, and they differ in heads only."""
    for x in (q, k):
        _check(x, cos, sin, rows, layout, order, start, blocks)
    same = q.dtype == k.dtype and q.shape[-1] == k.shape[-1] and q.ndim == k.ndim and q.device == k.device
    if not same or (q.ndim == 4 and q.shape[0] != k.shape[0]):
        raise WhorlError(
            f"{call}: q and k must have one dtype, batch, length and head_dim, got {tuple(q.shape)} of {q.dtype} "
            f"and {tuple(k.shape)} of {k.dtype}. Rotate them one by one with whorl.rotate."
        )


def _check_out(x: Tensor, out: Tensor, cos: Tensor, layout: Layout) -> None:
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise invalid("rotate", "out", f"of shape {tuple(x.shape)}, {x.dtype} on {x.device}", out, "Use empty_like(x).")
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad or cos.requires_grad):
        raise WhorlError("rotate: out= keeps no gradient. Leave it out, or call under torch.no_grad().")
    reads, writes = layout_ends(layout)
    if reads != writes and out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise WhorlError(
            f"rotate: layout={layout!r} writes where it has yet to read, so not in place. Pass other memory as out=."
        )


def check_input(x: Tensor, order: Order, call: str = "rotate") -> None:
    """Raises a WhorlError unless x is a floating tensor of the named order."""
    if order not in ORDERS:
        raise unknown("order", order, ORDERS, call=call)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise invalid(call, "x", "a floating tensor", x)
    if (order == "blhd" and x.ndim != 4) or (order == "thd" and x.ndim != 3) or x.ndim < 2:
        shape = {
            "bhld": "(batch, heads, length, head_dim)",
            "blhd": "(batch, length, heads, head_dim)",
            "thd": "(tokens, heads, head_dim)",
        }[order]
        raise invalid(call, "x", f"of shape {shape} for order={order!r}", x, f"Orders: {', '.join(ORDERS)}.")


def length_of(x: Tensor, order: Order) -> int:
    """The number of positions of x."""
    return x.shape[{"bhld": -2, "blhd": 1, "thd": 0}[order]]


def _check_tables(
    x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, order: Order, start: int, blocks: int
) -> None:
    if cos.shape != sin.shape or not 2 <= cos.ndim <= 4:
        raise WhorlError(
            f"rotate: cos and sin must have one shape (…, length, pairs), got {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}. Take both from one call of tables()."
        )
    if cos.device != x.device:
        raise WhorlError(
            f"rotate: tables are on {cos.device} and x on {x.device}. Make the positions on the device of x."
        )
    dim, pairs = x.shape[-1], cos.shape[-1]
    if start < 0 or start + 2 * pairs > dim:
        raise WhorlError(
            f"rotate: tables of {pairs} pairs from dimension {start} need {start + 2 * pairs} dimensions, x has {dim}. "
            "Use tables of fewer pairs or a smaller start."
        )
    if blocks < 1 or pairs % blocks:
        raise invalid("rotate", "blocks", f"a divisor of the {pairs} pairs", blocks)
    length = length_of(x, order)
    if rows is not None:
        batched = order != "thd" and rows.ndim == 2 and equals_any(rows.shape[0], 1, x.shape[0] if x.ndim == 4 else 1)
        if rows.dtype not in INTEGERS or not (rows.ndim == 1 or batched) or rows.shape[-1] != length:
            shapes = f"({length},)" if order == "thd" else f"({length},) or (batch, {length})"
            raise invalid("rotate", "rows", f"integers of shape {shapes}", rows, "One row of the tables per token.")
        if rows.device != x.device:
            raise WhorlError(f"rotate: rows are on {rows.device} and x on {x.device}. Make them there.")
    elif cos.shape[-2] != length:
        raise WhorlError(
            f"rotate: tables are for {cos.shape[-2]} positions, x has {length_of(x, order)} in order {order!r}. "
            "Pass one position per token, or name the order of x."
        )
    if cos.ndim > 2 and order == "thd":
        raise WhorlError("rotate: order='thd' takes tables of shape (tokens, pairs). Flatten the batch into tokens.")
    if cos.ndim > 2 and (x.ndim != 4 or not equals_any(cos.shape[0], 1, x.shape[0])):
        raise WhorlError(
            f"rotate: tables are for a batch of {cos.shape[0]}, x has shape {tuple(x.shape)}. "
            "Pass positions of shape (length,) or (batch, length)."
        )


def _aligned(table: Tensor, x: Tensor, order: Order) -> Tensor:
    """The table with axes in x's order, in the dtype the rotation runs in."""
    table = table.to(wide_dtype(x))
    if table.ndim == 2:
        return table if order == "bhld" else table.unsqueeze(-2)
    if table.ndim == 3:
        return table.unsqueeze(1) if order == "bhld" else table.unsqueeze(2)
    return table if order == "bhld" else table.transpose(1, 2)


def _only_heads(x: Tensor, out: Tensor, heads: Sequence[int], order: Order) -> Tensor:
    axis = -3 if order == "bhld" else -2
    count = x.shape[axis]
    if not all(0 <= head < count for head in heads):
        raise invalid("rotate", "heads", f"between 0 and {count - 1}", tuple(heads))
    turns = [head in set(heads) for head in range(count)]
    shape = [1] * x.ndim
    shape[axis] = count
    return torch.where(torch.tensor(turns, device=x.device).view(shape), out, x)
