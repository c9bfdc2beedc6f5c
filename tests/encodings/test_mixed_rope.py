"""Mixed RoPE: frequencies of rows and columns learned for each head, relative whatever they become."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

import whorl
from oracles import rotary_frequencies, rotation
from whorl.encodings.mixed_rope import mixed_angles

BOUND = 4.0e-8  # rounding to float32 alone is 3.0e-8
HEADS, HEAD_DIM = 3, 16


def data(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def trained(seed=1, **settings_):
    """A mixed RoPE whose frequencies are no longer those it started from."""
    rope = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, **settings_)
    with torch.no_grad():
        rope.frequencies_2d.add_(0.3 * data(seed, 2, HEADS, HEAD_DIM // 2))
    return rope


def oracle_angles(rope, head, row, column):
    of_rows, of_columns = rope.frequencies_2d[:, head].tolist()
    with mp.workdps(50):
        return [mpf(row) * mpf(u) + mpf(column) * mpf(v) for u, v in zip(of_rows, of_columns, strict=True)]


# --- where it starts


@pytest.mark.parametrize("base", [10.0, 100.0])
def test_start_is_a_ladder_in_two_directions_at_right_angles(base):
    rope = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, base=base)
    sizes = torch.tensor([float(w) for w in rotary_frequencies.plain(HEAD_DIM // 2, base)], dtype=torch.float64)
    row, column = rope.frequencies().detach()
    torch.testing.assert_close((row**2 + column**2).sqrt(), sizes.repeat(2).expand(HEADS, -1), rtol=1e-6, atol=0)
    direction = torch.atan2(row, column)
    first, second = direction.chunk(2, dim=-1)
    torch.testing.assert_close(first, first[:, :1].expand_as(first), rtol=0, atol=1e-6)
    torch.testing.assert_close((second - first) % (2 * math.pi), torch.full_like(first, math.pi / 2), rtol=0, atol=1e-6)
    assert len({round(angle, 4) for angle in first[:, 0].tolist()}) == HEADS


def test_start_depends_on_the_seed_alone():
    torch.manual_seed(1)
    one = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS).frequencies_2d
    state = torch.get_rng_state()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS).frequencies_2d
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(before, state)
    assert not torch.equal(one, whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, seed=1).frequencies_2d)


def test_directions_are_uniform_over_the_circle():
    row, column = whorl.MixedRope(head_dim=4, heads=4000).frequencies().detach()[..., 0]
    turns = torch.atan2(row, column) / (2 * math.pi) % 1
    gap = (turns.sort().values - (torch.arange(4000) + 0.5) / 4000).abs().max()  # Kolmogorov's distance
    assert gap < 1.95 / math.sqrt(4000)  # passed by 1 in 1000 uniform draws


# --- against 50 digits


def test_tables_are_exact():
    rope, positions = trained(), torch.tensor([[0, 1, 13, 4095, 131_071], [0, 2, 7, 8191, 65_535]])
    cos, sin = (table.detach() for table in rope.tables(positions))
    assert cos.shape == sin.shape == (1, HEADS, 5, HEAD_DIM // 2)
    for head in range(HEADS):
        for token, (row, column) in enumerate(positions.T.tolist()):
            for pair, angle in enumerate(oracle_angles(rope, head, row, column)):
                with mp.workdps(50):
                    assert abs(float(cos[0, head, token, pair]) - float(mp.cos(angle))) <= BOUND
                    assert abs(float(sin[0, head, token, pair]) - float(mp.sin(angle))) <= BOUND


def test_rotation_is_that_of_the_paper():
    rope, positions, x = trained(), whorl.grid(2, 3), data(2, 1, HEADS, 6, HEAD_DIM, dtype=torch.float64)
    got = rope.turn(x, rope.tables(positions, dtype=torch.float64))
    for head in range(HEADS):
        for token, (row, column) in enumerate(positions.T.tolist()):
            angles = oracle_angles(rope, head, row, column)
            expected = rotation.rotate_complex(x[0, head, token].tolist(), angles)
            assert (got[0, head, token] - torch.from_numpy(expected)).abs().max() < 1e-13


def test_axial_rope_is_a_special_case():
    """With frequencies along the axes only, every head is RoPE-ViT's axial one."""
    rope, axial = whorl.MixedRope(head_dim=32, heads=2), whorl.AxialRope(head_dim=32, convention="rope_vit", base=10.0)
    own = torch.zeros(2, 2, 16)
    for pair, axis in enumerate(axial.config.axis_of_pair):
        own[axis, :, pair] = axial.frequencies()[pair]
    rope.load_state_dict({"frequencies_2d": own})
    x, positions = data(3, 1, 2, 20, 32), whorl.grid(4, 5)
    torch.testing.assert_close(rope.rotate(x, positions), axial.rotate(x, positions), atol=2e-6, rtol=0)


# --- properties


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-10_000, 10_000), min_size=6, max_size=6), st.integers(0, 5))
def test_scores_depend_on_the_difference_in_row_and_column(numbers, seed):
    rope = trained(seed)
    m, n, shift = torch.tensor(numbers).view(3, 2, 1).unbind()
    q, k = data(4, HEADS, 1, HEAD_DIM, dtype=torch.float64), data(5, HEADS, 1, HEAD_DIM, dtype=torch.float64)

    def scores(at_q, at_k):
        turned = [rope.turn(x, rope.tables(at, dtype=torch.float64)) for x, at in ((q, at_q), (k, at_k))]
        torch.testing.assert_close(turned[0].norm(dim=-1), q.norm(dim=-1), rtol=1e-13, atol=0)
        return (turned[0] * turned[1]).sum(-1)

    torch.testing.assert_close(scores(m, n), scores(m + shift, n + shift), atol=1e-9, rtol=0)


def test_claims():
    claims = trained().claims
    assert claims.relative and claims.norm_preserving and not claims.extrapolates
    assert trained().enters() == ("transform_qk",)


def test_heads_differ_and_zero_is_the_identity():
    rope, x = trained(), data(6, 1, 1, 6, HEAD_DIM).expand(-1, HEADS, -1, -1)
    turned = rope.rotate(x, whorl.grid(2, 3))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not any(torch.equal(turned[0, i], turned[0, j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    only = trained(rotated_heads=[1]).rotate(x, whorl.grid(2, 3))
    assert torch.equal(only[:, 1], turned[:, 1]) and torch.equal(only[:, [0, 2]], x[:, [0, 2]])


def test_positions_of_a_batch_and_every_order():
    rope, x = trained(), data(7, 2, HEADS, 12, HEAD_DIM)
    rows = [whorl.grid(3, 4), whorl.grid(2, 6)]
    positions = torch.stack(rows, dim=1)
    assert rope.tables(positions)[0].shape == (2, HEADS, 12, HEAD_DIM // 2)
    whole = rope.rotate(x, positions)
    for row, own in enumerate(rows):
        assert torch.equal(rope.rotate(x[row : row + 1], own), whole[row : row + 1])
        assert torch.equal(rope.rotate(x[row], own), whole[row])  # no batch axis
        packed = rope.rotate(x[row].transpose(0, 1), own, order="thd")
        assert torch.equal(packed, whole[row].transpose(0, 1))
    assert torch.equal(rope.rotate(x.transpose(1, 2), positions, order="blhd"), whole.transpose(1, 2))
    torch.testing.assert_close(rope.rotate(whole, positions, inverse=True), x, atol=1e-6, rtol=0)
    q, k = rope.transform_qk(x, x, positions, rows[0])
    assert torch.equal(q, whole) and torch.equal(k, rope.rotate(x, rows[0]))


def test_keys_move_to_other_positions():
    rope, x, old = trained(), data(8, 1, HEADS, 6, HEAD_DIM), whorl.grid(2, 3)
    moved = whorl.rerotate(rope.rotate(x, old), rope, rope, old, new_positions=old + 5)
    torch.testing.assert_close(moved, rope.rotate(x, old + 5), atol=2e-6, rtol=0)


# --- learning


def test_gradients_are_those_of_finite_differences():
    positions = torch.stack((whorl.grid(2, 2), whorl.grid(2, 2) + 3), dim=1).double()
    x = data(9, 2, 2, 4, 8, dtype=torch.float64)
    frequencies = 0.5 * data(10, 2, 2, 4, dtype=torch.float64)

    def turned(x, positions, frequencies):
        angles = mixed_angles(positions, frequencies)
        return whorl.rotate(x, angles.cos(), angles.sin(), layout="interleaved")

    inputs = tuple(t.requires_grad_() for t in (x, positions, frequencies))
    assert torch.autograd.gradcheck(turned, inputs)


def test_learned_frequencies_get_gradients_and_change_the_next_call():
    rope, x, positions = (
        whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS),
        data(11, 1, HEADS, 6, HEAD_DIM),
        whorl.grid(2, 3),
    )
    before = rope.rotate(x, positions)
    (before**3).sum().backward()
    assert rope.frequencies_2d.grad is not None and (rope.frequencies_2d.grad != 0).all()
    torch.optim.SGD(rope.parameters(), lr=0.1).step()
    assert (rope.rotate(x, positions) - before).abs().max() > 1e-3


def test_compiles_without_a_graph_break():
    rope, x, positions = trained(), data(12, 1, HEADS, 6, HEAD_DIM), whorl.grid(2, 3)
    compiled = torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")
    got = compiled(x, positions)
    torch.testing.assert_close(got, rope.rotate(x, positions), atol=1e-6, rtol=0)
    (grad,) = torch.autograd.grad((got**3).sum(), rope.frequencies_2d)
    (expected,) = torch.autograd.grad((rope.rotate(x, positions) ** 3).sum(), rope.frequencies_2d)
    torch.testing.assert_close(grad, expected)


# --- life cycle


def test_state_dict_and_copies_carry_the_frequencies():
    rope, positions = trained(), whorl.grid(2, 3)
    other = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, seed=9)
    assert list(rope.state_dict()) == ["frequencies_2d"]
    other.load_state_dict(rope.state_dict())
    for same in (other, copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):
        assert all(torch.equal(*pair) for pair in zip(same.tables(positions), rope.tables(positions), strict=True))


def test_meta_device_then_reset_is_the_same_as_building():
    with torch.device("meta"):
        rope = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, seed=4)
    assert rope.frequencies_2d.is_meta
    rope.to_empty(device="cpu")
    with torch.no_grad():
        rope.frequencies_2d.fill_(math.nan)
    rope.reset_parameters()
    assert torch.equal(rope.frequencies_2d, whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, seed=4).frequencies_2d)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casting_the_module_loses_no_digit(dtype):
    rope, positions = trained(), whorl.grid(2, 3)
    before = rope.tables(positions)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), rope).to(dtype)
    assert model[0].weight.dtype == dtype
    assert rope.frequencies_2d.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(torch.equal(*pair) for pair in zip(rope.tables(positions), before, strict=True))
    x = data(13, 1, HEADS, 6, HEAD_DIM).to(dtype)
    assert rope.rotate(x, positions).dtype == dtype


def test_bfloat16_input_is_turned_with_float32_tables():
    rope, positions, x = trained(), whorl.grid(30, 30), data(14, 1, HEADS, 900, HEAD_DIM).bfloat16()
    expected = rope.turn(x.double(), rope.tables(positions, dtype=torch.float64))
    assert ((rope.rotate(x, positions).double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all()


def test_config_is_identity():
    rope = whorl.MixedRope(head_dim=HEAD_DIM, heads=HEADS, base=20, seed=3)
    again = whorl.from_dict(rope.config.to_dict())
    assert type(again) is whorl.MixedRope and again.config == rope.config and hash(again.config) == hash(rope.config)
    assert torch.equal(again.frequencies_2d, rope.frequencies_2d)
    built = whorl.build_for("mixed_rope", heads=HEADS, head_dim=HEAD_DIM, width=48, length=9, base=20.0, seed=3)
    assert built.config == rope.config


# --- bad input


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"head_dim": 16}, "MixedRope: heads missing. Pass heads=…."),
        ({"head_dim": 16, "heads": 0}, "MixedRope: heads must be positive, got 0."),
        ({"head_dim": 18, "heads": 2}, "MixedRope: head_dim must be a multiple of 4, got 18. Pairs start in two"),
        ({"head_dim": 2, "heads": 2}, "MixedRope: head_dim must be a multiple of 4, got 2."),
        ({"head_dim": -4, "heads": 2}, "MixedRope: head_dim must be positive, got -4."),
        ({"head_dim": 16, "heads": 2, "base": 1.0}, "MixedRope: base must be larger than 1, got 1.0."),
        ({"head_dim": 16, "heads": 2, "base": math.inf}, "MixedRope: base must be finite, got inf."),
        ({"head_dim": 16, "heads": 2, "seed": -1}, "MixedRope: seed must be between 0 and 2^63 - 1, got -1."),
        ({"head_dim": 16, "heads": 2, "seed": 2**63}, "MixedRope: seed must be between -2^63 and 2^63 - 1, got"),
        ({"head_dim": 16, "heads": 2, "seed": 0.5}, "MixedRope: seed must be an integer, got 0.5."),
        ({"head_dim": 16, "heads": 2, "angles": "float32"}, "MixedRope: learned frequencies have no float32 mode."),
        ({"head_dim": 16, "heads": 2, "rotated_heads": [2]}, "MixedRope: rotated_heads must be between 0 and 1"),
        ({"head_dim": 16, "heads": 2, "axes": 3}, "MixedRope: unknown setting 'axes'."),
    ],
)
def test_bad_settings(settings_, message):
    with pytest.raises(whorl.WhorlError) as error:
        whorl.MixedRope(**settings_)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("shape", "order", "message"),
    [
        ((1, 2, 6, 16), "bhld", "MixedRope: heads is 3, got a tensor with 2 heads in order 'bhld'. Each head has its"),
        ((1, 3, 6, 16), "blhd", "MixedRope: heads is 3, got a tensor with 6 heads in order 'blhd'."),
        (
            (6, 16),
            "bhld",
            "MixedRope: x must be of shape (heads, length, head_dim) or (batch, heads, length, head_dim)",
        ),
        ((1, 3, 6, 8), "bhld", "MixedRope: head_dim is 16, got a tensor with 8 dimensions per head."),
        ((1, 3, 5, 16), "bhld", "rotate: tables are for 6 positions, x has 5 in order 'bhld'."),
    ],
)
def test_bad_tensors(shape, order, message):
    with pytest.raises(whorl.WhorlError) as error:
        trained().rotate(torch.zeros(shape), whorl.grid(2, 3), order=order)
    assert str(error.value).startswith(message)


def test_bad_positions_and_length():
    rope = trained()
    with pytest.raises(whorl.WhorlError, match=r"MixedRope: positions must be of shape \(length,\), \(2, length\)"):
        rope.tables(torch.zeros(3, 6))
    with pytest.raises(whorl.WhorlError, match="MixedRope: positions must be a tensor, got 3"):
        rope.tables(3)
    with pytest.raises(whorl.WhorlError, match="MixedRope: length must be a positive integer or None, got 0"):
        rope.tables(whorl.grid(2, 3), 0)
    with pytest.raises(whorl.WhorlError, match="MixedRope: every pair reads both axes"):
        _ = rope.config.axis_of_pair
