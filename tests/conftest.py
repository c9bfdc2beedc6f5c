"""Settings of the whole test run."""

import gc
import os
from importlib.util import find_spec

import pytest
import torch

from helpers import KERNELS, TRITON_DEVICES
from optional import MISSING, optional, why_missing

# One thread per worker: workers fill the cores, and threads that wait for each other's cores cost many times more.
torch.set_num_threads(1)

# Triton's kernels run in its interpreter where there is no GPU. It is asked for before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        import triton_interpreter

        triton_interpreter.spare()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests of a CUDA device are left out where there is none; where one is, those of ``DEVICE`` are of it too."""
    for item in items:
        if torch.cuda.is_available():
            if getattr(getattr(item, "module", None), "DEVICE", None) == "cuda":
                item.add_marker(pytest.mark.gpu)
            continue
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))


def pytest_collection_finish():
    """What is there before the first test stays to the end: nobody need look for garbage in it again and again."""
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # so that the end of the process finds it


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file that cannot be imported for want of an optional package is skipped, and not an error."""
    report = yield
    found = getattr(report, "call", None)
    reason = why_missing(found.excinfo.value) if report.failed and found is not None and found.excinfo else None
    if reason is not None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    return report


def pytest_terminal_summary(terminalreporter):
    """Says what was left out for want of a package, also where skipped tests are not listed."""
    left_out = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if reason.startswith((MISSING, "could not import")):  # the latter is importorskip's
            left_out.setdefault(reason, set()).add(report.nodeid)
    for reason, tests in sorted(left_out.items()):
        terminalreporter.write_line(f"left out: {', '.join(sorted(tests))} ({reason})")


@pytest.fixture(params=KERNELS)
def kernel(request):
    """A kernel of the rotation, and the device that it runs on."""
    name, device = request.param
    if name == "triton" and device == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    return name, device


@pytest.fixture(params=TRITON_DEVICES)
def device(request):
    """Where a kernel in Triton runs: in the interpreter, or on the GPU where there is one."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    return request.param


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter, tiles of attention so small that short inputs have many of them."""
    from whorl import plans
    from whorl.kernels.tiles import sizes

    if not torch.cuda.is_available():
        small = {"forward": (32, 16), "keys": (16, 32), "queries": (32, 16)}
        monkeypatch.setattr(sizes, "TILES", {key: sizes.Tile(*small[key[0]], 4, 2) for key in sizes.TILES})
    monkeypatch.setattr(plans.PLANS, "_used", {})
    monkeypatch.setattr(plans.PLANS, "_before", {})


@pytest.fixture
def poisoned():
    """Memory that torch hands out is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def fits():
    """Whether a document is one of the ledger, by jsonschema."""
    from whorl.claims import schema

    optional("jsonschema")
    return lambda document: schema.problems(document) == []
