"""The same sweep on a real Ray cluster of this machine, also when a worker is killed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile

import pytest

from lab_runs import lasting, run_group, tiny
from whorl.errors import WhorlError
from whorl.lab.run_many import run_many

# Makes the runs on Ray with two workers, one of which is killed once; prints what was heard.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
os.sched_getaffinity = lambda pid: {0, 1}
from whorl.errors import WhorlError
from whorl.lab import run_on_ray
from whorl.lab.run_many import run_many
from whorl.lab.settings import RunConfig
run_on_ray.LISTEN_SECONDS = 0.05
configs = [RunConfig.from_dict(one) for one in json.loads(Path(sys.argv[1]).read_text())]
heard, flag = [], Path(sys.argv[3])

def tell(config, event):
    heard.append((config.id, event["kind"], event.get("process"), event.get("step")))
    if event["kind"] == "train" and event["step"] >= 20 and not flag.exists():
        flag.write_text(config.id)
        os.kill(event["process"], signal.SIGKILL)

try:
    run_many(configs, sys.argv[2], on="ray", address="127.0.0.1:1")
except WhorlError as error:
    wrong = str(error)
results, failed = run_many(configs, sys.argv[2], on="ray", tell=tell, save_seconds=0.1)
import ray
made = [one.to_dict() for one in results]
print(json.dumps({"results": made, "failed": failed, "heard": heard, "up": ray.is_initialized(), "wrong": wrong}))
"""


@pytest.fixture
def sockets():
    """A folder with a short path, as the sockets of Ray need; nothing stays in it."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_killed_worker_of_two_changes_nothing(texts, tmp_path, sockets):
    configs = [tiny(texts, name, steps=300, learning_rate=1e-2) for name in ("rope", "alibi")]
    configs.append(tiny(texts, "learned", lengths=(8, 16), corpus="/nowhere", corpus_digest="0"))
    alone, _ = run_many(configs[:2], tmp_path / "alone", workers=1)
    (tmp_path / "configs.json").write_text(json.dumps([config.to_dict() for config in configs]))
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [str(tmp_path / name) for name in ("program.py", "configs.json", "out", "flag")]
    environment = {**os.environ, "RAY_TMPDIR": sockets, "OMP_NUM_THREADS": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
    environment.pop("RAY_ADDRESS", None)
    done = run_group(words, environment, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert lasting(found["results"]) == lasting(alone)
    assert list(found["failed"]) == [configs[2].id] and "no corpus at /nowhere" in found["failed"][configs[2].id]
    assert found["up"] is False
    assert "no Ray cluster at 127.0.0.1:1: " in found["wrong"] and "ray start" in found["wrong"]
    assert sorted(kind for _, kind, *_ in found["heard"] if kind in ("done", "failed")) == ["done", "done", "failed"]
    killed = (tmp_path / "flag").read_text()
    steps = [(worker, step) for run, kind, worker, step in found["heard"] if run == killed and kind == "train"]
    assert len({worker for worker, _ in steps}) == 2  # another worker took the run up,
    first = steps[0][0]
    begun = next(step for worker, step in steps if worker != first)
    assert begun > 1  # where the first had saved it


def test_without_ray_it_says_how_to_get_it(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WhorlError, match=r"Ray is not installed\. Run: pip install"):
        run_many([tiny(texts)], tmp_path / "out", on="ray")
    assert not (tmp_path / "out" / "runs").exists()
