"""The runner: checks first, then times, and gives ratios measured in one run.

Every round times every path once, in an order that moves on from round to round, so that a machine
that slows down slows all paths. A ratio is the median over rounds of a path's time over the baseline's
time in the same round. A path whose check fails is not timed: a speed of wrong numbers is worth nothing.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whorl.benchmarks import registry
from whorl.errors import check_counts
from whorl.machine import load, machine_facts

SAMPLE = 0.005  # seconds a sample lasts at least: shorter work is repeated within it
MOST_QUEUED = 256  # calls: a device takes about a thousand launches before the host has to wait
LEAD, MOST_LEAD = 2_000_000, 500_000_000  # cycles that a device sleeps before a sample: a millisecond, a quarter second


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict on what a path computes: right or wrong, in words, and with numbers."""

    ok: bool
    text: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One path: the work, its check, the highest ratio to the baseline it should have, the bytes it must move.

    A ``peer`` is another library: where its check fails, the report says so, but the run is still correct.
    """

    name: str
    run: Callable[[], object]
    check: Callable[[], Check]
    bar: float | None = None
    moves: int | None = None
    peer: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """Paths that do the same job; the first is the baseline of the others.

    On a CUDA device the work is timed there, by its events; ``host=True`` times how long the call takes to come back.
    """

    name: str
    summary: str
    cases: tuple[Case, ...]
    device: str = "cpu"
    host: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """The times of one path, and its check; times are None where it was not timed."""

    name: str
    check: Check
    bar: float | None
    seconds: float | None = None
    seconds_spread: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_spread: tuple[float, float] | None = None
    bandwidth: float | None = None  # bytes per second
    peak_memory: int | None = None  # bytes beyond the input, on a CUDA device

    @property
    def met(self) -> bool | None:
        """Whether the ratio is within the bar; None where there is nothing to compare."""
        return None if self.bar is None or self.ratio is None else self.ratio <= self.bar

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "met": self.met}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished run."""

    name: str
    settings: dict[str, Any]
    repeats: int
    machine: dict[str, Any]
    groups: tuple[tuple[Group, tuple[Result, ...]], ...]

    @property
    def correct(self) -> bool:
        """Whether every check passed, those of other libraries aside."""
        return all(
            result.check.ok or case.peer
            for group, results in self.groups
            for case, result in zip(group.cases, results, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        groups = [group_dict(group, results) for group, results in self.groups]
        return {
            "name": self.name,
            "settings": self.settings,
            "repeats": self.repeats,
            "correct": self.correct,
            "machine": self.machine,
            "groups": groups,
        }


def group_dict(group: Group, results: tuple[Result, ...]) -> dict[str, Any]:
    """A measured group as JSON-ready data."""
    return {"name": group.name, "summary": group.summary, "results": [result.to_dict() for result in results]}


def run(
    name: str,
    *,
    repeats: int = 15,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    show: Callable[[Group, tuple[Result, ...]], None] = lambda group, results: None,
) -> Report:
    """The report of a benchmark by name; ``tell`` hears a line about each step, ``show`` gets groups as they are done.

    >>> report = run("tables", repeats=1, settings={"length": 512, "batch": 2})
    >>> report.correct
    True
    """
    check_counts("bench", repeats=repeats)
    complete = registry.complete_settings(name, settings or {})
    import torch

    machine, before = {**machine_facts(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}, load()
    groups = []
    for group in registry.benchmark(name)(**complete):
        tell(f"{group.name}: {len(group.cases)} paths, {repeats} rounds")
        results = measure(group, repeats)
        show(group, results)
        groups.append((_let_go(group), results))
        del group  # before the next one is made
    machine |= {"load_before": before, "load_after": load()}
    return Report(name=name, settings=complete, repeats=repeats, machine=machine, groups=tuple(groups))


def _let_go(group: Group) -> Group:
    """The group without the functions that hold the memory of its paths: two groups may not fit side by side."""

    def done() -> Any:
        raise AssertionError("a measured path is not run again")

    return dataclasses.replace(
        group, cases=tuple(dataclasses.replace(case, run=done, check=done) for case in group.cases)
    )


def measure(group: Group, repeats: int) -> tuple[Result, ...]:
    """The results of a group's paths, in their order."""
    checks = [case.check() for case in group.cases]
    sound = [case for case, check in zip(group.cases, checks, strict=True) if check.ok]
    # without a sound baseline there is nothing to compare with
    times = _time(sound, repeats, group) if checks[0].ok else {}
    first = times.get(group.cases[0].name)
    results = []
    for case, check in zip(group.cases, checks, strict=True):
        result, own = Result(name=case.name, check=check, bar=case.bar), times.get(case.name)
        if own is not None and first is not None:
            ratios = [mine / base for mine, base in zip(own, first, strict=True)]
            seconds = statistics.median(own)
            result = dataclasses.replace(
                result,
                bandwidth=None if case.moves is None else case.moves / seconds,
                peak_memory=_peak_memory(case) if group.device == "cuda" else None,
                seconds=seconds,
                seconds_spread=middle_half(own),
                ratio=statistics.median(ratios),
                ratio_spread=middle_half(ratios),
            )
        results.append(result)
    return tuple(results)


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """The first and third quartile.

    >>> middle_half([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 4.0)
    """
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _time(cases: Sequence[Case], repeats: int, group: Group) -> dict[str, list[float]]:
    """Seconds per call of each case, one number per round."""
    sample = _DeviceClock().sample if group.device == "cuda" and not group.host else _sample
    calls = {case.name: _calls(case.run, sample) for case in cases}
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    was_on = gc.isenabled()
    gc.disable()
    try:
        for i in range(repeats):
            turn = i % len(cases)
            for case in (*cases[turn:], *cases[:turn]):
                times[case.name].append(sample(case.run, calls[case.name]))
    finally:
        if was_on:
            gc.enable()
    return times


def _calls(work: Callable[[], object], sample: Callable[[Callable[[], object], int], float]) -> int:
    """The number of calls that make a sample long enough to time; also warms the path up."""
    sample(work, 1)
    return max(1, math.ceil(SAMPLE / max(sample(work, 1), 1e-7)))


def _sample(work: Callable[[], object], calls: int) -> float:
    made = None
    begin = time.perf_counter()
    for _ in range(calls):
        made = work()
    end = time.perf_counter()
    del made  # giving back the last result's memory is not part of making it
    return (end - begin) / calls


class _DeviceClock:
    """Times work on a CUDA device, which first sleeps for long enough that it never waits for the host."""

    def __init__(self) -> None:
        self.lead = LEAD

    def sample(self, work: Callable[[], object], calls: int) -> float:
        import torch

        calls = min(calls, MOST_QUEUED)
        while True:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(self.lead)
            begin.record()
            for _ in range(calls):
                work()
            end.record()
            waited = begin.query()  # the device woke up before all calls were queued
            torch.cuda.synchronize()
            if not waited or (calls == 1 and self.lead >= MOST_LEAD):  # a single call may itself wait for the device
                return begin.elapsed_time(end) / 1e3 / calls
            if self.lead < MOST_LEAD:
                self.lead *= 4
            else:
                calls = -(-calls // 4)


def _peak_memory(case: Case) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    case.run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
