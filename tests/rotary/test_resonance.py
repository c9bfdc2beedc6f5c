"""Resonance: whole wavelengths, alone and after every other scaling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import SCALINGS
from oracles import resonance as oracle

OTHERS = {name: scaling for name, scaling in SCALINGS.items() if not isinstance(scaling, whorl.Resonance)}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([4, 20, 64, 128]), st.sampled_from([10.0, 1e4, 12345.678, 5e5]))
def test_against_the_oracle(dim, base):
    plain, rounded = (whorl.Rope(head_dim=dim, base=base, scaling=s) for s in (None, whorl.Resonance()))
    expected = oracle.frequencies(plain.frequencies().tolist())
    torch.testing.assert_close(rounded.frequencies().tolist(), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("angles", ["exact", "float32"])
@pytest.mark.parametrize("length", [None, 10_000])
def test_after_every_scaling(name, angles, length):
    inner = OTHERS[name]
    plain = whorl.Rope(head_dim=64, scaling=inner, angles=angles)
    rounded = whorl.Rope(head_dim=64, scaling=whorl.Resonance(inner=inner), angles=angles)
    before, got = plain.frequencies(length), rounded.frequencies(length)
    turning = before != 0
    assert torch.equal(got[~turning], before[~turning])
    turns, old = 2 * math.pi / got[turning], 2 * math.pi / before[turning]
    if angles == "exact":
        torch.testing.assert_close(got.tolist(), oracle.frequencies(before.tolist()), rtol=1e-15, atol=0)
        torch.testing.assert_close(turns, turns.round(), rtol=1e-14, atol=0)
    else:  # every step in float32: a wavelength between two whole numbers may go to either
        torch.testing.assert_close(turns, turns.round(), rtol=2e-7, atol=0)
        assert bool(((turns - old).abs() <= 0.5 + 3e-7 * old).all())
    assert rounded.length_dependent == plain.length_dependent
    assert rounded.attention_factor(length) == plain.attention_factor(length)
    assert rounded.softmax_factor(length) == plain.softmax_factor(length)
    assert whorl.from_dict(rounded.config.to_dict()).config == rounded.config


def test_a_pair_repeats_itself_exactly():
    rope = whorl.Rope(head_dim=8, scaling=whorl.Resonance())
    for pair, turn in enumerate((6, 63, 628, 6283)):
        ids = torch.tensor([5, 5 + turn, 5 + 100 * turn])
        cos, sin = rope.tables(ids)
        for wave in (cos[:, pair], sin[:, pair]):
            torch.testing.assert_close(wave, wave[:1].expand(3), rtol=0, atol=6e-8)
    cos, _ = whorl.Rope(head_dim=8).tables(torch.tensor([5, 11]))
    assert abs(float(cos[1, 0] - cos[0, 0])) > 0.2


def test_no_wavelength_below_one_and_no_turn_from_none():
    own = (7.0, 4.1, -0.1, 0.0)
    got = whorl.Rope(head_dim=8, frequencies=own, scaling=whorl.Resonance()).frequencies().tolist()
    expected = [2 * math.pi, 2 * math.pi / 2, -2 * math.pi / 63, 0.0]
    assert got == pytest.approx(expected, rel=1e-15)


def test_the_class_and_its_instances_say_whether_the_length_matters():
    dynamic = whorl.Resonance(inner=OTHERS["dynamic_ntk"])
    assert not whorl.Resonance.length_dependent and not whorl.Resonance().length_dependent
    assert dynamic.length_dependent and dynamic.replace().length_dependent
    assert not whorl.Resonance(inner=OTHERS["yarn"]).length_dependent
    assert hash(dynamic) == hash(whorl.Resonance(inner=OTHERS["dynamic_ntk"])) and dynamic != whorl.Resonance()


def test_rounding_twice_is_refused():
    with pytest.raises(whorl.WhorlError, match="Resonance: inner is a Resonance, and rounding twice changes nothing"):
        whorl.Resonance(inner=whorl.Resonance())
    with pytest.raises(whorl.WhorlError, match="Resonance: inner must be a Scaling, got 'yarn'"):
        whorl.Resonance(inner="yarn")
    with pytest.raises(whorl.WhorlError, match="Ntk: cannot scale frequencies given as a list"):
        whorl.Rope(head_dim=2, frequencies=[1.0], scaling=whorl.Resonance(inner=whorl.Ntk(factor=2)))


def test_fused_rotation_and_gradients():
    rope = whorl.Rope(head_dim=8, scaling=whorl.Resonance(inner=whorl.Linear(factor=2.0)), learnable=True)
    x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0))
    rope.rotate(x, torch.arange(4)).sin().sum().backward()
    assert bool((rope.log_scale.grad != 0).all())
