"""Mistral's params.json, with the positional fields of published files."""

import math
import re

import pytest

import whorl
from whorl import Combined, Llama4Temperature, Rope, WhorlError, Window, Yarn

SIZES = {
    **{"dim": 4096, "n_layers": 4, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8},
    **{"norm_eps": 1e-05, "vocab_size": 32768},
}
YARN = {
    **{"original_max_position_embeddings": 16384, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1},
}
LARGE = {"q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "v_head_dim": 128}
GROWING = Llama4Temperature(floor_scale=16384, attn_scale=0.1, first=0)
GROWN = {"llama_4_scaling": {"original_max_position_embeddings": 16384, "beta": 0.1}}


def rope(**settings):
    return Rope(**{"head_dim": 128, "base": 1e6, "layout": "interleaved"} | settings)


def yarn(**settings):
    return Yarn(factor=16.0, original_length=16384, **settings)


CASES = {
    "7b v0.3": (SIZES | {"rope_theta": 1000000.0}, {"all": rope()}),
    "7b v0.1, which has a window and no base": (
        SIZES | {"sliding_window": 4096},
        {"all": Combined(rope(base=1e4), Window(size=4096))},
    ),
    "a window under the name that hides it": (
        SIZES | {"_sliding_window": 4096, "rope_theta": 1e6},
        {"all": Combined(rope(), Window(size=4096))},
    ),
    "no base at all": (SIZES, {"all": rope()}),
    "ministral 8b, whose windows repeat": (
        SIZES | {"sliding_window": [None, 32768], "rope_theta": 1e8},
        {"full_attention": rope(base=1e8), "sliding_attention": Combined(rope(base=1e8), Window(size=32768))},
    ),
    "ministral 3": (
        SIZES | {"rope_theta": 1e6, "yarn": YARN} | GROWN,
        {"all": Combined(rope(scaling=yarn(attention_factor=1.0)), GROWING)},
    ),
    "a scale that is applied": (
        SIZES | {"rope_theta": 1e6, "yarn": YARN | {"apply_scale": True}},
        {"all": rope(scaling=yarn(attention_factor=0.1 * math.log(16) + 1))},
    ),
    "mistral large 3, whose attention is deepseek v3's": (
        SIZES | LARGE | {"rope_theta": 1e4, "yarn": YARN} | GROWN,
        {
            "all": Combined(
                rope(
                    head_dim=64,
                    base=1e4,
                    scaling=yarn(attention_factor=1.0, mscale_all_dim=1.0, scale_softmax=True),
                ),
                GROWING,
            )
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_params_json_is_read_as_its_own_code_does(name):
    config, expected = CASES[name]
    model = whorl.read(config)
    assert {group.kind: group.encoding.config.to_dict() for group in model.groups} == {
        kind: one.config.to_dict() for kind, one in expected.items()
    }
    assert (model.dialect, model.family, model.standing) == ("mistral params.json", "mistral", "known")


def test_windows_repeat_over_the_layers():
    model = whorl.read(CASES["ministral 8b, whose windows repeat"][0])
    assert {group.kind: group.indices for group in model.groups} == {
        "full_attention": (0, 2),
        "sliding_attention": (1, 3),
    }


def test_a_temperature_by_position_says_where_its_numbers_stand():
    (group,) = whorl.read(CASES["ministral 3"][0]).groups
    temperature = group.layers.encodings[-1]
    assert {name: (one.value, one.field) for name, one in temperature.settings.items()} == {
        "floor_scale": (16384, "llama_4_scaling.original_max_position_embeddings"),
        "attn_scale": (0.1, "llama_4_scaling.beta"),
        "first": (0, ""),
    }
    assert not group.unsupported


def test_lengths_and_notes():
    model = whorl.read(CASES["ministral 3"][0] | {"max_position_embeddings": 262144})
    assert (model.trained_length, model.claimed_length) == (16384, 262144)
    (note,) = whorl.read(SIZES | {"sliding_window": 4096}).reading.notes
    assert note == "rope_theta is absent: base 10,000 as in Mistral 7B v0.1; newer code would take 1,000,000"


def test_codestral_mamba_has_no_attention():
    config = {"dim": 4096, "n_layers": 64, "n_groups": 8, "model_type": "mamba", "vocab_size": 32768}
    (group,) = whorl.read(config).groups
    assert not group.layers.attention and len(group.indices) == 64


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"yarn": [1]}, "read: yarn must be a dict by names, or null, got [1]."),
        ({"yarn": {"factor": 2}}, "read: yarn.original_max_position_embeddings is missing"),
        ({"yarn": {"original_max_position_embeddings": 2}}, "read: yarn.factor is missing"),
        ({"yarn": YARN | {"gamma": 1}}, "read: cannot place 'gamma' in yarn. Understood are: alpha, apply_scale"),
        ({"yarn": YARN | {"factor": "16"}}, "read: yarn.factor must be a finite number, below 2^63, got '16'."),
        ({"sliding_window": []}, "read: sliding_window must be a window for each layer of a pattern, got []."),
        ({"sliding_window": [None, -1]}, "read: sliding_window must be a positive integer below 2^63, got -1."),
        ({"llama_4_scaling": {}}, "read: llama_4_scaling needs beta and original_max_position_embeddings"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(SIZES | changes)
