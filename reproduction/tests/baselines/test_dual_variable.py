"""The dual of the primal-dual methods: its tree, its projections, its gradient."""

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from primal_dual_twins import RHO, kl, temper
from scipy.stats import chisquare

from logistic import N, losses_of, problem
from reproduction.baselines import SPD
from reproduction.baselines.dual_variable import (
    Dual,
    LogSumTree,
    Multipliers,
    euclidean_kl_ball,
    tempered,
)

# -- the tree
# ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.floats(0.0, 300.0), st.integers(0, 10**6))
def test_the_tree_sums_what_its_leaves_hold(n, spread, seed):
    rng = np.random.default_rng(seed)
    logs = spread * rng.normal(size=n)
    tree = LogSumTree(torch.tensor(logs))
    for _ in range(3):
        index = rng.choice(n, min(n, 5), replace=False)
        logs[index] = spread * rng.normal(size=len(index))
        tree.update(torch.tensor(index), torch.tensor(logs[index]))
        top = logs.max()
        p = np.exp(logs - top) / np.exp(logs - top).sum()
        assert tree.total == pytest.approx(
            top + math.log(np.exp(logs - top).sum()), abs=1e-11 * (1 + spread)
        )
        assert tree.kl == pytest.approx(kl(p), abs=1e-10 * (1 + spread))
        np.testing.assert_array_equal(tree.log_weights.numpy(), logs)


@pytest.mark.parametrize("n", [3, 32, 33, 1500])
def test_the_tree_draws_by_weight(n):
    rng = np.random.default_rng(n)
    weights = rng.gamma(1.0, size=n) + 0.05
    weights[rng.choice(n, n // 3, replace=False)] = 0.0
    with np.errstate(divide="ignore"):
        tree = LogSumTree(
            torch.tensor(np.log(weights) - 500.0)
        )  # exp(-500) of it is still drawn right
    draws = tree.draw(40_000, torch.Generator().manual_seed(1))
    found = np.bincount(draws.numpy(), minlength=n)
    assert len(found) == n
    assert (found[weights == 0] == 0).all()
    live = weights > 0
    assert chisquare(found[live], 40_000 * weights[live] / weights.sum()).pvalue > 1e-3


# -- projections
# ------------------------------------------------------------------------------------------------------


def by_cone_program(n, cost, rho):
    p = cp.Variable(n, nonneg=True)
    program = cp.Problem(
        cp.Minimize(cost(p)), [cp.sum(p) == 1, cp.sum(cp.rel_entr(p, np.full(n, 1 / n))) <= rho]
    )
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return p.value


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_tempering_is_the_kl_projection(rho, seed):
    q = np.random.default_rng(seed).dirichlet(np.full(12, 0.3 + seed)) + 0.01
    q /= q.sum()
    found = tempered(torch.tensor(np.log(q) + 3.0), rho).exp().numpy()
    np.testing.assert_allclose(
        found, by_cone_program(12, lambda p: cp.sum(cp.rel_entr(p, q)), rho), atol=1e-4
    )
    np.testing.assert_allclose(found, temper(q, rho), atol=1e-10)
    assert kl(found) <= rho + 1e-12
    assert kl(found) == pytest.approx(min(rho, kl(q)), rel=1e-9)


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.5])
@pytest.mark.parametrize("scale", [0.03, 1.0, 20.0])
def test_the_euclidean_projection_against_cvxpy(rho, scale):
    z = scale * np.random.default_rng(int(100 * rho)).normal(size=12)
    found, _ = euclidean_kl_ball(torch.tensor(z), rho)
    np.testing.assert_allclose(
        found.numpy(), by_cone_program(12, lambda p: cp.sum_squares(p - z), rho), atol=3e-5
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 60), st.floats(-5, 5), st.floats(-5, 0.8), st.integers(0, 10**6), st.booleans()
)
def test_the_euclidean_projection_satisfies_its_conditions(n, log_scale, log_rho, seed, with_guess):
    """Stationarity, feasibility, complementary slackness: for a convex problem, that is optimality."""
    rng, rho = np.random.default_rng(seed), 10.0**log_rho
    scale = 10.0**log_scale
    z = scale * rng.normal(size=n)
    guess = Multipliers(*rng.normal(size=2)) if with_guess else None
    p, (m, nu) = euclidean_kl_ball(torch.tensor(z), rho, guess)
    p = p.numpy()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert kl(p) <= rho * (1 + 1e-9) + 1e-12
    if nu > 0:
        assert kl(p) == pytest.approx(rho, rel=1e-8, abs=1e-12)
        live = p > 1e-280
        residual = z - p - nu * np.log(np.where(live, p, 1.0)) - m
        np.testing.assert_allclose(residual[live], 0.0, atol=1e-8 * (1.0 + scale + nu))
    else:
        threshold = (z - p)[p > 0]
        assert np.ptp(threshold) <= 1e-10 * (1 + scale)
        assert (z[p == 0] <= threshold.mean() + 1e-10 * (1 + scale)).all()


@pytest.mark.parametrize("nu", [1e-300, 1e-18, 1e-9, 1e9])
def test_a_bad_guess_does_no_harm(nu):
    z = torch.tensor([3.0, 0.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    exact, _ = euclidean_kl_ball(z, 0.1)
    found, _ = euclidean_kl_ball(z, 0.1, Multipliers(0.5, nu))
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


def test_the_euclidean_projection_from_the_last_answer():
    rng = np.random.default_rng(0)
    z = 1 / 2000 + 1e-3 * rng.exponential(size=2000)
    _, last = euclidean_kl_ball(torch.tensor(z), 0.1)
    z += 1e-5 * rng.normal(size=2000)
    cold, warm = (
        euclidean_kl_ball(torch.tensor(z), 0.1),
        euclidean_kl_ball(torch.tensor(z), 0.1, last),
    )
    assert last.nu > 0
    np.testing.assert_allclose(warm[0], cold[0], rtol=0, atol=1e-13)


# -- the dual
# ---------------------------------------------------------------------------------------------------------


def test_the_dual_stays_in_its_ball_and_weights_add_up():
    dual, rng = Dual(500, RHO), np.random.default_rng(0)
    for _ in range(50):
        dual.ascend(torch.tensor(rng.integers(0, 500, 8)), torch.tensor(rng.exponential(size=8)))
        assert dual.kl <= RHO + 1e-12
        assert dual.log_p.exp().sum() == pytest.approx(1.0)
    assert dual.kl == pytest.approx(RHO, rel=1e-9)
    for level, scale in ((0.0, 1.0), (1e9, 1e-6)):
        dual.respond(torch.tensor(level + scale * rng.normal(size=500)), 1e-9)
        assert dual.kl == pytest.approx(RHO, rel=1e-9)


@pytest.mark.parametrize("size", [1e2, 1e10, 1e20, 1e99])
def test_the_dual_stays_in_its_ball_after_huge_steps(size):
    """From 1e17 on, KL was lost in rounding: p left the ball, and became NaN."""
    dual, rng = Dual(500, RHO), np.random.default_rng(0)
    for _ in range(20):
        dual.ascend(
            torch.tensor(rng.integers(0, 500, 8)), torch.tensor(size * rng.exponential(size=8))
        )
        p = dual.log_p.exp().numpy()
        assert p.sum() == pytest.approx(1.0)
        assert p @ np.log(500 * np.maximum(p, 1e-300)) == pytest.approx(RHO, rel=1e-9)


def test_the_dual_adds_up_what_a_sample_drawn_twice_gets():
    one, two = Dual(20, 5.0), Dual(20, 5.0)
    one.ascend(torch.tensor([3, 7, 3]), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64))
    two.ascend(torch.tensor([3, 7]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(one.log_p, two.log_p)


@pytest.mark.parametrize("uniform", [False, True])
def test_the_dual_gradient_is_unbiased(uniform):
    """The mean of l_I e_I / p_I over draws is l: by summing over all draws, not by sampling."""
    model, x, y, _ = problem()
    opt = SPD(model.parameters(), n=N, rho=RHO, uniform=uniform)
    opt._dual.respond(torch.linspace(0, 2, N, dtype=torch.float64), 1e-3)
    losses = losses_of(model, x, y, torch.arange(N))().detach()
    chance = np.full(N, 1 / N) if uniform else opt.weights.numpy()
    expected = np.zeros(N)
    for i in range(N):
        batch = opt._method_state.read(losses[[i]])
        expected[i] += chance[i] * float(opt._dual_gradient(batch, torch.tensor([i]))[0])
    np.testing.assert_allclose(expected, losses.numpy(), rtol=1e-12)
