"""tools/compare_commits.py: equal where nothing changed, and names what did."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("compare_commits", ROOT / "tools" / "compare_commits.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)


needs_git = pytest.mark.skipif(
    shutil.which("git") is None or git("rev-parse", "HEAD").returncode != 0, reason="this is no git checkout"
)


@pytest.fixture(autouse=True)
def no_machine_code(monkeypatch):
    """Rotations go by torch: copies of the sources find no code in numba's cache, and making it takes long."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A folder for all that a comparison makes on its way, of which nothing is left behind."""
    folder = tmp_path / "on the way"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert not list(folder.iterdir())
    assert str(folder) not in git("worktree", "list").stdout


def changed(folder: Path, **changes: tuple[str, str]) -> Path:
    """A copy of the sources in which a text of each of these files is another."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in changes.items():
        (path,) = folder.glob(f"src/whorl/**/{name}.py") if name != "__init__" else folder.glob(f"src/whorl/{name}.py")
        text = path.read_text()
        assert text.count(old) == 1, f"{path.name} is another by now: choose another text to change"
        path.write_text(text.replace(old, new))
    return folder


def found(values: bytes = b"", **results):
    """What a probe may have written down: texts, and one tensor of float32."""
    made = {}
    for name, value in results.items():
        one = {"kind": "text", "text": value, "digest": value}
        if isinstance(value, list):
            one = {"kind": "tensor", "dtype": "float32", "shape": value, "place": 0, "bytes": len(values)}
            one["digest"] = values.hex()
        made[f"texts/{name}"] = one
    return tool.Found(made, {"texts": 0.0}, values)


@needs_git
def test_a_commit_equals_itself(own_folder, capfd):
    assert tool.main(["HEAD", "HEAD", "--only", "identity"]) == 0
    out = capfd.readouterr().out
    assert "nothing differs" in out and "DIFFER" not in out and "error" not in out
    assert int(out.split()[1]) > 500  # results of the one group


def test_a_changed_constant_and_a_changed_formula_are_found(tmp_path, capfd):
    base = ("DEFAULT_BASE = 10_000.0", "DEFAULT_BASE = 10_001.0")
    formula = ("return -p * torch.log1p(a * distance)", "return -p * a * distance")
    other = changed(tmp_path, rope=base, kerple=formula)
    assert tool.main([str(ROOT), str(other), "--only", "identity"]) == 1
    out = capfd.readouterr().out
    assert "identity/rope/config: old text " in out and "10001.0" in out
    assert "identity/rope/from a pickle" not in out  # what the old side wrote says its base
    assert "identity/alibi" not in out  # it has neither
    line = next(line for line in out.splitlines() if line.startswith("  identity/kerple/from a pickle/out: "))
    assert "numbers, by up to " in line and line.count("tensor float32 (2, 4, 10, 16) ") == 2


@needs_git
def test_a_probe_that_breaks_is_no_difference(own_folder, tmp_path, capfd):
    other = changed(tmp_path, __init__=("_HOMES = ", 'raise RuntimeError("broken on purpose")\n_HOMES = '))
    assert tool.main([str(other), "HEAD", "--only", "identity"]) == 2
    said = capfd.readouterr().err
    assert "broken on purpose" in said and "ended with status 1" in said


@needs_git
def test_a_commit_that_is_not_there_cannot_be_compared(own_folder, capfd):
    assert tool.main(["no-such-commit", "--only", "identity"]) == 2
    assert "git worktree add failed" in capfd.readouterr().err


def test_what_is_missing_or_of_another_kind_differs(capsys):
    old, new = found(kept="a", gone="b", said="c"), found(bytes(8), kept="a", come="d", said=[2])
    assert tool.report(old, new, ["texts"], {}) == 1
    out = capsys.readouterr().out
    assert "1 equal, 3 DIFFER" in out and "3 of 4 results differ" in out
    assert "texts/gone: only in old: text b" in out and "texts/come: only in new: text d" in out
    assert "texts/said: old text c, new tensor float32 (2,) " in out


def test_tensors_differ_by_a_bit_or_a_shape(capsys):
    zero, minus_zero, one = bytes(8), bytes(7) + b"\x80", bytes(4) + b"\x00\x00\x80\x3f"
    assert tool.report(found(zero, x=[2]), found(zero, x=[2]), ["texts"], {}) == 0
    assert tool.report(found(zero, x=[2]), found(zero, x=[1, 2]), ["texts"], {}) == 1
    assert tool.report(found(zero, x=[2]), found(minus_zero, x=[2]), ["texts"], {}) == 1
    assert "0 of 2 numbers, by up to 0 of 0" in capsys.readouterr().out
    assert tool.report(found(zero, x=[2]), found(one, x=[2]), ["texts"], {}) == 1
    assert "1 of 2 numbers, by up to 1 of 0" in capsys.readouterr().out


def test_what_raised_on_both_sides_is_pointed_out(capsys):
    old, new = found(x="TypeError: no"), found(x="TypeError: no")
    for side in (old, new):
        side.results["texts/x"]["kind"] = "error"
    assert tool.report(old, new, ["texts"], {}) == 0
    assert "1 calls raised the same on both sides, and no WhorlError; the first:\n  texts/x: TypeError: no" in (
        capsys.readouterr().out
    )


def test_expected_differences_do_not_fail(tmp_path, capsys):
    file = tmp_path / "expected"
    file.write_text("# what is meant\ntexts/a*: it is written: anew\ntexts/never: it was renamed\n")
    expected = tool.read_expected(file)
    assert expected == {"texts/a*": "it is written: anew", "texts/never": "it was renamed"}
    assert tool.report(found(a1="x", b="y"), found(a1="z", b="y"), ["texts"], expected) == 0
    out = capsys.readouterr().out
    assert "1 expected to differ:" in out and "(it is written: anew)" in out
    assert "equal or not there: texts/never" in out
    assert tool.report(found(a1="x", b="y"), found(a1="z", b="w"), ["texts"], expected) == 1
    file.write_text("texts/a\n")
    with pytest.raises(SystemExit, match='every line reads "name: reason"'):
        tool.read_expected(file)
