"""The benchmark of precision: what is measured, by whom, and that an error is seen."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch

from whorl.benchmarks import precision, runner
from whorl.errors import WhorlError

SMALL = {"rows": 64, "head_dim": 16}


def errors(report):
    return {
        group.name: {result.name: result.check.numbers["error"] for result in results}
        for group, results in report.groups
    }


def test_whorl_is_exact_everywhere_and_float32_angles_are_not():
    report = runner.run("precision", repeats=1, settings=SMALL)
    found = errors(report)
    assert report.correct and list(found) == [f"at {last:,}" for last in precision.FAR]
    assert all(own["whorl"] <= 4e-8 for own in found.values())
    plain = [own["plain float32"] for own in found.values()]
    assert plain == sorted(plain) and plain[0] > 1e-5 and plain[-1] > 0.1
    assert plain == [own["whorl, angles='float32'"] for own in found.values()]


@pytest.mark.parametrize("name", ["transformers", "rotary-embedding-torch", "x-transformers"])
def test_a_library_is_measured_by_its_own_tables_and_named_with_its_version(name):
    pytest.importorskip(name.replace("-", "_"))
    group = precision.precision(**SMALL)[0]
    (case,) = [one for one in group.cases if one.name == f"{name} {version(name)}"]
    cos, sin = case.run()
    assert cos.shape == sin.shape == (64, 8)
    assert 1e-6 < case.check().numbers["error"] < 1e-2 and case.peer


def test_a_table_that_is_off_fails_the_check():
    rounded = precision.naive(16, 10_000.0)
    found = precision._judge(rounded, torch.arange(8_000, 8_191), 16, 10_000.0, precision.LIMIT)
    assert not found.ok and found.text.endswith("over 4e-08")


def test_more_rows_than_positions_are_refused():
    with pytest.raises(WhorlError, match="rows must be at most 8,191, got 9000"):
        precision.precision(rows=9000)
