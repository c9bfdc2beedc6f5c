"""Unread fields of transformers configs: names that say something of positions and that the family's class never reads.

Which names a class reads was taken from its code (``class_defaults.json``). A field that it never reads does not count,
whatever it says; the lint names it. For a family without a class in transformers all names count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from whorl.dialects.families import class_reads, family_of
from whorl.dialects.names import POSITIONAL

ROPES = ("rope_parameters", "rope_scaling")
SHARE = "partial_rotary_factor"
# what tells a family from others of its name, and what caches look at: other code reads them too
KEPT = ("position_embedding_type", "use_sliding_window")


def own_fields(config: dict[str, Any], heeded: Collection[str] = ()) -> dict[str, Any]:
    """The config without the fields that its class never reads; ``heeded`` names those that count all the same."""
    unread = unread_fields(config, heeded)
    if not unread:
        return config
    kept = {name: value for name, value in config.items() if name not in unread}
    inside = [name for name in ROPES if f"{name}.{SHARE}" in unread]
    return kept | {name: {k: v for k, v in config[name].items() if k != SHARE} for name in inside}


def unread_fields(config: Mapping[str, Any], heeded: Collection[str] = ()) -> dict[str, Any]:
    """The fields that say something of positions and that the class of the config never reads, by their places."""
    family, reads = family_of(config), class_reads(config)
    found = {name: config[name] for name in family.other_names if config.get(name) is not None}
    if reads is None:
        return found
    counted = {*reads, *family.reads, *KEPT, *heeded}
    stated = {name: value for name, value in config.items() if name in POSITIONAL - counted and value is not None}
    ropes = {name: config[name] for name in ROPES if isinstance(config.get(name), dict)}
    nested = any(isinstance(value, dict) for rope in ropes.values() for value in rope.values())
    if nested:
        stated.pop("layer_types", None)  # its dicts are meant for these kinds of layers
    if nested or any(_scales(rope) for rope in ropes.values()):
        stated.pop(SHARE, None)  # what all classes share reads it then, and the class fails
    elif SHARE not in counted:
        stated |= {f"{name}.{SHARE}": rope[SHARE] for name, rope in ropes.items() if rope.get(SHARE) is not None}
    return found | stated


def _scales(rope: Mapping[str, Any]) -> bool:
    """Whether a rope dict names another type than the default one."""
    kind = rope.get("rope_type", rope.get("type"))
    return isinstance(kind, str) and kind != "default"
