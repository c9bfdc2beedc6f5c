"""Families by their rows: those whose code is not in transformers, and classes that pass over what a file states."""

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import whorl
from whorl import LongRope, Rope, WhorlError
from whorl.bridge.family_table import families
from whorl.bridge.linting import lint
from whorl.dialects.families import ELSEWHERE

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}

# the positional fields of published files, and the rotation that their code computes
ROTATIONS = {
    "internlm2": ({"rope_theta": 1e6, "rope_scaling": None}, Rope(head_dim=64, base=1e6)),
    "internlm3": ({"rope_theta": 5e7, "head_dim": 128}, Rope(head_dim=128, base=5e7)),
    "minicpm": (
        {
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 32768},
        },
        Rope(head_dim=64, scaling=LongRope(**LISTS, original_length=32768, factor=4.0)),
    ),
    "exaone": (
        {"num_layers": 4, "rope_theta": 1e6, "rope_scaling": LLAMA3},
        Rope(head_dim=64, base=1e6, scaling=whorl.Llama3(factor=8.0, original_length=8192)),
    ),
    "bailing_moe": (
        {"head_dim": 128, "rope_theta": 6e5, "partial_rotary_factor": 0.5},
        Rope(head_dim=128, base=6e5, rotary_dim=64),
    ),
    "Yi": ({}, Rope(head_dim=64, base=5e6)),
    "orion": ({}, Rope(head_dim=64)),
    "stablelm_epoch": ({"rope_pct": 0.5, "rope_theta": 1e4}, Rope(head_dim=64, rotary_dim=32)),
    "step3_text": ({"head_dim": 256, "max_position_embedding": 65536}, Rope(head_dim=256, base=5e5)),
    "deepseek_mtp": (
        {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
        Rope(head_dim=64, layout="interleaved_to_half"),
    ),
}


@pytest.mark.parametrize("family", ROTATIONS)
def test_a_family_whose_code_is_elsewhere_is_known(family):
    fields, expected = ROTATIONS[family]
    config = {"model_type": family, **SIZES, **fields}
    assert Rope.from_hf(config).config == expected.config
    assert whorl.read(config).standing == ("alias" if family == "deepseek_mtp" else "known")


def test_every_family_whose_code_is_elsewhere_says_where_it_was_read():
    rows = {row["family"]: row["read in"] for row in families()}
    for name in ELSEWHERE:
        assert rows[name] and not rows[name].startswith("transformers"), name


def test_stablelm_before_its_new_name_turns_a_quarter_where_its_file_is_silent():
    assert Rope.from_hf({"model_type": "stablelm_epoch", **SIZES}).config.rotary_dim == 16


def test_the_length_of_step3_is_read_by_its_own_name():
    assert whorl.read({"model_type": "step3_text", "max_position_embedding": 65536, **SIZES}).claimed_length == 65536


@pytest.mark.parametrize("family", ["bailing_moe", "bailing_moe_v2"])
def test_a_base_that_classes_of_one_name_default_differently_has_to_be_stated(family):
    with pytest.raises(WhorlError, match="rope_theta is missing, and classes of model_type 'bailing_moe"):
        whorl.read({"model_type": family, **SIZES})


def test_siglip2_has_a_learned_table_for_text_and_a_grid_for_images():
    whole = {"model_type": "siglip2", "text_config": {"model_type": "siglip2_text_model"}}
    (text,) = whorl.read(whole).reading.layers
    assert text.encodings[0].name == "learned" and text.encodings[0].value("length") == 64
    (grid,) = whorl.read({"model_type": "siglip2_vision_model"}).unsupported
    assert grid.startswith("a learned grid of 256 patches (num_patches), resized")
    assert transformers.Siglip2VisionConfig().num_patches == 256


# --- classes that take a base of their own

BASE = 12345.0


def bases(config):
    """The base of every kind of layers, as it is read."""
    layers = whorl.read(config).reading.layers
    return {one.kind: one.encodings[0].value("base") for one in layers if one.encodings}


def class_bases(family):
    """The base of every kind of layers, as the class has it where the file states one beside no rope dict."""
    rope = CONFIG_MAPPING[family](rope_theta=BASE).rope_parameters
    return {kind: one["rope_theta"] for kind, one in rope.items() if isinstance(one, dict)} or rope["rope_theta"]


def found(config):
    return [one.what for one in lint(config) if one.rule == "name-not-read"]


@pytest.mark.parametrize("family", ["cosmos3_edge_text", "muse_spark_text", "nemotron3_5_transcribe_asr_audio"])
def test_a_base_beside_no_rope_dict_does_nothing_where_the_class_has_a_dict_of_its_own(family):
    config = {"model_type": family, "rope_theta": BASE}
    assert set(bases(config).values()) == {class_bases(family)} and class_bases(family) != BASE
    assert [one for one in found(config) if one.startswith("rope_theta=12345 does nothing")]
    assert not found({"model_type": family, "rope_theta": class_bases(family)})


@pytest.mark.parametrize("family", ["olmo3", "neomme", "mimo_v2_flash"])
def test_a_base_goes_to_the_kinds_of_layers_that_the_class_gives_it_to(family):
    assert bases({"model_type": family, "rope_theta": BASE}) == class_bases(family)


def test_what_becomes_of_a_base_is_said():
    (said,) = found({"model_type": "olmo3", "rope_theta": BASE})
    assert "counts in layers of kind 'full_attention' alone" in said and "the base 500000" in said
    assert not found({"model_type": "olmo3", "rope_theta": 500000})
    (said,) = found({"model_type": "mimo_v2_flash", "rope_theta": BASE})
    assert said == "rope_theta=12345 does nothing: mimo_v2_flash reads rope_parameters"
    assert not found({"model_type": "neomme", "rope_theta": BASE})


# --- MiMo-V2

MIMO = {"model_type": "mimo_v2_flash", "num_hidden_layers": 4, "rope_theta": 4e6, "swa_rope_theta": 2e4}
MIMO |= {"hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window_size": 128, "partial_rotary_factor": 0.334}


def test_a_pattern_of_layers_is_read_as_the_code_of_mimos_checkpoints_reads_it():
    full, sliding = whorl.read(MIMO).reading.layers
    assert (full.kind, full.indices, sliding.kind, sliding.indices) == (
        *("full_attention", (0, 3)),
        *("sliding_attention", (1, 2)),
    )
    assert bases(MIMO) == {"full_attention": 4e6, "sliding_attention": 2e4}
    assert sliding.encodings[0].value("rotary_dim") == 64
    assert sliding.encodings[1].value("size") == transformers.MiMoV2FlashConfig(sliding_window_size=128).sliding_window


@pytest.mark.parametrize("pattern", [[0, 1], [0, 1, 2, 0], "0110", [0, 1, None, True]])
def test_a_pattern_that_is_none_is_refused(pattern):
    with pytest.raises(WhorlError, match=r"hybrid_layer_pattern must be a list of|must be a list of numbers"):
        whorl.read(MIMO | {"hybrid_layer_pattern": pattern})
