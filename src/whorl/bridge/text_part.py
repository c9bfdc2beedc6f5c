"""The text part of a transformers config: where its fields stand in the file, and the file with them written anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.parts import inner_part, text_part, with_defaults
from whorl.dialects.values import DEEPEST

SCHEMAS = ("rope_parameters", "rope_scaling")  # where versions 5 and 4 of transformers keep a scaling


def text_path(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names under which the config of the text model stands inside a multimodal one; empty where it is the file."""
    path: list[str] = []
    for _ in range(DEEPEST):
        name = inner_part(config)
        if name is None:
            break
        path.append(name)
        config = config[name]
    return tuple(path)


def text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text model as the file has them."""
    for name in text_path(config):
        config = config[name]
    return dict(config)


def filled_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text model, with those that its class in transformers fills in."""
    fields, added = text_part(dict(config))
    return fields if added else with_defaults(fields)[0]


def with_text_fields(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these fields in place of those of its text model."""
    return nested(fields, text_path(config), around=config)


def nested(fields: Mapping[str, Any], path: tuple[str, ...], around: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields under the names of a path, as an override needs them; inside a whole config where one is given.

    >>> nested({"rope_theta": 1e6}, ("text_config",))
    {'text_config': {'rope_theta': 1000000.0}}
    """
    if not path:
        return dict(fields)
    kept = {} if around is None else dict(around)
    return {**kept, path[0]: nested(fields, path[1:], None if around is None else around[path[0]])}


def by_kind(rope: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rope dict of each kind of layer, under "" where there is one for all."""
    inner = {kind: dict(one) for kind, one in rope.items() if isinstance(one, dict)}
    return inner or {"": dict(rope)}


def joined(ropes: Mapping[str, Mapping[str, Any]], like: Mapping[str, Any]) -> dict[str, Any]:
    """The rope dict that ``by_kind`` took apart; kinds of layers that have none stay so."""
    if "" in ropes:
        return dict(ropes[""])
    return {kind: dict(ropes[kind]) if kind in ropes else one for kind, one in like.items()}
