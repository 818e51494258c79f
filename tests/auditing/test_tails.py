"""Tails of sums of coin flips against exact probabilities."""

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from scdro.auditing._questions import (
    bernoulli_tail,
)  # its relative error at 1e-12 is not seen from outside


def exact_upper(p, k):
    """P(sum >= k), by the recursion over rows, with fifty digits."""
    mpmath.mp.dps = 50
    mass = [mpmath.mpf(1)]
    for one in p:
        one = mpmath.mpf(float(one))
        mass = [a * (1 - one) + b * one for a, b in zip([*mass, 0], [0, *mass], strict=True)]
    return float(sum(mass[k:]))


@pytest.mark.parametrize("seed", range(6))
def test_different_probabilities(seed):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 5, 120)
    for k in range(int(p.sum()) + 3, int(p.sum()) + 25, 4):
        found = bernoulli_tail(k - p.sum(), p)
        assert found == pytest.approx(2 * exact_upper(p, k), rel=0.1)


@pytest.mark.parametrize("p", [0.002, 0.05, 0.5, 0.98])
def test_many_rows_with_one_probability(p):
    n = 20_000
    for sign in (-1, 1):
        k = round(n * p + sign * 6 * np.sqrt(n * p * (1 - p)))
        if not 0 <= k <= n:
            continue
        exact = 2 * (binom.sf(k - 1, n, p) if sign > 0 else binom.cdf(k, n, p))
        assert bernoulli_tail(k - n * p, np.full(n, p)) == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("p", [1e-9, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_few_events_that_were_ruled_out(p, k):
    """One event of probability 1e-7 among a hundred rows happens once in 100,000, not never."""
    exact = 2 * binom.sf(k - 1, 100, p)
    assert bernoulli_tail(k - 100 * p, np.full(100, p)) == pytest.approx(exact, rel=0.1, abs=0)
    assert bernoulli_tail(100 * p - k, np.full(100, 1 - p)) == pytest.approx(exact, rel=0.1, abs=0)


def test_all_on_one_side():
    assert bernoulli_tail(20 * 0.7, np.full(20, 0.3)) == pytest.approx(2 * 0.3**20, rel=1e-6)


def test_weights_of_one_are_none():
    p = np.random.default_rng(0).random(200)
    assert bernoulli_tail(25.0, p, np.ones(200)) == pytest.approx(bernoulli_tail(25.5, p), rel=0.1)
