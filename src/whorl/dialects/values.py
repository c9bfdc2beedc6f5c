"""Values of a transformers config, each with the type its name asks for, or a WhorlError that says so.

A config is a file that anyone may have written: no field is trusted to hold what it should. Null stands for absent.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from whorl.errors import WhorlError, invalid

CALL = "Rope.from_hf"
LARGEST = 2**63 - 1  # what a tensor of sizes or positions can hold
DEEPEST = 8  # how far a config may hold further ones

Source = Mapping[str, Any]


def whole_number(source: Source, names: Iterable[str], remedy: str = "", *, least: int = 1) -> int | None:
    """The first of these fields that is there, as an integer; None if none is."""
    expected = "a positive integer" if least == 1 else f"an integer from {least}"
    for name in names:
        value = source.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 or value < least:
            raise invalid(CALL, name, expected, value, remedy)
        if value > LARGEST:
            raise invalid(CALL, name, "below 2^63", value, remedy)
        return int(value)
    return None


def switch(source: Source, name: str) -> bool | None:
    """Whether this field is set; None where it is absent."""
    value = source.get(name)
    if value is not None and not isinstance(value, (bool, int)):
        raise invalid(CALL, name, "true, false or null", value)
    return None if value is None else bool(value)


def word(source: Source, name: str) -> str | None:
    """This field as a string; None where it is absent."""
    value = source.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(CALL, name, "a string or null", value)
    return value


def layer_types(source: Source, name: str = "layer_types") -> tuple[str, ...]:
    """The type of each layer, empty where the config does not say."""
    values = source.get(name)
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise invalid(CALL, name, "a list of names, one per layer", values)
    return tuple(values)


def number_per_layer(source: Source, name: str) -> tuple[float, ...] | None:
    """The numbers of a list with one per layer, null as 0; None where there is no list."""
    values = source.get(name)
    if not isinstance(values, (list, tuple)):
        return None
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
            raise invalid(CALL, name, "a list of numbers, one per layer", values)
    return tuple(0 if value is None else value for value in values)


def parts_by_layer(source: Source, name: str) -> dict[int, dict[str, Any]]:
    """Dicts of single layers by the index of the layer, empty where the config has none."""
    parts = source.get(name)
    if parts is None:
        return {}
    expected = 'a dict of dicts by layer, such as {"0": {}}'
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise invalid(CALL, name, expected, parts)
    by_layer = {}
    for key, part in parts.items():
        if isinstance(key, bool) or not str(key if isinstance(key, (int, str)) else "").isdecimal():
            raise invalid(CALL, f"a key of {name}", "the index of a layer", key)
        by_layer[int(key)] = part
    return by_layer


def check_fields(config: dict[Any, Any]) -> None:
    """Raises a WhorlError unless every field has a name, as in JSON."""
    for key in config:
        if not isinstance(key, str):
            raise invalid(CALL, "every key of the config", "a string", key, "Pass json.load of config.json.")


def check_plain(name: str, value: Any, depth: int = 0) -> None:
    """Raises a WhorlError unless a value is what JSON can hold, not too deep."""
    if depth > DEEPEST:
        raise WhorlError(f"{CALL}: {name} holds more than {DEEPEST} levels. {PLAIN}")
    if isinstance(value, dict):
        for key, inside in value.items():
            if not isinstance(key, str):
                raise invalid(CALL, f"every key of {name}", "a string", key, PLAIN)
            check_plain(name, inside, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inside in value:
            check_plain(name, inside, depth + 1)
    elif value is not None and not isinstance(value, (str, bool, int, float, numbers.Real)):
        raise invalid(CALL, name, "made of numbers, strings, lists and dicts", value, PLAIN)


PLAIN = "Pass what json.load gives."
