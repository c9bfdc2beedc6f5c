"""Fields that a family's class never reads: they change no reading, as they change no module, and the lint says so."""

import json

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import whorl
from hf_configs import LLAMA, OPEN
from rotary_classes import APART, NAMELESS, VALID, config_for, is_new, rotary_modules
from whorl import Rope, WhorlError
from whorl.bridge.linting import lint
from whorl.bridge.programs import program_of
from whorl.dialects.class_defaults import all_defaults
from whorl.dialects.names import POSITIONAL
from whorl.dialects.unread import own_fields, unread_fields

SIZED = LLAMA | {"num_hidden_layers": 4}
UNREAD = {
    "rotary_dim": 32,
    "rope_interleave": True,
    "no_rope_layers": [1, 1, 0, 1],
    "no_rope_layer_interval": 2,
    "alibi": True,
    "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5,
    "rope_pct": 0.5,
    "rotary_emb_base": 500.0,
    "layer_rope_theta": [1e4, 1e5, 1e4, 1e5],
    "partial_rotary_factors": [0.5, 0.5, 1.0, 1.0],
    "qk_rope_head_dim": 32,
    "kv_channels": 128,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 30.0,
    "layer_types": ["full_attention", "linear_attention"] * 2,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "cross_attention_layers": [1],
    "full_attention_interval": 2,
    "attn_layer_period": 2,
    "global_attn_every_n_layers": 2,
}


def settings(config):
    return [
        (one.kind, one.indices, one.encodings, one.softcap, one.unsupported)
        for one in whorl.read(config).reading.layers
    ]


@pytest.mark.parametrize("name", UNREAD)
def test_a_field_that_llama_never_reads_changes_nothing_and_is_found(name):
    config = SIZED | {name: UNREAD[name]}
    assert settings(config) == settings(SIZED)
    assert Rope.from_hf(config).config == Rope.from_hf(SIZED).config
    found = [one.what for one in lint(config) if one.rule == "name-not-read"]
    assert len(found) == 1 and found[0].startswith(f"{name}=") and "llama's class never reads it" in found[0]


@pytest.mark.parametrize("name", UNREAD)
def test_a_field_that_says_what_is_so_is_not_found(name):
    nothing = {
        **{"rotary_dim": 64, "rope_interleave": False, "no_rope_layers": [1] * 4, "alibi": False, "kv_channels": 64},
        **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rope_pct"), 1.0),
        **{"rotary_emb_base": 10000.0, "qk_rope_head_dim": 64, "layer_types": ["full_attention"] * 4},
    }
    assert not [one for one in lint(SIZED | {name: nothing.get(name)}) if one.rule == "name-not-read"]


def test_the_class_builds_the_model_that_is_read():
    """Llama with all of these fields, as its class in transformers has it."""
    given = {name: value for name, value in UNREAD.items() if name != "layer_types"}
    config = transformers.LlamaConfig(**{k: v for k, v in SIZED.items() if k != "model_type"}, **given)
    ours = Rope.from_hf(SIZED | given).frequencies().float()
    assert torch.allclose(ours, LlamaRotaryEmbedding(config).inv_freq, rtol=1e-6, atol=0)


def test_a_share_inside_the_rope_dict_counts_as_little():
    config = SIZED | {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    assert Rope.from_hf(config).config == Rope(head_dim=64, base=500.0).config
    (found,) = [one.what for one in lint(config) if one.rule == "name-not-read"]
    assert found.startswith("rope_parameters.partial_rotary_factor=0.5 does nothing")


def test_a_share_beside_a_scaling_is_taken_where_the_class_fails():
    rope = {"rope_type": "linear", "factor": 2.0}
    config = SIZED | {"rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_scaling": rope}
    assert Rope.from_hf(config).config.rotary_dim == 32
    (found,) = [one.what for one in lint(config) if one.rule == "name-not-read"]
    assert "is taken here" in found and "which fails" in found


def test_a_family_without_a_class_in_transformers_has_every_name_read():
    assert unread_fields(OPEN | UNREAD) == {}
    assert own_fields(OPEN | UNREAD) == OPEN | UNREAD


def test_a_name_that_the_class_reads_counts():
    for family, field, value in (("smollm3", "no_rope_layers", [1, 0, 1, 0]), ("falcon", "alibi", True)):
        config = SIZED | {"model_type": family, field: value}
        assert settings(config) != settings(SIZED | {"model_type": family})
        assert "name-not-read" not in {one.rule for one in lint(config)}


def test_vllm_reads_a_share_that_the_class_of_llama_does_not():
    config = SIZED | {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    for name, dims in (("vllm", 32), ("transformers5", None)):
        (group,) = program_of(name).read(config, None, None).layers
        assert group.encodings[0].value("rotary_dim") == dims


@pytest.mark.parametrize("kind", ["absolute", "alibi", "rope"])
def test_a_kind_of_positions_that_the_class_never_reads_takes_no_rotation_away(kind):
    config = SIZED | {"position_embedding_type": kind}
    assert settings(config) == settings(SIZED)
    assert ("name-not-read" in {one.rule for one in lint(config)}) == (kind != "rope")


def test_a_window_counts_whatever_a_switch_says_that_the_class_never_reads():
    config = SIZED | {"model_type": "mistral", "sliding_window": 512, "use_sliding_window": False}
    (group,) = whorl.read(config).groups
    assert [one.name for one in group.layers.encodings] == ["rope", "window"]
    assert "window-unused" not in {one.rule for one in lint(config)}


@pytest.mark.parametrize("value", [3, "no", [[1]], [None], {"a": 1}, True, 0.5, float("nan")])
@pytest.mark.parametrize("name", sorted(POSITIONAL))
def test_no_value_of_an_unread_field_stops_the_lint(name, value):
    lint(SIZED | {name: value})


def test_every_class_of_the_table_says_which_names_it_reads():
    for name, defaults in all_defaults().items():
        assert set(defaults["reads"]) <= POSITIONAL, name


# --- every rotary module

FIELDS = (
    {"partial_rotary_factor": 0.5},
    {"rotary_dim": 32},
    {"rotary_pct": 0.5},
    {"rope_theta": 12345.0},
    {"kv_channels": 32},
)
# modules whose files say otherwise than their class: by code that comes with the checkpoints, by a list of bases that
# the class wrote before, or by the config of another class than their own
OTHERWISE = ("JinaEmbeddings", "NomicBert", "GraniteSWA", "GraniteMoeSWA", "MuseGlimmerText", "GlmAsr")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: next(iter(field)))
def test_a_field_changes_a_reading_as_it_changes_the_module(field):
    compared = 0
    for _, cls in rotary_modules("abcdefghijklmnopqrstuvwxyz"):
        if cls.__name__ in (*APART, *NAMELESS) or cls.__name__.startswith(OTHERWISE):
            continue
        config = config_for(cls)
        kind = type(config)
        valid = VALID.get(kind.__name__, {})
        if is_new(config) or set(field) & set(valid):
            continue
        try:
            rotary = cls(kind(**valid, **field))
        except Exception:  # sizes that the class does not take, each in its own way
            continue
        saved = json.loads(kind(**valid).to_json_string(use_diff=False))
        kept = saved if "rope_parameters" in valid else {k: v for k, v in saved.items() if k != "rope_parameters"}
        types = sorted(rotary.rope_type) if isinstance(rotary.rope_type, dict) and rotary.rope_type else [None]
        for layer_type in types:
            theirs = rotary.inv_freq if layer_type is None else getattr(rotary, f"{layer_type}_inv_freq")
            try:
                ours = Rope.from_hf(kept | field, layer_type).frequencies().float().abs()
            except WhorlError:
                continue
            assert torch.allclose(ours.sort().values, theirs.sort().values, rtol=1e-6, atol=0), (
                cls.__name__,
                layer_type,
            )
            compared += 1
    assert compared >= 125
