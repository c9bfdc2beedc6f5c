"""Runs of the lab: tiny comparisons and encoders by each side, and run folders of the old side taken up by both."""

from __future__ import annotations

import json
import random
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import whorl.lab
from probe.recording import Probe
from whorl.lab.classify import ClassifyConfig, classify
from whorl.lab.matching import MatchingConfig, match
from whorl.lab.matching_data import stand_in
from whorl.lab.mlm import PretrainConfig, pretrain
from whorl.lab.plan import plan

NAMES = ["rope", "alibi", "t5", "learned", "rope:base=100"]
SETTINGS: dict[str, Any] = {
    **{"layers": 1, "width": 16, "heads": 2, "eval_bytes": 512, "train_length": 16, "steps": 2, "batch": 4},
    **{"lengths": [8, 16, 32], "repairs": ["ntk", "window"]},
}
# Seeds, stages, parts of a batch and fine-tuned repairs.
SEEDED = {**SETTINGS, "seeds": 2, "accumulate": 2, "fine_tune_steps": 2, "train_length": None, "steps": None}
SEEDED |= {"batch": None, "stages": [(8, 4, 3), (16, 4, 3)]}
TASK = {"layers": 1, "width": 16, "heads": 2, "train_length": 3, "steps": 3, "batch": 4, "lengths": [2, 3], "seeds": 2}
STOPPED = 3  # the step at which a run of the old side is broken off
# What depends on the machine and the moment, and the verdict, which files hold since they are written by one function.
OF_THE_MOMENT = {
    *("environment", "evaluate_seconds", "peak_memory_bytes", "seconds", "tokens_per_second", "train_seconds"),
    *("test_seconds", "created", "command", "verdict"),
}


def run(probe: Probe) -> None:
    texts, kept, begun = (probe.exchange / name for name in ("texts", "runs", "begun"))
    if probe.writes:
        _write_texts(texts)
        _compare(NAMES, texts, kept, SETTINGS)
        _begin(texts, begun)
    with probe.guarded("own"):
        _record(probe, "own", _compare(NAMES, texts, probe.folder / "own runs", SETTINGS))
    with probe.guarded("task"):
        _record(probe, "task", _compare(["none", "alibi"], "task:copy", probe.folder / "tasks", TASK))
    with probe.guarded("seeded"):
        _record(probe, "seeded", _compare(["rope", "t5"], texts, probe.folder / "seeded", SEEDED))
    with probe.guarded("begun"):  # where the old side broke off, both go on
        copied = Path(shutil.copytree(begun, probe.folder / "begun"))
        _record(probe, "begun", _compare(["rope", "t5"], texts, copied, SEEDED))
    with probe.guarded("old"):
        copied = Path(shutil.copytree(kept, probe.folder / "old runs"))
        before = _times(copied)
        _record(probe, "old", _compare(NAMES, texts, copied, SETTINGS))  # finished runs are read, and not made again
        probe.add("old/made again", before != _times(copied))
        for folder in sorted(copied.glob("runs/*")):
            probe.ask(f"old/loaded {folder.name}", lambda folder=folder: _logits(folder))
    _encoders(probe)


def _encoders(probe: Probe) -> None:
    """RoFormer pre-trained, matching triples and telling classes apart."""
    staged = PretrainConfig(encoding="shaw", layers=1, width=16, stages=((16, 2, 5), (8, 4, 3)))
    words = bytes(range(97, 123)) * 20
    for name, make in {
        "pretrained": lambda: pretrain(staged, words).to_dict(),
        "matched": lambda: match(
            MatchingConfig(length=48, steps=6, batch=3, layers=1, width=16),
            stand_in(8, evidence="early", side="train"),
            stand_in(6, evidence="early", side="test"),
        ),
        "classified": lambda: classify(
            ClassifyConfig(encoding="learned", length=8, layers=1, width=16, steps=6, batch=4, train=40, test=20)
        ),
    }.items():
        probe.ask(name, lambda make=make: json.dumps(_lasting(make()), sort_keys=True))


def _begin(texts: Path, out: Path) -> None:
    """The runs of ``SEEDED``, each broken off behind a checkpoint."""

    def tell(event: dict[str, Any]) -> None:
        if event["step"] > STOPPED:
            raise InterruptedError

    for config in plan(["rope", "t5"], out=out, corpus=str(texts), **SEEDED):
        try:
            whorl.lab.run_one(config, out / "runs" / config.id, tell=tell, save_seconds=0.0)
        except InterruptedError:
            continue
        raise AssertionError("the run was to be broken off")


def _times(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}


def _compare(names: list[str], corpus: Path | str, out: Path, settings: dict[str, Any]) -> Any:
    return whorl.lab.compare(names, corpus=str(corpus), out=out, workers=1, **settings)


def _record(probe: Probe, case: str, found: Any) -> None:
    data = _lasting(found.data)
    for row in data["rows"]:
        name = f"{row['label']} {row['variant']}".replace(":", " ")
        probe.add(f"{case}/{name}", json.dumps(row, sort_keys=True))
    probe.add(f"{case}/rest", json.dumps({key: data[key] for key in data if key != "rows"}, sort_keys=True))
    for path in sorted(found.out.glob("runs/*/result.json")):
        probe.add(
            f"{case}/result {path.parent.name}", json.dumps(_lasting(json.loads(path.read_text())), sort_keys=True)
        )
    for lang in ("en", "zh"):
        page = whorl.lab.write_report(data, probe.folder / f"{case}-{lang}.html", lang=lang)
        probe.add(f"{case}/report {lang}", _words(Path(page).read_text()))
    probe.add(f"{case}/table", (found.out / "comparison.csv").read_text())


def _words(page: str) -> str:
    """What a reader sees of a page: its text and numbers, figures included, without markup."""
    said: list[str] = []
    reader = HTMLParser()
    reader.handle_data = said.append
    reader.feed(page[page.index("<body") :])
    return " ".join(" ".join(said).split())


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
