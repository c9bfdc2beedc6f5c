"""A small ``Decoder`` with every encoding: its logits, what it generates, and the names of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

import whorl.models
from probe.cases import HEADS, WIDTH, build, encodings
from probe.recording import Probe

VOCAB = 50
PLANS = {
    "own shaw": lambda: whorl.LayerPlan.own(lambda: build("shaw"), layers=3),
    "every second none": lambda: whorl.LayerPlan.every(2, whorl.NoPE(), build("rope"), layers=3),
    "windows and whole": lambda: whorl.LayerPlan([build("rope + window"), build("rope"), build("alibi")]),
}


def run(probe: Probe) -> None:
    for name, make in encodings().items():
        _ask(probe, name, make, layers=2)
    for name, make in PLANS.items():
        _ask(probe, f"plan {name}", make, layers=3, norm="rms", activation="silu", kv_heads=2, tied=False, bias=False)


def _ask(probe: Probe, case: str, make: Any, **settings: Any) -> None:
    ids = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(2))
    padding = torch.arange(9) >= torch.tensor([[3], [0]])
    with probe.guarded(case):
        model = whorl.models.Decoder(VOCAB, width=WIDTH, heads=HEADS, encoding=make(), **settings)
        probe.add(f"{case}/keys", list(model.state_dict()))
        logits = model(ids)
        probe.add(f"{case}/logits", logits)
        loss = cross_entropy(logits.flatten(0, 1), ids.flatten())
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        probe.add(f"{case}/gradients", dict(zip(dict(model.named_parameters()), gradients, strict=True)))
        probe.ask(f"{case}/generated", lambda: model.generate(ids, 5))
        probe.ask(f"{case}/generated from padding", lambda: model.generate(ids, 5, key_mask=padding, length=40))
        with torch.no_grad():
            probe.ask(f"{case}/documents", lambda: model(ids, documents=torch.arange(9) // 4))
            probe.ask(f"{case}/padding", lambda: model(ids, key_mask=padding, length=40))
