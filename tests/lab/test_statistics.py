"""Statistics: intervals against closed forms and scipy's own, and how often they err where the truth is known."""

from __future__ import annotations

import math
import statistics
import sys

import numpy as np
import pytest
from scipy import stats

from whorl.errors import WhorlError
from whorl.lab import statistics as lab
from whorl.lab.statistics import Spread, estimate, holm, interval, judge, pooled, share_interval, share_low, t_quantile


def test_intervals_are_students_over_seeds_and_twice_the_error_of_one():
    found = interval([1.0, 2.0, 4.0])
    half = 4.302652729911275 * statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3)  # from a table of Student's t
    assert found is not None and found["n"] == 3
    assert found["high"] - found["mean"] == pytest.approx(half, rel=1e-3)
    assert interval([2.0], [0.25]) == {"mean": 2.0, "low": 1.5, "high": 2.5, "n": 1}
    assert interval([None, None]) is None
    one = interval([None, 3.0], [None, 0.5])
    assert one is not None and (one["mean"], one["high"]) == (3.0, 4.0)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (4, 2.7764), (30, 2.0423), (60, 2.0003)])
def test_students_t(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("right", "n"), [(0, 16), (3, 16), (50, 100), (100, 100)])
def test_a_share_of_one_seed_has_clopper_and_pearsons_interval(right, n):
    found = share_interval([right / n], n)
    exact = stats.binomtest(right, n).proportion_ci(method="exact")
    assert found is not None and found["trials"] == n
    assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_a_share_of_several_seeds_knows_how_they_scatter():
    close, apart = share_interval([0.5, 0.5, 0.5], 100), share_interval([0.3, 0.5, 0.7], 100)
    assert close is not None and apart is not None
    exact = stats.binomtest(150, 300).proportion_ci(method="exact")
    assert (close["low"], close["high"]) == pytest.approx((exact.low, exact.high))
    assert apart["high"] - apart["low"] > 2 * (close["high"] - close["low"])
    edge = share_interval([0.9, 1.0, 1.0], 10)
    assert edge is not None and edge["high"] == 1.0 and share_interval([None], 10) is None


def test_one_seed_is_the_paired_t_test_over_samples():
    one, two = np.random.default_rng(0).normal(size=(2, 40))
    (found,) = judge([estimate(np.array([(one - two).mean()]), (one - two)[None])])
    exact = stats.ttest_rel(one, two)
    assert found.p == pytest.approx(exact.pvalue)
    low, high = exact.confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.estimate.seeds, found.estimate.samples) == (1, 40)


def test_seeds_alone_are_the_paired_t_test_over_seeds():
    one, two = np.random.default_rng(1).normal(size=(2, 5))
    (found,) = judge([estimate(one - two)])
    assert found.p == pytest.approx(stats.ttest_rel(one, two).pvalue) and found.estimate.samples == 0


def test_one_seed_without_samples_tells_nothing():
    (found,) = judge([estimate(np.array([0.3]))])
    assert (found.low, found.high, found.p, found.least) == (None, None, None, None)


def test_pooling_two_models_is_their_own_variance_and_many_lend_degrees_of_freedom():
    means = np.random.default_rng(2).normal(size=(6, 3))
    two = pooled(means[:2])
    assert two is not None and two.freedom == 2
    assert two.variance == pytest.approx(np.var(means[0] - means[1], ddof=1))
    six = pooled(means)
    pairs = [np.var(means[i] - means[j], ddof=1) for i in range(6) for j in range(i)]
    assert six is not None and six.freedom == 10 and six.variance == pytest.approx(np.mean(pairs))
    shifted = pooled(means + np.array([5.0, -3.0, 0.0]))  # what a seed does to all models cancels
    assert shifted is not None and shifted.variance == pytest.approx(six.variance)
    assert pooled(means[:1]) is None is pooled(means[:, :1])


def test_the_variance_of_a_difference_is_that_of_its_three_sources():
    random, errors, means = np.random.default_rng(3), [], []
    for _ in range(2000):
        z = random.normal(0, 0.02, (6, 1)) + random.normal(0, 0.1, (1, 50)) + random.normal(0, 0.2, (6, 50))
        found = estimate(z.mean(1), z)
        errors.append(found.error)
        means.append(found.mean)
    true = 0.02**2 / 6 + 0.1**2 / 50 + 0.2**2 / 300
    assert np.var(means) == pytest.approx(true, rel=0.1)
    assert np.mean(np.square(errors)) == pytest.approx(true, rel=0.1)


def test_degrees_of_freedom_lie_between_those_of_seeds_and_of_samples():
    z = np.random.default_rng(4).normal(size=(3, 200))
    freedoms = [estimate(z.mean(1), z, Spread(variance, 2)).freedom for variance in (0.0, 1e-3, 1e-2, 1.0, 1e3)]
    assert freedoms == sorted(freedoms, reverse=True)
    assert freedoms[0] == pytest.approx(199) and freedoms[-1] == pytest.approx(2, rel=1e-3)
    text, seed = float(z.mean(0).var(ddof=1)) / 200, 1e-2 / 3
    assert freedoms[2] == pytest.approx((1.5 * seed + text) ** 2 / ((1.5 * seed) ** 2 / 2 + text**2 / 199))


def test_holm_is_the_textbook_procedure():
    """The example of Holm's own step-down: 0.01, 0.02, 0.03, 0.04 of 4."""
    chances = [0.04, 0.01, 0.03, 0.02]
    adjusted = [chance * times for chance, times in zip(chances, holm(chances), strict=True)]
    assert adjusted == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.0, 0.5]) == [2.0, 1.0] and holm([]) == []


def test_an_interval_leaves_0_out_exactly_where_it_is_called():
    random = np.random.default_rng(5)
    called = 0
    for _ in range(60):
        found = judge([estimate(random.normal(size=4) + shift) for shift in random.normal(0, 2, 5)])
        for one in found:
            assert one.low is not None and one.high is not None and one.p is not None
            assert (one.low > 0 or one.high < 0) == (one.p <= lab.LEVEL)
            called += one.p <= lab.LEVEL
    assert 10 < called < 290


def test_what_is_the_same_by_construction_is_no_question():
    zero, other = estimate(np.zeros(3), np.zeros((3, 8))), estimate(np.array([1.0, 1.1, 0.9]))
    alone, (same, beside) = judge([other]), judge([zero, other])
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)
    assert beside.p == alone[0].p  # it costs the other nothing


def test_seeds_that_differ_by_the_very_same_tell_nothing():
    """Of 16 probes two seeds often find as many more, and an error of 0 called it with certainty."""
    (found,) = judge([estimate(np.array([1 / 16, 1 / 16]))])
    assert (found.low, found.high, found.p) == (None, None, None)


def test_all_right_against_all_wrong_is_told_by_many_and_not_by_two():
    many, two = (judge([estimate(np.ones(1), np.ones((1, n)), shares=True)])[0] for n in (16, 2))
    assert many.p is not None and many.p < 1e-6 and many.low is not None and many.low > 0.7
    assert two.p is not None and two.p > 0.1
    same = judge([estimate(np.zeros(1), np.zeros((1, 16)), shares=True)])[0]
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_shares_of_guesses_are_hardly_ever_told_apart(share):
    random = np.random.default_rng(7)
    drawn = (random.random((2, 1, 100)) < share for _ in range(1000))
    found = [
        judge([estimate(z.mean(1), z, shares=True)])[0].p or 0
        for one, two in drawn
        if (z := one.astype(float) - two).any()
    ]
    assert np.mean(np.array(found) <= lab.LEVEL) < 0.07


def test_the_lower_end_of_a_share_is_clopper_and_pearsons_widened_for_those_beside_it():
    exact = stats.binomtest(17, 100).proportion_ci(method="exact")
    assert share_low(0.17, 100) == pytest.approx(exact.low) and share_low(0.0, 100) == 0.0
    assert share_low(0.17, 100, judged=72) < 0.1 < share_low(0.17, 100)  # what one of ten by chance may well come to


def test_the_least_difference_is_found_four_times_in_five():
    random = np.random.default_rng(6)
    error = 0.1 / math.sqrt(20)
    least = judge([estimate(np.array([0.0]), random.normal(0, 0.1, (1, 20)))])[0].least
    assert least == pytest.approx((2.093 + 0.861) * error, rel=0.4)
    shifts = (random.normal((2.093 + 0.861) * error, 0.1, (1, 20)) for _ in range(1500))
    found = [judge([estimate(z.mean(1), z)])[0].p or 0 for z in shifts]
    assert np.mean(np.array(found) <= lab.LEVEL) == pytest.approx(lab.POWER, abs=0.05)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    lab._stats.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(WhorlError, match=r'scipy is not installed\. Run: pip install "whorl\[lab\]"'):
        t_quantile(3)
    monkeypatch.undo()
    lab._stats.cache_clear()
