"""Kinds of layers, against what the config classes of transformers make of the same fields."""

import pytest
import transformers

import whorl
from whorl import Rope, WhorlError

SIZES = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 8}
LLAMA4 = {**SIZES, "head_dim": 128, "rope_theta": 500000.0}
V4 = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 4, "head_dim": 128, "qk_rope_head_dim": 64}


def kinds(config):
    """The kind of every layer, and whether it rotates."""
    model = whorl.read(config)
    found = {}
    for group in model.groups:
        turns = any(isinstance(one, Rope) for one in group.encoding.modules())
        found |= dict.fromkeys(group.indices or (), (group.kind, turns))
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("ratios", [[0, 4, 128, 4], [0, 4, 128, 4, 0], [128, 128, 4, 128, 0, 0, 0]])
def test_ratios_past_the_last_layer_are_not_layers(ratios):
    made = transformers.DeepseekV4Config(**V4, compress_ratios=list(ratios)).layer_types
    model = whorl.read({"model_type": "deepseek_v4", **V4, "compress_ratios": ratios})
    assert sorted(i for group in model.groups for i in group.indices or ()) == [0, 1, 2, 3]
    assert [kind for kind, _ in kinds({"model_type": "deepseek_v4", **V4, "compress_ratios": ratios})] == made


def test_ratios_for_fewer_layers_than_there_are_are_refused():
    with pytest.raises(WhorlError, match="compress_ratios names 2 layers, the model has 4"):
        whorl.read({"model_type": "deepseek_v4", **V4, "compress_ratios": [0, 4]})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"no_rope_layer_interval": 2},
        {"no_rope_layers": [0, 1, 1, 0, 1, 1, 1, 0]},
        {"no_rope_layers": []},
        {"layer_types": ["full_attention"] * 8},
        {"layer_types": ["full_attention"] * 8, "no_rope_layers": [1] * 8},
        {"layer_types": ["chunked_attention"] * 8},
    ],
)
def test_llama_4_rotates_where_its_list_says_and_chunks_there(fields):
    made = transformers.Llama4TextConfig(**LLAMA4, **fields)
    expected = list(zip(made.layer_types, map(bool, made.no_rope_layers), strict=True))
    assert kinds({"model_type": "llama4_text", **LLAMA4, **fields}) == expected


@pytest.mark.parametrize("window", [{}, {"use_sliding_window": True, "sliding_window": 64}])
@pytest.mark.parametrize("fields", [{}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0] * 4}])
def test_smollm3_has_its_window_where_it_does_not_rotate(fields, window):
    made = transformers.SmolLM3Config(**SIZES, **fields, **window)
    expected = list(zip(made.layer_types, map(bool, made.no_rope_layers), strict=True))
    assert kinds({"model_type": "smollm3", **SIZES, **fields, **window}) == expected


def test_exaone_4_without_a_window_has_full_attention_that_rotates_everywhere():
    config = {"model_type": "exaone4", **SIZES, "sliding_window": None, "sliding_window_pattern": None}
    assert kinds(config) == [("full_attention", True)] * 8


def test_zamba_2_has_heads_of_twice_the_width_in_its_hybrid_layers():
    made = transformers.Zamba2Config(use_mem_rope=True)
    groups = {group.kind: group for group in whorl.read({"model_type": "zamba2", "use_mem_rope": True}).groups}
    rope = groups["hybrid"].encoding
    assert rope.config.head_dim == made.attention_head_dim == 2 * made.hidden_size // made.num_attention_heads
    assert list(groups["hybrid"].indices or ()) == made.hybrid_layer_ids
    assert not groups["linear_attention"].layers.attention
    with pytest.raises(WhorlError, match="layers_block_type is missing for 8 layers"):
        whorl.read({"model_type": "zamba2", "use_mem_rope": True, **SIZES})


# --- the short form


def test_layers_of_llama_4_that_do_not_rotate_are_said_to_be_so():
    for config in ({"model_type": "llama4_text", **LLAMA4}, {"model_type": "llama4", "text_config": LLAMA4}):
        said = r"layers of type 'full_attention' of model_type 'llama4_text' do not rotate\. whorl\.read gives"
        with pytest.raises(WhorlError, match=said):
            Rope.from_hf(config, "full_attention")
        assert Rope.from_hf(config, "chunked_attention").config.layout == "interleaved"


def test_layers_of_llama_4_that_rotate_are_given_whatever_they_are_called():
    config = {"model_type": "llama4_text", **LLAMA4, "layer_types": ["full_attention"] * 8}
    rope = Rope.from_hf(config | {"no_rope_layers": [1] * 8}, "full_attention")
    assert rope.config == Rope(head_dim=128, base=500000.0, layout="interleaved").config
    with pytest.raises(WhorlError, match=r"some layers of type 'full_attention' rotate and some do not\. whorl\.read"):
        Rope.from_hf(config, "full_attention")


def test_a_kind_that_the_class_gives_a_silent_file_can_be_asked_for():
    assert Rope.from_hf({"model_type": "qwen2", **SIZES}, "full_attention").config.head_dim == 128
    with pytest.raises(WhorlError, match="do not rotate"):
        Rope.from_hf({"model_type": "cohere2", **SIZES, "sliding_window": 4096}, "full_attention")
