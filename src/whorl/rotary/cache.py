"""The cache of tables: it keeps all, none, or those of the usual lengths.

A cache holds tables of positions 0 … n-1, one per config and device, and every layer and every
encoding with that config shares them. They are a memo of a pure function: dropping one changes no
result. Positions are looked at only on the CPU; elsewhere that would stall the device, so there the
tables are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from itertools import count
from typing import Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, check_counts, invalid, unknown
from whorl.forks import uncut
from whorl.position_checks import INTEGERS
from whorl.rotary.tables import Tables
from whorl.tracing import may_read_values

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
        check_counts("TableCache", length=length, max_bytes=max_bytes)
        self.policy: Policy = policy
        self.length = length
        self.max_bytes = max_bytes
        # Replaced and never changed, so that who reads it needs no lock and the child of a fork finds it whole.
        self._kept: dict[Hashable, _Kept] = {}
        self._clock = count()
        self._building = threading.RLock()

    @property
    def bytes(self) -> int:
        """Memory the kept tables take."""
        return sum(kept.bytes for kept in self._kept.values())

    def clear(self) -> None:
        """Drops every table."""
        with uncut, self._building:  # what is being built now is dropped too
            self._kept = {}

    def prefix(
        self, key: Hashable, positions: Tensor, row_bytes: int, build: Callable[[Tensor], Tables]
    ) -> Tables | None:
        """The kept tables that cover these positions, built or grown if need be, or None: compute them.

        ``build`` makes the tables of given positions, which take ``row_bytes`` for each.
        """
        if self.policy == "on_the_fly" or positions.dtype not in INTEGERS or not positions.numel():
            return None
        if not may_read_values(positions):
            return None
        low, high = (int(bound) for bound in torch.aminmax(positions))
        if low < 0 or (self.policy == "hybrid" and high >= self.length):
            return None
        kept = self._kept.get(key)
        if kept is None or kept.rows <= high:
            kept = self._build(key, high, row_bytes, build)
            if kept is None:
                return None
        kept.used = next(self._clock)
        return kept.tables

    def _build(self, key: Hashable, high: int, row_bytes: int, build: Callable[[Tensor], Tables]) -> _Kept | None:
        """The tables up to a position, made by one thread at a time, or None if they are not to be kept."""
        with uncut, self._building:
            kept = self._kept.get(key)
            if kept is not None and kept.rows > high:  # another thread was first
                return kept
            rows = self._rows(high, row_bytes)
            if rows is None:
                return None
            with torch.inference_mode(False):  # training may come after, and must be able to use the table
                made = _Kept(build(torch.arange(rows, device="cpu")), next(self._clock))
            self._kept = self._with_room({**self._kept, key: made})
            return made

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

    def _with_room(self, kept: dict[Hashable, _Kept]) -> dict[Hashable, _Kept]:
        """The tables that fit into ``max_bytes``, the last used first."""
        total, fits = 0, {}
        for key, table in sorted(kept.items(), key=lambda item: -item[1].used):
            total += table.bytes
            if total > self.max_bytes:
                break
            fits[key] = table
        return fits


class _Kept:
    """Kept tables, and when they were used last."""

    def __init__(self, tables: Tables, used: int) -> None:
        self.tables, self.used = tables, used
        self.rows = tables[0].shape[0]
        self.bytes = sum(t.numel() * t.element_size() for t in tables)


_current = TableCache()


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
