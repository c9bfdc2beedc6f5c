"""Writing pictures: whole or not at all, the same bytes each time."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("matplotlib")
from matplotlib import pyplot
from matplotlib.figure import Figure

import whorl
import whorl.plot

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


@pytest.mark.parametrize("suffix", STARTS)
def test_the_same_picture_is_the_same_bytes_and_has_no_date(suffix, tmp_path):
    written = []
    for number in (0, 1):
        ax = whorl.plot.similarity(length=8) if suffix == ".png" else whorl.plot.decay(length=8)
        path = whorl.plot.save(ax, tmp_path / f"{number}{suffix}")
        written.append(path.read_bytes())
        pyplot.close(ax.figure)
    assert written[0] == written[1] and written[0].startswith(STARTS[suffix])
    assert not any(word in written[0] for word in (b"CreationDate", b"dc:date", b"Matplotlib v"))


def test_saving_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "decay.SVG"
    path.write_text("old")
    assert whorl.plot.save(whorl.plot.decay(length=8), str(path)) == path
    assert path.read_bytes().startswith(STARTS[".svg"]) and os.listdir(tmp_path) == ["decay.SVG"]


def test_dots_per_inch_are_those_asked_for(tmp_path):
    ax = whorl.plot.decay(length=8)
    width = {dpi: pyplot.imread(whorl.plot.save(ax, tmp_path / "a.png", dpi=dpi)).shape[1] for dpi in (50, 100)}
    assert width[100] == pytest.approx(2 * width[50], abs=1)
    with pytest.raises(whorl.WhorlError, match="save: dpi must be between 1 and 2400, got 0"):
        whorl.plot.save(ax, tmp_path / "a.png", dpi=0)


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch):
    ax, path = whorl.plot.decay(length=8), tmp_path / "decay.png"
    path.write_bytes(b"old")

    def broken(self, name, **_):
        name.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(whorl.WhorlError, match=r"save: cannot write .*decay\.png: No space left on device"):
        whorl.plot.save(ax, path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["decay.png"]
