"""Diffusers transformer configs: axes of equal and of unequal widths as their code turns them, or refused by name."""

import math
import re

import pytest
import torch

import whorl
from whorl import AxialRope, WhorlError

FLUX_2 = {
    **{"_class_name": "Flux2Transformer2DModel", "_diffusers_version": "0.36.0", "attention_head_dim": 128},
    **{"axes_dims_rope": [32, 32, 32, 32], "rope_theta": 2000, "num_layers": 8, "num_single_layers": 48},
}


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        (FLUX_2, AxialRope(head_dim=128, convention="rope_vit", axes=4, base=2000.0)),
        ({"_class_name": "Flux2Transformer2DModel"}, AxialRope(head_dim=128, axes=4, base=2000.0)),
        ({"_class_name": "HunyuanImageTransformer2DModel"}, AxialRope(head_dim=128, base=256.0)),
        ({"_class_name": "Lumina2Transformer2DModel"}, AxialRope(head_dim=96, axes=3, base=10_000.0)),
        ({"_class_name": "HiDreamImageTransformer2DModel"}, AxialRope(head_dim=64, base=10_000.0)),
    ],
)
def test_axes_of_equal_widths_are_an_axial_rope(config, rope):
    model = whorl.read(config)
    assert model.groups[0].encoding.config == rope.config
    assert (model.dialect, model.family) == ("diffusers", config["_class_name"])
    assert "axes in reverse" in model.reading.notes[0]


def test_positions_in_reverse_turn_as_flux_2_does():
    """Flux2PosEmbed: axis by axis from the first, w = theta^(-2i/32), the two of a pair side by side."""
    rope = whorl.read(FLUX_2).groups[0].encoding
    positions = torch.tensor([[3], [5], [7], [11]])
    cos, sin = rope.tables(positions.flip(0))
    angles = [float(axis) * 2000 ** (-2 * i / 32) for axis in positions.flatten() for i in range(16)]
    assert cos.flatten().tolist() == pytest.approx([math.cos(one) for one in angles], abs=1e-6)
    assert sin.flatten().tolist() == pytest.approx([math.sin(one) for one in angles], abs=1e-6)
    assert rope.layout == "interleaved"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("FluxTransformer2DModel", 10_000.0),
        ("QwenImageTransformer2DModel", 10_000.0),
        ("HunyuanVideoTransformer3DModel", 256.0),
    ],
)
def test_axes_of_unequal_widths_have_a_ladder_each(name, base):
    """get_1d_rotary_pos_embed of each axis in turn, theta^(-2i/width), the two of a pair side by side."""
    for config in ({}, {"axes_dims_rope": [16, 56, 56], "rope_axes_dim": [16, 56, 56]}):
        rope = whorl.read({"_class_name": name, **config}).groups[0].encoding
        cos, sin = rope.tables(torch.tensor([[3], [5], [-7]]))
        angles = [axis * base ** (-2 * i / w) for axis, w in ((3, 16), (5, 56), (-7, 56)) for i in range(w // 2)]
        assert cos.flatten().tolist() == pytest.approx([math.cos(one) for one in angles], abs=1e-6)
        assert sin.flatten().tolist() == pytest.approx([math.sin(one) for one in angles], abs=1e-6)
        assert (rope.layout, rope.config.head_dim) == ("interleaved", 128)


@pytest.mark.parametrize(
    ("config", "widths", "base", "layers"),
    [
        ({"_class_name": "WanTransformer3DModel"}, (44, 42, 42), 10_000.0, None),
        (
            {"_class_name": "WanTransformer3DModel", "attention_head_dim": 96, "num_layers": 3},
            (32, 32, 32),
            10_000.0,
            3,
        ),
        (
            {"_class_name": "WanTransformer3DModel", "attention_head_dim": 64, "num_layers": 3},
            (24, 20, 20),
            10_000.0,
            3,
        ),
        ({"_class_name": "ZImageTransformer2DModel", "n_layers": 30}, (32, 48, 48), 256.0, 30),
        (
            {"_class_name": "ZImageTransformer2DModel", "axes_dims": [16, 24, 24], "rope_theta": 100},
            (16, 24, 24),
            100,
            None,
        ),
    ],
)
def test_wan_and_z_image_turn_axis_by_axis(config, widths, base, layers):
    """Wan: rows and columns have 2 (head_dim // 6) dimensions each, frames the rest. The two of a pair side by side."""
    (group,) = whorl.read(config).groups
    positions = torch.tensor([[3], [5], [7]])
    cos, _ = group.encoding.tables(positions.flip(0) if len(set(widths)) == 1 else positions)
    angles = [axis * base ** (-2 * i / w) for axis, w in zip((3, 5, 7), widths, strict=True) for i in range(w // 2)]
    assert cos.flatten().tolist() == pytest.approx([math.cos(one) for one in angles], abs=1e-6)
    assert (group.encoding.layout, group.indices) == ("interleaved", None if layers is None else tuple(range(layers)))


def test_qwen_image_says_where_its_positions_begin():
    assert "from the middle of the image" in whorl.read({"_class_name": "QwenImageTransformer2DModel"}).reading.notes[0]


def test_both_kinds_of_layers_are_counted():
    groups = whorl.read(FLUX_2).groups
    assert [(group.kind, len(group.indices)) for group in groups] == [("layers", 8), ("single_layers", 48)]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"_class_name": "FluxPipeline"}, "read: FluxPipeline is a pipeline. Pass the config.json in its folder"),
        (
            {"_class_name": "OmniGenTransformer2DModel", "axes_dims": [32, 48, 48]},
            "read: 'OmniGenTransformer2DModel' of diffusers (axes_dims = [32, 48, 48]) has no reading yet.",
        ),
        (
            {"_class_name": "LTXVideoTransformer3DModel"},
            "read: 'LTXVideoTransformer3DModel' of diffusers has no reading",
        ),
        ({"_class_name": "WanTransformer3DModel", "attention_head_dim": 4}, "read: attention_head_dim must be"),
        (FLUX_2 | {"axes_dims_rope": [128]}, "read: axes_dims_rope must be a width of 2 or more, even, for each of 2"),
        (FLUX_2 | {"axes_dims_rope": [17, 55]}, "read: axes_dims_rope must be a width of 2 or more, even, for each of"),
        (FLUX_2 | {"rope_theta": "2000"}, "read: rope_theta must be a finite number"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(config, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(config)
