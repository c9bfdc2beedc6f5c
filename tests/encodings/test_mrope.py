"""M-RoPE: one vector of axes gives every public arrangement, and each axis is exact."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie45
from transformers.models.ernie4_5_vl_moe.configuration_ernie4_5_vl_moe import Ernie4_5_VLMoeTextConfig
from transformers.models.glm4v import modeling_glm4v as glm4v
from transformers.models.glm4v.configuration_glm4v import Glm4vTextConfig
from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan
from transformers.models.hunyuan_vl.configuration_hunyuan_vl import HunYuanVLTextConfig
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

import whorl
from oracles import axes, rotary_frequencies, rotary_tables, rotation
from whorl import WhorlError
from whorl.encodings.mrope import shares

BOUND = 4.0e-8  # rounding to float32 alone is 3.0e-8
ORACLES = {
    "chunked": axes.mrope_chunked,
    "interleaved": axes.mrope_interleaved,
    "ernie": axes.mrope_ernie,
    "alternating": axes.mrope_alternating,
}
# arrangement and sections for a head of 32 dimensions, 16 pairs
SMALL = [("chunked", (4, 6, 6)), ("chunked", (4, 4, 4, 4)), ("interleaved", (6, 5, 5)), ("ernie", (5, 5, 6))]
SMALL.append(("alternating", (8, 8)))
PUBLIC = {
    "qwen2_vl": {"sections": (16, 24, 24), "base": 1e6},
    "qwen3_vl": {"sections": (24, 20, 20), "base": 5e6, "arrangement": "interleaved"},
    "ernie4_5_vl": {"sections": (22, 22, 20), "base": 5e5, "arrangement": "ernie", "layout": "interleaved"},
    "glm4v": {"sections": (8, 12, 12), "rotary_dim": 64, "layout": "interleaved"},
}


def ids(seed, *shape, high=5000):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def data(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hf_module(name):
    """The module of transformers, its function that rotates, and how it spreads a table over the head."""
    size = {"hidden_size": 512, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": PUBLIC[name].get("base", 1e4)}
    rope["mrope_section"] = list(PUBLIC[name]["sections"])
    if name == "qwen2_vl":
        module = qwen2.Qwen2VLRotaryEmbedding(Qwen2VLTextConfig(**size, rope_parameters=rope))
        return module, qwen2.apply_rotary_pos_emb, slice(0, 64)
    if name == "qwen3_vl":
        module = qwen3.Qwen3VLTextRotaryEmbedding(Qwen3VLTextConfig(**size, head_dim=128, rope_parameters=rope))
        return module, qwen3.apply_rotary_pos_emb, slice(0, 64)
    if name == "ernie4_5_vl":
        config = Ernie4_5_VLMoeTextConfig(**size, rope_parameters=rope)
        return ernie45.Ernie4_5_VLMoeTextRotaryEmbedding(config), ernie45.apply_rotary_pos_emb, slice(0, None, 2)
    config = Glm4vTextConfig(**size, rope_parameters=rope | {"partial_rotary_factor": 0.5})
    return glm4v.Glm4vTextRotaryEmbedding(config), glm4v.apply_rotary_pos_emb, slice(0, None, 2)


# --- the vector of axes


@pytest.mark.parametrize("settings_", [*PUBLIC.values()])
def test_axes_of_public_models(settings_):
    config = whorl.MRope(head_dim=128, **settings_).config
    assert list(config.axis_of_pair) == ORACLES[config.arrangement](config.sections)
    assert config.axes == 3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_chunked_takes_any_number_of_axes(sections):
    config = whorl.MRope(head_dim=2 * sum(sections), sections=sections).config
    assert list(config.axis_of_pair) == axes.mrope_chunked(sections)
    assert config.axes == len(sections)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_interleaved_has_every_section_in_full_or_raises(time, rows, columns):
    sections = (time, rows, columns)
    expected = axes.mrope_interleaved(sections)
    fits = all(expected.count(axis) == size for axis, size in enumerate(sections))
    try:
        config = whorl.MRope(head_dim=2 * sum(sections), sections=sections, arrangement="interleaved").config
    except whorl.WhorlError as error:
        assert not fits and "come out short" in str(error)
    else:
        assert fits and list(config.axis_of_pair) == expected


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20))
def test_ernie_alternates_rows_and_columns(rows, time):
    sections = (rows, rows, time)
    config = whorl.MRope(head_dim=2 * sum(sections), sections=sections, arrangement="ernie").config
    assert list(config.axis_of_pair) == axes.mrope_ernie(sections)


# --- against 50 digits


@pytest.mark.parametrize(("arrangement", "sections"), SMALL)
def test_tables_are_exact_on_every_axis(arrangement, sections):
    mrope = whorl.MRope(head_dim=32, base=1e6, sections=sections, arrangement=arrangement)
    far = torch.tensor([0, 1, 511, 131_071, 16_777_216])
    positions = torch.stack([far.roll(axis) + axis for axis in range(len(sections))])
    cos, sin = mrope.tables(positions)
    frequencies = rotary_frequencies.plain(32, 1e6)
    for pair, axis in enumerate(ORACLES[arrangement](sections)):
        for token, position in enumerate(positions[axis].tolist()):
            true_cos, true_sin = rotary_tables.cos_sin(position, frequencies[pair])
            assert abs(float(cos[token, pair]) - float(true_cos)) <= BOUND
            assert abs(float(sin[token, pair]) - float(true_sin)) <= BOUND


@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_to_half"])
@pytest.mark.parametrize(("arrangement", "sections"), SMALL)
def test_rotation_is_that_of_the_paper(arrangement, sections, layout):
    """A partial, trailing rotation of 32 of 40 dimensions, with a scaling, against matrices built by hand."""
    mrope = whorl.MRope(
        head_dim=40,
        rotary_dim=32,
        slice="trailing",
        layout=layout,
        sections=sections,
        arrangement=arrangement,
        scaling=whorl.Linear(factor=4.0),
    )
    positions, x = ids(0, len(sections), 3), data(1, 3, 40, dtype=torch.float64)
    got = mrope.turn(x, mrope.tables(positions, dtype=torch.float64))
    frequencies, axis_of_pair = rotary_frequencies.linear(32, 10_000, 4), ORACLES[arrangement](sections)
    for token in range(3):
        angles = [int(positions[axis, token]) * frequencies[pair] for pair, axis in enumerate(axis_of_pair)]
        expected = torch.from_numpy(rotation.rotate(x[token].numpy(), angles, layout, start=8))
        assert (got[token] - expected).abs().max() < 1e-11


# --- against transformers


@pytest.mark.parametrize("name", PUBLIC)
def test_transformers_bit_for_bit(name):
    module, apply, own = hf_module(name)
    mrope = whorl.MRope(head_dim=128, angles="float32", **PUBLIC[name])
    positions, q, k = ids(2, 3, 2, 17), data(3, 2, 4, 17, 128), data(4, 2, 2, 17, 128)
    cos, sin = module(q, positions)
    assert torch.equal(mrope.tables(positions)[0], cos[..., own])
    assert torch.equal(mrope.tables(positions)[1], sin[..., own])
    for got, expected in zip(mrope.transform_qk(q, k, positions, positions), apply(q, k, cos, sin), strict=True):
        assert (got - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("name", PUBLIC)
def test_exact_tables_are_within_the_error_of_transformers(name):
    module, _, own = hf_module(name)
    mrope = whorl.MRope(head_dim=128, **PUBLIC[name])
    positions = ids(5, 3, 2, 17, high=100_000)
    true = mrope.tables(positions, dtype=torch.float64)
    for ours, theirs, exact in zip(mrope.tables(positions), module(torch.zeros(1), positions), true, strict=True):
        error = (theirs[..., own].double() - exact).abs()
        assert 1e-4 < error.max() < 0.1
        assert ((ours - theirs[..., own]).abs() <= error + BOUND).all()


def test_transformers_with_yarn():
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    config = Qwen2VLTextConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters=rope | {"mrope_section": [16, 24, 24]},
    )
    positions = ids(6, 3, 2, 17, high=131072)
    cos, sin = qwen2.Qwen2VLRotaryEmbedding(config)(torch.zeros(1), positions)
    yarn = whorl.Yarn(factor=4.0, original_length=32768)
    mrope = whorl.MRope(head_dim=128, sections=(16, 24, 24), base=1e6, scaling=yarn, angles="float32")
    assert torch.equal(mrope.tables(positions)[0], cos[..., :64])
    assert torch.equal(mrope.tables(positions)[1], sin[..., :64])
    assert not mrope.claims.norm_preserving


def test_four_axes_of_hunyuan_where_transformers_is_no_rotation():
    """transformers 5.22.2 splits dimensions, not pairs, by sections: the two halves of a pair read different axes.

    HunYuan's own code, mlx-vlm and vLLM split pairs, as we do. For text, where all axes agree, all are equal.
    """
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]}
    config = HunYuanVLTextConfig(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=rope)
    module, mrope = hunyuan.HunYuanVLRotaryEmbedding(config), whorl.MRope(head_dim=128, sections=(16,) * 4)
    q = data(7, 2, 4, 17, 128)

    def rotated(positions):
        theirs, _ = hunyuan.apply_rotary_pos_emb(q, q, *module(q, positions))
        return theirs, mrope.rotate(q, positions)

    theirs, ours = rotated(ids(8, 1, 2, 17, high=500).expand(4, -1, -1))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    theirs, ours = rotated(ids(9, 4, 2, 17, high=500))
    torch.testing.assert_close(ours.norm(dim=-1), q.norm(dim=-1))
    assert ((theirs.norm(dim=-1) / q.norm(dim=-1)) - 1).abs().max() > 0.05


def test_own_ladders_are_those_of_heads_of_each_size():
    mrope = whorl.MRope(head_dim=128, sections=(8, 28, 28), own_ladders=True, base=256.0)
    each = [float(w) for size in (16, 56, 56) for w in rotary_frequencies.plain(size, 256.0)]
    torch.testing.assert_close(mrope.frequencies(), torch.tensor(each, dtype=torch.float64), rtol=1e-14, atol=0)
    assert mrope.config.axis_of_pair == (0,) * 8 + (1,) * 28 + (2,) * 28


# --- properties


@pytest.mark.parametrize(("arrangement", "sections"), SMALL)
def test_text_is_turned_as_rope_turns_it(arrangement, sections):
    mrope, rope = whorl.MRope(head_dim=32, sections=sections, arrangement=arrangement), whorl.Rope(head_dim=32)
    line = torch.arange(0, 3000, 7)
    for positions in (line, line.expand(len(sections), -1)):
        for got, expected in zip(mrope.tables(positions), rope.tables(line), strict=True):
            assert (got - expected).abs().max() <= 2**-24
    x = data(10, 1, 2, len(line), 32)
    torch.testing.assert_close(mrope.rotate(x, line), rope.rotate(x, line), atol=1e-6, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SMALL), st.data())
def test_scores_depend_on_the_difference_along_each_axis(case, draw):
    arrangement, sections = case
    mrope = whorl.MRope(head_dim=32, sections=sections, arrangement=arrangement)
    point = st.lists(st.integers(-10_000, 10_000), min_size=len(sections), max_size=len(sections))
    m, n, shift = (torch.tensor(draw.draw(point)).unsqueeze(-1) for _ in range(3))
    q, k = data(11, 1, 32, dtype=torch.float64), data(12, 1, 32, dtype=torch.float64)

    def score(at_q, at_k):
        turned = [mrope.turn(x, mrope.tables(at, dtype=torch.float64)) for x, at in ((q, at_q), (k, at_k))]
        assert abs(turned[0].norm() - q.norm()) < 1e-12
        return (turned[0] * turned[1]).sum()

    assert abs(score(m, n) - score(m + shift, n + shift)) < 1e-9


@pytest.mark.parametrize(("arrangement", "sections"), SMALL)
def test_an_axis_turns_its_own_pairs_and_no_other(arrangement, sections):
    mrope = whorl.MRope(head_dim=32, sections=sections, arrangement=arrangement)
    positions = ids(13, len(sections), 5) + 1
    before = torch.stack(mrope.tables(positions))
    for axis in range(len(sections)):
        moved = positions.clone()
        moved[axis] += 3
        changed = (torch.stack(mrope.tables(moved)) != before).any(0).all(0)
        assert changed.tolist() == [one == axis for one in mrope.config.axis_of_pair]


@pytest.mark.parametrize(("arrangement", "sections"), SMALL)
def test_kept_and_computed_tables_are_the_same_bits(arrangement, sections):
    mrope = whorl.MRope(head_dim=32, sections=sections, arrangement=arrangement)
    positions, x = ids(14, len(sections), 2, 9), data(15, 2, 3, 9, 32)
    kept = mrope.rotate(x, positions)
    before = whorl.use_table_cache(whorl.TableCache("on_the_fly"))
    try:
        assert torch.equal(mrope.rotate(x, positions), kept)
    finally:
        whorl.use_table_cache(before)
    torch.testing.assert_close(mrope.rotate(kept, positions, inverse=True), x, atol=1e-6, rtol=0)


def test_positions_of_a_batch_are_those_of_its_rows():
    mrope, positions, x = whorl.MRope(head_dim=32, sections=(4, 6, 6)), ids(16, 3, 2, 9), data(17, 2, 3, 9, 32)
    whole = mrope.rotate(x, positions)
    for row in range(2):
        assert torch.equal(mrope.rotate(x[row : row + 1], positions[:, row]), whole[row : row + 1])
    assert torch.equal(mrope.rotate(x.transpose(1, 2), positions, order="blhd"), whole.transpose(1, 2))
    tokens = mrope.rotate(x[0].transpose(0, 1), positions[:, 0], order="thd")
    assert torch.equal(tokens, whole[0].transpose(0, 1))


def test_a_length_dependent_scaling_takes_the_length():
    scaling = whorl.DynamicNtk(factor=2.0, original_length=64)
    mrope, positions = whorl.MRope(head_dim=32, sections=(4, 6, 6), scaling=scaling), ids(18, 3, 5)
    plain = whorl.MRope(head_dim=32, sections=(4, 6, 6)).tables(positions)[0]
    assert mrope.length_dependent
    assert torch.equal(mrope.tables(positions, 64)[0], plain)
    assert (mrope.tables(positions, 256)[0] - plain).abs().max() > 0.1


def test_learnable_frequencies_get_gradients_on_every_axis():
    mrope = whorl.MRope(head_dim=32, sections=(6, 5, 5), arrangement="interleaved", learnable=True)
    positions, x = ids(19, 3, 7) + 1, data(20, 1, 2, 7, 32)
    (mrope.rotate(x, positions) ** 3).sum().backward()
    assert mrope.log_scale.grad is not None and (mrope.log_scale.grad != 0).all()


def test_compiles_without_a_graph_break():
    mrope = whorl.MRope(head_dim=32, sections=(6, 5, 5), arrangement="interleaved")
    positions, x = ids(21, 3, 2, 9), data(22, 2, 3, 9, 32)
    compiled = torch.compile(mrope.rotate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, positions), mrope.rotate(x, positions), atol=1e-6, rtol=0)


@pytest.mark.parametrize("settings_", [*PUBLIC.values(), {"sections": [16] * 4, "scaling": whorl.Linear(factor=2.0)}])
def test_config_is_identity(settings_):
    mrope = whorl.MRope(head_dim=128, **settings_)
    again = whorl.from_dict(mrope.config.to_dict())
    assert type(again) is whorl.MRope and again.config == mrope.config and hash(again.config) == hash(mrope.config)
    assert copy.deepcopy(mrope).config == pickle.loads(pickle.dumps(mrope)).config == mrope.config
    assert not mrope.state_dict()
    assert whorl.build("mrope", head_dim=128, **settings_).config == mrope.config


def test_two_axes_in_turn_share_pairs_alike():
    assert [shares(pairs, "alternating") for pairs in (16, 64)] == [(8, 8), (32, 32)]


def test_two_arrangements_share_no_table():
    positions, x = ids(23, 3, 9), data(24, 1, 2, 9, 32)
    settings_ = [
        {"sections": (6, 5, 5)},
        {"sections": (5, 6, 5)},
        {"sections": (6, 5, 5), "arrangement": "interleaved"},
    ]
    turned = [whorl.MRope(head_dim=32, **each).rotate(x, positions) for each in settings_]
    assert not any(torch.equal(turned[i], turned[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


# --- bad input


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"sections": (32,)}, "MRope: sections must be at least 2 positive integers, got (32,)."),
        ({"sections": ()}, "MRope: sections must be at least 2 positive integers, got ()."),
        ({"sections": (32, 0)}, "MRope: sections must be at least 2 positive integers, got (32, 0)."),
        ({"sections": (40, -8)}, "MRope: sections must be at least 2 positive integers, got (40, -8)."),
        ({"sections": 32}, "MRope: sections must be a list of integers, got 32."),
        ({"sections": (8.0, 12, 12)}, "MRope: sections[0] must be an integer, got 8.0."),
        (
            {"sections": (16, 24, 24)},
            "MRope: sections must sum to rotary_dim / 2 = 32, got (16, 24, 24), which sum to 64.",
        ),
        ({"sections": (8, 12, 12), "rotary_dim": 32}, "MRope: sections must sum to rotary_dim / 2 = 16"),
        (
            {"sections": (8, 8, 8, 8), "arrangement": "interleaved"},
            "MRope: arrangement='interleaved' takes 3 sections, got (8, 8, 8, 8). Use arrangement='chunked'",
        ),
        ({"sections": (16, 16), "arrangement": "ernie"}, "MRope: arrangement='ernie' takes 3 sections, got (16, 16)."),
        (
            {"sections": (10, 12, 10), "arrangement": "interleaved"},
            "MRope: arrangement='interleaved' has room for at most 11 row and 10 column pairs of 32",
        ),
        (
            {"sections": (10, 11, 11), "arrangement": "interleaved"},
            "MRope: arrangement='interleaved' has room for at most 11 row and 10 column pairs of 32",
        ),
        (
            {"sections": (10, 12, 10), "arrangement": "ernie"},
            "MRope: arrangement='ernie' alternates rows and columns, so sections (h, w, t) must have h == w",
        ),
        (
            {"sections": (10, 22), "arrangement": "alternating"},
            "MRope: arrangement='alternating' gives each axis every n-th pair, so sections must be equal, got (10, 22)",
        ),
        (
            {"sections": (8, 12, 12), "own_ladders": True, "scaling": whorl.Linear(factor=2.0)},
            "MRope: own_ladders=True has a ladder for each axis, one after another, and none of scaling.",
        ),
        (
            {"sections": (8, 12, 12), "own_ladders": True, "arrangement": "interleaved"},
            "MRope: own_ladders=True has a ladder for each axis, one after another, and none of arrangement.",
        ),
        (
            {"sections": (8, 12, 12), "arrangement": "interleave"},
            "MRope: unknown arrangement 'interleave'. Did you mean 'interleaved'?",
        ),
        ({"section": (8, 12, 12)}, "MRope: unknown setting 'section'. Did you mean 'sections'?"),
    ],
)
def test_bad_settings(settings_, message):
    with pytest.raises(whorl.WhorlError) as error:
        whorl.MRope(head_dim=64, **settings_)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("shape", [(2, 5), (5, 3), (4, 1, 5), (3, 1, 1, 5)])
def test_positions_have_the_axes_first(shape):
    mrope = whorl.MRope(head_dim=64, sections=(8, 12, 12))
    with pytest.raises(whorl.WhorlError) as error:
        mrope.tables(torch.zeros(shape, dtype=torch.int64))
    expected = "MRope: positions must be of shape (length,), (3, length) or (3, batch, length), got"
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize("dim", range(2, 18, 2))
@pytest.mark.parametrize("arrangement", ["chunked", "interleaved", "ernie", "alternating"])
def test_pairs_that_axes_cannot_share_are_told_without_sections_that_nobody_gave(arrangement, dim):
    """What the error advises works."""
    advised = {"alternating": 4, "interleaved": 8}.get(arrangement, 6)  # the smallest that works
    try:
        made = whorl.MRope(head_dim=dim, arrangement=arrangement)
    except WhorlError as error:
        assert dim % 4 if arrangement == "alternating" else dim < advised
        what = "divisible by 4" if arrangement == "alternating" else f"of at least {advised}"
        assert str(error).startswith(f"MRope: rotary_dim={dim} cannot be shared among ")
        assert str(error).endswith(f"Choose one {what}; it is head_dim unless given.")
        made = whorl.MRope(head_dim=dim + advised, rotary_dim=advised, arrangement=arrangement)
    assert min(made.config.sections) >= 1 and 2 * sum(made.config.sections) == made.config.rotary_dim
