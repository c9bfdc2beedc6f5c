"""The cost of an encoding in attention: softmax attention with each against torch's fused kernel with none.

Without gradients, and with those of queries, keys, values and everything learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.softmax import attention as whorl_attention
from whorl.benchmarks.judging import drawn, encoding_for, judged, not_judged, setting
from whorl.benchmarks.runner import Case, Group
from whorl.errors import dtype_name

FIRST = (slice(None), slice(None), slice(512))  # tokens compared with float64: they need none of those after them
Attend = Callable[..., Tensor]

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def attention(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 1,
    length: int = 2048,
    heads: int = 8,
    head_dim: int = 64,
    window: int = 1024,
    encodings: str = "none,rope,alibi,kerple,t5,sandwich,fire,rope+window,rerope",
) -> tuple[Group, ...]:
    """The groups to time: the encodings named, with commas between them."""
    where, kind = setting("bench attention", device, dtype)
    shape = (batch, heads, length, head_dim)
    tokens = q, k, v = drawn(shape, kind, where)
    forward = [Case(name="torch's kernel", run=lambda: _plain(q, k, v), check=not_judged)]
    both = [Case(name="torch's kernel", run=_with_gradients(_plain, tokens), check=not_judged)]
    for name in encodings.split(","):
        encoding = encoding_for(name, q, window)
        attend = partial(whorl_attention, encoding=encoding, hidden=_hidden(q) if encoding.reads_hidden else None)
        case = _case(name, attend, tokens)
        forward.append(case)
        learned = [x for x in encoding.parameters() if x.requires_grad]
        both.append(replace(case, run=_with_gradients(attend, tokens, learned)))
    summary = f"causal, {shape}, {dtype_name(kind)}"
    return tuple(
        Group(name=what, summary=summary, cases=tuple(cases), device=where)
        for what, cases in (("forward", forward), ("forward and backward", both))
    )


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _with_gradients(attend: Attend, tokens: list[Tensor], learned: Sequence[Tensor] = ()) -> Callable[[], object]:
    inputs = [x.clone().requires_grad_() for x in tokens]
    return lambda: torch.autograd.grad(attend(*inputs), [*inputs, *learned], tokens[2])


def _hidden(q: Tensor) -> Tensor:
    """Hidden states (batch, length, width) for queries (batch, heads, length, head_dim)."""
    return q.transpose(1, 2).flatten(2)


def _case(name: str, attend: partial[Tensor], tokens: list[Tensor]) -> Case:
    hidden = attend.keywords["hidden"]
    few = None if hidden is None else hidden[:, FIRST[2]].double()
    run = torch.no_grad()(lambda: attend(*tokens))
    first = torch.no_grad()(lambda: attend(*(x[FIRST].double() for x in tokens), impl="torch", hidden=few))
    return Case(name=name, run=run, check=judged(run, first, LIMIT[tokens[0].dtype], FIRST))
