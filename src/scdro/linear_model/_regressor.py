"""KL-robust linear regression: what `KLDROLinearModel` needs to know about targets.

Targets are centred before the fit, and the loss is squared, Huber, absolute or quantile. There is
one score per row, so W is (1, d + 1) and `coef_` is (d,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from scdro._estimators import unchanged_if_refused
from scdro._validation import (
    LARGEST_LOSS,
    array_weights,
    check_choice,
    check_number,
)
from scdro.errors import DataError
from scdro.linear_model._base import KLDROLinearModel
from scdro.linear_model._score_losses import (
    Huber,
    LinearLoss,
    Pinball,
    Squared,
    centre_of,
    spread_of,
)
from scdro.linear_model._worst_case import Array

__all__ = ["KLDRORegressor"]

_LOSSES = ("squared_error", "huber", "absolute_error", "quantile")


class KLDRORegressor(RegressorMixin, KLDROLinearModel):  # type: ignore[misc]
    r"""Linear regression for the worst case, with squared, Huber, absolute or quantile loss, to the
    exact optimum.

    min_{w, b}  max_{KL(p, q) <= rho} sum_i p_i l_i(w, b) - lam0 KL(p, q)  +  |w|^2/(2 C
    sum(sample_weight))

    With r = w x + b - y, the squared error is r^2/2, so that rho = 0 is `Ridge(alpha=1/C)`. The
    Huber loss is the same up to |r| = epsilon and linear beyond. The quantile loss is max(-quantile
    r, (1 - quantile) r).

    Args:
        loss: "squared_error", "huber", "absolute_error" or "quantile". The last two have a kink;
            they are smoothed less and less until the duality gap certifies the solution for the
            original loss.
        epsilon: where the Huber loss becomes linear, in the units of y.
        quantile: the quantile to predict, in (0, 1).
        tol: "exact" stops when no entry of the gradient exceeds tol times the standard deviation of
            y (epsilon, if smaller); for losses with a kink, when the duality gap (if C is inf, the
            smoothing error plus Newton's decrement) is at most tol times the objective.
        rho, C, lam0, fit_intercept, max_iter, warm_start: as for `KLDROClassifier`. lam0 is in the
            units of the loss.
        batch_size, learning_rate, verbose: as for `KLDROClassifier`.

    Attributes:
        coef_: the coefficients, (d,).
        intercept_: as for `KLDROClassifier`.
        lam_: as for `KLDROClassifier`.
        robust_value_: as for `KLDROClassifier`.
        dual_gap_: as for `KLDROClassifier`.
        n_iter_: as for `KLDROClassifier`.
        n_features_in_: as for `KLDROClassifier`.

    Example:
        >>> X = np.arange(12.0).reshape(6, 2) % 5
        >>> y = X @ [1.0, 2.0] + [0.1, -0.2, 0.1, 0.0, 0.3, -0.3]
        >>> model = KLDRORegressor(loss="absolute_error", rho=0.2, C=100).fit(X, y)
        >>> model.coef_.round(2), model.dual_gap_ < 1e-6
        (array([1.06, 2.02]), True)
    """

    def __init__(
        self,
        loss: str = "squared_error",
        rho: float = 0.1,
        C: float = 1.0,
        lam0: float = 1e-3,
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 1000,
        warm_start: bool = False,
        epsilon: float = 1.35,
        quantile: float = 0.5,
        batch_size: int = 256,
        learning_rate: float | None = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.rho = rho
        self.C = C
        self.lam0 = lam0
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.epsilon = epsilon
        self.quantile = quantile
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KLDRORegressor:
        """Fit the model. X: dense or sparse, (n, d); y: numbers, (n,)."""
        self._check_settings()
        with unchanged_if_refused(self):
            X, y = self._validate(X, y, y_numeric=True)
            y, weight = _finite_squares(y), array_weights(sample_weight, X.shape[0])
            # With targets far from zero the certificate would lose digits.
            offset = centre_of(y, weight / weight.sum()) if self.fit_intercept else 0.0
            self._fit(X, y - offset, weight, offset)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> KLDRORegressor:
        """One pass of RSCDRO over some rows of a stream, for data that do not fit in memory."""
        self._check_settings()
        with unchanged_if_refused(self):
            X, y = self._validate(X, y, reset=not hasattr(self, "coef_"), y_numeric=True)
            weight = array_weights(sample_weight, X.shape[0])
            self._partial_fit(X, _finite_squares(y), weight)
        return self

    def predict(self, X: Any) -> Array:
        """The predicted targets, (n,)."""
        return self._scores(X).ravel()

    def worst_case_weights(self, X: Any, y: Any, sample_weight: Any = None) -> Array:
        """The worst distribution p, (n,), over these samples within KL distance rho, for the fitted
        model.
        """
        check_is_fitted(self)
        scores = self._scores(X)
        y = column_or_1d(y).astype(np.float64)
        if len(y) != len(scores):
            raise DataError(
                f"expected one target per sample, got {len(y)} targets for {len(scores)} samples"
            )
        if not np.isfinite(y).all():
            raise DataError("expected finite targets, got NaN or infinity")
        weight = array_weights(sample_weight, len(scores))
        return self._worst_case_weights(scores, y, weight)

    def _check_settings(self) -> None:
        """Those of all linear models, and the loss's own."""
        super()._check_settings()
        check_choice("loss", self.loss, _LOSSES)
        check_number("epsilon", self.epsilon, "> 0", "in the units of y", infinite=True)
        check_number("quantile", self.quantile, "in (0, 1)")

    def _loss(self, y: Array, weight: Array) -> LinearLoss:
        """The loss by its name. Its unit is the spread of y, to which tolerances are relative."""
        unit = spread_of(y, weight / weight.sum())
        if self.loss == "squared_error":
            return Squared(y, unit)
        if self.loss == "huber":
            return Huber(y, self.epsilon, unit)
        return (
            Pinball(y, 0.5, 2.0, unit)
            if self.loss == "absolute_error"
            else Pinball(y, self.quantile, 1.0, unit)
        )

    def _first_intercept(self, loss: LinearLoss, q: Array) -> Array:
        """The mean of the targets."""
        return np.array([float((q * loss.y).sum())])

    def _pack(self) -> Array | None:
        """W from the fitted attributes, (1, d + 1)."""
        if not hasattr(self, "coef_"):
            return None
        coef = np.asarray(self.coef_, dtype=np.float64)
        return np.append(coef, self.intercept_)[None] if self.fit_intercept else coef[None]

    def _unpack(self, W: Array, dtype: Any) -> None:
        """The fitted attributes from W, in the dtype of the data."""
        d = self.n_features_in_
        self.coef_ = W[0, :d].astype(dtype)
        self.intercept_ = float(W[0, d]) if self.fit_intercept else 0.0


def _finite_squares(y: Array) -> Array:
    """Targets in double precision, whose squares are losses that the worst case can compare."""
    largest = float(np.abs(y).max())
    if not largest < LARGEST_LOSS**0.5:
        raise DataError(
            f"expected targets below {LARGEST_LOSS**0.5:g}, got {largest:g}; divide y by its standard"
            " deviation"
        )
    return y.astype(np.float64)
