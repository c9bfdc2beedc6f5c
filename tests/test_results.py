"""Records of results: read from what the lab wrote, older files among it, and written as they were."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from lab.report_cases import comparison, losses
from whorl.errors import WhorlError
from whorl.results import COMPARISON_SCHEMA, RUN_SCHEMA, ComparisonResult, RunResult

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*/comparison.json"))


def result(**more):
    needed = {one.name: one.type for one in dataclasses.fields(RunResult) if one.default is dataclasses.MISSING}
    empty = {"str": "", "int": 0, "float": 0.0, "dict[str, Any]": {}, "list[dict[str, Any]]": [], "list[str]": []}
    plain = {name: empty.get(str(kind)) for name, kind in needed.items()}  # null where a field may be that
    plain |= {"id": "abc", "label": "rope", "encoding": {"name": "rope"}, "seed": 3}
    plain["config"] = {"encoding": plain["encoding"], "corpus": "stdlib", "corpus_digest": ""}
    return {"schema": RUN_SCHEMA, **plain, **more}


def test_a_run_is_written_as_it_was_read():
    task = {"name": "copy", "by_length": []}
    for data in (result(), result(task=task)):
        found = RunResult.of(json.loads(json.dumps(data)))
        assert found.to_dict() == data and found.label == "rope" and found.seed == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunResult.of(result()).seed = 4  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("data", [None, [], {}, {"schema": "whorl-lab-result/9"}, result() | {"schema": "x"}])
def test_what_is_no_result_of_a_run_says_so(data):
    with pytest.raises(WhorlError, match=f"a result of a run needed, schema '{RUN_SCHEMA}'"):
        RunResult.of(data)


def test_a_result_with_a_part_missing_names_it():
    data = result()
    del data["metrics"], data["seed"]
    with pytest.raises(WhorlError, match="has no seed, metrics"):
        RunResult.of(data)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.parent.name)
def test_committed_comparisons_are_read_and_nothing_of_them_is_lost(path):
    """One of 0.1.0 holds no verdict and no differences, and gets none by being read."""
    data = json.loads(path.read_text())
    found = ComparisonResult.read(path)
    assert json.loads(found.to_json()) == data
    assert ("verdict" in found.data) == bool(found.differences) == ("differences" in data)
    assert [(row.label, row.variant) for row in found.rows if not row.beside] == [
        (row["label"], row["variant"]) for row in data["rows"]
    ]
    assert sum(row.beside for row in found.rows) == sum(bool(row.get("window_baseline")) for row in data["rows"])
    for row, written in zip([row for row in found.rows if not row.beside], data["rows"], strict=True):
        for cell in written["by_length"]:
            for way, value in cell["bits_per_byte"].items():
                assert row.at(way, cell["length"]) == (value and value["mean"])


def test_what_is_not_finite_is_a_gap_and_null():
    found = ComparisonResult.of(comparison([losses("rope", {64: 2.0, 128: math.nan, 256: None})]), "test")
    (row,) = found.rows
    assert row.name == "rope" and row.lengths == (64, 128, 256) and found.lengths == (64, 128, 256)
    assert row.at("same_last", 64) == 2.0 and row.at("same_last", 128) is None is row.at("same_last", 256)
    assert row.broken == {("same_last", 128)}
    written = json.loads(found.to_json())
    assert (
        written["schema"] == COMPARISON_SCHEMA
        and written["rows"][0]["by_length"][1]["bits_per_byte"]["same_last"]["mean"] is None
    )
    assert ComparisonResult.of(found, "test") is found
