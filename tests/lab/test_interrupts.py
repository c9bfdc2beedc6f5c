"""Ctrl-C: what was trained is saved and gone on with, bit for bit, here and in workers; a second time it just stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab_runs import lasting, tiny
from whorl.lab import run_one
from whorl.lab.batches import TextBatches
from whorl.lab.interrupts import heard_later
from whorl.lab.storage import read_checkpoint, read_metrics

WORDS = [
    "--train-length", "16", "--steps", "2000", "--lengths", "8,16", "--set", "layers=1", "--set", "width=16",
    "--set", "heads=2", "--set", "batch=4", "--set", "eval_bytes=256",
]  # fmt: skip


@pytest.fixture(autouse=True)
def heard():
    """Interrupts reach this process and those it starts, even where the shell has its jobs ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_heard_later_and_the_second_time_at_once():
    with heard_later() as asked:
        assert not asked()
        press()
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            press()
    with pytest.raises(KeyboardInterrupt):
        press()


def test_elsewhere_than_in_the_main_thread_and_where_a_program_has_its_own_handler_nothing_changes():
    heard = []

    def elsewhere():
        with heard_later() as asked:
            heard.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard == [(False, signal.default_int_handler)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heard_later() as asked:
            press()
            assert not asked() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def undisturbed(texts, tmp_path_factory):
    """A run that nobody interrupts: its config, result and folder."""
    config, folder = tiny(texts, steps=300, lengths=(16,), eval_bytes=64), tmp_path_factory.mktemp("whole")
    return config, run_one(config, folder), folder


@pytest.mark.parametrize("stopped", [6, 7])  # of 300 updates every third ends a row
def test_a_run_that_is_interrupted_saves_where_it_stands_and_goes_on_bit_for_bit(
    undisturbed, tmp_path, monkeypatch, stopped
):
    config, whole, folder = undisturbed
    real = TextBatches.__call__

    def at(self, step):
        if step == stopped - 1:
            press()
        return real(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(TextBatches, "__call__", at)
        with pytest.raises(KeyboardInterrupt):
            run_one(config, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "result.json").exists()
    saved = read_checkpoint(tmp_path / "stopped")
    assert saved.step == stopped and len(saved.pending) == stopped % 3
    assert [row["step"] for row in read_metrics(tmp_path / "stopped")] == [3, 6]
    again = run_one(config, tmp_path / "stopped")
    assert lasting(again) == lasting(whole)
    assert lasting(read_metrics(tmp_path / "stopped")) == lasting(read_metrics(folder))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.large), "2"])
def test_an_interrupted_comparison_says_how_to_go_on_and_every_run_is_saved(texts, tmp_path, workers):
    words = ["compare", "rope", "alibi", "--corpus", str(texts), "--out", "out", "--workers", workers, *WORDS]
    code = "import sys; from whorl.cli.app import run; sys.exit(run(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    begun = lambda: [path for path in Path(tmp_path).glob("out/runs/*/metrics.jsonl") if path.stat().st_size]  # noqa: E731
    until = time.monotonic() + 120
    while len(begun()) < int(workers) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130, said
    assert "stopped. What was done is saved in out; the same command goes on from there: whorl" in said.splitlines()[-1]
    folders = [path.parent for path in begun()]
    assert len(folders) == int(workers)
    for folder in folders:
        steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert read_checkpoint(folder).step >= steps[-1]
