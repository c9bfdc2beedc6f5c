"""``whorl bench``: ratios, machine facts, and no speed of wrong numbers."""

from __future__ import annotations

import json

TINY = ("--repeats", "2", "--set", "device=cpu", "--set", "length=512", "--set", "head_dim=8", "--set", "far=65536")


def test_bench_answers_with_ratios_and_machine_facts(call, answer, tmp_path):
    kept = tmp_path / "results" / "tables.json"
    report = answer("bench", "tables", *TINY, "--out", str(kept))
    assert json.loads(kept.read_text()) == report
    sizes = {"length": 512, "head_dim": 8, "base": 10_000.0, "batch": 4, "far": 65536}
    assert report["settings"] == {"device": "cpu", **sizes}
    code, out, err = call("bench", "tables", *TINY)
    assert code == 0 and "exact, contiguous" in out and report["machine"]["cpu"] in out
    assert "tables: 6 paths, 2 rounds" in err
    code, out, err = call("bench", "tables", *TINY, "--out", str(kept))
    assert (code, out) == (2, "") and "exists, and recorded results are kept" in err


def test_bench_shows_no_speed_of_wrong_numbers(call, monkeypatch):
    from whorl.rotary import tables

    right = tables.exact
    monkeypatch.setattr(tables, "exact", lambda *given: tuple(table + 1e-6 for table in right(*given)))
    code, out, err = call("bench", "tables", *TINY)
    assert code == 1 and "its speed is not shown" in err
    rows = [line for line in out.splitlines() if line.startswith("exact, ")]
    assert len(rows) == 4 and all("not timed" in row and "over 4e-08" in row for row in rows)
    naive = next(line for line in out.splitlines() if line.startswith("naive"))
    assert "1.00" in naive and "not timed" not in naive
