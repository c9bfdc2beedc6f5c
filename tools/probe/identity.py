"""What is kept of an encoding: its config, its text, the names of its weights, and copies that the old side wrote."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

import whorl
from probe.cases import WIDTH, build, encodings, hidden_for, on_axes, random, tokens
from probe.recording import Probe

SIZE = 10


def run(probe: Probe) -> None:
    folder = probe.exchange / "copies"
    folder.mkdir(exist_ok=True)
    for name in encodings():
        with probe.guarded(name):
            encoding = build(name)
            _describe(probe, name, encoding)
            if probe.writes:
                _write(folder, name, encoding)
        for kind, read in READERS.items():
            with probe.guarded(f"{name}/{kind}"):
                probe.add(f"{name}/{kind}", _attended(read(folder, name)))
    probe.add("public", dict.fromkeys(whorl.__all__, "there"))


def _describe(probe: Probe, name: str, encoding: Any) -> None:
    probe.add(f"{name}/config", json.dumps(encoding.config.to_dict()))
    probe.add(f"{name}/config text", repr(encoding.config))
    probe.add(f"{name}/text", repr(encoding))
    probe.add(f"{name}/keys", list(encoding.state_dict()))
    probe.add(f"{name}/state", dict(encoding.state_dict()))
    again = whorl.from_dict(encoding.config.to_dict())
    probe.add(f"{name}/again", again.config == encoding.config and hash(again.config) == hash(encoding.config))


def _write(folder: Path, name: str, encoding: Any) -> None:
    config = {"config": encoding.config.to_dict(), "state": encoding.state_dict()}
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(encoding))
    (folder / f"{name} config.pickle").write_bytes(pickle.dumps(encoding.config))
    torch.save(encoding, folder / f"{name}.pt")
    torch.save(config, folder / f"{name}.weights")


def _from_weights(folder: Path, name: str) -> Any:
    kept = torch.load(folder / f"{name}.weights", weights_only=True)
    encoding = whorl.from_dict(kept["config"])
    encoding.load_state_dict(kept["state"])
    return encoding


def _from_config(folder: Path, name: str) -> Any:
    config = pickle.loads((folder / f"{name} config.pickle").read_bytes())
    encoding = type(build(name)).from_config(config)
    encoding.load_state_dict(build(name).state_dict())
    return encoding


READERS = {
    "from a pickle": lambda folder, name: pickle.loads((folder / f"{name}.pickle").read_bytes()),
    "from torch.save": lambda folder, name: torch.load(folder / f"{name}.pt", weights_only=False),
    "from weights": _from_weights,
    "from a config": _from_config,
}


def _attended(encoding: Any) -> dict[str, Any]:
    """What attention makes of some tokens with this encoding, and what it adds to an input."""
    with torch.no_grad():
        given = {"encoding": encoding, **hidden_for(encoding, SIZE)}
        positions = on_axes(encoding, torch.arange(SIZE))
        return {
            "out": whorl.attention(*tokens(SIZE), positions=positions, **given),
            "added": encoding.add_to_input(random("x", 2, SIZE, WIDTH), positions),
        }
