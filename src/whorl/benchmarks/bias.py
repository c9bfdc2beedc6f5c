"""Attention with a bias on the scores against plain causal attention on torch's fused kernel.

A bias stored for every pair of positions costs memory and time that grow with the square of the length; a path is worth
having when it costs little more than no bias at all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl import Encoding, attention, explain_attention
from whorl.benchmarks.judging import device_of, drawn, dtypes_of, encoding_for, judged, not_judged
from whorl.benchmarks.runner import Case, Group
from whorl.errors import dtype_name

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
    where, (kind, *_) = device_of("bench bias", device), dtypes_of("bench bias", dtype)
    tokens = drawn((batch, heads, length, head_dim), kind, where)
    return tuple(_group(name, *tokens) for name in encodings.split(","))


@torch.no_grad()
def _group(name: str, q: Tensor, k: Tensor, v: Tensor) -> Group:
    _, heads, length, _ = q.shape
    encoding = encoding_for(name, q)
    rows = torch.linspace(0, length - 1, min(ROWS, length), device=q.device).long().unique()
    plain = torch.no_grad()(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    cases = [Case(name="no bias, torch's kernel", run=plain, check=not_judged)]

    def add(label: str, run: Callable[[], Tensor], bar: float | None = None) -> None:
        run, at_rows = torch.no_grad()(run), (slice(None), slice(None), rows)
        check = judged(run, lambda: _truth(q, k, v, encoding, rows), LIMIT[q.dtype], at_rows)
        cases.append(Case(name=label, run=run, check=check, bar=bar))

    for impl in ("auto", "flex", "torch"):
        try:
            path = explain_attention(q, k, v, encoding=encoding, impl=impl)
        except ValueError:
            continue
        label = f"whorl, {path.partition(':')[0]}"
        if all(case.name != label for case in cases):
            bar = BAR if name == "alibi" and impl == "auto" else None
            add(label, lambda impl=impl: attention(q, k, v, encoding=encoding, impl=impl), bar)
    if length**2 * heads * q.element_size() <= 2**34:
        add("bias as a tensor, torch's kernel", lambda: _dense(q, k, v, encoding))
    summary = f"{name}, causal, {tuple(q.shape)}, {dtype_name(q.dtype)}"
    return Group(name=name, summary=summary, cases=tuple(cases), device=q.device.type)


def _dense(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding) -> Tensor:
    at = torch.arange(q.shape[2], device=q.device)
    added = encoding.score_bias(at, at)
    assert added is not None
    added = added.masked_fill(at[:, None] < at, float("-inf")).to(q.dtype)
    scale = encoding.softmax_scale(q.shape[-1])
    return scaled_dot_product_attention(q, k, v, attn_mask=added.expand(q.shape[0], -1, -1, -1), scale=scale)


def _truth(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, rows: Tensor) -> Tensor:
    """Some rows in float64, from the definition."""
    at = torch.arange(k.shape[2], device=q.device)
    scores = q[:, :, rows].double() @ k.double().mT * encoding.softmax_scale(q.shape[-1])
    added = encoding.score_bias(rows, at)
    assert added is not None
    scores = scores + added.double()
    return scores.masked_fill(rows[:, None] < at, float("-inf")).softmax(-1) @ v.double()
