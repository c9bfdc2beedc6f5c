"""``KVCache``: seeded programs of steps, crops, reorderings and changes of the encoding."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import whorl
from probe.cases import HEADS, build, encodings, hidden_for, on_axes, tokens
from probe.recording import Probe

SEEDS, STEPS = 6, 9
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
OTHERS = (
    "rope yarn",
    "rope interleaved",
    "rope dynamic_ntk",
    "none",
    "alibi",
    "rerope",
    "rope + window",
    "xpos",
    "mrope",
)


def run(probe: Probe) -> None:
    for name in encodings():
        for seed in range(SEEDS):
            with probe.guarded(f"{name}/{seed}"):
                _Program(probe, name, seed).run()


class _Program:
    """One program. What it does next is drawn from its seed, and from how many slots and rows there are."""

    def __init__(self, probe: Probe, name: str, seed: int) -> None:
        self.probe, self.case, self.draw = probe, f"{name}/{seed}", Random(f"{name} {seed}")
        self.dtype, self.batch, self.kv_heads = DTYPES[seed % 3], 2, self.draw.choice((HEADS, 2))
        self.cache = whorl.KVCache(encoding=build(name), policy="raw" if seed >= 4 else "auto")

    def run(self) -> None:
        for step in range(STEPS):
            usual = ["attend"] * 5
            does = "attend" if step < 2 else self.draw.choice([*usual, "crop", "reorder", "change", "length"])
            with self.probe.guarded(f"{self.case}/{step} {does}"):
                self.probe.add(f"{self.case}/{step} {does}/out", getattr(self, does)(f"step {step}"))
            kept = self.cache
            state = f"len {len(kept)}, {kept.bytes} bytes, {kept.policy}, length {kept.length}"
            self.probe.add(f"{self.case}/{step} {does}/state", state)

    def attend(self, salt: str) -> Any:
        count, encoding, draw = self.draw.choice((1, 1, 2, 5)), self.cache.encoding, self.draw
        given = tokens(count, batch=self.batch, kv_heads=self.kv_heads, dtype=self.dtype, salt=salt)
        options: dict[str, Any] = hidden_for(encoding, count, self.batch, dtype=self.dtype)
        if draw.random() < 0.3:
            options["key_mask"] = torch.tensor([[draw.random() < 0.7 for _ in range(count)] for _ in range(self.batch)])
        if draw.random() < 0.3:
            start = len(self.cache) + draw.randint(0, 3)
            options["positions"] = on_axes(encoding, torch.arange(start, start + count))
        if draw.random() < 0.15:
            options["softcap"] = 3.0
        return self.cache.attend(*given, **options)

    def crop(self, salt: str) -> None:
        self.cache.crop(self.draw.randint(0, len(self.cache)))

    def reorder(self, salt: str) -> None:
        rows = [self.draw.randrange(self.batch) for _ in range(self.draw.randint(1, 3))]
        self.cache.reorder(rows)
        self.batch = len(rows)

    def change(self, salt: str) -> None:
        self.cache.change_encoding(build(self.draw.choice(OTHERS)))

    def length(self, salt: str) -> None:
        self.cache.length = self.draw.choice((None, 12, 40))
