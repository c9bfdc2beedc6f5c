"""Towers of images: which layers see windows, where their positions are, and the short form's refusal."""

import importlib
import json

import pytest
import torch
import transformers

import whorl
from whorl import AxialRope, Rope, WhorlError
from whorl.dialects.class_defaults import all_defaults
from whorl.dialects.images import TOWERS

SIZES = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8}


def saved(name, **settings):
    return json.loads(transformers.CONFIG_MAPPING[name](**settings).to_json_string(use_diff=False))


# --- SAM 3


@pytest.mark.parametrize(("image", "window"), [(1008, 24), ((504, 1008), 12)])
def test_sam3_turns_its_patches_at_the_positions_that_are_said(image, window):
    modeling_sam3 = importlib.import_module("transformers.models.sam3.modeling_sam3")
    settings = {"image_size": image, "window_size": window, "num_hidden_layers": 8}
    config = transformers.CONFIG_MAPPING["sam3_vit_model"](**settings)
    model = whorl.read(saved("sam3_vit_model", **settings))
    assert [(one.kind, one.indices) for one in model.groups] == [
        ("window_attention", tuple(range(7))),
        ("full_attention", (7,)),
    ]
    side, rows = (image // 14,) * 2 if isinstance(image, int) else (image[0] // 14, image[1] // 14)
    (note,) = model.reading.notes
    assert note.endswith(f"its {side} columns: pass whorl.grid({rows}, {side}) * {window} / {side}.")
    for group, seen, shrink in ((model.groups[0], window, 1.0), (model.groups[1], 0, window / side)):
        layer = modeling_sam3.Sam3ViTLayer(config, window_size=seen)
        positions = whorl.grid(seen or rows, seen or side)
        q = torch.randn(1, 2, layer.position_ids.shape[0], 64)
        cos, sin = layer.rotary_emb(torch.zeros(1), layer.position_ids)
        expected = modeling_sam3.apply_rotary_pos_emb_2d(q, q, cos=cos, sin=sin)[0]
        turned = group.encoding.rotate(q, positions * shrink)
        assert float((turned - expected).abs().max()) <= 1e-5
        if shrink != 1:
            assert float((group.encoding.rotate(q, positions) - expected).abs().max()) > 0.1


def test_a_file_that_is_silent_has_sam3s_own_sizes():
    model = whorl.read({"model_type": "sam3_vit_model"})
    assert [len(group.indices or ()) for group in model.groups] == [28, 4]
    assert "whorl.grid(72, 72) * 24 / 72" in model.reading.notes[0]


def test_the_shell_around_sam3s_tower_is_that_tower():
    for config in (
        saved("sam3_vision_model"),
        {"model_type": "sam3_vision_model", "backbone_config": {"window_size": 24}},
    ):
        assert whorl.read(config).groups[1].indices == (7, 15, 23, 31)


def test_sam3s_whole_config_says_that_its_text_model_alone_was_read():
    model = whorl.read(saved("sam3"))
    assert (model.family, model.groups[0].encoding.config.name) == ("clip", "learned")
    (note,) = model.reading.notes
    assert note.startswith("This is the text model. The config holds other models too, to be read apart: ")
    assert "vision_config" in note


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"global_attn_indexes": "7"}, "read: global_attn_indexes must be a list of layers, got '7'."),
        ({"image_size": 7}, "read: image_size is smaller than patch_size, so that there is no patch. Mend the config."),
        ({"image_size": [1008]}, "read: image_size must be a number, or two, got [1008]."),
        ({"patch_size": [0, 0]}, "patch_size must be a positive integer, got 0."),
    ],
)
def test_sizes_of_sam3_that_cannot_be_are_refused(config, said):
    with pytest.raises(WhorlError) as caught:
        whorl.read({"model_type": "sam3_vit_model", **config})
    assert said in str(caught.value)


# --- others with windows


@pytest.mark.parametrize("name", ["qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder", "exaone4_5_vision"])
def test_towers_after_qwen2_5_name_their_windows(name):
    windows, full = whorl.read({"model_type": name, "depth": 8, "fullatt_block_indexes": [3, 7]}).groups
    assert (windows.kind, windows.indices, full.indices) == ("window_attention", (0, 1, 2, 4, 5, 6), (3, 7))
    assert windows.unsupported == ("layers of kind 'window_attention': windows that do not overlap",)
    assert not full.unsupported and windows.encoding.config == full.encoding.config


@pytest.mark.parametrize("name", ["muse_glimmer_vision", "muse_spark_vision"])
def test_muse_counts_columns_first_and_has_windows(name):
    kinds = transformers.CONFIG_MAPPING[name](num_hidden_layers=10).layer_types
    for config in ({"num_hidden_layers": 10}, {"num_hidden_layers": 10, "layer_types": kinds}):
        model = whorl.read({"model_type": name, **config})
        expected = {kind: tuple(i for i, one in enumerate(kinds) if one == kind) for kind in set(kinds)}
        assert {group.kind: group.indices for group in model.groups} == expected
        assert model.reading.notes == (
            "Positions are (column, row) and count from 1: pass the column as the first axis.",
        )


def test_step_3_7_turns_by_columns_first():
    """As in vLLM, and in transformers from 5.23.0 on."""
    model = whorl.read({"model_type": "step3p5_vision", **SIZES})
    assert model.reading.notes == ("Positions are (column, row): pass the column as the first axis.",)


def test_a_tower_that_read_does_not_know_is_not_sent_to_read():
    axial = {"rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}
    with pytest.raises(WhorlError, match=r"Use whorl\.AxialRope in its convention\.$"):
        whorl.read({"model_type": "new_vision", **SIZES, **axial})


# --- the short form


@pytest.mark.parametrize("name", sorted(TOWERS))
def test_the_short_form_refuses_a_tower_and_names_read(name):
    for config in ({"model_type": name, **SIZES}, {"model_type": name, **SIZES, "rope_theta": 10000.0}):
        with pytest.raises(WhorlError, match=r"images by rows and columns.*whorl\.read gives its AxialRope"):
            Rope.from_hf(config)


def test_every_class_with_axes_is_in_the_table():
    axial = {
        name
        for name, defaults in all_defaults().items()
        if defaults.get("rope_parameters", {}).get("rope_type") == "axial"
    }
    assert len(axial) > 30 and axial <= TOWERS.keys()
    for name in axial:
        assert isinstance(whorl.read({"model_type": name}).groups[0].encoding, AxialRope)
