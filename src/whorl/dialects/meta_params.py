"""Meta's params.json, and the like-named files of ExecuTorch: what Llama's own code does with positions.

Read in llama-models a9c89c4 (Llama 3 and 4), in the code released with Llama 2, and in ExecuTorch 04b91d6. Meta's
weights pair neighbours (interleaved); ExecuTorch does too unless ``use_hf_rope`` is set, and then leaves the scaling
out. The numbers of Llama 3's scaling are in Meta's code and in no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whorl.dialects.reading import CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, head_size, in_groups, layer_indices

SIZES = {"dim", "n_layers", "n_heads", "norm_eps"}
# What a file of ExecuTorch has and one of Meta has not.
EXECUTORCH = {
    *("use_hf_rope", "rope_freq_base", "attention_qkv_bias", "no_rope_layer_interval", "qk_norm_before_rope"),
    *("rope_scale_factor", "high_freq_factor", "partial_rotary_factor", "max_context_len", "act_fn"),
}
OF_META = {"multiple_of", "ffn_dim_multiplier", "use_scaled_rope"}
OF_LLAMA_4 = {"nope_layer_interval", "attention_chunk_size", "moe_args", "attn_temperature_tuning"}
OF_LLAMA_2 = (-1, 32_000, 32_016)  # sizes of its vocabulary; -1 stands for that of the tokenizer
SMALL = (2048, 3072)  # widths of Llama 3.2 1B and 3B
LLAMA_3_LENGTH = 8192
STILL = "nope_layer_interval"  # one layer in so many, the last of them, does not rotate


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is a params.json of Meta or of ExecuTorch."""
    return "model_type" not in config and config.keys() >= SIZES and bool(config.keys() & (OF_META | EXECUTORCH))


@dataclass(frozen=True, kw_only=True)
class _Code:
    """What the program that reads the file has in its code: whose it is, and Llama 3's scaling."""

    dialect: str
    family: str
    factor_key: str = ""
    factor: float = 8.0
    high_key: str = ""
    high: float = 4.0


META = _Code(dialect="meta params.json", family="llama")
LLAMA_4 = _Code(
    dialect="meta params.json",
    family="llama4",
    factor_key="rope_scaling_factor",
    factor=16.0,
    high_key="rope_high_freq_factor",
    high=1.0,
)
TORCH = _Code(
    dialect="executorch params",
    family="llama",
    factor_key="rope_scale_factor",
    high_key="high_freq_factor",
)


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of a params.json, given as its dict."""
    code = TORCH if config.keys() & EXECUTORCH else LLAMA_4 if config.keys() & OF_LLAMA_4 else META
    stated, notes = Stated(config), []
    rotation = _rotation(stated, code, notes)
    interval = stated.whole(STILL) if code is LLAMA_4 else None
    groups = in_groups(
        layer_indices(stated.needed("n_layers")),
        lambda index: interval is None or (index + 1) % interval.value != 0,
        alone=True,
    )
    layers = tuple(_layers(stated, code, rotation if rotates else None, places) for rotates, places in groups.items())
    claimed = stated.whole("max_seq_len", "max_context_len")
    scaled = rotation.scaling is not None
    return Reading(
        dialect=code.dialect,
        family=code.family,
        layers=layers,
        trained_length=Value(value=LLAMA_3_LENGTH, source=FAMILY_CODE) if scaled else None,
        claimed_length=claimed,
        config=config,
        notes=tuple(notes),
    )


def _rotation(stated: Stated, code: _Code, notes: list[str]) -> Described:
    half = code is TORCH and stated.switch("use_hf_rope", otherwise=False).value
    head_dim = stated.whole("head_dim") if code is not META else None  # Llama 3's code takes dim / n_heads alone
    head_dim = head_dim or head_size(stated.needed("dim"), stated.needed("n_heads"))
    settings = {
        "head_dim": head_dim,
        "base": _base(stated, code, notes),
        "layout": Value(value="half" if half else "interleaved", source=FILE if half else FAMILY_CODE),
    }
    share = stated.number("partial_rotary_factor")
    if half and share is not None:
        rotary_dim = int(head_dim.value * share.value)
        settings["rotary_dim"] = Value(value=rotary_dim, source=FILE, field=share.field)
    scaled = stated.switch("use_scaled_rope", otherwise=False).value
    if half and scaled:
        notes.append("use_scaled_rope is set and ExecuTorch leaves it out where use_hf_rope is set as well")
    return Described(
        name="rope", settings=settings, scaling=_llama3(stated, code, notes) if scaled and not half else None
    )


def _base(stated: Stated, code: _Code, notes: list[str]) -> Value:
    if code is TORCH:
        return stated.number("rope_theta", "rope_freq_base", otherwise=10_000.0)
    base = stated.number("rope_theta")
    if base is not None:
        return base
    vocabulary = stated.whole("vocab_size", least=-1)
    if code is META and (vocabulary is None or vocabulary.value in OF_LLAMA_2):
        notes.append("rope_theta is absent: base 10,000 as in Llama 2's code; code for Llama 3 would take 500,000")
        return Value(value=10_000.0, source=FAMILY_CODE)
    return Value(value=500_000.0, source=CLASS_DEFAULT)


def _llama3(stated: Stated, code: _Code, notes: list[str]) -> Described:
    def stated_or_fixed(key: str, fixed: float) -> Value:
        return (stated.number(key) if key else None) or Value(value=fixed, source=FAMILY_CODE)

    if code is META and stated.needed("dim").value in SMALL:
        notes.append("Meta's code has factor 8 here, where transformers' configs of Llama 3.2 1B and 3B say 32")
    return Described(
        name="llama3",
        settings={
            "factor": stated_or_fixed(code.factor_key, code.factor),
            "original_length": Value(value=LLAMA_3_LENGTH, source=FAMILY_CODE),
            "low_freq_factor": Value(value=1.0, source=FAMILY_CODE),
            "high_freq_factor": stated_or_fixed(code.high_key, code.high),
        },
    )


def _layers(stated: Stated, code: _Code, rotation: Described | None, places: tuple[int, ...] | None) -> Layers:
    if rotation is None:
        return Layers(kind="full_attention", indices=places, encodings=tuple(_temperature(stated)))
    chunk = stated.whole("attention_chunk_size") if code is LLAMA_4 else None
    skipped = stated.whole("no_rope_layer_interval") if code is TORCH else None
    unsupported = []
    if chunk is not None:
        unsupported.append(f"chunked attention ({chunk.field}): a query sees its own chunk of {chunk.value} keys alone")
    if skipped is not None:  # its usual attention turns every layer; which ones another leaves out was not checked
        unsupported.append(f"layers without rotation ({skipped.field} = {skipped.value}): not read by every attention")
    kind = "chunked_attention" if chunk is not None else "all" if stated.given(STILL) is None else "full_attention"
    return Layers(kind=kind, indices=places, encodings=(rotation,), unsupported=tuple(unsupported))


def _temperature(stated: Stated) -> list[Described]:
    if not stated.switch("attn_temperature_tuning", otherwise=False).value:
        return []
    settings = {
        "floor_scale": stated.whole("floor_scale", otherwise=8192),
        "attn_scale": stated.number("attn_scale", otherwise=0.1),
    }
    return [Described(name="llama4_temperature", settings=settings)]
