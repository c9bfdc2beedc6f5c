"""Every scaling against its oracle, and the laws that hold between them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import SCALINGS, ulps32
from oracles import rotary_frequencies as oracle
from whorl.rotary.scalings.ramp import pair_of_turns
from whorl.rotary.scalings.temperature import temperature

DIMS = st.sampled_from([4, 8, 20, 64, 96, 128])
BASES = st.sampled_from([100.0, 1e4, 12345.678, 5e5, 1e6, 1e7])
FACTORS = st.floats(1.0, 64.0)
LENGTHS = st.sampled_from([256, 2048, 4096, 8192, 32768])

quick = settings(max_examples=25, deadline=None)


def exact(numbers):
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64)


def check(scaling, dim, base, expected, length=None):
    """The frequencies are the oracle's, as closely as float64 arithmetic can bring them."""
    got = whorl.Rope(head_dim=dim, base=base, scaling=scaling).frequencies(length)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, exact(expected), rtol=2e-14, atol=0)
    assert ulps32(got, exact(expected)) <= 1


@quick
@given(DIMS, BASES)
def test_plain(dim, base):
    check(None, dim, base, oracle.plain(dim, base))


@quick
@given(DIMS, BASES, FACTORS)
def test_linear(dim, base, factor):
    check(whorl.Linear(factor=factor), dim, base, oracle.linear(dim, base, factor))


@quick
@given(DIMS, BASES, FACTORS, st.floats(0.1, 2.0))
def test_ntk(dim, base, factor, exponent):
    check(whorl.Ntk(factor=factor), dim, base, oracle.ntk_base(dim, base, factor))
    check(whorl.Ntk(factor=factor, variant="fixed"), dim, base, oracle.ntk_fixed(dim, base, factor))
    mixed = whorl.Ntk(factor=factor, variant="mixed", exponent=exponent)
    check(mixed, dim, base, oracle.ntk_mixed(dim, base, factor, exponent))


@quick
@given(DIMS, BASES, FACTORS, LENGTHS, st.one_of(st.none(), st.integers(1, 200_000)))
def test_dynamic_ntk(dim, base, factor, original, length):
    scaling = whorl.DynamicNtk(factor=factor, original_length=original)
    check(scaling, dim, base, oracle.dynamic_ntk(dim, base, factor, original, length), length)


@quick
@given(DIMS, BASES, LENGTHS, st.integers(1, 200_000))
def test_dynamic_ntk_in_the_steps_of_qwen(dim, base, original, length):
    """Qwen-1's own rule: base * a^(d / (d - 2)), a = 2^ceil(log2(length / original) + 1) - 1, at least 1."""
    alpha = max(1, 2 ** math.ceil(math.log2(length / original) + 1) - 1)
    scaling = whorl.DynamicNtk(factor=2.0, original_length=original, doubling=True)
    check(scaling, dim, base, oracle.ntk_base(dim, base, alpha), length)


@quick
@given(DIMS, BASES, FACTORS, LENGTHS, st.floats(0.5, 4.0), st.floats(8.0, 64.0))
def test_ntk_by_parts(dim, base, factor, original, alpha, beta):
    scaling = whorl.NtkByParts(factor=factor, original_length=original, alpha=alpha, beta=beta)
    check(scaling, dim, base, oracle.ntk_by_parts(dim, base, factor, original, alpha, beta))


@quick
@given(DIMS, BASES, FACTORS, LENGTHS)
def test_ntk_by_parts_v1(dim, base, factor, original):
    scaling = whorl.NtkByParts(factor=factor, original_length=original, variant="v1")
    check(scaling, dim, base, oracle.ntk_by_parts_v1(dim, base, factor, original))


@quick
@given(DIMS, BASES, FACTORS, LENGTHS, st.floats(8.0, 64.0), st.floats(0.5, 4.0), st.booleans(), st.floats(0, 1))
def test_yarn(dim, base, factor, original, fast, slow, truncate, extrapolation):
    scaling = whorl.Yarn(
        factor=factor,
        original_length=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
        extrapolation_factor=extrapolation,
    )
    expected = oracle.yarn(dim, base, factor, original, fast, slow, truncate, extrapolation)
    check(scaling, dim, base, expected)


@quick
@given(st.floats(1.0, 128.0), st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_yarn_factors(factor, mscale, all_dim):
    def factors(**settings):
        rope = whorl.Rope(head_dim=64, scaling=whorl.Yarn(factor=factor, original_length=4096, **settings))
        return rope.attention_factor(), rope.softmax_factor()

    close = {"rel": 1e-14}
    assert factors() == pytest.approx((float(oracle.yarn_attention_factor(factor)), 1.0), **close)
    both = {"mscale": mscale, "mscale_all_dim": all_dim}
    attention = float(oracle.yarn_attention_factor(factor, **both))
    assert factors(**both) == pytest.approx((attention, 1.0), **close)
    softmax = float(oracle.yarn_softmax_factor(factor, all_dim))
    assert factors(**both, scale_softmax=True) == pytest.approx((attention, softmax), **close)
    assert factors(attention_factor=1.25) == (1.25, 1.0)
    explicit = factors(attention_factor=1.25, mscale_all_dim=all_dim, scale_softmax=True)
    assert explicit == pytest.approx((1.25, softmax), **close)


def test_softmax_factor_reaches_the_softmax_scale():
    """DeepSeek's published factors: at s=40 the two corrections are 1 and 1.590 (mscale .707), 1 and 1.874 (1)."""
    for mscale, expected in ((0.707, 1.590), (1.0, 1.874)):
        yarn = whorl.Yarn(factor=40.0, original_length=4096, mscale=mscale, mscale_all_dim=mscale, scale_softmax=True)
        rope = whorl.Rope(head_dim=64, scaling=yarn)
        assert rope.attention_factor() == 1.0
        assert rope.softmax_scale(192) * 192**0.5 == pytest.approx(expected, abs=5e-4)


@quick
@given(DIMS, BASES, LENGTHS, st.integers(1, 100_000), st.floats(1.0, 64.0), st.randoms(use_true_random=False))
def test_longrope(dim, base, original, length, factor, random):
    short, long = ([random.uniform(1.0, 64.0) for _ in range(dim // 2)] for _ in range(2))
    scaling = whorl.LongRope(short_factor=short, long_factor=long, original_length=original, factor=factor)
    check(scaling, dim, base, oracle.longrope(dim, base, short, long, original, length), length)
    rope = whorl.Rope(head_dim=dim, base=base, scaling=scaling)
    expected = float(oracle.longrope_attention_factor(factor, original))
    assert rope.attention_factor() == rope.attention_factor(10**6) == pytest.approx(expected, rel=1e-14)


@quick
@given(DIMS, BASES, FACTORS, LENGTHS, st.floats(0.5, 4.0), st.floats(0.0, 8.0))
def test_llama3(dim, base, factor, original, low, width):
    scaling = whorl.Llama3(factor=factor, original_length=original, low_freq_factor=low, high_freq_factor=low + width)
    check(scaling, dim, base, oracle.llama3(dim, base, factor, low, low + width, original))


@quick
@given(DIMS, BASES, st.floats(0, 1), FACTORS)
def test_proportional(dim, base, fraction, factor):
    scaling = whorl.Proportional(fraction=fraction, factor=factor)
    check(scaling, dim, base, oracle.proportional(dim, base, fraction, factor))


@pytest.mark.parametrize(
    "scaling",
    [
        whorl.Linear(factor=1),
        whorl.Ntk(factor=1),
        whorl.Ntk(factor=1, variant="fixed"),
        whorl.Ntk(factor=1, variant="mixed", exponent=0.625),
        whorl.DynamicNtk(factor=1, original_length=256),
        whorl.NtkByParts(factor=1, original_length=256),
        whorl.NtkByParts(factor=1, original_length=256, variant="v1"),
        whorl.Llama3(factor=1, original_length=256),
        whorl.Yarn(factor=1, original_length=256),
        whorl.Proportional(fraction=1.0),
    ],
    ids=repr,
)
def test_factor_one_is_the_identity(scaling):
    plain, scaled = whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, scaling=scaling)
    torch.testing.assert_close(scaled.frequencies(), plain.frequencies(), rtol=4e-16, atol=0)
    assert scaled.attention_factor() == scaled.softmax_factor() == 1.0


@pytest.mark.parametrize("name", SCALINGS)
def test_only_length_dependent_schemes_change_with_the_length(name):
    rope = whorl.Rope(head_dim=64, scaling=SCALINGS[name])
    changes = not torch.equal(rope.frequencies(100), rope.frequencies(10_000))
    assert changes == rope.length_dependent == (name in ("dynamic_ntk", "longrope"))
    assert torch.equal(rope.frequencies(), rope.frequencies(256))


def test_every_scheme_slows_the_slowest_pair_by_its_factor():
    """What the schemes that stretch by a factor agree on, and where they differ: the fastest pair."""
    plain = whorl.Rope(head_dim=64).frequencies()
    for name in ("linear", "ntk", "ntk_fixed", "ntk_mixed", "ntk_by_parts", "ntk_by_parts_v1", "yarn"):
        scaled = whorl.Rope(head_dim=64, scaling=SCALINGS[name]).frequencies()
        assert float(plain[-1] / scaled[-1]) == pytest.approx(4.0, rel=1e-12)
        kept = float(plain[0] / scaled[0])
        assert kept == pytest.approx({"linear": 4.0, "ntk_fixed": 4 ** (2 / 64)}.get(name, kept), rel=1e-12)
        if name in ("ntk", "ntk_by_parts", "ntk_by_parts_v1", "yarn"):
            assert kept == pytest.approx(1.0, rel=1e-12)


def test_dynamic_ntk_at_the_served_length_is_ntk_with_the_effective_factor():
    rope = whorl.Rope(head_dim=64, scaling=whorl.DynamicNtk(factor=2.0, original_length=1024))
    same = whorl.Rope(head_dim=64, scaling=whorl.Ntk(factor=2.0 * 4 - 1))
    torch.testing.assert_close(rope.frequencies(4096), same.frequencies(), rtol=1e-15, atol=0)


def test_factor_is_chosen_from_what_the_data_reached():
    assert whorl.factor_for(8192, trained_length=3072) == pytest.approx(8 / 3)
    assert whorl.factor_for(2048, trained_length=3072) == 1.0
    linear = whorl.Rope(head_dim=64, scaling=whorl.Linear(factor=whorl.factor_for(8192, trained_length=3072)))
    last = 8191 * float(linear.frequencies()[0])
    assert last <= 3072  # every position falls inside what was trained


def test_frequencies_given_by_the_user():
    own = [0.5, 0.25, 0.01]
    rope = whorl.Rope(head_dim=8, rotary_dim=6, frequencies=own)
    assert rope.config.base is None
    assert rope.frequencies().tolist() == own
    halved = whorl.Rope(head_dim=6, frequencies=own, scaling=whorl.Linear(factor=2.0))
    assert halved.frequencies().tolist() == [0.25, 0.125, 0.005]
    stretched = whorl.Rope(
        head_dim=6,
        frequencies=own,
        scaling=whorl.LongRope(short_factor=[1, 2, 4], long_factor=[1, 1, 1], original_length=16, attention_factor=1.0),
    )
    torch.testing.assert_close(stretched.frequencies(), torch.tensor([0.5, 0.125, 0.0025]).double())


@pytest.mark.parametrize("turns", [1e-308, 1e-3, 32.0, 1e308])
def test_pairs_of_turns_near_the_ends_of_the_numbers(turns):
    """original_length / (2 pi turns) is infinite for the first and 0 for the last; the logarithm is not."""
    expected = 128 * math.log(2048 / (2 * math.pi), 10_000) / 2 - 128 * math.log(turns, 10_000) / 2
    assert pair_of_turns(turns, 128, 10_000.0, 2048) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("factor", [0.25, 0.999, 1.0])
def test_nothing_is_sharpened_where_nothing_is_stretched(factor):
    assert temperature(factor) == temperature(factor, 0.7) == 1.0
    assert temperature(math.e, 2.0) == pytest.approx(1.2)


def test_golden_wavelengths():
    rope = whorl.Rope(head_dim=8)
    turns = (2 * math.pi / rope.frequencies()).tolist()
    assert turns == pytest.approx([6.283185, 62.83185, 628.3185, 6283.185], rel=1e-6)
    assert float(whorl.Rope(head_dim=512).frequencies()[1]) == pytest.approx(0.9647, abs=5e-5)
