"""DeepSeek's inference/config*.json: what the reference code of DeepSeek-V2, V3 and V4 does with positions.

V2 and V3 were read in DeepSeek-V3 9b4e978, inference/model.py. The files leave most of it to the defaults of the code's
ModelArgs: pairs of neighbours, YaRN by 40 from 4,096 positions wherever more are asked for, nothing on cos and sin, and
g(factor, mscale)^2 on the softmax scale.
V4 was read in public copies of its inference/model.py: the last rope_head_dim of each head, pairs of neighbours.
Layers that compress (compress_ratios) have a base of their own, and YaRN where original_seq_len is above 0; layers with
a window alone have neither. Nothing is on cos, sin and the softmax scale. Its list of ratios goes on past n_layers, for
the layer that predicts further tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.families import TURNED_VALUES
from whorl.dialects.layer_kinds import COMPRESSION, SPARSE
from whorl.dialects.reading import FAMILY_CODE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, in_groups, layer_indices
from whorl.errors import WhorlError, invalid, shown

NAMES = {"dim", "inter_dim", "n_layers", "n_heads"}
ONE_OF = {"moe_inter_dim", "kv_lora_rank", "qk_rope_head_dim", "rope_factor", "original_seq_len"}
NAMES_OF_V4 = {"dim", "n_layers", "n_heads"}
OF_V4 = {"compress_ratios", "compress_rope_theta", "hc_mult", "o_lora_rank"}
RATIOS_OF_V4 = (0, 0, 4, 128, 4, 128, 4, 0)  # what its code has where the file is silent


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is the config of DeepSeek's reference code."""
    if "model_type" in config:
        return False
    names = config.keys()
    return (names >= NAMES and bool(names & ONE_OF)) or (names >= NAMES_OF_V4 and bool(names & OF_V4))


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of an inference config, given as its dict."""
    if config.keys() & OF_V4:
        return _read_v4(config)
    stated = Stated(config)
    original = stated.whole("original_seq_len", otherwise=4096)
    served = stated.whole("max_seq_len", otherwise=4 * 4096)
    settings = {
        "head_dim": stated.whole("qk_rope_head_dim", otherwise=64),
        "base": stated.number("rope_theta", otherwise=10_000.0),
        "layout": Value(value="interleaved", source=FAMILY_CODE),
    }
    stretched = served.value > original.value  # the code tests what it is to serve, not what it was trained on
    softmax = {
        "mscale_all_dim": stated.number("mscale", otherwise=1.0),
        "scale_softmax": Value(value=True, source=FAMILY_CODE),
    }
    yarn = _yarn(stated, original) if stretched else None
    if yarn is not None:
        yarn = Described(name="yarn", settings={**yarn.settings, **softmax})
    rope = Described(name="rope", settings=settings, scaling=yarn)
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
        },
    )


# --- DeepSeek-V4


def _read_v4(config: dict[str, Any]) -> Reading:
    stated = Stated(config)
    indices = layer_indices(stated.needed("n_layers")) or ()
    ratios = _ratios(stated, len(indices))
    original = stated.whole("original_seq_len", least=0, otherwise=0)
    groups = in_groups(indices, lambda index: ratios[index], alone=0)
    return Reading(
        dialect="deepseek inference config",
        family="deepseek_v4",
        layers=tuple(_layers_v4(stated, ratio, places, original) for ratio, places in groups.items()),
        trained_length=original if original.value else None,
        claimed_length=stated.whole("max_seq_len", otherwise=4096),
        config=config,
    )


def _ratios(stated: Stated, count: int) -> tuple[float, ...]:
    """How far each layer compresses, at least for all that the model has."""
    ratios = stated.listed("compress_ratios")
    if (ratios is None and stated.given("compress_ratios") is not None) or not set(ratios or ()) <= set(COMPRESSION):
        raise invalid(
            "read", "compress_ratios", "a list of 0, 4 or 128, one per layer", stated.given("compress_ratios")
        )
    ratios = RATIOS_OF_V4 if ratios is None else ratios
    if len(ratios) < count:
        raise WhorlError(
            f"read: compress_ratios {shown(list(ratios))} is for {len(ratios)} layers, the model has {count}. "
            "Name the ratio of each layer."
        )
    return ratios


def _layers_v4(stated: Stated, ratio: float, places: tuple[int, ...] | None, original: Value) -> Layers:
    kind = COMPRESSION[int(ratio)]
    base = ("compress_rope_theta", 40_000.0) if ratio else ("rope_theta", 10_000.0)
    rope = Described(
        name="rope",
        settings={
            "head_dim": stated.whole("head_dim", otherwise=512),
            "rotary_dim": stated.whole("rope_head_dim", otherwise=64),
            "base": stated.number(base[0], otherwise=base[1]),
            "layout": Value(value="interleaved", source=FAMILY_CODE),
            "slice": Value(value="trailing", source=FAMILY_CODE),
        },
        scaling=_yarn(stated, original) if ratio and original.value else None,
    )
    window = Described(name="window", settings={"size": stated.whole("window_size", otherwise=128)})
    sparse = (f"layers of kind {kind!r}: {SPARSE[kind]}",) if ratio else ()
    return Layers(
        kind=kind,
        indices=places,
        encodings=(rope,) if ratio else (rope, window),
        unsupported=(TURNED_VALUES, *sparse),
    )
