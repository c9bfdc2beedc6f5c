"""The ledger can fail: every mutant is caught by the claims it names, and every computed claim is turned by one."""

import pytest

from claims.formula_mutants import MUTANTS
from claims.mutants import broken
from whorl.claims import ledger
from whorl.kernels import refusals
from whorl.plans import PLANS

CLAIMS = {claim.id: claim for claim in ledger.every()}


def test_there_are_enough_mutants_and_they_know_what_they_break():
    assert len(MUTANTS) >= 25
    assert {id for one in MUTANTS.values() for id in one.kills} <= set(CLAIMS)
    assert all(one.kills for one in MUTANTS.values())


@pytest.mark.parametrize("name", MUTANTS)
def test_the_claims_it_names_turn_red(name):
    with broken(MUTANTS[name]):
        rows = ledger.run(CLAIMS[id] for id in MUTANTS[name].kills)
    assert [row.id for row in rows if row.as_expected] == []
    # by what was measured, not by a test that broke
    assert [f"{row.id}: {row.finding.counterexample}" for row in rows if row.raised] == []


def test_every_claim_that_holds_is_killed_by_a_mutant(whole_ledger):
    """Those measured in this run; what a committed comparison decides, no change of an encoding can turn."""
    computed = [row for row in whole_ledger if row.finding.source == ledger.COMPUTED]
    holds = {row.id for row in computed if row.verdict.kind in ("holds", "holds within")}
    assert holds - {id for one in MUTANTS.values() for id in one.kills} == set()


def test_every_claim_that_fails_is_turned_by_a_mutant(whole_ledger):
    computed = [row for row in whole_ledger if row.finding.source == ledger.COMPUTED]
    wrong = {row.id for row in computed if row.verdict.kind in ("fails", "depends on")}
    assert wrong - {id for one in MUTANTS.values() for id in one.kills} == set()


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """Rotations as they are written in torch, which is what the mutants break; kernels are tested against it."""
    monkeypatch.setattr(refusals, "AUTO", {})
    monkeypatch.setattr(PLANS, "_used", {})
    monkeypatch.setattr(PLANS, "_before", {})


@pytest.mark.parametrize("name", ["sin and cos swapped", "squared exponent", "alibi with the other sign"])
def test_nothing_of_a_mutant_stays(name):
    with broken(MUTANTS[name]):
        pass
    assert all(row.as_expected for row in ledger.run(CLAIMS[id] for id in MUTANTS[name].kills))
