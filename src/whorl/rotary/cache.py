"""The cache of tables: it keeps all, none, or those of the usual lengths.

A cache holds tables of positions 0 … n-1, one per config and device, and every layer and every
encoding with that config shares them. They are a memo of a pure function: dropping one changes no
result. Positions are looked at only on the CPU; elsewhere that would stall the device, so there the
tables are computed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, check_counts, invalid, unknown
from whorl.forks import uncut
from whorl.position_checks import INTEGERS
from whorl.rotary.tables import Tables
from whorl.tracing import may_read_values

Policy = Literal["full", "on_the_fly", "hybrid"]

MOST_TABLES = 1024  # of small ones, which the bound on memory would let pass
ASKED_OF_ROWS = 8  # making a row by itself costs about as much as making eight of a table


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
        # By key, the last used at the end. Read without a lock: each access is one step of the interpreter.
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0
        self._building = threading.RLock()

    @property
    def bytes(self) -> int:
        """Memory the kept tables take."""
        return self._bytes

    def clear(self) -> None:
        """Drops every table."""
        with uncut, self._building:  # what is being built now is dropped too
            self._kept, self._bytes = OrderedDict(), 0

    def prefix(
        self,
        key: Hashable,
        positions: Tensor,
        row_bytes: int,
        build: Callable[[Tensor], Tables],
        served: int | None = None,
    ) -> Tables | None:
        """The kept tables that cover these positions, built or grown if need be, or None: compute them.

        ``build`` makes the tables of given positions, which take ``row_bytes`` for each. ``served`` is the length that
        the tables are for, where every length has others: as a text grows, most of them are asked for a row and never
        again, so they are built once an eighth of their rows has been asked for.
        """
        if self.policy == "on_the_fly" or positions.dtype not in INTEGERS or not positions.numel():
            return None
        if not may_read_values(positions):
            return None
        low, high = (int(bound) for bound in torch.aminmax(positions))
        if low < 0 or (self.policy == "hybrid" and high >= self.length):
            return None
        kept = self._kept.get(key)
        if kept is not None and kept.rows > high:
            with suppress(KeyError):  # another thread has dropped it just now
                self._kept.move_to_end(key)
            return kept.tables
        return self._build(key, high, positions.numel(), row_bytes, build, served)

    def _build(
        self,
        key: Hashable,
        high: int,
        asked: int,
        row_bytes: int,
        build: Callable[[Tensor], Tables],
        served: int | None,
    ) -> Tables | None:
        """The tables up to a position, made by one thread at a time, or None if they are not to be kept."""
        with uncut, self._building:
            kept = self._kept.get(key) or _Kept()
            if kept.rows > high:  # another thread was first
                return kept.tables
            rows = self._rows(high, row_bytes)
            if rows is None:
                return None
            if served is not None:
                rows = max(high + 1, min(rows, served))
                kept = _Kept(kept.tables, kept.asked + asked)
                if self.policy == "hybrid" and kept.asked * ASKED_OF_ROWS < rows:
                    self._keep(key, kept)
                    return None
            with torch.inference_mode(False):  # training may come after, and must be able to use the table
                made = _Kept(build(torch.arange(rows, device="cpu")), kept.asked)
            self._keep(key, made)
            return made.tables

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        """Puts tables in place, and drops those that were used least recently until the rest is within its bounds."""
        before = self._kept.pop(key, None)
        self._kept[key] = kept
        self._bytes += kept.bytes - (before.bytes if before is not None else 0)
        while self._bytes > self.max_bytes or len(self._kept) > MOST_TABLES:
            self._bytes -= self._kept.popitem(last=False)[1].bytes

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


class _Kept:
    """Kept tables, if they were built already, and how many of their rows were asked for until then."""

    def __init__(self, tables: Tables | None = None, asked: int = 0) -> None:
        self.tables, self.asked = tables, asked
        self.rows = 0 if tables is None else tables[0].shape[0]
        self.bytes = 0 if tables is None else sum(t.numel() * t.element_size() for t in tables)


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
