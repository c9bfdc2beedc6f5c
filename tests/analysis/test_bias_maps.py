"""Biases as arrays, against the papers written out."""

import math

import numpy as np
import pytest

import whorl
from oracles import alibi, kerple, t5
from whorl.analysis import bias_maps


def test_a_bias_map_hides_keys_after_the_query():
    found = bias_maps.bias_map(whorl.Alibi(heads=6), 7)
    expected = alibi.bias(range(7), range(7), alibi.slopes(6))
    lower = np.tri(7, dtype=bool)
    assert np.isnan(found[:, ~lower]).all()
    np.testing.assert_allclose(found[:, lower], expected[:, lower], atol=1e-7)


def test_a_bias_map_of_both_sides():
    encoding = whorl.T5(heads=3, bidirectional=True)
    found = bias_maps.bias_map(encoding, 40, causal=False)
    table = encoding.table.detach().tolist()
    np.testing.assert_allclose(found, t5.bias(table, range(40), range(40), bidirectional=True), atol=1e-7)


def test_bias_by_distance_reads_back_from_the_last_query():
    encoding = whorl.Kerple(heads=2)
    distances = [0, 3, 100]
    p, a = (x.detach().clamp(min=0.01).tolist() for x in (encoding.p, encoding.a))
    expected = kerple.log_bias(p, a, [100], [100 - d for d in distances])[:, 0]
    np.testing.assert_allclose(bias_maps.bias_by_distance(encoding, distances), expected, atol=1e-6)


def test_the_receptive_field_of_alibi_is_that_of_a_geometric_series():
    found = bias_maps.receptive_field(bias_maps.bias_by_distance(whorl.Alibi(heads=8), range(4096)))
    for field, m in zip(found, alibi.slopes(8), strict=True):
        whole = math.fsum(math.exp(-m * d) for d in range(4096))
        held = [math.fsum(math.exp(-m * d) for d in range(n)) / whole for n in (field - 1, field)]
        assert held[0] < 0.99 <= held[1]
    assert bias_maps.receptive_field(np.zeros(100), 0.5).tolist() == [50]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bias_maps.bias_map(whorl.Rope(head_dim=8), 4), "bias_map: rope adds no bias to the scores"),
        (lambda: bias_maps.receptive_field([0.0], 1.0), "share must be between 0 and 1, got 1.0"),
    ],
)
def test_what_cannot_be_scored_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
