"""What the benchmarks of tensors share: the device they run on, and errors against float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whorl.benchmarks.runner import Check
from whorl.errors import WhorlError, invalid, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_sizes(call: str, **sizes: int) -> None:
    """Raises a WhorlError for a size that is no size."""
    for name, value in sizes.items():
        if value < 1:
            raise invalid(call, name, "positive", value)


def device_of(call: str, device: str) -> str:
    """The kind of device to run on: the one named, for "auto" a GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise unknown("device", device, ("auto", "cpu", "cuda"), call=call)
    if device == "cuda" and not torch.cuda.is_available():
        raise WhorlError(f"{call}: device='cuda' is asked for, and there is none. Use device=cpu.")
    return device


def dtypes_of(call: str, dtype: str) -> list[torch.dtype]:
    """The dtypes to run: the one named, or all of them."""
    if dtype == "all":
        return list(DTYPES.values())
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, ("all", *DTYPES), call=call)
    return [DTYPES[dtype]]


def relative_error(got: Tensor, expected: Tensor) -> float:
    """rms(got - expected) / rms(expected)."""
    difference = (got.double() - expected.double()).square().mean()
    return float((difference / expected.double().square().mean()).sqrt())


def judged(run: Callable[[], Tensor], expected: Callable[[], Tensor], limit: float) -> Callable[[], Check]:
    """A check that what ``run`` gives is within a relative error of what it should be."""

    def check() -> Check:
        error = relative_error(run(), expected())
        ok = error <= limit
        text = f"error {error:.2g}" if ok else f"error {error:.2g}, over {limit:.2g}"
        return Check(ok=ok, text=text, numbers={"error": error})

    return check


def not_judged() -> Check:
    """For the yardstick, which computes nothing."""
    return Check(ok=True, text="the yardstick")
