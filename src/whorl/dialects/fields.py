"""Rotary fields of transformers configs: one flat view of what versions 4 and 5 write in different places.

The priority of the fields is that of transformers 5: what the rope dict says, then the fields beside it, then
what the family's code fixes (``families.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whorl.dialects.checks import check_names, check_rotates
from whorl.dialects.families import Family, family_name, family_of, standing_of
from whorl.dialects.layer_kinds import kinds_of
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.parts import text_part, with_defaults
from whorl.dialects.reading import Standing
from whorl.dialects.rope_dicts import rope_dict, sections_renamed, type_of
from whorl.dialects.sizes import base_of, share_of, sizes_of, unrotated
from whorl.dialects.unread import own_fields
from whorl.dialects.values import CALL, layer_types, whole_number
from whorl.errors import WhorlError, invalid


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Fields of a config that describe the rotation of one layer type.

    config           the text part of the config
    added            the names of the fields that its class filled in
    standing         whether its family is known
    rope_kind        what the family calls the layer type in its rope dict
    parameters       its rope dict, nulls left out; messages call it ``parameters_name``
    rope_type        its type, by the present name
    share            the share of the head that is rotated
    length           max_position_embeddings, if there is one
    original_length  the length that yarn, longrope and llama3 start from, if there is one
    """

    config: dict[str, Any]
    added: frozenset[str]
    family: Family
    standing: Standing
    layer_type: str | None
    rope_kind: str
    parameters: dict[str, Any]
    parameters_name: str
    rope_type: str
    base: Any
    head_dim: int
    rotary_dim: int
    share: float
    length: int | None
    original_length: int | None


def read_fields(config: dict[str, Any], layer_type: str | None) -> Fields:
    """The rotary fields of a config for one layer type, or a WhorlError that names what is in the way."""
    if layer_type is not None and not isinstance(layer_type, str):
        raise invalid(CALL, "layer_type", "a string or None", layer_type)
    config, added = text_part(config)
    config = own_fields(config)
    check_rotates(config, family_of(config))
    return fields_of(_with_kinds(config, layer_type), added, layer_type)


def _with_kinds(config: dict[str, Any], layer_type: str | None) -> dict[str, Any]:
    """The config with the kind of each layer, which its class makes where the file lists none, for a type asked for."""
    filled = with_defaults(config)[0]
    some_rotate = any(filled.get(key) is not None for key in ("no_rope_layers", "no_rope_layer_interval"))
    if layer_type is None or (layer_types(config) and not some_rotate):
        return config
    kinds = kinds_of(filled)
    if kinds.kinds is None:
        return config
    if kinds.rotates is not None and layer_type in kinds.names:
        rotating = {turns for kind, turns in zip(kinds.kinds, kinds.rotates, strict=True) if kind == layer_type}
        if rotating == {False}:
            raise unrotated(layer_type, f"of model_type {config.get('model_type')!r}")
        if len(rotating) == 2:
            raise WhorlError(
                f"{CALL}: some layers of type {layer_type!r} rotate and some do not. whorl.read says which."
            )
    return {**config, "layer_types": kinds.kinds}


def fields_of(config: dict[str, Any], added: frozenset[str], layer_type: str | None) -> Fields:
    """The rotary fields of the config of a text model that rotates, for one layer type."""
    family = family_of(config)
    if family.refusal:
        raise WhorlError(f"{CALL}: model_type {config.get('model_type')!r} cannot be read: {family.refusal}.")
    check_names(config, family)
    kind = family.rope_kinds.get(layer_type or "", layer_type)
    parameters, name = rope_dict(config, family, kind)
    if family_name(config) == "hunyuan_vl":
        parameters = sections_renamed(parameters, name)
    # yarn takes a null factor for max_position_embeddings / original_max_position_embeddings
    parameters = {key: value for key, value in parameters.items() if value is not None or key == "factor"}
    rope_type = type_of(config, parameters, name)
    share = share_of(config, parameters, layer_type)
    # a proportional rotation is one of the whole head, with a share of still pairs
    head_dim, rotary_dim = sizes_of(config, family, 1 if rope_type == "proportional" else share, layer_type)
    length = whole_number(config, LENGTHS)
    # the field beside the rope dict wins there, but does not reach into layer types
    beside = None if "[" in name else whole_number(config, (ORIGINAL,))
    return Fields(
        config=config,
        added=added,
        family=family,
        standing=standing_of(config),
        layer_type=layer_type,
        rope_kind=kind or "",
        parameters=parameters,
        parameters_name=name,
        rope_type=rope_type,
        base=base_of(config, family, parameters, kind),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        share=family.partial if share is None else share,
        length=length,
        original_length=beside or whole_number(parameters, (ORIGINAL,)) or length,
    )
