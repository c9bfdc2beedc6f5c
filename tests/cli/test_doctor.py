"""``whorl doctor``: what runs here, and how it ends where torch does not."""

from __future__ import annotations

import sys

import torch


def test_doctor_says_what_runs_and_why_the_rest_does_not(call, answer):
    rows = {row["what"]: row for row in answer("doctor")}
    assert rows["torch"]["usable"] and torch.__version__ in rows["torch"]["detail"]
    assert rows["CUDA"]["usable"] == torch.cuda.is_available()
    assert rows["rotate impl=torch"]["usable"] and rows["rotate impl=numba"]["usable"]
    assert "impl='auto'" in rows["rotate impl=triton" if torch.cuda.is_available() else "rotate impl=numba"]["detail"]
    for row in rows.values():
        assert row["usable"] or row["detail"]
    code, out, _ = call("doctor")
    assert code == 0 and "rotate impl=triton" in out


def test_doctor_ends_with_1_where_torch_is_missing(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    code, out, _ = call("doctor")
    assert code == 1 and "pip install torch" in out and 'pip install "whorl[cpu]"' in out


def test_doctor_ends_with_1_where_torch_is_too_old(call, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    code, out, _ = call("doctor")
    assert code == 1 and "2.4.1, older than 2.11" in out
