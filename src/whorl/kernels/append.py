"""``rotate_append``: what a decoding step writes, in one launch on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid
from whorl.graphs import equals_any
from whorl.kernels.choose import Impl, check_impl, choose
from whorl.kernels.ops import LIBRARY, Ready
from whorl.kernels.rotate import Order, check_pair, keep, length_of, look_up, rotate_qk, turn_of, why_not, wide_dtype
from whorl.memory import check_dense, check_written
from whorl.position_checks import INTEGERS
from whorl.rotary.rotation import Layout
from whorl.tracing import may_read_addresses, may_read_values

LIBRARY.define(
    "rotate_append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor? rows, Tensor(a!) keys, "
    "Tensor(b!) values, Tensor slots, str order, str reads, str writes, int start, int blocks) -> Tensor"
)

# Where a cache has its slots, and k its tokens.
SLOTS_AXIS = {"bhld": 2, "blhd": 1, "thd": 0}


def rotate_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    layout: Layout = "half",
    *,
    start: int = 0,
    blocks: int = 1,
    order: Order = "bhld",
    rows: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """q turned; the keys, turned, and the values of the same tokens are written into a cache.

    ``keys`` and ``values`` are the cache's memory, in the order of k with its slots in place of the length.
    ``slots`` (length,) or (batch, length) says where each token goes; -1 is padding and goes nowhere. A slot
    beyond the cache raises on the CPU. On a GPU, where slots are not read back, nothing is written for it
    and its query becomes NaN. There are no gradients. Everything else is as in ``rotate_qk``.

    >>> import torch, whorl
    >>> cos, sin = whorl.Rope(head_dim=8).tables(torch.tensor([[5], [3]]))  # two rows at positions of their own
    >>> q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)
    >>> keys, values = torch.zeros(2, 2, 2, 16, 8)
    >>> whorl.rotate_append(q, k, v, cos, sin, keys, values, torch.tensor([[5], [3]])).shape
    torch.Size([2, 4, 1, 8])
    >>> torch.equal(values[1, :, 3], v[1, :, 0])
    True
    """
    how = ("append", layout, start, blocks, order, impl)
    given = (q, k, v, cos, sin, rows, keys, values, slots)
    key, ready = look_up(how, cos, sin, rows, q, k, v, keys, values, slots)
    if ready is None:
        check_impl(impl, "rotate_append")
        _check(q, k, v, cos, sin, keys, values, slots, rows, layout, order, start, blocks)
        ready = _ready(q, cos, sin, layout, start, blocks, order, impl)
        if key is not None:
            keep(key, ready)
    capacity = keys.shape[SLOTS_AXIS[order]]
    if may_read_values(slots) and slots.numel() and int(slots.max()) >= capacity:
        raise invalid("rotate_append", "slots", f"below the {capacity} slots there are", int(slots.max()))
    run, turn = ready
    if run is _by_torch and (key is not None or may_read_addresses(*given)):
        _check_memory(*given)
    with torch.no_grad():
        return run(*given, *turn)


def _ready(
    q: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int, blocks: int, order: Order, impl: Impl
) -> Ready:
    """The function that runs, of all tensors, and its further arguments."""
    kernel = choose(impl, "rotate_append", {"triton": _why_not(q, cos, sin)} if impl != "torch" else None)
    if kernel == "torch" or (impl == "auto" and q.device.type != "cuda"):
        return _by_torch, (layout, start, blocks, order)
    return _by_kernel, turn_of(layout, False, order, start, blocks, kernel)[:5]


def _by_kernel(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *more: Any) -> Tensor:
    wide = wide_dtype(q)
    return torch.ops.whorl.rotate_append(q, k, v, cos.to(wide), sin.to(wide), rows, *more)


def _why_not(q: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    return why_not("triton", q, cos, sin) or ("angles differ by head" if cos.ndim == 4 else None)


def _by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    layout: Layout,
    start: int,
    blocks: int,
    order: Order,
) -> Tensor:
    q, k = rotate_qk(q, k, cos, sin, layout, start=start, blocks=blocks, order=order, rows=rows)
    if order == "thd":
        kept = slots >= 0
        keys[slots[kept]], values[slots[kept]] = k[kept], v[kept]
        return q
    moved = [x.transpose(1, 2) if order == "bhld" else x for x in (k, v, keys, values)]
    slots = slots.expand(len(q), slots.shape[-1])
    row, token = (slots >= 0).nonzero(as_tuple=True)
    for new, cache in ((moved[0], moved[2]), (moved[1], moved[3])):
        cache[row, slots[row, token]] = new[row, token]
    return q


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    rows: Tensor | None,
    layout: Layout,
    order: Order,
    start: int,
    blocks: int,
) -> None:
    call = "rotate_append"
    check_pair(call, q, k, cos, sin, rows, (layout, False, start, blocks, order))
    if order != "thd" and q.ndim != 4:
        raise invalid(call, "q", "of four axes, or three with order='thd'", q)
    axis = SLOTS_AXIS[order]
    expected = f"{k.dtype} of shape {(*k.shape[:-1], 'value dim')} on {k.device}"
    check_dense(call, "v", v, expected)
    if v.shape[:-1] != k.shape[:-1] or v.dtype != k.dtype or v.device != k.device:
        raise invalid(call, "v", expected, v)
    for name, cache, new in (("keys", keys, k), ("values", values, v)):
        check_dense(call, name, cache, "a tensor", "The memory of a cache, torch.zeros with its slots for the length.")
        want = [*new.shape]
        want[axis] = cache.shape[axis] if cache.ndim == new.ndim else -1
        if list(cache.shape) != want or cache.dtype != new.dtype or cache.device != new.device:
            shape = tuple("slots" if i == axis else size for i, size in enumerate(new.shape))
            raise invalid(call, name, f"{new.dtype} of shape {shape} on {new.device}", cache)
    if keys.shape[axis] != values.shape[axis]:
        raise WhorlError(
            f"{call}: keys have {keys.shape[axis]} slots and values {values.shape[axis]}. Make them alike."
        )
    length = length_of(q, order)
    shapes = [(length,)] if order == "thd" else [(length,), (1, length), (q.shape[0], length)]
    check_dense(call, "slots", slots, f"integers of shape {shapes[-1]} on {q.device}", "One slot per token.")
    if slots.dtype not in INTEGERS or not equals_any(tuple(slots.shape), *shapes) or slots.device != q.device:
        raise invalid(call, "slots", f"integers of shape {shapes[-1]} on {q.device}", slots)


def _check_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> None:
    """Raises a WhorlError unless the cache has memory apart from all that is read."""
    read = (("q", q), ("k", k), ("v", v), ("cos", cos), ("sin", sin), ("rows", rows), ("slots", slots))
    check_written("rotate_append", (("keys", keys), ("values", values)), read)


def _append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *turn: Any,
) -> Tensor:
    from whorl.kernels.append_triton import append

    _check_memory(q, k, v, cos, sin, rows, keys, values, slots)
    out = torch.empty_like(q)
    append(q, k, v, cos, sin, rows, keys, values, slots, out, *turn)
    return out


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("rotate_append", _append, _device)


@torch.library.register_fake("whorl::rotate_append", lib=LIBRARY)
def _(q: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(q)
