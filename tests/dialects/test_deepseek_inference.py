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
        ({"compress_ratios": [0, 4]}, "read: this is an inference config of DeepSeek-V4"),
        ({"rope_factor": "40"}, "read: rope_factor must be a finite number, below 2^63, got '40'."),
        ({"n_layers": True}, "read: n_layers must be a positive integer below 2^63, got True."),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(V3 | changes)
