"""Megatron-LM arguments, against what its rotary embeddings compute."""

import math
import re

import pytest

import whorl
from whorl import Combined, Learned, Linear, Llama3, MRope, NoPE, Rope, WhorlError, Window, Yarn

SIZES = {"num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "tensor_model_parallel_size": 2}
ROPE = SIZES | {"position_embedding_type": "rope", "max_position_embeddings": 8192, "seq_length": 4096}
LATENT = SIZES | {"multi_latent_attention": True, "rotary_scaling_factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}


def rope(**settings):
    return Rope(**{"head_dim": 128} | settings)


def g(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1


CASES = {
    "plain": (ROPE, rope()),
    "by its old name": (SIZES | {"use_rotary_position_embeddings": True}, rope()),
    "base, share and pairs": (
        ROPE | {"rotary_base": 500000, "rotary_percent": 0.5, "rotary_interleaved": True, "kv_channels": 64},
        rope(head_dim=64, rotary_dim=32, base=5e5, layout="interleaved"),
    ),
    "names as on the command line": (
        {f"--{name.replace('_', '-')}": value for name, value in ROPE.items()} | {"--rotary-base": 1000000},
        rope(base=1e6),
    ),
    "positions divided": (ROPE | {"rotary_seq_len_interpolation_factor": 4}, rope(scaling=Linear(factor=4.0))),
    "llama 3": (
        ROPE | {"use_rope_scaling": True, "rotary_base": 500000, "rope_scaling_factor": 32.0},
        rope(base=5e5, scaling=Llama3(factor=32.0, original_length=8192)),
    ),
    "llama 3 by default": (ROPE | {"use_rope_scaling": True}, rope(scaling=Llama3(factor=8.0, original_length=8192))),
    "a factor that nothing switches on": (ROPE | {"rope_scaling_factor": 8.0}, rope()),
    "gpt-oss": (
        SIZES
        | {"position_embedding_type": "yarn", "rotary_scaling_factor": 32.0, "rotary_base": 150000, "kv_channels": 64}
        | {"yarn_correction_range_round_to_int": False},
        rope(
            head_dim=64,
            base=1.5e5,
            scaling=Yarn(factor=32.0, original_length=4096, truncate=False, attention_factor=g(32)),
        ),
    ),
    "deepseek v3": (
        LATENT,
        rope(
            head_dim=64,
            layout="interleaved_to_half",
            scaling=Yarn(
                factor=40.0, original_length=4096, attention_factor=1.0, mscale_all_dim=1.0, scale_softmax=True
            ),
        ),
    ),
    "latent attention without mscale_all_dim": (
        LATENT | {"mscale_all_dim": 0.0},
        rope(
            head_dim=64,
            layout="interleaved_to_half",
            scaling=Yarn(factor=40.0, original_length=4096, attention_factor=g(40)),
        ),
    ),
    "latent attention without yarn": (
        SIZES | {"multi_latent_attention": True, "rope_type": "rope", "rotary_scaling_factor": 1.0},
        rope(head_dim=64, layout="interleaved_to_half"),
    ),
    "qwen2-vl": (
        SIZES | {"position_embedding_type": "mrope", "mrope_section": [16, 24, 24]},
        MRope(head_dim=128, sections=(16, 24, 24)),
    ),
    "a learned table": (
        SIZES | {"max_position_embeddings": 2048, "position_embedding_type": "learned_absolute"},
        Learned(width=4096, length=2048),
    ),
    "none": (SIZES | {"position_embedding_type": "none"}, NoPE()),
    "a window in every layer": (ROPE | {"window_size": [127, 0]}, Combined(rope(), Window(size=128))),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_are_read_as_the_code_does(name):
    config, expected = CASES[name]
    model = whorl.read(config)
    (group,) = model.groups
    assert group.encoding.config.to_dict() == expected.config.to_dict()
    assert (model.dialect, model.standing, group.indices) == ("megatron arguments", "known", (0, 1, 2, 3))


def test_layers_that_differ():
    found = {
        group.indices: group.encoding.config.to_dict()
        for group in whorl.read(ROPE | {"no_rope_freq": 4, "window_size": [127, 0], "window_attn_skip_freq": 2}).groups
    }
    assert found == {
        (0, 2): Combined(rope(), Window(size=128)).config.to_dict(),
        (1,): rope().config.to_dict(),
        (3,): NoPE().config.to_dict(),
    }
    listed = whorl.read(ROPE | {"no_rope_freq": [1, 0, 0, 0]}).groups
    assert [(group.indices, type(group.encoding).__name__) for group in listed] == [((0,), "NoPE"), ((1, 2, 3), "Rope")]


def test_lengths_and_notes():
    model = whorl.read(ROPE)
    assert (model.trained_length, model.claimed_length) == (4096, 8192)
    assert whorl.read(ROPE | {"use_rope_scaling": True}).trained_length == 8192
    (note,) = whorl.read(SIZES | {"multi_latent_attention": True}).reading.notes
    assert note == "rotary_scaling_factor is absent: the arguments take 1, MLATransformerConfig by itself 40"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position_embedding_type": "relative"}, "T5's buckets (position_embedding_type relative)"),
        ({"use_rope_scaling": True, "rotary_seq_len_interpolation_factor": 2}, "positions divided by"),
        ({"window_size": [127, 127]}, "a window that sees 127 keys after the query"),
        (
            {"multi_latent_attention": True, "rope_type": "rope", "rotary_scaling_factor": 40, "mscale_all_dim": 1.0},
            "the softmax scale multiplied by mscale_all_dim without YaRN",
        ),
    ],
)
def test_what_cannot_be_expressed_is_named(changes, said):
    (found,) = whorl.read(ROPE | changes).unsupported
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"position_embedding_type": "alibi"}, "unknown position_embedding_type of read: 'alibi'"),
        ({"no_rope_freq": "([0]*3+[1])*1"}, "read: no_rope_freq must be a number or a list, got '([0]*3+[1])*1'."),
        ({"no_rope_freq": [0, 1]}, "read: no_rope_freq has 2 entries for 4 layers. Name each."),
        ({"window_size": 127}, "read: window_size must be two numbers, keys before and after, got 127."),
        ({"position_embedding_type": "mrope"}, "read: mrope_section is missing"),
        ({"multi_latent_attention": True, "rope_type": "ntk"}, "unknown rope_type of read: 'ntk'"),
        ({"multi_latent_attention": True, "rotary_scaling_factor": 9, "mscale": -9}, "read: mscale and mscale_all_dim"),
        ({"rotary_base": None, "hidden_size": None}, "read: hidden_size is missing"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(ROPE | changes)
