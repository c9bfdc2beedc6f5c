"""Damaged folders and disks that are full: one line that says what to do, and nothing that was saved is lost."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from lab_runs import lasting, tiny
from whorl.cli.app import run
from whorl.errors import WhorlError
from whorl.lab import compare, load, run_one
from whorl.lab.corpus import open_corpus, packed_facts, read_corpus
from whorl.lab.storage import check_output, locked, read_checkpoint, read_metrics, write_atomic

SMALL = {
    "train_length": 16, "steps": 3, "batch": 4, "lengths": [8, 16], "layers": 1, "width": 16, "heads": 2,
    "eval_bytes": 256, "workers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory) -> Path:
    """A folder with two finished runs."""
    out = tmp_path_factory.mktemp("made")
    compare(["rope", "alibi"], corpus=str(texts), out=out, **SMALL)
    return out


@pytest.fixture
def lab(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "lab")


def first_run(lab: Path) -> Path:
    return min((lab / "runs").iterdir())


# -- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b'{"schema": "whorl-lab-res', b"\xff\xfe\xff", b"{}", b"[]"])
def test_a_damaged_result_is_found_before_anything_is_made(texts, lab, capsys, data):
    path = first_run(lab) / "result.json"
    path.write_bytes(data)
    heard = []
    with pytest.raises(WhorlError, match=r"result\.json is (damaged|no result of a run).*Delete it, and repeat"):
        compare(
            ["rope", "alibi", "none"],
            corpus=str(texts),
            out=lab,
            tell=lambda config, event: heard.append(event["kind"]),
            **SMALL,
        )
    assert heard == [] and len(list((lab / "runs").iterdir())) == 2
    assert run(["lab", "report", str(lab)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    path.unlink()  # which is what the message says to do
    assert compare(["rope", "alibi"], corpus=str(texts), out=lab, **SMALL).failed == {}


@pytest.mark.parametrize("data", [b'{"name": "ru', b"\xff", b"{}", b"[3]", b"3"])
def test_a_damaged_config_is_named(texts, lab, data):
    folder = first_run(lab)
    (folder / "result.json").unlink()
    (folder / "config.json").write_bytes(data)
    found = compare(["rope", "alibi"], corpus=str(texts), out=lab, **SMALL)
    (message,) = found.failed.values()
    assert "config.json is " in message and message.endswith("Delete it, and repeat the command that made it.")
    with pytest.raises(WhorlError, match=r"config\.json is "):
        load(folder)


@pytest.mark.parametrize("size", [0, 3, 1000])
def test_a_truncated_checkpoint_is_named(texts, lab, size):
    folder = first_run(lab)
    whole = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "result.json").unlink()
    for data in (whole[:size], whole[:-1]):
        (folder / "checkpoint.safetensors").write_bytes(data)
        with pytest.raises(WhorlError, match=r"checkpoint\.safetensors is damaged: .* Delete it, and the run begins"):
            load(folder)
    found = compare(["rope", "alibi"], corpus=str(texts), out=lab, **SMALL)
    assert "checkpoint.safetensors is damaged" in next(iter(found.failed.values()))
    (folder / "checkpoint.safetensors").unlink()
    assert compare(["rope", "alibi"], corpus=str(texts), out=lab, **SMALL).failed == {}


def test_a_safetensors_file_that_is_no_checkpoint_is_named(lab):
    import torch
    from safetensors.torch import save_file

    folder = first_run(lab)
    save_file({"model.x": torch.zeros(1)}, folder / "checkpoint.safetensors")
    with pytest.raises(WhorlError, match="is damaged"):
        read_checkpoint(folder)


def test_bytes_that_are_no_text_end_the_rows(lab):
    path = first_run(lab) / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\xfe{")
    assert [row["step"] for row in read_metrics(path.parent)] == [1, 2, 3]


def test_a_damaged_text_is_named_and_read_anew_once_it_is_gone(texts, tmp_path):
    digest = open_corpus(str(texts), tmp_path).digest
    home = tmp_path / digest
    whole = {path.name: path.read_bytes() for path in home.iterdir()}
    for name in whole:
        (home / name).write_bytes(whole[name][:-9])
        with pytest.raises(WhorlError, match=rf"the text in .*{digest} is damaged\. Delete it"):
            open_corpus(str(texts), tmp_path, digest)
        (home / name).write_bytes(whole[name])
    shutil.rmtree(home)
    assert (open_corpus(str(texts), tmp_path, digest).train == read_corpus(str(texts)).train).all()


def test_the_facts_of_a_text_are_known_without_the_text(texts, tmp_path):
    """So that a report is written of a folder that was moved without it."""
    corpus = open_corpus(str(texts), tmp_path)
    facts = corpus.facts()
    (tmp_path / corpus.digest / "train.bin").unlink()
    assert packed_facts(str(texts), tmp_path, corpus.digest) == facts
    with pytest.raises(WhorlError, match=rf"the text in .*{corpus.digest} is damaged\. Delete it"):
        open_corpus(str(texts), tmp_path, corpus.digest)


# -- what cannot be written -------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_in_mid_run_leaves_the_last_checkpoint(texts, tmp_path):
    """Files that may grow no further stand for it: the system itself refuses, as it does where no space is left."""
    config = tiny(texts)
    undisturbed = run_one(config, tmp_path / "whole")
    folder = tmp_path / "run"
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        if event["kind"] == "train" and event["step"] == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, usual[1]))  # enough for the metrics

    try:
        with pytest.raises(WhorlError) as error:
            run_one(config, folder, tell=fill, save_seconds=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    said = str(error.value)
    assert f"cannot write {folder / 'checkpoint.safetensors'}: " in said and "File too large" in said
    assert "What was saved before it is whole" in said and "the same command goes on" in said
    assert read_checkpoint(folder).step == 3 and not list(folder.glob(".*"))
    steps = []
    again = run_one(config, folder, tell=lambda event: steps.append(event["step"]) if "step" in event else None)
    assert steps[0] == 4 and lasting(again) == lasting(undisturbed)


def test_metrics_that_cannot_be_written_end_a_run_with_the_reason(texts, tmp_path):
    config = tiny(texts)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        if event["kind"] == "train" and event["step"] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, usual[1]))

    try:
        with pytest.raises(WhorlError, match=r"cannot write .*metrics\.jsonl.*: File too large\. The last checkpoint"):
            run_one(config, tmp_path / "run", tell=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert run_one(config, tmp_path / "run")["steps"] == 6


def test_a_file_in_the_place_of_a_folder_is_an_error(texts, tmp_path):
    for name in ("runs", "corpus"):
        out = tmp_path / name
        out.mkdir()
        (out / name).write_text("mine")
        with pytest.raises(WhorlError, match=f"{name} is a file, and runs are kept in a folder"):
            compare(["rope"], corpus=str(texts), out=out, **SMALL)
        assert [path.name for path in out.iterdir()] == [name]
    with pytest.raises(WhorlError, match="cannot write to"), locked(tmp_path / "runs" / "runs" / "x"):
        pass
    with pytest.raises(WhorlError, match=r"cannot write .*: Not a directory"):
        write_atomic(tmp_path / "runs" / "runs" / "x.json", b"")


def test_a_name_that_is_too_long_is_an_error(texts, tmp_path):
    with pytest.raises(WhorlError, match=r"File name too long\. Choose another --out"):
        check_output(tmp_path / ("a" * 300), 0)
    with pytest.raises(WhorlError, match="no corpus at "):
        read_corpus("a" * 300)
