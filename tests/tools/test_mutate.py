"""tools/mutate.py: what is changed, what is left alone, and what the record says of it."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from whorl.claims import ledger
from whorl.encodings import alibi
from whorl.encodings.alibi import Alibi
from whorl.encodings.kerple import Kerple

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants(request):
    sys.path.insert(0, str(ROOT / "tools"))
    request.addfinalizer(lambda: sys.path.remove(str(ROOT / "tools")))
    return importlib.import_module("mutants")


@pytest.fixture(scope="module")
def mutate(mutants):
    return importlib.import_module("mutate")


def of_function(mutants, file, function):
    return [one for one in mutants.of_file(mutants.SOURCES / file) if one.function == function]


def test_every_kind_of_change_of_one_formula(mutants):
    found = {(one.kind, one.old, one.new) for one in of_function(mutants, "encodings/kerple.py", "log_kernel")}
    assert found == {
        ("sign", "-p", "p"),
        ("operator", "-p * torch.log1p(a * distance)", "-p / torch.log1p(a * distance)"),
        ("dropped term", "-p * torch.log1p(a * distance)", "-p"),
        ("dropped term", "-p * torch.log1p(a * distance)", "torch.log1p(a * distance)"),
        ("operator", "a * distance", "a / distance"),
        ("dropped term", "a * distance", "a"),
        ("dropped term", "a * distance", "distance"),
    }
    masked = {(one.kind, one.old, one.new) for one in of_function(mutants, "encodings/masks.py", "within")}
    compared = "(distance.abs() if symmetric else distance) < size"
    assert masked == {("comparison", compared, compared.replace("<", op)) for op in ("<=", ">")}


def test_messages_checks_and_carriers_are_left_alone(mutants):
    every = list(mutants.every())
    assert len({one.key for one in every}) == len(every) > 2000
    assert not any(Path(one.file).name in mutants.CARRIERS for one in every)
    assert not any("check" in one.function.lower() for one in every)
    assert not any("raise " in one.text or "assert " in one.text for one in every)
    # the test of an if that raises, and what is said there
    lines = {one.line for one in of_function(mutants, "encodings/learned.py", "Learned.extend")}
    source = (mutants.SOURCES / "encodings/learned.py").read_text().splitlines()
    assert all("new_length < length" not in source[line - 1] and "remedy" not in source[line - 1] for line in lines)


def test_a_sample_is_the_same_each_time_and_part_of_a_larger_one(mutants):
    small, large = mutants.sample(20, seed=1), mutants.sample(40, seed=1)
    assert large[:20] == small and mutants.sample(20, seed=2) != small


def test_sources_are_read_and_never_written(mutants):
    path = mutants.SOURCES / "encodings" / "kerple.py"
    before = path.read_text()
    assert all(ast.parse(one.new) and mutants.code_of(one) for one in mutants.of_file(path))
    assert path.read_text() == before


def put(mutants, mutate, monkeypatch, function, file, name, **wanted):
    """Puts the one mutant that is wanted into a function for the rest of a test."""
    every = of_function(mutants, file, name)
    (found,) = [one for one in every if all(getattr(one, key) == value for key, value in wanted.items())]
    monkeypatch.setattr(function, "__code__", function.__code__)  # put back afterwards
    mutate.put_in(found, mutants.code_of(found))


def test_a_mutant_is_put_in_wherever_the_function_is_held(mutants, mutate, monkeypatch):
    kerple, ones = Kerple(heads=1), torch.ones(1)
    with torch.no_grad():
        before = kerple.bias_of(torch.tensor([0]), torch.tensor([3]))
        where = ("encodings/kerple.py", "log_kernel")
        put(mutants, mutate, monkeypatch, sys.modules[Kerple.__module__].log_kernel, *where, kind="sign", old="-p")
        assert torch.equal(kerple.bias_of(torch.tensor([0]), torch.tensor([3])), -before)
    # a function below a memo, whose results are forgotten
    six = Alibi(heads=6)  # whose text lives as long
    text = six._text
    assert alibi.slope_numbers(text)[3:] == (2.0**-8, 2.0**-1, 2.0**-3)
    slopes = {"kind": "dropped term", "old": "2 * lower", "new": "lower"}
    put(mutants, mutate, monkeypatch, alibi.press_slopes, "encodings/alibi.py", "press_slopes", **slopes)
    assert alibi.slope_numbers(text)[3:] == (2.0**-8, 2.0**-2, 2.0**-6)
    mutate._forget()
    assert torch.equal(ones, torch.ones(1)) and alibi.geometric_slopes(2) == [2.0**-4, 2.0**-8]


def test_a_fork_says_what_it_found_and_one_that_does_not_end_is_told_apart(mutate):
    assert mutate._last_line(lambda send: (send("?a"), send("!a"))) == (True, "!a")

    def never(send):
        send("?b")
        mutate.signal.setitimer(mutate.signal.ITIMER_PROF, 0.05)
        while True:
            pass

    assert mutate._last_line(never) == (False, "?b")
    assert dict(mutate._forked(lambda n: n * n, [1, 2, 3], 2)) == {1: 1, 2: 4, 3: 9}


def test_the_record_is_whole_and_every_survivor_has_its_reason(mutants, mutate):
    record = json.loads(mutate.RECORD.read_text())
    rows = record["mutants"]
    assert record["summary"] == mutate.summary(rows)
    assert len(rows) == 400 and all("killed_by" in row for row in rows)
    # a formula may be rewritten without all mutants being run again, but not many of them
    there = {one.key for one in mutants.every()}
    gone = [row["key"] for row in rows if row["key"] not in there]
    assert len(gone) <= 0.05 * len(rows), f"{len(gone)} are of code that is no more. Run make mutate."
    claims = {claim.id for claim in ledger.every()}
    assert {row["red"].partition(" (")[0] for row in rows if row["red"]} <= claims
    survived = [row for row in rows if row["killed_by"] is None]
    assert [row["key"] for row in survived if not row.get("reason")] == []
    assert len(survived) <= 0.1 * len(rows)
    subject = [row for row in rows if row["killed_by"] and row["claims"]]
    assert sum(row["red"] is not None for row in subject) >= 0.8 * len(subject)
