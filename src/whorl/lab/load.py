"""The model of a run: made from its config, and loaded from its folder."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whorl import Encoding, LayerPlan, WhorlError, from_dict
from whorl.lab.settings import RunConfig, leaves
from whorl.lab.storage import (
    CHECKPOINT,
    CONFIG,
    RESULT,
    check_weights,
    is_there,
    read_checkpoint,
    read_config,
    read_json,
)
from whorl.models.decoder import Decoder
from whorl.registry import ENCODINGS


@dataclass(frozen=True)
class LabRun:
    """A run of the lab: its model, its config, and its result where it is finished."""

    model: Decoder
    config: RunConfig
    result: dict[str, Any] | None


def make_model(config: RunConfig) -> Decoder:
    """The untrained model of a run, on its device.

    Weights are drawn after the encoding's own parameters from a seed set anew, so that with one seed every encoding
    starts from the same weights.

    >>> model = make_model(RunConfig(encoding={"name": "alibi"}, layers=1, width=16, heads=2, stages=[(16, 2, 1)]))
    >>> parameters(model)["encoding"]
    0
    """
    return _made(config).to(config.device)


def check_device(config: RunConfig) -> None:
    """Raises a WhorlError where this machine has not what a run computes on."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise WhorlError(
            "lab: device='cuda' cannot run here: no CUDA device. Use --set device=cpu, or device='cpu' in Python."
        )


def _made(config: RunConfig) -> Decoder:
    """The untrained model of a run, where torch makes tensors now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # settings.cautions says the same, and the result keeps it
        torch.manual_seed(config.seed)
        plan = make_plan(config.encoding, config.layers)
    torch.manual_seed(config.seed)
    more: dict[str, Any] = {key: getattr(config, key) for key in ("kv_heads", "activation", "dropout")}
    return Decoder(config.vocab, config.layers, config.width, config.heads, plan, **more)


def make_plan(encoding: dict[str, Any], layers: int) -> LayerPlan:
    """The encoding of each layer: one for all, or a plan again and again; those of equal settings are one instance.

    >>> plan = {"name": "plan", "layers": [{"name": "none"}, {"name": "window", "size": 16}]}
    >>> make_plan(plan, 3).order
    (0, 1, 0)
    """
    pattern = encoding.get("layers", [encoding])
    made: dict[str, Encoding] = {}
    for one in pattern:
        key = json.dumps(one, sort_keys=True)
        made[key] = made.get(key) or from_dict(one)
    return LayerPlan(made[json.dumps(pattern[layer % len(pattern)], sort_keys=True)] for layer in range(layers))


def parameters(model: nn.Module) -> dict[str, int]:
    """How many numbers a model learns, and how many of them are its encoding's."""
    own = {name: one.numel() for name, one in model.named_parameters()}
    encoding = sum(count for name, count in own.items() if "plan" in name.split("."))
    return {"all": sum(own.values()), "encoding": encoding}


def load(run: str | Path, *, device: str | None = None) -> LabRun:
    """The trained model of a run folder, with its config and result; on the device it was trained on unless given.

    A run that was stopped midway is loaded as it was last saved.
    """
    folder = Path(run)
    if not is_there(folder / CONFIG):
        raise WhorlError(
            f"load: {run} is no run folder, it has no {CONFIG}. Give OUT/runs/ID, as `whorl compare` makes."
        )
    if not is_there(folder / CHECKPOINT):
        raise WhorlError(f"load: {run} has no {CHECKPOINT} yet. Wait until the run has saved one.")
    config = read_config(folder)
    if device is not None:
        config = config.replace(device=device)
    check_device(config)
    saved = read_checkpoint(folder, device=config.device)
    if all(isinstance(ENCODINGS.get(one["name"]), str) for one in leaves(config.encoding)):
        # whorl's own can be made without memory, so that a config that asks for too much is found before it is taken
        with torch.device("meta"):
            check_weights(folder, _made(config).state_dict(), saved.model)
    model = make_model(config)
    check_weights(folder, model.state_dict(), saved.model)
    model.load_state_dict(saved.model)
    result = read_json(folder / RESULT) if is_there(folder / RESULT) else None
    return LabRun(model.eval(), config, result)
