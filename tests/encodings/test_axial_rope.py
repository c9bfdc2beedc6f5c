"""Axial RoPE: every public convention of vision towers, exact, and bit for bit where transformers has it."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from transformers.models.dinov3_vit import modeling_dinov3_vit as dinov3
from transformers.models.dinov3_vit.configuration_dinov3_vit import DINOv3ViTConfig
from transformers.models.gemma4 import modeling_gemma4 as gemma4
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.llama4.configuration_llama4 import Llama4VisionConfig
from transformers.models.pixtral import modeling_pixtral as pixtral
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.sam2_video import modeling_sam2_video as sam2
from transformers.models.sam2_video.configuration_sam2_video import Sam2VideoConfig

import whorl
from oracles import axes, rotary_tables, rotation

BOUND = 4.0e-8  # rounding to float32 alone is 3.0e-8
DEFAULT_BASE = {
    "rope_vit": 100,
    "qwen_vision": 10_000,
    "pixtral": 10_000,
    "llama4_vision": 10_000,
    "dinov3": 100,
    "apex": 10_000,
    "kimi_vision": 10_000,
    "loftr": 10_000,
    "minimax_vision": 10_000,
}
CONVENTIONS = list(DEFAULT_BASE)
SPATIAL = ["rope_vit", "qwen_vision", "apex", "minimax_vision"]  # those with a form for three axes
LAYOUT = {"rope_vit": "interleaved", "llama4_vision": "interleaved", "loftr": "interleaved"}  # half where not named
HEAD_DIMS = [64, 72, 80, 128]


def data(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cells(convention, *sizes):
    """Positions as the convention has them."""
    if convention == "dinov3":
        return whorl.normalized_grid(*sizes)
    return whorl.grid(*sizes, offset=1 if convention == "llama4_vision" else 0)


def oracle_angles(convention, head_dim, position):
    frequencies, axis_of_pair = getattr(axes, convention)(head_dim, DEFAULT_BASE[convention])
    with mp.workdps(50):
        return [mpf(position[axis]) * w for w, axis in zip(frequencies, axis_of_pair, strict=True)]


# --- against 50 digits


@pytest.mark.parametrize("head_dim", [4, 20, 64])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_tables_are_exact(convention, head_dim):
    rope = whorl.AxialRope(head_dim=head_dim, convention=convention)
    frequencies, axis_of_pair = getattr(axes, convention)(head_dim)
    positions = cells(convention, 3, 5)
    if convention != "dinov3":
        positions[:, -1] = torch.tensor([131_071, 16_777_215])
    for kind in (torch.float64, *([] if convention == "dinov3" else [torch.int32, torch.int64])):
        cos, sin = rope.tables(positions.to(kind))
        for pair, (w, axis) in enumerate(zip(frequencies, axis_of_pair, strict=True)):
            for token in (0, 1, 5, 7, 14):
                true_cos, true_sin = rotary_tables.cos_sin(positions[axis, token].item(), w)
                assert abs(float(cos[token, pair]) - float(true_cos)) <= BOUND
                assert abs(float(sin[token, pair]) - float(true_sin)) <= BOUND


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_frequencies_are_those_of_the_convention(convention):
    rope = whorl.AxialRope(head_dim=80, convention=convention)
    expected, axis_of_pair = getattr(axes, convention)(80)
    assert rope.config.base == DEFAULT_BASE[convention]
    assert list(rope.config.axis_of_pair) == axis_of_pair
    torch.testing.assert_close(
        rope.frequencies(), torch.tensor([float(w) for w in expected], dtype=torch.float64), rtol=1e-14, atol=0
    )
    other = whorl.AxialRope(head_dim=80, convention=convention, base=50.0).frequencies()
    expected, _ = getattr(axes, convention)(80, 50)
    torch.testing.assert_close(other, torch.tensor([float(w) for w in expected], dtype=torch.float64))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_rotation_is_that_of_the_convention(convention):
    rope = whorl.AxialRope(head_dim=32, convention=convention)
    positions, x = cells(convention, 3, 4), data(0, 12, 32, dtype=torch.float64)
    got = rope.turn(x, rope.tables(positions, dtype=torch.float64))
    for token in range(12):
        angles, head = oracle_angles(convention, 32, positions[:, token].tolist()), x[token].numpy()
        if convention == "apex":  # two heads of 16 side by side
            expected = rotation.rotate(rotation.rotate(head, angles[:8], "half"), angles[8:], "half", start=16)
        else:
            expected = rotation.rotate(head, angles, LAYOUT.get(convention, "half"))
        assert (got[token] - torch.from_numpy(expected)).abs().max() < 1e-13


def test_two_patches_by_hand():
    """head_dim 4: one pair per axis, turned by the column and by the row themselves."""
    x, positions = torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([[1], [2]])
    c1, s1, c2, s2 = math.cos(1), math.sin(1), math.cos(2), math.sin(2)
    column_first = whorl.AxialRope(head_dim=4, convention="rope_vit").rotate(x, positions)
    torch.testing.assert_close(column_first, torch.tensor([[c2, s2, c1, s1]]))
    row_first = whorl.AxialRope(head_dim=4, convention="apex").rotate(x, positions)
    torch.testing.assert_close(row_first, torch.tensor([[c1, s1, c2, s2]]))
    whole_head = whorl.AxialRope(head_dim=4, convention="qwen_vision").rotate(x, positions)
    torch.testing.assert_close(whole_head, torch.tensor([[c1 - s1, 0.0, c1 + s1, 0.0]]))


# --- against transformers: module tables, bit for bit, and rotations


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_qwen_vision_is_that_of_transformers(head_dim):
    module = qwen2.Qwen2VLVisionRotaryEmbedding(Qwen2VLVisionConfig(embed_dim=4 * head_dim, num_heads=4))
    rope = whorl.AxialRope(head_dim=head_dim, convention="qwen_vision", angles="float32")
    positions, q, k = whorl.grid(9, 13), data(1, 117, 4, head_dim), data(2, 117, 4, head_dim)
    tables = module(q, positions.T)
    check_tables(rope.tables(positions), tables)
    check_rotations(
        rope.transform_qk(q, k, positions, positions, order="thd"), qwen2.apply_rotary_pos_emb_vision(q, k, *tables)
    )


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_pixtral_is_that_of_transformers(head_dim):
    config = PixtralVisionConfig(hidden_size=4 * head_dim, num_attention_heads=4)
    rope = whorl.AxialRope(head_dim=head_dim, convention="pixtral", angles="float32")
    positions, q, k = whorl.grid(9, 13), data(3, 1, 4, 117, head_dim), data(4, 1, 4, 117, head_dim)
    tables = pixtral.PixtralVisionRotaryEmbedding(config)(q, positions.T)
    check_tables(rope.tables(positions), tables)
    theirs = pixtral.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=0)
    check_rotations(rope.transform_qk(q, k, positions, positions), theirs)


@pytest.mark.parametrize("head_dim", [88, *HEAD_DIMS])
def test_llama4_vision_is_that_of_transformers(head_dim):
    config = Llama4VisionConfig(hidden_size=4 * head_dim, num_attention_heads=4, image_size=7 * 14, patch_size=14)
    factors = llama4.Llama4VisionRotaryEmbedding(config).freqs_ci
    rope = whorl.AxialRope(head_dim=head_dim, convention="llama4_vision", angles="float32")
    positions = torch.cat((whorl.grid(7, 7, offset=1), torch.zeros(2, 1, dtype=torch.int64)), dim=1)
    cos, sin = rope.tables(positions)
    assert torch.equal(cos, factors.real[:, 0]) and torch.equal(sin, factors.imag[:, 0])
    q, k = data(5, 2, 50, 4, head_dim), data(6, 2, 50, 4, head_dim)
    theirs = llama4.vision_apply_rotary_emb(q, k, factors)
    check_rotations(rope.transform_qk(q, k, positions, positions, order="blhd"), theirs)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_dinov3_is_that_of_transformers(head_dim):
    config = DINOv3ViTConfig(hidden_size=4 * head_dim, num_attention_heads=4)
    module = dinov3.DINOv3ViTRopePositionEmbedding(config).eval()
    tables = module(torch.zeros(1, 3, 9 * config.patch_size, 13 * config.patch_size))
    rope = whorl.AxialRope(head_dim=head_dim, convention="dinov3", angles="float32")
    # the module's own rounded coordinates; ours are the exact centres
    theirs = dinov3.get_patches_center_coordinates(9, 13, torch.float32, torch.device("cpu")).T
    torch.testing.assert_close(whorl.normalized_grid(9, 13).float(), theirs, atol=2e-7, rtol=0)
    check_tables(rope.tables(theirs), tables)
    q, k = data(7, 1, 4, 5 + 117, head_dim), data(8, 1, 4, 5 + 117, head_dim)
    positions = torch.cat((torch.zeros(2, 5), theirs), dim=1)  # class and register tokens stay as they are
    check_rotations(rope.transform_qk(q, k, positions, positions), dinov3.apply_rotary_pos_emb(q, k, *tables))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_apex_with_columns_first_is_gemma4(head_dim):
    config = Gemma4VisionConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim)
    rope = whorl.AxialRope(head_dim=head_dim, convention="apex", base=100.0, angles="float32")
    positions, x = whorl.grid(9, 13).flip(0), data(9, 1, 117, 4, head_dim)
    cos, sin = gemma4.Gemma4VisionRotaryEmbedding(config)(x, positions.T[None])
    theirs = gemma4.apply_multidimensional_rope(x, cos, sin, positions.T[None])
    check_rotations([rope.rotate(x, positions, order="blhd")], [theirs])


def test_rope_vit_is_sam2():
    config = Sam2VideoConfig(memory_attention_hidden_size=128, rope_parameters={"rope_theta": 1e4})
    rope = whorl.AxialRope(head_dim=128, convention="rope_vit", base=10_000.0, angles="float32")
    positions, q, k = whorl.grid(9, 13), data(10, 1, 2, 117, 128), data(11, 1, 2, 117, 128)
    cos, sin = sam2.Sam2VideoVisionRotaryEmbedding(config)(q, positions.flip(0).T)
    check_rotations(
        rope.transform_qk(q, k, positions, positions), sam2.apply_rotary_pos_emb_2d(q, k, cos[0][None], sin[0][None])
    )


def check_tables(ours, theirs):
    pairs = ours[0].shape[-1]
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other[..., :pairs]) and torch.equal(own, other[..., pairs:])


def check_rotations(ours, theirs):
    for own, other in zip(ours, theirs, strict=True):
        assert own.shape == other.shape and (own - other).abs().max() <= 1e-6


# --- three axes


@pytest.mark.parametrize("convention", SPATIAL)
def test_video_has_one_head_per_axis(convention):
    """Each axis has the table of a plain RoPE of a third of the head: time, row, column, or the other way round."""
    rope = whorl.AxialRope(head_dim=48, convention=convention, axes=3)
    positions, base = whorl.grid(3, 4, 5), float(DEFAULT_BASE[convention])
    order = (2, 1, 0) if convention == "rope_vit" else (0, 1, 2)
    each = [whorl.Rope(head_dim=16, base=base).tables(positions[axis]) for axis in order]
    for got, expected in zip(rope.tables(positions), zip(*each, strict=True), strict=True):
        assert torch.equal(got, torch.cat(expected, dim=-1))
    x = data(12, 1, 2, 60, 48)
    if convention == "apex":
        parts = [whorl.rotate(x[..., 16 * i : 16 * (i + 1)], *tables, layout="half") for i, tables in enumerate(each)]
        assert torch.equal(rope.rotate(x, positions), torch.cat(parts, dim=-1))
    else:
        assert torch.equal(rope.rotate(x, positions), whorl.rotate(x, *rope.tables(positions), rope.layout))


def test_what_equal_shares_leave_of_a_head_is_not_turned():
    """MiniMax-M3: a third of 80 dimensions is 26 for each axis, and the last two stay as they are."""
    rope = whorl.AxialRope(head_dim=80, convention="minimax_vision", axes=3)
    frequencies, axis_of_pair = axes.minimax_vision(80, axes=3)
    assert list(rope.config.axis_of_pair) == axis_of_pair and len(frequencies) == 39
    expected = torch.tensor([float(w) for w in frequencies], dtype=torch.float64)
    torch.testing.assert_close(rope.frequencies(), expected, rtol=1e-14, atol=0)
    x, positions = data(12, 1, 2, 60, 80), whorl.grid(3, 4, 5)
    turned = rope.rotate(x, positions)
    assert torch.equal(turned[..., 78:], x[..., 78:])
    assert torch.equal(turned[..., :78], whorl.rotate(x[..., :78], *rope.tables(positions), "half"))


def test_a_still_video_is_turned_as_its_image():
    """Frames at time 0 differ from the image only in what the time axis does not turn."""
    video = whorl.AxialRope(head_dim=48, convention="apex", axes=3)
    image = whorl.AxialRope(head_dim=32, convention="apex")
    x, positions = data(13, 1, 2, 12, 48), whorl.grid(1, 3, 4)
    got = video.rotate(x, positions)
    assert torch.equal(got[..., :16], x[..., :16])
    assert torch.equal(got[..., 16:], image.rotate(x[..., 16:], positions[1:]))


# --- properties


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(c, 2) for c in CONVENTIONS] + [(c, 3) for c in SPATIAL]), st.data())
def test_scores_depend_on_the_difference_along_each_axis(case, draw):
    convention, count = case
    rope = whorl.AxialRope(head_dim=24, convention=convention, axes=count)
    number = st.floats(-8, 8, width=32) if convention == "dinov3" else st.integers(-10_000, 10_000)
    point = st.lists(number, min_size=count, max_size=count)
    m, n, shift = (torch.tensor(draw.draw(point), dtype=torch.float64).unsqueeze(-1) for _ in range(3))
    q, k = data(14, 1, 24, dtype=torch.float64), data(15, 1, 24, dtype=torch.float64)

    def score(at_q, at_k):
        turned = [rope.turn(x, rope.tables(at, dtype=torch.float64)) for x, at in ((q, at_q), (k, at_k))]
        assert abs(turned[0].norm() - q.norm()) < 1e-12
        return (turned[0] * turned[1]).sum()

    assert abs(score(m, n) - score(m + shift, n + shift)) < 1e-9
    assert rope.claims.relative and rope.claims.norm_preserving


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_one_dimensional_positions_serve_every_axis(convention):
    rope = whorl.AxialRope(head_dim=32, convention=convention)
    line = torch.arange(0, 200, 3)
    got, expected = rope.tables(line), rope.tables(line.expand(2, -1))
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))
    if convention == "qwen_vision":  # then both halves of the head have the table of a plain RoPE of that size
        half = whorl.Rope(head_dim=16).tables(line)
        assert all(torch.equal(one, torch.cat((two, two), dim=-1)) for one, two in zip(got, half, strict=True))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_position_zero_leaves_a_token_as_it_is(convention):
    rope, x = whorl.AxialRope(head_dim=32, convention=convention), data(16, 2, 3, 4, 32)
    assert torch.equal(rope.rotate(x, torch.zeros(2, 4, dtype=torch.int64)), x)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_kept_and_computed_tables_are_the_same_bits(convention):
    rope, positions, x = whorl.AxialRope(head_dim=32, convention=convention), whorl.grid(5, 7), data(17, 2, 3, 35, 32)
    kept = rope.rotate(x, positions)
    before = whorl.use_table_cache(whorl.TableCache("on_the_fly"))
    try:
        assert torch.equal(rope.rotate(x, positions), kept)
    finally:
        whorl.use_table_cache(before)
    torch.testing.assert_close(rope.rotate(kept, positions, inverse=True), x, atol=1e-6, rtol=0)


def test_images_of_a_batch_have_their_own_positions():
    rope, x = whorl.AxialRope(head_dim=32, convention="rope_vit"), data(18, 2, 3, 12, 32)
    rows = [whorl.grid(3, 4), whorl.grid(2, 6)]
    whole = rope.rotate(x, torch.stack(rows, dim=1))
    for row, positions in enumerate(rows):
        assert torch.equal(rope.rotate(x[row : row + 1], positions), whole[row : row + 1])


@pytest.mark.parametrize("convention", ["dinov3", "apex"])
def test_compiles_without_a_graph_break(convention):
    rope = whorl.AxialRope(head_dim=32, convention=convention)
    positions, x = cells(convention, 3, 4), data(19, 2, 3, 12, 32)
    compiled = torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, positions), rope.rotate(x, positions), atol=1e-6, rtol=0)


@pytest.mark.parametrize("angles", ["exact", "float32"])
def test_coordinates_get_gradients(angles):
    """DINOv3's coordinates may be moved in training."""
    rope = whorl.AxialRope(head_dim=16, convention="dinov3", angles=angles)
    positions = whorl.normalized_grid(2, 3).requires_grad_()
    (rope.rotate(data(20, 1, 2, 6, 16), positions) ** 3).sum().backward()
    assert positions.grad is not None and (positions.grad != 0).all()


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_config_is_identity(convention):
    rope = whorl.AxialRope(head_dim=48, convention=convention)
    again = whorl.from_dict(rope.config.to_dict())
    assert type(again) is whorl.AxialRope and again.config == rope.config and hash(again.config) == hash(rope.config)
    assert rope.config == whorl.AxialRope(head_dim=48, convention=convention, base=DEFAULT_BASE[convention]).config
    assert copy.deepcopy(rope).config == pickle.loads(pickle.dumps(rope)).config == rope.config
    assert not rope.state_dict()
    assert whorl.build_for("axial_rope", heads=2, head_dim=48, width=96, length=9, convention=convention)


def test_two_conventions_share_no_table():
    positions, x = whorl.grid(3, 4), data(21, 1, 2, 12, 32)
    turned = {c: whorl.AxialRope(head_dim=32, convention=c).rotate(x, positions) for c in CONVENTIONS}
    turned["sam 2"] = whorl.AxialRope(head_dim=32, convention="rope_vit", base=10_000.0).rotate(x, positions)
    same = [pair for pair in itertools.combinations(turned, 2) if torch.equal(*(turned[one] for one in pair))]
    # rope_vit with another base, their positions aside; and a head of which equal shares leave nothing
    assert same == [("qwen_vision", "minimax_vision"), ("llama4_vision", "sam 2")]


# --- bad input


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"convention": "rope-vit"}, "AxialRope: unknown convention 'rope-vit'. Did you mean 'rope_vit'?"),
        ({"convention": "apex", "head_dim": 0}, "AxialRope: head_dim must be positive, got 0."),
        (
            {"convention": "apex", "head_dim": 66},
            "AxialRope: head_dim must be a multiple of 4, got 66. 2 axes share its pairs equally; use head_dim=68",
        ),
        ({"convention": "pixtral", "head_dim": 2}, "AxialRope: head_dim must be a multiple of 4, got 2."),
        (
            {"convention": "rope_vit", "axes": 3},
            "AxialRope: head_dim must be a multiple of 6, got 64. 3 axes share its pairs equally; use head_dim=66",
        ),
        ({"convention": "rope_vit", "axes": 1}, "AxialRope: axes must be 2 or more, got 1. With one axis use Rope."),
        (
            {"convention": "dinov3", "axes": 4},
            "AxialRope: convention='dinov3' is for images, with 2 axes, got axes=4. Use 'rope_vit' or",
        ),
        ({"convention": "pixtral", "axes": 4}, "AxialRope: convention='pixtral' is for images, with 2 axes"),
        ({"convention": "llama4_vision", "axes": 4}, "AxialRope: convention='llama4_vision' is for images"),
        ({"convention": "apex", "axes": 2.0}, "AxialRope: axes must be an integer, got 2.0."),
        (
            {"convention": "dinov3", "base": 1.0},
            "AxialRope: base must be larger than 1, got 1.0. dinov3 uses 100.",
        ),
        ({"convention": "apex", "base": float("nan")}, "AxialRope: base must be finite, got nan."),
        ({"convention": "apex", "layout": "half"}, "AxialRope: unknown setting 'layout'."),
        ({"convention": "apex", "rotated_heads": ()}, "AxialRope: rotated_heads must be distinct head indices from 0"),
    ],
)
def test_bad_settings(settings_, message):
    with pytest.raises(whorl.WhorlError) as error:
        whorl.AxialRope(**{"head_dim": 64} | settings_)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("convention", ["rope_vit", "dinov3"])
@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.zeros(3, 12), "AxialRope: positions must be of shape (length,), (2, length) or (2, batch, length), got"),
        (torch.zeros(2, 12).half(), "AxialRope: positions must be int32, int64, float32 or float64, got"),
        ([[0], [1]], "AxialRope: positions must be a tensor, got [[0], [1]]."),
    ],
)
def test_bad_positions(convention, positions, message):
    rope = whorl.AxialRope(head_dim=32, convention=convention)
    with pytest.raises(whorl.WhorlError) as error:
        rope.rotate(torch.zeros(1, 2, 12, 32), positions)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("head_dim", [8, 196, 392])  # 1 / (4 / 196) is above 49, so that arange has a number too many
def test_dinov3_has_a_frequency_for_each_pair_where_its_step_is_rounded(head_dim):
    frequencies = whorl.AxialRope(head_dim=head_dim, convention="dinov3").frequencies()
    expected = [2 * math.pi * 100 ** (-4 * i / head_dim) for i in range(head_dim // 4)]
    assert frequencies.tolist() == pytest.approx(expected + expected, rel=1e-12)
