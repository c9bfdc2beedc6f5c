"""transformers, versions 4 and 5: which fields of a config each of them reads."""

from __future__ import annotations

import dataclasses
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
PHI_3_LENGTH = 4096  # what the classes of version 4 take for the original length in these families
PHI_3 = ("phi3", "phi4_multimodal")
# Families that version 5 has brought: no folder of theirs is in 4.57.6.
FIRST_IN_5 = frozenset(
    (
        *("afmoe", "axk1", "axk2", "bailing_hybrid", "beam", "cohere2_moe", "cohere_compass", "cwm", "deepseek_v32"),
        *("deepseek_v4", "diffusion_gemma", "embedding_gemma2", "ernie4_5_vl_moe", "exaone_moe", "flint", "gemma4"),
        *("gemma4_unified", "glm4_moe_lite", "glm5_next", "glm_moe_dsa", "gte", "hunyuan_vl", "hy_v3", "hy_v4"),
        *("jina_embeddings_v3", "kimi_linear", "kolibri1", "laguna", "lfm2_moe", "mellum", "mimo_v2_flash"),
        *("minicpm3", "minimax_m2", "minimax_m3_vl", "ministral3", "mistral4", "mistral_large4", "nanochat"),
        *("nemotron_h", "nomic_bert", "paddleocr_vl", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "solar_open", "step3p5"),
        *("t5gemma2", "t5gemma2_decoder", "ultrabert", "youtu", "zaya"),
    )
)
_FIRST = "transformers 4.57.6 has no model_type {!r}: only code that comes with a checkpoint reads such a file there"


def _read_5(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    return reading_of(as_version_5(config), "transformers 5", assume)


def _read_4(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    fields = text_fields(config)
    fields.pop("rope_parameters", None)
    given, family = fields.get("rope_scaling"), family_name(filled_fields(with_text_fields(config, fields)))
    if isinstance(given, dict) and given:
        fields |= _scaling_of_4(given, fields, family)
    reading = reading_of(seen(config, fields), "transformers 4", assume)
    if family in FIRST_IN_5:
        reading = dataclasses.replace(reading, notes=(*reading.notes, _FIRST.format(family)))
    return reading


def _scaling_of_4(given: Mapping[str, Any], fields: dict[str, Any], family: str) -> dict[str, Any]:
    """rope_scaling without the keys that version 4 passes over, and the original length where it looks for it."""
    if "" not in by_kind(given):
        raise WhorlError(
            "read: rope_scaling differs by layer type, which transformers 4 cannot read. Use transformers5."
        )
    kind = rope_type(given)
    if kind not in TYPES_OF_4 and family != "telechat3":
        raise WhorlError(f"read: rope_type {kind!r} is not known to transformers 4. Use transformers5.")
    if family in PHI_3 and not {"short_factor", "long_factor"} <= given.keys():
        raise WhorlError(
            f"read: rope_scaling of type {kind!r} has no short_factor and long_factor, which are all that the class of "
            f"model_type {family!r} accepts in transformers 4. Use transformers5."
        )
    rope = {key: value for key, value in given.items() if key not in INSIDE_ONLY_IN_5}
    beside = fields.get(ORIGINAL)
    if kind in ("su", "longrope") or family in PHI_3:
        inside = rope.pop(ORIGINAL, None)  # looked for beside rope_scaling alone
        if family == "phimoe":  # whose class puts it there
            beside = beside or inside
        beside = beside or (PHI_3_LENGTH if family in PHI_3 else None)
        if beside:
            rope.pop("factor", None)  # the ratio of the two lengths takes its place
        return {"rope_scaling": rope, ORIGINAL: beside}
    return {"rope_scaling": rope, ORIGINAL: None}


_ROPE = "src/transformers/modeling_rope_utils.py"

TRANSFORMERS_4 = Program(
    name="transformers4",
    title="transformers",
    version="4.57.6",
    repository="huggingface/transformers",
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
        Fact(
            "original_max_position_embeddings, absent",
            "longrope of Phi-3 and Phi-4 multimodal: 4096; of Phi-3.5-MoE: the one inside rope_scaling",
            "src/transformers/models/{phi3,phi4_multimodal,phimoe}/configuration_*.py",
        ),
        Fact(
            "model_type",
            "families that came with version 5 are not known: only code that comes with a checkpoint can read them",
            "src/transformers/models",
        ),
        Fact("rope_scaling.attn_factor, .extrapolation_factor", "not read, with a warning", _ROPE),
        Fact("max_position_embeddings", "the length that is claimed", _ROPE),
    ),
)
TRANSFORMERS_5 = Program(
    name="transformers5",
    title="transformers",
    version="5.22.2",
    repository="huggingface/transformers",
    read=_read_5,
    facts=(
        Fact("rope_scaling", "taken for rope_parameters, and before it where a file has both", _ROPE),
        Fact("rope_theta, partial_rotary_factor", "read where rope_parameters has none inside", _ROPE),
        Fact(
            "original_max_position_embeddings",
            "the one beside rope_parameters first (but for layer types with dicts of their own), then the one inside, "
            "then max_position_embeddings",
            _ROPE,
        ),
        Fact("attention_factor", "replaces YaRN's 0.1 ln(factor) + 1 on cos and sin", _ROPE),
        Fact("attn_factor, extrapolation_factor", "not read, with a warning", _ROPE),
        Fact("mscale, mscale_all_dim", "their quotient on cos and sin where both are set, else neither", _ROPE),
        Fact("max_position_embeddings", "the length that is claimed", _ROPE),
    ),
)
