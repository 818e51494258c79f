"""The exact linear models against cone programs, scikit-learn, finite differences; and their certificate."""

from __future__ import annotations

import math
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, QuantileRegressor, Ridge

import oracles
from linear_problems import KINDS, LAM0, cone_program, data, losses, model, objective, packed
from scdro.linear_model import KLDROClassifier, KLDRORegressor
from scdro.linear_model import _exact as exact
from scdro.linear_model._dual import lower_bound
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._score_losses import Huber, Logistic, Multinomial, Pinball, Squared
from scdro.linear_model._worst_case import solve_worst_case


@pytest.mark.parametrize("rho", [0.0, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_cone_program(kind, rho):
    X, y = data(kind)
    fitted = model(kind, rho=rho).fit(X, y)
    least = cone_program(kind, X, y, rho)
    assert objective(kind, fitted, X, y) == pytest.approx(least, rel=1e-6)
    assert fitted.robust_value_ + np.sum(fitted.coef_**2) / (2 * len(y)) == pytest.approx(
        least, rel=1e-6
    )
    assert 0 <= fitted.dual_gap_ <= 1e-8 + 1e-12


@pytest.mark.parametrize(
    ("kind", "n", "rho"),
    [("binary", 1000, 0.3), ("multinomial", 600, 0.1), ("absolute_error", 1000, 1.0)],
)
def test_equals_the_cone_program_with_weights_and_more_samples(kind, n, rho):
    X, y = data(kind, n, seed=1)
    weight = np.random.default_rng(2).integers(0, 4, n).astype(float)
    fitted = model(kind, rho=rho, C=0.1).fit(X, y, weight)
    assert objective(kind, fitted, X, y, weight) == pytest.approx(
        cone_program(kind, X, y, rho, 0.1, weight), rel=1e-6
    )


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
    assert objective("binary", fitted, X, y) == pytest.approx(
        cone_program("binary", X, y, 0.2, C), rel=1e-6
    )


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
        "absolute_error": lambda: Pinball(y, 0.5, 2.0, smoothing=0.3),
        "quantile": lambda: Pinball(y, 0.8, 1.0, smoothing=0.3),
    }[kind]()
    n = len(y)
    return LinearProblem(X, loss, np.full(n, 1 / n), 1 / n, rho, lam0, True)


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
    assert (gradient(0) * V).sum() == pytest.approx(
        (value(h).value - value(-h).value) / (2 * h), rel=1e-6
    )
    expected = (gradient(h) - gradient(-h)) / (2 * h)
    if isinstance(
        problem.loss, Pinball
    ):  # its curvature beyond the kink is made up: above the true one, by little
        made_up = problem.hessian_product(value(0), V)
        assert (
            (expected * V).sum() - 1e-5 <= (made_up * V).sum() <= 1.2 * (expected * V).sum() + 1e-5
        )
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
    smoothing = loss.smoothing / 2 * at.slope[0] ** 2 if isinstance(loss, Pinball) else 0.0
    np.testing.assert_allclose(
        at.value + loss.conjugate(at.slope) + smoothing, (at.slope * z).sum(0), atol=1e-12
    )
    assert np.all(
        loss.exact(other) + loss.conjugate(at.slope) - (at.slope * other).sum(0) >= -1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_balanced_slopes_stay_in_the_domain(kind):
    _, y = data(kind, 50, seed=8)
    loss = problem_of(kind, np.zeros((50, 1)), y, 0.0).loss
    p = np.random.default_rng(3).dirichlet(np.ones(50))
    z = np.random.default_rng(4).standard_normal((loss.k, 50)) + 1
    u = loss.balance(loss(z).slope, p)
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
    np.testing.assert_allclose(
        fitted.worst_case_weights(X, y), expected.weights, rtol=1e-4, atol=1e-9
    )
    assert fitted.lam_ == pytest.approx(expected.lam, rel=1e-3)


@pytest.mark.parametrize(
    "l", [[0.0, 1.0, 2.0, 3.0], [5.0] * 4, [20.0, 19.999, 0.0, 5.0], [1e6, 0.0, -1e6, 3.0]]
)
@pytest.mark.parametrize("rho", [1e-6, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("guess", [None, 1e-3, 1.0, 1e9])
def test_inner_solve(l, rho, guess):
    l, q = np.array(l), np.array([0.3, 0.3, 0.2, 0.2])
    expected, found = oracles.by_root(l, rho, q=q), solve_worst_case(l, q, rho, LAM0, guess)
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.p, expected.weights, rtol=1e-5, atol=1e-12)


def test_inner_solve_ignores_samples_of_weight_zero():
    l, q = np.array([0.0, 1.0, 9e9]), np.array([0.5, 0.5, 0.0])
    assert solve_worst_case(l, q, 0.1, LAM0).value == pytest.approx(
        oracles.by_root(l[:2], 0.1).value
    )


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
    monkeypatch.setattr("scdro.linear_model._preconditioner.LARGEST_DENSE", 3)
    for data_of in (X, sp.csr_array(X)):
        np.testing.assert_allclose(
            KLDROClassifier(rho=0.2, tol=1e-8).fit(data_of, y).coef_, dense.coef_, atol=1e-5
        )


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
    warm.fit(X[:, :2], y)  # another shape starts over
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
    assert objective("binary", fitted, X, y) == pytest.approx(
        cone_program("binary", X, y, 0.1, 1e9), rel=1e-6
    )


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
    shifted = KLDRORegressor(rho=0.1).fit(
        X * 1e-3 + 1e3, y
    )  # a hardly varying feature of large size
    assert np.all(np.isfinite(shifted.coef_))


def test_memory_beyond_the_data():
    """O(n k + d k): no copy of X."""

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
    counts = {"scores": 0, "sum_rows": 0}
    for name in counts:
        original = getattr(LinearProblem, name)

        def counted(self, a, name=name, original=original):
            counts[name] += 1
            return original(self, a)

        monkeypatch.setattr(LinearProblem, name, counted)
    path.step()
    assert counts == {"scores": 1, "sum_rows": 1}
