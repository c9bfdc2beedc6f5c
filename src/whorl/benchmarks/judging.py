"""The common part of the benchmarks: device, dtype and tensors to run on, and errors against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whorl import Combined, Encoding
from whorl.benchmarks.runner import Check
from whorl.errors import WhorlError, unknown
from whorl.registry import build_for, encoding_class

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def setting(call: str, device: str, dtype: str) -> tuple[str, torch.dtype]:
    """The device and the dtype to run on; "auto" is a GPU and bfloat16 where there is one, else the CPU and float32."""
    where = device_of(call, device)
    usual = "bfloat16" if where == "cuda" else "float32"
    return where, dtypes_of(call, usual if dtype == "auto" else dtype)[0]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str, count: int = 3) -> list[Tensor]:
    """Random tensors of one shape, from one seed: queries, keys and values unless ``count`` says otherwise."""
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(count)]


def encoding_for(name: str, queries: Tensor, window: int | None = None) -> Encoding:
    """The encoding of that name for queries (batch, heads, length, head_dim), on their device.

    Several are joined by "+". ``window`` is for those that have one: how far a query sees, or where far keys begin.
    """
    _, heads, length, head_dim = queries.shape
    sizes, made = {"heads": heads, "head_dim": head_dim, "width": heads * head_dim, "length": length}, []
    for each in name.split("+"):
        fields = encoding_class(each).Config.fields()
        own = {field: window for field in ("size", "window") if field in fields and window is not None}
        made.append(build_for(each, **sizes, **own))
    return (made[0] if len(made) == 1 else Combined(*made)).to(queries.device)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """rms(got - expected) / rms(expected)."""
    difference = (got.double() - expected.double()).square().mean()
    return float((difference / expected.double().square().mean()).sqrt())


def judged(
    run: Callable[[], Any], expected: Callable[[], Tensor], limit: float, part: Any = ...
) -> Callable[[], Check]:
    """A check that the result of ``run``, or the part of it at an index, is within a relative error of the expected."""

    def check() -> Check:
        result = run()
        error = relative_error(result if part is ... else result[part], expected())
        ok = error <= limit
        text = f"error {error:.2g}" if ok else f"error {error:.2g}, over {limit:.2g}"
        return Check(ok=ok, text=text, numbers={"error": error})

    return check


def not_judged() -> Check:
    """The check of the yardstick, which computes nothing."""
    return Check(ok=True, text="the yardstick")
