r"""The objective of a KL-robust linear model with lam eliminated: value, gradient and Hessian
products.

    P(w, b) = max_{KL(p, q) <= rho} sum_i p_i phi_i(z_i) - lam0 KL(p, q) + alpha |w|^2/2,      z_i = w x_i + b

By the envelope theorem its gradient is sum_i p_i u_i x_i + alpha w with u = phi'(z), and its
Hessian is

    sum_i p_i phi''_i x_i x_i' + ( Cov_p(g) - Cov_p(g, l) Cov_p(l, g)/Var_p(l) ) / lam + alpha I,      g_i = u_i x_i

where the second covariance term is present only if lam depends on w (KL = rho, not lam = lam0).

The gradient and a product with the Hessian each need one product with X and one with X', and
nothing larger than X is stored. Throughout the package

    n, d, k     samples, features, and scores per sample (1, or the number of classes)
    W           (k, d + 1), the coefficients and, if there is an intercept, a last column for it
    z, u        (k, n), the scores and the slopes of the losses there
    q, p        (n,), the base probabilities and the worst case

The envelope theorem is Danskin's; see Bertsekas, Nonlinear Programming, appendix B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from scdro._scalar import one_thread_dot
from scdro.linear_model._score_losses import LinearLoss, LossAt
from scdro.linear_model._threads import map_blocks
from scdro.linear_model._worst_case import Array, WorstAt, solve_worst_case

__all__ = ["LinearProblem", "ObjectiveAt"]


_SHORT = 8192  # a float32 product sums at most this many rows; the sums are added up in float64


class ObjectiveAt(NamedTuple):
    """P at scores z, and everything that its derivatives need besides X."""

    value: float  # P, with the penalty
    z: Array  # scores, (k, n)
    loss: LossAt  # losses, slopes and curvatures at z
    worst: WorstAt  # the worst case p of these losses, its lam and moments

    @property
    def score_gradient(self) -> Array:
        """p_i u_i, (k, n): the derivative of the robust value in the scores (lam does not
        contribute: it is optimal).
        """
        pull: Array = self.worst.p * self.loss.slope
        return pull


@dataclass(frozen=True)
class LinearProblem:
    """What is minimised: the data, the loss, and the constants of P."""

    X: Any  # (n, d), an array or a sparse matrix in CSR format, float32 or float64
    loss: LinearLoss  # knows the targets
    q: Array  # base probabilities, (n,), which sum to one: the sample weights divided by their sum
    alpha: float  # strength of the penalty, 1/(C sum(sample_weight)); 0 for none
    rho: float  # radius of the KL ball
    lam0: float  # the smallest temperature
    fit_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W."""
        return self.loss.k, self.X.shape[1] + self.fit_intercept

    def scores(self, W: Array) -> Array:
        """z = W X' + b, (k, n): one product with X."""
        (n, d), k = self.X.shape, len(W)
        coef = W[:, :d].astype(self.X.dtype, copy=False)
        z = np.empty((k, n))

        def fill(rows: slice) -> None:
            # All rows as they are: even a slice of everything would copy a sparse matrix.
            x = self.X if rows == slice(0, n) else self.X[rows]
            z[:, rows] = x @ coef[0] if k == 1 else (x @ coef.T).T if sp.issparse(x) else coef @ x.T

        map_blocks(fill, n, self._work)
        if self.fit_intercept:
            z += W[:, d:]
        return z

    def sum_rows(self, r: Array) -> Array:
        """sum_i r_i x_i for weights r, (k, n): (k, d + 1), by one product with X'. The transpose of
        `scores`.
        """
        (n, _), k = self.X.shape, len(r)
        s = r.astype(self.X.dtype, copy=False)

        def part(rows: slice) -> Array:
            x = self.X if rows == slice(0, n) else self.X[rows]
            product = (
                s[0, rows] @ x
                if k == 1
                else (x.T @ s[:, rows].T).T
                if sp.issparse(x)
                else s[:, rows] @ x
            )
            return np.asarray(product, dtype=np.float64).reshape(k, -1)

        def parts(rows: slice) -> Array:
            """Sums of many rows lose digits in float32, so sum short blocks and add these up in
            float64.
            """
            if self.X.dtype == np.float64 or sp.issparse(self.X):
                return part(rows)
            starts = range(rows.start, rows.stop, _SHORT)
            total: Array = np.sum(
                [part(slice(i, min(i + _SHORT, rows.stop))) for i in starts], axis=0
            )
            return total

        g: Array = np.sum(map_blocks(parts, n, self._work), axis=0)
        return np.concatenate([g, r.sum(1, keepdims=True)], 1) if self.fit_intercept else g

    @property
    def _work(self) -> int:
        """Number of multiplications in a product; zero for sparse matrices, where a block of rows
        is a copy.
        """
        return 0 if sp.issparse(self.X) else self.X.size * self.loss.k

    def penalty_gradient(self, W: Array) -> Array:
        """The gradient of the penalty: alpha W, and zero for the intercept."""
        penalised = self.alpha * W
        if self.fit_intercept:
            penalised[:, -1] = 0.0
        return penalised

    def evaluate(self, W: Array, z: Array, lam: float | None = None) -> ObjectiveAt:
        """P at W, given its scores z, (k, n), so that no product with X is needed.

        `lam` is a first guess of the temperature, such as that of a point nearby.
        """
        at = self._loss_at(z)
        robust = solve_worst_case(at.value, self.q, self.rho, self.lam0, lam)
        return ObjectiveAt(
            robust.value + float((self.penalty_gradient(W) * W).sum()) / 2, z, at, robust
        )

    def _loss_at(self, z: Array) -> LossAt:
        """Losses and derivatives at scores z, (k, n), by blocks of samples on several threads."""
        parts = map_blocks(
            lambda rows: self.loss.take_rows(rows)(z[:, rows]), z.shape[1], 16 * z.size
        )
        if len(parts) == 1:
            return parts[0]
        value, slope, curvature = zip(*parts, strict=True)
        return LossAt(np.concatenate(value), np.concatenate(slope, 1), np.concatenate(curvature, 1))

    def gradient(self, W: Array, evaluation: ObjectiveAt) -> Array:
        """grad P, (k, d + 1)."""
        return self.sum_rows(evaluation.score_gradient) + self.penalty_gradient(W)

    def hessian_product(self, at: ObjectiveAt, V: Array) -> Array:
        """H V, (k, d + 1), for a direction V, by the formula at the top of this file.

        r_i is how much the derivative p_i u_i changes along V: through the slope u_i, and through
        the weight p_i.
        """
        a = self.scores(V)  # how much the scores change along V
        r = self.loss.curvature_product(at.loss, a)
        if at.worst.lam < math.inf:
            along = np.einsum("kn,kn->n", at.loss.slope, a)  # how much the losses change
            r += at.loss.slope * self._change_of_log_p(at, along)
        r *= at.worst.p
        return self.sum_rows(r) + self.penalty_gradient(V)

    def _change_of_log_p(self, at: ObjectiveAt, along: Array) -> Array:
        """The change of log p, (n,), when the losses change by `along`, (n,).

        log p_i = l_i/lam + log q_i - log(normalisation). At a fixed lam the change is therefore
        `along`, centred and divided by lam. If the constraint is active, lam moves as well, to keep
        KL = rho: that takes away the part of `along` that a regression on the losses explains.
        """
        _, lam, p, _, mean, var, active = at.worst
        moved = along - one_thread_dot(p, along)
        if active and var > 0:
            deviation = at.loss.value - mean
            moved -= one_thread_dot(p, moved * deviation) / var * deviation
        moved /= lam
        return moved

    def take_rows(self, index: Any) -> LinearProblem:
        """The problem on some of the samples, given by their positions, with the full penalty.

        q is renormalised, so that the solution is close to that of the whole problem.
        """
        q = self.q[index]
        q = q / q.sum() if q.any() else np.full(len(q), 1 / len(q))
        # `take` is several times as fast for dense rows at given positions.
        positions = isinstance(index, np.ndarray) and index.dtype.kind == "i"
        dense = positions and not sp.issparse(self.X)
        X = self.X.take(index, 0) if dense else self.X[index]
        return replace(self, X=X, loss=self.loss.take_rows(index), q=q)

    def original_value(self, W: Array, z: Array, lam: float | None = None) -> float:
        """P with the original loss, without smoothing."""
        robust = solve_worst_case(self.loss.exact(z), self.q, self.rho, self.lam0, lam)
        return robust.value + float((self.penalty_gradient(W) * W).sum()) / 2
