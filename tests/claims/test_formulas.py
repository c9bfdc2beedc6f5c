"""The numbers that formulas are held against: those of the oracles, and of every encoding and scaling."""

import json
import math

import numpy as np

from claims import golden
from whorl import Window, registry
from whorl.claims import find, formulas, ledger, verify

WITHOUT = {"none"}  # no formula: nothing enters


def test_the_committed_numbers_are_those_of_the_oracles():
    committed = json.loads(golden.FILE.read_text())
    assert {name: list(cases) for name, cases in committed.items()} == {
        name: list(cases) for name, cases in golden.numbers().items()
    }
    for name, cases in golden.numbers().items():
        for label, numbers in cases.items():
            np.testing.assert_allclose(
                committed[name][label], numbers, rtol=1e-9, atol=1e-9, err_msg=f"{name}, {label}"
            )


def test_every_encoding_and_every_scaling_has_a_formula():
    scaled = {f"rope+{name}" for name in registry.SCALINGS}
    assert set(formulas.CASES) == set(registry.names()) - WITHOUT | scaled
    assert {name: list(cases) for name, cases in formulas.golden().items()} == {
        name: list(cases) for name, cases in formulas.CASES.items()
    }


def test_they_hold():
    rows = ledger.run(formulas.claims())
    assert [row.id for row in rows if not row.as_expected] == []


def test_numbers_that_are_other_or_fewer_turn_it_red(monkeypatch):
    case = formulas.CASES["alibi"]
    monkeypatch.setitem(formulas.CASES, "alibi", case | {"causal": lambda: 1.001 * case["causal"]()})
    (row,) = ledger.run([find("alibi.formula")])
    assert row.verdict.kind == "fails" and not row.raised and row.numbers["off by, causal"] > 0.01
    monkeypatch.setitem(formulas.CASES, "alibi", case | {"causal": lambda: case["causal"]()[:1]})
    (row,) = ledger.run([find("alibi.formula")])
    assert not row.raised and row.finding.counterexample == "causal: shape (1, 4, 5) in the place of (6, 4, 5)"
    monkeypatch.setitem(formulas.CASES, "alibi", case | {"offset": lambda: math.nan * case["offset"]()})
    (row,) = ledger.run([find("alibi.formula")])
    assert row.verdict.kind == "fails"


def test_a_name_brings_its_formula_and_an_encoding_itself_does_not():
    ids = {row.id for row in verify("rope")}
    assert {"rope.formula", "rope+yarn.formula", "rope+linear.formula"} <= ids and "xpos.formula" not in ids
    assert "window.formula" not in {row.id for row in verify(Window(size=4))}
