"""Kernels that run one after another, and are compiled side by side the first time.

Triton compiles a kernel when it first runs, which takes about a second. A call of several kernels would wait for one
after another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from triton import AsyncCompileMode

from whorl.kernels.triton_launch import Launch, interpreted

# Kernels that were started, with their constants. What else Triton compiles for, such as sizes that 16 divides, is not
# looked at: such a kernel is compiled when it runs.
STARTED: set[tuple[Any, ...]] = set()


class Runs(Protocol):
    """A kernel with all that it is given."""

    def is_new(self) -> bool: ...

    def compile(self) -> object: ...

    def __call__(self) -> object: ...


class Start:
    """A Triton kernel for a number of programs, with its arguments and options, started by Triton's own call."""

    def __init__(self, kernel: Any, programs: int, *given: Any, **options: Any) -> None:
        self._kernel, self._grid, self._given, self._options = kernel, (programs,), given, options
        self._key = kernel, *options.values()

    def is_new(self) -> bool:
        """Whether no kernel of these constants was started."""
        return self._key not in STARTED

    def compile(self) -> None:
        """Compiles the kernel and runs nothing."""
        self._kernel.warmup(*self._given, grid=self._grid, **self._options)

    def __call__(self) -> None:
        """Runs it."""
        STARTED.add(self._key)
        self._kernel[self._grid](*self._given, **self._options)


class Launched(NamedTuple):
    """A launch with its pointers."""

    launch: Launch
    pointers: tuple[Tensor, ...]

    def is_new(self) -> bool:
        """Whether it has never run."""
        return self.launch.is_new()

    def compile(self) -> None:
        """Compiles the kernel and runs nothing."""
        self.launch.compile(*self.pointers)

    def __call__(self) -> None:
        """Runs it."""
        self.launch(*self.pointers)


def run_all(kernels: Sequence[Runs]) -> None:
    """Runs kernels in their order; where several are new, they are compiled side by side before."""
    new = [each for each in kernels if each.is_new()]
    if len(new) > 1 and not interpreted():
        with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1)) as pool, AsyncCompileMode(pool):
            for each in new:
                each.compile()
    for each in kernels:
        each()
