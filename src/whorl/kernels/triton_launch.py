"""Launches of Triton kernels with little Python around them, and whether Triton can run here at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

# Triton's hooks before and after a launch: a profiler puts its functions there.
ENTER, EXIT = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook


@cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(knobs.runtime.interpret)


def why_not_triton(device: str) -> str | None:
    """What keeps kernels from running on a kind of device, or None."""
    if interpreted() or device == "cuda":
        return None
    return f"it runs on CUDA, the tensors are on {device}" if torch.cuda.is_available() else "no CUDA device"


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    if interpreted():
        return 2**17
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs a device runs side by side, one on each of its multiprocessors."""
    return 2 if interpreted() else torch.cuda.get_device_properties(device).multi_processor_count


def power_of_2(count: int) -> int:
    """The least power of two that is not below count."""
    return 1 << max(count - 1, 0).bit_length()


def kernel(pointers: int) -> Callable[[Callable[..., Any]], Any]:
    """The decorator that compiles a function of ``pointers`` pointers, then numbers, then constants.

    Numbers are arguments of one compiled kernel, whatever their values, so that no size or stride compiles anew. What
    the compiler may rely on beyond them is a constant.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        parameters = inspect.signature(function).parameters
        arguments = [name for name, kind in parameters.items() if "constexpr" not in str(kind.annotation)]
        return triton.jit(do_not_specialize=arguments[pointers:])(function)

    return compiled


class Launch:
    """A Triton kernel with its grid, numbers and constants, ready to be called with the pointers.

    Triton's own call looks all of this up again, which takes several times as long as a small kernel runs.
    """

    def __init__(
        self,
        function: Any,
        grid: tuple[int, int, int],
        numbers: Sequence[int | float | tuple[int, ...]],
        constants: Sequence[Any],
        *,
        warps: int,
        stages: int = 3,
    ) -> None:
        self._function, self._grid, self._more = function, grid, (*numbers, *constants)
        self._options = {"num_warps": warps, "num_stages": stages}
        self._compiled: dict[Any, Any] = {}
        self._empty = 0 in grid

    def is_new(self) -> bool:
        """Whether it has never run."""
        return not self._compiled and not self._empty

    def compile(self, *pointers: Tensor) -> None:
        """Compiles for the device of the first pointer, and runs nothing."""
        with torch.cuda.device(pointers[0].device):
            self._function.warmup(*pointers, *self._more, grid=self._grid, **self._options)

    def __call__(self, *pointers: Tensor) -> None:
        """Runs on the device of the first pointer, on its current stream. Dtypes are those of the first call."""
        if self._empty:
            return
        if interpreted():
            self._function[self._grid](*pointers, *self._more)
            return
        device = pointers[0].get_device()
        if device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                self(*pointers)
            return
        addresses = [pointer.data_ptr() for pointer in pointers]
        key: Any = device
        for address in addresses:
            if address & 15:  # the compiler counts on aligned pointers where it saw them
                key = (device, *(each & 15 for each in addresses))
                break
        compiled = self._compiled.get(key)
        if compiled is None:
            made = self._function[self._grid](*pointers, *self._more, **self._options)
            self._compiled[key] = made, made.run, made.function, made.packed_metadata
        elif ENTER.calls or EXIT.calls:  # with all that a profiler asks for
            compiled[0][self._grid](*pointers, *self._more)
        else:
            _, run, function, metadata = compiled
            stream = torch._C._cuda_getCurrentRawStream(device)
            run(*self._grid, stream, function, metadata, None, None, None, *addresses, *self._more)
