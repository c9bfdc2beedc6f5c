"""The benchmark of tables: its errors against the true cosine, and what it reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import whorl
from oracles import rotary_tables
from whorl.benchmarks import runner
from whorl.benchmarks.tables import error_of, true_tables
from whorl.rotary.cache import current_table_cache

TINY = {"device": "cpu", "length": 512, "head_dim": 8, "batch": 2, "far": 65536}


def test_the_reference_of_the_errors_is_the_true_cosine():
    positions = np.array([0, 1, 131_071, 16_777_216])
    frequencies = [rotary_tables.mp.mpf(10_000) ** rotary_tables.mp.mpf(-2 * i / 8) for i in range(4)]
    for made, true in zip(
        true_tables(positions, 8, 10_000.0), rotary_tables.table(positions.tolist(), frequencies), strict=True
    ):
        off = max(abs(float(true[i][j] - rotary_tables.mpf(str(made[i, j])))) for i in range(4) for j in range(4))
        assert off < 1e-8  # a quarter of the limit, also where longdouble is no wider than float64


def test_the_error_is_that_of_the_worst_entry_of_cos_or_sin():
    rope = whorl.Rope(head_dim=8)

    def off(positions):
        cos, sin = rope.tables(positions)
        sin[-1, 0] += 1e-3
        return cos, sin

    positions = torch.arange(2048)
    assert error_of(rope.tables, positions, 8, 10_000.0) < 4e-8
    assert error_of(off, positions, 8, 10_000.0) == pytest.approx(1e-3, rel=1e-3)


def test_tables_reports_errors_ratios_and_the_machine():
    before = current_table_cache()
    lines: list[str] = []
    report = runner.run("tables", repeats=2, settings=TINY, tell=lines.append)
    assert current_table_cache() is before
    assert [line.partition(":")[0] for line in lines] == ["tables", "cache, whole text", "cache, one token"]
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["correct"] and data["repeats"] == 2
    assert set(data["machine"]) == {
        "date",
        "cpu",
        "cpu_capability",
        "gpu",
        "cores",
        "torch_threads",
        "platform",
        "python",
        "torch",
        "numpy",
        "whorl",
        "load_before",
        "load_after",
    }
    building, whole, one = data["groups"]
    assert [result["bar"] for result in building["results"]] == [None, 0.9, 1.5, 1.5, 1.5, None]
    for result in building["results"]:
        assert result["seconds"] > 0 and result["ratio"] > 0
        exact = result["name"].startswith("exact")
        assert (max(result["check"]["numbers"].values()) <= 4e-8) is exact
    assert building["results"][0]["check"]["numbers"]["error_far"] > 1e-4  # what float32 angles lose by 65,536
    assert building["results"][0]["ratio"] == 1.0
    for group in (whole, one):
        assert [result["check"]["ok"] for result in group["results"]] == [True, True, True]


def test_a_float32_mode_that_is_not_bit_for_bit_is_not_timed(monkeypatch):
    from whorl.rotary import tables as home

    plain = home.float32
    monkeypatch.setattr(home, "float32", lambda *given: tuple(table * (1 + 2**-23) for table in plain(*given)))
    report = runner.run("tables", repeats=1, settings=TINY)
    assert not report.correct
    last = report.groups[0][1][-1]
    assert last.name == "angles='float32'" and last.seconds is None and "bit for bit" in last.check.text


def test_kept_tables_that_differ_are_not_timed(monkeypatch):
    from whorl.rotary.cache import TableCache

    prefix = TableCache.prefix

    def stale(self, *given):
        kept = prefix(self, *given)
        return None if kept is None else (kept[0] + 1, kept[1])

    monkeypatch.setattr(TableCache, "prefix", stale)
    report = runner.run("tables", repeats=1, settings=TINY)
    for _, (computed, kept, given) in report.groups[1:]:
        assert computed.seconds is not None and given.seconds is not None
        assert kept.seconds is None and not kept.check.ok


@pytest.mark.gpu
def test_tables_are_measured_on_a_gpu():
    (group,) = runner.run("tables", repeats=1, settings={"length": 4096}).to_dict()["groups"]
    assert [one["check"]["ok"] for one in group["results"]] == [True] * 5
