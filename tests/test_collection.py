"""Every test file can be collected without the packages that are not whorl's own, and says what it left out."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import optional

TESTS = Path(__file__).parent
# torch brings these itself, and pytest is what runs here
PRESENT = {"jinja2", "mpmath", "triton", "pytest", "pytest_xdist"}
HIDDEN = sorted(set(optional.optional_packages()) - PRESENT)
# as if a package were not installed: importing it says ModuleNotFoundError
PLUGIN = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"
FEW = (
    "dialects/test_from_hf.py",
    "encodings/test_t5.py",
    "cli/test_app.py",
    "kernels/test_rotate_numba.py",
    "lab/test_run_on_ray.py",
    "test_gpu.py",
)


def collect(folder, hidden, *files):
    """pytest's answer where these packages are hidden: (exit status, output)."""
    (folder / "hidden_packages.py").write_text(PLUGIN.format(names=hidden))
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "hidden_packages", "-q", "-m", "gpu"]
    paths = os.pathsep.join([str(folder), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, *(str(TESTS / file) for file in files)],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def check(code, output, hidden):
    assert code == 0, output  # some tests of a GPU are found, and skipped for want of one
    assert "error" not in output.lower()
    for package in hidden:
        assert f"missing package: {package} is not installed" in output


def test_files_are_collected_without_optional_packages(tmp_path):
    code, output = collect(tmp_path, HIDDEN, *FEW)
    check(code, output, ["typer", "hypothesis"])


@pytest.mark.large
@pytest.mark.parametrize("hidden", [HIDDEN, ["transformers"], ["numba"]], ids=["all", "transformers", "numba"])
def test_every_file_is_collected_without_optional_packages(tmp_path, hidden):
    code, output = collect(tmp_path, hidden, ".")
    check(code, output, {"hypothesis", "transformers"} & set(hidden))


def test_an_import_of_a_package_that_is_there_stays_an_error():
    with pytest.raises(ImportError, match="no_such_name"):
        optional.optional("hypothesis:no_such_name")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        optional.optional("no_such_package")


@pytest.mark.parametrize(
    ("package", "installed", "reason"),
    [
        ("transformers", "0.1", "transformers >=5.22.2, found 0.1 (no Llama)"),
        ("transformers", "5.22.2", None),
        ("transformers", "99.0", None),  # whorl has to work with every later one
        ("x_transformers", "99.0", "x-transformers ==2.31.10, found 99.0 (no Llama)"),
        ("torch", "0.1", None),  # without which there is nothing to test
    ],
)
def test_another_version_is_a_reason_where_one_is_asked_for(monkeypatch, package, installed, reason):
    pytest.importorskip(package)
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    found = optional.why_missing(ImportError("no Llama", name=package))
    assert found == (reason and f"missing package: {reason}")


@pytest.mark.parametrize(
    ("versions", "installed", "runs"),
    [
        (optional.ASKED_FOR, "5.22.1", False),
        (optional.ASKED_FOR, "99.0", True),
        (optional.DEVELOPED_ON, "5.22.2", True),
        (optional.DEVELOPED_ON, "99.0", False),
    ],
)
def test_a_test_of_all_of_a_package_runs_with_the_versions_it_is_for(monkeypatch, versions, installed, runs):
    pytest.importorskip("transformers")
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    skipped = pytest.raises(pytest.skip.Exception, match=f"transformers .*5.22.2, found {installed}")
    with nullcontext() if runs else skipped:
        assert optional.optional("transformers", only=versions).__name__ == "transformers"
