"""Bars of benchmarks: what a decoding step costs, worked out by hand, and names that exist."""

from __future__ import annotations

import pytest

from whorl.benchmarks import attention, decode, decode_bars, registry
from whorl.cli.bench import print_conclusion

US = 1e-6


def report(**changes) -> dict:
    """A report in which RoPE takes 20 µs in a graph, 100 called; a copy 17 µs, so that the bound is 20."""
    called = {"torch's kernel": 90.0, "rope": 100.0, "alibi": 112.0, "fire": 200.0} | changes.pop("called", {})
    replayed = {decode.COPY: 17.0, "rope": 8 * 20.0, "alibi": 8 * 24.0, "fire": 8 * 80.0} | changes.pop("replayed", {})
    settings = {**decode.ON_A_GPU, "kept": 4096, "dtype": "auto"} | changes.pop("settings", {})
    assert not changes
    return {"name": "decode", "settings": settings, "groups": groups(called, replayed, padded=False)}


def groups(*times: dict, padded: bool) -> list[dict]:
    """Steps called and steps in a graph, in µs; None for what was wrong and not timed."""
    return [
        {"name": title, "results": [{"name": name, "seconds": time and time * US} for name, time in rows.items()]}
        for title, rows in zip(decode.titles(padded=padded), times, strict=True)
    ]


def table(report: dict) -> dict[str, list[str]]:
    together = registry.conclusion(report)
    assert together is not None
    _, header, rows = together
    assert all(len(row) == len(header) for row in rows)
    return {name: cells for name, *cells in rows}


def test_a_step_is_held_against_its_bars():
    assert table(report()) == {
        "rope": ["80 µs", "1.00", "1.00", "met"],
        "alibi": ["88 µs", "1.20", "1.20", "met"],
        "fire": ["120 µs", "4.00", "4.00", ""],
    }
    _, header, _ = registry.conclusion(report()) or ("", [], [])
    assert header[1:4] == ["beside the device (≤ 90 µs)", "over the bound (≤ 1.4)", "over RoPE (≤ 1.3)"]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"called": {"alibi": 116.0}}, "not met: beside the device"),
        ({"replayed": {"alibi": 8 * 27.0}}, "not met: over RoPE"),
        ({"replayed": {"alibi": 8 * 29.0}}, "not met: over the bound, over RoPE"),
        ({"replayed": {decode.COPY: 13.0}}, "not met: over the bound"),
        ({"settings": {"batch": 4}}, ""),
        ({"settings": {"dtype": "float32"}}, ""),
    ],
)
def test_what_misses_a_bar_is_named_and_other_sizes_have_none(changes, verdict):
    assert table(report(**changes))["alibi"][-1] == verdict


def test_padded_steps_are_compared_with_ropes_without_padding():
    given = report()
    given["groups"] += groups({"rope": 150.0}, {decode.COPY: 19.0, "rope": 8 * 22.0}, padded=True)
    assert table(given)["rope, padded"] == ["128 µs", "1.00", "1.10", "not met: beside the device"]


def test_paths_that_were_wrong_and_not_timed_are_left_out():
    assert set(table(report(called={"rope": None}))) == {"alibi", "fire"}
    rows = table(report(replayed={"rope": None}))
    assert rows == {"alibi": ["88 µs", "1.20", "", "met"], "fire": ["120 µs", "4.00", "", ""]}


def test_a_cpu_has_no_such_table_and_the_command_prints_what_a_gpu_has(capsys):
    given = report()
    del given["groups"][1]
    assert registry.conclusion(given) is None
    print_conclusion(given)
    assert capsys.readouterr().out == ""
    print_conclusion(report())
    out = capsys.readouterr().out
    assert "3 µs" in out and "a step with" in out and "met" in out
    assert registry.conclusion({"name": "tables"}) is None


def test_bars_are_of_paths_that_are_measured():
    defaults = registry.complete_settings("attention", {})
    for bars in attention.BARS.values():
        assert set(bars) <= set(defaults["encodings"].split(","))
    assert set(decode_bars.BARRED) <= set(registry.complete_settings("decode", {})["encodings"].split(","))
