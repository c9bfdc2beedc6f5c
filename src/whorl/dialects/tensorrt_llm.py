"""TensorRT-LLM checkpoint configs: what its engines do with positions.

From published excerpts of tensorrt_llm/functional.py (RopeEmbeddingUtils), models/modeling_utils.py and, in part,
layers/attention.py, as they stood in 2026; no whole release was read, and none was run. An
engine's config.json holds the same fields under ``pretrained_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.reading import FAMILY_CODE, FILE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, head_size, layer_indices, table_sizes
from whorl.errors import WhorlError, unknown

SIZES = {"architecture", "hidden_size", "num_hidden_layers", "num_attention_heads"}
PECULIAR = {"position_embedding_type", "mapping", "quantization", "logits_dtype", "rotary_base", "rotary_scaling"}
LAYOUTS = {"rope_gptj": "interleaved", "rope_gpt_neox": "half", "long_rope": "half"}
REFUSED = {
    "chatglm": "the two position axes of ChatGLM-6B",
    "yarn": "the YaRN of its DeepSeek models",
    "mrope": "an M-RoPE whose sections are not in the file",
    "relative": "T5's buckets, in an encoder and a decoder of their own files",
    "deferred": "a rotation that another program applies",
}


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is the config of a TensorRT-LLM checkpoint or engine."""
    config = _checkpoint(config)
    return "model_type" not in config and config.keys() >= SIZES and bool(config.keys() & PECULIAR)


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of a checkpoint config, given as its dict."""
    stated = Stated(_checkpoint(config))
    kind = stated.word("position_embedding_type", otherwise="learned_absolute")
    if kind.value in REFUSED:
        raise WhorlError(
            f"read: position_embedding_type {kind.value!r} of TensorRT-LLM, {REFUSED[kind.value]}, has no reading yet. "
            "Pass the config.json of the model that was converted."
        )
    if kind.value not in (*LAYOUTS, "learned_absolute", "alibi", "alibi_with_scale"):
        raise unknown("position_embedding_type of read:", kind.value, (*LAYOUTS, *REFUSED, "learned_absolute", "alibi"))
    encoding = _rotation(stated, kind.value) if kind.value in LAYOUTS else _unrotated(stated, kind.value)
    local = stated.given("sliding_window_pattern") is not None
    said = "layers with a window and a base of their own (sliding_window_pattern, rope_local_base_freq)"
    claimed = stated.whole("max_position_embeddings")
    scaling = encoding.scaling
    return Reading(
        dialect="tensorrt-llm checkpoint",
        family=stated.word("architecture").value,
        layers=(
            Layers(
                indices=layer_indices(stated.needed("num_hidden_layers")),
                encodings=(encoding,),
                unsupported=(said,) if local else (),
            ),
        ),
        trained_length=None if scaling is None else scaling.settings.get("original_length"),
        claimed_length=claimed,
        config=config,
    )


def _checkpoint(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inside = config.get("pretrained_config")
    return inside if isinstance(inside, dict) else config


def _head_dim(stated: Stated) -> Value:
    given = stated.whole("head_size")
    return given or head_size(stated.needed("hidden_size"), stated.needed("num_attention_heads"))


def _unrotated(stated: Stated, kind: str) -> Described:
    if kind == "learned_absolute":
        settings = table_sizes(stated.needed("hidden_size"), stated.needed("max_position_embeddings"))
        return Described(name="learned", settings=settings)
    settings = {"heads": stated.needed("num_attention_heads")}
    if kind == "alibi_with_scale":  # the bias is divided by sqrt(head_dim) with the scores
        settings["scale"] = Value(value=_head_dim(stated).value ** -0.5, source=FAMILY_CODE)
    return Described(name="alibi", settings=settings)


def _rotation(stated: Stated, kind: str) -> Described:
    head_dim = _head_dim(stated)
    settings = {
        "head_dim": head_dim,
        "base": stated.number("rotary_base", otherwise=10_000.0),
        "layout": Value(value=LAYOUTS[kind], source=FILE, field="position_embedding_type"),
    }
    rotary_dim, share = stated.whole("rotary_embedding_dim"), stated.number("rotary_pct")
    if rotary_dim is None and share is not None and share.value != 1:
        rotary_dim = Value(value=int(head_dim.value * share.value), source=FILE, field="rotary_pct")
    if rotary_dim is not None:
        settings["rotary_dim"] = rotary_dim
    scaling = _long(stated) if kind == "long_rope" else _scaling(stated.part("rotary_scaling"))
    return Described(name="rope", settings=settings, scaling=scaling)


def _scaling(given: Stated | None) -> Described | None:
    if given is None:
        return None
    kind = given.word("type") or given.word("rope_type")
    if kind is None or kind.value in ("none", "default"):
        return None
    if kind.value == "linear":
        return Described(name="linear", settings={"factor": given.number("factor", otherwise=1.0)})
    if kind.value == "llama3":
        settings = {
            "factor": given.number("factor", otherwise=8.0),
            "original_length": given.whole("original_max_position_embeddings", otherwise=8192),
            "low_freq_factor": given.number("low_freq_factor", otherwise=1.0),
            "high_freq_factor": given.number("high_freq_factor", otherwise=4.0),
        }
        return Described(name="llama3", settings=settings)
    alpha = given.number("alpha")
    if kind.value == "dynamic" and alpha is not None:  # a fixed factor on the base, whatever its name
        return Described(name="ntk", settings={"factor": alpha})
    raise WhorlError(
        f"read: rotary_scaling of type {kind.value!r} has no reading for TensorRT-LLM yet. "
        "Pass the config.json of the model that was converted."
    )


def _long(stated: Stated) -> Described:
    """LongRoPE of Phi-3: both lists, and the factor on cos and sin by length unless the file states it."""
    lists = {side: stated.listed(f"longrope_scaling_{side}_factors") for side in ("short", "long")}
    original = stated.whole("original_max_position_embeddings")
    if lists["short"] is None or lists["long"] is None or original is None:
        raise WhorlError(
            "read: long_rope needs longrope_scaling_short_factors, longrope_scaling_long_factors and "
            "original_max_position_embeddings. Pass the whole config.json."
        )
    settings = {
        f"{side}_factor": Value(value=list(values or ()), source=FILE, field=f"longrope_scaling_{side}_factors")
        for side, values in lists.items()
    }
    mscales = [stated.number(f"longrope_{side}_mscale") for side in ("short", "long")]
    if mscales[0] is not None and mscales[1] is not None and mscales[0].value != mscales[1].value:
        raise WhorlError("read: longrope_short_mscale and longrope_long_mscale differ, and LongRope has one factor.")
    served = stated.needed("max_position_embeddings")
    grown = Value(
        value=max(1.0, served.value / original.value), source=FILE, field=f"{served.field} / {original.field}"
    )
    factor = {"attention_factor": mscales[1]} if mscales[1] is not None else {"factor": grown}
    return Described(name="longrope", settings={**settings, "original_length": original, **factor})
