"""Sweeps: grids from a file, runs side by side in processes, and what happens when one of them fails."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from lab_runs import lasting, tiny
from whorl import registry
from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding
from whorl.errors import WhorlError
from whorl.lab import run_many as many
from whorl.lab import run_one, sweep
from whorl.lab.run_many import run_many
from whorl.lab.storage import BusyError, locked
from whorl.lab.sweep import combinations, read_grid

RUN = "train_length = 16\nsteps = 3\nbatch = 4\nlengths = [8, 16, 32]\nlayers = 1\nheads = 2\neval_bytes = 256\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_grid_is_every_choice_for_every_encoding_and_seed(texts, tmp_path):
    file = write(
        tmp_path / "grid.toml",
        'title = "bases"\nencodings = ["rope", {name = "t5", max_distance = 8}]\nseeds = [3, 4]\n'
        f'[grid]\nbase = [1e2, 1e4]\nwidth = [16, 32]\n[run]\ncorpus = "{texts}"\nwarmup = 1\n{RUN}',
    )
    heard = []
    found = sweep(file, tmp_path / "out", workers=1, tell=lambda config, event: heard.append((config, event["kind"])))
    ran = {(c.encoding["name"], c.encoding.get("base"), c.width, c.seed) for c, kind in heard if kind == "done"}
    assert ran == {
        *(("rope", base, width, seed) for base in (1e2, 1e4) for width in (16, 32) for seed in (3, 4)),
        *(("t5", None, width, seed) for width in (16, 32) for seed in (3, 4)),  # a base is nothing to it
    }
    assert len([kind for _, kind in heard if kind == "planned"]) == 12
    labels = {row["label"] for row in found.data["rows"]}
    assert labels == {
        *(f"rope{base} width={width}" for base in ("", " base=100") for width in (16, 32)),
        *(f"t5 width={width}" for width in (16, 32)),
    }
    assert found.data["title"] == "bases" and found.data["interval"] == "seeds"
    assert all(row["seeds"] == [3, 4] for row in found.data["rows"])
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == found.data
    again = sweep(file, tmp_path / "out", workers=1, tell=lambda config, event: heard.append((config, event)))
    assert {event["finished"] for _, event in heard if isinstance(event, dict)} == {True}
    assert lasting(again.data["rows"]) == lasting(found.data["rows"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("encodings = [", "is no TOML"),
        ("[run]\ntrain_length = 16\n", "lists no encodings"),
        ('encodings = ["rope"]\nseed = 3\n', "unknown key 'seed'. Did you mean 'seeds'?"),
        ('encodings = ["rope"]\n[grid]\nwidth = 16\n', "grid.width must be a list of values, got 16"),
        ('encodings = ["rope"]\n[grid]\nwidth = []\n', "grid.width must be a list of values"),
        (
            'encodings = ["alibi", "rope+t5"]\n[grid]\nbase = [1e4]\n',
            "no encoding here takes grid.base. List rope, say",
        ),
    ],
)
def test_a_wrong_file_is_an_error_before_anything_is_made(tmp_path, text, said):
    with pytest.raises(WhorlError) as error:
        sweep(write(tmp_path / "grid.toml", text), tmp_path / "out")
    assert said in str(error.value) and not (tmp_path / "out").exists()


def test_a_setting_that_does_not_exist_and_a_file_that_does_not(texts, tmp_path):
    text = f'encodings = ["rope"]\n[run]\nwdth = 16\ncorpus = "{texts}"\n'
    with pytest.raises(WhorlError, match=r"unknown setting 'wdth'\. Did you mean 'width'"):
        sweep(write(tmp_path / "grid.toml", text), tmp_path / "out")
    with pytest.raises(WhorlError, match="cannot read"):
        read_grid(tmp_path / "none.toml")
    assert combinations({}) == [{}]


# -- carrying runs out ------------------------------------------------------------------------------------------------


def test_workers_side_by_side_give_what_one_process_gives(texts, tmp_path, monkeypatch):
    """Also with a worker that is killed in the middle of a run: another takes the run up."""
    configs = [tiny(texts, name, steps=30, seed=seed) for name in ("rope", "alibi") for seed in (0, 1)]
    alone, failed = run_many(configs, tmp_path / "alone", workers=1)
    assert failed == {} and [result.seed for result in alone] == [0, 1, 0, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    started, killed, events = [], [], []
    real = many._Workers._start

    def start(self, complaints):
        started.append(real(self, complaints))
        return started[-1]

    monkeypatch.setattr(many._Workers, "_start", start)

    def tell(config, event):
        events.append((config.id, event["kind"]))
        if event["kind"] == "train" and event["step"] > 8 and not killed:
            killed.append(started[0].pid)
            os.kill(started[0].pid, signal.SIGKILL)

    beside, failed = run_many(configs, tmp_path / "beside", workers=2, tell=tell, save_seconds=0.0)
    assert failed == {} and len(started) == 3
    assert lasting(beside) == lasting(alone)
    assert [kind for _, kind in events].count("done") == 4
    assert all(process.poll() is not None for process in started)


def test_a_run_that_fails_is_named_and_the_others_go_on(texts, tmp_path, monkeypatch):
    configs = [tiny(texts, name) for name in ("rope", "alibi")]

    def failing(config, *args, **options):
        if config.encoding["name"] == "rope":
            raise WhorlError("no good")
        return run_one(config, *args, **options)

    monkeypatch.setattr(many, "run_one", failing)
    heard = []
    results, failed = run_many(configs, tmp_path, workers=1, tell=lambda config, event: heard.append(event["kind"]))
    assert failed == {configs[0].id: "no good"} and [one.label for one in results] == ["alibi"]
    assert heard.count("failed") == 1


def test_a_worker_says_why_a_run_failed(texts, tmp_path):
    configs = [tiny(texts, "rope"), tiny(texts, "alibi")]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / configs[0].id).write_text("a file where a folder must be")
    worker = many._Workers(tmp_path, lambda config, event: None, 1, {})
    failed = worker.run(configs[:1], 1)
    assert list(failed) == [configs[0].id] and "cannot write to" in failed[configs[0].id]


def test_a_run_of_another_sweep_is_left_to_it_and_waited_for_at_the_end(texts, tmp_path, monkeypatch):
    configs = [tiny(texts, name) for name in ("rope", "alibi")]
    asked = []

    def busy(config, folder, *, wait, **options):
        asked.append((config.encoding["name"], wait))
        if config.encoding["name"] == "rope" and not wait:
            raise BusyError("busy")
        return run_one(config, folder, wait=wait, **options)

    monkeypatch.setattr(many, "run_one", busy)
    results, failed = run_many(configs, tmp_path, workers=1)
    assert asked == [("rope", False), ("alibi", False), ("rope", True)]
    assert failed == {} and [one.label for one in results] == ["rope", "alibi"]


def test_a_worker_leaves_a_run_of_another_process_to_it_and_waits_for_it_at_the_end(texts, tmp_path):
    configs, heard = [tiny(texts, name) for name in ("rope", "alibi")], []
    with ExitStack() as taken:
        taken.enter_context(locked(tmp_path / "runs" / configs[0].id))

        def tell(config, event):
            if event["kind"] == "done":
                heard.append(config.encoding["name"])
                taken.close()

        failed = many._Workers(tmp_path, tell, 1, {}).run(configs, 1)
    assert failed == {} and heard == ["alibi", "rope"]


@config
class QuietConfig(Config):
    name: ClassVar[str] = "quiet"


class Quiet(Encoding):
    """No position, under another name."""

    Config = QuietConfig

    @property
    def claims(self) -> Claims:
        return Claims(relative=True, norm_preserving=True, linear_attention=True, decays=False, extrapolates=False)


def test_an_encoding_known_to_this_process_alone_runs_in_it(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "ENCODINGS", dict(registry.ENCODINGS))
    registry.register(Quiet)
    monkeypatch.setattr(many._Workers, "run", lambda *_: pytest.fail("a worker does not know it"))
    results, _ = run_many([tiny(texts, "quiet"), tiny(texts, "quiet", seed=1)], tmp_path, workers=2)
    assert [one.label for one in results] == ["quiet", "quiet"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "mars"}, "unknown place to run 'mars'"),
        ({"lang": "la"}, "unknown lang 'la'"),
        ({"workers": 0}, "workers must be a positive integer, got 0"),
    ],
)
def test_a_place_a_language_or_a_count_that_makes_no_sense(texts, tmp_path, options, said):
    file = write(tmp_path / "grid.toml", f'encodings = ["rope"]\n[run]\ncorpus = "{texts}"\nwidth = 16\n{RUN}')
    with pytest.raises(WhorlError, match=said):
        sweep(file, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "runs").exists()


def test_what_carries_runs_out_elsewhere_is_named_by_what_is_missing(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(many.PLACES, "moon", "whorl.lab.on_the_moon:run")
    with pytest.raises(WhorlError, match="on='moon' cannot run here: No module named"):
        run_many([tiny(texts)], tmp_path, on="moon")
