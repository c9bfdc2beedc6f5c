"""Runs of the lab: a tiny comparison by each side, and the old side's run folders read and reported by both."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch

import whorl.lab
from probe.recording import Probe

NAMES = ["rope", "alibi", "t5", "learned", "rope:base=100"]
SETTINGS: dict[str, Any] = {
    **{"layers": 1, "width": 16, "heads": 2, "eval_bytes": 512, "train_length": 16, "steps": 2, "batch": 4},
    **{"lengths": [8, 16, 32], "workers": 1, "repairs": ["ntk", "window"]},
}
# What depends on the machine and the moment.
OF_THE_MOMENT = {
    *("environment", "evaluate_seconds", "peak_memory_bytes", "seconds", "tokens_per_second", "train_seconds"),
    *("created", "command"),
}


def run(probe: Probe) -> None:
    texts, kept = probe.exchange / "texts", probe.exchange / "runs"
    if probe.writes:
        _write_texts(texts)
        _compare(texts, kept)
    with probe.guarded("own"):
        _record(probe, "own", _compare(texts, probe.folder / "own runs"))
    with probe.guarded("old"):
        copied = probe.folder / "old runs"
        shutil.copytree(kept, copied)
        before = _times(copied)
        _record(probe, "old", _compare(texts, copied))  # finished runs are read, and not made again
        probe.add("old/made again", before != _times(copied))
        for folder in sorted(copied.glob("runs/*")):
            probe.ask(f"old/loaded {folder.name}", lambda folder=folder: _logits(folder))


def _times(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}


def _compare(texts: Path, out: Path) -> Any:
    return whorl.lab.compare(NAMES, corpus=str(texts), out=out, **SETTINGS)


def _record(probe: Probe, case: str, found: Any) -> None:
    data = _lasting(found.data)
    for row in data["rows"]:
        name = f"{row['label']} {row['variant']}".replace(":", " ")
        probe.add(f"{case}/{name}", json.dumps(row, sort_keys=True))
    probe.add(f"{case}/rest", json.dumps({key: data[key] for key in data if key != "rows"}, sort_keys=True))
    for lang in ("en", "zh"):
        page = whorl.lab.write_report(data, probe.folder / f"{case}-{lang}.html", lang=lang)
        probe.add(f"{case}/report {lang}", Path(page).read_text())


def _lasting(data: Any) -> Any:
    """Data without what depends on the machine and the moment."""
    if isinstance(data, dict):
        return {key: _lasting(value) for key, value in data.items() if key not in OF_THE_MOMENT}
    return [_lasting(one) for one in data] if isinstance(data, list) else data


def _logits(folder: Path) -> Any:
    with torch.no_grad():
        return whorl.lab.load(folder).model(torch.arange(12)[None] + 97)


def _write_texts(folder: Path) -> None:
    folder.mkdir()
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(40)]
    for number in range(12):
        (folder / f"{number}.txt").write_text(" ".join(draw.choices(words, k=500))[:2000])
