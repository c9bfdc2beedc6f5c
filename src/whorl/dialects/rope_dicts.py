"""Rope dicts of transformers configs: which one is meant for a layer type, and of which rope type it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from whorl.dialects.families import Family, family_name
from whorl.dialects.names import BASES
from whorl.dialects.sizes import WHOLE_CONFIG, unrotated
from whorl.dialects.values import CALL, check_plain, layer_types
from whorl.errors import WhorlError, invalid, shown, unknown

PASS_TYPE = "Pass layer_type=…, one of: "
EVERY_LAYER = "Or read every layer with whorl.read."


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


def sections_renamed(parameters: dict[str, Any], name: str) -> dict[str, Any]:
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
