"""The ledger as a JSON document: it fits its schema, and what does not is named."""

import json
import sys

import jsonschema
import pytest

import whorl
from whorl.claims import Claim, Finding, Verdict, find, ledger, schema
from whorl.claims.report import numbers_in_short


def test_the_document_fits_its_schema(whole_ledger):
    document = schema.document(whole_ledger)
    again = json.loads(json.dumps(document, allow_nan=False, ensure_ascii=False))
    assert schema.problems(again) == [] and again == document
    counted = [sum(document["counts"][group].values()) for group in ("claims", "flags")]
    assert counted == [len(document["claims"]), len(document["flags"])] and sum(counted) == len(whole_ledger)
    assert counted[0] == len(ledger.written()) and document["unexpected"] == []
    assert all(claim["topic"] != "flags" for claim in document["claims"])
    assert all(claim["topic"] == "flags" for claim in document["flags"])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "whorl-claims/3", "schema: 'whorl-claims/3' is not one of ['whorl-claims/2']"),
        (("seconds",), "fast", "seconds: 'fast' is not of type 'number'"),
        (("extra",), 1, "the document: Additional properties are not allowed ('extra' was unexpected)"),
        (("claims", 0, "kind"), "maybe", "claims[0].kind: 'maybe' is not one of ["),
        (("claims", 0, "statement", "zh"), "", "claims[0].statement.zh: '' should be non-empty"),
        (("claims", 0, "as_expected"), 1, "claims[0].as_expected: 1 is not of type 'boolean'"),
        (("claims", 0, "numbers", "x"), "1", "claims[0].numbers.x: '1' is not of type 'number', 'null'"),
        (("claims", 0, "source"), "somewhere", "claims[0].source: 'somewhere' does not match"),
        (("claims", 0, "kind"), "fails", "claims[0].counterexample: None should not be valid under {'type': 'null'}"),
        (("claims", 0, "kind"), "needs training", "claims[0].command: None should not be valid under {'type': 'null'}"),
        (("counts", "claims", "holds"), 1.5, "counts.claims.holds: 1.5 is not of type 'integer'"),
        (("redirects", "a.b"), 1, "redirects['a.b']: 1 is not of type 'string'"),
    ],
)
def test_what_does_not_fit_is_named(path, value, said):
    document = json.loads(json.dumps(schema.document(ledger.run([find("none.equivariant")]))))
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    (problem,) = schema.problems(document)
    assert problem.startswith(said)


def test_a_field_that_is_missing_is_named():
    document = schema.document(ledger.run([find("none.equivariant")]))
    del document["claims"][0]["how"]
    assert schema.problems(document) == ["claims[0]: 'how' is a required property"]


def test_the_schema_is_one_and_its_check_asks_for_jsonschema(monkeypatch):
    jsonschema.Draft202012Validator.check_schema(schema.SCHEMA)
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(whorl.WhorlError, match=r"problems: jsonschema is not installed\. Run: pip install jsonschema"):
        schema.problems({})


def test_numbers_that_are_not_finite_are_null():
    claim = Claim(
        id="a.b", english="A.", chinese="甲。", says="x", how="y.", expected="holds", topic="flags",
        test=lambda: Finding(verdict=Verdict("holds"), numbers={"x": float("nan"), "y": float("inf"), "z": 1.0}),
    )  # fmt: skip
    document = schema.document(ledger.run([claim]))
    assert document["flags"][0]["numbers"] == {"x": None, "y": None, "z": 1.0}
    assert schema.problems(document) == []
    assert numbers_in_short(document["flags"][0]["numbers"]) == "x: not finite; y: not finite; z: 1"
