"""Ready launches: functions that run a kind of call which was checked before, without checking anything again.

The kind of a call is its settings and the shape, strides, dtype and device of each tensor. That is all that checks, the
choice of an implementation and the preparation of a kernel look at, so a call of a known kind costs one look-up and
the launch. Every rotation keeps its launches here: calls of users, operators in graphs, and backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whorl.tracing import operators_are_watched

Key = tuple[Any, ...]
Launch = Callable[..., Any]

# By the kind of a call. Looked up and written without a lock: two threads that meet prepare the same launch twice.
LAUNCHES: dict[Key, Launch] = {}
MOST_LAUNCHES = 1024


def look_up(
    settings: Key, cos: Tensor, sin: Tensor, rows: Tensor | None, x: Tensor, *others: Tensor
) -> tuple[Key | None, Launch | None]:
    """The key of a call and its ready launch; None for the launch of a new kind.

    The key is None too where a kernel may not be called directly: somebody traces or transforms what happens here, or a
    tensor is of a type that only the dispatcher knows to read. A decoding step waits for this, hence every tensor
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
            settings, *map(type, settings),  # True equals 1, and 0.0 equals 0: what is refused is of another type
            x.shape, x.stride(), x.dtype, x.device, cos.shape, cos.stride(), cos.dtype, cos.device,
            sin.shape, sin.stride(), sin.dtype, sin.device,
        )  # fmt: skip
        for other in others:
            if type(other) is not Tensor or other.is_neg():
                return None, None
            key += (other.shape, other.stride(), other.dtype, other.device)
        if rows is not None:
            if type(rows) is not Tensor:
                return None, None
            key += ("rows", rows.shape, rows.stride(), rows.dtype, rows.device)
        return key, LAUNCHES.get(key)
    except (TypeError, RuntimeError):  # a setting without hash, a tensor without strides: the checks will name it
        return None, None


def kinds_of(*tensors: Tensor) -> Key:
    """Shape, strides, dtype, device and class of each tensor, of which a call's kind is made."""
    return tuple([(x.shape, x.stride(), x.dtype, x.device, type(x)) for x in tensors])


def keep(key: Key | None, launch: Launch) -> Launch:
    """The launch, kept for the next call of its kind unless there is no key."""
    if key is not None:
        if len(LAUNCHES) >= MOST_LAUNCHES:
            LAUNCHES.clear()
        LAUNCHES[key] = launch
    return launch


def prepared(settings: Key, tensors: tuple[Tensor | None, ...], prepare: Callable[[], Launch]) -> Launch:
    """The launch for tensors that were checked elsewhere, made by ``prepare`` where their kind is new."""
    key = (settings, *[None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in tensors])
    return LAUNCHES.get(key) or keep(key, prepare())
