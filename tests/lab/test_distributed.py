"""One run over two processes: the loss curve of one process, one writer, and what happens when a process dies."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lab_runs import run_group, tiny
from whorl.errors import WhorlError
from whorl.lab import distributed, load, run_one
from whorl.lab.storage import read_metrics

# A run whose first process is killed at step 5, once.
KILLED_ONCE = """
import os, signal, sys
from pathlib import Path
from whorl.lab.distributed import group_of_torchrun, read_config, run_distributed
config, out, flag = read_config(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])

def tell(event):
    with open(out / "heard", "a") as file:
        file.write(f"{event['kind']} {event.get('step', '')}\\n")
    if event.get("step") == 5 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

with group_of_torchrun(config.device):
    result = run_distributed(config, out, tell=tell, save_seconds=0.0)
assert (result is None) == (os.environ["RANK"] != "0")
"""

# The threads that gloo has while a group trains, and behind it: one that lives until Python ends may abort the process.
THREADS = """
import sys
from pathlib import Path
from whorl.lab.distributed import group_of_torchrun, read_config, run_distributed

def of_gloo():
    return [one for one in Path("/proc/self/task").glob("*/comm") if "gloo" in one.read_text()]

config = read_config(sys.argv[1])
with group_of_torchrun(config.device):
    run_distributed(config, sys.argv[2], parallel=sys.argv[3])
    assert of_gloo()
assert not of_gloo()
"""


def torchrun(*words: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a program in several processes; none outlives the call."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return run_group([*start, *words], environment, timeout=180)


def same_curve(one, other, *, within: float, but: str = "") -> None:
    assert [row["step"] for row in one] == [row["step"] for row in other]
    for a, b in zip(one, other, strict=True):
        for key in ("loss", "accuracy", "gradient_norm", "attention_entropy", "learning_rate", "tokens"):
            assert key == but or a[key] == pytest.approx(b[key], abs=within), (key, a["step"])
        assert a["gradient_norms"] == pytest.approx(b["gradient_norms"], abs=within)


def test_two_processes_give_the_loss_curve_of_one(texts, tmp_path):
    """Also in a stage whose rows two processes cannot share evenly."""
    config = tiny(texts, steps=20, stages=((16, 4, 12), (8, 5, 8)), learning_rate=1e-2)
    alone = run_one(config, tmp_path / "alone" / "runs" / config.id)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    ended = torchrun("-m", "whorl.lab.distributed", tmp_path / "config.json", tmp_path / "both")
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "both" / "runs" / config.id
    assert ended.stdout.split() == [str(folder)] and "step 20/20, loss" in ended.stderr
    rows = read_metrics(folder)
    assert {row["processes"] for row in rows} == {2}
    same_curve(rows, read_metrics(tmp_path / "alone" / "runs" / config.id), within=1e-4)
    result = load(folder).result
    for one, other in zip(result["evaluations"][0]["by_length"], alone["evaluations"][0]["by_length"], strict=True):
        assert one["bits_per_byte"] == pytest.approx(other["bits_per_byte"], abs=1e-4)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "alone" / "runs" / config.id).iterdir()
    )


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux lists threads there")
@pytest.mark.parametrize("parallel", ["data", "context"])
def test_no_thread_of_a_group_outlives_it(parallel, texts, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny(texts, steps=2).to_dict()))
    (tmp_path / "threads.py").write_text(THREADS)
    ended = torchrun(tmp_path / "threads.py", tmp_path / "config.json", tmp_path / "both", parallel)
    assert ended.returncode == 0, ended.stderr


def test_context_parallel_gives_the_loss_curve_of_one_process(texts, tmp_path):
    """In parts, with an encoding that learns."""
    config = tiny(texts, "t5", stages=((16, 4, 8),), accumulate=2, learning_rate=1e-2)
    run_one(config, tmp_path / "alone" / "runs" / config.id)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    words = [tmp_path / "config.json", tmp_path / "both", "--parallel", "context"]
    ended = torchrun("-m", "whorl.lab.distributed", *words)
    assert ended.returncode == 0, ended.stderr
    rows = read_metrics(tmp_path / "both" / "runs" / config.id)
    assert {row["processes"] for row in rows} == {2}
    alone = read_metrics(tmp_path / "alone" / "runs" / config.id)
    same_curve(rows, alone, within=1e-4, but="accuracy")  # which one process has of its last part


def test_a_killed_run_goes_on_and_every_target_weighs_the_same(texts, tmp_path):
    """A task whose rows have unequal numbers of targets, computed in parts."""
    config = tiny(
        texts, corpus="task:copy", corpus_digest="", vocab=128, stages=((6, 10, 9),), accumulate=2, lengths=(6,),
        learning_rate=1e-2,
    )  # fmt: skip
    run_one(config, tmp_path / "alone" / "runs" / config.id)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "program.py").write_text(KILLED_ONCE)
    words = [tmp_path / name for name in ("program.py", "config.json", "both", "flag")]
    assert torchrun(*words).returncode != 0
    folder = tmp_path / "both" / "runs" / config.id
    assert (folder / "checkpoint.safetensors").exists() and not (folder / "result.json").exists()
    ended = torchrun(*words)
    assert ended.returncode == 0, ended.stderr
    heard = (tmp_path / "both" / "heard").read_text().splitlines()
    assert [line for line in heard if line.startswith("train")] == [
        f"train {n}" for n in (1, 2, 3, 4, 5, 5, 6, 7, 8, 9)
    ]
    rows = read_metrics(tmp_path / "alone" / "runs" / config.id)
    same_curve(read_metrics(folder), rows, within=1e-4, but="accuracy")  # which one process has of its last part


def test_misuse_is_one_line(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny(texts).to_dict()))
    for text, said in (
        (None, "no torchrun started this process"),
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ('{"encoding": {"name": "ropee"}}', "Did you mean 'rope'?"),
    ):
        if text is not None:
            path.write_text(text)
        assert distributed.main([str(path), str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert said in err and len(err.splitlines()) == 1
    assert distributed.main([str(tmp_path / "none.json"), str(tmp_path / "out")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(WhorlError, match="at least 5 rows, 1 for each of 5 processes, got 4"):
        distributed._check(tiny(texts), 5)
    with pytest.raises(WhorlError, match="a multiple of 6 in context parallel, got 16"):
        distributed._check(tiny(texts), 3, "context")
    with pytest.raises(WhorlError, match="compile would be ignored in context parallel"):
        distributed._check(tiny(texts, compile=True), 2, "context")
    with pytest.raises(WhorlError, match=r"unknown parallel 'contxt'\. Did you mean 'context'"):
        distributed._check(tiny(texts), 2, "contxt")


def test_a_text_without_its_digest_is_read(texts, tmp_path):
    config = tiny(texts)
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "corpus_digest": ""}))
    assert distributed.read_config(tmp_path / "config.json") == config
