"""The exact linear models against cone programs, scikit-learn, finite differences; and their certificate."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, QuantileRegressor, Ridge

import oracles
from scdro.linear_model import KLDROClassifier, KLDRORegressor
from scdro.linear_model import _exact as exact
from scdro.linear_model._dual import lower_bound
from scdro.linear_model._losses import Huber, Logistic, Multinomial, Pinball, Squared
from scdro.linear_model._problem import Problem
from scdro.linear_model._worst import worst

LAM0 = 1e-3
KINDS = ["binary", "multinomial", "squared_error", "huber", "absolute_error", "quantile"]


def data(kind, n=200, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) / math.sqrt(d)
    score = X @ rng.standard_normal(d)
    if kind == "binary":
        return X, (score + rng.logistic(size=n) > 0.3).astype(int)
    if kind == "multinomial":
        return X, np.argmax(X[:, :3] + rng.gumbel(size=(n, 3)), 1)
    return X, score + rng.standard_t(4, n) + 2


def model(kind, **settings):
    if kind in ("binary", "multinomial"):
        return KLDROClassifier(**settings)
    return KLDRORegressor(loss=kind, **({"quantile": 0.8} if kind == "quantile" else {}), **settings)


def losses(kind, X, y, W):
    """Per-sample losses, the plain way. W is (k, d + 1)."""
    z = X @ W[:, :-1].T + W[:, -1]
    if kind == "binary":
        return np.logaddexp(0, (1 - 2 * y) * z[:, 0])
    if kind == "multinomial":
        return np.logaddexp.reduce(z, 1) - z[np.arange(len(y)), y]
    r = z[:, 0] - y
    return {
        "squared_error": r**2 / 2,
        "huber": np.where(abs(r) <= 1.35, r**2 / 2, 1.35 * abs(r) - 1.35**2 / 2),
        "absolute_error": abs(r),
        "quantile": np.maximum(-0.8 * r, 0.2 * r),
    }[kind]


def packed(fitted):
    return np.column_stack([np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)])


def objective(kind, fitted, X, y, weight=None):
    weight = np.ones(len(y)) if weight is None else weight
    robust = oracles.by_root(losses(kind, X, y, packed(fitted)), fitted.rho, fitted.lam0, weight).value
    return robust + np.sum(fitted.coef_**2) / (2 * fitted.C * weight.sum())


def cone_program(kind, X, y, rho, C=1.0, weight=None):
    """The least objective, as an exponential-cone program that knows nothing of lam's elimination."""
    weight = np.ones(len(y)) if weight is None else weight
    X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    (n, d), k = X.shape, 3 if kind == "multinomial" else 1
    q = weight / weight.sum()
    W, b = cp.Variable((d, k)), cp.Variable((1, k))
    z = X @ W + np.ones((n, 1)) @ b
    if kind == "binary":
        l = cp.logistic(cp.multiply(1 - 2 * y, z[:, 0]))
    elif kind == "multinomial":
        l = cp.log_sum_exp(z, axis=1) - cp.sum(cp.multiply(z, np.eye(3)[y]), axis=1)
    else:
        r = z[:, 0] - y
        l = {
            "squared_error": lambda: cp.square(r) / 2,
            "huber": lambda: cp.huber(r, 1.35) / 2,
            "absolute_error": lambda: cp.abs(r),
            "quantile": lambda: cp.maximum(-0.8 * r, 0.2 * r),
        }[kind]()
    penalty = cp.sum_squares(W) / (2 * C * weight.sum())
    if rho == 0:
        problem = cp.Problem(cp.Minimize(q @ l + penalty))
    else:
        lam, t, s, bound = cp.Variable(), cp.Variable(), cp.Variable(n), cp.Variable(n)
        cone = cp.constraints.ExpCone(bound - t, lam * np.ones(n), s)  # lam exp((l - t)/lam) <= s
        problem = cp.Problem(
            cp.Minimize(t + (lam - LAM0) * rho + penalty), [bound >= l, cone, q @ s <= lam, lam >= LAM0]
        )
    for tol in (1e-10, 1e-9, 1e-8):  # the sharpest that the cone solver manages
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
        if problem.status == cp.OPTIMAL:
            break
    assert problem.status == cp.OPTIMAL, problem.status
    return float(problem.value)


@pytest.mark.parametrize("rho", [0.0, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_cone_program(kind, rho):
    X, y = data(kind)
    fitted = model(kind, rho=rho).fit(X, y)
    least = cone_program(kind, X, y, rho)
    assert objective(kind, fitted, X, y) == pytest.approx(least, rel=1e-6)
    assert fitted.robust_value_ + np.sum(fitted.coef_**2) / (2 * len(y)) == pytest.approx(least, rel=1e-6)
    assert 0 <= fitted.dual_gap_ <= 1e-8 + 1e-12


@pytest.mark.parametrize(
    ("kind", "n", "rho"), [("binary", 1000, 0.3), ("multinomial", 600, 0.1), ("absolute_error", 1000, 1.0)]
)
def test_equals_the_cone_program_with_weights_and_more_samples(kind, n, rho):
    X, y = data(kind, n, seed=1)
    weight = np.random.default_rng(2).integers(0, 4, n).astype(float)
    fitted = model(kind, rho=rho, C=0.1).fit(X, y, weight)
    assert objective(kind, fitted, X, y, weight) == pytest.approx(cone_program(kind, X, y, rho, 0.1, weight), rel=1e-6)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_gap_of_fits_stopped_early(kind, rho, max_iter):
    """An upper bound of the true gap, at most ten times it plus 1e-8. The truth is the fit that converged, itself
    certified, and by other means in the tests above."""
    X, y = data(kind, seed=3)
    least = objective(kind, model(kind, rho=rho, tol=1e-9).fit(X, y), X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = model(kind, rho=rho, max_iter=max_iter).fit(X, y)
    true_gap = objective(kind, fitted, X, y) - least
    assert true_gap - 1e-8 <= fitted.dual_gap_ <= 10 * max(true_gap, 0) + 1e-8 + 1e-10


@pytest.mark.parametrize("C", [1e-4, 1.0, 1e4])
def test_gap_over_penalties(C):
    X, y = data("binary", 300, seed=4)
    fitted = KLDROClassifier(C=C, rho=0.2).fit(X, y)
    assert fitted.dual_gap_ <= 1e-8
    assert objective("binary", fitted, X, y) == pytest.approx(cone_program("binary", X, y, 0.2, C), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_lower_bound_holds_at_any_point(kind):
    """Weak duality, at random points: D is below the least objective, wherever it is taken."""
    X, y = data(kind, 80, seed=5)
    least = objective(kind, model(kind, rho=0.3, tol=1e-8).fit(X, y), X, y)
    problem = problem_of(kind, X, y, 0.3)
    rng = np.random.default_rng(0)
    for scale in (0.01, 1.0, 10.0):
        W = scale * rng.standard_normal(problem.shape)
        assert lower_bound(problem, W, problem.evaluate(W, problem.scores(W))) <= least + 1e-12


def problem_of(kind, X, y, rho, lam0=LAM0):
    loss = {
        "binary": lambda: Logistic(2.0 * y - 1),
        "multinomial": lambda: Multinomial(y, 3),
        "squared_error": lambda: Squared(y),
        "huber": lambda: Huber(y, 1.35),
        "absolute_error": lambda: Pinball(y, 0.5, 2.0, mu=0.3),
        "quantile": lambda: Pinball(y, 0.8, 1.0, mu=0.3),
    }[kind]()
    n = len(y)
    return Problem(X, loss, np.full(n, 1 / n), 1 / n, rho, lam0, True)


@pytest.mark.parametrize(("rho", "lam0"), [(0.0, LAM0), (0.2, LAM0), (0.2, 50.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind, rho, lam0):
    """Gradient and Hessian product by finite differences, where lam moves with w and where it sits at lam0."""
    X, y = data(kind, 60, seed=6)
    problem = problem_of(kind, X, y, rho, lam0)
    rng = np.random.default_rng(1)
    W, V = 0.3 * rng.standard_normal((2, *problem.shape))

    def value(t):
        return problem.evaluate(W + t * V, problem.scores(W + t * V))

    def gradient(t):
        return problem.gradient(W + t * V, value(t))

    h = 1e-5
    assert (gradient(0) * V).sum() == pytest.approx((value(h).value - value(-h).value) / (2 * h), rel=1e-6)
    expected = (gradient(h) - gradient(-h)) / (2 * h)
    if isinstance(problem.loss, Pinball):  # its curvature beyond the kink is made up: above the true one, by little
        made_up = problem.hessian_product(value(0), V)
        assert (expected * V).sum() - 1e-5 <= (made_up * V).sum() <= 1.2 * (expected * V).sum() + 1e-5
        return
    np.testing.assert_allclose(problem.hessian_product(value(0), V), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_conjugates(kind):
    """phi(z) + phi*(u) >= u z, with equality at u = phi'(z)."""
    _, y = data(kind, 30, seed=7)
    loss = problem_of(kind, np.zeros((30, 1)), y, 0.0).loss
    rng = np.random.default_rng(2)
    z, other = rng.standard_normal((2, loss.k, 30)) * 2
    at = loss(z)
    smoothing = loss.mu / 2 * at.slope[0] ** 2 if isinstance(loss, Pinball) else 0.0
    np.testing.assert_allclose(at.value + loss.conjugate(at.slope) + smoothing, (at.slope * z).sum(0), atol=1e-12)
    assert np.all(loss.exact(other) + loss.conjugate(at.slope) - (at.slope * other).sum(0) >= -1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_balanced_slopes_stay_in_the_domain(kind):
    _, y = data(kind, 50, seed=8)
    loss = problem_of(kind, np.zeros((50, 1)), y, 0.0).loss
    p = np.random.default_rng(3).dirichlet(np.ones(50))
    z = np.random.default_rng(4).standard_normal((loss.k, 50)) + 1
    u = loss.balanced(loss(z).slope, p)
    np.testing.assert_allclose(u @ p, 0, atol=1e-14)
    if kind == "multinomial":
        pi = u + np.eye(3)[y].T
        assert pi.min() >= 0
        np.testing.assert_allclose(pi.sum(0), 1)
    else:
        assert np.all(abs(u) <= abs(loss(z).slope) + 1e-15)
        assert np.all(u * loss(z).slope >= 0)


@pytest.mark.parametrize("kind", ["binary", "multinomial"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 2.0, 1: 0.5}])
def test_rho_zero_is_logistic_regression(kind, fit_intercept, class_weight):
    X, y = data(kind, 400, seed=9)
    weight = np.random.default_rng(0).random(400)
    settings = {"C": 0.5, "fit_intercept": fit_intercept, "class_weight": class_weight}
    ours = KLDROClassifier(rho=0.0, **settings).fit(X, y, weight)
    theirs = LogisticRegression(tol=1e-9, max_iter=5000, **settings).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-3)
    assert ours.lam_ == math.inf


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_rho_zero_is_ridge(fit_intercept):
    X, y = data("squared_error", seed=10)
    weight = np.random.default_rng(0).random(len(y))
    ours = KLDRORegressor(rho=0.0, C=0.2, fit_intercept=fit_intercept).fit(X, 1e3 * y, weight)
    theirs = Ridge(alpha=5.0, fit_intercept=fit_intercept).fit(X, 1e3 * y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4)


def test_rho_zero_is_quantile_regression():
    X, y = data("quantile", seed=11)
    ours = KLDRORegressor("quantile", quantile=0.8, rho=0.0, C=1e6).fit(X, y)
    theirs = QuantileRegressor(quantile=0.8, alpha=0.0).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_worst_case_weights(kind):
    X, y = data(kind, seed=12)
    fitted = model(kind, rho=0.4).fit(X, y)
    expected = oracles.by_root(losses(kind, X, y, packed(fitted)), 0.4)
    np.testing.assert_allclose(fitted.worst_case_weights(X, y), expected.weights, rtol=1e-4, atol=1e-9)
    assert fitted.lam_ == pytest.approx(expected.lam, rel=1e-3)


@pytest.mark.parametrize("l", [[0.0, 1.0, 2.0, 3.0], [5.0] * 4, [20.0, 19.999, 0.0, 5.0], [1e6, 0.0, -1e6, 3.0]])
@pytest.mark.parametrize("rho", [1e-6, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("guess", [None, 1e-3, 1.0, 1e9])
def test_inner_solve(l, rho, guess):
    l, q = np.array(l), np.array([0.3, 0.3, 0.2, 0.2])
    expected, found = oracles.by_root(l, rho, q=q), worst(l, q, rho, LAM0, guess)
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.p, expected.weights, rtol=1e-5, atol=1e-12)


def test_inner_solve_ignores_samples_of_weight_zero():
    l, q = np.array([0.0, 1.0, 9e9]), np.array([0.5, 0.5, 0.0])
    assert worst(l, q, 0.1, LAM0).value == pytest.approx(oracles.by_root(l[:2], 0.1).value)


@pytest.mark.parametrize("kind", ["binary", "multinomial", "huber"])
def test_large_problem_takes_every_path(kind):
    """Thinned start, sampled preconditioner, blocks of rows: the same answer as without any of them."""
    X, y = data(kind, 30_000, 6, seed=13)
    fitted = model(kind, rho=0.3).fit(X, y)
    assert fitted.dual_gap_ <= 1e-8
    problem = problem_of(kind, X, y, 0.3)
    W = packed(fitted)
    assert np.abs(problem.gradient(W, problem.evaluate(W, problem.scores(W)))).max() <= 1e-4


def test_many_features_use_the_diagonal(monkeypatch):
    X, y = data("binary", 300, 6, seed=14)
    dense = KLDROClassifier(rho=0.2, tol=1e-8).fit(X, y)
    monkeypatch.setattr("scdro.linear_model._preconditioner.LARGEST", 3)
    for data_of in (X, sp.csr_array(X)):
        np.testing.assert_allclose(KLDROClassifier(rho=0.2, tol=1e-8).fit(data_of, y).coef_, dense.coef_, atol=1e-5)


@pytest.mark.parametrize("kind", ["binary", "multinomial", "squared_error", "absolute_error"])
def test_sparse_and_single_precision(kind):
    X, y = data(kind, seed=15)
    X = np.where(np.abs(X) > 0.7, X, 0.0)
    reference = model(kind, rho=0.2).fit(X, y)
    sparse = model(kind, rho=0.2).fit(sp.csr_array(X), y)
    single = model(kind, rho=0.2).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(sparse.coef_, reference.coef_, atol=1e-4)
    np.testing.assert_allclose(single.coef_, reference.coef_, atol=2e-3)
    assert single.coef_.dtype == np.float32
    np.testing.assert_allclose(sparse.predict(sp.csr_array(X)), sparse.predict(X))


def test_warm_start():
    X, y = data("binary", 500, seed=16)
    warm = KLDROClassifier(rho=0.1, warm_start=True).fit(X, y)
    first = warm.n_iter_
    coef = warm.coef_
    warm.fit(X, y)
    assert warm.n_iter_ == 1 < first
    np.testing.assert_allclose(warm.coef_, coef, atol=1e-6)
    warm.set_params(rho=0.12).fit(X, y)
    np.testing.assert_allclose(warm.coef_, KLDROClassifier(rho=0.12).fit(X, y).coef_, atol=1e-4)
    warm.fit(X[:, :2], y)  # another shape starts anew
    assert warm.coef_.shape == (1, 2)


def test_warning_says_what_to_do():
    X, y = data("binary", seed=17)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        fitted = KLDROClassifier(max_iter=1).fit(X, y)
    assert fitted.n_iter_ == 1


def test_without_penalty_nothing_is_certified():
    X, y = data("binary", seed=18)
    fitted = KLDROClassifier(C=math.inf, rho=0.1, tol=1e-7).fit(X, y)
    assert fitted.dual_gap_ == math.inf
    assert objective("binary", fitted, X, y) == pytest.approx(cone_program("binary", X, y, 0.1, 1e9), rel=1e-6)


def test_scale_of_targets_does_not_matter():
    X, y = data("squared_error", seed=19)
    small, large = (KLDRORegressor(rho=0.2, lam0=s**2 * 1e-3).fit(X, s * y) for s in (1e-4, 1e4))
    np.testing.assert_allclose(large.coef_ / 1e4, small.coef_ / 1e-4, rtol=1e-3)


def test_separable_and_constant():
    X = np.column_stack([np.r_[-np.ones(20), np.ones(20)], np.ones(40)])
    y = np.r_[np.zeros(20), np.ones(20)]
    fitted = KLDROClassifier(rho=0.5).fit(X, y)
    assert fitted.score(X, y) == 1.0
    assert fitted.dual_gap_ <= 1e-8
    assert np.all(np.isfinite(fitted.coef_))
    flat = KLDRORegressor(rho=0.5).fit(X, np.full(40, 7.0))
    np.testing.assert_allclose(flat.predict(X), 7.0)
    shifted = KLDRORegressor(rho=0.1).fit(X * 1e-3 + 1e3, y)  # a hardly varying feature of large size
    assert np.all(np.isfinite(shifted.coef_))


def test_memory_beyond_the_data():
    """O(n k + d k): no copy of X."""
    import tracemalloc

    X, y = make_classification(40_000, 60, random_state=0)
    KLDROClassifier(rho=0.1).fit(X[:100], y[:100])
    tracemalloc.start()
    KLDROClassifier(rho=0.1).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.9 * X.nbytes


def test_products_with_X(monkeypatch):
    """A Newton step without conjugate gradients makes one product with X and one with its transpose."""
    X, y = data("binary", seed=20)
    problem = problem_of("binary", X, y, 0.1)
    path = exact._Path(problem, np.zeros(problem.shape))
    counts = {"scores": 0, "gathered": 0}
    for name in counts:
        original = getattr(Problem, name)

        def counted(self, a, name=name, original=original):
            counts[name] += 1
            return original(self, a)

        monkeypatch.setattr(Problem, name, counted)
    path.step()
    assert counts == {"scores": 1, "gathered": 1}


# -- where Newton's steps are far too long ----------------------------------------------------------------------------


def test_classes_that_come_in_the_period_of_the_thinning():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50_000, 5)), (np.arange(50_000) % 10 == 0).astype(int)
    X[:, 0] += y
    fitted = KLDROClassifier(rho=0.0).fit(X, y)
    assert fitted.dual_gap_ < 1e-7
    np.testing.assert_allclose(fitted.coef_, LogisticRegression(tol=1e-8).fit(X, y).coef_, atol=1e-4)


@pytest.mark.parametrize("intercept", [40.0, -300.0])
def test_a_start_without_curvature(intercept):
    X, y = data("binary")
    fitted = KLDROClassifier(rho=0.1, warm_start=True).fit(X, y)
    expected = fitted.coef_.copy()
    fitted.intercept_[:] = intercept
    fitted.fit(X, y)
    assert fitted.dual_gap_ < 1e-7
    np.testing.assert_allclose(fitted.coef_, expected, atol=1e-4)


@pytest.mark.parametrize("outlier", [1e3, 1e5, 1e8])
def test_huber_with_one_large_outlier(outlier):
    X = np.random.default_rng(0).normal(size=(300, 2))
    fitted = KLDRORegressor(loss="huber", rho=0.1).fit(X, np.where(np.arange(300) == 0, outlier, X[:, 0]))
    assert fitted.dual_gap_ <= 1e-7 + 1e-12 * fitted.robust_value_


@pytest.mark.parametrize("rho", [4.0, 20.0, 100.0])
@pytest.mark.parametrize("kind", ["binary", "multinomial", "squared_error", "huber", "absolute_error", "quantile"])
def test_radii_beyond_the_logarithm_of_n(kind, rho):
    X, y = data(kind, 60, 3, seed=7)
    if kind in ("binary", "multinomial"):
        fitted = KLDROClassifier(rho=rho).fit(X, y)
    else:
        fitted = KLDRORegressor(loss=kind, rho=rho).fit(X, y)
    assert fitted.dual_gap_ <= 1e-4 * fitted.robust_value_


@pytest.mark.parametrize("rho", [1e-300, 1e-20, 1e-16, 1e-12, 1e-9])
def test_tiny_radii(rho):
    X, y = data("binary")
    plain = KLDROClassifier(rho=0.0).fit(X, y).robust_value_
    assert KLDROClassifier(rho=rho).fit(X, y).robust_value_ == pytest.approx(plain, abs=2 * math.sqrt(2 * rho) + 1e-6)


@pytest.mark.parametrize(
    ("kind", "n", "seed", "scale", "settings"),
    [
        ("multinomial", 60, 295, 1, {"rho": 2.0, "max_iter": 1}),
        ("multinomial", 60, 255, 1, {"rho": 4.0, "C": 100.0, "max_iter": 3}),
        ("squared_error", 120, 82, 1, {"rho": 4.0, "max_iter": 4}),
        ("huber", 250, 358, 10, {"rho": 4.0, "C": 1e4, "max_iter": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_gap_of_hard_fits_stopped_early(kind, n, seed, scale, settings):
    X, y = data(kind, n, 10, seed)
    made = [
        KLDROClassifier(**s) if kind == "multinomial" else KLDRORegressor(loss=kind, **s)
        for s in (settings, {**settings, "max_iter": 1000})
    ]
    stopped, best = (m.fit(scale * X, y) for m in made)

    def objective(m):
        return m.robust_value_ + (m.coef_**2).sum() / (2 * m.C * n)

    true = objective(stopped) - objective(best)
    assert best.dual_gap_ < 1e-7
    assert true - 1e-9 <= stopped.dual_gap_ <= 10 * true + 1e-8


def test_memory_of_sparse_data_with_many_features():
    """The Hessian of a few samples is added up in blocks of rows: X is never dense as a whole."""
    rng = np.random.default_rng(0)
    X = sp.random(15_000, 700, density=0.002, format="csr", random_state=0)
    y = (np.asarray(X[:, :50].sum(1)).ravel() + 0.1 * rng.normal(size=15_000) > 0.05).astype(int)
    tracemalloc.start()
    fitted = KLDROClassifier(rho=0.1, max_iter=3, tol=1e-2).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted.dual_gap_ < 1e-6
    assert peak < 0.5 * 8 * 15_000 * 700


# -- stopping, and what rounding leaves -------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_kinked_losses_without_penalty_converge(kind, rho):
    X, y = data(kind, 300, 5, seed=21)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        rough, fitted = (model(kind, rho=rho, C=math.inf, tol=tol).fit(X, y) for tol in (1e-3, 1e-6))
    assert rough.n_iter_ < min(fitted.n_iter_, 25)
    assert fitted.robust_value_ == pytest.approx(cone_program(kind, X, y, rho, 1e12), rel=2e-6)


@pytest.mark.parametrize("C", [1.0, math.inf])
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_tolerance_zero_ends_with_rounding(kind, rho, C):
    X, y = data(kind, seed=22)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fitted = model(kind, rho=rho, C=C, tol=0.0).fit(X, y)
    assert fitted.n_iter_ < 700
    if C == 1.0:
        assert fitted.dual_gap_ <= 2e-9


@pytest.mark.parametrize("C", [1.0, math.inf])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_tolerance_zero_whatever_the_last_bits(kind, rho, C):
    """Another CPU sums in another order: as if the last bits of the data were others."""
    rng = np.random.default_rng(25)
    for seed in range(5):
        X, y = data(kind, 100, 3, seed=30 + seed)
        X = np.nextafter(X, X + rng.choice([-1.0, 0.0, 1.0], X.shape))
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            model(kind, rho=rho, C=C, tol=0.0).fit(X, y)


FLAGS = {
    "Prescott": {"pni"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
}


@pytest.mark.parametrize("kernels", FLAGS)
def test_tolerance_zero_with_the_kernels_of_other_cpus(kernels):
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or not FLAGS[kernels] <= set(cpu.read_text().split()):
        pytest.skip(f"this CPU does not run OpenBLAS's kernels for {kernels}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", "tolerance_zero_ends"]
    run = subprocess.run(command, env=os.environ | {"OPENBLAS_CORETYPE": kernels}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_gap_at_kinks_is_rounding(kind, seed):
    """Slopes at kinks, read from scores, would leave a gap of 1e-9: found from the gradient, they leave rounding."""
    X, y = data(kind, seed=seed)
    fitted = model(kind, rho=0.0, tol=0.0).fit(X, y)
    assert fitted.dual_gap_ <= 1e-12


def kinked_problem(kind, X, y, rho, C):
    loss = Pinball(y, 0.5, 2.0, float(y.std())) if kind == "absolute_error" else Pinball(y, 0.8, 1.0, float(y.std()))
    return Problem(X, loss, np.full(len(y), 1 / len(y)), 1 / (C * len(y)), rho, LAM0, True)


@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_bound_at_kinks_is_a_bound(kind, rho):
    """Where slopes at kinks are found from the gradient, at right vertices and wrong ones, and near them."""
    X, y = data(kind, 60, 3, seed=26)
    problem = kinked_problem(kind, X, y, rho, 1.0)
    solution = exact.solve(problem, np.zeros((1, 4)), 0.0, 1000)
    rows, rng = np.column_stack([X, np.ones(60)]), np.random.default_rng(27)
    points = [solution.W, *(np.linalg.solve(rows[i], y[i])[None] for i in rng.permutation(60).reshape(15, 4))]
    bounds = []
    for W in points:
        for mu in 10.0 ** -np.arange(1, 15):
            smoothed = problem.with_loss(problem.loss.smoothed(mu))
            near = W, W + mu * rng.standard_normal(W.shape)
            bounds += [lower_bound(smoothed, w, smoothed.evaluate(w, smoothed.scores(w))) for w in near]
    assert max(bounds) <= solution.value
    assert max(bounds) >= solution.value - 1e-8


@pytest.mark.parametrize("C", [1.0, math.inf])
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_stuck_at_a_wrong_vertex_is_not_converged(kind, rho, C, monkeypatch):
    """Where d + 1 residuals vanish, the smoothed loss is curved so much that Newton's decrement is next to nothing."""
    X, y = data(kind, seed=24)
    problem = kinked_problem(kind, X, y, rho, C)
    vertex = np.linalg.solve(np.column_stack([X, np.ones(len(X))])[:5], y[:5])[None]
    best = exact.solve(problem, vertex, 0.0, 1000)
    assert best.converged
    monkeypatch.setattr(exact, "newton_step", lambda problem, now, solve, accuracy: None)
    stuck = exact.solve(problem, vertex, 0.0, 1000)
    assert stuck.value > 1.05 * best.value
    assert not stuck.converged
    assert exact.solve(problem, best.W, 0.0, 1000).converged


@pytest.mark.parametrize("C", [1.0, math.inf])
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_stuck_at_the_start_warns(kind, rho, C, monkeypatch):
    X, y = data(kind, seed=24)
    monkeypatch.setattr(exact, "newton_step", lambda problem, now, solve, accuracy: None)
    with pytest.warns(ConvergenceWarning):
        model(kind, rho=rho, C=C, tol=0.0).fit(X, y)


@pytest.mark.parametrize("target", [0.0, 7.0, -1e6])
@pytest.mark.parametrize("kind", ["squared_error", "huber", "absolute_error", "quantile"])
def test_constant_targets_are_solved(kind, target):
    X, _ = data(kind, seed=23)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fitted = model(kind).fit(X, np.full(len(X), target))
    np.testing.assert_allclose(fitted.predict(X), target, rtol=1e-9)
    assert fitted.n_iter_ < 20


def objective_in_long_double(kind, fitted, X, y):
    """P, lam by bisection, in 80 bits where the machine has them."""
    wide = np.longdouble
    W = packed(fitted).astype(wide)
    l = losses(kind, X.astype(wide), y.astype(wide), W)
    penalty = (W[:, :-1] ** 2).sum() / (2 * wide(fitted.C) * len(y))
    if fitted.rho == 0:
        return l.mean() + penalty
    top, low, high = l.max(), wide(fitted.lam0), fitted.lam0 + (l.max() - l.mean()) / fitted.rho
    for _ in range(200):
        lam = (low + high) / 2
        x = (l - top) / lam
        log_ratio = x - np.log(np.exp(x).mean())
        ratio = np.exp(log_ratio)
        kl = (log_ratio * ratio - np.expm1(log_ratio)).mean()  # without cancellation
        low, high = (lam, high) if kl > fitted.rho else (low, lam)
    return top + lam * ((ratio * x).mean() - kl) + (lam - wide(fitted.lam0)) * fitted.rho + penalty


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="long doubles are no longer than doubles here")
@pytest.mark.parametrize(
    ("scale", "offset", "shift"), [(1e6, 0, 0), (1, 1e6, 0), (1e6, 1e6, 0), (1, 0, 1e6), (1e-6, 0, 0)]
)
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["squared_error", "huber", "absolute_error", "quantile"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_gap_is_an_upper_bound_at_large_scales(kind, rho, scale, offset, shift):
    X, y = data(kind, seed=24)
    X, y = X + shift, scale * y + offset
    fits = [model(kind, rho=rho, **s).fit(X, y) for s in ({"max_iter": 1}, {"max_iter": 3}, {}, {"tol": 0.0})]
    values = [objective_in_long_double(kind, fitted, X, y) for fitted in fits]
    for fitted, value in zip(fits, values, strict=True):
        true = float(value - min(values))
        sums = 16 * np.finfo(float).eps * math.sqrt(len(y)) * shift
        slack = 1e-8 * max(1.0, float(value)) + sums
        assert true <= fitted.dual_gap_ <= 10 * true + slack
