"""Errors of rounded tables, against 50 digits."""

import struct

import pytest
from mpmath import mp, mpf

import whorl
from whorl.analysis import precision


def to_bfloat16(x: float) -> float:
    """The nearest bfloat16, ties to even, from the bits of the float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


@mp.workdps(50)
def true_error(w, position, rounded_w, rounded_position):
    """The larger error of cos and sin when frequency or position is rounded, with 50 digits."""
    right, wrong = mpf(w) * position, mpf(rounded_w) * mpf(rounded_position)
    return float(max(abs(mp.cos(right) - mp.cos(wrong)), abs(mp.sin(right) - mp.sin(wrong))))


W = [1.0, 0.3, 0.01]


@pytest.mark.parametrize("position", [1, 255, 257, 1001, 100_003])
def test_errors_are_those_of_what_is_rounded(position):
    by_position = [true_error(w, position, w, to_bfloat16(position)) for w in W]
    by_frequency = [true_error(w, position, to_bfloat16(w), position) for w in W]
    for mode, expected in (("bfloat16 positions", by_position), ("bfloat16 frequencies", by_frequency)):
        assert precision.table_errors(W, [position], mode)[0] == pytest.approx(max(expected), abs=1e-10)


def test_float32_angles_lose_more_the_further_and_float64_angles_nothing():
    w = whorl.reference.frequencies(128)
    for last, most in ((131_071, 7.6e-3), (1_048_575, 6.05e-2), (10_485_759, 0.752)):
        ids = range(last - 63, last + 1)
        assert precision.table_errors(w, ids, "float32 angles").max() == pytest.approx(most, rel=0.01)
        assert precision.table_errors(w, ids, "float64 angles").max() < 3e-8


def test_octaves_are_sampled_to_their_last_position():
    octaves = precision.sampled_octaves(100, samples=8)
    assert [octave[-1] for octave in octaves] == [1, 3, 7, 15, 31, 63, 100]
    for power, octave in enumerate(octaves):
        assert len(octave) == min(8, 2**power) and len(set(octave.tolist())) == len(octave)
        assert 2**power <= octave[0] and octave[-1] < 2 ** (power + 1)
    ends, errors = precision.errors_by_octave(W, 1023, "bfloat16 positions")
    assert ends.tolist() == [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023]
    assert (errors[:8] == 0).all() and (errors[8:] > 0.1).all()
    exact = max(true_error(1.0, m, 1.0, to_bfloat16(m)) for m in precision.sampled_octaves(1023)[-1].tolist())
    assert errors[-1] == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: precision.table_errors([1.0], [1], "float8"), "table_errors: unknown mode 'float8'"),
        (lambda: precision.table_errors([1.0], [1.5], "float32 angles"), "positions must be whole numbers"),
        (lambda: precision.sampled_octaves(0), "farthest must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_asked_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
