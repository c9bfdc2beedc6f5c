"""Advice for a longer context: what is chosen, what it costs, and that every program serves the length."""

import json
import shlex

import pytest

import whorl
from hf_configs import LISTS
from whorl.bridge.difference import compare
from whorl.bridge.programs import read_as
from whorl.errors import WhorlError

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config(family="qwen2", **fields):
    return {"model_type": family, **SIZES, "max_position_embeddings": 32768, "rope_theta": 1e6, **fields}


def overridden(given, text):
    """The config as a server has it after the overrides of a command."""
    words = shlex.split(text)
    flag = next((one for one in words if one in ("--hf-overrides", "--json-model-override-args")), None)
    overrides = json.loads(words[words.index(flag) + 1]) if flag else {}
    gone = ("rope_scaling", "rope_theta") if "rope_parameters" in overrides else ()
    return {key: value for key, value in given.items() if key not in gone} | overrides


CASES = {
    "a plain model": (config(), {"length": 131072}, "yarn", 4.0),
    "a length that is no multiple": (config(), {"length": 100001}, "yarn", 100001 / 32768),
    "a length that floats miss": (config(max_position_embeddings=4095), {"length": 123457}, "yarn", 123457 / 4095),
    "data shorter than the window": (config(), {"length": 131072, "data_length": 24576}, "yarn", 131072 / 24576),
    "yarn that goes on": (config(rope_scaling=YARN), {"length": 65536}, "yarn", 8.0),
    "yarn with a factor on attention": (
        config(rope_scaling={**YARN, "attention_factor": 1.0}),
        {"length": 65536},
        "yarn",
        8.0,
    ),
    "fine-tuning": (config(), {"length": 131072, "fine_tune": True}, "base", 4.0),
    "llama 3": (
        config("llama", rope_scaling={"rope_type": "llama3", **LLAMA3}, max_position_embeddings=65536),
        {"length": 131072},
        "llama3",
        16.0,
    ),
    "linear": (
        config(rope_scaling={"type": "linear", "factor": 4.0}),
        {"length": 65536, "data_length": 8192},
        "linear",
        8.0,
    ),
    "gemma 3": (
        config("gemma3_text", head_dim=256, num_hidden_layers=6, sliding_window=512),
        {"length": 131072},
        "yarn",
        4.0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scheme_and_its_factor(name):
    given, asked, scheme, factor = CASES[name]
    advice = whorl.advise(given, **asked)
    assert (advice.scheme, advice.factor) == (scheme, pytest.approx(factor))
    assert advice.reasons and advice.cost and json.loads(json.dumps(advice.to_dict()))


@pytest.mark.parametrize("name", CASES)
def test_every_program_claims_the_length_that_was_asked_for(name):
    given, asked, *_ = CASES[name]
    advice = whorl.advise(given, **asked)
    served = 0
    for program in ("vllm", "sglang"):
        if program in advice.refusals:
            assert "claimed length" in advice.refusals[program]
            continue
        reading = read_as(overridden(given, advice.changes[program]), program)
        assert reading.claimed_length.value == asked["length"], program
        assert compare(whorl.read(advice.config).reading, reading).equal, program
        served += 1
    for program in ("transformers4", "transformers5", "llama.cpp"):
        if "hf-both" in advice.changes:
            reading = read_as(json.loads(advice.changes["hf-both"]), program)
            assert reading.claimed_length.value == asked["length"], program
            served += 1
    assert served >= 3


def test_linear_scaling_is_not_recommended_to_servers_that_multiply_by_it_again():
    given, asked, *_ = CASES["linear"]
    refusals = whorl.advise(given, **asked).refusals
    assert "claimed length of 524288 against 65536" in refusals["vllm"] and "524288" in refusals["sglang"]


def test_the_base_is_the_one_that_keeps_the_slowest_pair():
    advice = whorl.advise(config(), length=131072, fine_tune=True)
    base = advice.config["rope_parameters"]["rope_theta"]
    assert base == 4200000.0 and base >= 1e6 * 4 ** (64 / 62) > 0.97 * base


def test_yarn_leaves_fast_pairs_and_says_what_it_costs():
    (cost,) = whorl.advise(config(), length=131072).cost
    assert cost.startswith("within 32768 positions pairs from 12 on of 32") and "1.13863, before 1" in cost


def test_a_length_that_the_file_claims_needs_no_change():
    advice = whorl.advise(config(), length=16384)
    assert advice.scheme == "nothing" and advice.config is None
    assert advice.changes["vllm"].endswith("--max-model-len 16384")


def test_a_length_that_the_file_claims_needs_no_trained_length():
    linear = config("llama", rope_scaling={"type": "linear", "factor": 4.0})
    advice = whorl.advise(linear, length=8192)
    assert advice.scheme == "nothing" and advice.trained_length is None
    assert advice.changes["sglang"].endswith("--context-length 8192")
    with pytest.raises(WhorlError, match="does not say what length"):
        whorl.advise(linear, length=65536)


WINDOWED = {
    "a window in every layer": config("mistral", sliding_window=4096),
    "rotation in windows alone": config("cohere2", num_hidden_layers=8, sliding_window=4096),
    "rotation in chunks alone": {
        "model_type": "llama4",
        "text_config": config("llama4_text", num_hidden_layers=4, head_dim=64, no_rope_layers=[1, 1, 1, 0]),
    },
}


@pytest.mark.parametrize("name", WINDOWED)
def test_layers_that_never_see_beyond_what_was_trained_are_not_stretched(name):
    given = WINDOWED[name]
    advice = whorl.advise(given, length=131072)
    assert (advice.scheme, advice.factor, advice.cost) == ("length", 1.0, ())
    assert "--max-model-len 131072" in advice.changes["vllm"] and "yarn" not in advice.changes["vllm"]
    assert whorl.read(advice.config).claimed_length == 131072
    assert compare(whorl.read(given).reading, whorl.read(advice.config).reading, length=131072).groups[0].equal


def test_a_window_wider_than_the_data_is_stretched():
    assert whorl.advise(config("mistral", sliding_window=4096), length=65536, data_length=2048).scheme == "yarn"


def test_only_layers_that_see_the_whole_text_are_stretched():
    given = {"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6}
    given |= {"max_position_embeddings": 8192, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    advice = whorl.advise(given | {"local_attention": 128}, length=32768)
    ropes = advice.config["rope_parameters"]
    assert {kind: one["rope_type"] for kind, one in ropes.items()} == {
        "full_attention": "yarn",
        "sliding_attention": "default",
    }
    assert "hf-both" in advice.refusals and "hf-v5" in advice.changes  # version 4 has one scaling for both


def test_every_field_that_says_a_length_is_raised():
    advice = whorl.advise(config("cohere", max_position_embeddings=8192, model_max_length=16384), length=32768)
    assert advice.config["max_position_embeddings"] == advice.config["model_max_length"] == 32768
    assert '"model_max_length": 32768' in advice.changes["vllm"] and not {"vllm", "sglang"} & advice.refusals.keys()


def test_a_large_factor_is_called_large():
    assert any("beyond the 32" in one for one in whorl.advise(config(), length=2**21).reasons)


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        (config("phi3", head_dim=96, rope_scaling={"type": "longrope", **LISTS}), {"length": 65536}, "no rule extends"),
        (config(rope_scaling={"type": "dynamic", "factor": 2.0}), {"length": 65536}, "dynamic NTK adapts"),
        ({"model_type": "bloom", "n_head": 8, "hidden_size": 512, "n_layer": 2}, {"length": 65536}, "no layer rotates"),
        (
            {"model_type": "gptj", "n_embd": 512, "n_head": 8, "rotary_dim": 64},
            {"length": 65536},
            "constants settle the rotation",
        ),
        (config("chatglm", rope_ratio=2), {"length": 65536}, "comes with the checkpoint"),
        (config(), {"length": 0}, "length must be a positive integer"),
        (config(), {"length": 8, "data_length": True}, "data_length must be"),
        (config(), {"length": 131072, "data_length": 65536}, "shorter than the 32768 that the file says, got 65536"),
        (
            config("llama", rope_scaling={"rope_type": "llama3", **LLAMA3}, max_position_embeddings=65536),
            {"length": 131072, "data_length": 65536},
            "shorter than the 8192 that the file says",
        ),
    ],
)
def test_refusals(given, asked, said):
    with pytest.raises(WhorlError, match=said):
        whorl.advise(given, **asked)
