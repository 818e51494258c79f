r"""Approximate inverses of the Hessian, from which conjugate gradients need only a handful of
products.

With up to 1,024 parameters: the Hessian of a few well-chosen samples, factorised.

    H  =  sum_i w_i (phi''_i + u_i u_i'/lam) x_i x_i'  -  g g'/lam  -  c c'/(lam Var_w(l))  +  alpha I
          g = sum_i w_i u_i x_i,     c = sum_i w_i (l_i - E_w l) u_i x_i

This is the Hessian of `_linear_problem` with the covariances written out; the term in c is present
only if the constraint is active. Sample i is drawn with a probability that grows with its weight
p_i and with its leverage p_i |x_i|^2, so that even a feature of only three samples is seen; w_i is
p_i divided by that probability.

With more parameters: the diagonal of the Hessian of all samples.

References:
    Byrd, Chin, Neveitt and Nocedal, On the use of stochastic Hessian information in optimization
    methods for machine learning, SIAM Journal on Optimization, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.lapack import dpotrf, dpotrs

from scdro._scalar import one_thread_dot
from scdro.linear_model._linear_problem import LinearProblem, ObjectiveAt
from scdro.linear_model._score_losses import LossAt
from scdro.linear_model._threads import map_blocks
from scdro.linear_model._worst_case import Array

__all__ = ["ApplyInverse", "Preconditioner"]

LARGEST_DENSE = 1024  # most parameters for which a dense matrix is factorised
_BLOCK = 2**16  # entries of X that are copied at a time; two such copies fit in a cache
ApplyInverse = Callable[[Array], Array]  # r -> approximate H^-1 r, both (k, d + 1)


@dataclass
class Preconditioner:
    """Approximate inverses of the Hessians of one problem."""

    problem: LinearProblem
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        n, (k, d) = self.problem.X.shape[0], self.problem.shape
        self.dense = k * d <= LARGEST_DENSE
        # As many samples as a few products with X cost, and enough for the number of parameters.
        self.samples = max(64 * k * d, 8 * n // (k * d))

    @cached_property
    def norms(self) -> Array:
        """|x_i|^2, (n,)."""
        return _squared_norms(self.problem.X)

    def at(self, evaluation: ObjectiveAt) -> ApplyInverse:
        """r -> approximate H^-1 r."""
        return self._dense(evaluation) if self.dense else self._diagonal(evaluation)

    def _choose_samples(self, p: Array) -> tuple[Array, Array]:
        """Positions of the samples, and their weights p_i divided by the probability of being
        chosen.
        """
        if len(p) <= 2 * self.samples:
            return np.flatnonzero(p > 0), p[p > 0]
        leverage = p * self.norms
        share = 0.5 * self.samples * (p + leverage / max(float(leverage.sum()), 1e-300))
        index = np.flatnonzero(self.rng.random(len(p)) < share)
        return index, p[index] / np.minimum(share[index], 1.0)

    def _dense(self, e: ObjectiveAt) -> ApplyInverse:
        """The Cholesky factor of H of some of the samples, the formula at the top of this file."""
        problem, (k, d) = self.problem, self.problem.shape
        index, weight = self._choose_samples(e.worst.p)
        weight = weight / weight.sum()
        lam, values = e.worst.lam, e.loss.value[index]
        deviation = values - one_thread_dot(weight, values)  # l_i - E_w l
        H: Array = np.zeros((k, d, k, d))  # d counts the intercept; only the blocks j <= l at first
        g, c = np.zeros((k, d)), np.zeros((k, d))  # as at the top of this file
        size = max(256, _BLOCK // d)
        copy = np.empty((min(size, len(index)), d))  # of X, times the roots of weights
        for block in (slice(i, i + size) for i in range(0, len(index), size)):
            x, at, w = self._rows(index[block]), _take(e.loss, index[block]), weight[block]
            for j in range(k):
                for l in range(j, k):
                    curvature = problem.loss.second_derivative(at, j, l)
                    if lam < math.inf:
                        curvature = curvature + at.slope[j] * at.slope[l] / lam
                    if j == l:  # X'X takes BLAS half the multiplications of X'Y
                        root = np.multiply(x, np.sqrt(w * curvature)[:, None], out=copy[: len(x)])
                        H[j, :, j] += root.T @ root
                    else:
                        H[j, :, l] += (x.T * (w * curvature)) @ x
            g += (at.slope * w) @ x
            c += (at.slope * (w * deviation[block])) @ x
        for j in range(k):
            for l in range(j):
                H[j, :, l] = H[l, :, j].T
        H = H.reshape(k * d, k * d)
        # The covariances: the sums above are second moments, their means are subtracted here.
        if lam < math.inf:
            _subtract_square(H, g.ravel(), lam)
            var = one_thread_dot(weight, deviation**2)
            if e.worst.active and var > 0:
                _subtract_square(H, c.ravel() / math.sqrt(var), lam)
        H.flat[:: k * d + 1] += problem.penalty_gradient(np.ones((k, d))).ravel()
        factor = _factorise(H)
        return lambda r: dpotrs(factor, r.ravel(), lower=True)[0].reshape(k, d)

    def _rows(self, index: Array) -> Array:
        """Some rows of X, dense, in float64, with a column of ones for the intercept."""
        X = self.problem.X
        x = X[index].toarray() if sp.issparse(X) else X.take(index, 0)  # quicker than X[index]
        x = np.asarray(x, dtype=np.float64)
        return np.concatenate([x, np.ones((len(x), 1))], 1) if self.problem.fit_intercept else x

    def _diagonal(self, e: ObjectiveAt) -> ApplyInverse:
        """The diagonal of H. Without the terms in g and c it is larger, but needs no second pass."""
        problem, lam = self.problem, e.worst.lam
        blocks = np.stack(
            [problem.loss.second_derivative(e.loss, j, j) for j in range(problem.loss.k)]
        )
        weights = e.worst.p * (blocks + (e.loss.slope**2 / lam if lam < math.inf else 0.0))
        diagonal = _sum_squares(problem, weights) + problem.penalty_gradient(np.ones(problem.shape))
        diagonal = np.maximum(diagonal, 1e-12 * diagonal.max())
        return lambda r: r / diagonal


def _take(at: LossAt, index: Array) -> LossAt:
    """The losses of some samples, by their positions."""
    return LossAt(at.value[index], at.slope[:, index], at.curvature[:, index])


def _subtract_square(H: Array, v: Array, lam: float) -> None:
    """H <- H - v v'/lam."""
    H -= np.outer(v, v / lam)


def _factorise(H: Array) -> Array:
    """The lower Cholesky factor of H. LAPACK is called directly: SciPy's checks take longer than it.

    The diagonal is increased slightly, relative to each entry, because there may be null directions
    (the sum of the intercepts, a repeated feature); and more, by tens, until it succeeds.
    """
    diagonal = H.diagonal().copy()
    diagonal[diagonal <= 0] = max(float(diagonal.max()), 1e-300)
    ridge = 1e-13
    for _ in range(20):
        H.flat[:: len(H) + 1] += ridge * diagonal
        factor, failed = dpotrf(H, lower=True)
        if not failed:
            return np.asarray(factor)
        ridge *= 10
    return np.diag(np.sqrt(diagonal))


def _squared_norms(X: Any) -> Array:
    """|x_i|^2 of every row, (n,)."""
    if sp.issparse(X):
        return np.asarray(X.multiply(X).sum(1), dtype=np.float64).ravel()
    n, d = X.shape
    parts = map_blocks(lambda rows: np.einsum("nd,nd->n", X[rows], X[rows]), n, n * d)
    return np.concatenate(parts).astype(np.float64)


def _sum_squares(problem: LinearProblem, weights: Array, rows: int = 4096) -> Array:
    """sum_i weight_i x_i^2, entry by entry, (k, d + 1), for weights (k, n); computed in blocks of
    rows.
    """
    total = np.zeros((len(weights), problem.X.shape[1]))
    for start in range(0, len(weights[0]), rows):
        x = problem.X[start : start + rows]
        w = weights[:, start : start + rows]
        total += (x.multiply(x).T @ w.T).T if sp.issparse(x) else w @ (x * x)
    return (
        np.concatenate([total, weights.sum(1, keepdims=True)], 1)
        if problem.fit_intercept
        else total
    )
