"""Which tables are kept: all, none, or those of the usual lengths.

A cache holds tables of positions 0 … n-1, one per config and device, and every layer and every
encoding with that config shares them. They are a memo of a pure function: dropping one changes no
result. Positions are looked at only on the CPU; elsewhere that would stall the device, so there the
tables are computed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Literal, get_args
from weakref import WeakSet

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown
from whorl.rotary.tables import INTEGERS, Tables, readable

Policy = Literal["full", "on_the_fly", "hybrid"]


class TableCache:
    """Tables of cos and sin by config, within a bound on memory, safe to share between threads.

    ``"full"`` keeps a table up to the largest position seen, and raises where it would pass
    ``max_bytes``. ``"on_the_fly"`` keeps nothing. ``"hybrid"`` keeps positions below ``length`` and
    computes calls that go beyond. The least recently used config makes room.
    """

    def __init__(self, policy: Policy = "hybrid", *, length: int = 8192, max_bytes: int = 256 * 2**20) -> None:
        if policy not in get_args(Policy):
            raise unknown("policy", policy, get_args(Policy), call="TableCache")
        for name, value in (("length", length), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise invalid("TableCache", name, "a positive integer", value)
        self.policy: Policy = policy
        self.length = length
        self.max_bytes = max_bytes
        self._tables: OrderedDict[Hashable, Tables] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    @property
    def bytes(self) -> int:
        """Memory the kept tables take."""
        with self._lock:
            return sum(_bytes(kept) for kept in self._tables.values())

    def clear(self) -> None:
        """Drops every table."""
        with self._lock:
            self._tables.clear()

    def prefix(
        self, key: Hashable, positions: Tensor, row_bytes: int, build: Callable[[Tensor], Tables]
    ) -> Tables | None:
        """The kept tables that cover these positions, built or grown if need be, or None: compute them.

        ``build`` makes the tables of given positions, which take ``row_bytes`` for each.
        """
        if self.policy == "on_the_fly" or positions.dtype not in INTEGERS or not positions.numel():
            return None
        if not readable(positions):
            return None
        low, high = (int(bound) for bound in torch.aminmax(positions))
        if low < 0 or (self.policy == "hybrid" and high >= self.length):
            return None
        with self._lock:
            kept = self._tables.get(key)
            if kept is None or kept[0].shape[0] <= high:
                rows = self._rows(high, row_bytes)
                if rows is None:
                    return None
                with torch.inference_mode(False):  # training may come after, and must be able to use the table
                    kept = build(torch.arange(rows, device="cpu"))
                self._tables[key] = kept
            self._tables.move_to_end(key)
            self._make_room()
            return kept

    def _rows(self, high: int, row_bytes: int) -> int | None:
        """How many rows to build: a power of two, so that growing costs little in all."""
        rows = 1 << high.bit_length()
        if self.policy == "hybrid":
            rows = min(rows, self.length)
        if rows * row_bytes > self.max_bytes:
            rows = high + 1
        if rows * row_bytes <= self.max_bytes:
            return rows
        if self.policy == "hybrid":
            return None
        raise WhorlError(
            f"TableCache: a full table to position {high} takes {rows * row_bytes / 2**20:.0f} MiB, over max_bytes = "
            f"{self.max_bytes / 2**20:.0f} MiB. Raise max_bytes, or use policy='hybrid' or 'on_the_fly'."
        )

    def _make_room(self) -> None:
        total = sum(_bytes(kept) for kept in self._tables.values())
        while total > self.max_bytes:
            _, dropped = self._tables.popitem(last=False)
            total -= _bytes(dropped)


def _after_fork() -> None:
    """The child has none of the threads that may hold the locks of its caches; what they keep is whole."""
    for cache in list(_caches):
        cache._lock = threading.Lock()


_caches: WeakSet[TableCache] = WeakSet()
_current = TableCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current_table_cache() -> TableCache:
    """The cache every rotary encoding reads."""
    return _current


def use_table_cache(cache: TableCache) -> TableCache:
    """Makes this the cache every rotary encoding reads, and returns the one it replaces.

    >>> import whorl
    >>> before = whorl.use_table_cache(whorl.TableCache("on_the_fly"))
    >>> _ = whorl.use_table_cache(before)
    """
    global _current
    if not isinstance(cache, TableCache):
        raise invalid("use_table_cache", "cache", "a TableCache", cache)
    before, _current = _current, cache
    return before


def _bytes(kept: Tables) -> int:
    return sum(t.numel() * t.element_size() for t in kept)
