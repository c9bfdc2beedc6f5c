"""Frequencies, wavelengths and angles, against the definition and the numbers of the notes (N29, N34)."""

import cmath
import math

import numpy as np
import pytest

import whorl
from oracles import rotary_frequencies
from whorl.analysis import wavelengths


def test_the_wavelengths_of_eight_dimensions_are_those_of_the_notes():
    found = wavelengths.wavelengths(wavelengths.frequencies_of(whorl.Rope(head_dim=8)))
    assert found.round(4).tolist() == [6.2832, 62.8319, 628.3185, 6283.1853]
    assert wavelengths.wavelengths([0.5, 0.0, -2.0]).tolist() == [4 * math.pi, math.inf, math.pi]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (whorl.Rope(head_dim=64), rotary_frequencies.plain(64, 10_000)),
        (whorl.Rope(head_dim=64, scaling=whorl.Linear(factor=4.0)), rotary_frequencies.linear(64, 10_000, 4)),
        (whorl.XPos(head_dim=32, base=500.0), rotary_frequencies.plain(32, 500)),
        (whorl.Sinusoidal(width=16), rotary_frequencies.plain(16, 10_000)),
        (whorl.Sandwich(heads=2, code_width=32), rotary_frequencies.plain(32, 10_000)),
    ],
)
def test_frequencies_of_every_encoding_made_of_waves(encoding, expected):
    assert wavelengths.has_frequencies(encoding)
    np.testing.assert_allclose(wavelengths.frequencies_of(encoding), [float(w) for w in expected], rtol=1e-13)


def test_frequencies_are_scaled_for_the_length_asked_for():
    rope = whorl.Rope(head_dim=8, scaling=whorl.DynamicNtk(factor=2.0, original_length=100))
    assert wavelengths.frequencies_of(rope)[-1] == pytest.approx(1e-3)
    assert wavelengths.frequencies_of(rope, 200)[-1] == pytest.approx(1e-3 / 3)


@pytest.mark.parametrize("encoding", [whorl.Alibi(heads=2), whorl.NoPE(), whorl.MixedRope(head_dim=8, heads=2)])
def test_what_has_no_frequency_for_each_pair_says_so(encoding):
    assert not wavelengths.has_frequencies(encoding)
    with pytest.raises(whorl.WhorlError, match=rf"frequencies_of: {encoding.config.name} has no frequency.*Use rope"):
        wavelengths.frequencies_of(encoding)


def test_turns_and_angles():
    assert wavelengths.turns([1.0, 0.25], 8 * math.pi).tolist() == pytest.approx([4.0, 1.0])
    found = wavelengths.angles([1.0, 0.1], [0, 7, 100, -1])
    for row, position in zip(found, (0, 7, 100, -1), strict=True):
        for angle, w in zip(row, (1.0, 0.1), strict=True):
            assert 0 <= angle < 2 * math.pi
            assert cmath.exp(1j * angle) == pytest.approx(cmath.exp(1j * position * w))
    assert wavelengths.angles([1.0], [-1e-20]).item() == 0.0
