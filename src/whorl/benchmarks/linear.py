"""Linear attention with RoPE: the kernel against the torch form, and kernels without rotation or denominator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whorl.attend.linear import linear_attention
from whorl.benchmarks.judging import check_sizes, device_of, dtypes_of, judged
from whorl.benchmarks.runner import Case, Check, Group
from whorl.encodings.rope import Rope
from whorl.kernels.choose import Impl

HEAD = 2048  # tokens compared with float64: what comes first needs nothing of what comes after
LIMIT = {torch.float32: 1e-4, torch.bfloat16: 6e-3, torch.float16: 2e-3}


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
    sizes = {"batch": batch, "length": length, "heads": heads, "head_dim": head_dim}
    check_sizes("bench linear", **sizes)
    where = device_of("bench linear", device)
    usual = "bfloat16" if where == "cuda" else "float32"
    kind = dtypes_of("bench linear", usual if dtype == "auto" else dtype)[0]
    shape = (batch, heads, length, head_dim)
    generator = torch.Generator(where).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device=where).to(kind) for _ in range(3))
    rope = Rope(head_dim=head_dim)
    truth = _truth(q, k, v, rope)
    forward, both = [], []
    impls: tuple[Impl, ...] = ("torch", "triton") if where == "cuda" else ("torch",)
    for impl in impls:
        run, train = _forward(q, k, v, rope, impl), _training(q, k, v, rope, impl)
        check = judged(_head(run), truth, LIMIT[kind])
        forward.append(Case(name=f"whorl, {impl}", run=run, check=check))
        both.append(Case(name=f"whorl, {impl}", run=train, check=check))
    for label, (run, train) in _peers(q, k, v).items():
        forward.append(Case(name=label, run=run, check=_other_task, peer=True))
        both.append(Case(name=label, run=train, check=_other_task, peer=True))
    summary = f"causal, {shape}, {str(kind).removeprefix('torch.')}"
    return (
        Group(name="forward", summary=summary, cases=tuple(forward), device=where),
        Group(name="forward and backward", summary=summary, cases=tuple(both), device=where),
    )


def _forward(q: Tensor, k: Tensor, v: Tensor, rope: Rope, impl: Impl) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return linear_attention(q, k, v, encoding=rope, impl=impl)

    return run


def _training(q: Tensor, k: Tensor, v: Tensor, rope: Rope, impl: Impl) -> Callable[[], Any]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(linear_attention(*inputs, encoding=rope, impl=impl), inputs, v)


def _head(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return lambda: run()[:, :, :HEAD]


def _truth(q: Tensor, k: Tensor, v: Tensor, rope: Rope) -> Callable[[], Tensor]:
    """The first tokens in float64, from the definition."""

    def compute() -> Tensor:
        a, b = (torch.nn.functional.elu(x[:, :, :HEAD].double()) + 1 for x in (q, k))
        at = torch.arange(a.shape[2], device=q.device)
        turned_a, turned_b = rope.transform_qk(a, b, at, at, impl="torch")
        top, bottom = (turned_a @ turned_b.mT).tril(), (a @ b.mT).tril().sum(-1, keepdim=True)
        return top @ v[:, :, :HEAD].double() / (bottom + 1e-6)

    return compute


def _other_task() -> Check:
    return Check(ok=True, text="no rotation, no denominator: another task, for scale")


def _peers(q: Tensor, k: Tensor, v: Tensor) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    if q.device.type != "cuda":
        return {}
    try:
        from fla.ops.linear_attn import chunk_linear_attn  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {}
    moved = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    inputs = [x.clone().requires_grad_() for x in moved]

    def run() -> Any:
        with torch.no_grad():
            return chunk_linear_attn(*moved, normalize=False)[0]

    def train() -> Any:
        return torch.autograd.grad(chunk_linear_attn(*inputs, normalize=False)[0], inputs, moved[2])

    return {"flash-linear-attention": (run, train)}
