"""mlx-lm: which fields each of its models reads, and what its shared rotary code makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whorl.bridge.programs.program import (
    Fact,
    Program,
    Seen,
    changed,
    claiming,
    latent_yarn,
    long_list,
    number,
    reading_of,
    rope_type,
    seen,
)
from whorl.bridge.text_part import filled_fields, text_fields
from whorl.dialects.families import family_name
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.reading import Described, Reading
from whorl.dialects.values import whole_number
from whorl.errors import WhorlError
from whorl.rotary.scalings.temperature import temperature


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What a model of mlx-lm reads: its base where a file has no rope_theta (None: it fails), scalings, and where.

    ``inside`` is what it takes from rope_parameters: nothing, the base alone, or all.
    """

    base: float | None = 10_000.0
    scales: bool = True
    inside: str = ""


def _rows(names: str, **settings: Any) -> dict[str, _Model]:
    return dict.fromkeys(names.split(), _Model(**settings))


MODELS: dict[str, _Model] = {
    **_rows("llama mistral bitnet deepseek_v3 deepseek_v32 internlm2 internlm3 mimo olmo2 olmoe seed_oss afmoe"),
    **_rows("qwen2 minicpm glm4_moe_lite gemma3", base=1_000_000.0),
    **_rows("gpt_oss", base=150_000.0),
    **_rows("falcon_h1", base=1e11),
    **_rows("apertus bailing_moe dots1 exaone exaone4 granite granitemoe longcat_flash olmo3 qwen3", base=None),
    **_rows("qwen3_next telechat3", base=None),
    **_rows("exaone_moe", base=1_000_000.0, inside="base"),
    **_rows("ministral3 laguna mellum gemma4", inside="all"),
    # their code turns by rope_theta alone
    **_rows("gemma gemma2 olmo phi", scales=False),
    **_rows("mixtral qwen2_moe", base=1_000_000.0, scales=False),
    **_rows("lfm2 lfm2_moe", base=1_000_000.0, scales=False, inside="base"),
    **_rows("cohere", base=8_000_000.0, scales=False),
    **_rows("cohere2", base=50_000.0, scales=False),
    **_rows("starcoder2", base=100_000.0, scales=False),
    **_rows("ernie4_5 ernie4_5_moe glm4 glm4_moe helium qwen3_moe stablelm", base=None, scales=False),
    **_rows("phi3"),
}
PHI_3_TYPES = ("longrope", "su", "linear")  # any other is set to none, with a warning
PHI_3_LENGTH = 4096


def _read(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    fields = text_fields(config)
    family = family_name(filled_fields(config))
    model = MODELS.get(family)
    if model is None:
        raise WhorlError(f"read: what mlx-lm does for model_type {family!r} has not been read. Leave mlx out.")
    view = seen(config, _fields(fields, model, family))
    view.check_read("mlx-lm")
    reading = reading_of(view, "mlx-lm", assume, lambda scaling, rope: _scaling(scaling, rope, view))
    return claiming(reading, None, "")


def _fields(fields: dict[str, Any], model: _Model, family: str) -> dict[str, Any]:
    """The fields that the model's arguments take from the file."""
    given = fields.get("rope_parameters")
    if model.inside == "all":
        return fields
    fields = {name: value for name, value in fields.items() if name != "rope_parameters"}
    if model.inside == "base" and isinstance(given, dict) and "rope_theta" in given:
        fields["rope_theta"] = given["rope_theta"]
    if fields.get("rope_theta") is None:
        if model.base is None:
            raise WhorlError(
                f"read: mlx-lm cannot load model_type {family!r} without rope_theta, and reads no rope_parameters. "
                "Write rope_theta into the file: whorl export --for hf-both does."
            )
        fields["rope_theta"] = model.base
    rope = fields.get("rope_scaling")
    if not isinstance(rope, dict) or not rope:
        return fields
    if not model.scales:
        return {**fields, "rope_scaling": None}
    rope = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
    if family == "phi3":
        return {**fields, **_phi_3(rope, fields)}
    return {**fields, "rope_scaling": rope, **({} if rope_type(rope) == "longrope" else {ORIGINAL: None})}


def _phi_3(rope: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    if not {"long_factor", "type"} <= rope.keys():
        raise WhorlError(
            "read: mlx-lm needs type and long_factor in Phi-3's rope_scaling. Write type beside rope_type."
        )
    if rope["type"] not in PHI_3_TYPES:
        return {"rope_scaling": None}
    rope = {name: value for name, value in rope.items() if name != ORIGINAL}
    return {"rope_scaling": rope, ORIGINAL: fields.get(ORIGINAL) or PHI_3_LENGTH}


def _scaling(scaling: Described, rope: Mapping[str, Any], view: Seen) -> Described:
    if scaling.name == "yarn":
        if rope.get("factor") is None:
            raise WhorlError("read: mlx-lm cannot read YaRN without a factor. Write factor into the rope dict.")
        if view.latent:
            return latent_yarn(scaling, {key: value for key, value in rope.items() if key != "attn_factor"})
        factor = scaling.value("factor")
        above, below = number(rope, "mscale", 1.0), number(rope, "mscale_all_dim", 0.0)
        own = temperature(factor, above) / temperature(factor, below)
        settings = {"attention_factor": own, "truncate": True}
        fixed = changed(scaling, ("mscale", "mscale_all_dim", "scale_softmax"), **settings)
        original = rope.get(ORIGINAL)
        return fixed if original else changed(fixed, original_length=4096)
    if scaling.name == "longrope":
        original, length = scaling.value("original_length"), whole_number(view.fields, LENGTHS)
        stretch = 1.0 if length is None else length / original
        own = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
        return long_list(changed(scaling, ("factor",), attention_factor=own))
    return scaling


_SHARED = "mlx_lm/models/rope_utils.py"

MLX = Program(
    name="mlx",
    title="mlx-lm",
    version="d78bf58 (22 August 2026)",
    repository="ml-explore/mlx-lm",
    read=_read,
    facts=(
        Fact(
            "rope_parameters",
            "read for Ministral 3, Laguna, Mellum, Gemma 4, Qwen3.5 and glm_moe_dsa; its base alone for LFM2 and "
            "EXAONE MoE; for the others not: the base is that of the model's arguments, and the scaling is gone",
            "mlx_lm/models/*.py",
        ),
        Fact(
            "rope_theta, absent",
            "fails for Qwen3, Granite, Apertus, OLMo 3 and others; 1,000,000 for Qwen2 and Gemma 3, 10,000 for Llama",
            "mlx_lm/models/*.py",
        ),
        Fact(
            "rope_scaling",
            "not read for Qwen3 MoE, Mixtral, Gemma, Cohere, GLM-4, StarCoder 2 and others",
            "mlx_lm/models/*.py",
        ),
        Fact("type, rope_type", "type first; Phi-3 reads type alone", f"{_SHARED}, phi3.py"),
        Fact("attention_factor, attn_factor, truncate", "not read", _SHARED),
        Fact("mscale, mscale_all_dim", "1 and 0 where absent: their quotient on cos and sin", _SHARED),
        Fact("original_max_position_embeddings of yarn, absent", "4096", _SHARED),
        Fact("short_factor, long_factor", "the long list at every length", _SHARED),
        Fact("max_position_embeddings", "no length is claimed", _SHARED),
    ),
)
