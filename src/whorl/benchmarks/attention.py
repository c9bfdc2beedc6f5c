"""The cost of an encoding in attention: softmax attention with each against torch's fused kernel with none.

Without gradients, and with those of queries, keys, values and everything learned. Sizes are usual ones of a GPU where
there is one, and small ones on a CPU.
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

ON_A_CPU = {"length": 2048, "heads": 8, "head_dim": 64}
ON_A_GPU = {"length": 4096, "heads": 16, "head_dim": 128}
SIZES = ON_A_GPU if torch.cuda.is_available() else ON_A_CPU

# Bars on a GPU, for one text with these heads in bfloat16: shares of the yardstick's speed, by the number of tokens.
WINDOW = 1024
BOTH = (4096, 16384)
BARS = {
    "forward": {
        "rope": {4096: 0.85, 16384: 0.96},
        "t5": {4096: 0.6, 16384: 0.78},
        "kerple": dict.fromkeys(BOTH, 0.45),
        "sandwich": dict.fromkeys(BOTH, 0.45),
        "fire": dict.fromkeys(BOTH, 0.3),
        "rope+window": {16384: 4.0},
        "rerope": {16384: 0.6},
    },
    "forward and backward": {
        "alibi": dict.fromkeys(BOTH, 0.65),
        "t5": dict.fromkeys(BOTH, 0.4),
        "kerple": dict.fromkeys(BOTH, 0.4),
        "sandwich": dict.fromkeys(BOTH, 0.4),
        "fire": dict.fromkeys(BOTH, 0.2),
        "rope+window": {16384: 3.0},
        "rerope": {16384: 0.4},
    },
}


def attention(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 1,
    length: int = SIZES["length"],
    heads: int = SIZES["heads"],
    head_dim: int = SIZES["head_dim"],
    window: int = WINDOW,
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
        bars = bars_of(name, shape, kind, window, where)
        forward.append(replace(case, bar=bars[0]))
        learned = [x for x in encoding.parameters() if x.requires_grad]
        both.append(replace(case, run=_with_gradients(attend, tokens, learned), bar=bars[1]))
    summary = f"causal, {shape}, {dtype_name(kind)}"
    return tuple(
        Group(name=what, summary=summary, cases=tuple(cases), device=where)
        for what, cases in zip(BARS, (forward, both), strict=True)
    )


def bars_of(
    name: str, shape: tuple[int, int, int, int], kind: torch.dtype, window: int, where: str
) -> tuple[float | None, float | None]:
    """The highest ratios, forward and with the backward pass; None where no bar was set."""
    batch, heads, length, head_dim = shape
    usual = (batch, heads, head_dim, kind, window) == (
        1, ON_A_GPU["heads"], ON_A_GPU["head_dim"], torch.bfloat16, WINDOW,
    )  # fmt: skip
    shares = [own.get(name, {}).get(length) if usual and where == "cuda" else None for own in BARS.values()]
    forward, both = (None if share is None else 1 / share for share in shares)
    return forward, both


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
