"""Forks wait for work that must not be cut in two.

The child of a fork has one thread. Work that another thread of its parent had begun stays half done there: a lock
stays locked for ever, a module or machine code stays incomplete. Python waits for neither, so forks wait here.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any

# Seconds that a thread lets a waiting fork go first. Without them threads, one after another, could keep it waiting.
POLITE = 0.1


class Uncut(AbstractContextManager[None]):
    """Forks wait until no other thread is inside: ``with uncut: …``.

    Threads inside do not wait for each other, and who enters lets a waiting fork go first for a moment only, so that
    no order of locks can keep any of them from going on. A thread that forks from inside is not waited for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depth: dict[int, int] = {}  # how often each thread is inside
        self._waiting = 0  # forks that wait
        self._foreign: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            if self._waiting and thread not in self._depth:
                self._changed.wait(POLITE)
            self._depth[thread] = self._depth.get(thread, 0) + 1

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._depth[thread] -= 1
            if not self._depth[thread]:
                del self._depth[thread]
                self._changed.notify_all()

    def hold(self, lock: AbstractContextManager[Any]) -> None:
        """Has forks wait for a lock of another library too; the one that threads take first is named first.

        It must let a thread take it twice, as an RLock does.
        """
        with self._changed:
            if lock not in self._foreign:
                self._foreign.append(lock)

    def before_fork(self) -> None:
        """Waits for the other threads, and keeps new ones out until the fork is done."""
        self._changed.acquire()
        self._waiting += 1
        while self._depth.keys() - {threading.get_ident()}:
            self._changed.wait()
        self._waiting -= 1
        for lock in self._foreign:
            lock.__enter__()

    def after_fork(self) -> None:
        """Lets threads in again."""
        for lock in reversed(self._foreign):
            lock.__exit__(None, None, None)
        self._changed.notify_all()
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """Makes a new condition: in the child no other thread is left that may have been waiting."""
        self.after_fork()
        self._changed, self._waiting = threading.Condition(), 0


uncut = Uncut()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=uncut.before_fork, after_in_parent=uncut.after_fork, after_in_child=uncut.after_fork_in_child
    )
