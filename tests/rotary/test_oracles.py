"""The oracles against numbers known by hand: an oracle nobody checks proves nothing."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf

from oracles import axes, rotation
from oracles import rotary_frequencies as frequencies
from oracles import rotary_tables as tables

LAYOUTS = ["half", "interleaved", "interleaved_to_half"]


def close(got, expected, tolerance=1e-40):
    """Every mpf within a relative tolerance that no double could meet."""
    with mp.workdps(50):
        got, expected = [mpf(x) for x in got], [mpf(x) for x in expected]
        assert len(got) == len(expected)
        return all(abs(a - b) <= tolerance * max(abs(b), 1e-9) for a, b in zip(got, expected, strict=True))


def exact(*texts):
    """Decimal texts as 50-digit numbers."""
    with mp.workdps(50):
        return [mpf(text) for text in texts]


def ratios(got, reference):
    with mp.workdps(50):
        return [a / b for a, b in zip(got, reference, strict=True)]


# --- plain, linear, NTK


def test_plain_powers_of_ten():
    assert close(frequencies.plain(8, 10000), exact("1", "0.1", "0.01", "0.001"))


def test_wavelengths_in_whole_turns():
    with mp.workdps(50):
        wavelengths = [2 * mp.pi / w for w in frequencies.plain(8, 10000)]
        assert close(wavelengths, [2 * mp.pi * 10**i for i in range(4)])
    expected = [6.283185307179586, 62.83185307179586, 628.3185307179587, 6283.185307179586]
    assert [float(x) for x in wavelengths] == pytest.approx(expected, rel=1e-15)


def test_frequencies_have_fifty_digits():
    # 10000^(-2/6) = 10^(-4/3)
    with mp.workdps(60):
        assert abs(frequencies.plain(6, 10000)[1] ** 3 * 10**4 - 1) < mpf("1e-48")


def test_linear_divides_every_pair():
    assert close(frequencies.linear(8, 10000, 4), exact("0.25", "0.025", "0.0025", "0.00025"))


def test_ntk_base_keeps_the_first_pair_and_divides_the_last():
    assert close(frequencies.ntk_base(4, 10000, 2), exact("1", "0.005"))  # base 40000
    assert close(frequencies.ntk_base(6, 1000, 4), exact("1", "0.05", "0.0025"))  # base 8000


def test_ntk_fixed_by_hand():
    assert close(frequencies.ntk_fixed(4, 10000, 4), exact("0.5", "0.0025"))


def test_ntk_mixed_between_fixed_and_linear():
    assert close(frequencies.ntk_mixed(16, 10000, 4, 1), frequencies.ntk_fixed(16, 10000, 4))
    assert close(frequencies.ntk_mixed(16, 10000, 4, 0), frequencies.linear(16, 10000, 4))
    # s = 16, b = 2, two pairs: a = ln(16) / 4 = ln 2, divisors 2^1 and 2^4
    assert close(frequencies.ntk_mixed(4, 10000, 16, 2), exact("0.5", "0.000625"))


def test_dynamic_ntk_by_hand():
    assert close(frequencies.dynamic_ntk(4, 10000, 2, 100, 200), ratios(exact("1", "1"), exact("1", "300")))


@pytest.mark.parametrize("length", [None, 1, 99, 100])
def test_dynamic_ntk_rests_up_to_the_original_length(length):
    assert frequencies.dynamic_ntk(4, 10000, 2, 100, length) == frequencies.plain(4, 10000)


def test_dynamic_ntk_with_factor_one_follows_the_length():
    # s = 1: the multiplier is length / original_length
    assert close(frequencies.dynamic_ntk(8, 10000, 1, 100, 300), frequencies.ntk_base(8, 10000, 3))


# --- by parts, YaRN


def test_ntk_by_parts_by_hand():
    with mp.workdps(50):
        length = mpf("16.5") * 200 * mp.pi  # pair 1 turns 16.5 times: half way between 1 and 32
    assert close(frequencies.ntk_by_parts(4, 10000, 4, length), exact("1", "0.00625"))


def test_ntk_by_parts_ends():
    got = ratios(frequencies.ntk_by_parts(128, 10000, 4, 2048), frequencies.plain(128, 10000))
    # 32 turns in 2048: wavelength 64, pair 16.1; one turn: wavelength 2048, pair 40.2
    assert close(got[:17], [1] * 17) and got[17] < 1
    assert close(got[41:], [mpf("0.25")] * 23) and got[40] > 0.25
    assert all(a >= b for a, b in itertools.pairwise(got))


def test_ntk_by_parts_v1_by_hand():
    # d = 128, L = 2048: 1.25 and 0.75 turns at pairs 38.66 and 42.21, 16 and 2 turns at pairs 20.94 and 35.39
    assert frequencies.correction_range(128, 10000, 2048, 1.25, 0.75) == (38, 43)
    assert frequencies.correction_range(128, 10000, 2048, 16, 2) == (20, 36)
    got = frequencies.ntk_by_parts_v1(128, 10000, 4, 2048)
    plain, ntk = frequencies.plain(128, 10000), frequencies.ntk_base(128, 10000, 4)
    linear = frequencies.linear(128, 10000, 4)
    assert close(got[:21], plain[:21])
    assert close(got[36:39], ntk[36:39])
    assert close(got[43:], linear[43:])
    with mp.workdps(50):
        assert close([got[28]], [(plain[28] + ntk[28]) / 2])
        assert close([got[40]], [mpf("0.6") * ntk[40] + mpf("0.4") * linear[40]])


@pytest.mark.parametrize(
    "dim, base, length, expected",
    [(64, 10000, 4096, (10, 23)), (128, 1000000, 32768, (23, 40)), (128, 1000000, 4 * 32768, (30, 47))],
)
def test_yarn_correction_range(dim, base, length, expected):
    assert frequencies.correction_range(dim, base, length, 32, 1) == expected


def test_yarn_by_hand():
    got = ratios(frequencies.yarn(64, 10000, 40, 4096), frequencies.plain(64, 10000))
    assert close(got[:11], [1] * 11)
    assert close(got[23:], exact("0.025") * 9)
    # pair 16 is 6/13 along the ramp from 10 to 23
    with mp.workdps(50):
        assert close([got[16]], [mpf(6) / 13 / 40 + mpf(7) / 13])


def test_yarn_without_truncation_ramps_between_the_exact_pairs():
    with mp.workdps(50):
        length = 2 * mp.pi * 1000  # d = 8, base 10^4: one turn at pair 3, 32 turns at 3 - log10(32) = 1.49
        span = mp.log10(32)
        expected = [mpf(1), mpf(1), None, mpf(1) / 4]
        t = (2 - (3 - span)) / span
        expected[2] = t / 4 + (1 - t)
    got = ratios(frequencies.yarn(8, 10000, 4, length, truncate=False), frequencies.plain(8, 10000))
    assert close(got, expected)


def test_yarn_extrapolation_factor_zero_is_linear():
    got = frequencies.yarn(64, 10000, 40, 4096, extrapolation_factor=0)
    assert close(got, frequencies.linear(64, 10000, 40))
    got = frequencies.yarn(64, 10000, 40, 4096, extrapolation_factor=0.5)
    half = ratios(got, frequencies.plain(64, 10000))
    assert close(half[:11], exact("0.5125") * 11)


def test_yarn_ramp_may_end_beyond_the_last_pair():
    # Four pairs; one turn at 4.5, 1000 turns at 1.5: the ramp runs from 1 to 5; the clamp is at d - 1 = 7.
    got = frequencies.yarn(8, 10000, 2, 2 * math.pi * 10**4.5, beta_fast=1000)
    assert close(ratios(got, frequencies.plain(8, 10000)), exact("1", "1", "0.875", "0.75"))


def test_yarn_edges():
    plain, linear = frequencies.plain(64, 10000), frequencies.linear(64, 10000, 4)
    # The pair that makes one turn is -8.37: ceil leaves -8, so every ramp value is 0.
    assert close(frequencies.yarn(64, 10000, 4, 2 * math.pi * 0.09), plain)
    # It is -0.73: ceil makes it 0 = low, and the ramp is a step after pair 0.
    short = frequencies.yarn(64, 10000, 4, 2 * math.pi * 0.81)
    assert close(short[:1], plain[:1]) and close(short[1:], linear[1:])
    # Even the last pair makes more than 32 turns, past the clamp at d - 1: everything is interpolated.
    assert close(frequencies.yarn(8, 2, 4, 10**6), frequencies.linear(8, 2, 4))


@pytest.mark.parametrize("name", ["linear", "ntk_base", "ntk_fixed"])
def test_factor_one_changes_nothing(name):
    assert close(getattr(frequencies, name)(64, 10000, 1), frequencies.plain(64, 10000))


@pytest.mark.parametrize("name", ["ntk_by_parts", "ntk_by_parts_v1", "yarn"])
def test_factor_one_changes_nothing_by_parts(name):
    assert close(getattr(frequencies, name)(64, 10000, 1, 2048), frequencies.plain(64, 10000))


def test_yarn_attention_factor():
    factor = frequencies.yarn_attention_factor
    assert float(factor(40)) == pytest.approx(1.368888, abs=1e-6)
    assert float(factor(16)) == pytest.approx(1.277259, abs=1e-6)
    assert factor(1) == factor(0.5) == 1
    assert factor(40, attention_factor=1.0) == 1
    assert factor(40, attention_factor=0.7, mscale=1, mscale_all_dim=1) == 0.7
    assert factor(40, mscale=0.707, mscale_all_dim=0.707) == 1
    assert factor(40, mscale=0.707) == factor(40, mscale_all_dim=0.707) == factor(40)
    assert float(factor(40, mscale=1, mscale_all_dim=0.707)) == pytest.approx(1.368888 / 1.260804, abs=1e-6)


def test_yarn_softmax_factor():
    assert float(frequencies.yarn_softmax_factor(40, 0.707)) == pytest.approx(1.590, abs=5e-4)
    assert float(frequencies.yarn_softmax_factor(40, 1)) == pytest.approx(1.874, abs=5e-4)
    assert frequencies.yarn_softmax_factor(40, 0) == frequencies.yarn_softmax_factor(40, None) == 1
    assert frequencies.yarn_softmax_factor(1, 1) == 1


# --- LongRoPE, Llama 3, proportional


@pytest.mark.parametrize("length, divisors", [(None, "12"), (1, "12"), (100, "12"), (101, "48")])
def test_longrope_switches_after_the_original_length(length, divisors):
    got = frequencies.longrope(4, 10000, [1, 2], [4, 8], 100, length)
    assert close(ratios(frequencies.plain(4, 10000), got), [int(digit) for digit in divisors])


def test_longrope_attention_factor():
    # Phi-3: 32 = 2^5 and 4096 = 2^12
    with mp.workdps(50):
        assert close([frequencies.longrope_attention_factor(32, 4096) ** 2], [mpf(17) / 12])
    assert float(frequencies.longrope_attention_factor(32, 4096)) == pytest.approx(1.190238, abs=1e-6)
    assert frequencies.longrope_attention_factor(1, 4096) == 1


def test_llama3_by_hand():
    # 3.1: wavelength 2048 is pair 28.2, wavelength 8192 is pair 34.98
    got = ratios(frequencies.llama3(128, 500000, 8, 1, 4, 8192), frequencies.plain(128, 500000))
    assert close(got[:29], [1] * 29)
    assert close(got[35:], exact("0.125") * 29)
    assert all(0.125 < x < 1 for x in got[29:35])


def test_llama3_is_by_parts_with_other_names():
    got = frequencies.llama3(128, 500000, 8, 1, 4, 8192)
    assert close(got, frequencies.ntk_by_parts(128, 500000, 8, 8192, alpha=1, beta=4))


def test_llama3_with_equal_borders_is_a_step():
    got = ratios(frequencies.llama3(128, 500000, 16, 1, 1, 8192), frequencies.plain(128, 500000))
    assert close(got, [1] * 35 + exact("0.0625") * 29)
    with mp.workdps(50):
        border = 2 * mp.pi  # the wavelength of pair 0
    assert close(frequencies.llama3(4, 10000, 4, 1, 1, border), exact("0.25", "0.0025"))


def test_proportional_by_hand():
    assert close(frequencies.proportional(8, 10000, 0.5), exact("1", "0.1", "0", "0"))
    assert close(frequencies.proportional(8, 10000, 0.5, factor=4), exact("0.25", "0.025", "0", "0"))
    assert close(frequencies.proportional(8, 10000, 1.0), frequencies.plain(8, 10000))
    assert sum(w > 0 for w in frequencies.proportional(512, 1000000, 0.25)) == 64
    assert sum(w > 0 for w in frequencies.proportional(20, 10000, 0.7)) == 7  # 0.7 is a little less than 7/10
    assert sum(w > 0 for w in frequencies.proportional(128, 10000, 0.3)) == 19


# --- tables


def test_cos_sin_of_a_huge_position():
    # The classic test of range reduction; 1e22 is the largest power of ten that a double holds.
    for position in (1e22, 10**22):
        cos, sin = tables.cos_sin(position, 1)
        assert close([sin], exact("-0.8522008497671888017727058937530293682618"))
        assert close([cos], exact("0.5232147853951389454975944"), 1e-24)
        with mp.workdps(50):
            assert close([cos**2 + sin**2], [1])


def test_cos_sin_keeps_every_digit_of_the_angle():
    (frequency,) = exact("0.7")
    once, _ = tables.cos_sin(1, frequency)
    thrice, _ = tables.cos_sin(3, frequency)
    with mp.workdps(50):
        assert close([thrice], [4 * once**3 - 3 * once])


def test_cos_sin_takes_floats_exactly():
    assert close(tables.cos_sin(0.5, 2)[:1], exact("0.54030230586813971740093660744297660373231042061792"))
    # The double 0.1 exceeds one tenth by 5.55e-18, so its sine exceeds sin(1/10) by cos(1/10) times that.
    sine_of_a_tenth = exact("0.09983341664682815230681419841062202698991538801798")
    with mp.workdps(50):
        gap = tables.cos_sin(0.1, 1)[1] - sine_of_a_tenth[0]
    assert float(gap) == pytest.approx(5.551115e-18 * 0.9950042, rel=1e-6)


def test_table_is_the_sinusoidal_code():
    cos, sin = tables.table([0, 2], frequencies.plain(8, 10000))
    assert cos[0] == [1] * 4 and sin[0] == [0] * 4
    got = [float(x) for pair in zip(sin[1], cos[1], strict=True) for x in pair]
    expected = [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998]
    assert got == pytest.approx(expected, abs=5e-6)


def test_sums_of_cosines():
    ladder = frequencies.plain(128, 10000)
    sums = [float(sum(tables.cos_sin(k, w)[0] for w in ladder)) for k in (0, 1, 2, 8, 64, 256)]
    assert sums == pytest.approx([64, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248], abs=5e-5)


def test_sum_of_cosines_first_turns_negative_at_1707():
    ladder = np.array([float(w) for w in frequencies.plain(128, 10000)])
    sums = np.cos(np.outer(np.arange(1708), ladder)).sum(axis=1)
    assert np.flatnonzero(sums < 0).tolist() == [1707]


def test_long_range_decay():
    ladder = frequencies.plain(128, 10000)
    means = []
    for distance in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
        partial, total = 0j, 0.0
        for w in ladder:
            partial += complex(*tables.cos_sin(distance, w))
            total += abs(partial)
        means.append(total / 64)
    expected = [32.5, 31.5382, 28.9560, 22.6040, 19.8174, 15.7750, 13.3843, 10.0899, 9.2729, 6.5431]
    assert means == pytest.approx(expected, abs=5e-5)


# --- rotation


def angles_at(position, dim, base=10000):
    with mp.workdps(50):
        return [position * w for w in frequencies.plain(dim, base)]


GOLDEN = {
    "interleaved": [-2.234742, 0.077004, 2.919405, 4.059196],
    "half": [-3.144039, 1.919605, -0.339143, 4.039197],
    "interleaved_to_half": [-2.234742, 2.919405, 0.077004, 4.059196],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_golden(layout):
    assert rotation.rotate([1, 2, 3, 4], angles_at(2, 4), layout) == pytest.approx(GOLDEN[layout], abs=5e-7)


def test_matrix_written_out():
    quarter = [math.pi / 2, 0.0]
    half = np.array([[0, 0, -1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    interleaved = np.array([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    to_half = np.array([[0, -1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    assert rotation.matrix(quarter, "half") == pytest.approx(half, abs=1e-15)
    assert rotation.matrix(quarter, "interleaved") == pytest.approx(interleaved, abs=1e-15)
    assert rotation.matrix(quarter, "interleaved_to_half") == pytest.approx(to_half, abs=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrix_is_orthogonal(layout):
    got = rotation.matrix(angles_at(12345, 16), layout)
    assert got @ got.T == pytest.approx(np.eye(16), abs=1e-14)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_matrices_form_a_group(layout):
    def turn(position):
        return rotation.matrix(angles_at(position, 16), layout)

    assert np.array_equal(turn(0), np.eye(16))
    assert turn(7) @ turn(-19) == pytest.approx(turn(-12), abs=1e-14)
    assert turn(-7) == pytest.approx(turn(7).T, abs=0)
    assert np.linalg.det(turn(7)) == pytest.approx(1, abs=1e-13)


def test_interleaved_to_half_at_zero_is_a_permutation():
    assert rotation.rotate(range(8), [0.0] * 4, "interleaved_to_half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_on_the_distance_alone(layout):
    q, k = np.random.default_rng(0).standard_normal((2, 16))

    def score(m, n):
        return rotation.rotate(q, angles_at(m, 16), layout) @ rotation.rotate(k, angles_at(n, 16), layout)

    assert score(5, 2) == pytest.approx(score(1005, 1002), abs=1e-12)
    assert abs(score(5, 2) - score(5, 3)) > 1e-3


def test_interleaved_to_half_is_interleaved_then_parted():
    x, angles = np.random.default_rng(1).standard_normal(16), angles_at(99, 16)
    got = rotation.rotate(x, angles, "interleaved_to_half")
    turned = rotation.rotate(x, angles, "interleaved")
    assert got == pytest.approx(np.concatenate([turned[0::2], turned[1::2]]), abs=1e-14)
    parted = np.concatenate([x[0::2], x[1::2]])
    assert got == pytest.approx(rotation.rotate(parted, angles, "half"), abs=1e-14)


def test_complex_form_agrees_with_the_matrix():
    x, angles = np.random.default_rng(2).standard_normal(32), angles_at(4321, 32)
    got = rotation.rotate_complex(x, angles)
    assert got == pytest.approx(rotation.rotate(x, angles, "interleaved"), abs=1e-14)


def test_partial_rotation_touches_its_slice_only():
    x = np.arange(1.0, 9.0)
    got = rotation.rotate(x, angles_at(2, 4), "half", start=3, factor=2.0)
    inside = rotation.rotate(x[3:7], angles_at(2, 4), "half")
    assert got[:3].tolist() == [1, 2, 3] and got[7] == 8
    assert got[3:7] == pytest.approx(2 * inside, abs=1e-14)
    with pytest.raises(AssertionError):
        rotation.rotate(x, angles_at(2, 4), "half", start=5)


# --- axes


def test_mrope_chunked():
    assert axes.mrope_chunked((2, 3, 1)) == [0, 0, 1, 1, 1, 2]
    got = axes.mrope_chunked((16, 24, 24))
    assert (got[15], got[16], got[39], got[40], len(got)) == (0, 1, 1, 2, 64)


def test_mrope_interleaved():
    assert axes.mrope_interleaved((4, 2, 2)) == [0, 1, 2, 0, 1, 2, 0, 0]
    got = axes.mrope_interleaved((24, 20, 20))
    assert got == [0, 1, 2] * 20 + [0] * 4
    assert [got.count(axis) for axis in range(3)] == [24, 20, 20]
    short = axes.mrope_interleaved((20, 22, 22))  # 64 pairs hold 21 of each at most
    assert [short.count(axis) for axis in range(3)] == [22, 21, 21]


def test_mrope_ernie():
    assert axes.mrope_ernie((2, 2, 3)) == [1, 2, 1, 2, 0, 0, 0]
    got = axes.mrope_ernie((22, 22, 20))
    assert got == [1, 2] * 22 + [0] * 20


@pytest.mark.parametrize(
    "name, base, expected, order",
    [
        ("rope_vit", 100, ["1", "0.1"] * 2, [1, 1, 0, 0]),
        ("qwen_vision", 10000, ["1", "0.01"] * 2, [0, 0, 1, 1]),
        ("llama4_vision", 10000, ["1", "0.01"] * 2, [1, 1, 0, 0]),
        ("apex", 10000, ["1", "0.01"] * 2, [0, 0, 1, 1]),
        ("pixtral", 10000, ["1", "0.01", "0.1", "0.001"], [0, 0, 1, 1]),
    ],
)
def test_two_dimensional_conventions(name, base, expected, order):
    got, axis = getattr(axes, name)(8)
    assert close(got, exact(*expected)) and axis == order
    assert close(getattr(axes, name)(8, base=base)[0], got)
    assert not close(getattr(axes, name)(8, base=7)[0], got)


def test_dinov3_has_two_pi_in_the_frequency():
    got, axis = axes.dinov3(8)
    with mp.workdps(50):
        assert close(got, [2 * mp.pi, 2 * mp.pi / 10] * 2)
    assert axis == [0, 0, 1, 1]
