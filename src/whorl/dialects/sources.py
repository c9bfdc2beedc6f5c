"""Sources of a rotation read from a transformers config: for each setting, who says so.

The values are ``transformers.rotation_of``'s; here stands only which fields they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whorl.dialects.fields import Fields
from whorl.dialects.names import BASES, HEAD_DIMS, HEADS, LENGTHS, ORIGINAL, SHARES, WIDTHS
from whorl.dialects.reading import ASSUMED, CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Source, Value
from whorl.dialects.transformers import rotation_of

# The fields that a setting of a rotation is read from, besides those in the rope dict.
FIELDS: dict[str, tuple[str, ...]] = {
    "head_dim": (*HEAD_DIMS, "qk_rope_head_dim", "global_head_dim", "per_layer_config"),
    "rotary_dim": (*SHARES, "rotary_dim", "qk_rope_head_dim", "partial_rotary_factors"),
    "base": (*BASES, "layer_rope_theta", "attn_config"),
    "layout": ("rope_interleave",),
    "doubling": ("use_dynamic_ntk",),
    "factor": ("rotary_scaling_factor",),
}
# The names that keys of the rope dict have otherwise than the settings they are read into.
KEYS: dict[str, tuple[str, ...]] = {
    "base": ("rope_theta",),
    "rotary_dim": ("partial_rotary_factor",),
    "fraction": ("partial_rotary_factor",),
    "sections": ("mrope_section",),
    "arrangement": ("mrope_interleaved", "interleaved"),
    "attention_factor": ("attention_factor", "long_mscale"),
    "original_length": (ORIGINAL,),
    "factor": ("factor", "alpha"),
    "exponent": ("mixed_b",),
}
# What a config class has a default for; what else a file leaves open is fixed in code.
HAVE_DEFAULTS = ("head_dim", "rotary_dim", "base", "sections")


def describe(fields: Fields) -> Described:
    """The rotation that these fields describe, every setting with its source."""
    rotation = rotation_of(fields)
    scaling = rotation.pop("scaling")
    settings = {name: _value(fields, name, value) for name, value in rotation.items()}
    name = "mrope" if "sections" in rotation else "rope"
    return Described(name=name, settings=settings, scaling=None if scaling is None else _scaling(fields, scaling))


def _scaling(fields: Fields, scaling: Mapping[str, Any]) -> Described:
    given = {key: value for key, value in scaling.items() if key not in ("name", "replaces")}
    lengths = LENGTHS if "[" in fields.parameters_name else (ORIGINAL, *LENGTHS)  # it reaches into no layer types
    if "doubling" in given:
        lengths = ("seq_length",)
    elif fields.config.get("rotary_scaling_factor") is not None:
        lengths = ("max_trained_positions",)
    settings = {
        name: _value(fields, name, value, beside=lengths if name == "original_length" else ())
        for name, value in given.items()
    }
    return Described(name=scaling["name"], settings=settings)


def _value(fields: Fields, name: str, value: Any, beside: Iterable[str] = ()) -> Value:
    keys = KEYS.get(name, (name,))
    inside = next((key for key in keys if key in fields.parameters), "")
    if inside and (not beside or fields.parameters[inside] == value):  # else the field beside won
        own = fields.parameters_name.partition("[")[0]
        return Value(value=value, source=_origin(fields, own), field=f"{fields.parameters_name}.{inside}")
    field = next((key for key in (*beside, *_beside(fields, name)) if fields.config.get(key) is not None), "")
    if field:
        return Value(value=value, source=_origin(fields, field), field=field)
    if name == "head_dim":
        width, heads = (next((key for key in keys if fields.config.get(key)), "") for keys in (WIDTHS, HEADS))
        source = CLASS_DEFAULT if {width, heads} & fields.added else FILE
        return Value(value=value, source=source, field=f"{width} / {heads}")
    return Value(value=value, source=_silent(fields, name))


def _beside(fields: Fields, name: str) -> tuple[str, ...]:
    family, layer = fields.family, fields.family.layers.get(fields.rope_kind)
    if name == "base" and family.fixed:
        return ()
    latent = fields.config.get("use_mla") is not False and fields.config.get("qk_rope_head_dim")
    if name == "head_dim" and latent and family.slice == "leading":
        return ("qk_rope_head_dim",)
    own = (layer.base_key,) if layer is not None else (family.ratio_key, family.base_key)
    return (*(own if name == "base" else ()), *FIELDS.get(name, ()))


def _origin(fields: Fields, field: str) -> Source:
    return CLASS_DEFAULT if field in fields.added else FILE


def _silent(fields: Fields, name: str) -> Source:
    """Who settles what the file does not say."""
    if fields.standing == "unknown":
        return ASSUMED
    fixed = (name == "base" and fields.family.fixed) or (name == "sections" and fields.family.sections is None)
    return CLASS_DEFAULT if name in HAVE_DEFAULTS and not fixed else FAMILY_CODE
