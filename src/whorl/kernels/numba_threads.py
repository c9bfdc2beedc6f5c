"""Threads for a compiled function: torch's own where they can be reached, a few Python threads elsewhere.

After every parallel operation torch's threads stay awake for some milliseconds, waiting for the next, so that a pool
beside theirs waits for cores: on two cores, work shared with threads of our own took longer than alone. Hence the work
runs on the threads of the OpenMP runtime that torch has loaded. The children of fork have lost those and would hang;
there, and where the runtime is another, daemon threads help. numba's own layers would be no choice: omp kills the
children of fork, and workqueue aborts when two Python threads call at once.
"""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple


class Compiled(NamedTuple):
    """A compiled function of the address of a call, which is an array of int64.

    It takes pieces of work by adding one to the first of them until none is left, then adds how many pieces it did to
    the second, and returns 1 if that made all of them.
    """

    run: Callable[[int], int]
    address: int


def share(function: Compiled, call: array, numbers: array, keep: list[object], threads: int) -> None:
    """Runs a function on the caller and threads - 1 others until all its pieces of work are done.

    ``keep`` is what must stay in memory while others work, ``numbers`` what a thread that wakes late still reads.
    """
    if _openmp is not None:
        _openmp(function.address, call.buffer_info()[0], threads, 0)
        return
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()
    _team.grow(threads - 1)
    for _ in range(threads - 1):
        _team.jobs.put((function, call, outcome, numbers, keep))
    if not function.run(call.buffer_info()[0]) and (failure := outcome.get()) is not None:
        raise failure
    keep.clear()  # a helper that wakes late still holds the job, and must not hold the memory


def _torch_threads() -> Callable[..., None] | None:
    """GNU OpenMP's ``parallel`` of the runtime in this process, None if it has another one."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


class _Team:
    """The helpers of this process and the queue they listen to."""

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


def _help(jobs: SimpleQueue) -> None:
    while True:
        job = jobs.get()
        function, call, outcome, *_ = job
        try:
            if function.run(call.buffer_info()[0]):
                outcome.put(None)
        except BaseException as failure:
            outcome.put(failure)
        del job, function, call, outcome, _  # not held while waiting for the next job


def _after_fork() -> None:
    """The child has none of its parent's threads: it starts its own when it needs them."""
    global _team, _openmp
    _team, _openmp = _Team(), None


_team = _Team()
_openmp = _torch_threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
