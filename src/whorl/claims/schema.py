"""The ledger as JSON: what a document holds, as JSON Schema (draft 2020-12). docs/claims.md explains every field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from whorl import WhorlError, __version__
from whorl.claims.ledger import BETWEEN, COMPUTED, FLAGS, KINDS, Row
from whorl.claims.redirects import REDIRECTS

NAME = "whorl-claims/2"

TEXT = {"type": "string"}
WORDS = {"type": "string", "minLength": 1}
MAYBE = {"type": ["string", "null"]}
LIST = {"type": "array", "items": TEXT}
PATH = r"(experiments|benchmarks)/[\w./-]+"  # from the root of a checkout
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _needs(kind: str, field: str) -> dict[str, Any]:
    """A claim of this kind has something in this field."""
    return {"if": {"properties": {"kind": {"const": kind}}}, "then": {"properties": {field: {"not": {"type": "null"}}}}}


BOTH = _object({"en": WORDS, "zh": WORDS})

CLAIM = _object(
    {
        "id": {"type": "string", "minLength": 3},
        "topic": WORDS,
        "statement": BOTH,
        "says": WORDS,
        "how": BOTH,
        "encodings": LIST,
        "verdict": BOTH,
        "kind": {"enum": list(KINDS)},
        "expected": {"enum": list(KINDS)},
        "as_expected": {"type": "boolean"},
        "numbers": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "counterexample": {"anyOf": [BOTH, {"type": "null"}]},
        "source": {"type": "string", "pattern": f"^({COMPUTED}|{PATH}({BETWEEN}{PATH})*)$"},
        "command": MAYBE,
        "seconds": {"type": "number"},
    }
) | {"allOf": [_needs("fails", "counterexample"), _needs("needs training", "command")]}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": NAME,
    **_object(
        {
            "schema": {"enum": [NAME]},
            "whorl": WORDS,
            "torch": WORDS,
            "seconds": {"type": "number"},
            "counts": _object({"claims": COUNTS, "flags": COUNTS}),
            "unexpected": LIST,
            "claims": {"type": "array", "items": CLAIM},
            "flags": {"type": "array", "items": CLAIM},
            "redirects": {"type": "object", "additionalProperties": TEXT},
        }
    ),
}


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as one JSON-ready document: written claims, and apart from them what encodings say of themselves."""
    flags = [row for row in rows if row.claim.topic == FLAGS]
    claims = [row for row in rows if row.claim.topic != FLAGS]
    return {
        "schema": NAME,
        "whorl": __version__,
        "torch": str(torch.__version__),
        "seconds": round(sum(row.seconds for row in rows), 3),
        "counts": {"claims": _counts(claims), "flags": _counts(flags)},
        "unexpected": [row.id for row in rows if not row.as_expected],
        "claims": [row.to_dict() for row in claims],
        "flags": [row.to_dict() for row in flags],
        "redirects": REDIRECTS,
    }


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    found = Counter(row.verdict.kind for row in rows)
    return {kind: found[kind] for kind in KINDS}


def problems(data: Any) -> list[str]:
    """The errors of data against this schema, in words; none where it fits. Needs jsonschema."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise WhorlError("problems: jsonschema is not installed. Run: pip install jsonschema") from None
    errors = Draft202012Validator(SCHEMA).iter_errors(data)
    return [f"{error.json_path.lstrip('$.') or 'the document'}: {error.message}" for error in errors]
