r"""The objective of a KL-robust linear model with lam eliminated: value, gradient and Hessian products.

    P(w, b) = max_{KL(p, q) <= rho} sum_i p_i phi_i(z_i) - lam0 KL(p, q) + alpha |w|^2/2,      z_i = w x_i + b

By the envelope theorem its gradient is sum_i p_i u_i x_i + alpha w with u = phi'(z), and its Hessian is

    sum_i p_i phi''_i x_i x_i' + ( Cov_p(g) - Cov_p(g, l) Cov_p(l, g)/Var_p(l) ) / lam + alpha I,      g_i = u_i x_i

where the second covariance term is present only if lam depends on w (KL = rho, not lam = lam0).
Parameters are W, (k, d + 1): coefficients, and the intercept, if any, as the last column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from scdro._scalar import one_thread_dot
from scdro.linear_model._losses import LinearLoss, LossAt
from scdro.linear_model._threads import in_blocks
from scdro.linear_model._worst import Array, Worst, worst

__all__ = ["LinearProblem", "ObjectiveAt"]


_SHORT = 8192  # rows that are summed in single precision


class ObjectiveAt(NamedTuple):
    """P at scores z, and everything that its derivatives need besides X."""

    value: float
    z: Array
    loss: LossAt
    worst: Worst

    @property
    def pull(self) -> Array:
        """p_i u_i, (k, n): the derivative of the robust value with respect to the scores."""
        pull: Array = self.worst.p * self.loss.slope
        return pull


@dataclass(frozen=True)
class LinearProblem:
    """Data, loss, base probabilities q, and the constants of the problem. alpha = 1/(C sum(sample_weight))."""

    X: Any
    loss: LinearLoss
    q: Array
    alpha: float
    rho: float
    lam0: float
    fit_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.loss.k, self.X.shape[1] + self.fit_intercept

    def scores(self, W: Array) -> Array:
        """z = W X' + b, (k, n): one product with X."""
        (n, d), k = self.X.shape, len(W)
        coef = W[:, :d].astype(self.X.dtype, copy=False)
        z = np.empty((k, n))

        def fill(rows: slice) -> None:
            x = self.X if rows == slice(0, n) else self.X[rows]
            z[:, rows] = x @ coef[0] if k == 1 else (x @ coef.T).T if sp.issparse(x) else coef @ x.T

        in_blocks(fill, n, self._work)
        if self.fit_intercept:
            z += W[:, d:]
        return z

    def gathered(self, r: Array) -> Array:
        """sum_i r_i x_i, (k, d + 1): one product with X'."""
        (n, _), k = self.X.shape, len(r)
        s = r.astype(self.X.dtype, copy=False)

        def part(rows: slice) -> Array:
            x = self.X if rows == slice(0, n) else self.X[rows]
            product = s[0, rows] @ x if k == 1 else (x.T @ s[:, rows].T).T if sp.issparse(x) else s[:, rows] @ x
            return np.asarray(product, dtype=np.float64).reshape(k, -1)

        def parts(rows: slice) -> Array:
            """Sums of many rows lose digits in float32, so sum short blocks and add these up in float64."""
            if self.X.dtype == np.float64 or sp.issparse(self.X):
                return part(rows)
            starts = range(rows.start, rows.stop, _SHORT)
            total: Array = np.sum([part(slice(i, min(i + _SHORT, rows.stop))) for i in starts], axis=0)
            return total

        g: Array = np.sum(in_blocks(parts, n, self._work), axis=0)
        return np.concatenate([g, r.sum(1, keepdims=True)], 1) if self.fit_intercept else g

    @property
    def _work(self) -> int:
        """Number of multiplications in a product; zero for sparse matrices, where a block of rows is a copy."""
        return 0 if sp.issparse(self.X) else self.X.size * self.loss.k

    def penalised(self, W: Array) -> Array:
        """alpha W, without the intercept."""
        penalised = self.alpha * W
        if self.fit_intercept:
            penalised[:, -1] = 0.0
        return penalised

    def evaluate(self, W: Array, z: Array, lam: float | None = None) -> ObjectiveAt:
        """P at W with scores z, without a product with X. `lam` is a first guess."""
        at = self._loss_at(z)
        robust = worst(at.value, self.q, self.rho, self.lam0, lam)
        return ObjectiveAt(robust.value + float((self.penalised(W) * W).sum()) / 2, z, at, robust)

    def _loss_at(self, z: Array) -> LossAt:
        parts = in_blocks(lambda rows: self.loss.rows(rows)(z[:, rows]), z.shape[1], 16 * z.size)
        if len(parts) == 1:
            return parts[0]
        value, slope, curvature = zip(*parts, strict=True)
        return LossAt(np.concatenate(value), np.concatenate(slope, 1), np.concatenate(curvature, 1))

    def gradient(self, W: Array, evaluation: ObjectiveAt) -> Array:
        return self.gathered(evaluation.pull) + self.penalised(W)

    def hessian_product(self, at: ObjectiveAt, V: Array) -> Array:
        a = self.scores(V)
        r = self.loss.curved(at.loss, a)
        if at.worst.lam < math.inf:
            along = np.einsum("kn,kn->n", at.loss.slope, a)
            r += at.loss.slope * self._tilting(at, along)
        r *= at.worst.p
        return self.gathered(r) + self.penalised(V)

    def _tilting(self, at: ObjectiveAt, along: Array) -> Array:
        """The change of log p when the losses change by `along`: centred, minus the regression on l, divided by lam."""
        _, lam, p, _, mean, var, active = at.worst
        moved = along - one_thread_dot(p, along)
        if active and var > 0:
            deviation = at.loss.value - mean
            moved -= one_thread_dot(p, moved * deviation) / var * deviation
        moved /= lam
        return moved

    def rows(self, index: Any) -> LinearProblem:
        """The problem on some of the samples, with the full penalty: cheap, and with a similar solution."""
        q = self.q[index]
        q = q / q.sum() if q.any() else np.full(len(q), 1 / len(q))
        return replace(self, X=self.X[index], loss=self.loss.rows(index), q=q)

    def original_value(self, W: Array, z: Array, lam: float | None = None) -> float:
        """P with the original loss, without smoothing."""
        robust = worst(self.loss.exact(z), self.q, self.rho, self.lam0, lam)
        return robust.value + float((self.penalised(W) * W).sum()) / 2
