"""Linear attention with RoPE: the kernel against the torch form, and kernels without rotation or denominator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whorl import Rope, linear_attention
from whorl.benchmarks.judging import drawn, judged, setting
from whorl.benchmarks.runner import Case, Check, Group
from whorl.errors import dtype_name
from whorl.kernels.choose import Impl

FIRST = (slice(None), slice(None), slice(2048))  # tokens compared with float64: they need none of those after them
LIMIT = {torch.float32: 1e-4, torch.bfloat16: 6e-3, torch.float16: 2e-3}


Run = Callable[[], Any]


def linear(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 1,
    length: int = 8192,
    heads: int = 16,
    head_dim: int = 64,
) -> tuple[Group, ...]:
    """The groups to time: forward, and forward with backward."""
    where, kind = setting("bench linear", device, dtype)
    shape = (batch, heads, length, head_dim)
    tokens, rope = drawn(shape, kind, where), Rope(head_dim=head_dim)
    impls: tuple[Impl, ...] = ("torch", "triton") if where == "cuda" else ("torch",)
    runs = {f"whorl, {impl}": _runs(tokens, rope, impl) for impl in impls}
    checks = {name: judged(run, lambda: _truth(tokens, rope), LIMIT[kind], FIRST) for name, (run, _) in runs.items()}
    runs |= _peers(tokens)
    groups = []
    for which, what in enumerate(("forward", "forward and backward")):
        cases = tuple(
            Case(name=name, run=both[which], check=checks.get(name, _other_task), peer=name not in checks)
            for name, both in runs.items()
        )
        summary = f"causal, {shape}, {dtype_name(kind)}"
        groups.append(Group(name=what, summary=summary, cases=cases, device=where))
    return tuple(groups)


def _runs(tokens: list[Tensor], rope: Rope, impl: Impl) -> tuple[Run, Run]:
    inputs = [x.clone().requires_grad_() for x in tokens]
    return (
        torch.no_grad()(lambda: linear_attention(*tokens, encoding=rope, impl=impl)),
        lambda: torch.autograd.grad(linear_attention(*inputs, encoding=rope, impl=impl), inputs, tokens[2]),
    )


def _truth(tokens: list[Tensor], rope: Rope) -> Tensor:
    """The first tokens in float64, from the definition."""
    q, k, v = (x[FIRST].double() for x in tokens)
    a, b = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    at = torch.arange(a.shape[2], device=a.device)
    turned_a, turned_b = rope.transform_qk(a, b, at, at, impl="torch")
    top, bottom = (turned_a @ turned_b.mT).tril(), (a @ b.mT).tril().sum(-1, keepdim=True)
    return top @ v / (bottom + 1e-6)


def _other_task() -> Check:
    return Check(ok=True, text="no rotation, no denominator: another task, for scale")


def _peers(tokens: list[Tensor]) -> dict[str, tuple[Run, Run]]:
    if tokens[0].device.type != "cuda":
        return {}
    try:
        from fla.ops.linear_attn import chunk_linear_attn  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {}
    moved = [x.transpose(1, 2).contiguous() for x in tokens]
    inputs = [x.clone().requires_grad_() for x in moved]
    run = torch.no_grad()(lambda: chunk_linear_attn(*moved, normalize=False)[0])

    def train() -> Any:
        return torch.autograd.grad(chunk_linear_attn(*inputs, normalize=False)[0], inputs, moved[2])

    return {"flash-linear-attention": (run, train)}
