"""DeepSeek's inference/config_*.json: what the reference code of DeepSeek-V2 and V3 does with positions.

Read in DeepSeek-V3 9b4e978, inference/model.py. The files leave most of it to the defaults of the code's ModelArgs:
pairs of neighbours, YaRN by 40 from 4,096 positions wherever more are asked for, nothing on cos and sin, and
g(factor, mscale)^2 on the softmax scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.reading import FAMILY_CODE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, layer_indices
from whorl.errors import WhorlError

NAMES = {"dim", "inter_dim", "n_layers", "n_heads"}
ONE_OF = {"moe_inter_dim", "kv_lora_rank", "qk_rope_head_dim", "rope_factor", "original_seq_len"}
OF_V4 = {"compress_ratios", "compress_rope_theta", "hc_mult"}


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is the config of DeepSeek's reference code."""
    return "model_type" not in config and config.keys() >= NAMES and bool(config.keys() & ONE_OF)


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of an inference config, given as its dict."""
    if config.keys() & OF_V4:
        raise WhorlError(
            "read: this is an inference config of DeepSeek-V4, whose layers have bases of their own. "
            "Pass the model's config.json."
        )
    stated = Stated(config)
    original = stated.whole("original_seq_len", otherwise=4096)
    served = stated.whole("max_seq_len", otherwise=4 * 4096)
    settings = {
        "head_dim": stated.whole("qk_rope_head_dim", otherwise=64),
        "base": stated.number("rope_theta", otherwise=10_000.0),
        "layout": Value(value="interleaved", source=FAMILY_CODE),
    }
    stretched = served.value > original.value  # the code tests what it is to serve, not what it was trained on
    rope = Described(name="rope", settings=settings, scaling=_yarn(stated, original) if stretched else None)
    return Reading(
        dialect="deepseek inference config",
        family="deepseek_v3",
        layers=(Layers(indices=layer_indices(stated.needed("n_layers")), encodings=(rope,)),),
        trained_length=original,
        claimed_length=served,
        config=config,
    )


def _yarn(stated: Stated, original: Value) -> Described:
    return Described(
        name="yarn",
        settings={
            "factor": stated.number("rope_factor", otherwise=40.0),
            "original_length": original,
            "beta_fast": stated.number("beta_fast", otherwise=32.0),
            "beta_slow": stated.number("beta_slow", otherwise=1.0),
            "attention_factor": Value(value=1.0, source=FAMILY_CODE),
            "mscale_all_dim": stated.number("mscale", otherwise=1.0),
            "scale_softmax": Value(value=True, source=FAMILY_CODE),
        },
    )
