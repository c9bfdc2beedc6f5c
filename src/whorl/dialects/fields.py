"""Rotary fields of transformers configs: one flat view of what versions 4 and 5 write in different places.

The priority of the fields is that of transformers 5: what the rope dict says, then the fields beside it, then
what the family's code fixes (``families.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whorl.dialects.class_defaults import class_defaults, filled
from whorl.dialects.families import (
    ALIBI,
    UNROTATED,
    Family,
    class_rope,
    family_name,
    family_of,
    standing_of,
    unrotated_kind,
)
from whorl.dialects.images import is_tower
from whorl.dialects.layer_kinds import kinds_of
from whorl.dialects.names import BASES, HEAD_DIMS, HEADS, LAYERS, LENGTHS, ORIGINAL, PARTS, SHARES, WIDTHS
from whorl.dialects.reading import Standing
from whorl.dialects.sizes import (
    READ_ELSEWHERE,
    WHOLE_CONFIG,
    UnrotatedError,
    base_of,
    own_fields,
    share_of,
    sizes_of,
    unrotated,
)
from whorl.dialects.values import CALL, DEEPEST, check_fields, check_plain, layer_types, switch, whole_number, word
from whorl.errors import WhorlError, invalid, shown, unknown

# Shells around a tower of images: what a config under backbone_config is, where it does not say.
BACKBONES = {"sam3_vision_model": "sam3_vit_model"}
PASS_TYPE = "Pass layer_type=…, one of: "
EVERY_LAYER = "Or read every layer with whorl.read."
SIZES = (*HEAD_DIMS, *WIDTHS, *HEADS, *LAYERS, "qk_rope_head_dim")  # one of them makes a config that of a text model
OF_ATTENTION = ("attn_config", "linear_attn_config")  # sizes of the model's own attention
PART_ENDS = ("_config", "encoder", "decoder")

# a field with rope or rotary in its name that is not here might change the rotation, so it raises
READ = {
    *("rope_parameters", "rope_scaling", *BASES, *SHARES, "rotary_dim", "qk_rope_head_dim", "rope_interleave"),
    *("rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta", "compress_rope_theta"),
    *("layer_rope_theta", "partial_rotary_factors", "rotary_value", "use_mem_rope"),
    # which layers rotate at all is the layer plan's affair; how they do does not change with it
    *("no_rope_layers", "no_rope_layer_interval"),
    "indexer_rope_interleave",  # how the indexer of sparse attention turns its own keys
}
# what says only that the model rotates as usual, where it says so
AS_USUAL = {"rotary": True, "use_mrope": False, "rotary_emb_interleaved": False, "rope_position_scale": 1}
BAICHUAN_7B = 4096  # the width by which it is told from its larger sister, which has the same model_type
# ModernBERT's own files say "absolute", from the class they were first saved with, and its code never reads it
PASSES_OVER_TYPE = ("modernbert", "modernbert-decoder")


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
    family = family_of(config)
    check_rotates(config, family)
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
    config = own_fields(config, family)
    kind = family.rope_kinds.get(layer_type or "", layer_type)
    parameters, name = rope_dict(config, family, kind)
    if family_name(config) == "hunyuan_vl":
        parameters = _sections_renamed(parameters, name)
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


# --- which part of the config, and whether it rotates


def text_part(config: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The config of the text model inside a multimodal one, or the config itself; and what its class filled in.

    A config inside another one is saved as its differences from the defaults of its class.
    """
    added: frozenset[str] = frozenset()
    for _ in range(DEEPEST):
        check_fields(config)
        outer = word(config, "model_type")
        name, parts = inner_part(config), class_defaults(outer).get("parts", {})
        if name is None and parts and not any(key in config for key in SIZES):
            raise WhorlError(
                f"{CALL}: model_type {outer!r} holds its text model under {next(iter(parts))}, which is missing. "
                f"{WHOLE_CONFIG}"
            )
        if name is None:
            return config, added
        own = BACKBONES.get(outer or "") or parts.get(name, outer)
        config, added = with_defaults({"model_type": own, **config[name]})
    raise WhorlError(f"{CALL}: the config holds configs of text models {DEEPEST} levels deep. Pass the innermost one.")


def inner_part(config: Mapping[str, Any]) -> str | None:
    """The name under which a config holds that of its text model, or of the tower it wraps; None for neither."""
    outer = config.get("model_type")
    names = ("backbone_config",) if isinstance(outer, str) and outer in BACKBONES else PARTS
    return next((name for name in names if isinstance(config.get(name), dict) and config[name]), None)


def other_parts(config: Mapping[str, Any]) -> list[str]:
    """Models that a config holds beside its text model, which is a part of it or the config itself, by their paths."""
    found, path = [], ""
    for _ in range(DEEPEST):
        name = inner_part(config)
        parts = [key for key in config if key.endswith("_config") and key not in (name, *OF_ATTENTION)]
        others = [key for key in parts if _is_model(config[key])]
        found += [f"{path}{key}" for key in others]
        if name is None:
            break
        config, path = config[name], f"{path}{name}."
    return found


def with_defaults(config: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The config with what its class fills in, and the names of those fields."""
    check_fields(config)
    word(config, "model_type")
    config, added = filled(config)
    rope = class_rope(config)
    if (
        rope
        and family_of(config).needs_parameters
        and not any(key in config for key in ("rope_parameters", "rope_scaling"))
    ):
        own = family_of(config).theta_beside or rope.get("rope_type") == "axial"
        kept = {key: value for key, value in rope.items() if not (own and key in config)}
        return {**config, "rope_parameters": kept}, added | {"rope_parameters"}
    return config, added


def check_rotates(config: dict[str, Any], family: Family) -> None:
    """Raises a WhorlError for a model that does not rotate its queries and keys, or not only them."""
    name, model = family_name(config), repr(config.get("model_type"))
    if is_tower(config):
        raise WhorlError(
            f"{CALL}: model_type {model} turns images by rows and columns, which a Rope does not. "
            "whorl.read gives its AxialRope."
        )
    parts = [key for key, value in config.items() if key.endswith(PART_ENDS) and _is_model(value)]
    if parts and not any(config.get(key) is not None for key in (*HEAD_DIMS, *WIDTHS, *HEADS)) and family.layers:
        raise WhorlError(
            f"{CALL}: model_type {model} is made of several models. Pass one of its parts: {', '.join(parts)}."
        )
    if family.refusal:
        raise WhorlError(f"{CALL}: model_type {model} cannot be read: {family.refusal}.")
    if family.still and whole_number(config, ("qk_rope_head_dim",), least=0) != 0:
        raise UnrotatedError(f"{CALL}: model_type {model} does not rotate: {family.still}. {READ_ELSEWHERE}")
    if switch(config, "alibi"):
        raise UnrotatedError(
            f"{CALL}: alibi is true, so position enters by a bias. Use the encoding 'alibi'. {READ_ELSEWHERE}"
        )
    kind = position_type(config)
    said = kind is not None and name not in PASSES_OVER_TYPE
    if (said or name == "granitemoehybrid") and not _rotary_name(kind or ""):
        raise invalid(
            CALL,
            "position_embedding_type",
            "rotary",
            kind,
            f"This model does not rotate queries and keys. {READ_ELSEWHERE}",
        )
    if name == "zamba2" and not switch(config, "use_mem_rope"):
        raise UnrotatedError(
            f"{CALL}: use_mem_rope is not set, so this model does not rotate. Use the encoding 'none'."
        )
    if switch(config, "rotary_value"):
        raise WhorlError(
            f"{CALL}: rotary_value is true, so values are rotated too, which no encoding here does. "
            "Set it to false and rotate them with rope.rotate(v, positions)."
        )
    if name == "chatglm" and config.get("position_encoding_2d") is not None:
        raise WhorlError(
            f"{CALL}: position_encoding_2d is a field of ChatGLM-6B, which turns the two halves of a head by two "
            "positions. No encoding here does that; ChatGLM2 and later are read."
        )
    if name == "baichuan" and whole_number(config, WIDTHS) != BAICHUAN_7B:
        raise UnrotatedError(f"{CALL}: this is Baichuan-13B, whose positions are {ALIBI}. {READ_ELSEWHERE}")
    if name in UNROTATED:
        raise UnrotatedError(
            f"{CALL}: the positions of model_type {model} are {unrotated_kind(config)}. {READ_ELSEWHERE}"
        )
    if standing_of(config) == "unknown" and not any(_rotary_name(key) for key in config):
        if not parts and not any(config.get(key) is not None for key in ("model_type", *SIZES)):
            raise WhorlError(f"{CALL}: no field here describes a model. Pass the config.json of one.")
        remedy = f"Pass one of its parts: {', '.join(parts)}." if parts else "If the model rotates, add rope_theta."
        raise UnrotatedError(
            f"{CALL}: no rotary field in the config of model_type {model}. {remedy} "
            "No table here has this family: what else it does with positions is not known."
        )


def position_type(config: Mapping[str, Any]) -> str | None:
    """What the config calls its kind of positions, None where it does not say."""
    names = ("position_embedding_type", "position_embeddings_type")
    return next((word(config, key) for key in names if key in config), None)


def _is_model(value: object) -> bool:
    """Whether a part of a config describes a model: it has a type or a size of one."""
    return isinstance(value, dict) and any(value.get(key) for key in ("model_type", *HEAD_DIMS, *WIDTHS, *HEADS))


def check_names(config: dict[str, Any], family: Family) -> None:
    """Raises a WhorlError for a field that looks rotary and has no place here."""
    for key, value in config.items():
        if value is None or key in READ or (key in family.reads and key not in AS_USUAL) or not _rotary_name(key):
            continue
        if key in AS_USUAL and type(value) in (bool, int, float) and value == AS_USUAL[key]:
            continue
        listed = len(value) if isinstance(value, (list, tuple)) else None
        if key == "rope_scaling_layers" and listed == whole_number(config, ("num_hidden_layers",)) is not None:
            continue  # Molmo 2 names the layers that are scaled: here all are
        if key == "use_scaled_rope":
            raise WhorlError(f"{CALL}: use_scaled_rope is a field of Meta's params.json. Pass that file to whorl.read.")
        raise WhorlError(
            f"{CALL}: cannot place the field {key!r}. Read are: {', '.join(sorted({*READ, *family.reads}))}. "
            f"What {key!r} does to the rotation is not known here: look into the model's own code."
        )


def _rotary_name(key: str) -> bool:
    return "rope" in key or "rotary" in key


# --- the rope dict of a layer type


def rope_dict(config: dict[str, Any], family: Family, layer_type: str | None) -> tuple[dict[str, Any], str]:
    """The rope dict of the layer type and its name in messages."""
    if family.fixed:
        return {}, "rope_parameters"
    name, given = _given(config, family)
    kinds = layer_types(config)
    model = f"model_type {config.get('model_type')!r}"
    if any(isinstance(value, dict) or key in kinds for key, value in given.items()):
        return _nested(name, given, family, layer_type)
    if family.layers:
        kind = _chosen(layer_type, family.layers, model)
        return (given if family.layers[kind].scaled else {}), name
    if layer_type is None:
        return given, name
    if layer_type not in kinds:
        types = f", which are of the types {_listed(kinds)}" if kinds else ""
        raise WhorlError(
            f"{CALL}: layer_type={layer_type!r} is none of this config: {name} is one for all layers{types}. "
            "Leave layer_type out."
        )
    still = layer_type in family.unrotated and config.get("sliding_window", 0) is not None
    if still or layer_type in ("linear_attention", "conv"):
        raise unrotated(layer_type, f"of {model}")
    return given, name


def _given(config: dict[str, Any], family: Family) -> tuple[str, dict[str, Any]]:
    """The name and content of the rope dict, empty where there is none."""
    given = {name: config.get(name) for name in ("rope_parameters", "rope_scaling")}
    for name, value in given.items():
        if value is not None and not isinstance(value, dict):
            raise invalid(CALL, name, "a dict or null", value)
        check_plain(name, value)
    dicts = {name: value for name, value in given.items() if value}
    if len(dicts) == 2 and not _agree(dicts["rope_parameters"], dicts["rope_scaling"], config, family):
        raise WhorlError(f"{CALL}: rope_parameters and rope_scaling are both given and differ. Keep one of them.")
    if not dicts and family.needs_parameters:
        raise WhorlError(
            f"{CALL}: the config of model_type {config.get('model_type')!r} has no rope_parameters, "
            f"for which its code has values of its own. {WHOLE_CONFIG}"
        )
    return next(iter(dicts.items()), ("rope_parameters", {}))


def _agree(new: dict[str, Any], old: dict[str, Any], config: dict[str, Any], family: Family) -> bool:
    """Whether the dicts of versions 5 and 4 say the same; version 4 has the base beside its own."""
    base_keys = BASES
    if any(isinstance(value, dict) for value in new.values()):
        scaled = [kind for kind, layer in family.layers.items() if layer.scaled and isinstance(new.get(kind), dict)]
        if not scaled:
            return new == old
        new, base_keys = new[scaled[0]], (family.layers[scaled[0]].base_key,)
    beside = next((config[name] for name in base_keys if config.get(name) is not None), None)
    bases = [one.get("rope_theta", beside) for one in (new, old)]
    types = [one.get("rope_type", one.get("type")) for one in (new, old)]
    rest = [{k: v for k, v in one.items() if k not in ("rope_theta", "rope_type", "type")} for one in (new, old)]
    return bases[0] == bases[1] and types[0] == types[1] and rest[0] == rest[1]


def _nested(name: str, given: dict[str, Any], family: Family, layer_type: str | None) -> tuple[dict[str, Any], str]:
    parts = {key: value for key, value in given.items() if value is None or isinstance(value, dict)}
    # savers have left these two beside the layer types, which have their own
    beside = [key for key in given if key not in parts and key not in ("rope_type", "rope_theta")]
    if beside:
        raise WhorlError(
            f"{CALL}: cannot place {_listed(beside)} beside the layer types {_listed(parts)} of {name}. "
            "Put it into the layer types it is meant for."
        )
    if layer_type is not None and layer_type in family.layers:
        parts.setdefault(layer_type, None)  # the family's class fills in what is missing as it does for null
    kind = _chosen(layer_type, parts, name)
    part = parts[kind]
    if part is None and kind not in family.layers:
        raise unrotated(kind, f"(null in {name})")
    return part or {}, f"{name}[{kind!r}]"


def _chosen(layer_type: str | None, known: Collection[str], where: str) -> str:
    if layer_type is None:
        raise WhorlError(f"{CALL}: {where} differs by layer type. {PASS_TYPE}{', '.join(sorted(known))}. {EVERY_LAYER}")
    if layer_type not in known:
        raise unknown(f"layer_type of {CALL} for {where}:", layer_type, known)
    return layer_type


def _listed(names: Iterable[object]) -> str:
    return ", ".join(repr(name) for name in dict.fromkeys(names))


def _sections_renamed(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    """The rope dict of HunYuan-VL with its sections by the name that others have for them."""
    own = parameters.get("xdrope_section")
    if own is None:
        return parameters
    if parameters.get("mrope_section", own) != own:
        raise WhorlError(f"{CALL}: {name} has mrope_section and xdrope_section, which differ. Keep one of them.")
    return {**{key: value for key, value in parameters.items() if key != "xdrope_section"}, "mrope_section": own}


def type_of(config: dict[str, Any], parameters: dict[str, Any], parameters_name: str) -> str:
    """The rope type by its present name."""
    legacy = {"su": "longrope", "mrope": "default"}
    if family_name(config) in ("phi3", "phi4_multimodal"):
        legacy["yarn"] = "longrope"  # what Phi-3 said before there was the name longrope
    if family_name(config) == "hunyuan_vl":
        legacy["xdrope"] = "dynamic"
    if family_name(config) == "telechat3":
        legacy["telechat3-yarn"] = "yarn"  # with a temperature of its own
    given = [parameters[key] for key in ("rope_type", "type") if key in parameters]
    names = [name if isinstance(name, str) else shown(name) for name in given]
    types = [legacy.get(name, name) for name in names] or ["default"]
    if len(set(types)) > 1:
        raise WhorlError(
            f"{CALL}: {parameters_name} has rope_type {names[0]!r} and type {names[1]!r}. Keep one of them."
        )
    return types[0]
