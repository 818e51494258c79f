"""The worst case of a round: lam by scipy's root finder, values by the library's own, workers by hand."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import logsumexp

import scdro
from scdro.boosting._losses import LogisticLoss, SoftmaxLoss, SquaredLoss
from scdro.boosting._round_weights import best_constant_shares, choose_first_ratio, solve_ratio
from scdro.errors import NonFiniteLossError

RNG = np.random.default_rng(0)
LOSSES = RNG.exponential(size=500)
WEIGHT = RNG.exponential(size=500) * (RNG.random(500) > 0.1)


def lam_by_scipy(losses, q, rho):
    def excess(log_lam):
        x = losses / math.exp(log_lam)
        log_p = np.log(q) + x
        log_p -= logsumexp(log_p)
        return np.exp(log_p) @ (log_p - np.log(q)) - rho

    return math.exp(brentq(excess, -8, 20, xtol=1e-14))


@pytest.mark.parametrize("rho", [1e-8, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("start", [None, 1e-3, 30.0])
def test_lam_is_the_root_of_kl(rho, weighted, start):
    weight = WEIGHT if weighted else np.ones(500)
    live = weight > 0
    q = weight[live] / weight.sum()
    found = solve_ratio(LOSSES, weight if weighted else None, rho, start=start)
    assert found.lam == pytest.approx(lam_by_scipy(LOSSES[live], q, rho), rel=1e-6)
    p = q * found.ratio[live]
    assert p.sum() == pytest.approx(1)
    assert p @ np.log(found.ratio[live]) == pytest.approx(rho, rel=1e-6, abs=1e-15)
    assert found.value == pytest.approx(p @ LOSSES[live])


def test_the_same_as_the_library():
    found, exact = (
        solve_ratio(LOSSES, WEIGHT, 0.3),
        scdro.worst_case(LOSSES, 0.3, 1e-12, sample_weight=WEIGHT),
    )
    assert found.value == pytest.approx(exact.value)
    assert found.ratio * WEIGHT / WEIGHT.sum() == pytest.approx(exact.weights)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_units_of_the_losses_do_not_matter(unit):
    assert solve_ratio(unit * LOSSES, None, 0.3).ratio == pytest.approx(
        solve_ratio(LOSSES, None, 0.3).ratio, rel=1e-6
    )


def test_no_radius_and_no_difference():
    assert solve_ratio(LOSSES, None, 0.0).ratio.tolist() == [1.0] * 500
    flat = solve_ratio(np.full(5, 2.0), None, 1.0)
    assert flat.ratio.tolist() == [1.0] * 5
    assert flat.value == 2.0


def test_more_than_can_be_spent_goes_to_the_hardest():
    found = solve_ratio(np.array([0.0, 1.0, 2.0]), None, 5.0)
    assert found.ratio == pytest.approx([0, 0, 3])
    assert found.value == pytest.approx(2)


def test_samples_without_weight_do_not_count():
    losses, weight = np.append(LOSSES, 1e6), np.append(np.ones(500), 0.0)
    found = solve_ratio(losses, weight, 0.3)
    assert found.value == pytest.approx(solve_ratio(LOSSES, None, 0.3).value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_that_diverges_is_told(bad):
    with pytest.raises(NonFiniteLossError, match="learning_rate"):
        solve_ratio(np.array([1.0, bad]), None, 0.3)


@pytest.mark.parametrize("rho", [1e-6, 0.3])
def test_workers_with_uneven_parts_agree_with_one(rho):
    """Three threads that can only add and compare numbers; one of them has no rows."""
    parts, met, shared = [slice(0, 400), slice(400, 500), slice(500, 500)], Barrier(3), [None] * 3

    def work(k):
        def reduce(values, operation):
            shared[k] = values
            met.wait(10)
            total = np.sum(shared, 0) if operation == "sum" else np.max(shared, 0)
            met.wait(10)
            return total

        return solve_ratio(LOSSES[parts[k]], WEIGHT[parts[k]], rho, reduce=reduce)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    one = solve_ratio(LOSSES, WEIGHT, rho)
    assert np.concatenate([part.ratio for part in found]) == pytest.approx(one.ratio)
    assert found[0].lam == pytest.approx(one.lam)
    assert len({part.lam for part in found}) == 1


# -- the first round
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5])
def test_tempered_shares_have_the_least_robust_value(rho):
    q = np.array([0.7, 0.25, 0.05])

    def robust(scores):
        return scdro.worst_case(logsumexp(scores) - scores, rho, 1e-9, sample_weight=q).value

    best = minimize(
        robust,
        np.log(q),
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 5000},
    )
    assert robust(np.log(best_constant_shares(q, rho))) == pytest.approx(best.fun, rel=1e-6)


def test_equal_shares_where_they_are_within_the_radius():
    assert best_constant_shares(np.array([0.6, 0.4, 0.0]), rho=1.0) == pytest.approx([0.5, 0.5, 0])


def test_the_first_weights_have_the_tempered_average():
    y = (RNG.random(500) < 0.1).astype(float)
    ratio = choose_first_ratio(LogisticLoss(), y, WEIGHT, 0.2)
    share = np.average(y, weights=WEIGHT)
    assert np.average(y, weights=WEIGHT * ratio) == pytest.approx(
        best_constant_shares(np.array([1 - share, share]), 0.2)[1]
    )
    classes = RNG.choice(3, 500, p=[0.8, 0.15, 0.05])
    ratio = choose_first_ratio(SoftmaxLoss(), classes, None, 0.2)
    masses = np.bincount(classes, ratio) / 500
    assert masses == pytest.approx(best_constant_shares(np.bincount(classes) / 500, 0.2))
    assert choose_first_ratio(SquaredLoss(), LOSSES, None, 0.2) is None
