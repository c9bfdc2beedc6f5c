"""Bars of benchmarks: what a decoding step costs, worked out by hand, and names that exist."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from whorl.benchmarks import attention, decode, decode_bars, registry, runner
from whorl.machine import machine_facts

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
    assert rows == {"alibi": ["88 µs", "1.20", "", "met, without RoPE"], "fire": ["120 µs", "4.00", "", ""]}


def test_a_cpu_has_no_such_table(capsys):
    pytest.importorskip("typer")
    from whorl.cli.bench import print_conclusion

    given = report()
    del given["groups"][1]
    assert registry.conclusion(given) is None
    print_conclusion(given)
    assert capsys.readouterr().out == ""
    assert registry.conclusion({"name": "tables"}) is None


def test_no_bar_is_met_by_what_was_not_measured():
    replayed = {"rope": None, decode.COPY: 17.0, "alibi": 8 * 24.0}
    given = report(replayed=replayed)
    given["groups"] += groups({"rope": 100.0}, {decode.COPY: 17.0, "rope": 8 * 22.0}, padded=True)
    rows = table(given)
    assert rows["alibi"] == ["88 µs", "1.20", "", "met, without RoPE"]
    assert rows["rope, padded"] == ["78 µs", "1.10", "", "met, without RoPE"]


@pytest.mark.parametrize("name", decode_bars.BARRED)
def test_each_encoding_with_bars_can_miss_them_and_what_equals_a_bar_meets_it(name):
    missed = report(called={name: 300.0}, replayed={name: 8 * 20.0})
    assert table(missed)[name][-1] == "not met: beside the device"
    even = decode_bars.Step(name=name, padded=False, called=90e-6, device=0.0, bound=1.0, rope=None)
    assert even.missed() == []


def test_the_command_prints_the_table(capsys, monkeypatch):
    pytest.importorskip("typer")
    from whorl.cli.app import run

    made = report() | {"repeats": 1, "correct": True, "machine": machine_facts() | {"load_before": 0, "load_after": 0}}
    monkeypatch.setattr(runner, "run", lambda *args, **kwargs: SimpleNamespace(to_dict=lambda: made))
    assert run(["bench", "decode"]) == 0
    out = capsys.readouterr().out
    assert "beside the device (≤ 90 µs)" in out and "80 µs" in out and "K and V at the speed of a copy, and 3 µs" in out
    assert run(["bench", "decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made


BARS = {  # forward, and forward and backward: shares of the speed of torch's kernel
    ("rope", 4096): (0.85, None), ("rope", 16384): (0.96, None), ("alibi", 4096): (None, 0.65),
    ("alibi", 16384): (None, 0.65), ("t5", 4096): (0.6, 0.4), ("t5", 16384): (0.78, 0.4),
    ("kerple", 4096): (0.45, 0.4), ("kerple", 16384): (0.45, 0.4), ("sandwich", 4096): (0.45, 0.4),
    ("sandwich", 16384): (0.45, 0.4), ("fire", 4096): (0.3, 0.2), ("fire", 16384): (0.3, 0.2),
    ("rope+window", 16384): (4, 3), ("rerope", 16384): (0.6, 0.4),
}  # fmt: skip
NAMES = ("none", "rope", "alibi", "t5", "kerple", "sandwich", "fire", "rope+window", "rerope")


@pytest.mark.parametrize("length", [2048, 4096, 16384])
@pytest.mark.parametrize("name", NAMES)
def test_bars_of_attention(name, length):
    usual = {"shape": (1, 16, length, 128), "kind": torch.bfloat16, "window": 1024, "where": "cuda"}
    found = attention.bars_of(name, **usual)
    wanted = BARS.get((name, length), (None, None))
    assert found == pytest.approx([share and 1 / share for share in wanted])
    for other in (
        {"shape": (2, 16, length, 128)}, {"shape": (1, 8, length, 128)}, {"shape": (1, 16, length, 64)},
        {"kind": torch.float32}, {"window": 512}, {"where": "cpu"},
    ):  # fmt: skip
        assert attention.bars_of(name, **(usual | other)) == (None, None)


def test_bars_are_of_paths_that_are_measured():
    defaults = registry.complete_settings("attention", {})
    for bars in attention.BARS.values():
        assert set(bars) <= set(defaults["encodings"].split(","))
    assert set(decode_bars.BARRED) <= set(registry.complete_settings("decode", {})["encodings"].split(","))
