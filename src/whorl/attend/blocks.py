"""A block of queries at a time, with the keys that it can see: what is out of a window is never looked at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whorl.attend.call import Call
from whorl.encodings.parts import Reach, ScoreTerm, first
from whorl.tracing import is_symbol, making_graph

# Scores held at a time by the dense path, and biases by the masked one, in elements: 16 MiB of float32, which a CPU's
# cache passes on from one operation to the next, and half a GiB on a GPU. A graph has few blocks.
MOST_SCORES = {"cpu": 2**22, "graph on the cpu": 2**24, "cuda": 2**27}

# Queries of a block within a window: few blocks where it is small, and few keys that are not seen where it is large.
WINDOW_ROWS = range(256, 2049)

Keys = tuple[slice, ...]  # the runs of keys that a block can see


def in_blocks(call: Call, attend: Callable[..., Any], *given: Tensor, rows: int | None = None) -> list[Any]:
    """attend(call, *given, start, stop) of every block of queries; with gradients, made again on the way back.

    Blocks have so many ``rows``, or as many as their scores leave room for.
    """
    bounds = _bounds(call, rows)
    if len(bounds) > 1 and torch.is_grad_enabled():
        attend = partial(checkpoint, attend, use_reentrant=False)
    return [attend(call, *given, start, stop) for start, stop in bounds]


def _bounds(call: Call, rows: int | None) -> list[tuple[int, int]]:
    """Where each block of queries starts and stops."""
    queries = call.q.shape[2]
    if is_symbol(queries) and torch.compiler.is_exporting():
        return [(0, queries)]  # one program for every length has one number of blocks
    rows = rows or _rows_at_once(call)
    if is_symbol(queries):  # 1, 2, 4, … blocks, the last with what is left: few graphs for all lengths
        count = 1
        while count * rows < queries:
            count *= 2
        size = queries // count
        return [(size * i, queries if i + 1 == count else size * (i + 1)) for i in range(count)]
    if rows >= queries:
        return [(0, queries)]
    return [(start, min(start + rows, queries)) for start in range(0, queries, rows)]


def _rows_at_once(call: Call) -> int:
    batch, heads, queries, _ = call.q.shape
    term = first(call.encoding, ScoreTerm)
    if term and term.counts_to_query and call.visible.causal is not True:
        return queries  # it counts back from the last key, and only causal blocks end there
    fits = _most(call) // max(1, batch * heads * call.k.shape[2])
    rows = max(1, min(queries, fits, call.encoding.query_limit(call.q.dtype) or queries))
    return min(rows, rows_of_window(call) or rows)


def rows_of_mask(call: Call) -> int:
    """How many queries a mask of pairs, the same for all heads, is formed for at a time."""
    return max(1, _most(call) // max(1, call.q.shape[0] * call.k.shape[2]))


def _most(call: Call) -> int:
    place = call.q.device.type if call.q.device.type in MOST_SCORES else "cpu"
    return MOST_SCORES["graph on the cpu" if place == "cpu" and making_graph() else place]


def rows_of_window(call: Call) -> int | None:
    """How many queries of a window are looked at together, or None where that leaves out no key."""
    reach = _reach(call)
    if reach is None:
        return None
    rows = min(max(reach.before + 1, WINDOW_ROWS.start), WINDOW_ROWS.stop - 1)
    return rows if rows + reach.before + reach.first < call.k.shape[2] else None


def _reach(call: Call) -> Reach | None:
    """How far queries can see, where their positions are known without reading them."""
    # terms on the scores may count the keys between, weights are asked for of all, a graph serves every length
    everything = call.wants_weights or first(call.encoding, ScoreTerm) or is_symbol(call.k.shape[2])
    return call.encoding.reach if call.consecutive and not everything else None


def blocks_alike(call: Call, start: int, rows: int) -> int:
    """How many blocks of so many queries, from ``start`` on, differ only in where they lie, with their last keys."""
    count, queries, first = 1, call.q.shape[2], _runs(call, start, min(start + rows, call.q.shape[2]))
    if call.visible.given:  # a mask, padding or documents may differ from block to block
        return 1
    while start + (count + 1) * rows <= queries:
        *fixed, last = _runs(call, start + count * rows, start + (count + 1) * rows)
        if (*fixed, slice(last.start - count * rows, last.stop - count * rows)) != first:
            break
        count += 1
    return count


def seen(call: Call, start: int, stop: int) -> tuple[Tensor | None, Keys]:
    """What queries [start, stop) may see of the keys that they can see at all, and which keys those are."""
    runs = _runs(call, start, stop)
    allowed = [call.visible.rows_among(start, stop, run) for run in runs]
    if allowed[0] is None:
        return None, runs
    return torch.cat([one for one in allowed if one is not None], dim=-1), runs


def _runs(call: Call, start: int, stop: int) -> Keys:
    """The keys that queries [start, stop) can see at all."""
    keys, reach = call.k.shape[2], _reach(call)
    place = keys - call.q.shape[2]  # of the first query among the keys
    last = max(0, place + stop) if call.visible.causal is True else keys  # more queries than keys: the first see none
    if reach is None:
        return (slice(0, last),)
    first = max(0, place + start - reach.before)
    if reach.after is not None:
        last = min(last, max(place + stop + reach.after, reach.first))  # the first of a text may lie ahead
    if first <= reach.first:
        return (slice(0, last),)
    return (slice(0, reach.first), slice(first, last)) if reach.first else (slice(first, last),)


def taken(x: Tensor, runs: Keys, axis: int = 2) -> Tensor:
    """The runs of keys on an axis of x, side by side."""
    found = [x.narrow(axis, run.start, run.stop - run.start) for run in runs]
    return found[0] if len(found) == 1 else torch.cat(found, dim=axis)
