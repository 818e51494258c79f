"""Logistic regression with a penalty on the distance from given coefficients: a network's last
layer, fitted again.

`scdro.repair` fits this layer to the features that the network computes. With W = W_0 + D the
penalty is that of an ordinary logistic regression in D whose scores have an offset, so the exact
solver of this package does it, with rho = 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from scdro.linear_model._exact import solve
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._score_losses import LinearLoss, Logistic, LossAt, Multinomial
from scdro.linear_model._worst_case import Array

__all__ = ["HeadSolver"]


class _OffsetLoss(LinearLoss):
    """phi(z + offset), offset (k, n). Its conjugate is phi*(u) - u offset."""

    def __init__(self, loss: LinearLoss, offset: Array) -> None:
        self.loss, self.offset, self.k, self.y = loss, offset, loss.k, loss.y

    def __call__(self, z: Array) -> LossAt:
        return self.loss(z + self.offset)

    def conjugate(self, u: Array) -> Array:
        conjugate: Array = self.loss.conjugate(u) - (self.offset * u).sum(0)
        return conjugate

    def take_rows(self, index: Any) -> _OffsetLoss:
        return _OffsetLoss(self.loss.take_rows(index), self.offset[:, index])

    def has_all_classes(self, q: Array) -> bool:
        return self.loss.has_all_classes(q)

    def curvature_product(self, at: LossAt, a: Array) -> Array:
        return self.loss.curvature_product(at, a)

    def second_derivative(self, at: LossAt, j: int, l: int) -> Array:
        return self.loss.second_derivative(at, j, l)

    def balance(self, u: Array, p: Array) -> Array:
        return self.loss.balance(u, p)


class HeadSolver(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Logistic regression to the exact minimiser, with a penalty towards given coefficients.

    min over W, b of sum_i s_i phi_i(W x_i + b) + |W - W_0|^2/(2 C): what is solved for is D = W -
    W_0, with scores D x_i + (W_0 x_i + b_0).

    Args:
        C: as in `LogisticRegression`.
        old: (W_0, b_0), one row for two classes; None for zero.
        fit_intercept: whether b is free.
        tol: tolerance of the gradient.
    """

    def __init__(
        self,
        C: float = 1.0,
        old: tuple[Array, Array] | None = None,
        fit_intercept: bool = True,
        tol: float = 1e-4,
    ) -> None:
        self.C = C
        self.old = old
        self.fit_intercept = fit_intercept
        self.tol = tol

    def fit(self, X: Array, y: Array, sample_weight: Array) -> HeadSolver:
        """Fit to features (n, d) of the network, labels (n,) and sample weights (n,)."""
        self.classes_, labels = np.unique(y, return_inverse=True)
        k = len(self.classes_)
        loss: LinearLoss = (
            Logistic(np.where(labels == 1, 1.0, -1.0)) if k == 2 else Multinomial(labels, k)
        )
        W = np.zeros((loss.k, X.shape[1] + self.fit_intercept))
        if self.old is not None:
            loss = _OffsetLoss(loss, self.old[0] @ X.T + self.old[1][:, None])
        total = float(sample_weight.sum())
        alpha = 1 / (self.C * total)
        problem = LinearProblem(
            X, loss, sample_weight / total, alpha, 0.0, 1e-3, self.fit_intercept
        )
        W = solve(problem, W, self.tol, 1000, certify=False).W
        self.coef_ = W[:, : X.shape[1]]
        self.intercept_ = W[:, -1] if self.fit_intercept else np.zeros(len(W))
        if self.old is not None:
            self.coef_, self.intercept_ = self.coef_ + self.old[0], self.intercept_ + self.old[1]
        return self

    def predict_proba(self, X: Array) -> Array:
        scores = X @ self.coef_.T + self.intercept_
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], 1)
        scores -= scores.max(1, keepdims=True)
        proba: Array = np.exp(scores)
        proba /= proba.sum(1, keepdims=True)
        return proba

    def predict(self, X: Array) -> Array:
        predicted: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return predicted
