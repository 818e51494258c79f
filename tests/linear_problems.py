"""Problems for the exact linear models, and their optimum by a cone program."""

from __future__ import annotations

import math
import warnings

import cvxpy as cp
import numpy as np

import oracles
from scdro.linear_model import KLDROClassifier, KLDRORegressor

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
    return KLDRORegressor(
        loss=kind, **({"quantile": 0.8} if kind == "quantile" else {}), **settings
    )


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
    robust = oracles.by_root(
        losses(kind, X, y, packed(fitted)), fitted.rho, fitted.lam0, weight
    ).value
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
            cp.Minimize(t + (lam - LAM0) * rho + penalty),
            [bound >= l, cone, q @ s <= lam, lam >= LAM0],
        )
    for tol in (1e-10, 1e-9, 1e-8):  # the sharpest that the cone solver manages
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
        if problem.status == cp.OPTIMAL:
            break
    assert problem.status == cp.OPTIMAL, problem.status
    return float(problem.value)
