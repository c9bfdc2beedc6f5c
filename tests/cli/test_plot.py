"""``whorl plot``: every kind is written, and misuse is told."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib import pyplot

import whorl
import whorl.plot
from plot.picture_cases import CASES, comparison
from whorl.cli import plot as command
from whorl.cli.app import run


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


@pytest.fixture
def call(capsys):
    """Runs a command in this process: (exit status, stdout, stderr)."""

    def call(*arguments) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def closed():
    """No figure is open, whatever other tests left."""
    pyplot.close("all")


@pytest.mark.parametrize("kind", command.KINDS)
def test_every_kind_is_written(kind, call, tmp_path):
    what = []
    if kind == "losses":
        what = [tmp_path / "comparison.json"]
        what[0].write_text(json.dumps(comparison()))
    out = tmp_path / f"{kind}.svg"
    code, said, noted = call("plot", kind, *what, "-o", out)
    assert code == 0 and said == "" and noted.endswith(f"written to {out}\n")
    root = ElementTree.fromstring(out.read_text())
    assert root.tag.endswith("svg") and len(list(root.iter())) > 50
    assert pyplot.get_fignums() == []


def test_the_command_knows_the_kinds_of_the_package():
    assert list(command.KINDS) == list(whorl.plot.KINDS)
    assert set(whorl.plot.KINDS) <= set(CASES)


def drawn(monkeypatch, kind, *arguments):
    """What the command hands to the function that draws, and with which options."""
    seen = {}

    def draw(what, **options):
        seen.update(what=what, options=options)
        return pyplot.subplots()[1]

    monkeypatch.setitem(whorl.plot.__dict__, kind, draw)
    assert run(["plot", kind, *arguments]) == 0
    return seen["what"], seen["options"]


def test_encodings_are_built_with_their_own_settings_and_the_kinds_size(monkeypatch, tmp_path):
    out = ["-o", str(tmp_path / "out.png")]
    two, options = drawn(monkeypatch, "decay", "rope", "rope:base=500,head_dim=64", *out)
    assert [(one.config.head_dim, one.config.base) for one in two] == [(128, 1e4), (64, 500.0)] and options == {}
    (one,), options = drawn(monkeypatch, "decay", "rope", "--dim", "32", "--length", "99", *out)
    assert one.config.head_dim == 32 and options == {"length": 99}
    (one,), _ = drawn(monkeypatch, "scaling", "yarn:factor=8,beta_fast=16,base=500", *out)
    assert (one.config.base, one.config.scaling.factor, one.config.scaling.beta_fast) == (500.0, 8.0, 16.0)
    one, options = drawn(monkeypatch, "positions", "sinusoidal", "--method", "tsne", *out)
    assert one.config.width == 64 and options == {"method": "tsne"}
    one, options = drawn(monkeypatch, "context", "rope", "--trained", "512", *out)
    assert one.config.scaling is None and options == {"trained": 512}
    torch.manual_seed(1)
    three, _ = drawn(monkeypatch, "bias", *out)
    torch.manual_seed(2)
    again, _ = drawn(monkeypatch, "bias", *out)
    assert [one.config.name for one in three] == ["alibi", "t5", "kerple"]
    assert three[1].table.equal(again[1].table), "learned numbers come from one seed"


def test_what_training_sets_is_said_to_be_untrained(monkeypatch, tmp_path, capsys):
    out = ["-o", str(tmp_path / "b.png")]
    drawn(monkeypatch, "bias", *out)
    assert "drawn as initialised, not trained: t5, kerple." in capsys.readouterr().err
    drawn(monkeypatch, "bias", "alibi", *out)
    assert "initialised" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("deccay -o OUT/x.png", "plot: unknown kind 'deccay'. Did you mean 'decay'?"),
        ("decay -o OUT/x.jpg", "plot: the file's suffix must be one of .png, .svg, .pdf, got '.jpg'."),
        ("decay -o OUT/x", "plot: the file's suffix must be one of .png, .svg, .pdf, got "),
        ("decay -o OUT/no/x.png", "plot: there is no folder OUT/no. Make it first."),
        ("decay -o OUT/x.png --method pca", "plot: --method would be ignored by decay. Leave it out."),
        ("decay rop -o OUT/x.png", "unknown encoding or scaling 'rop'. Did you mean 'rope'?"),
        ("decay rope:bse=3 -o OUT/x.png", "Rope: unknown setting 'bse'. Did you mean 'base'?"),
        ("decay rope:base -o OUT/x.png", "plot: --set must be key=value, got 'base'."),
        ("decay rope:head_dim=8 --dim 4 -o OUT/x.png", "plot: --dim and rope:head_dim=8 both say it. Leave one out."),
        ("clocks rope xpos -o OUT/x.png", "plot: clocks draws one encoding, got rope, xpos. Leave all but one out."),
        ("waves rope -o OUT/x.png", "codes_of: rope adds no code to the input."),
        ("losses -o OUT/x.png", "plot losses: WHAT must be one comparison.json, as whorl compare writes it, got []."),
        ("losses a.json --dim 4 -o OUT/x.png", "plot: --dim would be ignored by losses. Leave it out."),
        ("losses OUT/a.json -o OUT/x.png", "read_comparison: cannot read OUT/a.json: No such file or directory."),
    ],
)
def test_misuse_is_told_and_nothing_is_written(arguments, message, call, tmp_path):
    code, out, err = call("plot", *arguments.replace("OUT", str(tmp_path)).split())
    assert code == 2 and out == "" and err.startswith(message.replace("OUT", str(tmp_path)))
    assert os.listdir(tmp_path) == []


def test_without_a_file_the_command_is_misused(call):
    code, _, err = call("plot", "decay")
    assert code == 2 and "--out" in err


def test_without_matplotlib_the_command_names_what_to_install(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = call("plot", "decay", "-o", tmp_path / "x.png")
    assert (code, out) == (2, "") and err == 'plot: matplotlib is not installed. Run: pip install "whorl[plot]"\n'
