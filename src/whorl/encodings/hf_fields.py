"""Where a transformers config keeps the fields of its rotation: one flat view of what versions 4 and 5 write.

The priority of the fields is that of transformers 5: what the rope dict says, then the fields beside it, then
what the family's code fixes (``hf_models.py``). Null stands for absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from whorl.encodings.hf_models import FAMILIES, Family, LayerDefaults, family_name, family_of
from whorl.errors import WhorlError, invalid, unknown

CALL = "Rope.from_hf"

PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")  # the part with the text
HEAD_DIMS = ("head_dim", "attention_head_dim", "kv_channels", "attention_head_size", "size_per_head")
WIDTHS = ("hidden_size", "n_embd", "d_model", "n_embed")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")
LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "model_max_length", "n_ctx")
BASES = ("rope_theta", "rotary_emb_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
ORIGINAL = "original_max_position_embeddings"

# every other field with rope or rotary in its name might change the rotation, so it raises
READ = {
    *BASES,
    *SHARES,
    "rope_parameters",
    "rope_scaling",
    "rotary_dim",
    "qk_rope_head_dim",
    "rope_interleave",
    "layer_rope_theta",
    "partial_rotary_factors",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "swa_rope_theta",
    "compress_rope_theta",
    "rotary_value",
    "use_mem_rope",
    # which layers rotate is the layer plan's affair: these say nothing of how the others do
    "no_rope_layers",
    "no_rope_layer_interval",
}

REMEDY = "Pass the whole config: transformers.AutoConfig.from_pretrained(…).to_dict()."


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What a config says of the rotation of one layer type.

    parameters       the rope dict, without nulls; ``place`` is what messages call it
    rope_type        its type, by the present name
    share            the share of the head that is rotated
    length           max_position_embeddings, if there is one
    original_length  the length yarn, longrope and llama3 start from, if there is one
    """

    config: dict[str, Any]
    family: Family
    layer: LayerDefaults | None
    parameters: dict[str, Any]
    place: str
    rope_type: str
    base: float
    head_dim: int
    rotary_dim: int
    share: float
    length: int | None
    original_length: int | None


def read_fields(config: dict[str, Any], layer_type: str | None) -> Fields:
    """The rotary fields of a config for one layer type, or a WhorlError that names what is in the way."""
    config = text_part(config)
    family = family_of(config)
    check_rotates(config, family)
    check_names(config)
    parameters, place = rope_dict(config, family, layer_type)
    flat = "[" not in place
    parameters = {key: value for key, value in parameters.items() if value is not None or key == "factor"}
    layer = family.layers.get(layer_type or "")
    rope_type = type_of(parameters, place, config)
    share, said = share_of(config, family, parameters, layer_type)
    head_dim, rotary_dim = sizes(config, family, share if said else None, layer_type, whole=rope_type == "proportional")
    length = whole_number(config, LENGTHS)
    original = whole_number(config, (ORIGINAL,)) if flat else None
    return Fields(
        config=config,
        family=family,
        layer=layer,
        parameters=parameters,
        place=place,
        rope_type=rope_type,
        base=base_of(config, family, parameters, layer, layer_type),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        share=share,
        length=length,
        original_length=original or whole_number(parameters, (ORIGINAL,)) or length,
    )


# --- which part of the config, and whether it rotates at all


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the text model inside a multimodal one, or the config itself."""
    for name in PARTS:
        part = config.get(name)
        if isinstance(part, dict) and part:
            return text_part({"model_type": config.get("model_type"), **part})
    return config


def check_rotates(config: dict[str, Any], family: Family) -> None:
    """Raises a WhorlError for a model whose queries and keys are not rotated, or not only they."""
    name, model = family_name(config), repr(config.get("model_type"))
    if family.refusal:
        raise WhorlError(f"{CALL}: model_type {model} cannot be read: {family.refusal}.")
    if config.get("alibi"):
        raise WhorlError(f"{CALL}: alibi is true, so position enters by a bias. Use the encoding 'alibi'.")
    kind = config.get("position_embedding_type", config.get("position_embeddings_type"))
    rotary = "rope" in str(kind) or "rotary" in str(kind)
    if not rotary and (kind is not None or name == "granitemoehybrid"):
        raise invalid(CALL, "position_embedding_type", "rotary", kind, "This model does not rotate queries and keys.")
    if name == "zamba2" and not config.get("use_mem_rope"):
        raise WhorlError(f"{CALL}: use_mem_rope is not set, so this model does not rotate. Use the encoding 'none'.")
    if config.get("rotary_value"):
        raise WhorlError(
            f"{CALL}: rotary_value is true, so values are rotated too, which no encoding here does. "
            "Set it to false and rotate them with rope.rotate(v, positions)."
        )
    if name not in FAMILIES and not any(_rotary_name(key) for key in config):
        parts = [key for key, value in config.items() if isinstance(value, dict) and value]
        remedy = f"Pass one of its parts: {', '.join(parts)}." if parts else REMEDY
        raise WhorlError(f"{CALL}: no rotary field in the config of model_type {model}. {remedy}")


def check_names(config: dict[str, Any]) -> None:
    """Raises a WhorlError for a field that looks rotary and has no place here."""
    for key, value in config.items():
        if _rotary_name(key) and key not in READ and value is not None:
            raise WhorlError(
                f"{CALL}: cannot place the field {key!r}. Read are: {', '.join(sorted(READ))}. "
                f"Leave {key!r} out if it does not change the rotation."
            )


def _rotary_name(key: str) -> bool:
    return "rope" in key or "rotary" in key


# --- the rope dict of a layer type


def rope_dict(config: dict[str, Any], family: Family, layer_type: str | None) -> tuple[dict[str, Any], str]:
    """The rope dict of the layer type and its name in messages."""
    name, given = _given(config, family)
    layer_types = [kind for kind in config.get("layer_types") or () if isinstance(kind, str)]
    if any(isinstance(value, dict) or key in layer_types for key, value in given.items()):
        return _nested(name, given, family, layer_type)
    if family.layers:
        kind = _chosen(layer_type, family.layers, f"model_type {config.get('model_type')!r}")
        return (given if family.layers[kind].scaled else {}), name
    if layer_type is None:
        return given, name
    if layer_type not in layer_types:
        raise WhorlError(
            f"{CALL}: layer_type={layer_type!r} was asked for, but {name} is one for all layers"
            f"{f', which are of the types {_listed(layer_types)}' if layer_types else ''}. Leave layer_type out."
        )
    if layer_type == "linear_attention" or (
        layer_type in family.unrotated and config.get("sliding_window", 0) is not None
    ):
        raise _unrotated(layer_type, f"of model_type {config.get('model_type')!r}")
    return given, name


def _given(config: dict[str, Any], family: Family) -> tuple[str, dict[str, Any]]:
    """The name and content of the rope dict, empty where there is none."""
    dicts = {name: config[name] for name in ("rope_parameters", "rope_scaling") if config.get(name)}
    for name, value in dicts.items():
        if not isinstance(value, dict):
            raise invalid(CALL, name, "a dict or null", value)
    if not dicts:
        if family.needs_parameters:
            raise WhorlError(
                f"{CALL}: the config of model_type {config.get('model_type')!r} has no rope_parameters, "
                f"for which its code has values of its own. {REMEDY}"
            )
        return "rope_parameters", {}
    if len(dicts) == 2 and dicts["rope_parameters"] != dicts["rope_scaling"]:
        raise WhorlError(f"{CALL}: rope_parameters and rope_scaling are both given and differ. Keep one of them.")
    return next(iter(dicts.items()))


def _nested(name: str, given: dict[str, Any], family: Family, layer_type: str | None) -> tuple[dict[str, Any], str]:
    parts = {key: value for key, value in given.items() if value is None or isinstance(value, dict)}
    # savers have left these two beside the layer types; each part has its own
    beside = [key for key in given if key not in parts and key not in ("rope_type", "rope_theta")]
    if beside:
        raise WhorlError(
            f"{CALL}: cannot place {_listed(beside)} beside the layer types {_listed(parts)} of {name}. "
            "Put it into the layer types it is meant for."
        )
    kind = _chosen(layer_type, parts, name)
    part = parts[kind]
    if part is None and kind not in family.layers:
        raise _unrotated(kind, f"(null in {name})")
    return part or {}, f"{name}[{kind!r}]"


def _chosen(layer_type: str | None, known: Iterable[str], where: str) -> str:
    if layer_type is None:
        raise WhorlError(
            f"{CALL}: {where} differs by layer type. Pass layer_type=…, one of: {', '.join(sorted(known))}."
        )
    if layer_type not in known:
        raise unknown(f"layer_type of {CALL} for {where}:", layer_type, known)
    return layer_type


def _unrotated(layer_type: str, why: str) -> WhorlError:
    return WhorlError(
        f"{CALL}: layers of type {layer_type!r} {why} have no position encoding. Use the encoding 'none' for them."
    )


def type_of(parameters: dict[str, Any], place: str, config: dict[str, Any]) -> str:
    """The rope type by its present name; legacy names are brought to it."""
    longrope = {"su": "longrope"}
    if family_name(config) in ("phi3", "phi4_multimodal"):
        longrope["yarn"] = "longrope"  # what Phi-3 called yarn before there was the name longrope
    names = [parameters[key] for key in ("rope_type", "type") if key in parameters]
    types = [{"mrope": "default", **longrope}.get(name, name) for name in names]
    if len(set(types)) == 2:
        raise WhorlError(f"{CALL}: {place} has rope_type {names[0]!r} and type {names[1]!r}. Keep one of them.")
    return types[0] if types else "default"


# --- base, share and sizes


def base_of(
    config: dict[str, Any],
    family: Family,
    parameters: dict[str, Any],
    layer: LayerDefaults | None,
    layer_type: str | None,
) -> float:
    """The base of the frequencies."""
    by_layer = _of_layers(config, "layer_rope_theta", layer_type)
    if by_layer is not None:
        if not by_layer:
            raise _unrotated(str(layer_type), "(0 in layer_rope_theta)")
        return by_layer
    if "rope_theta" in parameters:
        return parameters["rope_theta"]
    if layer is not None:
        return _first(config, (layer.base_key,), layer.base)
    attention = config.get("attn_config")
    beside = _first(config, BASES, _first(attention if isinstance(attention, dict) else {}, BASES, family.base))
    return _of_layers(config, "rope_theta", layer_type) if isinstance(beside, (list, tuple)) else beside


def share_of(
    config: dict[str, Any], family: Family, parameters: dict[str, Any], layer_type: str | None
) -> tuple[float, bool]:
    """The share of the head that is rotated, and whether the config says so."""
    if "partial_rotary_factor" in parameters:
        return _share(parameters["partial_rotary_factor"]), True
    by_layer = _of_layers(config, "partial_rotary_factors", layer_type)
    given = {key: config[key] for key in SHARES if config.get(key) is not None}
    if by_layer is not None:
        given["partial_rotary_factors"] = by_layer
    if len(set(given.values())) > 1:
        raise WhorlError(f"{CALL}: {', '.join(f'{key}={value}' for key, value in given.items())} differ. Keep one.")
    return (_share(next(iter(given.values()))), True) if given else (family.partial, False)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise invalid(CALL, "partial_rotary_factor", "larger than 0 and at most 1", value)
    return value


def sizes(
    config: dict[str, Any], family: Family, share: float | None, layer_type: str | None, whole: bool
) -> tuple[int, int]:
    """The dimensions of the tensor that is rotated, and how many of them are; ``share`` is what the config says."""
    rope_dim = whole_number(config, ("qk_rope_head_dim",), zero="its attention is not rotated")
    if rope_dim is not None:
        full = _head_dim(config, family, layer_type) if family.slice == "trailing" else rope_dim
        heads = {rope_dim, full, config.get("head_dim"), (config.get("qk_nope_head_dim") or 0) + rope_dim}
        if share not in (None, 1) and rope_dim not in {int(dim * share) for dim in heads if dim}:
            raise _two_sizes("qk_rope_head_dim", rope_dim, share)
        return full, rope_dim
    head_dim = _head_dim(config, family, layer_type)
    rotary_dim = whole_number(config, ("rotary_dim",))
    if whole:
        return head_dim, head_dim
    if rotary_dim is None:
        share = family.partial if share is None else share
        rotary_dim = int(head_dim * share)
        if rotary_dim % 2 or rotary_dim == 0:
            raise WhorlError(
                f"{CALL}: {share} of head_dim {head_dim} is {rotary_dim} dimensions; an even number can be rotated. "
                f"Use partial_rotary_factor={(rotary_dim + rotary_dim % 2 or 2) / head_dim:g}."
            )
    elif share not in (None, rotary_dim / head_dim) and int(head_dim * share) != rotary_dim:
        raise _two_sizes("rotary_dim", rotary_dim, share)
    return head_dim, rotary_dim


def _two_sizes(name: str, value: int, share: float) -> WhorlError:
    return WhorlError(f"{CALL}: {name}={value} and partial_rotary_factor={share} do not agree. Keep one of them.")


def _head_dim(config: dict[str, Any], family: Family, layer_type: str | None) -> int:
    full = layer_type == "full_attention"
    own = _per_layer_head_dim(config, layer_type)
    if own is None and full and family.full_head_dim is not None and not config.get("per_layer_config"):
        own = whole_number(config, ("global_head_dim",)) or family.full_head_dim
    head_dim = own or whole_number(config, HEAD_DIMS)
    if head_dim is not None:
        return head_dim
    width, heads = whole_number(config, WIDTHS), whole_number(config, HEADS)
    if width is None or heads is None:
        raise WhorlError(f"{CALL}: head_dim missing, and so are hidden_size and num_attention_heads. {REMEDY}")
    return width // heads


def _per_layer_head_dim(config: dict[str, Any], layer_type: str | None) -> int | None:
    """The head size that per_layer_config gives the layers of this type, None where it is silent."""
    layers = config.get("per_layer_config") or {}
    sizes = {int(index): part["head_dim"] for index, part in layers.items() if "head_dim" in part}
    if not sizes:
        return None
    kinds = config.get("layer_types") or []
    return _agreed("head_dim in per_layer_config", [sizes.get(i) for i, kind in enumerate(kinds) if kind == layer_type])


def _of_layers(config: dict[str, Any], key: str, layer_type: str | None) -> Any:
    """The entry that a list with one entry per layer has for this layer type, None where there is no list."""
    values = config.get(key)
    if not isinstance(values, (list, tuple)):
        return None
    kinds = config.get("layer_types") or []
    if layer_type is None:
        return _agreed(key, [value for value in values if value])  # a zero marks a layer without rotation
    return _agreed(key, [value for value, kind in zip(values, kinds, strict=False) if kind == layer_type])


def _agreed(what: str, values: list[Any]) -> Any:
    if len(set(values)) > 1:
        raise WhorlError(f"{CALL}: {what} differs between the layers asked for. Pass layer_type=…, one of layer_types.")
    return values[0] if values else None


# --- reading


def whole_number(source: dict[str, Any], names: Iterable[str], zero: str = "") -> int | None:
    """The first of these fields that is there, as a positive integer; None if none is."""
    for name in names:
        value = source.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
            raise invalid(CALL, name, "a positive integer", value)
        if value == 0:
            raise invalid(CALL, name, "a positive integer", value, f"With 0 {zero}." if zero else "")
        return int(value)
    return None


def _first(source: dict[str, Any], names: Iterable[str], otherwise: Any) -> Any:
    return next((source[name] for name in names if source.get(name) is not None), otherwise)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(repr(name) for name in dict.fromkeys(names))
