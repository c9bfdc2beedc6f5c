"""``attention`` with every encoding: the path it takes, what it returns, and the gradients of all it was given."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import whorl
from probe.cases import BATCH, DTYPES, HEADS, encodings, hidden_for, on_axes, random, tokens
from probe.recording import Probe

KEYS = 12

# For each kind of call: what the tokens are, and what else is passed, given the encoding.
SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads": {"kv_heads": 2},
    "last queries": {"queries": 3},
    "one query": {"queries": 1},
    "other keys": {"queries": 5},
    "value dim": {"value_dim": 6},
    "everything": {"kv_heads": 1},
}
# Kinds that need no other dtype than float32: they differ in what is seen or asked for, and not in arithmetic.
ONCE = {"far", "one query", "value dim", "scale", "lse and weights", "autocast", "long", "documents", "length"}


def run(probe: Probe) -> None:
    for name, build in encodings().items():
        for dtype_name, dtype in DTYPES.items():
            for kind in KINDS:
                if kind not in ONCE or dtype_name == "float32":
                    _ask(probe, f"{name}/{kind}/{dtype_name}", build, kind, dtype)


def _ask(probe: Probe, case: str, build: Callable[[], Any], kind: str, dtype: torch.dtype) -> None:
    with probe.guarded(case):
        encoding = build().to(probe.device)
        if kind == "cast":
            encoding = encoding.to(dtype)
        if kind == "long":
            given = tokens(LONG[probe.device], batch=1, dtype=dtype, device=probe.device)
            options = hidden_for(encoding, LONG[probe.device], batch=1, dtype=dtype, device=probe.device)
        else:
            shape = {"queries": KEYS, **SHAPES.get(kind, {})}
            given = tokens(keys=KEYS, dtype=dtype, device=probe.device, **shape)
            options = hidden_for(encoding, KEYS, dtype=dtype, device=probe.device)
        options |= {key: _moved(value, probe.device) for key, value in KINDS[kind](encoding).items()}
        _attend(probe, case, encoding, given, options, learns=kind != "no gradients")


def _attend(probe: Probe, case: str, encoding: Any, given: list[Tensor], options: dict[str, Any], learns: bool) -> None:
    autocast = options.pop("autocast", False)
    given = [x.requires_grad_(learns) for x in given]
    with torch.set_grad_enabled(learns), torch.autocast(probe.device, torch.bfloat16) if autocast else nullcontext():
        said = whorl.explain_attention(*given, encoding=encoding, **options)
        probe.add(f"{case}/path", said.split(":")[0])
        found = whorl.attention(*given, encoding=encoding, **options)
    found = found if isinstance(found, tuple) else (found,)
    probe.add(f"{case}/out", found)
    if not learns:
        return
    wanted = {"q": given[0], "k": given[1], "v": given[2], **dict(encoding.named_parameters())}
    loss = sum((_finite(part) * random(f"loss {i}", *part.shape).to(part)).sum() for i, part in enumerate(found))
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    for name, gradient in zip(wanted, gradients, strict=True):
        probe.add(f"{case}/gradient of {name}", gradient)


def _finite(x: Tensor) -> Tensor:
    """Zeros where a row that sees nothing has a log-sum-exp of minus infinity."""
    return torch.where(x.isfinite(), x, 0.0)


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _counted(encoding: Any, start: float = 0) -> Tensor:
    return on_axes(encoding, torch.arange(KEYS) + start)


def _shuffled() -> Tensor:
    return torch.randperm(KEYS, generator=torch.Generator().manual_seed(5))


def _rows(encoding: Any) -> Tensor:
    return on_axes(encoding, torch.stack([torch.arange(KEYS) + 3, 2 * torch.arange(KEYS)]))


def _padding() -> Tensor:
    return torch.arange(KEYS) >= torch.tensor([[4], [0]])


def _documents() -> Tensor:
    return torch.arange(KEYS) // 5


def _mask() -> Tensor:
    """A mask by head, with a row that sees nothing."""
    mask = random("mask", BATCH, HEADS, KEYS, KEYS) > -0.5
    mask[0, 1, 7] = False
    return mask


LONG = {"cpu": 520, "cuda": 300}  # several blocks within a window on a CPU; enough queries for FlexAttention

KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "causal": lambda _: {},
    "both ways": lambda _: {"causal": False},
    "by positions": lambda e: {"causal": "positions", "positions": on_axes(e, _shuffled())},
    "grouped heads": lambda _: {},
    "positions": lambda e: {"positions": _counted(e, 3)},
    "rows of positions": lambda e: {"positions": _rows(e)},
    "fractions": lambda e: {"positions": _counted(e, 1) * 0.75},
    "far": lambda e: {"positions": _counted(e, 100_003)},
    "last queries": lambda _: {},
    "one query": lambda _: {},
    "other keys": lambda e: {
        "causal": False,
        "positions": on_axes(e, torch.arange(5) * 2),
        "key_positions": _counted(e, 2),
    },
    "padding": lambda _: {"key_mask": _padding()},
    "documents": lambda _: {"documents": _documents(), "causal": True},
    "mask": lambda _: {"mask": _mask()},
    "softcap": lambda _: {"softcap": 2.0},
    "lse": lambda _: {"return_lse": True},
    "weights": lambda _: {"return_weights": True},
    "lse and weights": lambda _: {"return_lse": True, "return_weights": True, "causal": False},
    "dropout": lambda _: {"dropout": 0.3},
    "length": lambda _: {"length": 40},
    "scale": lambda _: {"scale": 1 / math.sqrt(7)},
    "value dim": lambda _: {},
    "formed": lambda _: {"impl": "torch"},
    "no gradients": lambda _: {},
    "autocast": lambda _: {"autocast": True},
    "cast": lambda _: {},
    "long": lambda _: {},
    "everything": lambda e: {
        **{"positions": _rows(e), "key_mask": _padding(), "documents": _documents(), "mask": _mask()},
        **{"softcap": 3.0, "scale": 0.2, "return_lse": True, "length": 40},
    },
}
