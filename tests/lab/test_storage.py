"""The run folder: what it holds, that finished runs are kept, and that killing a sweep loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lab_runs import LENGTHS, lasting, tiny
from whorl.errors import WhorlError
from whorl.lab import load, run_one, storage, sweep
from whorl.lab.plan import plan
from whorl.lab.settings import RunConfig, label_of, resolve
from whorl.lab.storage import BusyError, check_output, locked, read_metrics, space_needed, write_atomic

KILLS = int(os.environ.get("WHORL_KILLS", "2"))  # how often the sweep is killed; 20 is what the lab promises to bear


# -- identity ---------------------------------------------------------------------------------------------------------


def test_the_id_is_a_hash_of_the_config_and_of_all_of_it(texts):
    import hashlib

    config = tiny(texts)
    text = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"))
    assert config.id == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    others = [
        tiny(texts, {"name": "rope", "base": 500.0}),
        tiny(texts, "alibi"),
        *(tiny(texts, **change) for change in (
            {"seed": 1}, {"layers": 2}, {"lengths": (8, 16)}, {"repairs": ("ntk",)}, {"corpus_digest": "0"},
            {"stages": ((16, 4, 3), (16, 4, 3))}, {"learning_rate": 2e-3}, {"precision": "bfloat16"},
        )),
    ]  # fmt: skip
    assert len({config.id, *(other.id for other in others)}) == len(others) + 1
    assert len({config, *others, tiny(texts)}) == len(others) + 1


def test_the_ids_of_runs_of_the_first_version_stay_theirs():
    config = RunConfig(encoding={"name": "rope"}, stages=((64, 32, 500),))
    assert config.id == "067da4db56c4"
    assert config.replace(protocols=("same_last",)).id != config.id


def test_an_encoding_is_kept_in_full(texts):
    config = tiny(texts, {"name": "rope", "base": 500, "scaling": {"name": "ntk", "factor": 2}})
    assert config.encoding["head_dim"] == 8 and config.encoding["scaling"]["variant"] == "base"
    assert tiny(texts, config.encoding) == config
    joined = tiny(texts, {"name": "combined", "parts": [{"name": "rope"}, {"name": "alibi"}]})
    assert [part["name"] for part in joined.encoding["parts"]] == ["rope", "alibi"]
    assert joined.encoding["parts"][1]["heads"] == 2
    assert tiny(texts, "learned").encoding["length"] == 16
    assert label_of(config.encoding, **config.sizes) == "rope base=500 scaling=ntk(2)"
    assert label_of(resolve("alibi", **config.sizes), **config.sizes) == "alibi"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoding": {"name": "ropee"}}, "unknown encoding 'ropee'. Did you mean 'rope'?"),
        ({"encoding": {"base": 3}}, "encoding must be a name, or a dict with one under 'name'"),
        ({"encoding": {"name": "rope", "bass": 3}}, "unknown setting 'bass'. Did you mean 'base'?"),
        ({"width": 15}, "width must be a multiple of heads=2, got 15"),
        ({"layers": 0}, "layers must be positive, got 0"),
        ({"heads": 16}, "head_dim must be even, got 1"),
        ({"stages": ()}, "stages must be at least one"),
        ({"stages": ((16, 4),)}, "every stage must be"),
        ({"stages": ((1, 4, 2),)}, "every stage's length must be at least 2"),
        ({"accumulate": 3}, "a multiple of accumulate=3, got 4"),
        ({"warmup": 7}, "warmup must be between 0 and the 6 steps, got 7"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"lengths": (1, 8)}, "lengths must be at least 2 each"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"seed": -1}, "seed must be between 0"),
        ({"fine_tune_steps": -1}, "fine_tune_steps must be 0 or more"),
        ({"wdth": 3}, "unknown setting 'wdth'. Did you mean 'width'?"),
    ],
)
def test_a_config_that_makes_no_run_is_an_error(texts, change, said):
    with pytest.raises(WhorlError) as error:
        tiny(texts, **change)
    assert said in str(error.value)


# -- the folder -------------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_folder_that_tells_everything(texts, tmp_path):
    config = tiny(texts, repairs=("ntk",), fine_tune_steps=2)
    folder = tmp_path / "runs" / config.id
    result = run_one(config, folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "environment.json", "metrics.jsonl", "checkpoint.safetensors", "result.json", "lock",
    }  # fmt: skip
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # who may read one may read all
    assert RunConfig.from_dict(json.loads((folder / "config.json").read_text())).id == config.id == folder.name
    assert json.loads((folder / "result.json").read_text()) == result
    assert json.loads((folder / "environment.json").read_text())["torch"] == torch.__version__
    assert result["schema"] == "whorl-lab-result/1" and result["label"] == "rope" and result["steps"] == 6
    assert result["config"] == config.to_dict() and result["tokens"] == 6 * 64
    assert [row["step"] for row in result["metrics"]] == [row["step"] for row in read_metrics(folder)]
    variants = [(one["variant"], one["fine_tuned_steps"]) for one in result["evaluations"]]
    assert variants == [("as trained", 0), ("ntk", 0), ("as trained", 2), ("ntk", 2)]
    for one in (*result["evaluations"], result["window_baseline"]):
        assert [row["length"] for row in one["by_length"]] == list(LENGTHS)
    assert result["stages"] == [
        {"length": 16, "batch": 4, "steps": 6, **{key: result["stages"][0][key] for key in ("loss", "accuracy")}}
    ]
    assert (tmp_path / "corpus" / config.corpus_digest / "train.bin").exists()


def test_a_finished_run_is_not_made_again(texts, tmp_path):
    config = tiny(texts)
    folder = tmp_path / "runs" / config.id
    first = run_one(config, folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run_one(config, folder, tell=lambda event: pytest.fail("made again")) == first
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_load_gives_the_trained_model_back(texts, tmp_path):
    config = tiny(texts, {"name": "t5", "buckets": 4, "max_distance": 8}, steps=30, learning_rate=1e-2)
    folder = tmp_path / "runs" / config.id
    result = run_one(config, folder)
    run = load(folder)
    assert run.config == config and run.result == result and not run.model.training
    from whorl.lab.corpus import read_corpus
    from whorl.lab.evaluate import Evaluation

    again = Evaluation(run.model, run.config, read_corpus(str(texts))).variant()
    assert lasting(again["by_length"]) == lasting(result["evaluations"][0]["by_length"])
    assert run.model.generate(torch.tensor([[97, 98]]), 3).shape == (1, 5)
    for path, said in ((tmp_path, "is no run folder"), (_half(tmp_path / "half", config), "has no checkpoint")):
        with pytest.raises(WhorlError, match=said):
            load(path)


def _half(folder: Path, config: RunConfig) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


def test_a_loss_that_is_no_number_ends_in_a_result_that_says_so(texts, tmp_path):
    config = tiny(texts, learning_rate=1e30, clip=1e30, steps=12)
    result = run_one(config, tmp_path / "runs" / config.id)
    assert "the loss is" in result["stopped_early"] and result["evaluations"] == []
    assert result["window_baseline"] is None and result["steps"] < 12


def test_a_task_is_scored_by_exact_match(tmp_path):
    config = RunConfig(
        encoding={"name": "none"}, layers=1, width=16, heads=2, vocab=105, corpus="task:copy",
        stages=((3, 8, 4),), lengths=(2, 3, 4),
    )  # fmt: skip
    result = run_one(config, tmp_path / "runs" / config.id)
    assert result["task"]["name"] == "copy" and result["evaluations"] == []
    assert [row["length"] for row in result["task"]["by_length"]] == [2, 3, 4]
    assert all(0 <= row["exact_match"] <= row["token_accuracy"] <= 1 for row in result["task"]["by_length"])


def test_a_folder_of_another_run_is_refused(texts, tmp_path):
    run_one(tiny(texts), tmp_path / "runs" / "x")
    (tmp_path / "runs" / "x" / "result.json").unlink()
    with pytest.raises(WhorlError, match="holds another run"):
        run_one(tiny(texts, seed=1), tmp_path / "runs" / "x")


def test_a_device_that_is_not_there_is_an_error(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WhorlError, match="device='cuda' cannot run here"):
        run_one(tiny(texts, device="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- one process at a time --------------------------------------------------------------------------------------------


def test_a_run_that_another_process_has_is_busy_or_waited_for(texts, tmp_path):
    config = tiny(texts)
    folder = tmp_path / "runs" / config.id
    holder = "import sys, time; from pathlib import Path; from whorl.lab.storage import locked\n"
    holder += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(float(sys.argv[2]))"
    command = [sys.executable, "-c", holder, str(folder), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            with pytest.raises(BusyError, match="another process works on"):
                run_one(config, folder)
            assert not (folder / "config.json").exists()
        finally:
            other.kill()
    assert run_one(config, folder, wait=True)["id"] == config.id  # a lock dies with its process


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, b"old")
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(WhorlError, match=r"cannot write .*x.json: Input/output error"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_a_dying_process_left_behind_is_cleared_and_its_half_line_is_no_row(texts, tmp_path):
    config = tiny(texts)
    folder = tmp_path / "runs" / config.id
    folder.mkdir(parents=True)
    (folder / ".checkpoint.safetensors-abc").write_bytes(b"half")
    (folder / ".tmpzufm86").write_bytes(b"half")  # as safetensors calls what it writes
    row = {"step": 1, "stage": 0, "tokens": 64, "loss": 1.0, "accuracy": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + '\n{"step": 2, "lo')
    assert [row["step"] for row in read_metrics(folder)] == [1]
    run_one(config, folder)
    assert not list(folder.glob(".*"))
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4, 5, 6]


# -- where it is kept -------------------------------------------------------------------------------------------------


def test_a_place_that_cannot_hold_runs_is_an_error_before_anything_is_written(texts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WhorlError, match="is a file, and runs are kept in a folder"):
            plan(["rope"], out=out, corpus=str(texts), train_length=16, lengths=[8])
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WhorlError, match="a link that leads nowhere"):
        check_output(tmp_path / "link", 0)
    monkeypatch.setattr(storage.os, "access", lambda path, mode: False)
    with pytest.raises(WhorlError, match="cannot write to"):
        plan(["rope"], out=tmp_path / "new", corpus=str(texts), train_length=16, lengths=[8])
    monkeypatch.undo()
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_a_read_only_mount_is_an_error(tmp_path, monkeypatch):
    class Mount:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(storage.os, "statvfs", lambda path: Mount)
    with pytest.raises(WhorlError, match="cannot write to"):
        check_output(tmp_path, 0)


def test_too_little_space_is_an_error_that_says_how_much(texts, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    with pytest.raises(WhorlError, match=r"has 1 MiB free and the runs need about \d+"):
        plan(["rope", "alibi"], out=tmp_path / "new", corpus=str(texts), train_length=16, lengths=[8])
    assert not (tmp_path / "new").exists()


def test_the_estimate_covers_what_a_run_takes(texts, tmp_path):
    config = tiny(texts, layers=2, width=64)
    run_one(config, tmp_path, save_seconds=0.0)
    taken = sum(path.stat().st_size for path in tmp_path.glob("*") if path.is_file())
    assert taken < space_needed(config) < 2**24


# -- killed at any moment ---------------------------------------------------------------------------------------------

SWEEP = """
import sys, torch
torch.set_num_threads(1)
from whorl.lab.sweep import sweep
log = open(sys.argv[4], "a", buffering=1)
def tell(config, event):
    if event["kind"] == "train":
        log.write(f"{config.id} {event['step']}\\n")
sweep(sys.argv[1], sys.argv[2], workers=int(sys.argv[3]), tell=tell, save_seconds=0.0)
"""


@pytest.fixture
def grid(texts, tmp_path) -> Path:
    file = tmp_path / "grid.toml"
    file.write_text(
        f'encodings = ["rope", "alibi"]\nseeds = 2\n[run]\ncorpus = "{texts}"\ntrain_length = 16\nsteps = 40\n'
        "batch = 4\nlengths = [8, 16, 32]\nlayers = 1\nwidth = 16\nheads = 2\neval_bytes = 256\n"
    )
    return file


def finished(out: Path) -> dict[str, tuple[int, dict]]:
    paths = out.glob("runs/*/result.json")
    return {path.parent.name: (path.stat().st_mtime_ns, json.loads(path.read_text())) for path in paths}


def stamps(out: Path, name: str) -> dict[str, int]:
    """When each file of that name was last written."""
    found = {}
    for path in out.glob(f"runs/*/{name}"):
        with contextlib.suppress(FileNotFoundError):
            found[str(path)] = path.stat().st_mtime_ns
    return found


def saved_steps(out: Path) -> dict[str, int]:
    """The step that the checkpoint of each unfinished run stands at."""
    folders = [path.parent for path in out.glob("runs/*/checkpoint.safetensors")]
    return {
        folder.name: storage.read_checkpoint(folder).step for folder in folders if not (folder / "result.json").exists()
    }


def first_steps(log: Path) -> dict[str, int]:
    """The first step that a sweep trained of each run."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return {name: int(step) for name, step in reversed(lines)}


@pytest.mark.slow
def test_killing_a_sweep_loses_nothing_and_repeats_nothing(grid, tmp_path):
    """kill -9 at random moments: finished runs stay as they are, the others resume, and all end as if undisturbed."""

    def life(workers: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", SWEEP, str(grid), str(tmp_path / "killed"), str(workers), str(log)]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check_resumed() -> None:
        begun = first_steps(log)
        assert begun == {name: stood.get(name, 0) + 1 for name in begun}, "a run did not go on where it was saved"
        resumed.update(name for name, step in begun.items() if step > 1)
        log.unlink(missing_ok=True)

    sweep(grid, tmp_path / "whole", workers=1)
    whole = finished(tmp_path / "whole")
    assert len(whole) == 4
    draw = random.Random(0)
    seen: dict[str, tuple[int, dict]] = {}
    resumed: set[str] = set()
    log, stood = tmp_path / "log", {}
    for kill in range(KILLS):
        watched = ("checkpoint.safetensors", "[!.]*")[kill % 2]  # imports take most of a short life
        before = stamps(tmp_path / "killed", watched)
        stood = saved_steps(tmp_path / "killed")
        process = life(1 + (kill % 4 == 1))
        while stamps(tmp_path / "killed", watched) == before and process.poll() is None:
            time.sleep(0.01)
        if kill:  # the first at once: soon after a checkpoint, a run is in the middle
            time.sleep(draw.uniform(0.0, (0.2, 0.8)[kill % 2]))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = finished(tmp_path / "killed")
        assert {key: now[key] for key in seen} == seen, "a finished run was touched"
        seen = now
        for folder in (tmp_path / "killed").glob("runs/*"):
            with locked(folder, wait=True):  # no worker outlives its sweep
                pass
        check_resumed()
    stood = saved_steps(tmp_path / "killed")
    assert life(1).wait(timeout=120) == 0
    check_resumed()
    ended = finished(tmp_path / "killed")
    assert {key: ended[key] for key in seen} == seen
    assert {key: lasting(result) for key, (_, result) in ended.items()} == {
        key: lasting(result) for key, (_, result) in whole.items()
    }
    assert resumed
    names = {path.name for path in (tmp_path / "killed").glob("runs/*/*")}
    assert not any(name.startswith(".") for name in names)
