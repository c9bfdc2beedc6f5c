"""No claim passes over a measurement that is not a number: a comparison with it is false, and max may leave it out."""

import math
import sys

import pytest

from whorl.claims import ledger, probes
from whorl.encodings.rope import Rope

CLAIMS = {claim.id: claim for claim in ledger.every()}

# Enough for each kind of measurement of a claim; those with more measure the same of one encoding after another.
MOST = 8

# It looks for encodings that work beside RoPE: one whose own measurement breaks is not among them.
SEARCHES = {"note.only-rope-linear"}


class Measuring:
    """``largest`` as it is, but for the call of one number."""

    def __init__(self) -> None:
        self.calls, self.broken = 0, -1

    def __call__(self, x):
        value, self.calls = probes.largest(x), self.calls + 1
        return math.nan if self.calls - 1 == self.broken else value

    def row(self, claim: ledger.Claim, broken: int = -1) -> ledger.Row:
        self.calls, self.broken = 0, broken
        (row,) = ledger.run([claim])
        return row


@pytest.fixture(scope="module")
def measuring():
    patch, made = pytest.MonkeyPatch(), Measuring()
    for name, module in list(sys.modules.items()):
        if name.startswith("whorl.claims.") and module is not probes and vars(module).get("largest") is probes.largest:
            patch.setattr(module, "largest", made)
    yield made
    patch.undo()


@pytest.mark.parametrize("id", [id for id in CLAIMS if id not in SEARCHES])
def test_each_measurement_of_a_claim_counts(id, measuring):
    claim = CLAIMS[id]
    assert measuring.row(claim).as_expected
    calls = range(min(measuring.calls, MOST))
    assert [call for call in calls if measuring.row(claim, call).as_expected] == []


def test_weights_that_are_not_numbers_are_not_relative(monkeypatch):
    own = Rope.transform_qk

    def transform_qk(self, q, k, q_positions, k_positions, *rest, **more):
        q, k = own(self, q, k, q_positions, k_positions, *rest, **more)
        return (q * math.nan if int(q_positions.max()) > 4000 else q), k

    monkeypatch.setattr(Rope, "transform_qk", transform_qk)
    (row,) = ledger.run([CLAIMS["rope.flag.relative"]])
    assert not row.as_expected
