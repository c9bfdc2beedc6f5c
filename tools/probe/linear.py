"""``linear_attention`` and ``LinearState``: every form and feature with every encoding, which most of them refuse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

import whorl
from probe.cases import DTYPES, HEADS, encodings, on_axes, random, scalings, tokens
from probe.recording import Probe

KEYS = 11
LONG = 150  # more than two chunks
FORMS = ("numerator", "both", "one_plus_cosine", "decay", "unnormalised")
FEATURES = ("elu+1", "relu", "squared_relu", "identity")
RATES = [0.1 * (head + 1) for head in range(HEADS)]

KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "causal": lambda _: {},
    "both ways": lambda _: {"causal": False},
    "grouped heads": lambda _: {},
    "rates": lambda _: {"decay": RATES},
    "padding": lambda _: {"key_mask": torch.arange(KEYS) >= torch.tensor([[4], [0]])},
    "positions": lambda e: {"positions": on_axes(e, 2 * torch.arange(KEYS) + 3)},
    "long": lambda _: {},
    "chunks": lambda _: {"chunk": 4, "eps": 1e-3, "length": 40},
}


def run(probe: Probe) -> None:
    for name, build in encodings().items():
        with probe.guarded(name):
            encoding = build()
            whorl.linear_attention(*tokens(3), encoding=encoding)  # one refusal is enough
            forms = ["numerator"] if name.removeprefix("rope ") in scalings() else FORMS  # one tells the frequencies
            for (dtype_name, dtype), form, feature in product(DTYPES.items(), forms, FEATURES):
                plain = feature == "elu+1"
                for kind in KINDS if plain else ["causal"] if dtype_name == "float32" else []:
                    case = f"{name}/{form}/{feature}/{kind}/{dtype_name}"
                    _ask(probe, case, encoding, form, feature, KINDS[kind](encoding), dtype)
            for form, feature in product(forms, ("elu+1", "identity")):
                _step(probe, f"{name}/state/{form}/{feature}", encoding, form, feature)


def _ask(
    probe: Probe, case: str, encoding: Any, form: str, feature: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    if form == "decay":
        options = {"decay": 0.2} | options
    with probe.guarded(case):
        kv_heads = 2 if "grouped heads" in case else HEADS
        keys = LONG if "/long/" in case else KEYS
        given = [x.requires_grad_() for x in tokens(keys, kv_heads=kv_heads, value_dim=6, dtype=dtype)]
        out, stats = whorl.linear_attention(
            *given, encoding=encoding, form=form, feature=feature, return_stats=True, **options
        )
        probe.add(f"{case}/out", out)
        probe.add(f"{case}/stats", stats._asdict())
        wanted = [*given, *encoding.parameters()]
        weights = random("loss", *out.shape).to(out)
        gradients = torch.autograd.grad(out, wanted, weights, allow_unused=True)
        probe.add(f"{case}/gradients", gradients)


def _step(probe: Probe, case: str, encoding: Any, form: str, feature: str) -> None:
    with probe.guarded(case), torch.no_grad():
        decay = RATES if form == "decay" else None
        state = whorl.LinearState(encoding=encoding, form=form, feature=feature, decay=decay)
        for step, count in enumerate((5, 1, 3)):
            out = state.step(*tokens(count, salt=f"step {step}"))
            probe.add(f"{case}/{step}", {"out": out, "position": state.position, "sums": state.sums.sums})
            state.reorder(torch.tensor([1, 0] if step else [1, 1]))
