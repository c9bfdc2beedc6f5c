"""Ctrl-C while a model trains: heard at the end of an update, where everything can be saved whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def heard_later() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed since, which meanwhile stops nothing; pressed again, it stops as it always does.

    Python hears signals in the main thread alone, and a program that has a handler of its own keeps it: elsewhere the
    answer is always no.
    """
    asked = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(number, frame)
        asked = True

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
