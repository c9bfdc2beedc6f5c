"""``Rope.from_hf``: what is read from the configs of released models, and from random ones."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

import whorl
from probe.recording import Probe

FILE = "hf_configs.py"
LAYERS = (None, "full_attention", "sliding_attention")
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "gpt_neox", "gptj", "phi3", "gemma2", "gemma3_text", "deepseek_v3"),
    *("cohere2", "glm4", "stablelm", "falcon", "roformer", "modernbert", "smollm3", "unheard_of", None),
)
DRAWS = 4


def run(probe: Probe) -> None:
    kept = probe.exchange / "configs.json"
    if probe.writes:
        kept.write_text(json.dumps(_configs(probe.tests)))
    configs = json.loads(kept.read_text())
    probe.add("configs read", len(configs))
    for (name, config), layer in product(configs.items(), LAYERS):
        _read(probe, f"{name}/{layer}", config, layer)
    for name in [name for name in configs if not name.startswith("drawn")]:
        probe.ask(f"{name}/as rerope", lambda c=configs[name]: whorl.ReRope.from_hf(c, window=64).config.to_dict())


def _read(probe: Probe, case: str, config: dict[str, Any], layer: str | None) -> None:
    with probe.guarded(case):
        rope = whorl.Rope.from_hf(config, layer)
        probe.add(f"{case}/config", json.dumps(rope.config.to_dict(), sort_keys=True))
        for length in (None, 100_000):
            probe.add(f"{case}/{length}/factors", (rope.attention_factor(length), rope.softmax_factor(length)))
            probe.add(f"{case}/{length}/frequencies", rope.frequencies(length)[:8])
        probe.add(f"{case}/tables", rope.tables(torch.arange(3) * 5000))


def _configs(folders: list[Path]) -> dict[str, Any]:
    """The configs that the tests of one side know by name, and random ones; none where no file can be read."""
    for path in (folder / FILE for folder in folders):
        try:
            spec = importlib.util.spec_from_file_location("hf_configs", path)
            assert spec is not None and spec.loader is not None
            known = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(known)
        except (OSError, ImportError, AttributeError, ValueError):
            continue  # the file of the other side may be readable
        found = {_plain(name): config for name, (config, _) in known.RELEASED.items()}
        found |= {name: getattr(known, name) for name in ("LLAMA", "GEMMA3_4B", "NESTED") if hasattr(known, name)}
        return found | _drawn(known)
    return {}


def _drawn(known: Any) -> dict[str, Any]:
    draw, found = Random(11), {}
    for kind, family, number in product(known.TYPES, FAMILIES, range(DRAWS)):
        parameters, _ = known.draw_parameters(draw, kind, 128, number % 2 == 1, 8192)
        sizes = {"hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": 8192}
        flat = {"model_type": family, **sizes, "rope_parameters": parameters}
        if number == 2:  # as transformers 4 wrote it
            base = parameters.pop("rope_theta")
            flat = {"model_type": family, **sizes, "rope_theta": base, "rope_scaling": parameters}
        elif number == 3:
            flat["rope_parameters"] = {"full_attention": parameters, "sliding_attention": {"rope_theta": 1e4}}
        found[f"drawn {kind} {family} {number}"] = flat
    return found


def _plain(name: str) -> str:
    return "".join(letter if letter not in "*?[]:\n/" else " " for letter in name)
