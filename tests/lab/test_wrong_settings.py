"""Settings that make no run: one line that names the remedy, before anything is trained or written."""

from __future__ import annotations

import pytest
import torch

from lab_runs import write_texts
from whorl.cli.app import run
from whorl.errors import WhorlError
from whorl.lab import compare, sweep
from whorl.lab.plan import plan

SMALL = {
    "train_length": 16, "steps": 3, "batch": 4, "lengths": [8, 16], "layers": 1, "width": 16, "heads": 2,
    "eval_bytes": 256,
}  # fmt: skip
WORDS = ["--train-length=16", "--steps=3", "--lengths=8,16", "--workers=1"]
SETS = ["--set=batch=4", "--set=layers=1", "--set=width=16", "--set=heads=2", "--set=eval_bytes=256"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train_length": 0}, "each positive, got [0, 4, 3]"),
        ({"steps": 0}, "each positive, got [16, 4, 0]"),
        ({"batch": 0}, "each positive, got [16, 0, 3]"),
        ({"corpus": ""}, "corpus must be a name, a file or a folder, got ''"),
        ({"corpus": 3}, "corpus must be a name, a file or a folder, got 3"),
        ({"lengths": []}, "lengths must be at least one"),
        ({"lengths": 16}, "lengths must be a list of integers, got 16"),
        ({"seeds": []}, "seeds must be how many, or a list of them"),
        ({"seeds": "ab"}, "seeds must be how many, or a list of them"),
        ({"seeds": 1.5}, "seeds must be how many, or a list of them"),
        ({"repairs": "ntk"}, "repairs must be a list of names, got 'ntk'"),
        ({"repairs": [3]}, "repairs must be a list of names, got [3]"),
        ({"encoding": "alibi"}, "encoding is no setting of its own. It comes from the encodings that are named"),
        ({"seed": 3}, "seed is no setting of its own. It comes from seeds"),
        ({"corpus_digest": "abc"}, "corpus_digest is no setting of its own"),
        ({"names": [3]}, "an encoding must be a name, or a dict with one under 'name', got 3"),
        ({"names": [{"base": 3}]}, "an encoding must be a name, or a dict with one under 'name'"),
        ({"names": [{"name": "combined", "parts": [{"base": 3}]}]}, "an encoding must be a name, or a dict"),
        ({"names": [{"name": "combined"}]}, "Combined: encodings must be at least 2, got 0"),
        ({"names": ["rope+rope"]}, "both use transform_qk"),
        ({"workers": 0}, "workers must be a positive integer, got 0"),
        ({"workers": 0, "on": "ray"}, "workers must be a positive integer, got 0"),
        ({"fine_tune_steps": 2, "train_length": 600, "batch": 4}, "less than one batch of 2 rows of 2401"),
    ],
)
def test_what_makes_no_run_is_an_error_before_anything_is_written(tmp_path, change, said):
    few = write_texts(tmp_path / "texts", files=4, size=1300)
    settings = {"names": ["rope"], "corpus": str(few), "workers": 1, **SMALL, **change}
    with pytest.raises(WhorlError) as error:
        compare(out=tmp_path / "out", **settings)
    assert said in str(error.value) and not (tmp_path / "out").exists()


def test_a_device_that_is_not_there_is_found_before_the_text_is_packed(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wanted = {**SMALL, "corpus": str(texts), "out": tmp_path / "out", "device": "cuda"}
    with pytest.raises(WhorlError, match=r"no CUDA device\. Use --set device=cpu"):
        compare(["rope"], **wanted)
    assert not (tmp_path / "out").exists()
    (config,) = plan(["rope"], on="ray", **wanted)  # a cluster may have one
    assert config.device == "cuda"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "steps=3"], "{command}: steps has an option of its own. Use --steps."),
        (["--set", "train_length=3"], "{command}: train_length has an option of its own. Use --train-length."),
        (["--set", "corpus=3"], "{command}: corpus has an option of its own. Use --corpus."),
        (["--set", "seed=3"], "{command}: seed is no setting of its own. It comes from seeds."),
        (["--set", "encoding=alibi"], "{command}: encoding is no setting of its own."),
        (["--set", "tell=3"], "{command}: unknown setting 'tell'."),
        (["--set", "out=x"], "{command}: unknown setting 'out'."),
        (["--set", "preset_name=demo"], "{command}: unknown setting 'preset_name'."),
        (["--steps", "0"], "each positive, got [16, 4, 0]"),
        (["--lengths", ","], "{command}: --lengths must be positive numbers"),
        (["--corpus", ""], "corpus must be a name, a file or a folder, got ''"),
        (["--out", "a" * 300], "File name too long. Choose another --out."),
    ],
)
@pytest.mark.parametrize("command", ["compare", "lab run"])
def test_wrong_words_end_with_status_2_and_one_line(texts, tmp_path, monkeypatch, capsys, command, words, said):
    monkeypatch.chdir(tmp_path)
    usual = [word for word in WORDS if command == "compare" or not word.startswith("--workers")]
    code = run([*command.split(), "rope", "--corpus", str(texts), *usual, *SETS, "--out", "out", *words])
    err = capsys.readouterr().err
    assert code == 2 and said.format(command=command) in err and len(err.splitlines()) == 1, err
    assert not list(tmp_path.iterdir())


SHARED = "steps = 3\nbatch = 4\nlengths = [8, 16]\nlayers = 1\nheads = 2\neval_bytes = 256\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid = 3\n", "grid must be a table of settings, got 3. Begin it with [grid]."),
        ("run = 3\n", "run must be a table of settings, got 3. Begin it with [run]."),
        ("title = 3\n", "title must be a text, got 3"),
        ("[run]\nout = 'x'\n", "unknown setting 'out'"),
        ("[run]\nseeds = 3\n", "seeds are no part of [run]. Write them above it."),
        ("[run]\nseed = 3\n", "seed is no setting of its own. It comes from seeds."),
        ("[run]\nbase = 3\n", "unknown setting 'base'"),
        ("[grid]\nseed = [1, 2]\n", "seed is no setting of its own"),
        ("[grid]\nnames = [1, 2]\n", "unknown setting 'names'"),
        ("[run]\nstages = 16\n", "stages must be a list"),
        ("[run]\nstages = [16, 4, 5]\n", "stages[0] must be a list of integers, got 16"),
        (f"[grid]\ntrain_length = [8, 16]\n[run]\nwidth = 16\n{SHARED}", "runs trained at 8, 16 are not one compar"),
        (f"[grid]\nwidth = [16, 15]\n[run]\ntrain_length = 16\n{SHARED}", "width must be a multiple of heads=2"),
    ],
)
def test_a_wrong_file_is_an_error_before_anything_is_written(texts, tmp_path, text, said):
    named = text.replace("[run]\n", f'[run]\ncorpus = "{texts}"\n')
    (tmp_path / "grid.toml").write_text(f'encodings = ["rope"]\n{named}')
    with pytest.raises(WhorlError) as error:
        sweep(tmp_path / "grid.toml", tmp_path / "out", workers=1)
    assert said in str(error.value) and not (tmp_path / "out").exists()


def test_a_file_that_is_no_text_is_no_grid(tmp_path):
    (tmp_path / "grid.toml").write_bytes(b'encodings = ["r\xffpe"]')
    with pytest.raises(WhorlError, match="is no TOML"):
        sweep(tmp_path / "grid.toml", tmp_path / "out")


def test_a_grid_over_texts_reads_each(texts, tmp_path):
    other = write_texts(tmp_path / "other", seed=1)
    (tmp_path / "grid.toml").write_text(
        f'encodings = ["rope"]\n[grid]\ncorpus = ["{texts}", "{other}"]\n[run]\ntrain_length = 16\nwidth = 16\n{SHARED}'
    )
    found = sweep(tmp_path / "grid.toml", tmp_path / "out", workers=1)
    assert found.failed == {} and len(found.data["rows"]) == 2
    assert len(list((tmp_path / "out" / "corpus").iterdir())) == 2


def test_an_encoding_of_several_axes_runs_on_text(texts, tmp_path):
    found = compare(["axial_rope"], corpus=str(texts), out=tmp_path, workers=1, **SMALL)
    assert found.failed == {} and (found.table()["axial_rope"][16] or 0) > 3
    assert "window_baseline" not in found.data["rows"][0]  # a window reads one axis
