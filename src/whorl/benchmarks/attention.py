"""The cost of an encoding in attention: softmax attention with each against torch's fused kernel with none."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.softmax import attention as attend
from whorl.benchmarks.judging import drawn, encoding_for, judged, not_judged, setting
from whorl.benchmarks.runner import Case, Group
from whorl.errors import dtype_name

FIRST = (slice(None), slice(None), slice(512))  # tokens compared with float64: they need none of those after them
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
    where, kind = setting("bench attention", device, dtype, batch=batch, length=length, heads=heads, head_dim=head_dim)
    shape = (batch, heads, length, head_dim)
    tokens = q, k, v = drawn(shape, kind, where)
    plain = partial(scaled_dot_product_attention, q, k, v, is_causal=True)
    cases = [Case(name="torch's kernel", run=plain, check=not_judged)]
    cases += [_case(name, tokens) for name in encodings.split(",")]
    return (Group(name="attention", summary=f"causal, {shape}, {dtype_name(kind)}", cases=tuple(cases), device=where),)


def _case(name: str, tokens: list[Tensor]) -> Case:
    encoding = encoding_for(name, tokens[0])
    run = torch.no_grad()(lambda: attend(*tokens, encoding=encoding))
    first = torch.no_grad()(lambda: attend(*(x[FIRST].double() for x in tokens), encoding=encoding, impl="torch"))
    return Case(name=name, run=run, check=judged(run, first, LIMIT[tokens[0].dtype], FIRST))
