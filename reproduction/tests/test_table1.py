"""Table 1, measured: the fit of a power, exact quantities of the problems, and schedules by theorem."""

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from reproduction.table1.fit import power_law
from reproduction.table1.lemmas import lemma_stages
from reproduction.table1.problems import PROBLEMS, dist_squared
from reproduction.table1.schedules import Ascdro, Constant, Restarts, Scdro
from scdro.errors import HyperparameterError

CONVEX = [problem for problem in PROBLEMS.values() if problem.convex]
named = {"ids": lambda p: getattr(p, "name", None)}

# -- the fit
# ----------------------------------------------------------------------------------------------------------

HORIZONS = np.array([100, 316, 1000, 3162, 10000])


def noisy_law(slope, rng, spread, seeds=10):
    """Runs whose mean is a power law, skewed as runs are: log-normal."""
    noise = np.exp(spread * rng.standard_normal((len(HORIZONS), seeds)) - spread**2 / 2)
    return (3.0 * HORIZONS[:, None] ** slope * noise).tolist()


@pytest.mark.parametrize(("slope", "spread"), [(-0.5, 0.1), (-2 / 3, 0.4), (-1.0, 0.8)])
def test_interval_of_a_slope_covers_the_truth(slope, spread):
    rng = np.random.default_rng(0)
    fits = [power_law(HORIZONS, noisy_law(slope, rng, spread)) for _ in range(600)]
    covered = np.mean([fit.low <= slope <= fit.high for fit in fits])
    assert 0.91 < covered < 0.98
    assert abs(np.mean([fit.slope for fit in fits]) - slope) < 0.01


def test_a_law_without_noise_is_found_exactly():
    fit = power_law(HORIZONS, [[5.0 * h**-0.7] * 2 for h in HORIZONS])
    np.testing.assert_allclose([*fit], [-0.7, -0.7, -0.7, math.log(5.0)], rtol=1e-9)


@pytest.mark.parametrize(
    ("samples", "values"),
    [
        ([10], [[1.0, 2.0]]),
        ([10, 10], [[1.0, 2.0]] * 2),
        ([10, 20], [[1.0], [2.0]]),
        ([10, 20], [[1.0, 0.0]] * 2),
    ],
)
def test_what_has_no_slope_is_an_error(samples, values):
    with pytest.raises(HyperparameterError, match="expected"):
        power_law(samples, values)


# -- the problems
# -----------------------------------------------------------------------------------------------------


def smooth_objective(problem, w, lam):
    """F by its formula, for autograd."""
    losses = problem.losses(w)
    return (
        lam * (torch.logsumexp(losses / lam, 0) - math.log(len(losses)))
        + (lam - problem.lam0) * problem.rho
    )


@pytest.mark.parametrize("problem", PROBLEMS.values(), **named)
def test_gradient_against_autograd_and_differences(problem):
    generator = torch.Generator().manual_seed(1)
    for lam in (problem.lam0, 0.8, 3.0):
        w = torch.randn(
            len(problem.start()), generator=generator, dtype=torch.float64
        ).requires_grad_()
        at = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
        value = smooth_objective(problem, w, at)
        of_w, of_lam = torch.autograd.grad(value, (w, at))
        mine_w, mine_lam = problem.gradient(w, lam)
        torch.testing.assert_close(mine_w, of_w, rtol=1e-10, atol=1e-12)
        assert mine_lam == pytest.approx(float(of_lam), abs=1e-11)
        assert problem.value(w, lam) == pytest.approx(float(value.detach()), rel=1e-12)
        step = 1e-5
        ahead, behind = (
            problem.value(w + sign * step * torch.eye(len(w), dtype=w.dtype)[0], lam)
            for sign in (1, -1)
        )
        assert (ahead - behind) / (2 * step) == pytest.approx(float(mine_w[0]), abs=1e-8)


@pytest.mark.parametrize("problem", PROBLEMS.values(), **named)
def test_losses_keep_the_assumptions(problem):
    generator = torch.Generator().manual_seed(2)
    for _ in range(200):
        w = torch.randn(len(problem.start()), generator=generator, dtype=torch.float64)
        losses = problem.losses(w * problem.radius / w.norm())
        assert losses.min() >= 0
        assert losses.max() <= problem.loss_bound


def test_stationarity_counts_the_borders_of_the_domain():
    problem = PROBLEMS["curved"]
    w = torch.tensor([0.3, -0.2, 0.1, 0.4, 0.0], dtype=torch.float64)
    of_w, of_lam = problem.gradient(w, problem.lam0)
    inside = float(of_w @ of_w)
    assert of_lam < 0  # F falls into the domain: the border does not hold it.
    assert problem.stationarity(w, problem.lam0) == pytest.approx(inside + of_lam**2)
    far = problem.stationarity(w, problem.lam_max)
    of_w, of_lam = problem.gradient(w, problem.lam_max)
    assert of_lam > 0
    assert far == pytest.approx(float(of_w @ of_w) + of_lam**2)
    easy = (
        problem.optimum().w
    )  # There KL < rho at a large lam0: the border holds lam, and its gradient does not count.
    wide = type(problem)(
        "wide", problem.x, problem.y, problem.loss, problem.largest, convex=True, lam0=3.0
    )
    of_w, of_lam = wide.gradient(easy, 3.0)
    assert of_lam > 0
    assert wide.stationarity(easy, 3.0) == pytest.approx(float(of_w @ of_w))


@pytest.mark.parametrize("seed", range(6))
def test_distance_on_the_sphere_against_minimisation(seed):
    generator = torch.Generator().manual_seed(seed)
    gradient, w = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    w = 2.0 * w / w.norm()
    found = minimize(
        lambda c: float((gradient + c[0] * w).square().sum()), [1.0], bounds=[(0, None)], tol=1e-14
    )
    assert dist_squared(gradient, w, 2.0) == pytest.approx(found.fun, abs=1e-9)
    assert dist_squared(gradient, w, 2.1) == pytest.approx(float(gradient @ gradient))


def by_cones(problem, mu):
    """min F + mu |x|^2/2 over X as a cone program: t_i >= lam exp((l_i - m)/lam), sum t_i <= n lam, F = m + ..."""
    n, d = problem.n, problem.x.shape[1]
    w, lam, level, t = (
        cp.Variable(len(problem.start())),
        cp.Variable(),
        cp.Variable(),
        cp.Variable(n),
    )
    r = problem.x.numpy() @ w[:d] - problem.y.numpy()
    losses, limits = (
        cp.Variable(n),
        [lam >= problem.lam0, lam <= problem.lam_max, cp.norm(w) <= problem.radius],
    )
    tail = cp.logistic(-2.0 * w[-1]) if problem.tail else 0.0
    limits += [cp.norm(cp.vstack([np.ones(n), r]), axis=0) - 1 + tail <= losses]
    limits += [cp.ExpCone(losses - level, lam * np.ones(n), t), cp.sum(t) <= n * lam]
    value = level + (lam - problem.lam0) * problem.rho
    whole = cp.Problem(cp.Minimize(value + mu / 2 * (cp.sum_squares(w) + cp.square(lam))), limits)
    whole.solve(solver=cp.CLARABEL)
    assert whole.status == cp.OPTIMAL
    return float(whole.value), float(lam.value)


@pytest.mark.parametrize("mu", [0.0, 0.02])
@pytest.mark.parametrize("problem", CONVEX, **named)
def test_optimum_against_a_cone_program(problem, mu):
    found = problem.optimum(mu)
    x_squared = float(found.w @ found.w) + found.lam**2
    value, lam = by_cones(problem, mu)
    assert found.value + mu / 2 * x_squared == pytest.approx(value, abs=1e-6)
    assert found.lam == pytest.approx(lam, abs=1e-3)
    assert (
        found.lam > problem.lam0
    )  # So that F is smooth around it, and the same without the regulariser.


# -- the schedules
# ----------------------------------------------------------------------------------------------------


def power(f, horizons=(10**4, 10**6)):
    a, b = horizons
    return math.log(f(b) / f(a)) / math.log(b / a)


def test_schedules_have_the_powers_of_the_theorems():
    assert power(lambda T: Scdro(3.0).at(T)[0]) == pytest.approx(-1 / 2)
    assert power(lambda T: Scdro(3.0).at(T)[1]) == pytest.approx(-1 / 2)
    assert Scdro(3.0).at(100) == pytest.approx((0.3, 0.1))
    assert power(lambda t: Ascdro(2.0, 0.0, 1.0).at(t)[0]) == pytest.approx(-1 / 3)
    assert power(lambda t: Ascdro(2.0, 0.0, 1.0).at(t)[1]) == pytest.approx(-2 / 3)
    assert Ascdro(2.0, 7.0, 0.5).at(1) == pytest.approx((1.0, 0.5))
    assert power(Constant(2.0).at) == pytest.approx(-1 / 2)


@pytest.mark.parametrize("accelerated", [False, True])
def test_restarts_have_the_powers_of_the_corollaries(accelerated):
    schedule = Restarts(accelerated, eps=1.0, mu=0.1, eta=2.0, beta=3.0, gap=0.5)
    eps = -1 / 2 if accelerated else -1 / 3
    assert power(lambda T: schedule.target(T)[0]) == pytest.approx(eps)
    assert power(lambda T: schedule.target(T)[1]) == pytest.approx(eps)
    assert power(lambda T: schedule.stages(T)[-1].beta) == pytest.approx(2 * eps)
    assert power(lambda T: schedule.stages(T)[-1].lr) == pytest.approx(
        eps if accelerated else 2 * eps
    )
    assert power(lambda T: schedule.stages(T)[-1].steps) == pytest.approx(1, abs=0.05)
    assert all(sum(stage.steps for stage in schedule.stages(T)) == T for T in (5, 30, 100, 12345))


@pytest.mark.parametrize("accelerated", [False, True])
def test_stages_follow_one_another_as_in_the_lemmas(accelerated):
    schedule = Restarts(accelerated, eps=1.0, mu=0.1, eta=2.0, beta=3.0, gap=0.5)
    mine, (eps, mu) = schedule.stages(10**6), schedule.target(10**6)
    count = len(mine)
    lemma = lemma_stages(
        mu, eps * 2 ** (count - 1), sigma=1.0, L_F=1.0, stages=count, accelerated=accelerated
    )
    assert count > 4
    for a, b in ((mine[k], lemma[k]) for k in range(count)):
        assert a.lr / mine[0].lr == pytest.approx(b.lr / lemma[0].lr)
        assert a.beta / mine[0].beta == pytest.approx(b.beta / lemma[0].beta)
        assert a.steps / mine[0].steps == pytest.approx(b.steps / lemma[0].steps, rel=1e-3)


def test_bad_constants_of_the_lemmas():
    good = {"mu": 1.0, "eps1": 1.0, "sigma": 1.0, "L_F": 1.0, "stages": 2}
    for bad in ("mu", "eps1", "sigma", "L_F"):
        with pytest.raises(HyperparameterError, match=f"{bad} > 0.*-1"):
            lemma_stages(**good | {bad: -1.0})
    with pytest.raises(HyperparameterError, match=r"stage.*0"):
        lemma_stages(**good | {"stages": 0})
