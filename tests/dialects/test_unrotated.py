"""Families that do not rotate, against the tables and waves that the models of transformers hold."""

import json
import re

import pytest
import torch

import whorl
from optional import ASKED_FOR, optional
from whorl import Rope, WhorlError
from whorl.dialects.families import LEARNED, SINUSOIDAL, T5, UNROTATED

# rows of a table that no token has: positions that count from 2
UNUSED = dict.fromkeys(("opt", "biogpt", "bart", "mbart", "plbart", "roberta", "xlm-roberta", "camembert"), 2)
UNUSED |= dict.fromkeys(("xlm-roberta-xl", "roberta-prelayernorm"), 2)
POSITIONS = r"(position_embeddings?|embed_positions|positions_embed|wpe|relative_attention_bias)\.weight"


def of_kind(kind):
    return [name for name, has in UNROTATED.items() if has == kind]


# sizes with which a model is made at once
SMALL = {f"{part}_{what}": 1 for part in ("encoder", "decoder") for what in ("layers", "ffn_dim")}
SMALL |= {"d_model": 96, "max_position_embeddings": 130, "vocab_size": 8}
SMALL |= dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), 1)


def built(name, device, **settings):
    """The model of a family, by default but for these settings, and its config as its file would have it."""
    transformers = optional("transformers", only=ASKED_FOR)
    of_text = {"siglip": transformers.SiglipTextModel, "siglip2": transformers.Siglip2TextModel}
    config = transformers.CONFIG_MAPPING[f"{name}_text_model" if name in ("clip", *of_text) else name](**settings)
    with torch.device(device):
        model = of_text.get(name, transformers.AutoModel.from_config)(config)
    return model, json.loads(config.to_json_string(use_diff=False))


def tables(model):
    return [value for key, value in model.named_parameters() if re.search(POSITIONS, key)]


@pytest.mark.parametrize("name", of_kind(LEARNED))
def test_a_learned_table_has_the_width_and_rows_that_are_read(name):
    model, config = built(name, "meta")
    (group, *_) = whorl.read(config).groups
    learned = next(one for one in group.encoding.modules() if isinstance(one, whorl.Learned)).config
    for table in tables(model):
        assert tuple(table.shape) == (learned.length + UNUSED.get(name, 0), learned.width)
    assert tables(model)


@pytest.mark.parametrize("name", of_kind(SINUSOIDAL))
def test_waves_are_those_of_the_model(name):
    model, config = built(name, "cpu", **SMALL)
    (group,) = whorl.read(config).groups
    for table in tables(model):
        ours = group.encoding.add_to_input(torch.zeros_like(table), torch.arange(len(table)))
        assert float((ours - table).abs().max()) <= 1e-5
    assert tables(model)


@pytest.mark.parametrize("name", of_kind(T5))
def test_buckets_have_the_sizes_that_are_read(name):
    model, config = built(name, "meta")
    groups = {group.kind: group.encoding.config for group in whorl.read(config).groups}
    assert set(groups) == {"encoder", "decoder"}
    for key, table in model.named_parameters():
        if "relative_attention_bias" in key:
            one = groups[key.partition(".")[0]]
            assert tuple(table.shape) == (one.buckets, one.heads)


def test_the_window_of_gpt_neo_is_that_of_its_mask():
    modeling = optional("transformers.models.gpt_neo.modeling_gpt_neo")
    sizes = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}
    config = modeling.GPTNeoConfig(**sizes, window_size=3, max_position_embeddings=8)
    local = modeling.GPTNeoSelfAttention(config, attention_type="local", layer_id=1).bias[0, 0]
    group = next(one for one in whorl.read(config.to_dict()).groups if one.kind == "local")
    window = next(one for one in group.encoding.modules() if isinstance(one, whorl.Window))
    positions = torch.arange(8)
    seen = (positions[:, None] - positions < window.config.size) & (positions[:, None] >= positions)
    assert torch.equal(local, seen)


# --- Whisper, and models without attention


def test_whisper_has_waves_in_its_encoder_and_a_table_in_its_decoder():
    transformers = optional("transformers", only=ASKED_FOR)
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "max_source_positions": 50}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.WhisperConfig(**sizes, vocab_size=16, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    model = transformers.WhisperModel(config)
    encoder, decoder = whorl.read(json.loads(config.to_json_string(use_diff=False))).groups
    assert (encoder.kind, decoder.kind) == ("encoder", "decoder")
    theirs = model.encoder.embed_positions.weight
    ours = encoder.encoding.add_to_input(torch.zeros_like(theirs), torch.arange(50))
    assert float((ours - theirs).abs().max()) <= 1e-5
    table = model.decoder.embed_positions.weight
    assert tuple(table.shape) == (decoder.encoding.config.length, decoder.encoding.config.width)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon_mamba", "rwkv"])
def test_a_model_without_attention_is_read_so(name):
    (group,) = whorl.read({"model_type": name, "hidden_size": 64, "num_hidden_layers": 3}).groups
    assert (group.indices, group.layers.attention) == ((0, 1, 2), False)
    with pytest.raises(WhorlError, match=f"positions of model_type '{name}' are none, for it has no attention"):
        Rope.from_hf({"model_type": name, "hidden_size": 64})


# --- MPT

MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}


@pytest.mark.parametrize("off", [{"attn_config": {"alibi": False}}, {"alibi": False}], ids=["inside", "beside"])
@pytest.mark.parametrize(("learned", "name"), [({}, "learned"), ({"learned_pos_emb": False}, "none")])
def test_mpt_without_alibi_has_what_its_own_code_has_and_says_what_transformers_does(off, learned, name):
    config = MPT | off | learned
    model = whorl.read(config)
    encoding = model.groups[0].encoding
    assert encoding.config.name == name
    if name == "learned":
        assert (encoding.config.width, encoding.config.length) == (64, 128)
    (note,) = model.reading.notes
    assert "llm-foundry" in note and "has ALiBi all the same" in note
    kind = "a learned table" if name == "learned" else "none"
    with pytest.raises(WhorlError, match=f"positions of model_type 'mpt' are {kind}"):
        Rope.from_hf(config)


def test_transformers_has_alibi_in_mpt_whatever_the_file_says():
    transformers = optional("transformers", only=ASKED_FOR)
    given = {key: value for key, value in MPT.items() if key != "model_type"}
    made = [
        transformers.MptModel(transformers.MptConfig(**given, attn_config={"alibi": alibi})) for alibi in (True, False)
    ]
    assert all(not any("wpe" in name for name, _ in model.named_parameters()) for model in made)
    made[1].load_state_dict(made[0].state_dict())
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(*(model.eval()(tokens).last_hidden_state for model in made))


def test_mpt_with_a_rotation_is_not_said_to_have_alibi():
    config = MPT | {"attn_config": {"alibi": False, "rope": True}}
    assert whorl.read(config).unsupported == (
        "a rotation (attn_config.rope) that llm-foundry has for MPT and transformers has not",
    )
    with pytest.raises(WhorlError, match=r"are a rotation \(attn_config.rope\)"):
        Rope.from_hf(config)
