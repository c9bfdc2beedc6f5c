"""Loaders: transformers state dicts as our models, with the same outputs.

A state dict and the config beside it are plain dicts, as ``model.state_dict()`` and ``model.config.to_dict()`` give
them, or safetensors and config.json. Every key is placed, checked against what we compute ourselves, or named in a
WhorlError; every parameter of ours gets a value. Weights are copied and keep their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl import Alibi, Learned, Rope
from whorl.dialects.models import ModelFields
from whorl.errors import unknown
from whorl.models.decoder import Decoder
from whorl.models.roformer import RoFormer, RoFormerClassifier, RoFormerMaskedLM
from whorl.models.weights import Angles, Weights, as_is, check_given, differs, filled, in_layers

# Their names of activations, and ours.
PLAIN = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"},
    **{"gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}
GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}

QKV = ("attention.q", "attention.k", "attention.v")


def load_decoder(
    state_dict: Mapping[str, Tensor], config: dict[str, Any], *, angles: Angles = "float32", dropout: float = 0.0
) -> Decoder:
    """The Decoder with the weights of a transformers Llama, GPT-2 or BLOOM language model.

    ``angles`` is the precision of a rotation: "float32" is what transformers computes, "exact" is right at any
    length. Dropout rates of the config are not taken over. Dynamic NTK and LongRoPE serve the ``length`` that the
    Decoder is asked for, where transformers takes that of the tokens at hand.

    >>> import whorl.models
    >>> whorl.models.load_decoder({}, {"model_type": "gpt_2"})
    Traceback (most recent call last):
    whorl.errors.WhorlError: load_decoder: unknown model_type 'gpt_2'. Did you mean 'gpt2'?
    """
    call = "load_decoder"
    check_given(call, state_dict, config, angles)
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise unknown("model_type", name, FAMILIES, call=call)
    family = FAMILIES[name]
    fields, weights = ModelFields(call, config), Weights(call, state_dict, family.prefix)
    settings = family.settings(fields, weights, angles)
    weights.check_layers(settings["layers"], family.layers, family.layer)
    with torch.device("meta"):
        model = Decoder(**settings, dropout=dropout)
    if settings["tied"]:
        weights.check_same(family.top["embed"] + ".weight", "lm_head.weight")
    for layer in range(settings["layers"]):
        for name, test in family.buffers.items():
            weights.check(f"{family.layers}.{layer}.{name}", lambda tensor, test=test: test(tensor, model))
    names = family.top | {"head": "lm_head"} | in_layers(settings["layers"], family.layers, family.layer)
    return filled(model, weights, names, family.cut, settings["heads"])


def load_roformer(
    state_dict: Mapping[str, Tensor], config: dict[str, Any], *, angles: Angles = "exact", dropout: float = 0.0
) -> RoFormer | RoFormerMaskedLM | RoFormerClassifier:
    """The RoFormer with the weights of a transformers one, and with its masked-language or classification head, if any.

    Its table of sines and cosines is checked against ours and not loaded. transformers makes it in float64, so
    ``angles="exact"`` is what it computes.
    """
    call = "load_roformer"
    check_given(call, state_dict, config, angles)
    if config.get("model_type", "roformer") != "roformer":
        raise unknown("model_type", config["model_type"], ("roformer",), call=call)
    fields, weights = ModelFields(call, config), Weights(call, state_dict, "roformer.")
    fields.require(is_decoder=False, add_cross_attention=False, tie_word_embeddings=True)
    width, heads, layers = fields.size("hidden_size"), fields.heads, fields.layers
    weights.check_layers(layers, "encoder.layer", ROFORMER_LAYER)
    rope = Rope(head_dim=width // heads, layout="interleaved", angles=angles)
    with torch.device("meta"):
        model = encoder = RoFormer(
            fields.size("vocab_size"),
            layers,
            width,
            heads,
            rope,
            hidden=fields.size("intermediate_size"),
            embedding=fields.size_if_given("embedding_size") or width,
            types=fields.size_if_given("type_vocab_size") or 2,
            activation=fields.activation("hidden_act", "gelu", PLAIN),
            eps=fields.number("layer_norm_eps", 1e-12),
            rotary_value=fields.switch("rotary_value", False),
            dropout=dropout,
        )
        if weights.has("cls."):
            model = RoFormerMaskedLM(encoder)
        elif weights.has("classifier."):
            model = RoFormerClassifier(encoder, len(weights.take("classifier.out_proj.weight", axes=2)))
    weights.check_same("embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")
    weights.check_same("cls.predictions.bias", "cls.predictions.decoder.bias")
    weights.check("encoder.embed_positions.weight", lambda table: _is_table(table, rope))
    names = ROFORMER | in_layers(layers, "encoder.layer", ROFORMER_LAYER)
    if model is not encoder:
        names = {f"encoder.{ours}": theirs for ours, theirs in names.items()} | ROFORMER_HEADS[type(model)]
    return filled(model, weights, names)


# --- RoFormer

ROFORMER = {
    "embed": "embeddings.word_embeddings",
    "embed_types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "project": "embeddings_project",
}
ROFORMER_LAYER = {
    "attention.q": "attention.self.query",
    "attention.k": "attention.self.key",
    "attention.v": "attention.self.value",
    "attention.out": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "norm_2": "output.LayerNorm",
}
ROFORMER_HEADS: dict[type, dict[str, str]] = {
    RoFormerMaskedLM: {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "": "cls.predictions",  # the bias is the head's own
    },
    RoFormerClassifier: {"dense": "classifier.dense", "out": "classifier.out_proj"},
}


def _is_table(table: Tensor, rope: Rope) -> str | None:
    """Why a table is not [sin | cos] of the positions from 0, but for the rounding of its dtype."""
    if table.ndim != 2:
        return f"must have 2 axes, got {table.ndim}"
    cos, sin = Rope.from_config(rope.config.replace(angles="exact")).tables(torch.arange(len(table)))
    return differs(table, torch.cat((sin, cos), dim=-1))


# --- decoders


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a family of transformers is read.

    settings       the settings of its Decoder
    prefix         what its names begin with in a model that has a head
    top, layer     its names of our parts, outside the layers and inside them
    layers         its name of the list of layers
    cut            what of its tensor belongs to our part
    buffers        what is in a layer's state beside weights, and what is wrong with it, if anything
    """

    settings: Callable[[ModelFields, Weights, Angles], dict[str, Any]]
    prefix: str
    top: dict[str, str]
    layer: dict[str, str]
    layers: str
    cut: Callable[[str, Tensor, int], Tensor] = as_is
    buffers: dict[str, Callable[[Tensor, Decoder], str | None]]


def _llama(fields: ModelFields, weights: Weights, angles: Angles) -> dict[str, Any]:
    rope = Rope.from_hf(fields.config)
    return {
        **fields.common("rms_norm_eps", 1e-6, tied=False),
        "encoding": rope.from_config(rope.config.replace(angles=angles)),
        "width": fields.size("hidden_size"),
        "kv_heads": fields.size_if_given("num_key_value_heads"),
        "head_dim": fields.size_if_given("head_dim"),
        "hidden": fields.size("intermediate_size"),
        "norm": "rms",
        "activation": fields.activation("hidden_act", "silu", GATED),
        "bias": fields.switch("mlp_bias", False),
        "attention_bias": fields.switch("attention_bias", False),
    }


def _has_frequencies(given: Tensor, model: Decoder) -> str | None:
    rope = model.plan[0]
    assert isinstance(rope, Rope)
    return differs(given, rope.frequencies().float())


def _gpt2(fields: ModelFields, weights: Weights, angles: Angles) -> dict[str, Any]:
    fields.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width, length = fields.size("n_embd", "hidden_size"), fields.size("n_positions", "max_position_embeddings")
    return {
        **fields.common("layer_norm_epsilon", 1e-5, tied=True),
        "encoding": Learned(width=width, length=length),
        "width": width,
        "hidden": fields.size_if_given("n_inner"),
        "activation": fields.activation("activation_function", "gelu_new", PLAIN),
    }


def _cut_gpt2(part: str, tensor: Tensor, heads: int) -> Tensor:
    """GPT-2 keeps projections as (in, out), with q, k and v side by side."""
    if part in QKV:
        return tensor.t().chunk(3)[QKV.index(part)]
    return tensor.t() if part.startswith(("attention", "feed_forward")) else tensor


def _is_causal(mask: Tensor, model: Decoder) -> str | None:
    if mask.ndim < 2:
        return "is not a causal mask"
    causal = torch.ones_like(mask, dtype=torch.bool).tril()
    return None if torch.equal(mask.bool(), causal) else "is not a causal mask"


def _is_number(value: Tensor, model: Decoder) -> str | None:
    return None if value.numel() == 1 else "is not one number"


def _bloom(fields: ModelFields, weights: Weights, angles: Angles) -> dict[str, Any]:
    fields.require(apply_residual_connection_post_layernorm=False, slow_but_exact=False)
    rounded = angles == "float32" and weights.take("word_embeddings.weight").dtype == torch.bfloat16
    return {
        **fields.common("layer_norm_epsilon", 1e-5, tied=True),
        "encoding": Alibi(heads=fields.heads, rounding="hf_bf16" if rounded else "exact"),
        "width": fields.size("hidden_size", "n_embed"),
        "activation": "gelu_tanh",
        "embedding_norm": True,
    }


def _cut_bloom(part: str, tensor: Tensor, heads: int) -> Tensor:
    """BLOOM keeps q, k and v of a head together, head by head."""
    return tensor.unflatten(0, (heads, 3, -1))[:, QKV.index(part)].flatten(0, 1) if part in QKV else tensor


FAMILIES = {
    "llama": Family(
        settings=_llama,
        prefix="model.",
        top={"embed": "embed_tokens", "norm": "norm"},
        layers="layers",
        layer={
            "attention.q": "self_attn.q_proj",
            "attention.k": "self_attn.k_proj",
            "attention.v": "self_attn.v_proj",
            "attention.out": "self_attn.o_proj",
            "norm_1": "input_layernorm",
            "norm_2": "post_attention_layernorm",
            "feed_forward.gate": "mlp.gate_proj",
            "feed_forward.up": "mlp.up_proj",
            "feed_forward.down": "mlp.down_proj",
        },
        buffers={"self_attn.rotary_emb.inv_freq": _has_frequencies},  # of old checkpoints, as those of GPT-2
    ),
    "gpt2": Family(
        settings=_gpt2,
        prefix="transformer.",
        top={"embed": "wte", "norm": "ln_f", "plan.unique.0.table": "wpe.weight"},
        layers="h",
        layer={
            **dict.fromkeys(QKV, "attn.c_attn"),
            "attention.out": "attn.c_proj",
            "norm_1": "ln_1",
            "norm_2": "ln_2",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
        },
        cut=_cut_gpt2,
        buffers={"attn.bias": _is_causal, "attn.masked_bias": _is_number},
    ),
    "bloom": Family(
        settings=_bloom,
        prefix="transformer.",
        top={"embed": "word_embeddings", "embed_norm": "word_embeddings_layernorm", "norm": "ln_f"},
        layers="h",
        layer={
            **dict.fromkeys(QKV, "self_attention.query_key_value"),
            "attention.out": "self_attention.dense",
            "norm_1": "input_layernorm",
            "norm_2": "post_attention_layernorm",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
        },
        cut=_cut_bloom,
        buffers={},
    ),
}
