"""What acts on queries beside the rotation: the short form says that a rotation is not all."""

import re

import pytest

import whorl
from whorl import Rope, WhorlError
from whorl.dialects.beside import IncompleteRotation
from whorl.dialects.families import UnknownFamily

SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}
QWEN1 = {"model_type": "qwen", **SIZES, "seq_length": 8192, "use_dynamic_ntk": True}

INCOMPLETE = {
    "dual chunks": (
        {"model_type": "qwen2", **SIZES, "dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
        "dual chunk attention (dual_chunk_attention_config)",
    ),
    "ministral 3": (
        {"model_type": "ministral3", **SIZES, "rope_parameters": YARN},
        "queries that grow with their position (rope_parameters.llama_4_scaling_beta)",
    ),
    "another family's temperature": (
        {"model_type": "llama", **SIZES, "rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
        "temperature by position (llama_4_scaling_beta=0.1)",
    ),
    "log-n": (QWEN1 | {"use_logn_attn": True}, "queries that grow by log n past seq_length (use_logn_attn)"),
    "gte's log-n": (
        {"model_type": "gte", **SIZES, "logn_attention_scale": True},
        "queries scaled by the logarithm of the length (logn_attention_scale)",
    ),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_the_short_form_says_that_a_rotation_is_not_all(name):
    config, what = INCOMPLETE[name]
    said = f"Rope.from_hf: this is the rotation alone. The model also has: {what}"
    with pytest.warns(IncompleteRotation, match=re.escape(said)) as caught:
        rope = Rope.from_hf(config)
    assert "whorl.read gives all that acts on positions" in str(caught[0].message)
    model = whorl.read(config)
    rotations = [one for group in model.groups for one in group.encoding.modules() if isinstance(one, Rope)]
    assert all(one.config == rope.config for one in rotations)
    more = [one for group in model.groups for one in group.layers.encodings[1:]]
    assert model.unsupported or more


def test_a_rotation_that_is_all_is_given_in_silence():
    for more in ({"use_logn_attn": False}, {"dual_chunk_attention_config": None}):
        Rope.from_hf(QWEN1 | more)


def test_log_n_of_an_unknown_family_is_not_passed_over():
    config = {"model_type": "acme", **SIZES, "rope_theta": 10000.0, "use_logn_attn": True}
    (said,) = whorl.read(config, assume="llama").unsupported
    assert said.startswith("queries scaled by log n (use_logn_attn)") and "not known" in said
    with pytest.warns((UnknownFamily, IncompleteRotation)) as caught:
        Rope.from_hf(config)
    assert {one.category for one in caught} == {UnknownFamily, IncompleteRotation}


def test_log_n_without_its_length_is_refused():
    config = {"model_type": "qwen", **SIZES, "use_logn_attn": True}
    for call in (whorl.read, Rope.from_hf):
        with pytest.raises(WhorlError, match="use_logn_attn needs seq_length, which the config lacks"):
            call(config)


@pytest.mark.parametrize(
    "config",
    [
        {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "norm_eps": 1e-5, "vocab_size": -1},
        {"_class_name": "FluxTransformer2DModel", "num_layers": 19},
        {"architecture": "LlamaForCausalLM", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
        | {"mapping": {"tp_size": 1}, "rotary_base": 10000.0},
    ],
    ids=["meta", "diffusers", "tensorrt-llm"],
)
def test_the_config_of_another_program_is_not_taken_for_one_of_transformers(config):
    with pytest.raises(WhorlError, match=r"Rope\.from_hf: config must be one of transformers, got .* whorl\.read\."):
        Rope.from_hf(config)
