"""Two sweeps on one folder at the same time, in processes of their own: every run is made once, by one of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lab_runs import lasting, tiny, write_texts
from whorl.lab.run_many import run_many

# Makes the runs and prints the steps that it trained of each, and the results; begins when it is told to.
PROGRAM = """
import json, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from whorl.lab.run_many import run_many
from whorl.lab.settings import RunConfig
configs = [RunConfig.from_dict(one) for one in json.loads(Path(sys.argv[1]).read_text())]
trained = {}
def tell(config, event):
    if event["kind"] == "train":
        trained.setdefault(config.id, []).append(event["step"])
print("ready", flush=True)
sys.stdin.readline()
results, failed = run_many(configs, sys.argv[2], workers=int(sys.argv[3]), tell=tell)
print(json.dumps({"trained": trained, "results": [one.to_dict() for one in results], "failed": failed}))
"""


@pytest.mark.slow
# test_sweep.py has a worker that finds a run taken
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.large)])
def test_two_sweeps_share_the_work(tmp_path, workers):
    texts = write_texts(tmp_path / "texts")
    configs = [tiny(texts, name, seed=seed, steps=50) for name in ("rope", "alibi") for seed in (0, 1)]
    alone, _ = run_many(configs, tmp_path / "alone", workers=1)
    (tmp_path / "configs.json").write_text(json.dumps([config.to_dict() for config in configs]))
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "configs.json"), str(tmp_path / "out"), str(workers)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as one, subprocess.Popen(words, **pipes) as other:
        for process in (one, other):
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(process.communicate(timeout=120)[0]) for process in (one, other)]
    made = [found[0]["trained"], found[1]["trained"]]
    assert not set(made[0]) & set(made[1]) and set(made[0]) | set(made[1]) == {config.id for config in configs}
    assert all(made) and all(steps == list(range(1, 51)) for each in made for steps in each.values())
    for each in found:
        assert each["failed"] == {} and lasting(each["results"]) == lasting(alone)
