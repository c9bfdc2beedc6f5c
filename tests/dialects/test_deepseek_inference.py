"""DeepSeek's inference configs, against plain loops over the formulas of its reference code."""

import math
import re

import pytest

import whorl
from whorl import Rope, WhorlError, Yarn

V3 = {
    **{"vocab_size": 129280, "dim": 7168, "inter_dim": 18432, "moe_inter_dim": 2048, "n_layers": 61, "n_heads": 128},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "dtype": "fp8",
}


def reference(dim=64, base=10000.0, factor=40.0, original=4096, fast=32, slow=1):
    """The frequencies of precompute_freqs_cis, pair by pair."""

    def pair_of(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_of(fast)), 0), min(math.ceil(pair_of(slow)), dim - 1)
    found = []
    for i in range(dim // 2):
        plain = base ** (-2 * i / dim)
        keep = 1 - min(max((i - low) / (high - low), 0), 1)
        found.append(plain / factor * (1 - keep) + plain * keep)
    return found


@pytest.mark.parametrize(("mscale", "name"), [(1.0, "v3"), (0.707, "v2-lite")])
def test_the_defaults_of_the_code_are_taken(mscale, name):
    config = V3 if name == "v3" else V3 | {"mscale": mscale}
    (group,) = whorl.read(config).groups
    rope = group.encoding
    assert rope.frequencies().tolist() == pytest.approx(reference(), rel=1e-12)
    assert rope.attention_factor() == 1
    assert rope.softmax_factor() == pytest.approx((0.1 * mscale * math.log(40) + 1) ** 2, rel=1e-15)
    assert (rope.config.layout, rope.config.head_dim, group.indices) == ("interleaved", 64, tuple(range(61)))


def test_what_the_file_states_wins():
    stated = {"rope_factor": 4, "original_seq_len": 8192, "rope_theta": 5e4, "beta_fast": 16, "max_seq_len": 32768}
    model = whorl.read(V3 | stated)
    assert model.groups[0].encoding.frequencies().tolist() == pytest.approx(
        reference(base=5e4, factor=4, original=8192, fast=16), rel=1e-12
    )
    assert (model.trained_length, model.claimed_length) == (8192, 32768)
    settings = model.groups[0].layers.encodings[0].scaling.settings
    assert (settings["factor"].source, settings["beta_slow"].source) == ("file", "class default")


def test_what_fits_the_original_length_is_not_stretched():
    (group,) = whorl.read(V3 | {"max_seq_len": 4096}).groups
    assert group.encoding.config == Rope(head_dim=64, layout="interleaved").config


def test_the_dialect_is_named():
    model = whorl.read(V3)
    assert (model.dialect, model.family, model.standing) == ("deepseek inference config", "deepseek_v3", "known")
    scaling = Yarn(factor=40.0, original_length=4096, attention_factor=1.0, mscale_all_dim=1.0, scale_softmax=True)
    assert model.plan[60].config == Rope(head_dim=64, layout="interleaved", scaling=scaling).config


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"compress_ratios": [0, 4]}, "read: compress_ratios [0, 4] is for 2 layers, the model has 61. Name the ratio"),
        ({"compress_ratios": [0, 2] * 31}, "read: compress_ratios must be a list of 0, 4 or 128, one per layer, got"),
        ({"compress_ratios": 4}, "read: compress_ratios must be a list of 0, 4 or 128, one per layer, got 4."),
        ({"rope_factor": "40"}, "read: rope_factor must be a finite number, below 2^63, got '40'."),
        ({"n_layers": True}, "read: n_layers must be a positive integer below 2^63, got True."),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(V3 | changes)


# --- DeepSeek-V4

# as the public inference config of DeepSeek-V4-Flash has it, with one ratio more for the layer that predicts ahead
V4_RATIOS = [0, 0, *[4, 128] * 20, 4, 0]
V4 = {
    **{"vocab_size": 129280, "dim": 4096, "moe_inter_dim": 2048, "n_layers": 43, "n_heads": 64, "n_mtp_layers": 1},
    **{"q_lora_rank": 1024, "head_dim": 512, "rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024},
    **{"window_size": 128, "compress_ratios": V4_RATIOS, "compress_rope_theta": 160000, "rope_theta": 10000},
    **{"original_seq_len": 65536, "rope_factor": 16, "beta_fast": 32, "beta_slow": 1, "hc_mult": 4},
}


def test_v4_has_two_bases_by_the_ratio_of_a_layer():
    model = whorl.read(V4)
    assert (model.dialect, model.family, model.trained_length) == ("deepseek inference config", "deepseek_v4", 65536)
    sizes = {"head_dim": 512, "rotary_dim": 64, "layout": "interleaved", "slice": "trailing"}
    found = {group.kind: group for group in model.groups}
    assert found["sliding_attention"].indices == (0, 1)
    assert found["compressed_sparse_attention"].indices == tuple(range(2, 43, 2))
    assert found["heavily_compressed_attention"].indices == tuple(range(3, 43, 2))
    rope, window = found["sliding_attention"].encoding.encodings
    assert rope.config == Rope(**sizes).config and window.config.size == 128
    for kind in ("compressed_sparse_attention", "heavily_compressed_attention"):
        rope = found[kind].encoding
        expected = reference(base=160000.0, factor=16, original=65536)
        assert rope.frequencies().tolist() == pytest.approx(expected, rel=1e-12)
        assert (rope.attention_factor(), rope.softmax_factor()) == (1, 1)
        assert (rope.config.layout, rope.config.slice, rope.config.rotary_dim) == ("interleaved", "trailing", 64)
        assert any("values turned" in what for what in found[kind].unsupported)


def test_v4_is_read_as_the_models_own_config_is():
    """The config.json that stands beside the inference config, in transformers' names."""
    yarn = {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}
    names = {"num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 512}
    names |= {"qk_rope_head_dim": 64, "sliding_window": 128, "max_position_embeddings": 1048576, "rope_theta": 10000}
    names |= {"compress_rope_theta": 160000, "compress_ratios": V4_RATIOS, "rope_scaling": yarn}
    own, theirs = whorl.read({"model_type": "deepseek_v4", **names}), whorl.read(V4)
    assert [(one.kind, one.indices) for one in own.groups] == [(one.kind, one.indices) for one in theirs.groups]
    assert [one.encoding.config for one in own.groups] == [one.encoding.config for one in theirs.groups]
    assert [one.unsupported for one in own.groups] == [one.unsupported for one in theirs.groups]


def test_v4_without_an_original_length_is_not_stretched_and_has_the_defaults_of_its_code():
    bare = {key: V4[key] for key in ("vocab_size", "dim", "n_heads", "hc_mult")} | {"n_layers": 7}
    model = whorl.read(bare)
    assert [group.indices for group in model.groups] == [(0, 1), (2, 4, 6), (3, 5)]
    rope = model.groups[1].encoding
    assert (
        rope.config == Rope(head_dim=512, rotary_dim=64, layout="interleaved", slice="trailing", base=40_000.0).config
    )
    assert (model.trained_length, model.claimed_length) == (None, 4096)


@pytest.mark.parametrize("config", [V3, V4], ids=["v3", "v4"])
def test_the_short_form_names_whorl_read(config):
    said = "Rope.from_hf: config must be one of transformers, got deepseek inference config. Pass it to whorl.read."
    with pytest.raises(WhorlError, match=re.escape(said)):
        Rope.from_hf(config)
