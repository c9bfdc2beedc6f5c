"""Rotations of transformers configs, each given as the dict its config.json holds: what ``Rope.from_hf`` reads.

Every rope type of transformers is read as transformers computes it. In the rope dict
    a key its type uses is placed,
    a key that transformers does not read for that type is passed over only where released checkpoints carry it
    (``PASSED_OVER``), since the numbers are the same without it,
    any other key raises.
A field beside it that the family's class never reads counts for nothing (``unread.py``). Where transformers 5.22.2 has
the field and does not do what it says, the config wins: ``truncate`` inside a layer type, ``head_dim: null`` with yarn,
dynamic or longrope, ``rotary_dim`` of MiniMax-M3, ``attn_config.rope_theta`` of DBRX, a partial_rotary_factor beside a
scaling in families that rotate whole heads, where the class fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whorl.dialects.families import family_name
from whorl.dialects.fields import Fields, read_fields
from whorl.dialects.names import ORIGINAL
from whorl.dialects.values import CALL, switch, whole_number
from whorl.errors import WhorlError, invalid, shown, unknown
from whorl.rotary.scalings.temperature import temperature

if TYPE_CHECKING:
    from whorl.rotary.rotation import Layout

EVERYWHERE = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor"),
    *("mrope_section", "mrope_interleaved", "interleaved"),
)
# llama_4_scaling_beta makes queries longer with the position: a temperature beside the rotation, not part of it
PASSED_OVER = ("llama_4_scaling_beta", "max_position_embeddings", "finetuned")


def read_rotation(config: dict[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """Settings of the rotation of a transformers config, by the names that Rope gives them.

    ``scaling`` is a dict with the name and the settings of the scaling, or None; its key ``replaces``, if any, holds
    settings that the config states as well and that count for nothing where they are sound. Where the model has an
    M-RoPE, its ``sections`` and their ``arrangement`` are there too. ``layer_type`` is needed where layers differ.

    >>> config = {"model_type": "llama", "head_dim": 64, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    >>> read_rotation(config)["scaling"]
    {'name': 'linear', 'factor': 2.0}
    """
    return rotation_of(fields_for(config, layer_type))


def fields_for(config: dict[str, Any], layer_type: str | None) -> Fields:
    """The rotary fields of a config that may be anything."""
    if not isinstance(config, dict):
        raise invalid(CALL, "config", "a dict", config, "Pass json.load of config.json, or config.to_dict().")
    return read_fields(config, layer_type)


def rotation_of(fields: Fields) -> dict[str, Any]:
    """Settings of the rotation that these fields describe, as ``read_rotation`` returns them."""
    rope_type = _rope_type(fields)
    family = fields.family
    rotation: dict[str, Any] = {
        "head_dim": fields.head_dim,
        "rotary_dim": None if fields.rotary_dim == fields.head_dim else fields.rotary_dim,
        "base": fields.base,
        "layout": _layout(fields),
        "slice": family.slice if fields.rotary_dim < fields.head_dim else "leading",
        "scaling": rope_type.scaling(fields),
        "rotated_heads": family.rotated_heads,
        "learnable": family.learnable,
        "backwards": family.backwards,
    }
    sections = fields.parameters.get("mrope_section", family.sections)
    if sections is None and family.arrangement == "alternating":
        sections = (fields.rotary_dim // 4,) * 2
    return rotation if sections is None else rotation | {"sections": sections, "arrangement": _arrangement(fields)}


def _layout(fields: Fields) -> Layout:
    """The family's layout; ``rope_interleave`` chooses between those of DeepSeek-V3."""
    interleave, layout = switch(fields.config, "rope_interleave"), fields.family.layout
    if interleave is None or layout == "interleaved":
        return layout
    return "interleaved_to_half" if interleave else "half"


def _arrangement(fields: Fields) -> str:
    """The family's arrangement of the axes; mrope_interleaved chooses in a family that is not known."""
    arrangement = fields.family.arrangement
    interleaved = fields.parameters.get("mrope_interleaved", fields.parameters.get("interleaved"))
    known = fields.family.sections is not None or arrangement != "chunked"
    if interleaved is None or (not known and not interleaved):
        return arrangement
    if not known:
        return "interleaved"
    if bool(interleaved) != (arrangement == "interleaved"):
        raise WhorlError(
            f"{CALL}: mrope_interleaved={shown(interleaved)} in {fields.parameters_name}, but model_type "
            f"{fields.config.get('model_type')!r} arranges its axes {arrangement}. Leave mrope_interleaved out."
        )
    return arrangement


# --- rope types


@dataclass(frozen=True)
class RopeType:
    """Keys of the rope dict that one rope type needs, takes and passes over, and the scaling that they describe."""

    scaling: Callable[[Fields], dict[str, Any] | None]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    passes_over: tuple[str, ...] = (ORIGINAL,)


def _rope_type(fields: Fields) -> RopeType:
    """The rope type of these fields, once every key of the rope dict is known to it."""
    if fields.rope_type == "axial":
        raise WhorlError(
            f"{CALL}: rope_type 'axial' turns images by rows and columns. Use whorl.AxialRope in its convention."
        )
    known = ROPE_TYPES | ({"ntk": GTE} if family_name(fields.config) == "gte" else {})
    if fields.rope_type not in known:
        raise unknown(f"rope_type in {fields.parameters_name} of {CALL}:", fields.rope_type, known)
    rope_type = known[fields.rope_type]
    if _is_hunyuan(fields) and fields.rope_type == "dynamic" and fields.parameters.get("alpha"):
        rope_type = ALPHA
    elif family_name(fields.config) == "qwen" and switch(fields.config, "use_dynamic_ntk"):
        rope_type = QWEN
    elif family_name(fields.config) == "nomic_bert" and fields.config.get("rotary_scaling_factor") is not None:
        rope_type = NOMIC
    elif family_name(fields.config) in ("phimoe", "phi3small") and fields.rope_type == "longrope":
        rope_type = PHIMOE
    understood = (*EVERYWHERE, *rope_type.needs, *rope_type.takes)
    for key in fields.parameters:
        if key not in (*understood, *PASSED_OVER, *rope_type.passes_over) and fields.parameters[key] is not None:
            raise WhorlError(
                f"{CALL}: cannot place {key!r} in {fields.parameters_name} of rope_type {fields.rope_type!r}. "
                f"Understood are: {', '.join(sorted(understood))}."
            )
    for key in rope_type.needs:
        if key not in fields.parameters:
            raise WhorlError(
                f"{CALL}: rope_type {fields.rope_type!r} needs {key!r}, which {fields.parameters_name} lacks. "
                f"{_other_name(fields)}Understood are: {', '.join(sorted(understood))}."
            )
    return rope_type


def _other_name(fields: Fields) -> str:
    """What is said where the config calls the type by a name that means another one elsewhere."""
    stated = fields.parameters.get("rope_type", fields.parameters.get("type", fields.rope_type))
    return "" if stated == fields.rope_type else f"In this family {stated!r} means {fields.rope_type!r}. "


def _is_hunyuan(fields: Fields) -> bool:
    return family_name(fields.config).startswith("hunyuan")


def _none(fields: Fields) -> None:
    return None


def _linear(fields: Fields) -> dict[str, Any]:
    return {"name": "linear", "factor": fields.parameters["factor"]}


def _dynamic(fields: Fields) -> dict[str, Any]:
    # transformers measures against the present length here, not against the original one
    length = _needed(fields, fields.length)
    return {"name": "dynamic_ntk", "factor": fields.parameters["factor"], "original_length": length}


def _alpha(fields: Fields) -> dict[str, Any]:
    """HunYuan calls "dynamic" what is the NTK-aware base for a fixed factor."""
    return {"name": "ntk", "factor": fields.parameters["alpha"]}


def _qwen(fields: Fields) -> dict[str, Any]:
    """Qwen-1 serves its seq_length, and then as many as that doubled, and doubled again."""
    length = whole_number(fields.config, ("seq_length",))
    if length is None:
        raise WhorlError(f"{CALL}: use_dynamic_ntk needs seq_length, which the config lacks. Add it to the config.")
    return {"name": "dynamic_ntk", "factor": 2.0, "original_length": length, "doubling": True}


def _nomic(fields: Fields) -> dict[str, Any] | None:
    """nomic-embed's own code: dynamic NTK, from the length it was trained at; 0 stands for none."""
    factor = fields.config["rotary_scaling_factor"]
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise invalid(CALL, "rotary_scaling_factor", "a number", factor)
    length = whole_number(fields.config, ("max_trained_positions",)) or NOMIC_TRAINED
    return {"name": "dynamic_ntk", "factor": factor, "original_length": length} if factor else None


def _gte(fields: Fields) -> dict[str, Any]:
    """The code that comes with GTE v1.5, and vLLM: NTK at a fixed factor, by base and by the last pair."""
    mixed = fields.parameters.get("mixed_b")
    form = {"variant": "fixed"} if mixed is None else {"variant": "mixed", "exponent": mixed}
    return {"name": "ntk", "factor": fields.parameters["factor"], **form}


def _yarn(fields: Fields) -> dict[str, Any]:
    given, original = fields.parameters, _needed(fields, fields.original_length)
    factor = given["factor"] if given["factor"] is not None else _needed(fields, fields.length) / original
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise invalid(CALL, "factor", "a number", factor)
    return {
        "name": "yarn",
        "factor": factor,
        "original_length": original,
        "beta_fast": given.get("beta_fast") or 32.0,  # transformers reads 0 as absent
        "beta_slow": given.get("beta_slow") or 1.0,
        "truncate": given.get("truncate", True),
        **_temperature(fields, factor),
    }


def _temperature(fields: Fields, factor: Any) -> dict[str, Any]:
    """Settings of Yarn's two factors, from those keys that transformers and the family's attention use."""
    given = fields.parameters
    both = {key: given.get(key) or None for key in ("mscale", "mscale_all_dim")}
    layer = fields.family.layers.get(fields.rope_kind)
    attention = given.get("attention_factor", layer.attention_factor if layer else None)
    if attention is None and fields.family.mscale != 1:
        attention = temperature(factor, fields.family.mscale)
    softmax = fields.family.scale_softmax and both["mscale_all_dim"] is not None
    if attention is None and None not in both.values():
        return {**both, "scale_softmax": softmax}
    if not softmax:
        return {"attention_factor": attention}  # one of the two alone counts for nothing on cos and sin
    if attention is None:
        attention = temperature(factor)
    return {"attention_factor": attention, "mscale_all_dim": both["mscale_all_dim"], "scale_softmax": True}


def _longrope(fields: Fields) -> dict[str, Any]:
    given, original = fields.parameters, _needed(fields, fields.original_length)
    attention, factor = given.get("attention_factor"), given.get("factor")
    if attention is None and factor is None:
        factor = max(1.0, _needed(fields, fields.length) / original)
    return {
        "name": "longrope",
        "short_factor": given["short_factor"],
        "long_factor": given["long_factor"],
        "original_length": original,
        "factor": None if attention is not None else factor,
        "attention_factor": attention,
    }


def _phimoe(fields: Fields) -> dict[str, Any]:
    """Phi-3.5-MoE states the factor on cos and sin for both lists; all its checkpoints state one value."""
    given = fields.parameters
    if given["short_mscale"] != given["long_mscale"]:
        raise WhorlError(
            f"{CALL}: short_mscale={shown(given['short_mscale'])} and long_mscale={shown(given['long_mscale'])} in "
            f"{fields.parameters_name} differ, and LongRope has one attention_factor. "
            "Build whorl.Rope by hand, one per length."
        )
    settings = _longrope(fields)
    replaced = {key: settings[key] for key in ("factor", "attention_factor")}
    return {**settings, "factor": None, "attention_factor": given["long_mscale"], "replaces": replaced}


def _llama3(fields: Fields) -> dict[str, Any]:
    given = fields.parameters
    return {
        "name": "llama3",
        "factor": given["factor"],
        "original_length": _needed(fields, fields.original_length),
        "low_freq_factor": given["low_freq_factor"],
        "high_freq_factor": given["high_freq_factor"],
    }


def _proportional(fields: Fields) -> dict[str, Any]:
    factor = fields.parameters.get("factor")
    return {"name": "proportional", "fraction": fields.share, "factor": 1.0 if factor is None else factor}


def _needed(fields: Fields, length: int | None) -> int:
    if length is None:
        raise WhorlError(
            f"{CALL}: rope_type {fields.rope_type!r} needs max_position_embeddings, which the config lacks. "
            "Add it to the config."
        )
    return length


ROPE_TYPES = {
    "default": RopeType(_none),
    "linear": RopeType(_linear, needs=("factor",)),
    "dynamic": RopeType(_dynamic, needs=("factor",)),
    "yarn": RopeType(
        _yarn,
        needs=("factor",),
        takes=(ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": RopeType(
        _longrope, needs=("short_factor", "long_factor"), takes=(ORIGINAL, "factor", "attention_factor")
    ),
    "llama3": RopeType(_llama3, needs=("factor", "low_freq_factor", "high_freq_factor"), takes=(ORIGINAL,)),
    "proportional": RopeType(_proportional, takes=("factor",)),
}
ALPHA = RopeType(
    _alpha,
    needs=("alpha",),
    passes_over=(ORIGINAL, "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
)
NOMIC_TRAINED = 2048  # what its code has where the file is silent
GTE = RopeType(_gte, needs=("factor",), takes=("mixed_b",))
NOMIC = RopeType(_nomic)
QWEN = RopeType(_qwen)
PHIMOE = RopeType(
    _phimoe,
    needs=("short_factor", "long_factor", "short_mscale", "long_mscale"),
    takes=(ORIGINAL, "factor", "attention_factor"),
)
