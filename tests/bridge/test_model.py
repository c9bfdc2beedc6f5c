"""whorl.read: what positions do in each layer of models that other programs misread, as their own code does it.

The configs are built by hand with the positional fields of published files.
"""

import importlib
import math
import re

import pytest
import torch

import whorl
from model_cases import CASES, KIMI_YARN, NO_ATTENTION, SIZES
from optional import optional
from whorl import (
    AxialRope,
    LogN,
    MRope,
    Ntk,
    Rope,
    WhorlError,
)
from whorl.dialects.families import UnknownFamily
from whorl.dialects.transformers_model import read as read_transformers


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_read_as_the_models_own_code_has_it(name):
    case = CASES[name]
    model = whorl.read(case.config)
    found = {}
    for group in model.groups:
        encoding = group.encoding.config.to_dict() if group.layers.attention else NO_ATTENTION
        found[group.kind] = (None if group.indices is None else list(group.indices), encoding)
    expected = {
        kind: (None if places is None else list(places), one if one == NO_ATTENTION else one.config.to_dict())
        for kind, (places, one) in case.layers.items()
    }
    assert found == expected
    assert model.standing == case.standing


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.lengths != (None, None)])
def test_trained_and_claimed_lengths_are_told_apart(name):
    model = whorl.read(CASES[name].config)
    assert (model.trained_length, model.claimed_length) == CASES[name].lengths


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_expressed_is_named_and_stops_the_plan(name):
    case, model = CASES[name], whorl.read(CASES[name].config)
    assert len(model.unsupported) == len(case.unsupported)
    assert all(any(said in what for what in model.unsupported) for said in case.unsupported)
    if case.unsupported:
        with pytest.raises(WhorlError, match=re.escape("not supported yet: ") + ".*" + re.escape(case.unsupported[0])):
            model.plan  # noqa: B018
    elif not case.planned:
        with pytest.raises(WhorlError, match="LayerPlan: an encoding that adds to the input acts once"):
            model.plan  # noqa: B018
    elif all(places is not None for places, _ in case.layers.values()):
        assert len(model.plan) == sum(len(list(places)) for places, _ in case.layers.values())


# --- against the code of the models


def test_kimi_k2_scales_its_softmax_as_deepseek_v3_does():
    deepseek = optional("transformers.models.deepseek_v3.modeling_deepseek_v3")
    given = KIMI_YARN | {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    (group,) = whorl.read(CASES["kimi k2.5, which is deepseek v3"].config).groups
    assert group.encoding.softmax_factor() == pytest.approx(deepseek.yarn_apply_mscale(given, 1.0), rel=1e-15)
    config = deepseek.DeepseekV3Config(rope_theta=50000.0, max_position_embeddings=262144, rope_scaling=dict(given))
    module = deepseek.DeepseekV3RotaryEmbedding(config)
    assert torch.allclose(group.encoding.frequencies().float(), module.inv_freq, rtol=1e-6, atol=0)
    assert group.encoding.attention_factor() == module.attention_scaling


def test_qwen_1_grows_its_queries_by_log_n():
    """logn_list of the checkpoint's code: log_L(i) for i > L, else 1, at position i - 1."""
    (group,) = whorl.read(CASES["qwen-1, with dynamic NTK and log-n past its length"].config).groups
    grow = next(part for part in group.encoding.modules() if isinstance(part, LogN))
    expected = [math.log(i, 8192) if i > 8192 else 1 for i in (1, 8192, 8193, 32768)]
    assert grow.query_factor(torch.tensor([0, 8191, 8192, 32767]))[0].tolist() == pytest.approx(expected, rel=1e-12)


def test_qwen_1_stretches_its_base_in_steps():
    """get_ntk_alpha of the checkpoint's code, and its base * alpha^(d / (d - 2))."""
    (group,) = whorl.read(CASES["qwen-1, with dynamic NTK and log-n past its length"].config).groups
    rope = next(part for part in group.encoding.modules() if isinstance(part, Rope))
    for length in (4096, 8192, 8193, 16384, 16385, 32768):
        alpha = max(2 ** math.ceil(math.log(length / 8192, 2) + 1) - 1, 1)
        expected = Rope(head_dim=128, base=10000 * alpha ** (128 / 126)).frequencies()
        torch.testing.assert_close(rope.frequencies(length), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("more", "scaling"),
    [({}, Ntk(factor=2.0, variant="fixed")), ({"mixed_b": 0.625}, Ntk(factor=2.0, variant="mixed", exponent=0.625))],
)
def test_gte_v1_5_whose_files_say_new_stretches_by_ntk(more, scaling):
    """The code that comes with it, and vLLM: base times factor, then each frequency by factor^(-2/d)."""
    config = {"model_type": "new", **SIZES, "position_embedding_type": "rope", "rope_theta": 160000}
    model = whorl.read(config | {"rope_scaling": {"factor": 2.0, "type": "ntk", **more}})
    assert (model.family, model.standing) == ("gte", "alias")
    assert model.groups[0].encoding.config == Rope(head_dim=128, base=160000.0, scaling=scaling).config
    (said,) = whorl.read(config | {"logn_attention_scale": True}).unsupported
    assert said == "queries scaled by the logarithm of the length (logn_attention_scale)"


def test_beam_grows_its_queries_as_is_said():
    beam = optional("transformers.models.beam.modeling_beam")
    grown = beam.compute_attention_scaling(torch.arange(0, 9000, 7)[None])[0, 0, :, 0]
    torch.testing.assert_close(grown, (1 + (torch.arange(0, 9000, 7) + 1) / 2048) ** 0.1)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "qwen-1, with dynamic NTK and log-n past its length",
            {"original_length": "seq_length", "doubling": "use_dynamic_ntk"},
        ),
        (
            "nomic-embed, stretched past its trained length",
            {"original_length": "max_trained_positions", "factor": "rotary_scaling_factor"},
        ),
    ],
)
def test_a_scaling_beside_the_rope_dict_names_its_fields(name, fields):
    (group,) = whorl.read(CASES[name].config).groups
    scaling = group.layers.encodings[0].scaling
    assert {key: scaling.settings[key].field for key in fields} == fields


def test_windows_of_single_layers_are_told_apart():
    config = CASES["neomme, with two axes in turn"].config
    model = whorl.read(config | {"per_layer_config": {"01": {"sliding_window": 1024}, "03": {"sliding_window": None}}})
    assert [(group.indices, len(group.unsupported)) for group in model.groups] == [((0, 2), 1), ((1,), 1), ((3,), 0)]
    assert "sees 257 tokens to each side" in model.unsupported[0]
    assert "sees 1025 tokens to each side" in model.unsupported[1]
    silent = whorl.read({name: value for name, value in config.items() if name != "per_layer_config"})
    assert [group.indices for group in silent.groups] == [(0, 2), (1,), (3,)]  # as its class alternates them
    assert silent.groups[0].layers.encodings[0].settings["sections"].source == "family code"


def test_neomme_turns_as_it_is_read():
    neomme = optional("transformers.models.neomme.modeling_neomme")
    config = neomme.NeoMMEConfig()
    rotary, generator = neomme.NeoMMERotaryEmbedding(config), torch.Generator().manual_seed(0)
    for group in whorl.read(config.to_dict()).groups:
        mrope = MRope.from_config(group.encoding.config.replace(angles="float32"))
        q, positions = (
            torch.randn(1, 3, 7, 64, generator=generator),
            torch.randint(0, 3000, (2, 1, 7), generator=generator),
        )
        expected, _ = neomme.apply_rotary_pos_emb(q, q, *rotary(q, positions, layer_type=group.kind))
        assert float((mrope.rotate(q, positions) - expected).abs().max()) <= 1e-6


def test_efficient_loftr_turns_all_heads_as_one():
    loftr = optional("transformers.models.efficientloftr.modeling_efficientloftr")
    config = loftr.EfficientLoFTRConfig()
    model = whorl.read(config.to_dict())
    rope = AxialRope.from_config(model.groups[0].encoding.config.replace(angles="float32"))
    cos, sin = loftr.EfficientLoFTRRotaryEmbedding(config)(torch.zeros(1, 256, 12, 20))
    x = torch.randn(1, 15, 1, 256, generator=torch.Generator().manual_seed(0))
    expected, _ = loftr.apply_rotary_pos_emb(x, x, *(one.reshape(1, 15, 256) for one in (cos, sin)), unsqueeze_dim=2)
    turned = rope.rotate(x.transpose(1, 2), whorl.grid(3, 5, offset=1))
    assert float((turned.transpose(1, 2) - expected).abs().max()) <= 1e-6
    assert "rotate queries before they are split" in model.reading.notes[0]


def test_hunyuan_vl_says_that_transformers_turns_its_images_otherwise():
    model = whorl.read(CASES["hunyuan-ocr, whose sections have a name of their own"].config)
    assert "transformers 5.22.2 splits dimensions by them" in model.reading.notes[0]
    hunyuan = optional("transformers.models.hunyuan_vl.modeling_hunyuan_vl")
    config = hunyuan.HunYuanVLTextConfig(**CASES["hunyuan-ocr, whose sections have a name of their own"].config)
    module = hunyuan.HunYuanVLRotaryEmbedding(config)
    q, text = torch.randn(1, 2, 7, 128, generator=torch.Generator().manual_seed(0)), torch.arange(7)[None]
    expected, _ = hunyuan.apply_rotary_pos_emb(q, q, *module(q, text.expand(4, 1, 7)))
    torch.testing.assert_close(model.groups[0].encoding.rotate(q, text[0]), expected, atol=1e-5, rtol=0)


def test_musicflamingo_says_that_its_audio_is_turned_before():
    model = whorl.read({"model_type": "musicflamingo", "text_config": {"model_type": "qwen2", **SIZES}})
    assert "turns the embeddings of audio before they enter it" in model.reading.notes[0]
    assert isinstance(model.groups[0].encoding, Rope)


@pytest.mark.parametrize("family", ["nemotron_h", "jamba"])
def test_a_family_without_positions_never_rotates_in_its_own_code(family):
    module = optional(f"transformers.models.{family}.modeling_{family}")
    source = importlib.import_module("inspect").getsource(module)
    assert len(re.findall(r"apply_rotary_pos_emb\(", source)) == 1  # its definition


def test_a_ratio_that_means_two_things_is_said():
    """ChatGLM3 and GLM-4 multiply the base by it; ChatGLM2-6B-32k, of the same model_type, divides positions."""
    assert (
        "divides positions by it instead"
        in whorl.read(CASES["glm-4-9b, whose base has a ratio"].config).reading.notes[0]
    )
    assert whorl.read(CASES["chatglm3"].config).reading.notes == ()


# --- sources


def test_every_setting_says_where_it_comes_from():
    model = whorl.read(CASES["gemma-3-4b-it, whose text model is saved as differences"].config)
    full = next(group for group in model.groups if group.kind == "full_attention").layers.encodings[0]
    sources = {name: (value.source, value.field) for name, value in full.settings.items()}
    assert sources["head_dim"] == ("class default", "head_dim")
    assert sources["base"] == ("class default", "")
    assert sources["layout"] == ("family code", "")
    assert full.scaling.settings["factor"].source == "file"
    assert full.scaling.settings["factor"].field == "rope_scaling.factor"
    assert model.reading.claimed_length.source == "class default"


def test_what_a_file_states_is_not_said_to_be_a_default():
    config = {"model_type": "phi3", **SIZES, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    (group,) = whorl.read(config).groups
    settings = group.layers.encodings[0].settings
    assert {name: settings[name].source for name in ("head_dim", "base", "rotary_dim")} == dict.fromkeys(
        ("head_dim", "base", "rotary_dim"), "file"
    )
    assert settings["head_dim"].field == "hidden_size / num_attention_heads"


@pytest.mark.parametrize("family", ["deepseek_v32", "longcat_flash", "glm_moe_dsa"])
def test_the_size_of_latent_attention_is_the_files(family):
    """Their classes have a head_dim too, which no latent attention uses."""
    config = {"model_type": family, **SIZES, "qk_rope_head_dim": 32, "qk_nope_head_dim": 128, "kv_lora_rank": 512}
    (group,) = whorl.read(config).groups
    size = group.layers.encodings[0].settings["head_dim"]
    assert (size.value, size.source, size.field) == (32, "file", "qk_rope_head_dim")


def test_a_base_that_no_field_changes_is_the_codes():
    (group,) = whorl.read(CASES["gpt-j, whose base no field changes"].config).groups
    assert group.layers.encodings[0].settings["base"].source == "family code"


def test_reading_does_not_send_its_reader_to_itself():
    with pytest.raises(WhorlError) as error:
        whorl.read({"model_type": "vit", **SIZES})
    assert "whorl.read" not in str(error.value)
    with pytest.raises(WhorlError, match="No table here has this family") as error:
        Rope.from_hf({"model_type": "vit", **SIZES})
    assert "whorl.read" not in str(error.value)  # which has no answer either


def test_an_unknown_family_is_never_read_in_silence():
    config = {"model_type": "new", **SIZES, "rope_theta": 5e5}
    with pytest.warns(UnknownFamily, match=r"read: model_type 'new' is of an unknown family.*assume='llama'"):
        model = whorl.read(config)
    assert model.standing == "unknown"
    settings = model.groups[0].layers.encodings[0].settings
    assert (settings["base"].source, settings["layout"].source) == ("file", "assumed")


def test_assuming_a_family_is_the_users_word():
    config = {"model_type": "new", **SIZES, "rope_theta": 5e5}
    model = whorl.read(config, assume="cohere")
    assert model.standing == "unknown" and model.groups[0].encoding.layout == "interleaved"
    assert model.groups[0].layers.encodings[0].settings["layout"].source == "assumed"
    with pytest.raises(WhorlError, match=re.escape("unknown family to assume 'lama'. Did you mean 'llama'?")):
        whorl.read(config, assume="lama")


def test_a_known_family_is_not_changed_by_assuming_another():
    assert whorl.read({"model_type": "llama", **SIZES}, assume="gptj").groups[0].encoding.layout == "half"


@pytest.mark.parametrize(
    ("config", "dialect"),
    [
        ({"rope_parameters": {"rope_theta": 1e4}}, "transformers 5"),
        ({"rope_theta": 1e4}, "transformers 4"),
        ({"transformers_version": "4.44.0"}, "transformers 4"),
        ({"transformers_version": 7}, "transformers"),
    ],
    ids=str,
)
def test_the_dialect_is_named(config, dialect):
    assert read_transformers({"model_type": "llama", **SIZES, **config}).dialect == dialect


# --- what cannot be read

BAD = {
    "a list": ([1], "read: what is to be read must be a path or a dict, got [1]."),
    "a path to nothing": ("/nothing/here.json", "read: there is no '/nothing/here.json'. Pass a config.json"),
    "nothing that says positions": (
        {"model_type": "new", **SIZES},
        "read: no rotary field in the config of model_type 'new'",
    ),
    "a field of unknown effect": (
        {"model_type": "llama", **SIZES, "rope_ratio": 50},
        "What 'rope_ratio' does to the rotation is not known here: look into the model's own code.",
    ),
    "a params.json of Meta": (
        {"model_type": "llama", **SIZES, "use_scaled_rope": True},
        "use_scaled_rope is a field of Meta's params.json. Pass that file to whorl.read.",
    ),
    "an m-rope that is not described": (
        {"model_type": "qwen2", **SIZES, "use_mrope": True},
        "cannot place the field 'use_mrope'",
    ),
    "positions that are stretched": (
        {"model_type": "phi3small", **SIZES, "rope_position_scale": 0.5},
        "cannot place the field 'rope_position_scale'",
    ),
    "too few kinds of layers": (
        {"model_type": "qwen3", **SIZES, "layer_types": ["full_attention"]},
        "read: layer_types names 1 layers, the model has 4.",
    ),
    "too few entries": (
        {"model_type": "granite_swa", **SIZES, "layer_rope_theta": [1e4]},
        "read: layer_rope_theta has 1 entries for 4 layers.",
    ),
    "a wrong list of rotations": (
        {"model_type": "smollm3", **SIZES, "no_rope_layers": [1, 0]},
        "no_rope_layers [1, 0] is for 2 layers, the model has 4.",
    ),
    "letters without a meaning": (
        {"model_type": "nemotron_h", **SIZES, "hybrid_override_pattern": "MX"},
        "hybrid_override_pattern must be letters M, *, - and E, one per layer, got 'MX'.",
    ),
    "a window that is a word": (
        {"model_type": "mistral", **SIZES, "sliding_window": "big"},
        "read: sliding_window must be an integer from 0, got 'big'.",
    ),
    "endless layers": (
        {"model_type": "llama", **SIZES, "num_hidden_layers": 10**9},
        "num_hidden_layers must be at most",
    ),
    "a cap below zero": (
        {"model_type": "gemma2", **SIZES, "attn_logit_softcapping": -1},
        "attn_logit_softcapping must be a positive number or null, got -1.",
    ),
    "a number of pairs that repeats no kind": (
        {"model_type": "gpt_neo", "attention_types": [["global", 2], 3]},
        "read: attention_types must be pairs of kinds and how often they repeat",
    ),
    "chatglm-6b": (
        {"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "position_encoding_2d": True},
        "read: position_encoding_2d is a field of ChatGLM-6B",
    ),
    "a kind of positions that bert has not": (
        {"model_type": "bert", **SIZES, "position_embedding_type": "rotary"},
        "read: position_embedding_type must be absolute, relative_key or relative_key_query, got 'rotary'.",
    ),
    "lists that name a layer twice": (
        {
            **{"model_type": "kimi_linear", **SIZES},
            "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 4]},
        },
        "read: full_attn_layers and kda_layers in linear_attn_config do not name the layers 1 to 4.",
    ),
    "a temperature without the length it counts": (
        {"model_type": "ministral3", **SIZES, "rope_parameters": {"rope_theta": 1e6, "llama_4_scaling_beta": 0.1}},
        "read: rope_parameters.llama_4_scaling_beta needs original_max_position_embeddings beside it.",
    ),
    "a list of attention that is not 0 and 1": (
        {"model_type": "minimax_text_01", **SIZES, "head_dim": 128, "attn_type_list": [0, 2, 1, 1]},
        "read: attn_type_list must be a list of 0 and 1, one per layer, got [0, 2, 1, 1].",
    ),
    "two models in one": (
        {"model_type": "t5gemma2", "encoder": {"model_type": "t5gemma2_encoder"}, "decoder": {"hidden_size": 640}},
        "read: model_type 't5gemma2' is made of several models. Pass one of its parts: encoder, decoder.",
    ),
    "qwen-1 without the length its steps begin at": (
        {"model_type": "qwen", **SIZES, "use_dynamic_ntk": True},
        "read: use_dynamic_ntk needs seq_length, which the config lacks.",
    ),
    "a stretch that is no number": (
        {"model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "rotary_scaling_factor": "2"},
        "read: rotary_scaling_factor must be a number, got '2'.",
    ),
    "a list of bases where one belongs": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 4, "attn_config": {"rope_theta": []}},
        "read: rope_theta must be a number, or a list with one per layer, got [].",
    ),
    "a tower with a scaling": (
        {"model_type": "qwen2_vl_vision", "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        "read: rope_type of a model of images must be axial or default, got 'linear'.",
    ),
    "phi-3-small, with a factor for each list": (
        {
            **{"model_type": "phi3small", **SIZES, "original_max_position_embeddings": 8192},
            **{"max_position_embeddings": 131072},
            "rope_scaling": {
                **{"type": "su", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64},
                **{"short_mscale": 1.0, "long_mscale": 1.19},
            },
        },
        "read: short_mscale=1.0 and long_mscale=1.19 in rope_scaling differ, and LongRope has one attention_factor.",
    ),
    "a temperature that is no number": (
        {
            **{"model_type": "ministral3", **SIZES},
            "rope_parameters": {"llama_4_scaling_beta": "0.1", "original_max_position_embeddings": 16384},
        },
        "read: rope_parameters.llama_4_scaling_beta must be a number, got '0.1'.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_says_why(name):
    given, message = BAD[name]
    with pytest.raises(WhorlError, match=re.escape(message)):
        whorl.read(given)


def test_a_table_larger_than_any_is_refused_before_its_memory_is_asked_for():
    model = whorl.read({"model_type": "gpt2", "n_embd": 100_000, "n_positions": 1_000_000, "n_layer": 2})
    with pytest.raises(WhorlError, match="a learned table of 1000000 positions and width 100000 has more than"):
        model.groups[0].encoding  # noqa: B018


def test_a_tower_that_names_no_base_has_that_of_its_class():
    for config, source in (({}, "class default"), ({"rope_parameters": {"rope_theta": 500.0}}, "file")):
        model = whorl.read({"model_type": "qwen2_vl_vision", **config})
        assert model.groups[0].layers.encodings[0].settings["base"].source == source


# --- the short form


@pytest.mark.parametrize(
    "name", ["nemotron-3, whose rope_theta is dead", "mpt", "bloom", "baichuan-13b", "falcon-rw", "gpt-2"]
)
def test_the_short_form_refuses_a_model_that_does_not_rotate_and_names_read(name):
    with pytest.raises(WhorlError, match=r"whorl\.read gives what the model has instead"):
        Rope.from_hf(CASES[name].config)


@pytest.mark.parametrize(("name", "word"), [("mpt", "ALiBi"), ("baichuan-13b", "ALiBi"), ("t5", "T5's buckets")])
def test_the_short_form_names_what_the_family_has_instead(name, word):
    with pytest.raises(WhorlError, match=f"positions (of model_type '.*' )?are {word}"):
        Rope.from_hf(CASES[name].config)


def test_the_short_form_does_not_call_quantization_a_part_of_a_model():
    with pytest.raises(WhorlError, match="no rotary field") as caught:
        Rope.from_hf({"model_type": "new", "quantization_config": {"bits": 4}, **SIZES})
    assert "quantization_config" not in str(caught.value)
