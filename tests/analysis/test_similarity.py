"""Codes, their products and projections, against rows written out and scikit-learn's own numbers."""

import sys

import numpy as np
import pytest
import torch

import whorl
from oracles import sinusoidal as oracle
from whorl.analysis import similarity


@pytest.mark.parametrize("order", ["interleaved", "concatenated"])
def test_codes_are_those_of_the_paper(order):
    found = similarity.codes_of(whorl.Sinusoidal(width=7, order=order, scale=0.5), range(5))
    np.testing.assert_allclose(found, [0.5 * oracle.code(t, 7, order=order) for t in range(5)], atol=1e-15)


def test_codes_of_a_learned_table_are_its_rows():
    learned = whorl.Learned(width=6, length=10)
    found = similarity.codes_of(learned, [3, 9])
    (table,) = learned.parameters()
    assert torch.from_numpy(found).float().equal(table.detach()[[3, 9]])


def test_products_depend_on_the_distance_alone():
    found = similarity.products(similarity.codes_of(whorl.Sinusoidal(width=64), range(100)))
    for i, j in ((0, 0), (3, 40), (99, 1)):
        assert found[i, j] == pytest.approx(oracle.code(i, 64) @ oracle.code(j, 64))
        assert found[i, j] == pytest.approx(float(whorl.reference.similarity(i - j, 64)))
    assert np.abs(found).max() <= 32 + 1e-9


def test_pca_keeps_what_varies_most():
    generator = np.random.default_rng(0)
    codes = generator.standard_normal((50, 6)) * [9, 5, 1, 0.5, 0.2, 0.1]
    points, shares = similarity.pca(codes, components=2)
    assert points.shape == (50, 2) and shares is not None
    values, vectors = np.linalg.eigh(np.cov(codes.T))
    np.testing.assert_allclose(shares, values[::-1][:2] / values.sum(), rtol=1e-10)
    for component in (0, 1):
        direction = vectors[:, -1 - component]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])
        np.testing.assert_allclose(points[:, component], (codes - codes.mean(0)) @ direction, atol=1e-9)
    assert np.array_equal(similarity.pca(codes).points, points)


def test_pca_of_one_repeated_code_has_no_variance():
    points, shares = similarity.pca(np.ones((3, 4)))
    assert not points.any() and shares is not None and not shares.any()


def test_tsne_is_the_same_each_time_and_keeps_two_groups_apart():
    pytest.importorskip("sklearn")
    generator = np.random.default_rng(0)
    codes = np.concatenate((generator.normal(0, 0.1, (20, 5)), generator.normal(9, 0.1, (20, 5))))
    one, two = (similarity.tsne(codes, perplexity=8.0) for _ in range(2))
    assert np.array_equal(one.points, two.points) and one.shares is None
    centres = one.points[:20].mean(0), one.points[20:].mean(0)
    spread = max(np.linalg.norm(one.points[i] - centres[i // 20]) for i in range(40))
    assert spread < 0.25 * np.linalg.norm(centres[0] - centres[1])


def test_tsne_without_scikit_learn_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(whorl.WhorlError, match=r"scikit-learn is not installed\. Run: pip install scikit-learn, or"):
        similarity.tsne(np.eye(8), perplexity=3.0)


def test_the_four_terms_of_an_additive_code_sum_to_the_score():
    generator = np.random.default_rng(0)
    q, k = generator.standard_normal((2, 16))
    p, r = oracle.code(5, 16), oracle.code(9, 16)
    terms = similarity.additive_terms(q, k, p, r)
    assert sum(map(float, terms)) == pytest.approx((q + p) @ (k + r))
    assert (terms.content, terms.query_position) == (pytest.approx(q @ k), pytest.approx(q @ r))
    assert (terms.position_key, terms.position) == (pytest.approx(p @ k), pytest.approx(p @ r))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity.codes_of(whorl.Rope(head_dim=8), [0]), "codes_of: rope adds no code to the input"),
        (lambda: similarity.codes_of(whorl.Sinusoidal(width=8), [0.5]), "positions must be whole numbers"),
        (lambda: similarity.products([1.0, 2.0]), "products: codes must be a matrix of at least 2 rows"),
        (lambda: similarity.pca(np.eye(3), components=4), "pca: components must be from 1 to 3, got 4"),
        (lambda: similarity.tsne(np.eye(3)), "perplexity must be between 0 and the number of codes, 3"),
    ],
)
def test_what_cannot_be_compared_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
