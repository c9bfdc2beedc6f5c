"""The benchmark runner: checks before speeds, ratios of one run. Nothing here asserts how fast anything is."""

from __future__ import annotations

import dataclasses
import gc
import time

import pytest
import torch

from whorl.benchmarks import registry, runner
from whorl.benchmarks.runner import Case, Check, Group, Report, measure, middle_half


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


def test_what_another_library_gets_wrong_is_said_and_not_timed():
    """rotary-embedding-torch counts in the dtype of its input: bfloat16 knows no position 257."""
    settings = {"length": 1024, "heads": 2, "kv_heads": 1, "head_dim": 8, "dtype": "bfloat16", "device": "cpu"}
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


@pytest.mark.gpu
def test_times_of_a_device_leave_out_the_host():
    memory = torch.zeros(1000, device="cuda")

    def slow_to_come() -> None:
        time.sleep(0.002)
        memory.add_(1)

    case = Case(name="slow to come", run=slow_to_come, check=right)
    (result,) = measure(Group(name="g", summary="", cases=(case,), device="cuda"), repeats=3)
    assert result.seconds is not None and result.seconds < 0.0002
