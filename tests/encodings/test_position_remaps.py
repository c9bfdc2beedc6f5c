"""ReRoPE, leaky ReRoPE and Self-Extend against the oracle, and the cases in which each is RoPE."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from dense_flow import attend, tokens
from helpers import LAYOUTS, SCALINGS
from oracles import remaps as oracle

CLOSE = {"rtol": 0, "atol": 1e-11}

MAKERS = {
    "rerope": (lambda **own: whorl.ReRope(window=5, **own), lambda i, j: oracle.rerope(i - j, 5)),
    "leaky": (
        lambda **own: whorl.LeakyReRope(window=5, factor=3.0, **own),
        lambda i, j: oracle.leaky(i - j, 5, 3),
    ),
    "leaky_fractional": (
        lambda **own: whorl.LeakyReRope(window=4, factor=2.5, **own),
        lambda i, j: oracle.leaky(i - j, 4, 2.5),
    ),
    "self_extend": (
        lambda **own: whorl.SelfExtend(window=5, group=3, **own),
        lambda i, j: oracle.self_extend(i, j, 3, 5),
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_against_the_oracle(name):
    make, relative = MAKERS[name]
    encoding = make(head_dim=8)
    q, k, v = tokens(14)
    ids = torch.arange(14)
    frequencies = encoding.frequencies().tolist()
    arrays = [x[0].numpy() for x in (q, k, v)]
    scores, weights, out = oracle.attention(*arrays, frequencies, relative, range(14), range(14))
    got = attend(encoding, q, k, v, ids, ids)
    seen = torch.isfinite(torch.tensor(scores))
    torch.testing.assert_close(got.scores[0][seen], torch.tensor(scores)[seen], **CLOSE)
    torch.testing.assert_close(got.weights[0], torch.tensor(weights), **CLOSE)
    torch.testing.assert_close(got.out[0], torch.tensor(out), **CLOSE)


@pytest.mark.parametrize("name", ["rerope", "leaky", "leaky_fractional"])
def test_both_directions_against_the_oracle(name):
    make, relative = MAKERS[name]
    encoding = make(head_dim=8, bidirectional=True)
    q, k, v = tokens(14)
    ids = torch.arange(14)
    arrays = [x[0].numpy() for x in (q, k, v)]
    place = (encoding.frequencies().tolist(), relative, range(14), range(14))
    scores, _, out = oracle.attention(*arrays, *place, causal=False)
    got = attend(encoding, q, k, v, ids, ids, causal=False)
    torch.testing.assert_close(got.scores[0], torch.tensor(scores), **CLOSE)
    torch.testing.assert_close(got.out[0], torch.tensor(out), **CLOSE)
    assert not encoding.causal_only and make(head_dim=8).causal_only


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(1, 600),
    st.floats(1.0, 50.0),
    st.integers(1, 16),
    st.integers(0, 10**6),
)
def test_distances_are_those_of_the_oracle(i, j, window, factor, group, start):
    """The distance of the branch that a pair belongs to, wherever the text begins."""
    q_positions, k_positions = torch.tensor([i + start]), torch.tensor([j + start])
    cases = [
        (whorl.ReRope(head_dim=2, window=window, bidirectional=True), oracle.rerope(i - j, window)),
        (
            whorl.LeakyReRope(head_dim=2, window=window, factor=factor, bidirectional=True),
            oracle.leaky(i - j, window, factor),
        ),
    ]
    if i >= j:
        group_distance = oracle.self_extend(i + start, j + start, group, window)
        cases.append((whorl.SelfExtend(head_dim=2, window=window, group=group), group_distance))
    for encoding, expected in cases:
        branches = encoding.branches(q_positions, k_positions)
        (own,) = [branch for branch in branches if bool(branch.allowed)]
        got = float(own.q_positions.double() - own.k_positions.double())
        assert got == pytest.approx(expected, abs=1e-9 * max(1, start))


SAME_AS_ROPE = {
    "rerope with a window as long as the text": lambda **own: whorl.ReRope(window=20, **own),
    "leaky with factor 1": lambda **own: whorl.LeakyReRope(window=3, factor=1.0, **own),
    "leaky with a window as long as the text": lambda **own: whorl.LeakyReRope(window=20, **own),
    "self-extend with a window as long as the text": lambda **own: whorl.SelfExtend(window=20, **own),
    "self-extend with groups of 1": lambda **own: whorl.SelfExtend(window=3, group=1, **own),
}


@pytest.mark.parametrize("case", SAME_AS_ROPE)
@pytest.mark.parametrize(
    "own",
    [
        {},
        *({"layout": layout} for layout in LAYOUTS[1:]),
        {"rotary_dim": 32, "slice": "trailing"},
        {"rotated_heads": (1,)},
        {"frequencies": [0.5**i for i in range(32)]},
        {"learnable": True},
        {"angles": "float32"},
        *({"scaling": SCALINGS[name]} for name in ("yarn", "dynamic_ntk", "longrope", "proportional")),
    ],
    ids=str,
)
def test_what_remaps_nothing_is_rope(case, own):
    encoding, rope = SAME_AS_ROPE[case](head_dim=64, **own), whorl.Rope(head_dim=64, **own)
    q, k, v = tokens(20, dim=64)
    ids = torch.arange(20)
    got, expected = (attend(one, q, k, v, ids, ids, length=1000).out for one in (encoding, rope))
    atol = 2e-6 if own.get("angles") == "float32" else 1e-12
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)
    assert encoding.softmax_scale(64, 1000) == rope.softmax_scale(64, 1000)
    assert encoding.length_dependent == rope.length_dependent


def test_rerope_is_what_leaky_rerope_tends_to():
    q, k, v = tokens(14)
    ids = torch.arange(14)
    one = attend(whorl.ReRope(head_dim=8, window=5), q, k, v, ids, ids).out
    two = attend(whorl.LeakyReRope(head_dim=8, window=5, factor=1e9), q, k, v, ids, ids).out
    torch.testing.assert_close(one, two, rtol=0, atol=1e-7)


def test_self_extend_depends_on_where_groups_begin_and_the_others_on_distances_alone():
    q, k, v = tokens(14)
    ids = torch.arange(14)
    for name, (make, _) in MAKERS.items():
        encoding = make(head_dim=8)
        near, far = (attend(encoding, q, k, v, ids + shift, ids + shift).out for shift in (0, 1000))
        same = torch.allclose(near, far, atol=1e-9)
        assert same == encoding.claims.relative == (name != "self_extend"), name
        shifted = attend(encoding, q, k, v, ids + 3000, ids + 3000).out
        torch.testing.assert_close(shifted, near, rtol=0, atol=1e-9)  # whole groups


@pytest.mark.parametrize("name", MAKERS)
def test_each_row_of_a_batch_has_its_own_positions(name):
    encoding = MAKERS[name][0](head_dim=8)
    q, k, v = tokens(14, batch=2)
    ids = torch.stack((torch.arange(14), torch.arange(14) + 7))
    both = attend(encoding, q, k, v, ids, ids).out
    for row in range(2):
        part = slice(row, row + 1)
        alone = attend(encoding, q[part], k[part], v[part], ids[row], ids[row]).out
        torch.testing.assert_close(both[part], alone, **CLOSE)


@pytest.mark.parametrize("name", MAKERS)
def test_gradients(name):
    encoding = MAKERS[name][0](head_dim=2)
    q, k, v = tokens(8, heads=1, dim=2, grad=True)
    ids = torch.arange(8)
    assert torch.autograd.gradcheck(lambda *x: attend(encoding, *x, ids, ids).out, (q, k, v))


def test_learned_frequencies_get_gradients_from_both_branches():
    encoding = whorl.ReRope(head_dim=8, window=3, learnable=True)
    q, k, v = tokens(8, dtype=torch.float32)
    ids = torch.arange(8)
    attend(encoding, q, k, v, ids, ids).out.square().sum().backward()
    assert bool((encoding.log_scale.grad != 0).all())


@pytest.mark.parametrize("name", MAKERS)
def test_keys_are_cached_unrotated(name):
    assert MAKERS[name][0](head_dim=8).key_policy == "raw"


def test_exact_at_far_positions():
    """Fractional positions are float64: at a million, float32 ones would be off by a sixteenth."""
    encoding = whorl.LeakyReRope(head_dim=8, window=5, factor=3.0)
    q, k, v = tokens(14)
    ids = torch.arange(14)
    expected = attend(encoding, q, k, v, ids, ids).out
    got = attend(encoding, *(x.float() for x in (q, k, v)), ids + 3_000_000, ids + 3_000_000).out
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)
