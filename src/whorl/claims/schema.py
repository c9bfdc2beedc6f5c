"""The ledger as JSON: what a document holds, and a check that one does.

``SCHEMA`` is JSON Schema (draft 2020-12), of which ``problems`` knows the words that are used here. docs/claims.md
explains every field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from whorl import __version__
from whorl.claims.ledger import COMPUTED, KINDS, Row

NAME = "whorl-claims/1"

TEXT = {"type": "string"}
WORDS = {"type": "string", "minLength": 1}
MAYBE = {"type": ["string", "null"]}
LIST = {"type": "array", "items": TEXT}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CLAIM = _object(
    {
        "id": {"type": "string", "minLength": 3},
        "topic": WORDS,
        "statement": _object({"en": WORDS, "zh": WORDS}),
        "says": WORDS,
        "how": WORDS,
        "rows": LIST,
        "encodings": LIST,
        "verdict": WORDS,
        "kind": {"enum": list(KINDS)},
        "expected": {"enum": list(KINDS)},
        "as_expected": {"type": "boolean"},
        "numbers": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "counterexample": MAYBE,
        "source": WORDS,
        "command": MAYBE,
        "seconds": {"type": "number"},
    }
)

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": NAME,
    **_object(
        {
            "schema": {"enum": [NAME]},
            "whorl": WORDS,
            "torch": WORDS,
            "seconds": {"type": "number"},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "unexpected": LIST,
            "claims": {"type": "array", "items": CLAIM},
        }
    ),
}


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as one JSON-ready document."""
    counts = Counter(row.verdict.kind for row in rows)
    return {
        "schema": NAME,
        "whorl": __version__,
        "torch": str(torch.__version__),
        "seconds": round(sum(row.seconds for row in rows), 3),
        "counts": {kind: counts[kind] for kind in KINDS},
        "unexpected": [row.id for row in rows if not row.as_expected],
        "claims": [row.to_dict() for row in rows],
    }


def problems(data: Any) -> list[str]:
    """What keeps data from being a document of this schema, in words; nothing where it is one.

    >>> problems({"schema": "whorl-claims/1"})[0]
    'whorl is missing'
    """
    found = _problems(data, SCHEMA, "")
    for claim in data.get("claims", []) if not found else []:
        source = claim["source"]
        if source != COMPUTED and not source.startswith("experiments/"):
            found.append(f"claims.{claim['id']}.source is {source!r}")
        if claim["kind"] == "fails" and not claim["counterexample"]:
            found.append(f"claims.{claim['id']} fails without a counterexample")
        if claim["kind"] == "needs training" and not claim["command"]:
            found.append(f"claims.{claim['id']} needs training and says not which")
    return found


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def _problems(data: Any, rule: dict[str, Any], where: str) -> list[str]:
    here = where or "the document"
    if "enum" in rule:
        return [] if data in rule["enum"] else [f"{here} is {data!r}"]
    kinds = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    fits = [kind for kind in kinds if isinstance(data, TYPES[kind]) and isinstance(data, bool) == (kind == "boolean")]
    if not fits:
        return [f"{here} is no {' or '.join(kinds)}"]
    if isinstance(data, str):
        return [] if len(data) >= rule.get("minLength", 0) else [f"{here} is too short"]
    if isinstance(data, list):
        return [one for i, item in enumerate(data) for one in _problems(item, rule["items"], f"{where}[{i}]")]
    if not isinstance(data, dict):
        return []
    inner, more = rule.get("properties", {}), rule.get("additionalProperties", {})
    dot = f"{where}." if where else ""
    found = [f"{dot}{name} is missing" for name in rule.get("required", []) if name not in data]
    for name, value in data.items():
        if name in inner:
            found += _problems(value, inner[name], f"{dot}{name}")
        elif more is False:
            found.append(f"{dot}{name} is not in the schema")
        else:
            found += _problems(value, more, f"{dot}{name}")
    return found
