"""Families: the table of how each family of models handles positions, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.class_defaults import all_defaults, class_defaults, version
from whorl.dialects.families import (
    ALIASES,
    ALIASES_BY_POSITIONS,
    FAMILIES,
    UNROTATED,
    Family,
    family_of,
)
from whorl.dialects.images import TOWERS, Tower
from whorl.dialects.notes import BEFORE_THE_TEXT

HEADER = ("family", "positions", "layout", "rotated", "base", "layers without rotation", "beside", "read in")


UNKNOWN = "not known"
# What a family's code does beside its rotation or its bias, and what a field of the file changes in it.
BESIDE = {
    "baichuan": "ALiBi where hidden_size is not 4096",
    "beam": "queries of layers without rotation grow with their position",
    "deepseek_v4": "most layers compress keys beyond a window",
    "esm": "a learned table where position_embedding_type is absolute or absent",
    "falcon": "ALiBi where alibi is true",
    "granitemoehybrid": "no positions unless position_embedding_type is rope",
    "hunyuan_vl": "M-RoPE, chunked, where mrope_section is given",
    "llama4": (
        "queries of layers without rotation grow with their position (attn_temperature_tuning), layers that rotate "
        "see their own chunk alone (attention_chunk_size)"
    ),
    "ministral3": "queries grow with their position (llama_4_scaling_beta)",
    "mistral4": "queries grow with their position (llama_4_scaling_beta)",
    "mpt": "where alibi is false a learned table in llm-foundry's code, ALiBi all the same in transformers",
    "olmo_hybrid": "no positions where rope_parameters is null",
    "qwen": "queries grow by log n where use_logn_attn is true",
    "roformer": "values turned too where rotary_value is true",
    "zamba2": "no positions without use_mem_rope",
}
# Layers without rotation by a rule that neither a kind of layer nor no_rope_layers says.
_FROM_THE_LAST = "one in 4 from the last, or by 0 in layer_rope_theta"
STILL: dict[str, str] = {"muse_glimmer": _FROM_THE_LAST, "muse_spark": _FROM_THE_LAST}


def families() -> list[dict[str, Any]]:
    """One row per family: those that rotate, towers of images, those that do not rotate, and other names, by name.

    layout, rotated and base are those of a file that is silent.

    >>> next(row for row in families() if row["family"] == "gptj")["layout"]
    'interleaved'
    """
    rows = {name: _empty(name) | {"positions": kind} for name, kind in UNROTATED.items()}
    rows |= {name: _empty(name) | {"positions": f"as {target}"} for name, target in ALIASES.items()}
    for (name, kind), target in ALIASES_BY_POSITIONS.items():
        row = rows.setdefault(name, _empty(name) | {"positions": UNKNOWN, "read in": _where(target)})
        row["beside"] = f"as {target} where position_embedding_type is {kind}"
    rows |= {_shortened(name): _tower(name, tower) for name, tower in TOWERS.items()}
    rotating = {_shortened(name) for name, defaults in all_defaults().items() if defaults.get("rope_parameters")}
    for name in (FAMILIES.keys() | rotating) - rows.keys():
        rows[name] = _row(name, family_of({"model_type": name}))
    for name in BEFORE_THE_TEXT:  # the rotation of their class is not that of the text model
        rows[name] = _empty(name) | {"positions": "those of its text_config", "beside": "audio turned before it enters"}
    for name, said in BESIDE.items():
        rows[name]["beside"] = "; ".join(filter(None, (rows[name]["beside"], said)))
    return [rows[name] for name in sorted(rows)]


def _shortened(model_type: str) -> str:
    """The model type as the table calls it."""
    return model_type.removesuffix("_model").removesuffix("_text")


def _tower(name: str, tower: Tower) -> dict[str, Any]:
    return _empty(_shortened(name)) | {
        "positions": f"axial RoPE, {tower.convention}",
        "base": f"{tower.base:g}",
        "beside": "windows in most layers" if tower.full_layers else "",
        "read in": _where(name),
    }


def _row(name: str, family: Family) -> dict[str, Any]:
    if family.still or family.refusal:
        return _empty(name) | {"positions": (family.still or family.refusal).partition(".")[0]}
    several = family.sections is not None or family.arrangement != "chunked"
    silent = _silent(name, family)
    beside = [*family.unsupported]
    beside += ["softmax scaled by mscale_all_dim"] * family.scale_softmax
    beside += [f"{scaling} by its class where the file has no scaling" for scaling in _scalings(silent)]
    beside += ["a log scale per pair in the weights"] * family.learnable
    beside += ["pairs turn backwards"] * family.backwards
    beside += [f"head {head} alone" for head in family.rotated_heads or ()]
    return {
        "family": name,
        "positions": f"M-RoPE, {family.arrangement}" if several else "RoPE",
        "layout": family.layout,
        "rotated": _by_kind({kind: _share(name, family, one) for kind, one in silent.items()}),
        "base": _by_kind({kind: f"{one['rope_theta']:g}" for kind, one in silent.items()}),
        "layers without rotation": _still(name, family),
        "beside": "; ".join(beside),
        "read in": _where(name),
    }


def _still(name: str, family: Family) -> str:
    """The layers that do not rotate in a file that is silent, in words."""
    step = next((one["no_rope_layer_interval"] for one in _classes(name) if "no_rope_layer_interval" in one), None)
    if step:
        return f"one in {step}, or by no_rope_layers"
    null = [kind for kind, one in _of_class(name).items() if one is None]
    return STILL.get(name, ", ".join((*family.unrotated, *null)))


def _of_class(name: str) -> Mapping[str, Any]:
    """The rotary settings that the class of a family fills in."""
    return next((one["rope_parameters"] for one in _classes(name) if one.get("rope_parameters")), {})


def _silent(name: str, family: Family) -> dict[str, dict[str, Any]]:
    """The rotary settings of a file that states none, by the kind of layer, or all under "" where kinds do not differ.

    Those of the class come first, as in the reader, then those of the family.
    """
    own = _of_class(name)
    nested = {kind: one for kind, one in own.items() if isinstance(one, Mapping)}
    kinds = nested or (dict.fromkeys(family.layers, own) if family.layers else {"": own})
    return {
        kind: {"rope_theta": family.layers[kind].base if kind in family.layers else family.base}
        | {"partial_rotary_factor": family.partial}
        | {key: value for key, value in one.items() if value is not None}
        for kind, one in kinds.items()
    }


def _share(name: str, family: Family, settings: Mapping[str, Any]) -> str:
    """The part of a head that is rotated, in words."""
    turned = next((one["rotary_dim"] for one in _classes(name) if one.get("rotary_dim")), None)
    if turned is not None:
        return f"{family.slice} {turned} dimensions"
    partial = settings["partial_rotary_factor"]
    if partial == 1 or any("qk_rope_head_dim" in one for one in _classes(name)):  # counted in the part that turns
        return "all"
    which = "fastest" if settings.get("rope_type") == "proportional" else family.slice
    return f"{which} {partial:g}"


def _scalings(silent: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The scalings among the settings, by name."""
    kinds = (one.get("rope_type", "default") for one in silent.values())
    return [kind for kind in dict.fromkeys(kinds) if kind != "default"]


def _by_kind(found: Mapping[str, str]) -> str:
    """One text where all kinds of layers have the same, else that of each kind."""
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{value} ({kind})" for kind, value in found.items())


def _classes(name: str) -> list[Mapping[str, Any]]:
    """The defaults of the classes that a family has in transformers."""
    return [class_defaults(one) for one in (name, f"{name}_text", f"{name}_model", f"{name}_text_model")]


def _empty(name: str) -> dict[str, Any]:
    return dict.fromkeys(HEADER, "") | {"family": name, "read in": _where(name)}


def _where(name: str) -> str:
    """Where the code of a family was read: a version of transformers, another program or a copy, or not at all."""
    if name in FAMILIES and FAMILIES[name].read_in:
        return FAMILIES[name].read_in
    reported = name in ALIASES and not class_defaults(name)
    return "reported, not opened" if reported else f"transformers {version()}"


def markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in HEADER)} |" for row in families())])
