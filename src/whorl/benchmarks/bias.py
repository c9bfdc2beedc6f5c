"""Attention with a bias on the scores against plain causal attention on torch's fused kernel.

A bias stored for every pair of positions costs memory and time that grow with the square of the length; a path is worth
having when it costs little more than no bias at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.softmax import attention, explain_attention
from whorl.benchmarks.judging import check_sizes, device_of, dtypes_of, judged, not_judged
from whorl.benchmarks.runner import Case, Group
from whorl.encodings.base import Encoding
from whorl.registry import build_for

NAMES = ("alibi", "sandwich", "kerple", "t5", "fire")
BAR = 1 / 0.75  # of the time of plain attention, for ALiBi
ROWS = 64  # rows compared with float64
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def bias(
    *,
    device: str = "auto",
    dtype: str = "bfloat16",
    batch: int = 1,
    length: int = 4096,
    heads: int = 16,
    head_dim: int = 128,
    encodings: str = "alibi",
) -> tuple[Group, ...]:
    """The groups to time: one for each of the encodings, named with commas between them."""
    sizes = {"batch": batch, "length": length, "heads": heads, "head_dim": head_dim}
    check_sizes("bench bias", **sizes)
    where, (kind, *_) = device_of("bench bias", device), dtypes_of("bench bias", dtype)
    shape = (batch, heads, length, head_dim)
    generator = torch.Generator(where).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device=where).to(kind) for _ in range(3))
    return tuple(_group(name, q, k, v) for name in encodings.split(","))


@torch.no_grad()
def _group(name: str, q: Tensor, k: Tensor, v: Tensor) -> Group:
    _, heads, length, head_dim = q.shape
    encoding = build_for(name, heads=heads, head_dim=head_dim, width=heads * head_dim, length=length).to(q.device)
    plain = _without_grad(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    rows = torch.linspace(0, length - 1, min(ROWS, length), device=q.device).long().unique()
    truth = _truth(q, k, v, encoding, rows)
    cases = [Case(name="no bias, torch's kernel", run=plain, check=not_judged)]
    for impl in ("auto", "flex", "torch"):
        try:
            path = explain_attention(q, k, v, encoding=encoding, impl=impl)
        except ValueError:
            continue
        label = f"whorl, {path.partition(':')[0]}"
        if any(case.name == label for case in cases):
            continue
        run = _without_grad(lambda impl=impl: attention(q, k, v, encoding=encoding, impl=impl))
        check = judged(_rows(run, rows), truth, LIMIT[q.dtype])
        cases.append(Case(name=label, run=run, check=check, bar=BAR if name == "alibi" and impl == "auto" else None))
    if length**2 * heads * q.element_size() <= 2**34:
        run = _without_grad(lambda: _dense(q, k, v, encoding))
        cases.append(
            Case(
                name="bias as a tensor, torch's kernel", run=run, check=judged(_rows(run, rows), truth, LIMIT[q.dtype])
            )
        )
    summary = f"{name}, causal, {tuple(q.shape)}, {str(q.dtype).removeprefix('torch.')}"
    return Group(name=name, summary=summary, cases=tuple(cases), device=q.device.type)


def _without_grad(work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return work()

    return run


def _rows(run: Callable[[], Tensor], rows: Tensor) -> Callable[[], Tensor]:
    return lambda: run()[:, :, rows]


def _dense(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding) -> Tensor:
    at = torch.arange(q.shape[2], device=q.device)
    added = encoding.score_bias(at, at)
    assert added is not None
    added = added.masked_fill(at[:, None] < at, float("-inf")).to(q.dtype)
    scale = encoding.softmax_scale(q.shape[-1])
    return scaled_dot_product_attention(q, k, v, attn_mask=added.expand(q.shape[0], -1, -1, -1), scale=scale)


def _truth(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, rows: Tensor) -> Callable[[], Tensor]:
    """Some rows in float64, from the definition."""

    def compute() -> Tensor:
        at = torch.arange(k.shape[2], device=q.device)
        scores = q[:, :, rows].double() @ k.double().mT * encoding.softmax_scale(q.shape[-1])
        added = encoding.score_bias(rows, at)
        assert added is not None
        scores = scores + added.double()
        return scores.masked_fill(rows[:, None] < at, float("-inf")).softmax(-1) @ v.double()

    return compute
