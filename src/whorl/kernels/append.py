"""``rotate_append``: what a decoding step writes, in one launch on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid
from whorl.graphs import equals_any
from whorl.kernels.axes import LENGTH_AXIS, length_of
from whorl.kernels.choose import Impl, check_impl
from whorl.kernels.ops import mark_written, operator
from whorl.kernels.refusals import choose_fused, choose_rotate
from whorl.kernels.rotate import plan_for
from whorl.kernels.rotate_checks import check_pair, checked_rotation
from whorl.kernels.rotate_torch import wide_dtype
from whorl.memory import check_dense, check_written
from whorl.plans import PLANS, Plan, kind, plan_of
from whorl.position_checks import INTEGERS
from whorl.rotary.rotation import Layout, Order, Rotation
from whorl.tracing import may_read_addresses, may_read_values

CALL = "rotate_append"


class Step(NamedTuple):
    """The tensors of a decoding step: what it reads, and the cache that it writes into."""

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    rows: Tensor | None
    keys: Tensor
    values: Tensor
    slots: Tensor


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
    step = Step(q, k, v, cos, sin, rows, keys, values, slots)
    key = kind((CALL, layout, start, blocks, order, impl), *step)
    plan = PLANS.get(key)
    if plan is None:
        check_impl(impl, CALL)
        rotation = checked_rotation(CALL, layout, False, start, blocks, order)
        _check(step, rotation)
        plan = PLANS.keep(key, _plan(step, rotation, impl, direct=key is not None))
    capacity = keys.shape[LENGTH_AXIS[order]]
    if may_read_values(slots) and slots.numel() and int(slots.max()) >= capacity:
        raise invalid(CALL, "slots", f"below the {capacity} slots there are", int(slots.max()))
    with torch.no_grad():
        return plan(step)


def _plan(step: Step, rotation: Rotation, impl: Impl, *, direct: bool) -> Plan:
    """The function that takes a checked step, or another of its kind."""
    q, cos, sin = step.q, step.cos, step.sin
    refusal = "angles differ by head" if cos.ndim == 4 else None
    if choose_fused(impl, CALL, q, cos, sin, refusal) == "torch":
        turn = plan_for((q, step.k), cos, sin, step.rows, rotation, choose_rotate("auto", q, cos, sin), direct=direct)

        def write(step: Step) -> Tensor:
            if direct or may_read_addresses(*step):
                _check_memory(step)
            turned_q, turned_k = turn((step.q, step.k), step.cos, step.sin, step.rows)
            _write(turned_k, step, rotation.order)
            return turned_q

        return write
    wide = wide_dtype(q)
    if not direct or cos.dtype != wide or sin.dtype != wide:

        def by_operator(step: Step) -> Tensor:
            q, k, v, cos, sin, *rest = step
            return torch.ops.whorl.rotate_append(q, k, v, cos.to(wide), sin.to(wide), *rest, *rotation[:5])

        return by_operator
    from whorl.kernels.append_triton import ready

    run = ready(step, torch.empty_like(q), rotation)

    def by_kernel(step: Step) -> Tensor:
        _check_memory(step)
        out = torch.empty_like(step.q)
        run(step, out)
        mark_written(step.keys)
        mark_written(step.values)
        return out

    return by_kernel


@operator(
    "rotate_append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor? rows, Tensor(a!) keys, "
    "Tensor(b!) values, Tensor slots, str order, str reads, str writes, int start, int blocks) -> Tensor",
    lambda q, *_: torch.empty_like(q),
)
def _append(*given: Any) -> Tensor:
    from whorl.kernels.append_triton import ready

    step, rotation = Step(*given[:9]), Rotation(*given[9:])
    _check_memory(step)
    out = torch.empty_like(step.q)
    run = plan_of((CALL, rotation), step, lambda: ready(step, out, rotation))
    run(step, out)
    return out


def _write(k: Tensor, step: Step, order: Order) -> None:
    """Puts turned keys and the values of a step into their slots, by torch."""
    v, keys, values, slots = step.v, step.keys, step.values, step.slots
    if order == "thd":
        kept = slots >= 0
        keys[slots[kept]], values[slots[kept]] = k[kept], v[kept]
        return
    slots = slots.expand(len(k), slots.shape[-1])
    row, token = (slots >= 0).nonzero(as_tuple=True)
    for new, cache in ((k, keys), (v, values)):
        if order == "bhld":
            new, cache = new.transpose(1, 2), cache.transpose(1, 2)
        cache[row, slots[row, token]] = new[row, token]


def _check(step: Step, rotation: Rotation) -> None:
    """Raises a WhorlError unless the tensors of a step fit each other and the rotation."""
    q, k, v, cos, sin, rows, keys, values, slots = step
    order = rotation.order
    check_pair(CALL, q, k, cos, sin, rows, rotation)
    if order != "thd" and q.ndim != 4:
        raise invalid(CALL, "q", "of four axes, or three with order='thd'", q)
    axis = q.ndim + LENGTH_AXIS[order]
    expected = f"{k.dtype} of shape {(*k.shape[:-1], 'value dim')} on {k.device}"
    check_dense(CALL, "v", v, expected)
    if v.shape[:-1] != k.shape[:-1] or v.dtype != k.dtype or v.device != k.device:
        raise invalid(CALL, "v", expected, v)
    for name, cache, new in (("keys", keys, k), ("values", values, v)):
        check_dense(CALL, name, cache, "a tensor", "The memory of a cache, torch.zeros with its slots for the length.")
        want = [*new.shape]
        want[axis] = cache.shape[axis] if cache.ndim == new.ndim else -1
        if list(cache.shape) != want or cache.dtype != new.dtype or cache.device != new.device:
            shape = tuple("slots" if i == axis else size for i, size in enumerate(new.shape))
            raise invalid(CALL, name, f"{new.dtype} of shape {shape} on {new.device}", cache)
    if keys.shape[axis] != values.shape[axis]:
        raise WhorlError(
            f"{CALL}: keys have {keys.shape[axis]} slots and values {values.shape[axis]}. Make them alike."
        )
    length = length_of(q, order)
    shapes = [(length,)] if order == "thd" else [(length,), (1, length), (q.shape[0], length)]
    expected = f"integers of shape {shapes[-1]} on {q.device}"
    check_dense(CALL, "slots", slots, expected, "One slot per token.")
    if slots.dtype not in INTEGERS or not equals_any(tuple(slots.shape), *shapes) or slots.device != q.device:
        raise invalid(CALL, "slots", expected, slots)


def _check_memory(step: Step) -> None:
    """Raises a WhorlError unless the cache has memory apart from all that is read."""
    tensors = step._asdict()
    written = tuple((name, tensors.pop(name)) for name in ("keys", "values"))
    check_written(CALL, written, tuple(tensors.items()))
