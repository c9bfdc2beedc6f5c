"""Tables are exact: they differ from the true cosine by their own rounding, at every position and base."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import SCALINGS
from oracles import rotary_frequencies, rotary_tables
from whorl.rotary import tables

BOUND = 4.0e-8  # rounding to float32 alone is 3.0e-8
BASES = [1e2, 1e4, 5e5, 1e6, 1e7]
FAR = 16_777_216
POSITIONS = [0, 1, 2, 255, 511, 512, 513, 4095, 131_071, 131_072, 1_048_575, 8_388_607, 10_485_759, FAR - 1, FAR]


def error(got, positions, frequencies, factor=1.0):
    """The largest |Δcos| or |Δsin| against 50 digits."""
    expected = rotary_tables.table(positions, frequencies)
    return max(
        abs(float(value) - factor * float(true)) if value.dtype == torch.float32 else abs(float(value - true))
        for table, rows in zip(got, expected, strict=True)
        for row, true_row in zip(table.reshape(len(positions), -1), rows, strict=True)
        for value, true in zip(row, true_row, strict=True)
    )


@pytest.mark.parametrize("base", BASES)
def test_exact_at_every_position(base):
    rope, frequencies = whorl.Rope(head_dim=128, base=base), rotary_frequencies.plain(128, base)
    assert error(rope.tables(torch.tensor(POSITIONS)), POSITIONS, frequencies) <= BOUND
    assert error(rope.tables(torch.tensor(POSITIONS, dtype=torch.int32)), POSITIONS, frequencies) <= BOUND
    assert error(rope.tables(torch.tensor(POSITIONS, dtype=torch.float64)), POSITIONS, frequencies) <= BOUND
    end = list(range(FAR - 20, FAR + 1))
    assert error(rope.tables(torch.arange(FAR - 20, FAR + 1)), end, frequencies) <= BOUND


@pytest.mark.parametrize("head_dim", [2, 6, 20, 80, 92, 160])
def test_exact_for_every_head(head_dim):
    rope, frequencies = whorl.Rope(head_dim=head_dim, base=5e5), rotary_frequencies.plain(head_dim, 5e5)
    assert error(rope.tables(torch.tensor(POSITIONS)), POSITIONS, frequencies) <= BOUND


def test_the_bound_tells_exact_angles_from_float32_ones():
    """The same check fails by orders of magnitude on the angles that frameworks compute."""
    rope = whorl.Rope(head_dim=128, angles="float32")
    frequencies = rotary_frequencies.plain(128, 1e4)
    assert 1e-3 < error(rope.tables(torch.tensor([131_071])), [131_071], frequencies) < 1e-1
    assert error(rope.tables(torch.tensor([10_485_759])), [10_485_759], frequencies) > 0.1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-FAR, FAR), min_size=1, max_size=8), st.sampled_from(BASES))
def test_exact_at_arbitrary_and_negative_positions(positions, base):
    rope, frequencies = whorl.Rope(head_dim=16, base=base), rotary_frequencies.plain(16, base)
    assert error(rope.tables(torch.tensor(positions)), positions, frequencies) <= BOUND


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_exact_at_fractional_positions(positions):
    rope, frequencies = whorl.Rope(head_dim=16), rotary_frequencies.plain(16, 1e4)
    for dtype in (torch.float32, torch.float64):
        assert error(rope.tables(torch.tensor(positions, dtype=dtype)), positions, frequencies) <= BOUND


def test_dividing_positions_is_linear_interpolation():
    halves = whorl.Rope(head_dim=64).tables(torch.arange(1000, dtype=torch.float64) / 4)
    linear = whorl.Rope(head_dim=64, scaling=whorl.Linear(factor=4.0)).tables(torch.arange(1000))
    for one, other in zip(halves, linear, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=6e-8)


def test_float64_tables_keep_what_float32_rounds():
    rope = whorl.Rope(head_dim=32)
    cos, sin = rope.tables(torch.tensor(POSITIONS), dtype=torch.float64)
    true_cos, true_sin = rotary_tables.table(POSITIONS, rotary_frequencies.plain(32, 1e4))
    for got, expected in ((cos, true_cos), (sin, true_sin)):
        expected = torch.tensor([[float(value) for value in row] for row in expected], dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=6e-9)
    assert torch.equal(cos.float(), rope.tables(torch.tensor(POSITIONS))[0])


@pytest.mark.parametrize("name", SCALINGS)
def test_the_attention_factor_is_inside(name):
    rope = whorl.Rope(head_dim=64, scaling=SCALINGS[name])
    for length in (None, 1000):
        cos, sin = rope.tables(torch.arange(700), length, dtype=torch.float64)
        norms = (cos * cos + sin * sin).sqrt()
        torch.testing.assert_close(norms, torch.full_like(norms, rope.attention_factor(length)), rtol=1e-14, atol=0)


@pytest.mark.parametrize("head_dim", [6, 64, 128])
def test_the_entry_of_a_position_is_one_value(head_dim):
    """Contiguous, shuffled, alone, among far ones, batched: the same bits."""
    rope = whorl.Rope(head_dim=head_dim)
    whole = rope.tables(torch.arange(-700, 3000))
    order = torch.randperm(3700, generator=torch.Generator().manual_seed(0))
    shuffled = rope.tables((order - 700).view(10, 370))
    shifted = rope.tables(torch.arange(123, 2000))
    far = rope.tables(torch.tensor([5, 10**9, 777, -(10**9), 2999]))
    for k in (0, 1):
        assert torch.equal(shuffled[k].flatten(0, 1), whole[k][order])
        assert torch.equal(shifted[k], whole[k][823:2700])
        assert torch.equal(far[k][[0, 2, 4]], whole[k][[705, 1477, 3699]])
        alone = torch.cat([rope.tables(torch.tensor([m]))[k] for m in (0, 511, 512, 2047)])
        assert torch.equal(alone, whole[k][[700, 1211, 1212, 2747]])


def test_shapes_and_dtypes():
    rope = whorl.Rope(head_dim=8)
    for shape in ((5,), (2, 5), (0,), (2, 0)):
        for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
            cos, sin = rope.tables(torch.zeros(shape, dtype=dtype))
            assert cos.shape == sin.shape == (*shape, 4)
            assert cos.dtype == sin.dtype == torch.float32


def test_float32_angles_are_the_naive_ones_bit_for_bit():
    rope = whorl.Rope(head_dim=64, angles="float32")
    inverse = 1.0 / (10_000.0 ** (torch.arange(0, 64, 2).float() / 64))
    angles = torch.arange(5000).float()[:, None] * inverse
    cos, sin = rope.tables(torch.arange(5000))
    assert torch.equal(cos, angles.cos())
    assert torch.equal(sin, angles.sin())
    assert torch.equal(rope.frequencies(), inverse.double())


def test_default_dtype_and_device_leave_tables_alone():
    rope, positions = whorl.Rope(head_dim=64, scaling=SCALINGS["dynamic_ntk"]), torch.arange(300)
    before = rope.tables(positions, 1000)
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            after = rope.tables(positions, 1000)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_exact_under_compile_and_vmap():
    rope, frequencies = whorl.Rope(head_dim=32), rotary_frequencies.plain(32, 1e4)
    compiled = torch.compile(rope.tables, fullgraph=True)
    assert error(compiled(torch.tensor(POSITIONS)), POSITIONS, frequencies) <= BOUND
    rows = torch.tensor(POSITIONS).view(5, 3)
    mapped = torch.vmap(rope.tables)(rows)
    assert error(mapped, POSITIONS, frequencies) <= BOUND


def test_gradients_reach_positions_and_frequencies():
    frequencies = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([0.5, 3.0, 100.25], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda p, f: tables.exact(p, f, 1.5, torch.float64), (positions, frequencies), atol=1e-6
    )
    ids = torch.tensor([1, 7, 1000])
    assert torch.autograd.gradcheck(lambda f: tables.exact(ids, f, 1.5, torch.float64), (frequencies,), atol=1e-4)


def test_forward_mode_reaches_positions_and_frequencies():
    from torch.autograd import forward_ad

    frequencies, ids = torch.tensor([1.0, 0.1], dtype=torch.float64), torch.tensor([1, 7])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(frequencies, torch.ones_like(frequencies))
        cos, sin = tables.exact(ids, dual, 1.0, torch.float64)
        moved = [forward_ad.unpack_dual(t).tangent for t in (cos, sin)]
        angles = ids[:, None] * frequencies
        torch.testing.assert_close(moved[0], -angles.sin() * ids[:, None])
        torch.testing.assert_close(moved[1], angles.cos() * ids[:, None])
        places = forward_ad.make_dual(ids.double(), torch.ones(2, dtype=torch.float64))
        tangent = forward_ad.unpack_dual(tables.exact(places, frequencies, 1.0, torch.float64)[1]).tangent
        torch.testing.assert_close(tangent, angles.cos() * frequencies)


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])  # by powers of two the products are exact
@pytest.mark.parametrize("positions", [torch.tensor([0, 7, 100_000]), torch.tensor([0.0, 7.5, 100_000.25]).double()])
def test_a_factor_multiplies_both_tables_of_whole_and_of_other_positions(positions, factor):
    frequencies = torch.tensor([1.0, 0.1], dtype=torch.float64)
    plain, scaled = (tables.exact(positions, frequencies, by, torch.float64) for by in (1.0, factor))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, factor * one, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("start", [0, 10**6, 2**40, 2**53 + 1, 2**61 - 4096, -(2**61)])
def test_tables_by_distance_have_one_product_wherever_positions_are(start):
    """To the last places of float64, and across any of the blocks that ``exact`` is made of."""
    frequencies = torch.tensor([10_000 ** (-k / 8) for k in range(8)], dtype=torch.float64)
    distance = torch.tensor([0, 1, 5, 300, 4096])
    near = distance.double()[:, None] * frequencies
    for ids in (distance + start, (distance + start).double()):
        cos, sin = tables.by_distance(ids, frequencies, torch.float64)
        first = (cos[0] * cos + sin[0] * sin, cos[0] * sin - sin[0] * cos)
        if not ids.is_floating_point() or abs(start) < 2**53:
            torch.testing.assert_close(first, (near.cos(), near.sin()), rtol=0, atol=1e-12)
    cos, sin = tables.by_distance(torch.tensor([-3.25, 0.5, 1e6 + 0.125]), frequencies, torch.float64)
    angles = torch.tensor([-3.25, 0.5, 1e6 + 0.125], dtype=torch.float64)[:, None] * frequencies
    torch.testing.assert_close((cos, sin), (angles.cos(), angles.sin()), rtol=0, atol=1e-9)


def test_tables_by_distance_have_gradients_of_positions_and_let_a_nan_through():
    frequencies = torch.tensor([1.0, 0.1], dtype=torch.float64)
    positions = torch.tensor([0.3, 7.6, -4.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda ids: tables.by_distance(ids, frequencies, torch.float64), positions)
    cos, sin = tables.by_distance(torch.tensor([torch.nan, torch.inf, 1e300], dtype=torch.float64), frequencies)
    assert cos.isnan().any(-1).tolist() == sin.isnan().any(-1).tolist() == [True, True, False]
