"""Loaders: tiny transformers models made here say the same through our models, and nothing is left over or out."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForTokenClassification,
    T5Config,
)
from transformers.models.t5.modeling_t5 import T5Attention

import whorl
from helpers import lively
from whorl.models import Decoder, load_decoder, load_roformer

VOCAB, LENGTH = 40, 24
CLOSE = {"rtol": 0.0, "atol": 1e-5}
IDS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def llama(**changes):
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
    length = {"num_key_value_heads": 2, "max_position_embeddings": 64}
    return lively(LlamaForCausalLM(LlamaConfig(**IDS | sizes | length | changes)))


def gpt2(cls: type = GPT2LMHeadModel, **changes):
    sizes = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    return lively(cls(GPT2Config(**IDS | sizes | changes)))


def bloom(**changes):
    return lively(BloomForCausalLM(BloomConfig(**IDS | {"hidden_size": 48, "n_layer": 3, "n_head": 4} | changes)))


def roformer(cls: type = RoFormerForMaskedLM):
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    return lively(cls(RoFormerConfig(**IDS | sizes | {"max_position_embeddings": 32})))


def ours(their_model, **options) -> Decoder:
    return load_decoder(their_model.state_dict(), their_model.config.to_dict(), **options).eval()


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(0))


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "large base": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        **{"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 16},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16},
}
MODELS = {
    **{f"llama, {name}": lambda rope=rope: llama(rope_parameters=rope) for name, rope in ROPES.items()},
    "llama, one head for all": lambda: llama(num_key_value_heads=1),
    "llama, wide heads": lambda: llama(head_dim=16),
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "llama, biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama, attention biases": lambda: llama(attention_bias=True),
    "llama, gelu": lambda: llama(hidden_act="gelu", rms_norm_eps=1e-3),
    "gpt2": gpt2,
    "gpt2, narrow": lambda: gpt2(n_inner=32, activation_function="relu"),
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    "bloom": bloom,
    "bloom, 6 heads": lambda: bloom(n_head=6),
    "bloom, untied": lambda: bloom(tie_word_embeddings=False, layer_norm_epsilon=1e-3),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name):
    their_model = MODELS[name]()
    with torch.no_grad():
        torch.testing.assert_close(ours(their_model)(tokens()), their_model(tokens()).logits, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_left_padded_prompts_too(name):
    their_model, real = MODELS[name](), torch.ones(2, LENGTH, dtype=torch.bool)
    real[0, :7] = False
    place = {} if name.startswith("bloom") else {"position_ids": whorl.from_mask(real)}
    with torch.no_grad():
        expected = their_model(tokens(), attention_mask=real.long(), **place).logits
        got = ours(their_model)(tokens(), key_mask=real)
    torch.testing.assert_close(got[real], expected[real], **CLOSE)


@pytest.mark.parametrize("name", ["llama, yarn", "gpt2", "bloom, 6 heads"])
def test_generation_is_that_of_transformers(name):
    their_model, prompt = MODELS[name](), tokens(length=6)
    expected = their_model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert torch.equal(ours(their_model).generate(prompt, 12), expected)


def test_dynamic_scaling_serves_the_length_that_transformers_guesses():
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    their_model = llama(rope_parameters=rope, max_position_embeddings=16)
    model = ours(their_model)
    with torch.no_grad():
        expected, short = their_model(tokens()).logits, their_model(tokens(length=12)).logits
        torch.testing.assert_close(model(tokens(), length=LENGTH), expected, **CLOSE)
        torch.testing.assert_close(model(tokens(length=12)), short, **CLOSE)
        assert not torch.allclose(model(tokens()), expected, atol=1e-3)


def test_angles_are_exact_if_asked():
    their_model = llama()
    exact, same = ours(their_model, angles="exact"), ours(their_model)
    assert (exact.plan[0].config.angles, same.plan[0].config.angles) == ("exact", "float32")
    far = whorl.positions(LENGTH, offset=1_000_000)
    with torch.no_grad():
        torch.testing.assert_close(exact(tokens()), same(tokens()), **CLOSE)
        expected = their_model(tokens(), position_ids=far[None]).logits
        torch.testing.assert_close(same(tokens(), positions=far), expected, **CLOSE)
        torch.testing.assert_close(exact(tokens(), positions=far), exact(tokens()), **CLOSE)
        assert not torch.allclose(expected, their_model(tokens()).logits, atol=1e-3)  # float32 has lost its place there


def test_weights_keep_their_dtype_and_are_copies():
    their_model = llama().to(torch.bfloat16)
    state = their_model.state_dict()
    model = load_decoder(state, their_model.config.to_dict())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad and p.is_contiguous() for p in model.parameters())
    theirs = {tensor.data_ptr() for tensor in state.values()}
    assert not theirs & {p.data_ptr() for p in model.parameters()}


def test_bloom_in_bfloat16_rounds_as_transformers_does():
    their_model = bloom().to(torch.bfloat16)
    assert ours(their_model).plan[0].config == whorl.Alibi(heads=4, rounding="hf_bf16").config
    assert ours(their_model, angles="exact").plan[0].config == whorl.Alibi(heads=4).config
    assert ours(bloom()).plan[0].config == whorl.Alibi(heads=4).config


def test_the_base_model_and_old_buffers_load_as_well():
    their_model = gpt2(GPT2Model)
    state = their_model.state_dict()
    for layer in range(3):  # as the checkpoints of 2019 have them
        state[f"h.{layer}.attn.bias"] = torch.ones(64, 64, dtype=torch.uint8).tril()[None, None]
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    model = load_decoder(state, their_model.config.to_dict())
    with torch.no_grad():
        expected = their_model(tokens()).last_hidden_state @ their_model.wte.weight.T
        torch.testing.assert_close(model(tokens()), expected, **CLOSE)
    state["h.1.attn.bias"] = torch.ones(1, 1, 64, 64)
    with pytest.raises(whorl.WhorlError, match=r"^load_decoder: 'h\.1\.attn\.bias' is not a causal mask\."):
        load_decoder(state, their_model.config.to_dict())


def test_frequencies_of_old_checkpoints_are_checked():
    their_model = llama()
    state, config = their_model.state_dict(), their_model.config.to_dict()
    key = "model.layers.0.self_attn.rotary_emb.inv_freq"
    state[key] = their_model.model.rotary_emb.inv_freq.half()
    load_decoder(state, config)
    state[key] = state[key] / 2
    with pytest.raises(
        whorl.WhorlError, match=rf"^load_decoder: '{re.escape(key)}' is off by 5\.0e-01 from what whorl"
    ):
        load_decoder(state, config)


def test_a_published_config_leaves_out_what_is_usual():
    their_model = gpt2()
    brief = {key: their_model.config.to_dict()[key] for key in ("model_type", "vocab_size", "n_embd", "n_layer")}
    model = load_decoder(their_model.state_dict(), brief | {"n_head": 4, "n_positions": 64})
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), their_model(tokens()).logits, **CLOSE)


# --- T5, whose attention is compared alone


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_the_bias_of_t5_is_that_of_transformers(causal):
    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=causal, use_cache=False, dropout_rate=0.0)
    config._attn_implementation = "eager"
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0, is_causal=causal)
    draw = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=draw)
    t5 = whorl.T5(heads=4, bidirectional=not causal)
    t5.table.data = module.relative_attention_bias.weight.data
    x = torch.randn(2, 150, 32, generator=draw)  # past the last bucket's edge
    hidden = torch.full((150, 150), float("-inf")).triu(1)[None, None] if causal else None
    with torch.no_grad():
        expected = module(x, mask=hidden)[0]
        q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (module.q, module.k, module.v))
        got = module.o(whorl.attention(q, k, v, encoding=t5, causal=causal).transpose(1, 2).flatten(2))
    torch.testing.assert_close(got, expected, **CLOSE)


# --- what cannot be loaded


def refused(message: str, load, state, config, **options) -> None:
    with pytest.raises(whorl.WhorlError, match=f"^{re.escape(message)}"):
        load(state, config, **options)


def test_what_is_left_over_is_named():
    their_model = llama()
    state, config = their_model.state_dict(), their_model.config.to_dict()
    state |= {"model.layers.3.norm.weight": torch.zeros(1), "score.weight": torch.zeros(1)}
    refused("load_decoder: no place for 'model.layers.3.norm.weight', 'score.weight' of", load_decoder, state, config)


@pytest.mark.parametrize("name", ["llama, biases", "gpt2", "bloom"])
def test_what_is_missing_is_named_whatever_it_is(name):
    their_model = MODELS[name]()
    config = their_model.config.to_dict()
    for key in their_model.state_dict():
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        state = their_model.state_dict()
        del state[key]
        bare = key.removeprefix("model.").removeprefix("transformer.")
        refused(f"load_decoder: the state dict lacks {bare!r}.", load_decoder, state, config)


CONFIGS = [
    (llama, {"hidden_size": 64}, "load_decoder: 'model.embed_tokens.weight' of shape (40, 48) does not fit the config"),
    (llama, {"num_hidden_layers": 2}, "load_decoder: no place for 'model.layers.2.self_attn.q_proj.weight',"),
    (llama, {"num_hidden_layers": 4}, "load_decoder: the state dict lacks 'layers.3.self_attn.q_proj.weight'."),
    (llama, {"vocab_size": None}, "load_decoder: vocab_size missing in the config. Pass all of config.json"),
    (llama, {"vocab_size": 40.5}, "load_decoder: vocab_size must be a positive integer, got 40.5."),
    (llama, {"hidden_act": "relu"}, "load_decoder: unknown hidden_act 'relu'. Did you mean 'gelu'?"),
    (
        llama,
        {"tie_word_embeddings": True},
        "load_decoder: 'lm_head.weight' differs from 'model.embed_tokens.weight', to",
    ),
    (llama, {"model_type": "lama"}, "load_decoder: unknown model_type 'lama'. Did you mean 'llama'?"),
    (llama, {"model_type": None}, "load_decoder: unknown model_type None. Expected one of: bloom, gpt2, llama."),
    (
        llama,
        {"rope_parameters": {"rope_type": "yarrn"}},
        "unknown rope_type in rope_parameters of Rope.from_hf: 'yarrn'",
    ),
    (gpt2, {"scale_attn_weights": False}, "load_decoder: scale_attn_weights must be True, got False. The models here"),
    (gpt2, {"scale_attn_by_inverse_layer_idx": True}, "load_decoder: scale_attn_by_inverse_layer_idx must be False"),
    (gpt2, {"n_head": 5}, "Decoder: width must be a multiple of heads=5, got 48."),
    (gpt2, {"n_positions": 32}, "load_decoder: 'transformer.wpe.weight' of shape (64, 48) does not fit the config, by"),
    (
        bloom,
        {"apply_residual_connection_post_layernorm": True},
        "load_decoder: apply_residual_connection_post_layernorm",
    ),
]


@pytest.mark.parametrize(("make", "changes", "message"), CONFIGS)
def test_a_config_that_does_not_belong_is_refused(make, changes, message):
    their_model = make()
    refused(message, load_decoder, their_model.state_dict(), their_model.config.to_dict() | changes)


def test_fused_weights_that_cannot_be_cut_are_named():
    their_model = bloom()
    state, key = their_model.state_dict(), "transformer.h.0.self_attention.query_key_value.weight"
    state[key] = torch.zeros(143, 48)
    refused(f"load_decoder: {key!r} of shape (143, 48) does not", load_decoder, state, their_model.config.to_dict())


def test_what_is_no_state_dict_or_config_is_refused():
    their_model = llama()
    state, config = their_model.state_dict(), their_model.config.to_dict()
    refused("load_decoder: state_dict must be a dict of tensors, got", load_decoder, their_model, config)
    refused("load_decoder: state_dict must be a dict of tensors, got", load_decoder, {"weight": 1.0}, config)
    refused("load_decoder: config must be a dict, got LlamaConfig", load_decoder, state, their_model.config)
    refused("load_decoder: unknown angles 'float64'.", load_decoder, state, config, angles="float64")
    quantised = state | {"model.norm.weight": torch.ones(48, dtype=torch.int8)}
    refused("load_decoder: 'model.norm.weight' must be floating, got torch.int8", load_decoder, quantised, config)
    double = state | {"norm.weight": torch.ones(48)}
    refused("load_decoder: 'model.norm.weight' is there with and without 'model.' in", load_decoder, double, config)


def test_the_table_of_roformer_is_checked_and_not_loaded():
    their_model = roformer()
    state, config = their_model.state_dict(), their_model.config.to_dict()
    key = "roformer.encoder.embed_positions.weight"
    assert load_roformer(state, config).state_dict().keys().isdisjoint({key, "encoder.plan"})
    load_roformer(state | {key: state[key].bfloat16()}, config)  # a table may be rounded,
    load_roformer({name: tensor for name, tensor in state.items() if name != key}, config)  # or left out
    interleaved = state[key].unflatten(-1, (2, -1)).mT.flatten(1)
    refused(f"load_roformer: {key!r} is off by", load_roformer, state | {key: interleaved}, config)
    moved = state[key].clone()
    moved[20, 3] += 1e-6
    refused(f"load_roformer: {key!r} is off by 1.0e-06 from what", load_roformer, state | {key: moved}, config)
    narrow = state[key][:, :10]
    refused(f"load_roformer: {key!r} must be floating of shape (32, 12)", load_roformer, state | {key: narrow}, config)


def test_roformers_of_other_kinds_are_refused():
    their_model = roformer()
    state, config = their_model.state_dict(), their_model.config.to_dict()
    for name, value in (("is_decoder", True), ("add_cross_attention", True), ("tie_word_embeddings", False)):
        message = f"load_roformer: {name} must be {not value}, got {value}."
        refused(message, load_roformer, state, config | {name: value})
    refused("load_roformer: unknown model_type 'bert'.", load_roformer, state, config | {"model_type": "bert"})
    bias = state | {"cls.predictions.decoder.bias": torch.ones(VOCAB)}
    refused(
        "load_roformer: 'cls.predictions.decoder.bias' differs from 'cls.predictions.bias'", load_roformer, bias, config
    )
    left = state | {"roformer.pooler.dense.weight": torch.ones(1)}
    refused("load_roformer: no place for 'roformer.pooler.dense.weight' of the", load_roformer, left, config)
    by_token = roformer(RoFormerForTokenClassification)
    message = "load_roformer: the state dict lacks 'classifier.out_proj.weight'."
    refused(message, load_roformer, by_token.state_dict(), by_token.config.to_dict())
