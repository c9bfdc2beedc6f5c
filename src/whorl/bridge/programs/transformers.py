"""transformers, versions 4 and 5: which fields of a config each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.bridge.programs.program import Fact, Program, as_version_5, reading_of, rope_type, seen
from whorl.bridge.text_part import by_kind, filled_fields, text_fields, with_text_fields
from whorl.dialects.families import family_name
from whorl.dialects.names import ORIGINAL
from whorl.dialects.reading import Reading
from whorl.errors import WhorlError

TYPES_OF_4 = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "su", "mrope")
INSIDE_ONLY_IN_5 = ("rope_theta", "partial_rotary_factor")
PHI_3_LENGTH = 4096  # what Phi3Config of version 4 takes for the original length


def _read_5(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    return reading_of(as_version_5(config), "transformers 5", assume)


def _read_4(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    fields = text_fields(config)
    fields.pop("rope_parameters", None)
    given = fields.get("rope_scaling")
    if isinstance(given, dict) and given:
        family = family_name(filled_fields(with_text_fields(config, fields)))
        fields |= _scaling_of_4(given, fields, family)
    return reading_of(seen(config, fields), "transformers 4", assume)


def _scaling_of_4(given: Mapping[str, Any], fields: dict[str, Any], family: str) -> dict[str, Any]:
    """rope_scaling without the keys that version 4 passes over, and the original length where it looks for it."""
    if "" not in by_kind(given):
        raise WhorlError(
            "read: rope_scaling differs by layer type, which transformers 4 cannot read. Use transformers5."
        )
    kind = rope_type(given)
    if kind not in TYPES_OF_4 and family != "telechat3":
        raise WhorlError(f"read: rope_type {kind!r} is not known to transformers 4. Use transformers5.")
    rope = {key: value for key, value in given.items() if key not in INSIDE_ONLY_IN_5}
    beside = fields.get(ORIGINAL)
    if kind in ("su", "longrope") or family in ("phi3", "phi4_multimodal"):
        rope.pop(ORIGINAL, None)  # looked for beside rope_scaling alone
        beside = beside or (PHI_3_LENGTH if family == "phi3" else None)
        if beside:
            rope.pop("factor", None)  # the ratio of the two lengths takes its place
        return {"rope_scaling": rope, ORIGINAL: beside}
    return {"rope_scaling": rope, ORIGINAL: None}


_ROPE = "src/transformers/modeling_rope_utils.py"

TRANSFORMERS_4 = Program(
    name="transformers4",
    title="transformers",
    version="4.57.6",
    read=_read_4,
    facts=(
        Fact(
            "rope_parameters",
            "not read: without rope_theta beside it the base is the default of the class, and the scaling is gone",
            "src/transformers/models/llama/configuration_llama.py",
        ),
        Fact("rope_scaling.rope_theta, .partial_rotary_factor", "not read: only the fields beside it are", _ROPE),
        Fact(
            "original_max_position_embeddings",
            "yarn and llama3: inside rope_scaling alone; longrope: beside it alone, and then max_position_embeddings "
            "over it takes the place of factor",
            _ROPE,
        ),
        Fact("original_max_position_embeddings, absent", "longrope of Phi-3: 4096", "…/phi3/configuration_phi3.py"),
        Fact("rope_scaling.attn_factor, .extrapolation_factor", "not read, with a warning", _ROPE),
        Fact("max_position_embeddings", "the length that is claimed", _ROPE),
    ),
)
TRANSFORMERS_5 = Program(
    name="transformers5",
    title="transformers",
    version="5.22.2",
    read=_read_5,
    facts=(
        Fact("rope_scaling", "taken for rope_parameters, and before it where a file has both", _ROPE),
        Fact("rope_theta, partial_rotary_factor", "read where rope_parameters has none inside", _ROPE),
        Fact(
            "original_max_position_embeddings",
            "the one beside rope_parameters first, then the one inside, then max_position_embeddings",
            _ROPE,
        ),
        Fact("attention_factor", "replaces YaRN's 0.1 ln(factor) + 1 on cos and sin", _ROPE),
        Fact("attn_factor, extrapolation_factor", "not read, with a warning", _ROPE),
        Fact("mscale, mscale_all_dim", "their quotient on cos and sin where both are set, else neither", _ROPE),
        Fact("max_position_embeddings", "the length that is claimed", _ROPE),
    ),
)
