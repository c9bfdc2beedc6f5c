"""Scores by distance, against the papers written out and the attention of the library."""

import math

import numpy as np
import pytest
import torch

import registry_cases
import whorl
from oracles import alibi, xpos
from whorl.analysis import scores


def test_scores_of_rope_are_the_sum_of_cosines():
    found = scores.scores_by_distance(whorl.Rope(head_dim=16), 50, heads=1)
    expected = [2 * math.fsum(math.cos(k * 1e4 ** (-2 * i / 16)) for i in range(8)) / 4 for k in range(51)]
    np.testing.assert_allclose(found, [expected], atol=1e-6)


def test_scores_of_xpos_with_content_of_the_users_own():
    generator = np.random.default_rng(0)
    q, k = generator.standard_normal((2, 8))
    found = scores.scores_by_distance(whorl.XPos(head_dim=8, layout="interleaved"), 30, query=q, key=k)
    expected = [xpos.score(q, k, 30, 30 - d) / math.sqrt(8) for d in range(31)]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_scores_of_an_input_encoding_have_all_four_terms():
    found = scores.scores_by_distance(whorl.Sinusoidal(width=12), 20)
    codes = 1 + whorl.reference.sinusoidal(np.arange(21), 12)
    np.testing.assert_allclose(found[0], codes[20] @ codes[::-1].T / math.sqrt(12), atol=1e-5)


def test_scores_of_a_join_take_their_sizes_from_its_parts():
    both = whorl.Combined(whorl.Rope(head_dim=16), whorl.Alibi(heads=2), whorl.Window(size=4))
    found = scores.scores_by_distance(both, 9)
    rope = scores.scores_by_distance(whorl.Rope(head_dim=16), 9, heads=1)[0]
    for h, m in enumerate(alibi.slopes(2)):
        np.testing.assert_allclose(found[h, :4], (rope - m * np.arange(10))[:4], atol=1e-6)
        assert (found[h, 4:] == -math.inf).all()


@pytest.mark.parametrize("name", registry_cases.NAMES)
def test_scores_are_those_the_attention_of_the_library_weighs(name):
    encoding, length = registry_cases.build(name), 12
    found = scores.scores_by_distance(encoding, length, head_dim=16, heads=4)
    assert found.shape[1] == length + 1
    heads, head_dim = found.shape[0], (64 if "add_to_input" in encoding.enters() else 16)
    positions = torch.arange(length + 1)
    x = torch.ones(1, heads, length + 1, head_dim, dtype=torch.float64)
    if "add_to_input" in encoding.enters():
        x = encoding.add_to_input(x, positions)
    hidden = {"hidden": torch.zeros(1, length + 1, 64)} if encoding.reads_hidden else {}
    settings = {"encoding": encoding, "causal": True, "return_weights": True, "impl": "torch", **hidden}
    with torch.no_grad():
        _, weights = whorl.attention(x, x, torch.zeros_like(x), **settings)
    expected = weights[0, :, -1].flip(-1).double().numpy()
    softened = np.exp(found - found.max(-1, keepdims=True))
    np.testing.assert_allclose(softened / softened.sum(-1, keepdims=True), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scores.scores_by_distance(whorl.NoPE(), 0), "length must be at least 1, got 0"),
        (lambda: scores.scores_by_distance(whorl.NoPE(), 4, query=[1.0]), r"query must be of shape \(64,\)"),
    ],
)
def test_what_cannot_be_scored_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
