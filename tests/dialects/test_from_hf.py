"""Rope.from_hf: what it reads, by which priority, and what it says where it cannot read."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch

from hf_configs import DEEPSEEK_YARN, GEMMA3_4B, LISTS, LLAMA, NESTED, OPEN, RELEASED, YARN
from optional import ASKED_FOR, DEVELOPED_ON, optional
from whorl import (
    DynamicNtk,
    LeakyReRope,
    Linear,
    LongRope,
    MRope,
    Proportional,
    ReRope,
    Rope,
    SelfExtend,
    WhorlError,
    Yarn,
)
from whorl.config import config as declared
from whorl.dialects.beside import IncompleteRotation
from whorl.dialects.families import FAMILIES, UnknownFamily, family_name
from whorl.dialects.transformers import read_rotation
from whorl.encodings.rope import RopeConfig
from whorl.encodings.rotary import RotaryConfig

# for configs without model_type, or with one that is in no table: read as Llama, which is said
ALONE = pytest.mark.filterwarnings("ignore::whorl.dialects.beside.IncompleteRotation")
UNKNOWN = pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")


@pytest.mark.parametrize("name", RELEASED)
def test_released_config_is_read(name):
    config, expected = RELEASED[name]
    before = copy.deepcopy(config)
    rope = Rope.from_hf(config)
    assert type(rope) is type(expected)
    assert rope.config == expected.config
    assert config == before


@pytest.mark.parametrize("name", RELEASED)
def test_what_is_read_is_plain(name):
    config, expected = RELEASED[name]
    rotation = json.loads(json.dumps(read_rotation(config)))
    scaling = rotation.pop("scaling")
    for key, value in rotation.items():
        assert value is None or expected.config.to_dict().get(key, getattr(expected.config, key)) == value
    assert (scaling is None) == (expected.config.scaling is None)
    assert scaling is None or scaling["name"] == expected.config.scaling.name


def test_version_4_gemma3_scales_its_full_layers_only():
    full, sliding = (Rope.from_hf(GEMMA3_4B, f"{kind}_attention").config for kind in ("full", "sliding"))
    assert full == Rope(head_dim=256, base=1000000.0, scaling=Linear(factor=8.0)).config
    assert sliding == Rope(head_dim=256).config


def test_version_4_modernbert_has_a_base_per_layer_type():
    config = {"model_type": "modernbert", "head_dim": 64, "global_rope_theta": 80000.0, "local_rope_theta": 20000.0}
    assert Rope.from_hf(config, "full_attention").config.base == 80000.0
    assert Rope.from_hf(config, "sliding_attention").config.base == 20000.0


def test_gemma4_full_layers_have_a_head_of_their_own_and_still_pairs():
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    }
    config = {"model_type": "gemma4_text", "head_dim": 256, "rope_parameters": parameters}
    expected = Rope(head_dim=512, base=1000000.0, scaling=Proportional(fraction=0.25)).config
    assert Rope.from_hf(config, "sliding_attention").config == Rope(head_dim=256).config
    assert Rope.from_hf(config, "full_attention").config == expected
    assert Rope.from_hf(config | {"global_head_dim": 1024}, "full_attention").config.head_dim == 1024
    layers = {"layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {"01": {"head_dim": 128}}}
    assert Rope.from_hf(config | layers, "full_attention").config.head_dim == 128
    assert Rope.from_hf(config | layers, "sliding_attention").config.head_dim == 256


def test_deepseek_v4_turns_the_end_of_the_head_with_two_bases():
    yarn = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    legacy = {"model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64, "rope_theta": 10000.0}
    legacy |= {"compress_rope_theta": 160000.0, "max_position_embeddings": 1048576, "rope_scaling": yarn}
    given = copy.deepcopy(legacy)  # transformers writes into the dict it is given
    del given["model_type"]
    DeepseekV4Config = optional("transformers:DeepseekV4Config")
    saved = DeepseekV4Config(**given).to_dict()
    scaling = Yarn(factor=16, original_length=65536, attention_factor=1.0)
    sizes = {"head_dim": 512, "rotary_dim": 64, "slice": "trailing", "layout": "interleaved"}
    for config in (legacy, saved):
        with pytest.warns(IncompleteRotation, match="values turned as the keys"):
            assert Rope.from_hf(config, "main").config == Rope(**sizes).config
        with pytest.warns(IncompleteRotation, match="values turned as the keys"):
            assert Rope.from_hf(config, "compress").config == Rope(**sizes, base=160000.0, scaling=scaling).config


# --- names and priorities


@UNKNOWN
@pytest.mark.parametrize(
    "sizes",
    [
        {"head_dim": 64},
        {"head_dim": 64.0},
        {"head_dim": 64, "hidden_size": 999, "num_attention_heads": 7},
        {"head_dim": None, "hidden_size": 512, "num_attention_heads": 8},
        {"n_embd": 512, "n_head": 8},
        {"d_model": 512, "num_heads": 8},
        {"d_model": 512, "n_heads": 8},
        {"kv_channels": 64, "hidden_size": 512, "num_attention_heads": 4},
        {"attention_head_size": 64},
        {"attention_head_dim": 64, "kv_channels": 32},
    ],
    ids=str,
)
def test_head_dim_has_many_names(sizes):
    assert Rope.from_hf({"rope_theta": 10000.0, **sizes}).config == Rope(head_dim=64).config


@pytest.mark.parametrize("name", ["partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", "rope_pct"])
def test_share_of_the_head_has_many_names(name):
    assert Rope.from_hf(OPEN | {name: 0.5}).config == Rope(head_dim=64, rotary_dim=32).config


@UNKNOWN
@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"])
def test_length_has_many_names(name):
    config = {"head_dim": 64, name: 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert Rope.from_hf(config).config.scaling == DynamicNtk(factor=2.0, original_length=2048)


def test_share_is_cut_to_whole_dimensions_as_in_transformers():
    config = {"model_type": "mimo_v2_flash", "head_dim": 192, "partial_rotary_factor": 0.334}
    assert Rope.from_hf(config, "full_attention").config.rotary_dim == 64


def test_rope_dict_goes_before_the_fields_beside_it():
    parameters = {"rope_theta": 500.0, "partial_rotary_factor": 0.25}
    config = OPEN | {"rope_theta": 600.0, "partial_rotary_factor": 0.5, "rope_parameters": parameters}
    assert Rope.from_hf(config).config == Rope(head_dim=64, base=500.0, rotary_dim=16).config


def test_rope_parameters_and_an_equal_rope_scaling_are_one():
    assert Rope.from_hf(LLAMA | {"rope_parameters": dict(YARN), "rope_scaling": dict(YARN)}).config.scaling is not None


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3"])
def test_original_length_beside_a_flat_dict_wins_and_max_position_embeddings_stands_in(kind):
    parameters = {
        "yarn": {"factor": 2.0},
        "longrope": {"short_factor": [1.0] * 32, "long_factor": [1.0] * 32, "factor": 2.0},
        "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }[kind] | {"rope_type": kind}
    inside = parameters | {"original_max_position_embeddings": 1024}

    def original(config, layer_type=None):
        return Rope.from_hf(config, layer_type).config.scaling.original_length

    assert original(LLAMA | {"rope_parameters": parameters}) == 4096
    assert original(LLAMA | {"rope_parameters": inside}) == 1024
    assert original(LLAMA | {"rope_parameters": inside, "original_max_position_embeddings": 512}) == 512
    nested = LLAMA | {"rope_parameters": {"full_attention": inside}, "original_max_position_embeddings": 512}
    assert original(nested, "full_attention") == 1024


def test_yarn_without_a_factor_takes_the_ratio_of_the_lengths():
    config = LLAMA | {"rope_parameters": YARN | {"factor": None}}
    assert Rope.from_hf(config).config.scaling == Yarn(factor=4.0, original_length=1024)


def test_yarn_reads_zero_betas_as_absent():
    config = LLAMA | {"rope_parameters": YARN | {"beta_fast": 0, "beta_slow": 0}}
    assert Rope.from_hf(config).config.scaling == Yarn(factor=4.0, original_length=1024)


@pytest.mark.parametrize(
    ("keys", "llama", "deepseek"),
    [
        ({}, {}, {}),
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.7}, {"scale_softmax": True}),
        ({"mscale": 0.7}, {}, {}),
        ({"mscale": 0.7, "mscale_all_dim": 0}, {}, {}),
        (
            {"mscale_all_dim": 0.7},
            {},
            {"attention_factor": 1.138629436111989, "mscale_all_dim": 0.7, "scale_softmax": True},
        ),
        ({"attention_factor": 1.5, "mscale": 0.7}, {"attention_factor": 1.5}, {}),
        (
            {"attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.7},
            {"attention_factor": 1.5},
            {"mscale_all_dim": 0.7, "scale_softmax": True},
        ),
    ],
    ids=str,
)
def test_temperature_keys_act_where_transformers_heeds_them(keys, llama, deepseek):
    yarn = {"factor": 4.0, "original_length": 1024}
    plain = Rope.from_hf(LLAMA | {"rope_parameters": YARN | keys}).config.scaling
    assert plain == Yarn(**yarn, **llama)
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_parameters": YARN | keys}
    assert Rope.from_hf(latent).config.scaling == Yarn(**yarn, **llama | deepseek)


def test_longrope_attention_factor_goes_before_factor():
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    parameters = {"rope_type": "longrope", **lists, "factor": 4.0, "attention_factor": 1.25}
    scaling = Rope.from_hf(LLAMA | {"rope_parameters": parameters}).config.scaling
    assert scaling == LongRope(**lists, original_length=4096, attention_factor=1.25)


@UNKNOWN
def test_mrope_of_an_unknown_family_is_chunked_unless_it_says_interleaved():
    config = {"model_type": "new_vl", "head_dim": 128, "rope_parameters": {"mrope_section": [24, 20, 20]}}
    assert Rope.from_hf(config).config.arrangement == "chunked"
    config["rope_parameters"]["mrope_interleaved"] = True
    assert Rope.from_hf(config).config.arrangement == "interleaved"


def test_a_family_that_is_in_no_table_is_read_as_llama_with_a_warning():
    for config, said in (
        ({"head_dim": 64, "rope_theta": 5.0}, "Rope.from_hf: a config without model_type is of an unknown family"),
        ({"model_type": "new", "head_dim": 64, "rope_theta": 5.0}, "model_type 'new' is of an unknown family, read by"),
    ):
        with pytest.warns(UnknownFamily, match=re.escape(said)):
            assert Rope.from_hf(config).config == Rope(head_dim=64, base=5.0).config


def test_mrope_keeps_its_scaling():
    parameters = YARN | {"mrope_section": [16, 24, 24]}
    config = {"model_type": "qwen2_5_vl", "head_dim": 128, "rope_theta": 1e6, "rope_parameters": parameters}
    assert Rope.from_hf(config).config.scaling == Yarn(factor=4.0, original_length=1024)


def test_rope_interleave_chooses_between_the_layouts_of_deepseek_v3():
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64}
    assert Rope.from_hf(config).config.layout == "interleaved_to_half"
    assert Rope.from_hf(config | {"rope_interleave": False}).config.layout == "half"


# --- layer types


def test_nested_parameters_are_read_by_layer_type():
    full, sliding = (Rope.from_hf(NESTED, f"{kind}_attention").config for kind in ("full", "sliding"))
    assert full == Rope(head_dim=64, base=1000000.0, scaling=Linear(factor=2.0)).config
    assert sliding == Rope(head_dim=64, base=20000.0).config


def test_flat_parameters_serve_every_layer_type_of_the_config():
    config = OPEN | {"layer_types": ["full_attention", "sliding_attention"], "rope_theta": 20000.0}
    assert Rope.from_hf(config, "sliding_attention").config == Rope.from_hf(config).config


def test_left_over_type_and_base_beside_layer_types_are_passed_over():
    """As Zaya and Cohere Compass have them; transformers drops them too."""
    parameters = NESTED["rope_parameters"] | {"rope_type": "default", "rope_theta": 5.0}
    assert Rope.from_hf(NESTED | {"rope_parameters": parameters}, "sliding_attention").config.base == 20000.0


def test_lists_with_one_entry_per_layer_are_read_by_layer_type():
    layers = {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    by_layer = OPEN | layers | {"layer_rope_theta": [0, 20000.0, 0]}
    assert Rope.from_hf(by_layer, "sliding_attention").config.base == 20000.0
    assert Rope.from_hf(by_layer).config.base == 20000.0
    shares = {"rope_theta": [1000.0, 2000.0, 1000.0], "partial_rotary_factors": [0.5, 1.0, 0.5]}
    step = Rope.from_hf(OPEN | layers | shares, "full_attention").config
    assert (step.base, step.rotary_dim) == (1000.0, 32)


def test_exaone4_without_a_window_rotates_its_full_layers():
    config = {"model_type": "exaone4", "head_dim": 64, "layer_types": ["full_attention"], "sliding_window": None}
    assert Rope.from_hf(config, "full_attention").config == Rope(head_dim=64).config


# --- the table of families, against the classes of transformers

SIZES = {  # where the defaults of a class make no valid model
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "glm4v_text": {"head_dim": 64},
    "glm_image_text": {"head_dim": 64},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_talker_text": {"head_dim": 128},
    "qwen4_exp_text": {"head_dim": 64},
}
WITHOUT_RULE = r"cannot be read|values of its own|has no position|does not rotate|hidden_size|position_embedding_type"


def known_configs():
    """(model_type, config dict) of every class that has a row in the table and a rope dict."""
    CONFIG_MAPPING = optional("transformers:CONFIG_MAPPING", only=ASKED_FOR)
    for model_type in sorted(CONFIG_MAPPING):
        if family_name({"model_type": model_type}) in FAMILIES and model_type != "nougat":
            config = CONFIG_MAPPING[model_type](**SIZES.get(model_type, {})).to_dict()
            if config.get("rope_parameters") and "text_config" not in config:
                yield model_type, config


@ALONE
def test_a_config_without_rotary_fields_means_what_its_class_fills_in():
    """The bases and shares of the table: transformers writes them into the full config."""
    compared = 0
    for model_type, full in known_configs():
        dropped = ("rope_parameters", "rope_theta", "partial_rotary_factor", "compress_rope_theta", "layer_rope_theta")
        bare = {key: value for key, value in full.items() if key not in dropped}
        for layer_type in [key for key, value in full["rope_parameters"].items() if isinstance(value, dict)] or [None]:
            try:
                rope = Rope.from_hf(bare, layer_type)
            except WhorlError as error:
                assert re.search(WITHOUT_RULE, str(error)), (model_type, str(error))
                continue
            assert rope.config == Rope.from_hf(full, layer_type).config, model_type
            compared += 1
    assert compared >= 80


def test_softmax_factor_belongs_to_the_families_whose_attention_scales_by_it():
    models = Path(optional("transformers", only=DEVELOPED_ON).__file__).parent / "models"
    scaled = {
        path.parent.name for path in models.glob("*/modeling_*.py") if "= yarn_apply_mscale(config" in path.read_text()
    }
    assert scaled == {name for name, family in FAMILIES.items() if family.scale_softmax}


# --- where transformers does not do what the config says, or the comparison needs more than a config


def test_minimax_m3_rotary_dim_counts_although_transformers_passes_over_it():
    config = optional("transformers:MiniMaxM3VLTextConfig")()
    assert (config.rotary_dim, config.head_dim) == (64, 128)
    assert "partial_rotary_factor" not in config.rope_parameters
    assert Rope.from_hf(config.to_dict()).config.rotary_dim == 64


def test_phimoe_switches_to_its_long_list_although_transformers_keeps_the_short_one():
    phimoe = optional("transformers.models.phimoe.modeling_phimoe")
    parameters = {"rope_type": "longrope", **LISTS, "short_mscale": 1.2, "long_mscale": 1.2}
    sizes = {"hidden_size": 384, "num_attention_heads": 4, "max_position_embeddings": 8192}
    config = phimoe.PhimoeConfig(**sizes, rope_parameters=parameters | {"original_max_position_embeddings": 4096})
    rope = Rope.from_hf(config.to_dict())
    rope = Rope.from_config(rope.config.replace(angles="float32"))
    positions = torch.tensor([[5000]])
    cos, _ = phimoe.PhimoeRotaryEmbedding(config)(torch.zeros(1), positions)
    assert torch.equal(rope.tables(positions, 4096)[0], cos[..., :48])
    assert not torch.equal(rope.tables(positions, 5001)[0], cos[..., :48])


def test_qwen2_5_omni_dit_turns_its_first_head_only():
    qwen2_5_omni = optional("transformers.models.qwen2_5_omni.modeling_qwen2_5_omni")
    config = qwen2_5_omni.Qwen2_5OmniDiTConfig()
    rope = Rope.from_hf(config.to_dict())
    rope = Rope.from_config(rope.config.replace(angles="float32"))
    q, positions = torch.randn(2, 3, 5, 64), torch.arange(5).expand(2, 5)
    cos, sin = qwen2_5_omni.Qwen2_5OmniDiTRotaryEmbedding(config)(torch.zeros(1), positions)
    first = qwen2_5_omni.deinterleave_head_dim(q[:, :1])
    first, _ = qwen2_5_omni.apply_rotary_pos_emb(first, first, cos, sin)
    turned = rope.rotate(q, positions)
    assert float((turned[:, :1] - first).abs().max()) <= 1e-6
    # the other heads keep their values; they are read and written in the same order
    assert torch.equal(turned[:, 1:], q[:, 1:])


def test_mistral_large_4_takes_its_log_scales_from_the_weights():
    mistral_large4 = optional("transformers.models.mistral_large4.modeling_mistral_large4")
    config = mistral_large4.MistralLarge4TextConfig(num_hidden_layers=2)
    module, rope = mistral_large4.MistralLarge4TextRotaryEmbedding(config), Rope.from_hf(config.to_dict())
    alpha = torch.linspace(-0.1, 0.1, 32)
    module.alpha.copy_(alpha)
    rope.log_scale.data.copy_(alpha)
    positions = torch.tensor([[1, 7, 500]])
    cos, _ = module(torch.zeros(1), positions)
    assert torch.allclose(rope.tables(positions)[0], cos[..., :32], atol=1e-4)


def test_a_config_that_went_through_json_reads_the_same():
    config = optional("transformers:Gemma3TextConfig")().to_dict()
    again = json.loads(json.dumps(config, default=str))
    assert Rope.from_hf(again, "full_attention").config == Rope.from_hf(config, "full_attention").config


# --- subclasses of Rope


class Plain(Rope):
    """A user's subclass that changes no setting."""


@declared
class StretchedConfig(RopeConfig):
    stretch: float

    def scaled_frequencies(self, length=None):
        return super().scaled_frequencies(length) / self.stretch


class Stretched(Rope):
    """A user's subclass with a setting that it must be given."""

    Config = StretchedConfig


class Positional(Rope):
    """A user's subclass with a constructor of its own."""

    def __init__(self, size):
        super().__init__(head_dim=size)


@declared
class BareConfig(RotaryConfig):
    base: float = 10_000.0


class Bare(Rope):
    """A user's subclass with fewer settings than Rope."""

    Config = BareConfig


QWEN2_VL = RELEASED["qwen2-vl"][0]


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (ReRope, {}),
        (ReRope, {"window": 7, "bidirectional": True}),
        (LeakyReRope, {"window": 7, "factor": 3.0}),
        (SelfExtend, {"group": 4}),
        (Plain, {}),
        (Plain, {"angles": "float32"}),
        (Stretched, {"stretch": 2.0}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
@pytest.mark.parametrize("name", [name for name, (_, expected) in RELEASED.items() if type(expected) is Rope])
def test_a_subclass_builds_itself(cls, settings, name):
    given, expected = RELEASED[name]
    found = cls.from_hf(given, **settings)
    assert type(found) is cls
    read = {key: getattr(expected.config, key) for key in RopeConfig.fields()}
    assert found.config == cls(**read | settings).config


def test_layer_types_reach_a_subclass():
    assert ReRope.from_hf(NESTED, "full_attention").config.base == 1000000.0


def test_mrope_builds_itself_and_a_users_mrope_too():
    class Mine(MRope):
        pass

    assert type(Rope.from_hf(QWEN2_VL)) is type(MRope.from_hf(QWEN2_VL)) is MRope
    assert type(Mine.from_hf(QWEN2_VL)) is Mine
    assert Mine.from_hf(QWEN2_VL).config == Rope.from_hf(QWEN2_VL).config
    given = MRope.from_hf(LLAMA, sections=(8, 12, 12))
    assert type(given) is MRope and given.config.sections == (8, 12, 12)


@pytest.mark.parametrize(
    ("cls", "given", "settings", "message"),
    [
        (
            ReRope,
            QWEN2_VL,
            {},
            "ReRope.from_hf: the config has sections=[16, 24, 24], for which ReRope has no setting.",
        ),
        (
            Plain,
            QWEN2_VL,
            {},
            "Plain.from_hf: the config has sections=[16, 24, 24], for which Plain has no setting. Use",
        ),
        (MRope, LLAMA, {}, "MRope.from_hf: the config has no mrope_section, its tokens have one position. Use Rope"),
        (Stretched, LLAMA, {}, "Stretched: stretch missing. Pass stretch=…."),
        (ReRope, LLAMA, {"windw": 3}, "ReRope: unknown setting 'windw'. Did you mean 'window'?"),
        (Rope, LLAMA, {"window": 3}, "Rope: unknown setting 'window'."),
        (ReRope, LLAMA, {"base": 3.0}, "ReRope.from_hf: base is read from the config, got base=3.0 beside it. Change"),
        (Positional, LLAMA, {}, "Positional.from_hf: Positional.__init__ does not take the settings of its config: "),
        (Bare, RELEASED["gpt-j"][0], {}, "Bare.from_hf: the config has rotary_dim=64, for which Bare has no setting."),
    ],
)
def test_a_subclass_that_cannot_be_built_says_why(cls, given, settings, message):
    with pytest.raises(WhorlError, match=re.escape(message)):
        cls.from_hf(given, **settings)


# --- bad input


def rope(**parameters):
    return LLAMA | {"rope_parameters": parameters}


def nested(**parts):
    return LLAMA | {"rope_parameters": parts}


LINEAR = {"rope_type": "linear", "factor": 2.0}

ENDLESS = {"model_type": "llama"}
ENDLESS["text_config"] = ENDLESS

BAD = {
    "per_layer_config that is a list": (
        OPEN | {"per_layer_config": [64]},
        None,
        'per_layer_config must be a dict of dicts by layer, such as {"0": {}}, got [64].',
    ),
    "per_layer_config of numbers": (OPEN | {"per_layer_config": {"0": 64}}, None, "must be a dict of dicts by layer"),
    "per_layer_config of a named layer": (
        OPEN | {"per_layer_config": {"last": {"head_dim": 64}}},
        None,
        "a key of per_layer_config must be the index of a layer, got 'last'.",
    ),
    "layer_types that are a number": (
        OPEN | {"layer_types": 3},
        None,
        "layer_types must be a list of names, one per layer, got 3.",
    ),
    "layer_types that are one word": (
        OPEN | {"layer_types": "full_attention"},
        "full_attention",
        "layer_types must be a list of names, one per layer, got 'full_attention'.",
    ),
    "rope_scaling_layers that are a number": (
        LLAMA | {"rope_scaling_layers": 4, "num_hidden_layers": 4},
        None,
        "cannot place the field 'rope_scaling_layers'.",
    ),
    "qk_nope_head_dim that is a word": (
        {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": "128"},
        None,
        "qk_nope_head_dim must be an integer from 0, got '128'.",
    ),
    "partial_rotary_factors of lists": (
        OPEN | {"partial_rotary_factors": [[0.5], [0.5]]},
        None,
        "partial_rotary_factors must be a list of numbers, one per layer, got [[0.5], [0.5]].",
    ),
    "a layer type that is a list": (NESTED, ["full_attention"], "layer_type must be a string or None, got ['full_"),
    "a key that is no string": (
        LLAMA | {7: 1},
        None,
        "every key of the config must be a string, got 7. Pass json.load",
    ),
    "a rope dict with a key that is no string": (
        LLAMA | {"rope_parameters": {None: 1}},
        None,
        "every key of rope_parameters must be a string, got None.",
    ),
    "a rope dict with a tensor": (
        LLAMA | {"rope_parameters": {"rope_theta": torch.ones(2)}},
        None,
        "rope_parameters must be made of numbers, strings, lists and dicts, got torch.float32 of shape (2,).",
    ),
    "a config that holds itself": (ENDLESS, None, "the config holds configs of text models 8 levels deep. Pass the"),
    "a rope dict that holds itself": (LLAMA | {"rope_parameters": ENDLESS}, None, "holds more than 8 levels."),
    "a size beyond 64 bits": (LLAMA | {"head_dim": 10**400}, None, "head_dim must be below 2^63, got 1000000"),
    "a size that cannot be written": (LLAMA | {"head_dim": 10**5000}, None, "got an object of type int."),
    "a head that fills the memory": (LLAMA | {"head_dim": 2**40}, None, "head_dim must be at most 1,048,576, got"),
    "a base beyond every float": (LLAMA | {"rope_theta": 10**400}, None, "Rope: base must be finite, got 1000000"),
    "a type of the model that is a list": (LLAMA | {"model_type": ["llama"]}, None, "model_type must be a string or"),
    "alibi that is a word": (OPEN | {"alibi": "no"}, None, "alibi must be true, false or null, got 'no'."),
    "not a dict": (
        ["llama"],
        None,
        "Rope.from_hf: config must be a dict, got ['llama']. Pass json.load of config.json",
    ),
    "no rotary field": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12},
        None,
        "the positions of model_type 'gpt2' are a learned table. whorl.read gives what the model has instead.",
    ),
    "a model of several parts": (
        {"model_type": "dia", "encoder_config": {"head_dim": 64}, "decoder_config": {"head_dim": 64}},
        None,
        "no rotary field in the config of model_type 'dia'. Pass one of its parts: encoder_config, decoder_config.",
    ),
    "no sizes": (
        {"rope_theta": 1e4, "hidden_size": 512},
        None,
        "head_dim missing, and no hidden_size and num_attention",
    ),
    "an unplaced field": (
        LLAMA | {"rope_ratio": 50},
        None,
        "cannot place the field 'rope_ratio'. Read are: compress_rope_theta, global_rope_theta, ",
    ),
    "scaling in some layers": (
        LLAMA | {"rope_scaling_layers": [0, 1], "num_hidden_layers": 4},
        None,
        "cannot place the field 'rope_scaling_layers'",
    ),
    "an unplaced key": (
        rope(**LINEAR, alpha=2.0),
        None,
        "cannot place 'alpha' in rope_parameters of rope_type 'linear'. Understood are: factor, ",
    ),
    "a factor without a type": (
        rope(factor=4.0),
        None,
        "cannot place 'factor' in rope_parameters of rope_type 'default'. Understood are: interleaved, mrope_",
    ),
    "vllm's attention multiplier": (
        rope(**YARN, attn_factor=1.0),
        None,
        "cannot place 'attn_factor' in rope_parameters",
    ),
    "the alpha of HunYuan elsewhere": (
        rope(rope_type="dynamic", factor=1.0, alpha=1000.0),
        None,
        "cannot place 'alpha' in rope_parameters of rope_type 'dynamic'",
    ),
    "the mscales of Phi-3.5 MoE elsewhere": (
        rope(rope_type="longrope", short_factor=[1.0], long_factor=[1.0], short_mscale=1.0),
        None,
        "cannot place 'short_mscale'",
    ),
    "an unplaced key of a version 4 dict": (
        LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0, "base": 7}},
        None,
        "cannot place 'base' in rope_scaling of rope_type 'linear'",
    ),
    "an unplaced key inside a layer type": (
        nested(full_attention=LINEAR | {"beta": 1}),
        "full_attention",
        "cannot place 'beta' in rope_parameters['full_attention'] of rope_type 'linear'",
    ),
    "an unplaced key beside layer types": (
        nested(full_attention=LINEAR, truncate=False),
        "full_attention",
        "cannot place 'truncate' beside the layer types 'full_attention' of rope_parameters. Put it into",
    ),
    "linear without its factor": (
        rope(rope_type="linear"),
        None,
        "rope_type 'linear' needs 'factor', which rope_parameters lacks. Understood are: factor, ",
    ),
    "yarn without its factor": (rope(rope_type="yarn"), None, "rope_type 'yarn' needs 'factor', which rope_parameters"),
    "longrope without a list": (
        rope(rope_type="longrope", short_factor=[1.0]),
        None,
        "rope_type 'longrope' needs 'long_factor', which rope_parameters lacks.",
    ),
    "llama3 without a bound": (
        rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0),
        None,
        "rope_type 'llama3' needs 'high_freq_factor'",
    ),
    "dynamic without a length": (
        {"head_dim": 64, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        None,
        "rope_type 'dynamic' needs max_position_embeddings, which the config lacks.",
    ),
    "an unknown type": (
        rope(rope_type="yarm"),
        None,
        "unknown rope_type in rope_parameters of Rope.from_hf: 'yarm'. Did",
    ),
    "a type that is a list": (rope(rope_type=["yarn"]), None, "unknown rope_type in rope_parameters"),
    "a type that is far off": (
        rope(rope_type="xyz"),
        None,
        "Expected one of: default, dynamic, linear, llama3, longrope",
    ),
    "two types": (
        rope(rope_type="linear", type="dynamic", factor=2.0),
        None,
        "rope_parameters has rope_type 'linear' and type 'dynamic'. Keep one of them.",
    ),
    "an image model's type": (rope(rope_type="axial"), None, "rope_type 'axial' turns images by rows and columns. Use"),
    "two dicts": (
        rope(**LINEAR) | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        None,
        "rope_parameters and rope_scaling are both given and differ. Keep one of them.",
    ),
    "a dict that is none": (
        LLAMA | {"rope_scaling": "linear"},
        None,
        "rope_scaling must be a dict or null, got 'linear'.",
    ),
    "nested without a layer type": (
        NESTED,
        None,
        "rope_parameters differs by layer type. Pass layer_type=…, one of: full_attention, other_attention, ",
    ),
    "an unknown layer type": (
        NESTED,
        "full_attentoin",
        "unknown layer_type of Rope.from_hf for rope_parameters: 'full_attentoin'. Did you mean 'full_attention'?",
    ),
    "a layer type without rotation": (
        NESTED,
        "other_attention",
        "layers of type 'other_attention' (null in rope_parameters) do not rotate. whorl.read gives",
    ),
    "a layer type for a flat config": (
        LLAMA,
        "full_attention",
        "layer_type='full_attention' is none of this config: rope_parameters is one for all layers. Leave",
    ),
    "a foreign layer type for a flat config": (
        OPEN | {"layer_types": ["full_attention"]},
        "sliding_attention",
        "is one for all layers, which are of the types 'full_attention'. Leave layer_type out.",
    ),
    "version 4 gemma3 without a layer type": (
        GEMMA3_4B,
        None,
        "model_type 'gemma3_text' differs by layer type. Pass layer_type=…, one of: full_attention, sliding_attention. "
        "Or read every layer with whorl.read.",
    ),
    "full attention of command r7b": (
        {"model_type": "cohere2", "head_dim": 128, "layer_types": ["full_attention"], "sliding_window": 4096},
        "full_attention",
        "layers of type 'full_attention' of model_type 'cohere2' do not rotate. whorl.read gives",
    ),
    "linear attention": (
        {"model_type": "qwen3_next", "head_dim": 256, "layer_types": ["linear_attention"]},
        "linear_attention",
        "layers of type 'linear_attention' of model_type 'qwen3_next' do not rotate. whorl.read gives",
    ),
    "a layer type whose bases are zero": (
        OPEN | {"layer_types": ["full_attention"], "layer_rope_theta": [0]},
        "full_attention",
        "layers of type 'full_attention' (0 in layer_rope_theta) do not rotate. whorl.read gives",
    ),
    "bases that differ within what was asked": (
        OPEN | {"layer_types": ["a", "b"], "rope_theta": [1000.0, 2000.0]},
        None,
        "rope_theta differs between the layers asked for. Pass layer_type=…",
    ),
    "a family that scales by itself": (
        {"model_type": "gpt_oss", "head_dim": 64},
        None,
        "the config of model_type 'gpt_oss' has no rope_parameters, for which its code has values of its own. Pass the",
    ),
    "alibi": (
        {"model_type": "falcon", "head_dim": 64, "alibi": True},
        None,
        "alibi is true, so position enters by a bias",
    ),
    "absolute positions": (
        {"model_type": "esm", "head_dim": 64, "position_embedding_type": "absolute"},
        None,
        "position_embedding_type must be rotary, got 'absolute'. This model does not rotate queries and keys.",
    ),
    "a hybrid without positions": (
        {"model_type": "granitemoehybrid", "head_dim": 64, "rope_theta": 1e4},
        None,
        "position_embedding_type must be rotary, got None.",
    ),
    "zamba2 without rotation": (
        {"model_type": "zamba2", "head_dim": 64, "rope_theta": 1e4},
        None,
        "use_mem_rope is not",
    ),
    "rotated values": (
        {"model_type": "roformer", "head_dim": 64, "rotary_value": True},
        None,
        "rotary_value is true, so values are rotated too",
    ),
    "two sections of HunYuan VL": (
        {
            **{"model_type": "hunyuan_vl_text", "head_dim": 128},
            "rope_parameters": {"mrope_section": [16] * 4, "xdrope_section": [32, 32]},
        },
        None,
        "rope_parameters has mrope_section and xdrope_section, which differ. Keep one of them.",
    ),
    "yarn in a family whose yarn is longrope": (
        {"model_type": "phi3", "head_dim": 96, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        None,
        "rope_type 'longrope' needs 'short_factor', which rope_scaling lacks. In this family 'yarn' means 'longrope'.",
    ),
    "learned directions": (
        {"model_type": "lightglue", "head_dim": 64},
        None,
        "it turns keypoints by frequencies that are learned for each pair",
    ),
    "latent attention without rotation": (
        {"model_type": "glm5_next", "qk_rope_head_dim": 0},
        None,
        "qk_rope_head_dim must be a positive integer, got 0. With 0 its attention is not rotated.",
    ),
    "a head size that is none": (LLAMA | {"head_dim": 64.5}, None, "head_dim must be a positive integer, got 64.5."),
    "a negative length": (
        LLAMA | {"max_position_embeddings": -1},
        None,
        "max_position_embeddings must be a positive integer, got -1.",
    ),
    "an odd share": (
        OPEN | {"partial_rotary_factor": 0.4},
        None,
        "partial_rotary_factor=0.4 of head_dim=64 is 25 dimensions, and rotary pairs them.",
    ),
    "a share above one": (OPEN | {"rotary_pct": 1.5}, None, "rotary_pct must be between 0 and 1, got 1.5."),
    "two shares": (
        OPEN | {"rotary_pct": 0.5, "partial_rotary_factor": 0.25},
        None,
        "partial_rotary_factor=0.25, rotary_pct=0.5 differ. Keep one.",
    ),
    "rotary_dim against the share": (
        OPEN | {"rotary_dim": 32, "partial_rotary_factor": 0.25},
        None,
        "rotary_dim=32 and partial_rotary_factor=0.25 do not agree. Keep one of them.",
    ),
    "qk_rope_head_dim against the share": (
        {"model_type": "kimi_k2", "qk_rope_head_dim": 64, "partial_rotary_factor": 0.5},
        None,
        "qk_rope_head_dim=64 and partial_rotary_factor=0.5 do not agree.",
    ),
    "a base that is text": (LLAMA | {"rope_theta": "10000"}, None, "Rope: base must be a number, got '10000'."),
    "a factor below one": (rope(rope_type="linear", factor=0.5), None, "Linear: factor must be at least 1, got 0.5."),
    "lists of another head": (
        rope(rope_type="longrope", **LISTS),
        None,
        "LongRope: short_factor must have rotary_dim / 2 = 32 numbers, got 48.",
    ),
    "two mscales of phi-3.5 moe": (
        {"model_type": "phimoe", "head_dim": 96, "max_position_embeddings": 8192}
        | {"rope_scaling": {"type": "longrope", **LISTS, "short_mscale": 1.0, "long_mscale": 1.2}},
        None,
        "short_mscale=1.0 and long_mscale=1.2 in rope_scaling differ, and LongRope has one attention_factor.",
    ),
    "phimoe with a wrong factor beside the one that replaces it": (
        {"model_type": "phimoe", "head_dim": 96, "max_position_embeddings": 8192}
        | {"rope_scaling": {"type": "longrope", **LISTS, "short_mscale": 1.2, "long_mscale": 1.2, "factor": "4"}},
        None,
        "LongRope: factor must be a number, got '4'.",
    ),
    "axes arranged against the family": (
        {"model_type": "qwen2_vl", "head_dim": 128}
        | {"rope_scaling": {"type": "mrope", "mrope_section": [24, 20, 20], "mrope_interleaved": True}},
        None,
        "mrope_interleaved=True in rope_scaling, but model_type 'qwen2_vl' arranges its axes chunked.",
    ),
    "sections that do not sum": (
        {"model_type": "qwen2_vl", "head_dim": 64, "rope_theta": 1e6},
        None,
        "MRope: sections must sum to rotary_dim / 2 = 32, got (16, 24, 24), which sum to 64.",
    ),
}


@UNKNOWN
@pytest.mark.parametrize("name", BAD)
def test_bad_config_raises_and_says_what_to_do(name):
    config, layer_type, message = BAD[name]
    with pytest.raises(WhorlError, match=re.escape(message)):
        Rope.from_hf(config, layer_type)


def test_a_yarn_factor_that_is_no_number_is_named():
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "hidden_size": 512, "num_attention_heads": 4}
    config |= {"max_position_embeddings": 163840, "rope_scaling": DEEPSEEK_YARN | {"factor": "40"}}
    config["rope_scaling"]["original_max_position_embeddings"] = 4096
    with pytest.raises(WhorlError, match="factor must be a number, got '40'"):
        Rope.from_hf(config)
