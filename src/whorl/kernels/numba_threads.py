"""Threads that help a compiled function through its work, started at the first large call.

numba's own layers are no choice for a library: omp kills the children of fork, and workqueue aborts when two
Python threads call at once. Here the caller and a few daemon threads run one compiled function that lets go of the
interpreter lock and takes pieces of work from an atomic counter until none is left. A helper that wakes late finds
nothing to do, so the caller never waits for a thread that has not begun.
"""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from collections.abc import Callable
from queue import SimpleQueue

# Pieces taken and pieces finished, on two cache lines.
_Counters = ctypes.c_int64 * 9


class _Team:
    """The helper threads of this process and the queue they listen to."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue = SimpleQueue()
        self.size = 0
        self.growing = threading.Lock()

    def grow(self, size: int) -> None:
        with self.growing:
            while self.size < size:
                try:
                    threading.Thread(target=_help, args=(self.jobs,), daemon=True, name="whorl-helper").start()
                except RuntimeError:  # no more threads here: those there are will do
                    return
                self.size += 1


def share(
    function: Callable[..., bool], places: tuple[int, ...], numbers: array, keep: list[object], threads: int
) -> None:
    """Runs ``function(counters, *places, address of numbers)`` on the caller and threads - 1 helpers until all is done.

    The function takes a piece of work by adding one to the int64 at ``counters``. Before it returns it adds how many
    pieces it did to the int64 64 bytes on, and returns True if that made all of them. ``keep`` is what must stay in
    memory while a helper works; ``numbers`` is also read by one that wakes when there is nothing left to do.
    """
    counters = _Counters()
    arguments = (ctypes.addressof(counters), *places, numbers.buffer_info()[0])
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()
    team = _team
    if team.size < threads - 1:
        team.grow(threads - 1)
    for _ in range(threads - 1):
        team.jobs.put((function, arguments, outcome, counters, numbers, keep))
    if not function(*arguments) and (failure := outcome.get()) is not None:
        raise failure
    keep.clear()  # a helper that wakes late still holds the job, and must not hold the memory


def _help(jobs: SimpleQueue) -> None:
    while True:
        job = jobs.get()
        function, arguments, outcome, *_ = job
        try:
            if function(*arguments):
                outcome.put(None)
        except BaseException as failure:
            outcome.put(failure)
        del job, function, arguments, outcome, _  # not held while waiting for the next job


def _after_fork() -> None:
    """The child has none of its parent's threads: it starts its own when it needs them."""
    global _team
    _team = _Team()


_team = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
