"""``Rope.from_hf``: the rotary encoding of a transformers config, given as the dict its config.json holds.

Every rope type of transformers is read as transformers computes it. In the rope dict
    a key its type uses is placed,
    a key that transformers does not read for that type is passed over only where released checkpoints carry it
    (``PASSED_OVER``), since the numbers are the same without it,
    any other key raises.
Where transformers 5.22.2 does not do what the config says, the config wins: ``truncate`` inside a layer type,
``head_dim: null`` with yarn, dynamic or longrope, ``rotary_dim`` of MiniMax-M3, ``attn_config.rope_theta`` of DBRX,
a partial_rotary_factor in families that rotate the whole head for the default type and fail for the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

from whorl.encodings.hf_fields import ORIGINAL, Fields, read_fields
from whorl.encodings.hf_models import family_name
from whorl.encodings.hf_values import CALL, switch
from whorl.encodings.rope import Rope, RopeConfig
from whorl.errors import WhorlError, invalid, shown, unknown
from whorl.rotary.rotation import Layout
from whorl.rotary.scalings.base import Scaling
from whorl.rotary.scalings.dynamic_ntk import DynamicNtk
from whorl.rotary.scalings.linear import Linear
from whorl.rotary.scalings.llama3 import Llama3
from whorl.rotary.scalings.longrope import LongRope
from whorl.rotary.scalings.ntk import Ntk
from whorl.rotary.scalings.proportional import Proportional
from whorl.rotary.scalings.yarn import Yarn, temperature

EVERYWHERE = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor"),
    *("mrope_section", "mrope_interleaved", "interleaved"),
)
CHANGE = "Change it in the config, or afterwards with encoding.from_config(encoding.config.replace(…))."
NOTHING: Mapping[str, Any] = MappingProxyType({})
# llama_4_scaling_beta makes queries longer with the position: a temperature beside the rotation, not part of it
PASSED_OVER = ("llama_4_scaling_beta", "max_position_embeddings", "finetuned")


R = TypeVar("R", bound=Rope)


def rope_from_hf(
    config: dict[str, Any], layer_type: str | None = None, cls: type[R] = Rope, settings: Mapping[str, Any] = NOTHING
) -> R:
    """The rotation of a transformers config as an encoding of this class; ``layer_type`` where its layers differ.

    Where the model has an M-RoPE, Rope stands for MRope. ``settings`` are those that no config holds.

    >>> config = {"model_type": "llama", "head_dim": 64, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    >>> rope_from_hf(config).config.scaling
    Linear(factor=2.0)
    """
    read = _read(config, layer_type)
    from whorl.encodings.mrope import MRope  # imported late: it builds on rope.py, which knows this file

    if issubclass(cls, MRope) and "sections" not in {**read, **settings}:
        raise WhorlError(
            f"{cls.__name__}.from_hf: the config has no mrope_section, its tokens have one position. "
            "Use Rope.from_hf, or pass sections=…."
        )
    if cls is Rope and "sections" in read:
        return cast(R, _built(MRope, read, settings))
    return _built(cls, read, settings)


def _read(config: dict[str, Any], layer_type: str | None) -> dict[str, Any]:
    """The settings that a transformers config gives a Rope, or an MRope where there are sections."""
    if not isinstance(config, dict):
        raise invalid(CALL, "config", "a dict", config, "Pass json.load of config.json, or config.to_dict().")
    fields = read_fields(config, layer_type)
    rule = _rule(fields)
    family = fields.family
    read: dict[str, Any] = {
        "head_dim": fields.head_dim,
        "rotary_dim": None if fields.rotary_dim == fields.head_dim else fields.rotary_dim,
        "base": fields.base,
        "layout": _layout(fields),
        "slice": family.slice if fields.rotary_dim < fields.head_dim else "leading",
        "scaling": rule.scaling(fields),
        "rotated_heads": family.rotated_heads,
        "learnable": family.learnable,
    }
    sections = fields.parameters.get("mrope_section", family.sections)
    return read if sections is None else read | {"sections": sections, "arrangement": _arrangement(fields)}


def _built(cls: type[R], read: dict[str, Any], settings: Mapping[str, Any]) -> R:
    """The encoding of this class with what was read and what was given beside it, or a WhorlError that says why not."""
    call, own = f"{cls.__name__}.from_hf", cls.Config.fields()
    for name, value in read.items():
        if name in settings:
            raise WhorlError(
                f"{call}: {name} is read from the config, got {name}={shown(settings[name])} beside it. {CHANGE}"
            )
        if name not in own and (name not in RopeConfig.fields() or value != RopeConfig.fields()[name].default):
            raise WhorlError(
                f"{call}: the config has {name}={shown(value)}, for which {cls.__name__} has no setting. "
                "Use Rope.from_hf."
            )
    given = {name: value for name, value in read.items() if name in own} | dict(settings)
    try:
        inspect.signature(cls.__init__).bind(None, **given)
    except TypeError as error:  # a user's class with a constructor of its own
        raise WhorlError(
            f"{call}: {cls.__name__}.__init__ does not take the settings of its config: {error}. "
            f"Take **settings there, or build it from Rope.from_hf(…).config."
        ) from None
    return cls(**given)


def _layout(fields: Fields) -> Layout:
    """The family's layout; ``rope_interleave`` chooses between those of DeepSeek-V3."""
    interleave, layout = switch(fields.config, "rope_interleave"), fields.family.layout
    if interleave is None or layout == "interleaved":
        return layout
    return "interleaved_to_half" if interleave else "half"


def _arrangement(fields: Fields) -> str:
    """The family's arrangement of the axes; mrope_interleaved chooses in a family that is not known."""
    own = fields.family.arrangement
    said = fields.parameters.get("mrope_interleaved", fields.parameters.get("interleaved"))
    if said is None or (fields.family.sections is None and not said):
        return own
    if fields.family.sections is None:
        return "interleaved"
    if bool(said) != (own == "interleaved"):
        raise WhorlError(
            f"{CALL}: mrope_interleaved={shown(said)} in {fields.place}, but model_type "
            f"{fields.config.get('model_type')!r} arranges its axes {own}. Leave mrope_interleaved out."
        )
    return own


# --- one rule per rope type


@dataclass(frozen=True)
class Rule:
    """What a rope type needs, may have, and how its scaling is built from it."""

    scaling: Callable[[Fields], Scaling | None]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    passes_over: tuple[str, ...] = (ORIGINAL,)


def _rule(fields: Fields) -> Rule:
    """The rule of the rope type, every key of the rope dict having a place in it."""
    if fields.rope_type == "axial":
        raise WhorlError(f"{CALL}: rope_type 'axial' turns images by rows and columns. Use whorl.AxialRope.")
    if fields.rope_type not in RULES:
        raise unknown(f"rope_type in {fields.place} of {CALL}:", fields.rope_type, RULES)
    rule = RULES[fields.rope_type]
    if _is_hunyuan(fields) and fields.rope_type == "dynamic" and fields.parameters.get("alpha"):
        rule = ALPHA
    elif family_name(fields.config) == "phimoe" and fields.rope_type == "longrope":
        rule = PHIMOE
    understood = (*EVERYWHERE, *rule.needs, *rule.takes)
    for key in fields.parameters:
        if key not in (*understood, *PASSED_OVER, *rule.passes_over) and fields.parameters[key] is not None:
            raise WhorlError(
                f"{CALL}: cannot place {key!r} in {fields.place} of rope_type {fields.rope_type!r}. "
                f"Understood are: {', '.join(sorted(understood))}."
            )
    for key in rule.needs:
        if key not in fields.parameters:
            raise WhorlError(
                f"{CALL}: rope_type {fields.rope_type!r} needs {key!r}, which {fields.place} lacks. "
                f"Understood are: {', '.join(sorted(understood))}."
            )
    return rule


def _is_hunyuan(fields: Fields) -> bool:
    return family_name(fields.config).startswith("hunyuan")


def _none(fields: Fields) -> None:
    return None


def _linear(fields: Fields) -> Linear:
    return Linear(factor=fields.parameters["factor"])


def _dynamic(fields: Fields) -> DynamicNtk:
    # transformers measures against the present length here, not against the original one
    return DynamicNtk(factor=fields.parameters["factor"], original_length=_needed(fields, fields.length))


def _alpha(fields: Fields) -> Ntk:
    """HunYuan calls "dynamic" what is the NTK-aware base for a fixed factor."""
    return Ntk(factor=fields.parameters["alpha"])


def _yarn(fields: Fields) -> Yarn:
    given, original = fields.parameters, _needed(fields, fields.original_length)
    factor = given["factor"] if given["factor"] is not None else _needed(fields, fields.length) / original
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise invalid(CALL, "factor", "a number", factor)
    return Yarn(
        factor=factor,
        original_length=original,
        beta_fast=given.get("beta_fast") or 32.0,  # transformers reads 0 as absent
        beta_slow=given.get("beta_slow") or 1.0,
        truncate=given.get("truncate", True),
        **_temperature(fields, factor),
    )


def _temperature(fields: Fields, factor: Any) -> dict[str, Any]:
    """The settings behind Yarn's two factors: which of the keys transformers and the family's attention heed."""
    given = fields.parameters
    both = {key: given.get(key) or None for key in ("mscale", "mscale_all_dim")}
    layer = fields.family.layers.get(fields.layer_type or "")
    attention = given.get("attention_factor", layer.attention_factor if layer else None)
    softmax = fields.family.scale_softmax and both["mscale_all_dim"] is not None
    if attention is None and None not in both.values():
        return {**both, "scale_softmax": softmax}
    if not softmax:
        return {"attention_factor": attention}  # one of the two alone counts for nothing on cos and sin
    if attention is None:
        attention = temperature(factor)
    return {"attention_factor": attention, "mscale_all_dim": both["mscale_all_dim"], "scale_softmax": True}


def _longrope(fields: Fields) -> LongRope:
    given, original = fields.parameters, _needed(fields, fields.original_length)
    attention, factor = given.get("attention_factor"), given.get("factor")
    if attention is None and factor is None:
        factor = max(1.0, _needed(fields, fields.length) / original)
    return LongRope(
        short_factor=given["short_factor"],
        long_factor=given["long_factor"],
        original_length=original,
        factor=None if attention is not None else factor,
        attention_factor=attention,
    )


def _phimoe(fields: Fields) -> LongRope:
    """Phi-3.5-MoE states the factor on cos and sin for both lists; all its checkpoints state one value."""
    given = fields.parameters
    if given["short_mscale"] != given["long_mscale"]:
        raise WhorlError(
            f"{CALL}: short_mscale={shown(given['short_mscale'])} and long_mscale={shown(given['long_mscale'])} in "
            f"{fields.place} differ, and LongRope has one attention_factor. Build whorl.Rope by hand, one per length."
        )
    return _longrope(fields).replace(factor=None, attention_factor=given["long_mscale"])


def _llama3(fields: Fields) -> Llama3:
    given = fields.parameters
    return Llama3(
        factor=given["factor"],
        original_length=_needed(fields, fields.original_length),
        low_freq_factor=given["low_freq_factor"],
        high_freq_factor=given["high_freq_factor"],
    )


def _proportional(fields: Fields) -> Proportional:
    factor = fields.parameters.get("factor")
    return Proportional(fraction=fields.share, factor=1.0 if factor is None else factor)


def _needed(fields: Fields, length: int | None) -> int:
    if length is None:
        raise WhorlError(
            f"{CALL}: rope_type {fields.rope_type!r} needs max_position_embeddings, which the config lacks. "
            "Add it to the config."
        )
    return length


RULES = {
    "default": Rule(_none),
    "linear": Rule(_linear, needs=("factor",)),
    "dynamic": Rule(_dynamic, needs=("factor",)),
    "yarn": Rule(
        _yarn,
        needs=("factor",),
        takes=(ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": Rule(_longrope, needs=("short_factor", "long_factor"), takes=(ORIGINAL, "factor", "attention_factor")),
    "llama3": Rule(_llama3, needs=("factor", "low_freq_factor", "high_freq_factor"), takes=(ORIGINAL,)),
    "proportional": Rule(_proportional, takes=("factor",)),
}
ALPHA = Rule(
    _alpha,
    needs=("alpha",),
    passes_over=(ORIGINAL, "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
)
PHIMOE = Rule(
    _phimoe,
    needs=("short_factor", "long_factor", "short_mscale", "long_mscale"),
    takes=(ORIGINAL, "factor", "attention_factor"),
)
