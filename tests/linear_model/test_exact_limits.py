"""The exact linear models where Newton's steps are far too long, and where rounding ends them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from linear_problems import KINDS, LAM0, cone_program, data, losses, model, packed
from scdro.linear_model import KLDROClassifier, KLDRORegressor
from scdro.linear_model import _exact as exact
from scdro.linear_model._dual import lower_bound
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._score_losses import Pinball

# -- where Newton's steps are far too long
# ----------------------------------------------------------------------------


def test_classes_that_come_in_the_period_of_the_thinning():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50_000, 5)), (np.arange(50_000) % 10 == 0).astype(int)
    X[:, 0] += y
    fitted = KLDROClassifier(rho=0.0).fit(X, y)
    assert fitted.dual_gap_ < 1e-7
    np.testing.assert_allclose(
        fitted.coef_, LogisticRegression(tol=1e-8).fit(X, y).coef_, atol=1e-4
    )


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
    fitted = KLDRORegressor(loss="huber", rho=0.1).fit(
        X, np.where(np.arange(300) == 0, outlier, X[:, 0])
    )
    assert fitted.dual_gap_ <= 1e-7 + 1e-12 * fitted.robust_value_


@pytest.mark.parametrize("rho", [4.0, 20.0, 100.0])
@pytest.mark.parametrize(
    "kind", ["binary", "multinomial", "squared_error", "huber", "absolute_error", "quantile"]
)
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
    assert KLDROClassifier(rho=rho).fit(X, y).robust_value_ == pytest.approx(
        plain, abs=2 * math.sqrt(2 * rho) + 1e-6
    )


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


# -- stopping, and what rounding leaves
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_kinked_losses_without_penalty_converge(kind, rho):
    X, y = data(kind, 300, 5, seed=21)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        rough, fitted = (
            model(kind, rho=rho, C=math.inf, tol=tol).fit(X, y) for tol in (1e-3, 1e-6)
        )
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


@pytest.mark.slow
@pytest.mark.parametrize("kernels", FLAGS)
def test_tolerance_zero_with_the_kernels_of_other_cpus(kernels):
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or not FLAGS[kernels] <= set(cpu.read_text().split()):
        pytest.skip(f"this CPU does not run OpenBLAS's kernels for {kernels}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "tolerance_zero_ends",
    ]
    run = subprocess.run(
        command, env=os.environ | {"OPENBLAS_CORETYPE": kernels}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_gap_at_kinks_is_rounding(kind, seed):
    """Slopes at kinks, read from scores, would leave a gap of 1e-9: found from the gradient, they leave rounding."""
    X, y = data(kind, seed=seed)
    fitted = model(kind, rho=0.0, tol=0.0).fit(X, y)
    assert fitted.dual_gap_ <= 1e-12


def kinked_problem(kind, X, y, rho, C):
    loss = (
        Pinball(y, 0.5, 2.0, float(y.std()))
        if kind == "absolute_error"
        else Pinball(y, 0.8, 1.0, float(y.std()))
    )
    return LinearProblem(X, loss, np.full(len(y), 1 / len(y)), 1 / (C * len(y)), rho, LAM0, True)


@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["absolute_error", "quantile"])
def test_bound_at_kinks_is_a_bound(kind, rho):
    """Where slopes at kinks are found from the gradient, at right vertices and wrong ones, and near them."""
    X, y = data(kind, 60, 3, seed=26)
    problem = kinked_problem(kind, X, y, rho, 1.0)
    solution = exact.solve(problem, np.zeros((1, 4)), 0.0, 1000)
    rows, rng = np.column_stack([X, np.ones(60)]), np.random.default_rng(27)
    points = [
        solution.W,
        *(np.linalg.solve(rows[i], y[i])[None] for i in rng.permutation(60).reshape(15, 4)),
    ]
    bounds = []
    for W in points:
        for mu in 10.0 ** -np.arange(1, 15):
            smoothed = replace(problem, loss=problem.loss.with_smoothing(mu))
            near = W, W + mu * rng.standard_normal(W.shape)
            bounds += [
                lower_bound(smoothed, w, smoothed.evaluate(w, smoothed.scores(w))) for w in near
            ]
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
    monkeypatch.setattr(exact, "next_iterate", lambda problem, now, solve, accuracy: None)
    stuck = exact.solve(problem, vertex, 0.0, 1000)
    assert stuck.value > 1.05 * best.value
    assert not stuck.converged
    assert exact.solve(problem, best.W, 0.0, 1000).converged


@pytest.mark.parametrize("C", [1.0, math.inf])
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_stuck_at_the_start_warns(kind, rho, C, monkeypatch):
    X, y = data(kind, seed=24)
    monkeypatch.setattr(exact, "next_iterate", lambda problem, now, solve, accuracy: None)
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


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 1e-18, reason="long doubles are no longer than doubles here"
)
@pytest.mark.parametrize(
    ("scale", "offset", "shift"),
    [(1e6, 0, 0), (1, 1e6, 0), (1e6, 1e6, 0), (1, 0, 1e6), (1e-6, 0, 0)],
)
@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["squared_error", "huber", "absolute_error", "quantile"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_gap_is_an_upper_bound_at_large_scales(kind, rho, scale, offset, shift):
    X, y = data(kind, seed=24)
    X, y = X + shift, scale * y + offset
    fits = [
        model(kind, rho=rho, **s).fit(X, y)
        for s in ({"max_iter": 1}, {"max_iter": 3}, {}, {"tol": 0.0})
    ]
    values = [objective_in_long_double(kind, fitted, X, y) for fitted in fits]
    for fitted, value in zip(fits, values, strict=True):
        true = float(value - min(values))
        sums = 16 * np.finfo(float).eps * math.sqrt(len(y)) * shift
        slack = 1e-8 * max(1.0, float(value)) + sums
        assert true <= fitted.dual_gap_ <= 10 * true + slack
