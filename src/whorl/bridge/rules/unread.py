"""Rules about fields that a family's class never reads, whatever other programs make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whorl.bridge.rules.facts import Facts, Rules, type_of
from whorl.dialects.class_defaults import version
from whorl.dialects.families import FULL, SLIDING, class_reads, class_rope, family_of
from whorl.dialects.names import BASES, HEAD_DIMS, SHARES
from whorl.dialects.reading import Described
from whorl.dialects.unread import ROPES, SHARE, unread_fields
from whorl.errors import shown

RULES = Rules()
QUIET_TYPES = ("modernbert", "modernbert-decoder")  # whose own files say "absolute", from the class they began as


@RULES.add(
    "name-not-read",
    "warning",
    "Find out whether the weights were trained with it. If so, state it by a name that the class reads, or run the "
    "code that reads this one.",
)
def name_not_read(facts: Facts) -> Iterator[str]:
    if facts.reading is None or not facts.reading.dialect.startswith("transformers"):
        return
    config, name = facts.reading.config, facts.reading.family
    others = family_of(config).other_names
    for place, value in unread_fields(config).items():
        if _says_nothing(place, value, facts.rotations):
            continue
        said = f"{place}={_shortened(value)} does nothing"
        its = f"{name} reads {others[place]}" if place in others else f"{name}'s class never reads it"
        yield f"{said}: {its}" if place in others else f"{said}: {its} in transformers {version()}"
    yield from _own_scaling(config, name)
    yield from _one_kind(facts, name)
    yield from _share_that_fails(facts, name)
    kind = config.get("position_embedding_type")
    reads = class_reads(config)
    unread = reads is not None and "position_embedding_type" not in reads and name not in QUIET_TYPES
    if unread and facts.rotations and isinstance(kind, str) and not ("rope" in kind or "rotary" in kind):
        yield f"position_embedding_type={_shortened(kind)} does nothing: {name}'s class rotates whatever it says"


def _own_scaling(config: Mapping[str, Any], name: str) -> Iterator[str]:
    """A base beside no rope dict, in a family whose class then takes a rope dict of its own."""
    family, rope = family_of(config), class_rope(config)
    base = config.get("rope_theta")
    silent = not any(isinstance(config.get(key), dict) and config[key] for key in ROPES)
    if type(base) not in (int, float):
        return
    own = {one.get("rope_theta") for one in (rope, *rope.values()) if isinstance(one, dict)} - {None}
    if family.needs_parameters and silent and not family.theta_beside and own - {base}:
        yield (
            f"rope_theta={_shortened(base)} does nothing: where the file has no rope_parameters, {name}'s class takes "
            "its own, base and all"
        )


def _one_kind(facts: Facts, name: str) -> Iterator[str]:
    """A base that the class gives to one kind of layers alone."""
    layers = family_of(facts.reading.config).layers if facts.reading is not None else {}
    base = facts.number(facts.config, "rope_theta")
    if base is None or SLIDING not in layers or layers[SLIDING].base_key or layers.get(FULL) is None:
        return
    if (
        layers[FULL].base_key == "rope_theta"
        and base != layers[SLIDING].base
        and facts.config.get("rope_parameters") is None
    ):
        yield (
            f"rope_theta={base:g} counts in layers of kind {FULL!r} alone: {name}'s class in transformers {version()} "
            f"gives those of kind {SLIDING!r} the base {layers[SLIDING].base:g}"
        )


def _share_that_fails(facts: Facts, name: str) -> Iterator[str]:
    """A share of the head beside a scaling, in a family whose class turns whole heads."""
    reads = class_reads(facts.reading.config) if facts.reading is not None else None
    if reads is None or SHARE in reads or not facts.rotations:
        return
    for place, rope in facts.ropes.items():
        share = facts.number(rope, SHARE) or facts.number(facts.config, SHARE)
        if share not in (None, 1.0) and type_of(rope) not in ("default", "proportional"):
            yield (
                f"{SHARE}={share:g} beside {place} is taken here; {name}'s class in transformers {version()} makes "
                "angles for that part and turns the whole head by them, which fails"
            )


def _says_nothing(place: str, value: Any, rotations: list[Described]) -> bool:
    """Whether a field that is not read says what the model does anyway, so that it does no harm."""
    field = place.rpartition(".")[2]
    if type(value) not in (bool, int, float, str, list, dict):
        return False
    if field == "rope_interleave" and rotations:
        return bool(value) == (rotations[0].value("layout") != "half")
    if value is False or (isinstance(value, (list, dict, str)) and not value):
        return True
    if field in ("layer_types", "no_rope_layers"):
        return isinstance(value, list) and all(
            isinstance(one, (str, int)) and one == (FULL if field == "layer_types" else 1) for one in value
        )
    if not rotations:  # the rule about dead rope fields speaks of the rest
        return "rope" in field or "rotary" in field
    head_dim = rotations[0].value("head_dim")
    rotary_dim = rotations[0].value("rotary_dim") or head_dim
    if field in SHARES and isinstance(value, (int, float)) and isinstance(head_dim, int):
        return 0 < value <= 1 and rotary_dim == int(head_dim * value)
    if field in ("rotary_dim", "qk_rope_head_dim"):
        return value == rotary_dim
    if field in HEAD_DIMS:
        return value == head_dim
    return field in BASES and any(value == one.value("base") for one in rotations)


def _shortened(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)
