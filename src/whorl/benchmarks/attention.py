"""What an encoding adds to attention: softmax attention with each against torch's fused kernel with none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.softmax import attention as attend
from whorl.benchmarks.judging import check_sizes, device_of, dtypes_of, judged, not_judged
from whorl.benchmarks.runner import Case, Group
from whorl.encodings.base import Encoding
from whorl.registry import build_for

HEAD = 512  # tokens compared with float64: what comes first needs nothing of what comes after
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def attention(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 1,
    length: int = 2048,
    heads: int = 8,
    head_dim: int = 64,
    encodings: str = "none,rope,alibi,kerple,t5",
) -> tuple[Group, ...]:
    """The group to time: the encodings named, with commas between them."""
    sizes = {"batch": batch, "length": length, "heads": heads, "head_dim": head_dim}
    check_sizes("bench attention", **sizes)
    where = device_of("bench attention", device)
    usual = "bfloat16" if where == "cuda" else "float32"
    kind = dtypes_of("bench attention", usual if dtype == "auto" else dtype)[0]
    generator = torch.Generator(where).manual_seed(0)
    shape = (batch, heads, length, head_dim)
    q, k, v = (torch.randn(shape, generator=generator, device=where).to(kind) for _ in range(3))
    cases = [Case(name="torch's kernel", run=_plain(q, k, v), check=not_judged)]
    for name in encodings.split(","):
        encoding = build_for(name, heads=heads, head_dim=head_dim, width=heads * head_dim, length=length).to(where)
        run = _with(q, k, v, encoding)
        cases.append(Case(name=name, run=run, check=judged(_head(run), _truth(q, k, v, encoding), LIMIT[kind])))
    summary = f"causal, {shape}, {str(kind).removeprefix('torch.')}"
    return (Group(name="attention", summary=summary, cases=tuple(cases), device=where),)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=True)


def _with(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return attend(q, k, v, encoding=encoding)

    return run


def _head(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return lambda: run()[:, :, :HEAD]


def _truth(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding) -> Callable[[], Tensor]:
    def compute() -> Tensor:
        with torch.no_grad():
            first = [x[:, :, :HEAD].double() for x in (q, k, v)]
            return attend(*first, encoding=encoding, impl="torch")

    return compute
