"""Memory of tensors: checks by sizes, strides and addresses alone, so that no check waits for a device.

A kernel reads and writes by address. It must be given tensors that have addresses, and it must not write into memory
that is read at the same time: that memory would change under the reader.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeGuard

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid

# Steps of the search for a byte that two tensors share. Views of one tensor need a few dozen.
MOST_STEPS = 1000

# The name of an argument and its tensor; None where it is not given.
Named = tuple[str, Tensor | None]


def check_dense(call: str, name: str, x: object, expected: str, remedy: str = "") -> None:
    """Raises a WhorlError unless x is a tensor whose elements lie in memory, one stride apart."""
    if not is_dense(x):
        raise wrong_tensor(call, name, x, expected, remedy)


def is_dense(x: object) -> TypeGuard[Tensor]:
    """Whether x is a tensor whose elements lie in memory, one stride apart."""
    return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested


def wrong_tensor(call: str, name: str, x: object, expected: str, remedy: str = "") -> WhorlError:
    """The error for what is no tensor, none of this kind, or not dense.

    Made where a check has failed: text that names the size of a graph would bind the graph to it.
    """
    if not isinstance(x, Tensor) or is_dense(x):
        return invalid(call, name, expected, x, remedy)
    convert = f"to_padded_tensor(0.0) of {name}" if x.is_nested else f"{name}.to_dense()"
    kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.").removeprefix("_")
    return WhorlError(f"{call}: {name} must be {expected}, stored densely; it is {kind}. Pass {convert}.")


def check_floating(call: str, name: str, x: object, remedy: str = "") -> None:
    """Raises a WhorlError unless x is a dense tensor of floating numbers."""
    check_dense(call, name, x, "a floating tensor", remedy)
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise invalid(call, name, "a floating tensor", x, remedy)


def check_written(call: str, written: tuple[tuple[str, Tensor], ...], read: tuple[Named, ...]) -> None:
    """Raises a WhorlError unless every element that is written has memory of its own."""
    spans = [(name, x, *span(x)) for name, x in (*written, *read) if x is not None]
    for i, (name, out, first, end) in enumerate(spans[: len(written)]):
        if overlaps_itself(out):
            raise WhorlError(
                f"{call}: elements of {name} share memory, its strides are {out.stride()} for shape "
                f"{tuple(out.shape)}. Pass {name}.contiguous(), or memory from torch.empty."
            )
        for other_name, other, low, high in spans[i + 1 :]:
            if low < end and first < high and _share(out, other):
                raise WhorlError(
                    f"{call}: {name} shares memory with {other_name}, so that writing one changes the other. "
                    f"Pass other memory as {name}, or {other_name}.clone()."
                )


def same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype are the same elements, each at the same address."""
    if a is b:
        return True
    if a.data_ptr() != b.data_ptr() or a.shape != b.shape:
        return False
    return all(s == t or n == 1 for s, t, n in zip(a.stride(), b.stride(), a.shape, strict=True))


def overlaps_itself(x: Tensor) -> bool:
    """Whether elements of x may share memory: False where each axis steps over all that the smaller ones reach.

    >>> overlaps_itself(torch.zeros(3, 4).t()), overlaps_itself(torch.zeros(4).expand(3, 4))
    (False, True)
    """
    if x.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def span(x: Tensor) -> tuple[int, int]:
    """The address of the first byte of x and that behind its last; two zeros where x is empty."""
    first = x.data_ptr()
    if x.is_contiguous():  # empty tensors are contiguous too
        size = x.nbytes
        return (first, first + size) if size else (0, 0)
    steps = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return first, first + x.element_size() * (steps + 1)


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have a byte in common; True also where that takes too long to rule out."""
    distance = b.data_ptr() - a.data_ptr()
    return _meet(distance, a.element_size(), a.shape, a.stride(), b.element_size(), b.shape, b.stride())


@lru_cache(maxsize=1024)
def _meet(
    distance: int,
    a_size: int,
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    b_size: int,
    b_shape: tuple[int, ...],
    b_strides: tuple[int, ...],
) -> bool:
    """Whether an element of a and one of b meet, b lying ``distance`` bytes behind a.

    They do where the steps taken in a less those taken in b come to the distance, within the bytes of an element.
    Each axis is a stride and a range of steps, those of equal stride taken together; the largest stride decides first,
    and of its steps only those are tried from which the smaller ones can still reach.
    """
    ranges: dict[int, list[int]] = {}
    for strides, shape, size, side in ((a_strides, a_shape, a_size, 1), (b_strides, b_shape, b_size, 0)):
        for stride, count in zip(strides, shape, strict=True):
            if stride and count > 1:
                ranges.setdefault(stride * size, [0, 0])[side] += count - 1
    axes = sorted(((stride, -down, up) for stride, (down, up) in ranges.items()), reverse=True)
    reach = [(0, 0)]  # the least and the largest sum of the axes after each
    for stride, least, most in reversed(axes):
        reach.append((reach[-1][0] + stride * least, reach[-1][1] + stride * most))
    reach.reverse()
    steps = 0
    todo = [(0, distance - a_size + 1, distance + b_size - 1)]
    while todo:
        axis, low, high = todo.pop()
        if axis == len(axes):
            if low <= 0 <= high:
                return True
            continue
        steps += 1
        if steps > MOST_STEPS:
            return True
        stride, least, most = axes[axis]
        behind_low, behind_high = reach[axis + 1]
        begin = max(least, -(-(low - behind_high) // stride))
        last = min(most, (high - behind_low) // stride)
        todo += [
            (axis + 1, low - stride * k, high - stride * k) for k in range(begin, min(last, begin + MOST_STEPS) + 1)
        ]
    return False
