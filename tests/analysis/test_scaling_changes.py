"""Changes of the pairs by scalings, against the formulas of the papers."""

import numpy as np
import pytest

import whorl
from oracles import rotary_frequencies
from whorl.analysis import scaling_changes


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (whorl.Linear(factor=4.0), rotary_frequencies.linear(32, 10_000, 4)),
        (whorl.Ntk(factor=4.0), rotary_frequencies.ntk_base(32, 10_000, 4)),
    ],
)
def test_what_a_scaling_leaves_of_each_pair(scaling, expected):
    rope = whorl.Rope(head_dim=32, scaling=scaling)
    found = scaling_changes.changes(rope)
    plain = [float(w) for w in rotary_frequencies.plain(32, 10_000)]
    np.testing.assert_allclose(found.before, plain, rtol=1e-13)
    np.testing.assert_allclose(found.after, [float(w) for w in expected], rtol=1e-13)
    np.testing.assert_allclose(found.kept, [float(w) / p for w, p in zip(expected, plain, strict=True)], rtol=1e-13)
    assert scaling_changes.unscaled(rope).config == whorl.Rope(head_dim=32).config


def test_a_length_dependent_scaling_is_asked_for_its_length():
    rope = whorl.Rope(head_dim=32, scaling=whorl.DynamicNtk(factor=2.0, original_length=64))
    assert (scaling_changes.changes(rope).kept == 1).all()
    assert scaling_changes.changes(rope, 128).kept[-1] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scaling_changes.changes(whorl.Alibi(heads=2)), "unscaled: alibi takes no scaling"),
    ],
)
def test_what_cannot_be_bounded_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
