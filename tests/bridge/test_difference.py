"""Differences between two models, and between two programs with one."""

import numpy as np
import pytest

import whorl
from gguf_files import SIZES as GGUF_SIZES
from gguf_files import write_gguf
from hf_configs import LISTS
from whorl.bridge.difference import cosine_differences
from whorl.errors import WhorlError

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


def config(family="llama", **fields):
    return {"model_type": family, **SIZES, "max_position_embeddings": 32768, "rope_theta": 5e5, **fields}


def settings(found):
    return {one.name: (one.a, one.b) for group in found.groups for one in group.settings}


def test_a_file_equals_itself_as_programs_that_agree_read_it():
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    given = config(rope_scaling={"rope_type": "llama3", **llama3})
    for program in ("transformers4", "vllm", "sglang", "llama.cpp", "mlx"):
        found = whorl.diff(given, programs=("transformers5", program))
        assert found.equal and found.largest < 1e-2, program
    assert "not compared" in whorl.diff(given, programs=("transformers5", "llama.cpp")).notes[0]


def test_an_attention_factor_that_a_server_drops():
    given = config("qwen2", rope_scaling={**YARN, "factor": 64.0, "attention_factor": 1.0})
    found = whorl.diff(given, programs=("transformers5", "vllm"))
    (group,) = found.groups
    assert not found.equal and group.rotations[0].first_pair is None
    assert group.rotations[0].attention_factor == pytest.approx((1.0, 1.4159), abs=5e-5)
    assert found.claimed_length == (32768, 524288)


def test_a_scaling_that_was_not_saved_is_found():
    """LongLoRA trained with positions divided by a factor that its config.json did not have."""
    base = config(max_position_embeddings=8192, rope_theta=1e4)
    found = whorl.diff(base, base | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert settings(found) == {"scaling": ("none", "linear")}
    (rotation,) = found.groups[0].rotations
    assert rotation.first_pair == 0 and rotation.frequencies == (1.0, 0.5)


def test_a_draft_of_other_size_is_compared_by_kind():
    target, draft = config(num_hidden_layers=8), config(num_hidden_layers=1, rope_theta=1e4)
    found = whorl.diff(target, draft)
    assert settings(found) == {"base": (5e5, 1e4)} and found.groups[0].layers is None
    assert whorl.diff(target, draft | {"rope_theta": 5e5}).equal


def test_layers_of_one_kind_that_rotate_are_not_hidden_by_those_that_do_not():
    def smollm(layers, base):
        return config("smollm3", num_hidden_layers=layers, no_rope_layers=[1, 1, 1, 0] * (layers // 4), rope_theta=base)

    found = whorl.diff(smollm(8, 5e6), smollm(4, 1e4))
    assert [(group.kind, group.equal) for group in found.groups] == [
        ("full_attention", False),
        ("full_attention", True),
    ]
    assert settings(found) == {"base": (5e6, 1e4)}
    assert whorl.diff(smollm(8, 5e6), smollm(4, 5e6)).equal
    assert settings(whorl.diff(smollm(8, 5e6), config(rope_theta=1e4))) == {"base": (5e6, 1e4)}


def test_models_without_rotation_are_compared_once():
    bloom = {"model_type": "bloom", "n_head": 8, "hidden_size": 512}
    assert whorl.diff(bloom | {"n_layer": 4}, bloom | {"n_layer": 2}).equal
    found = whorl.diff(bloom | {"n_layer": 4}, config())
    assert list(settings(found)) == ["alibi", "rotation"] and len(found.groups) == 1


def test_layers_are_compared_one_by_one():
    found = whorl.diff(
        config("cohere2", num_hidden_layers=8, sliding_window=4096), config("cohere", num_hidden_layers=8)
    )
    assert {group.kind: group.layers for group in found.groups} == {
        "sliding_attention": (0, 1, 2, 4, 5, 6),
        "full_attention": (3, 7),
    }
    assert settings(found)["rotation"] == ("none", "rope")
    assert settings(found)["window"][1] == "none"


def test_a_window_as_long_as_the_text_hides_nothing():
    assert whorl.diff(config("mistral", sliding_window=32768), config("mistral", sliding_window=None)).equal
    assert not whorl.diff(config("mistral", sliding_window=4096), config("mistral", sliding_window=None)).equal
    assert whorl.diff(config("mistral", sliding_window=4096), config("mistral", sliding_window=None), length=4096).equal


def test_layouts_and_families_differ():
    found = whorl.diff(config("llama"), config("cohere"))
    assert settings(found) == {"layout": ("half", "interleaved")}
    assert found.groups[0].rotations[0].equal and not found.equal


def test_a_scheme_by_length_is_compared_before_and_after_it_sets_in():
    given = config("phi3", head_dim=96, rope_theta=1e4, original_max_position_embeddings=4096)
    given |= {"rope_scaling": {"type": "longrope", **LISTS}}
    found = whorl.diff(given, programs=("transformers5", "mlx"))
    assert [(one.length, one.equal) for one in found.groups[0].rotations] == [(4096, False), (32768, True)]


def test_a_gguf_file_and_the_config_it_was_made_of(tmp_path):
    keys = {**GGUF_SIZES, "context_length": 131072, "rope.freq_base": 1e6, "rope.scaling.type": "yarn"}
    keys |= {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32768}
    path = write_gguf(tmp_path / "model.gguf", "qwen2", keys)
    given = {"model_type": "qwen2", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}
    given |= {"max_position_embeddings": 131072, "rope_theta": 1e6}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert whorl.diff(given | {"rope_scaling": yarn}, path).equal
    assert not whorl.diff(given, path).equal
    assert whorl.diff(path, given | {"rope_scaling": yarn}, programs=("llama.cpp", "transformers5")).equal
    with pytest.raises(WhorlError, match=r"vllm reads no gguf file"):
        whorl.diff(path, given, programs="vllm")


def test_ext_factor_written_as_factor_is_refused_by_name(tmp_path):
    keys = {**GGUF_SIZES, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    right = write_gguf(tmp_path / "right.gguf", "grok", keys)
    wrong = write_gguf(tmp_path / "wrong.gguf", "grok", keys | {"rope.scaling.yarn_ext_factor": 4.0})
    with pytest.raises(WhorlError, match="extrapolation_factor must be between 0 and 1, got 4"):
        whorl.diff(right, wrong)
    assert [one.rule for one in whorl.bridge.lint(wrong) if one.severity == "error"] == ["ext-factor"]


def test_json_is_plain():
    import json

    found = whorl.diff(config(), config(rope_theta=1e4)).to_dict()
    assert json.loads(json.dumps(found))["groups"][0]["rotations"][0]["first_pair"] == 1
    assert found["equal"] is False and found["groups"][0]["equal"] is False


def test_cosine_differences_by_hand():
    found = dict(cosine_differences(np.array([1.0, 0.1]), np.array([1.0, 0.2]), 20))
    expected = max(abs(np.cos(0.1 * p) - np.cos(0.2 * p)) for p in range(8))
    assert found[1] == 0 and found[8] == pytest.approx(expected) and found[20] > found[8]


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "nothing to differ in"),
        ({"programs": "vllm"}, "nothing to differ in"),
        ({"programs": ("vllm", "sglang", "mlx")}, "one name or two"),
        ({"programs": ("vllm", "sglang"), "length": 0}, "length must be a positive integer"),
        ({"programs": ("vllm", "vlm")}, "unknown program 'vlm'"),
    ],
)
def test_bad_calls(kwargs, said):
    with pytest.raises(WhorlError, match=said):
        whorl.diff(config(), **kwargs)


def test_files_without_a_number_of_layers():
    unknown = {"model_type": "mine", "head_dim": 64, "rope_theta": 1e4}
    assert whorl.diff(unknown, unknown | {"rope_theta": 1e4}, assume="llama").equal
