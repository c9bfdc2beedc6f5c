"""Plans: what is remembered between calls, in one memo with a bound, under one kind of key.

A call is checked at its public door. What its sizes, strides, dtypes, devices, modes and settings decide is a plan:
which kernel runs, with which numbers and tables. ``kind`` makes the key of a call, the only place that does; a call
whose key has a plan runs it and checks nothing again.

A plan changes nothing of itself. It owns the tables and strides that it reads, none of the tensors of the call that it
was made for, and holds its encoding weakly: what is learned is asked of the encoding at every run. Plans go when their
encoding goes, and when others that were used since have filled the memo; who runs one then goes on reading what it
owns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from whorl.tracing import PLAIN, operators_are_watched

Key = tuple[Any, ...]
Plan = Callable[..., Any]

# Plans that are kept; bytes of the tables that they own, beyond which few are.
MOST_PLANS, MOST_BYTES, FEW = 2048, 2**28, 8


def kind(settings: tuple[Hashable, ...], *tensors: Tensor | None, in_operator: bool = False) -> Key | None:
    """The key of a call with these settings and tensors.

    None where no plan may run: somebody traces or transforms what happens here, and would miss it, or a tensor is of a
    type that only the dispatcher knows to read. Who watches has seen an operator before it runs. A decoding step waits
    for this.
    """
    if not in_operator and operators_are_watched():
        return None
    grad = torch.is_grad_enabled()
    # a setting that equals another is not the same: True and 1, 4.0 and 4
    key: list[Any] = [grad, torch.is_inference_mode_enabled(), settings, *map(type, settings)]
    try:
        for x in tensors:
            if x is None:
                key.append(None)
            elif type(x) not in PLAIN or x.is_neg():
                return None
            else:
                key += (x.shape, x.stride(), x.dtype, x.device, grad and x.requires_grad)
    except (AttributeError, RuntimeError):  # a tensor without strides: the checks will name it
        return None
    return tuple(key)


def weakly(encoding: Any) -> Callable[[], Any]:
    """What gives a plan its encoding, without keeping it alive: whoever runs the plan has it."""
    return weakref.ref(encoding)


class Plans:
    """Plans by key, those used least recently dropped. Without a lock: two threads that meet make a plan twice."""

    def __init__(self) -> None:
        self._used: dict[Key, _Kept] = {}
        self._before: dict[Key, _Kept] = {}  # used before ``_used`` was begun, when it was full
        self._bytes = 0  # of tables in ``_used``

    def __len__(self) -> int:
        return len(self._used) + len(self._before)

    def cache_clear(self) -> None:
        """Drops every plan; named as every memo has it."""
        self._used, self._before, self._bytes = {}, {}, 0

    def get(self, key: Key | None) -> Plan | None:
        """The plan for a kind of call, or None where it is new."""
        if key is None:
            return None
        try:
            kept = self._used.get(key)
        except TypeError:  # a setting without hash: the checks will name it
            return None
        if kept is None:
            kept = self._before.pop(key, None)
            if kept is None:
                return None
            self._put(key, kept)
        return kept[0]

    def keep(self, key: Key | None, plan: Plan, encoding: Any = None, size: int = 0) -> Plan:
        """The plan, kept for the next call of its kind, as long as its encoding lives; its tables take ``size`` bytes.

        Without a key it is kept for nobody.
        """
        if key is not None:
            self._put(key, (plan, size, None if encoding is None else weakref.ref(encoding, lambda _: self._drop(key))))
        return plan

    def _put(self, key: Key, kept: _Kept) -> None:
        full = self._bytes + kept[1] > MOST_BYTES // 2 and len(self._used) >= FEW
        if full or len(self._used) >= MOST_PLANS // 2:
            self._used, self._before, self._bytes = {}, self._used, 0
        self._used[key] = kept
        self._bytes += kept[1]

    def _drop(self, key: Key) -> None:
        self._used.pop(key, None)
        self._before.pop(key, None)


_Kept = tuple[Plan, int, weakref.ref[Any] | None]

PLANS = Plans()


def plan_of(settings: tuple[Hashable, ...], tensors: tuple[Tensor | None, ...], make: Callable[[], Plan]) -> Plan:
    """The plan of an operator, whose tensors were checked above it; made by ``make`` where their kind is new."""
    key = kind(settings, *tensors, in_operator=True)
    return PLANS.get(key) or PLANS.keep(key, make())
