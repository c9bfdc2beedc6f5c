"""Class defaults: what the config classes of transformers fill in where a file is silent.

The table is data (``class_defaults.json``), made by ``tools/make_class_defaults.py`` from the classes themselves. It is
needed since transformers saves a config inside another one as its differences from these defaults.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from whorl.dialects.names import HEAD_DIMS, HEADS, LAYERS, LENGTHS, WIDTHS

DATA = Path(__file__).with_name("class_defaults.json")

# One size under many names: a class has one of them, a file may have another.
SYNONYMS: tuple[Collection[str], ...] = (HEAD_DIMS, WIDTHS, HEADS, LAYERS, LENGTHS)
# What a class makes of other fields, and what is no field.
COMPUTED = ("rope_parameters", "layer_types", "parts", "reads")


@cache
def _table() -> Mapping[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def version() -> str:
    """The version of transformers whose classes the table holds."""
    return _table()["transformers"]


def all_defaults() -> Mapping[str, Mapping[str, Any]]:
    """The defaults of every class in the table, by model type."""
    return _table()["classes"]


def class_defaults(model_type: object) -> Mapping[str, Any]:
    """The defaults of the class of this model type, empty where transformers has none."""
    return _table()["classes"].get(model_type, {}) if isinstance(model_type, str) else {}


def constants(model_type: str | None) -> dict[str, Any]:
    """The defaults that a class has as constants."""
    return {name: value for name, value in class_defaults(model_type).items() if name not in COMPUTED}


def filled(config: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The config with the fields that its class fills in, and the names of those fields."""
    there = set(config)
    for names in SYNONYMS:
        if there.intersection(names):
            there.update(names)
    added = {name: value for name, value in constants(config.get("model_type")).items() if name not in there}
    return {**config, **added}, frozenset(added)


def period(values: Sequence[Any]) -> list[Any]:
    """The shortest beginning of a list that makes all of it when repeated.

    >>> period(["a", "a", "b", "a", "a", "b", "a"])
    ['a', 'a', 'b']
    """
    for length in range(1, len(values) + 1):
        if all(value == values[i % length] for i, value in enumerate(values)):
            return list(values[:length])
    return list(values)
