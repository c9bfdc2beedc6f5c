"""Decay against sums written out one by one, and the numbers of the notes (N27)."""

import cmath
import math

import numpy as np
import pytest

import whorl
from whorl.analysis import decay

W = [10_000.0 ** (-2 * i / 128) for i in range(64)]


def sums(frequencies, distance):
    """S_1 … S_n, one term at a time."""
    out, total = [], 0j
    for w in frequencies:
        total += cmath.exp(1j * distance * w)
        out.append(total)
    return out


def test_the_abel_bound_is_the_curve_of_the_notes():
    distances = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    found = decay.abel_bound(W, distances)
    assert found.round(4).tolist() == [32.5, 31.5382, 28.956, 22.604, 19.8174, 15.775, 13.3843, 10.0899, 9.2729, 6.5431]
    for value, k in zip(found, distances, strict=True):
        assert value == pytest.approx(math.fsum(map(abs, sums(W, k))) / 64, rel=1e-12)


def test_the_bound_falls_as_a_trend_and_not_step_by_step():
    assert decay.rises(decay.abel_bound(W, np.arange(257))) == 115
    assert decay.rises([3, 3, 2]) == 0


def test_the_cosine_sum_is_the_table_of_the_notes_and_turns_negative_at_1707():
    assert decay.cosine_sum(W, [0, 1, 2, 8, 64, 256]).round(4).tolist() == [
        64.0,
        62.0937,
        57.3819,
        45.7205,
        30.5201,
        20.5248,
    ]
    assert int((decay.cosine_sum(W, np.arange(2000)) < 0).argmax()) == 1707


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_from_pair_products_are_those_of_rotated_vectors(layout):
    generator = np.random.default_rng(0)
    q, k = generator.standard_normal((2, 16))
    w = whorl.reference.frequencies(16)
    found = decay.scores(decay.pair_products(q, k, layout), w, np.arange(-5, 40))
    for at, distance in enumerate(range(-5, 40)):
        turned = [whorl.reference.rope(x[None], [m], layout=layout)[0] for x, m in ((q, 100), (k, 100 - distance))]
        assert found[at] == pytest.approx(turned[0] @ turned[1], abs=1e-12)


def test_no_score_passes_its_bound_and_the_last_product_enters_it():
    generator = np.random.default_rng(1)
    w, distances = whorl.reference.frequencies(32), np.arange(300)
    rough = generator.standard_normal((2, 32))
    for q, k in (rough, 1 + 0.01 * rough):
        h = decay.pair_products(q, k)
        bound, score = decay.score_bound(h, w, distances), decay.scores(h, w, distances)
        assert (np.abs(score) <= bound * (1 + 1e-12)).all()
        differences = [abs(a - b) for a, b in zip([*h, 0][:-1], [*h, 0][1:], strict=True)]
        for at in (0, 7, 299):
            assert bound[at] == pytest.approx(max(differences) * math.fsum(map(abs, sums(w, at))), rel=1e-12)
    constant = np.ones(16)  # no differences but the last: without it the bound would be 0 and false
    assert decay.score_bound(constant, w, [0.0])[0] == pytest.approx(sum(range(1, 17)))


def test_aligned_content_does_not_decay():
    for distance in (0, 17, 4096):
        products = decay.aligned_products(W, distance)
        assert decay.scores(products, W, [distance])[0] == pytest.approx(64)
        assert np.abs(products).tolist() == pytest.approx([1.0] * 64)


def test_ladders_fall_from_one_and_decay():
    for kind in decay.LADDERS:
        ladder = decay.ladder(kind, 64)
        assert ladder[0] == 1 and (np.diff(ladder) < 0).all() and ladder[-1] > 0
        far = decay.abel_bound(ladder, np.arange(200, 257)).mean()
        assert far < 0.5 * decay.abel_bound(ladder, [0])[0]
    assert decay.ladder("exponential", 64).tolist() == pytest.approx(W)
    assert decay.ladder("linear", 4).tolist() == [1, 0.75, 0.5, 0.25]
    assert decay.ladder("power", 4).tolist() == [1, 0.5625, 0.25, 0.0625]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decay.ladder("cubic", 4), "ladder: unknown ladder 'cubic'."),
        (lambda: decay.ladder("linear", 0), "ladder: pairs must be positive, got 0."),
        (lambda: decay.scores([1.0], [1.0, 0.1], [0]), "scores: products must be one for each of 2 frequencies"),
        (lambda: decay.pair_products([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), "pair_products: vectors must be of even size"),
        (lambda: decay.pair_products([1.0, 2.0], [1.0, 2.0], "thirds"), "pair_products: unknown layout 'thirds'"),
        (lambda: decay.cosine_sum([math.nan], [0]), "cosine_sum: frequencies must be finite"),
        (lambda: decay.cosine_sum(["a"], [0]), "cosine_sum: frequencies must be real numbers"),
        (lambda: whorl.analysis.nothing, "has no attribute 'nothing'"),
    ],
)
def test_what_cannot_be_computed_says_why(call, message):
    with pytest.raises((whorl.WhorlError, AttributeError), match=message.replace("(", r"\(")):
        call()
