"""Loaders: transformers state dicts as our models, with the same outputs.

A state dict and the config beside it are plain dicts, as ``model.state_dict()`` and ``model.config.to_dict()`` give
them, or safetensors and config.json. Every key is placed, checked against what we compute ourselves, or named in a
WhorlError; every parameter of ours gets a value. Weights are copied and keep their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whorl.encodings.alibi import Alibi
from whorl.encodings.learned import Learned
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError, invalid, unknown
from whorl.models.decoder import Decoder
from whorl.models.roformer import RoFormer, RoFormerClassifier, RoFormerMaskedLM

Angles = Literal["exact", "float32"]

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
    _check_given(call, state_dict, config, angles)
    if config.get("model_type") not in FAMILIES:
        raise unknown("model_type", config.get("model_type"), FAMILIES, call=call)
    family = FAMILIES[config["model_type"]]
    fields, weights = Fields(call, config), Weights(call, state_dict, family.prefix)
    settings = family.settings(fields, weights, angles)
    with torch.device("meta"):
        model = Decoder(**settings, dropout=dropout)
    if settings["tied"]:
        weights.check_same(family.top["embed"] + ".weight", "lm_head.weight")
    for layer in range(settings["layers"]):
        for name, test in family.buffers.items():
            weights.check(f"{family.layers}.{layer}.{name}", lambda tensor, test=test: test(tensor, model))
    names = family.top | {"head": "lm_head"} | _in_layers(settings["layers"], family.layers, family.layer)
    return _filled(model, weights, names, family.cut, settings["heads"])


def load_roformer(
    state_dict: Mapping[str, Tensor], config: dict[str, Any], *, angles: Angles = "exact", dropout: float = 0.0
) -> RoFormer | RoFormerMaskedLM | RoFormerClassifier:
    """The RoFormer with the weights of a transformers one, and with its masked-language or classification head, if any.

    Its table of sines and cosines is checked against ours and not loaded. transformers makes it in float64, so
    ``angles="exact"`` is what it computes.
    """
    call = "load_roformer"
    _check_given(call, state_dict, config, angles)
    if config.get("model_type", "roformer") != "roformer":
        raise unknown("model_type", config["model_type"], ("roformer",), call=call)
    fields, weights = Fields(call, config), Weights(call, state_dict, "roformer.")
    fields.require(is_decoder=False, add_cross_attention=False, tie_word_embeddings=True)
    width, heads, layers = fields.size("hidden_size"), fields.heads, fields.layers
    rope = Rope(head_dim=width // heads, layout="interleaved", angles=angles)
    with torch.device("meta"):
        model = encoder = RoFormer(
            fields.size("vocab_size"),
            layers,
            width,
            heads,
            rope,
            hidden=fields.size("intermediate_size"),
            embedding=fields.get("embedding_size", width),
            types=fields.get("type_vocab_size", 2),
            activation=fields.activation("hidden_act", "gelu", PLAIN),
            eps=fields.get("layer_norm_eps", 1e-12),
            rotary_value=fields.get("rotary_value", False),
            dropout=dropout,
        )
        if weights.has("cls."):
            model = RoFormerMaskedLM(encoder)
        elif weights.has("classifier."):
            model = RoFormerClassifier(encoder, weights.take("classifier.out_proj.weight").shape[0])
    weights.check_same("embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")
    weights.check_same("cls.predictions.bias", "cls.predictions.decoder.bias")
    weights.check("encoder.embed_positions.weight", lambda table: _is_table(table, rope))
    names = ROFORMER | _in_layers(layers, "encoder.layer", ROFORMER_LAYER)
    if model is not encoder:
        names = {f"encoder.{ours}": theirs for ours, theirs in names.items()} | ROFORMER_HEADS[type(model)]
    return _filled(model, weights, names)


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
    cos, sin = Rope.from_config(rope.config.replace(angles="exact")).tables(torch.arange(len(table)))
    return _differs(table, torch.cat((sin, cos), dim=-1))


# --- decoders


def _as_is(part: str, tensor: Tensor, heads: int) -> Tensor:
    return tensor


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

    settings: Callable[[Fields, Weights, Angles], dict[str, Any]]
    prefix: str
    top: dict[str, str]
    layer: dict[str, str]
    layers: str
    cut: Callable[[str, Tensor, int], Tensor] = _as_is
    buffers: dict[str, Callable[[Tensor, Decoder], str | None]]


def _llama(fields: Fields, weights: Weights, angles: Angles) -> dict[str, Any]:
    rope = Rope.from_hf(fields.config)
    return {
        **fields.common("rms_norm_eps", 1e-6, tied=False),
        "encoding": rope.from_config(rope.config.replace(angles=angles)),
        "width": fields.size("hidden_size"),
        "kv_heads": fields.get("num_key_value_heads", None),
        "head_dim": fields.get("head_dim", None),
        "hidden": fields.size("intermediate_size"),
        "norm": "rms",
        "activation": fields.activation("hidden_act", "silu", GATED),
        "bias": fields.get("mlp_bias", False),
        "attention_bias": fields.get("attention_bias", False),
    }


def _has_frequencies(given: Tensor, model: Decoder) -> str | None:
    rope = model.plan[0]
    assert isinstance(rope, Rope)
    return _differs(given, rope.frequencies().float())


def _gpt2(fields: Fields, weights: Weights, angles: Angles) -> dict[str, Any]:
    fields.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width, length = fields.size("n_embd", "hidden_size"), fields.size("n_positions", "max_position_embeddings")
    return {
        **fields.common("layer_norm_epsilon", 1e-5, tied=True),
        "encoding": Learned(width=width, length=length),
        "width": width,
        "hidden": fields.get("n_inner", None),
        "activation": fields.activation("activation_function", "gelu_new", PLAIN),
    }


def _cut_gpt2(part: str, tensor: Tensor, heads: int) -> Tensor:
    """GPT-2 keeps projections as (in, out), with q, k and v side by side."""
    if part in QKV:
        return tensor.t().chunk(3)[QKV.index(part)]
    return tensor.t() if part.startswith(("attention", "feed_forward")) else tensor


def _is_causal(mask: Tensor, model: Decoder) -> str | None:
    causal = torch.ones_like(mask, dtype=torch.bool).tril()
    return None if torch.equal(mask.bool(), causal) else "is not a causal mask"


def _is_number(value: Tensor, model: Decoder) -> str | None:
    return None if value.numel() == 1 else "is not one number"


def _bloom(fields: Fields, weights: Weights, angles: Angles) -> dict[str, Any]:
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


# --- configs and state dicts


class Fields:
    """The fields of a transformers config; null counts as absent."""

    def __init__(self, call: str, config: dict[str, Any]) -> None:
        self.call, self.config = call, config

    def get(self, name: str, otherwise: Any) -> Any:
        """The field, or what transformers takes where it is absent."""
        value = self.config.get(name)
        return otherwise if value is None else value

    def size(self, *names: str) -> int:
        """The first of these fields that is there, a positive integer."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise invalid(self.call, name, "a positive integer", value)
                return value
        raise WhorlError(f"{self.call}: {names[0]} missing in the config. Pass all of config.json or config.to_dict().")

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads", "n_head")

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers", "n_layer")

    def common(self, eps: str, otherwise: float, *, tied: bool) -> dict[str, Any]:
        """The settings that every decoder has under the same names."""
        return {
            "vocab": self.size("vocab_size"),
            "layers": self.layers,
            "heads": self.heads,
            "eps": self.get(eps, otherwise),
            "tied": self.get("tie_word_embeddings", tied),
        }

    def activation(self, name: str, otherwise: str, known: dict[str, str]) -> Any:
        """Our name of the activation."""
        value = self.get(name, otherwise)
        if value not in known:
            raise unknown(name, value, known, call=self.call)
        return known[value]

    def require(self, **values: bool) -> None:
        """Raises a WhorlError where a switch is set to what our models do not do."""
        for name, value in values.items():
            if self.get(name, value) != value:
                raise invalid(self.call, name, str(value), self.get(name, value), "The models here have no other form.")


class Weights:
    """A state dict by its names without the prefix of the base model, and which of them have found a place."""

    def __init__(self, call: str, state_dict: Mapping[str, Tensor], prefix: str) -> None:
        self.call, self.placed = call, set[str]()
        self.keys = {key.removeprefix(prefix): key for key in state_dict}
        self.tensors = {name: state_dict[key] for name, key in self.keys.items()}
        double = next((key for key in state_dict if self.keys[key.removeprefix(prefix)] != key), None)
        if double is not None:
            raise WhorlError(f"{call}: {double!r} is there with and without {prefix!r} in front. Keep one of them.")

    def has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.tensors)

    def take(self, name: str) -> Tensor:
        """The tensor of that name, which counts as placed from now on."""
        if name not in self.tensors:
            raise WhorlError(f"{self.call}: the state dict lacks {name!r}. Pass one that belongs to the config.")
        self.placed.add(name)
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            raise invalid(self.call, repr(self.keys[name]), "floating", tensor, "Quantised weights cannot be loaded.")
        return tensor

    def check(self, name: str, wrong: Callable[[Tensor], str | None]) -> None:
        """Raises a WhorlError for what is wrong with a tensor that is there and is not loaded."""
        if name in self.tensors:
            self.placed.add(name)
            why = wrong(self.tensors[name])
            if why is not None:
                raise WhorlError(f"{self.call}: {self.keys[name]!r} {why}. Pass weights that belong to the config.")

    def check_same(self, name: str, other: str) -> None:
        """Checks a tensor that is to be the same as another one, if both are there."""
        if name in self.tensors:
            differs = f"differs from {self.keys[name]!r}, to which the config ties it"
            self.check(other, lambda tensor: None if torch.equal(tensor, self.tensors[name]) else differs)

    def finish(self) -> None:
        """Raises a WhorlError that names what has found no place."""
        left = [key for name, key in self.keys.items() if name not in self.placed]
        if left:
            raise WhorlError(
                f"{self.call}: no place for {', '.join(map(repr, left))} of the state dict. "
                "Remove what the config does not ask for."
            )


def _check_given(call: str, state_dict: object, config: object, angles: object) -> None:
    if not isinstance(state_dict, Mapping) or not all(isinstance(value, Tensor) for value in state_dict.values()):
        raise invalid(call, "state_dict", "a dict of tensors", type(state_dict).__name__, "Pass model.state_dict().")
    if not isinstance(config, dict):
        raise invalid(call, "config", "a dict", config, "Pass json.load of config.json, or config.to_dict().")
    if angles not in get_args(Angles):
        raise unknown("angles", angles, get_args(Angles), call=call)


def _in_layers(count: int, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """The names of parts in every layer."""
    return {f"blocks.{i}.{own}": f"{theirs}.{i}.{name}" for i in range(count) for own, name in names.items()}


def _filled(
    model: Any,
    weights: Weights,
    names: Mapping[str, str],
    cut: Callable[[str, Tensor, int], Tensor] = _as_is,
    heads: int = 0,
) -> Any:
    """The model, on the meta device until now, with a value for every parameter and nothing left over."""
    values: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        part, _, leaf = name.rpartition(".")
        theirs = names[name] if name in names else f"{names[part]}.{leaf}"
        whole = weights.take(theirs)
        try:
            value = cut(part.split(".", 2)[-1], whole, heads)  # by its name inside the layer
        except RuntimeError:  # of a size that cannot be cut
            value = whole
        if value.shape != parameter.shape:
            raise WhorlError(
                f"{weights.call}: {weights.keys[theirs]!r} of shape {tuple(whole.shape)} does not fit the config, "
                f"by which our {name} is of shape {tuple(parameter.shape)}."
            )
        values[name] = value.detach().clone(memory_format=torch.contiguous_format)
    weights.finish()
    model.load_state_dict(values, assign=True)
    return model


def _differs(given: Tensor, own: Tensor) -> str | None:
    """What is wrong with a tensor that is to be ours but for the rounding of its dtype."""
    if given.shape != own.shape or not given.is_floating_point():
        return f"must be floating of shape {tuple(own.shape)}, got {given.dtype} of shape {tuple(given.shape)}"
    eps = max(torch.finfo(given.dtype).eps, torch.finfo(torch.float32).eps)
    far = (given.float().cpu() - own).abs().max().item()
    return None if far <= eps else f"is off by {far:.1e} from what whorl computes"
