"""Positions that look alike, against counting and sums written out."""

import math
import struct

import numpy as np
import pytest

import whorl
from whorl.analysis import aliasing


def to_bfloat16(x: float) -> float:
    """The nearest bfloat16, ties to even, from the bits of the float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def test_distinct_positions_are_counted_as_the_dtype_rounds():
    for length in (1, 256, 258, 2048):
        assert aliasing.distinct_positions(length, "bfloat16") == len({to_bfloat16(m) for m in range(length)})
        assert aliasing.distinct_positions(length, "float32") == length
    assert aliasing.distinct_positions(2048, "bfloat16") == 641
    assert aliasing.distinct_positions(4096, "float16") == 2048 + 1024 + 1  # 4095 becomes 4096


def test_distinct_codes_are_counted_as_the_dtype_rounds():
    for w, length in (([1.0, 0.003], 400), ([0.001], 1000)):
        codes = {tuple(to_bfloat16(f(m * each)) for each in w for f in (math.cos, math.sin)) for m in range(length)}
        assert aliasing.distinct_codes(w, length, "bfloat16") == len(codes)
    assert len(codes) < 1000
    assert aliasing.distinct_codes([2 * math.pi / 8], 1000, "bfloat16") < 200  # whole turns, but for noise
    assert aliasing.distinct_codes(whorl.reference.frequencies(64), 5000, "bfloat16") == 5000


def test_code_distances_are_those_of_sinusoidal_codes():
    w = whorl.reference.frequencies(16)
    codes = whorl.reference.sinusoidal(np.arange(60), 16)
    found = aliasing.code_distances(w, np.arange(50))
    for t in (0, 9):
        np.testing.assert_allclose(found, np.linalg.norm(codes[t : t + 50] - codes[t], axis=-1), atol=1e-13)
    assert aliasing.code_distances([1e-9], [1])[0] == pytest.approx(1e-9, rel=1e-12)


def test_the_nearest_alias_of_one_wave_is_its_best_rational_turn():
    at, apart = aliasing.nearest_alias([1.0], 800)
    assert at == 710 and apart == pytest.approx(2 * abs(math.sin(355)))  # 355 / 113 is nearly pi
    assert aliasing.nearest_alias([1.0], 800, beyond=711)[0] > 710
    assert aliasing.nearest_alias(whorl.reference.frequencies(64), 1000)[1] > 0.5


def test_first_wrap():
    assert aliasing.first_wrap([1.0, 0.1, 2 * math.pi]).tolist() == [7, 63, 1]


def test_more_dimensions_recover_positions_from_more_noise():
    few, some, many = (aliasing.recovered_share(whorl.reference.frequencies(d), 200, 0.5) for d in (8, 32, 128))
    assert few < 0.3 < some < 0.9 < many
    assert aliasing.recovered_share([1.0], 6, 0.0) == 1.0
    assert aliasing.recovered_share([2 * math.pi], 4, 0.0) <= 0.25  # every position has the same code


def test_the_sum_of_cosines_is_no_ruler():
    w = whorl.reference.frequencies(8)
    same = aliasing.distances_with_sum(w, 500, 20, 0.01)
    sums = [sum(math.cos(x * k) for x in w) for k in range(500)]
    assert same == [k for k in range(500) if k != 20 and abs(sums[k] - sums[20]) <= 0.01] != []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aliasing.distinct_positions(9, "int8"), "distinct_positions: unknown dtype 'int8'"),
        (lambda: aliasing.nearest_alias([1.0], 5, beyond=5), "nearest_alias: beyond must be from 1 to 4, got 5"),
    ],
)
def test_what_cannot_be_asked_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
