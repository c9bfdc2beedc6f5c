"""llama.cpp: what is left of a config once its converter has written a GGUF file and the program has read it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from whorl.bridge.programs.program import Fact, Program, Seen, as_version_5, number, reading_of
from whorl.dialects.gguf_architectures import ARCHITECTURES
from whorl.dialects.reading import Described, Reading

if TYPE_CHECKING:
    from whorl.bridge.gguf_keys import GgufKeys
    from whorl.encodings.rope import Rope

# What the converter writes lists and divisors for; other classes drop them.
CONVERTS_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
CONVERTS_LLAMA3 = ("llama", "deci", "exaone", "exaone4", "exaone-moe", "apertus", "arcee", "granite", "mistral3")


def _read(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    held = converted_keys(config, assume, "read").reading()
    return dataclasses.replace(held, dialect="gguf as llama.cpp reads it")


def converted_keys(config: dict[str, Any], assume: str | None, call: str) -> GgufKeys:
    """The keys that llama.cpp's converter makes of a config."""
    from whorl.bridge.gguf_keys import keys_of  # which needs torch

    view = as_version_5(config)
    reading = reading_of(view, "llama.cpp", assume)
    return keys_of(reading, view.fields, lambda scaling, name, rope: _converted(scaling, name, rope, view), call)


def _converted(scaling: Described, name: str, rope: Rope, view: Seen) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The keys of a scaling as the converter writes them."""
    from whorl.bridge.gguf_keys import scaling_keys

    if scaling.name == "yarn":
        all_dim = number(view.rope("full_attention"), "mscale_all_dim", 0.0)
        row = ARCHITECTURES[name]
        keys = {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(scaling.value("factor")),
            "rope.scaling.original_context_length": scaling.value("original_length"),
            "rope.scaling.yarn_beta_fast": float(scaling.value("beta_fast", 32.0)),
            "rope.scaling.yarn_beta_slow": float(scaling.value("beta_slow", 1.0)),
        }
        return keys | ({"rope.scaling.yarn_log_multiplier": row.log_unit * all_dim} if "log" in row.reads else {}), {}
    writes = {"linear": True, "ntk": True, "longrope": name in CONVERTS_LISTS, "llama3": name in CONVERTS_LLAMA3}
    return scaling_keys(scaling, name, rope) if writes.get(scaling.name) else ({}, {})


LLAMA_CPP = Program(
    name="llama.cpp",
    title="llama.cpp",
    version="b21e4de (22 August 2026)",
    repository="ggml-org/llama.cpp",
    read=_read,
    facts=(
        Fact(
            "rope_theta, rope_scaling, rope_parameters",
            "as transformers reads them, rope_parameters first, copied into {arch}.rope.* of the GGUF file",
            "conversion/base.py",
        ),
        Fact(
            "attention_factor",
            "written as yarn_attn_factor and replaced by 0.1 ln(factor) + 1 when a context is made; "
            "{arch}.rope.scaling.attn_factor multiplies cos and sin",
            "conversion/base.py, src/llama-context.cpp",
        ),
        Fact(
            "beta_fast, beta_slow", "read for Grok and Ministral 3, else 32 and 1", "src/models/grok.cpp, mistral3.cpp"
        ),
        Fact("truncate", "not read: the ends of YaRN's ramp are always rounded", "ggml/src/ggml.c"),
        Fact(
            "extrapolation_factor", "written as yarn_ext_factor, which Grok's code alone reads", "src/models/grok.cpp"
        ),
        Fact(
            "mscale_all_dim",
            "of DeepSeek: yarn_log_multiplier, a tenth of it; mscale itself is taken for 1, or in the architecture "
            "deepseek2 for mscale_all_dim where that is not 1",
            "conversion/deepseek.py, src/llama-context.cpp",
        ),
        Fact(
            "rope_type llama3",
            "written out as the tensor rope_freqs for the families that Llama's converter serves; dropped elsewhere",
            "conversion/llama.py",
        ),
        Fact(
            "short_factor, long_factor",
            "two tensors for Phi-3, Phi-3.5-MoE and MiniCPM; the long one where the context is beyond the original "
            "length; dropped elsewhere",
            "conversion/phi.py, conversion/minicpm.py, src/llama-model.cpp",
        ),
        Fact("rope_type dynamic", "dropped, but for HunYuan's alpha, which changes the base", "conversion/base.py"),
        Fact("max_position_embeddings", "{arch}.context_length: the length that is claimed", "conversion/base.py"),
    ),
)
