"""The base bound and the critical dimension, against counting and 50 digits."""

import math

import numpy as np
import pytest

import whorl
from whorl.analysis import bounds


def holds(base, context, dim):
    """Whether no sum of cosines is negative, distance by distance."""
    frequencies = [base ** (-2 * i / dim) for i in range(dim // 2)]
    return all(math.fsum(math.cos(m * w) for w in frequencies) >= 0 for m in range(context))


@pytest.mark.parametrize(("base", "expected"), [(4.2e3, False), (4.3e3, True), (4.4e3, False)])
def test_the_bases_that_serve_a_context_have_gaps(base, expected):
    assert bounds.base_holds(base, 1000) is expected is holds(base, 1000, 128)


def test_the_first_base_that_holds():
    assert bounds.base_lower_bound(1000) == 4300
    assert bounds.base_lower_bound(8192, bases=[8.3e4, 8.4e4, 8.5e4]) == 8.4e4
    grid = [1000.0, 2000.0, 2100.0, 9000.0]
    assert bounds.base_lower_bound(512, bases=grid) == next(base for base in grid if holds(base, 512, 128))


def test_a_half_that_does_not_turn_serves_every_context():
    for base in (1.5, 100.0, 1e4):
        assert bounds.base_holds(base, 2000, 128, rotary_dim=64)
    assert not bounds.base_holds(100.0, 2000, 128, rotary_dim=112)


def test_the_lowest_sum_is_found_across_chunks_and_the_search_may_end_early():
    w = whorl.reference.frequencies(32)
    sums = whorl.reference.similarity(np.arange(10_000), 32)
    assert bounds.lowest_sum(w, 10_000) == pytest.approx(sums.min())
    assert bounds.lowest_sum(w, 10_000, floor=0.0) < 0
    assert bounds.lowest_sum(w, 1) == 16


def test_the_grid_of_bases_has_two_digits():
    grid = bounds.two_digit_bases(1e3, 2e4)
    assert grid[0] == 1000 and grid[-1] == 20_000 and len(grid) == 90 + 11
    assert all(base == float(f"{base:.1e}") for base in grid)


@pytest.mark.parametrize(
    ("dim", "base", "length", "expected"),
    [(128, 1e4, 4096, 92), (128, 1e4, 2048, 82), (64, 1e4, 512, 32), (64, 1e4, 128, 22), (32, 1e4, 64, 10)]
    + [(64, 1e4, 3, 0), (64, 10.0, 10**6, 64)],
)
def test_the_critical_dimension_counts_what_finishes_a_turn(dim, base, length, expected):
    assert bounds.critical_dimension(dim, base, length) == expected
    finished = sum(2 * math.pi * base ** (2 * i / dim) < length for i in range(dim // 2))
    assert expected == 2 * finished


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.lowest_sum([1.0], 0), "lowest_sum: context must be at least 1, got 0"),
        (lambda: bounds.base_holds(1.0, 10), "base_holds: base must be larger than 1"),
        (lambda: bounds.base_holds(10.0, 10, 8, rotary_dim=9), "rotary_dim must be even and from 2 to 8, got 9"),
        (lambda: bounds.base_lower_bound(2000, bases=[10.0, 20.0]), "none of 2 bases holds for context=2000"),
        (lambda: bounds.critical_dimension(64, 1.0, 8), "critical_dimension: base must be larger than 1"),
        (lambda: bounds.critical_dimension(64, 10.0, 0), "trained_length must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_bounded_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
