"""A training step of a decoder with each encoding, against one without any: forward, backward and update.

On a GPU compiled and under autocast, as people train; on the CPU as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from whorl.benchmarks.judging import judged, setting
from whorl.benchmarks.runner import Case, Check, Group
from whorl.errors import dtype_name
from whorl.models.decoder import Decoder

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}  # of logits, after all layers
CHECKED = 64  # tokens whose logits are compared with float64
VOCAB = 256


def training(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 16,
    length: int = 2048,
    layers: int = 8,
    width: int = 512,
    heads: int = 8,
    encodings: str = "none,rope,alibi,t5,kerple,fire",
) -> tuple[Group, ...]:
    """The group to time: the encodings named, with commas between them; others are compared with the first."""
    where, kind = setting("bench training", device, dtype)
    tokens = torch.randint(VOCAB, (batch, length + 1), device=where)
    cases = []
    for name in encodings.split(","):
        torch.manual_seed(0)
        model = Decoder(VOCAB, layers, width, heads, name, length=length).to(where)
        run = _step(model, tokens, kind)
        cases.append(Case(name=name, run=run, check=_check(model, tokens[:1, :CHECKED], kind)))
    how = ("compiled, " if where == "cuda" else "") + dtype_name(kind)
    summary = f"{layers} layers of {width}, {heads} heads, {batch} × {length} tokens, {how}"
    return (Group(name="a training step", summary=summary, cases=tuple(cases), device=where),)


def _step(model: Decoder, tokens: Tensor, kind: torch.dtype) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=kind, enabled=kind != torch.float32):
            return cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())

    run = torch.compile(loss) if tokens.is_cuda else loss

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        made = run(tokens[:, :-1], tokens[:, 1:])
        made.backward()
        optimizer.step()
        return made.detach()

    return step


def _check(model: Decoder, tokens: Tensor, kind: torch.dtype) -> Callable[[], Check]:
    """The first logits as they are trained, against those in float64."""

    @torch.no_grad()
    def got() -> Tensor:
        with torch.autocast(tokens.device.type, dtype=kind, enabled=kind != torch.float32):
            return model(tokens)

    @torch.no_grad()
    def expected() -> Tensor:
        return copy.deepcopy(model).double()(tokens)

    return judged(got, expected, LIMIT[kind])
