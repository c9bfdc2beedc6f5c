"""The benchmark runner: checks before speeds, ratios of one run. Nothing here asserts how fast anything is."""

from __future__ import annotations

import dataclasses
import gc
import json
import time

import numpy as np
import pytest
import torch

import whorl
from oracles import rotary_tables
from whorl.benchmarks import registry, runner
from whorl.benchmarks.rotary_peers import heads_side_by_side
from whorl.benchmarks.runner import Case, Check, Group, Report, measure, middle_half
from whorl.benchmarks.tables import error_of, tables, true_tables
from whorl.rotary.cache import current_table_cache

TINY = {"device": "cpu", "length": 512, "head_dim": 8, "batch": 2, "far": 65536}


def right() -> Check:
    return Check(ok=True, text="right")


def wrong() -> Check:
    return Check(ok=False, text="off by 1", numbers={"error": 1.0})


def must_not_run() -> None:
    raise AssertionError("a path whose check failed was run")


class Clock:
    """A clock that moves only when work says so, and logs who moved it."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.log: list[str] = []
        monkeypatch.setattr(runner.time, "perf_counter", lambda: self.now)

    def work(self, name: str, *costs: float) -> Case:
        """A path that costs these seconds, call by call; the last one from then on."""
        left = list(costs)

        def run() -> None:
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return Case(name=name, run=run, check=right)


@pytest.mark.parametrize("name", registry.BENCHMARKS)
def test_every_registered_benchmark_builds_its_groups_from_defaults(name):
    settings = registry.complete_settings(name, {})
    assert settings and all(type(value) in (int, float, str) for value in settings.values())
    assert callable(registry.benchmark(name))


def test_settings_are_checked_by_name_and_kind():
    assert registry.complete_settings("tables", {"base": 500})["base"] == 500.0
    with pytest.raises(whorl.WhorlError, match=r"unknown benchmark 'tabels'\. Did you mean 'tables'\?"):
        registry.benchmark("tabels")
    with pytest.raises(whorl.WhorlError, match=r"length must be like 131072, got 1\.5"):
        registry.complete_settings("tables", {"length": 1.5})
    with pytest.raises(whorl.WhorlError, match="far must be at least length=4096, got 8"):
        tables(length=4096, far=8)
    with pytest.raises(whorl.WhorlError, match="batch must be positive, got 0"):
        tables(batch=0)
    with pytest.raises(whorl.WhorlError, match="repeats must be a positive integer, got 0"):
        runner.run("tables", repeats=0)


def test_a_path_whose_check_fails_is_not_run_and_has_no_speed():
    cases = (
        Case(name="plain", run=lambda: None, check=right),
        Case(name="bad", run=must_not_run, check=wrong, bar=0.5),
        Case(name="good", run=lambda: None, check=right),
    )
    plain, bad, good = measure(Group(name="g", summary="", cases=cases), repeats=3)
    assert (bad.seconds, bad.seconds_spread, bad.ratio, bad.ratio_spread, bad.met) == (None,) * 5
    assert bad.to_dict()["check"] == {"ok": False, "text": "off by 1", "numbers": {"error": 1.0}}
    assert plain.seconds is not None and good.ratio is not None


def test_without_a_sound_baseline_nothing_is_timed():
    cases = (Case(name="plain", run=must_not_run, check=wrong), Case(name="other", run=must_not_run, check=right))
    assert [result.seconds for result in measure(Group(name="g", summary="", cases=cases), repeats=2)] == [None, None]


def test_rounds_are_interleaved_and_start_with_another_path_each_time(monkeypatch):
    clock = Clock(monkeypatch)
    cases = tuple(clock.work(name, 1.0) for name in "abc")
    measure(Group(name="g", summary="", cases=cases), repeats=4)
    warm_up = ["a", "a", "b", "b", "c", "c"]
    assert clock.log == warm_up + list("abc") + list("bca") + list("cab") + list("abc")


def test_a_ratio_compares_within_a_round(monkeypatch):
    clock = Clock(monkeypatch)
    # the machine is ten times slower from the second round on, for both
    base = clock.work("base", 1.0, 1.0, 1.0, 10.0, 10.0)
    path = clock.work("path", 3.0, 3.0, 3.0, 30.0, 30.0)
    first, second = measure(Group(name="g", summary="", cases=(base, path)), repeats=3)
    assert (first.ratio, second.ratio, second.ratio_spread) == (1.0, 3.0, (3.0, 3.0))
    assert (first.seconds, second.seconds) == (10.0, 30.0)


def test_short_work_is_repeated_within_a_sample(monkeypatch):
    clock = Clock(monkeypatch)
    (result,) = measure(Group(name="g", summary="", cases=(clock.work("short", 0.001),)), repeats=2)
    assert len(clock.log) == 2 + 2 * 5 and result.seconds == pytest.approx(0.001)


def test_a_bar_is_met_or_missed_or_absent(monkeypatch):
    clock = Clock(monkeypatch)

    def with_bar(name: str, cost: float, bar: float | None) -> Case:
        return Case(name=name, run=clock.work(name, cost).run, check=right, bar=bar)

    cases = (with_bar("base", 1.0, None), with_bar("met", 0.5, 0.9), with_bar("missed", 2.0, 1.5))
    results = measure(Group(name="g", summary="", cases=cases), repeats=1)
    assert [result.met for result in results] == [None, True, False]


def test_the_middle_half_of_one_value_is_that_value():
    assert middle_half([2.0]) == (2.0, 2.0) and middle_half([1.0, 3.0]) == (1.5, 2.5)


def test_the_garbage_collector_is_left_as_it_was():
    group = Group(name="g", summary="", cases=(Case(name="a", run=lambda: gc.isenabled(), check=right),))
    was = gc.isenabled()
    try:
        for on in (False, True):
            (gc.enable if on else gc.disable)()
            measure(group, repeats=1)
            assert gc.isenabled() is on
    finally:
        (gc.enable if was else gc.disable)()


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


SMALL = {
    "rotary": {"length": 8, "heads": 2, "kv_heads": 1, "head_dim": 8, "dtype": "bfloat16", "device": "cpu"},
    "decode": {"batch": 2, "kept": 130, "heads": 2, "kv_heads": 1, "head_dim": 16, "device": "cpu"},
    "bias": {"length": 32, "heads": 2, "head_dim": 16, "dtype": "float32", "device": "cpu"},
    "linear": {"length": 32, "heads": 2, "head_dim": 16, "device": "cpu"},
    "attention": {"length": 32, "heads": 2, "head_dim": 16, "device": "cpu", "encodings": "none,rope,alibi"},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_path_of_every_benchmark_is_checked_and_right(name):
    for group in registry.benchmark(name)(**registry.complete_settings(name, SMALL[name])):
        for case in group.cases:
            if "torch.compile" in case.name or "flex" in case.name:
                continue  # compiled when it is timed
            check = case.check()
            assert check.ok and check.text, (group.name, case.name, check)


def test_what_another_library_gets_wrong_is_said_and_not_timed():
    """rotary-embedding-torch counts in the dtype of its input: bfloat16 knows no position 257."""
    settings = {**SMALL["rotary"], "length": 1024}
    (case,) = [
        case
        for group in registry.benchmark("rotary")(**registry.complete_settings("rotary", settings))
        for case in group.cases
        if case.name == "rotary-embedding-torch" and group.name.startswith("out of place")
    ]
    group = Group(name="g", summary="", cases=(Case(name="first", run=lambda: None, check=right), case))
    results = measure(group, repeats=1)
    assert not results[1].check.ok and results[1].seconds is None
    report = {"name": "rotary", "settings": {}, "repeats": 1, "machine": {}, "groups": ((group, results),)}
    assert Report(**report).correct
    ours = dataclasses.replace(group, cases=(group.cases[0], dataclasses.replace(case, peer=False)))
    assert not Report(**{**report, "groups": ((ours, results),)}).correct


def test_liger_is_given_the_memory_that_it_reads():
    for length in (1, 3):
        x = torch.randn(2, 4, length, 8)
        given = heads_side_by_side(x)
        assert torch.equal(given, x) and given.transpose(1, 2).stride() == (length * 32, 32, 8, 1)


@pytest.mark.gpu
def test_times_of_a_device_leave_out_the_host():
    memory = torch.zeros(1000, device="cuda")

    def slow_to_come() -> None:
        time.sleep(0.002)
        memory.add_(1)

    case = Case(name="slow to come", run=slow_to_come, check=right)
    (result,) = measure(Group(name="g", summary="", cases=(case,), device="cuda"), repeats=3)
    assert result.seconds is not None and result.seconds < 0.0002


@pytest.mark.gpu
def test_tables_are_measured_on_a_gpu():
    (group,) = runner.run("tables", repeats=1, settings={"length": 4096}).to_dict()["groups"]
    assert [one["check"]["ok"] for one in group["results"]] == [True] * 5
