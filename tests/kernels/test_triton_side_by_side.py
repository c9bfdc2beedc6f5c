"""Kernels of one call: in their order, and compiled before any of them runs where several are new."""

import pytest

pytest.importorskip("triton")

from whorl.kernels import triton_side_by_side
from whorl.kernels.triton_side_by_side import run_all


class Kernel:
    """Notes what is done with it."""

    def __init__(self, name, notes, *, new):
        self.name, self.notes, self.new = name, notes, new

    def is_new(self):
        return self.new

    def compile(self):
        self.notes.append(f"compile {self.name}")

    def __call__(self):
        self.notes.append(f"run {self.name}")


@pytest.fixture
def on_a_device(monkeypatch):
    monkeypatch.setattr(triton_side_by_side, "interpreted", lambda: False)


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize(
    ("new", "compiled"),
    [((True, False, True), ["compile a", "compile c"]), ((False, True, False), []), ((False, False, False), [])],
)
def test_several_new_ones_are_compiled_first(new, compiled):
    notes = []
    run_all([Kernel(name, notes, new=each) for name, each in zip("abc", new, strict=True)])
    assert notes == [*compiled, "run a", "run b", "run c"]


@pytest.mark.usefixtures("on_a_device")
def test_what_does_not_compile_is_said_and_nothing_runs():
    notes = []

    class Broken(Kernel):
        def compile(self):
            raise ValueError("no such instruction")

    with pytest.raises(ValueError, match="no such instruction"):
        run_all([Kernel("a", notes, new=True), Broken("b", notes, new=True)])
    assert notes == ["compile a"]


def test_the_interpreter_compiles_nothing(monkeypatch):
    monkeypatch.setattr(triton_side_by_side, "interpreted", lambda: True)
    notes = []
    run_all([Kernel(name, notes, new=True) for name in "ab"])
    assert notes == ["run a", "run b"]
