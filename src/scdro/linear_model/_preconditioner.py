"""The factorised Hessian of a few well-chosen samples. With it, conjugate gradients need only a handful of products.

Samples are drawn by their weight p and their leverage p |x|^2, so that even a feature of only three samples is seen.
If the matrix would be too large, the diagonal of the Hessian of all samples is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from scdro._scalar import one_thread_dot
from scdro.linear_model._losses import LossAt
from scdro.linear_model._problem import LinearProblem, ObjectiveAt
from scdro.linear_model._threads import in_blocks
from scdro.linear_model._worst import Array

__all__ = ["ApplyInverse", "Preconditioner"]

LARGEST = 1024  # most parameters for which a dense matrix is factorised
_BLOCK = 2**20  # entries of X that are copied at a time
ApplyInverse = Callable[[Array], Array]


@dataclass
class Preconditioner:
    """Approximate inverses of the Hessians of one problem."""

    problem: LinearProblem
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.norms = _squared_norms(self.problem.X)
        k, d = self.problem.shape
        self.dense = k * d <= LARGEST
        # As many samples as a few products with X cost, and enough for the number of parameters.
        self.samples = max(24 * k * d, 8 * len(self.norms) // (k * d))

    def at(self, evaluation: ObjectiveAt) -> ApplyInverse:
        """r -> approximate H^-1 r."""
        return self._dense(evaluation) if self.dense else self._diagonal(evaluation)

    def _chosen(self, p: Array) -> tuple[Array, Array]:
        """Positions of the samples, and their weights p_i divided by the probability of being chosen."""
        if len(p) <= 2 * self.samples:
            return np.flatnonzero(p > 0), p[p > 0]
        leverage = p * self.norms
        share = 0.5 * self.samples * (p + leverage / max(float(leverage.sum()), 1e-300))
        index = np.flatnonzero(self.rng.random(len(p)) < share)
        return index, p[index] / np.minimum(share[index], 1.0)

    def _dense(self, e: ObjectiveAt) -> ApplyInverse:
        problem, (k, d) = self.problem, self.problem.shape
        index, weight = self._chosen(e.worst.p)
        weight = weight / weight.sum()
        lam, values = e.worst.lam, e.loss.value[index]
        deviation = values - one_thread_dot(weight, values)
        H: Array = np.zeros((k, d, k, d))
        first, second = np.zeros((k, d)), np.zeros((k, d))  # sums of p u x, and of those times the losses' deviation
        rows = max(256, _BLOCK // d)
        for block in (slice(i, i + rows) for i in range(0, len(index), rows)):
            x, at, w = self._rows(index[block]), _at(e.loss, index[block]), weight[block]
            for j in range(k):
                for l in range(j, k):
                    curvature = problem.loss.block(at, j, l)
                    if lam < math.inf:
                        curvature = curvature + at.slope[j] * at.slope[l] / lam
                    H[j, :, l] += (x.T * (w * curvature)) @ x
            first += (at.slope * w) @ x
            second += (at.slope * (w * deviation[block])) @ x
        for j in range(k):
            for l in range(j):
                H[j, :, l] = H[l, :, j].T
        H = H.reshape(k * d, k * d)
        if lam < math.inf:
            _remove(H, first.ravel(), lam)
            var = one_thread_dot(weight, deviation**2)
            if e.worst.active and var > 0:
                _remove(H, second.ravel() / math.sqrt(var), lam)
        H.flat[:: k * d + 1] += problem.penalised(np.ones((k, d))).ravel()
        factor = _factorised(H)
        return lambda r: cho_solve(factor, r.ravel(), check_finite=False).reshape(k, d)

    def _rows(self, index: Array) -> Array:
        """Some rows of X, dense, in float64, with a column of ones for the intercept."""
        x = self.problem.X[index]
        x = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)
        return np.concatenate([x, np.ones((len(x), 1))], 1) if self.problem.fit_intercept else x

    def _diagonal(self, e: ObjectiveAt) -> ApplyInverse:
        """The diagonal, with the covariance bounded by the second moment."""
        problem, lam = self.problem, e.worst.lam
        blocks = np.stack([problem.loss.block(e.loss, j, j) for j in range(problem.loss.k)])
        weights = e.worst.p * (blocks + (e.loss.slope**2 / lam if lam < math.inf else 0.0))
        diagonal = _gathered_squares(problem, weights) + problem.penalised(np.ones(problem.shape))
        diagonal = np.maximum(diagonal, 1e-12 * diagonal.max())
        return lambda r: r / diagonal


def _at(at: LossAt, index: Array) -> LossAt:
    return LossAt(at.value[index], at.slope[:, index], at.curvature[:, index])


def _remove(H: Array, v: Array, lam: float) -> None:
    """H <- H - v v'/lam."""
    H -= np.outer(v, v / lam)


def _factorised(H: Array) -> tuple[Array, bool]:
    """Cholesky. The diagonal is increased slightly, relative to each entry, because there may be null directions (the
    sum of the intercepts, a repeated feature)."""
    diagonal = H.diagonal().copy()
    diagonal[diagonal <= 0] = max(float(diagonal.max()), 1e-300)
    ridge = 1e-13
    for _ in range(20):
        try:
            H.flat[:: len(H) + 1] += ridge * diagonal
            factor: tuple[Array, bool] = cho_factor(H, lower=True, check_finite=False)
            return factor
        except LinAlgError:  # noqa: PERF203
            ridge *= 10
    return np.diag(np.sqrt(diagonal)), True


def _squared_norms(X: Any) -> Array:
    if sp.issparse(X):
        return np.asarray(X.multiply(X).sum(1), dtype=np.float64).ravel()
    n, d = X.shape
    parts = in_blocks(lambda rows: np.einsum("nd,nd->n", X[rows], X[rows]), n, n * d)
    return np.concatenate(parts).astype(np.float64)


def _gathered_squares(problem: LinearProblem, weights: Array, rows: int = 4096) -> Array:
    """sum_i weight_i x_i^2, computed in blocks of rows."""
    total = np.zeros((len(weights), problem.X.shape[1]))
    for start in range(0, len(weights[0]), rows):
        x = problem.X[start : start + rows]
        w = weights[:, start : start + rows]
        total += (x.multiply(x).T @ w.T).T if sp.issparse(x) else w @ (x * x)
    return np.concatenate([total, weights.sum(1, keepdims=True)], 1) if problem.fit_intercept else total
