"""KL-robust logistic regression: what `KLDROLinearModel` needs to know about labels.

Labels become numbers, class weights become sample weights, and the loss is logistic for two classes
(one score per row) or multinomial (k scores). W is packed and unpacked in scikit-learn's shapes:
`coef_` (1, d) for two classes, else (k, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from scdro._estimators import unchanged_if_refused
from scdro._validation import array_weights
from scdro.errors import DataError
from scdro.linear_model._base import KLDROLinearModel
from scdro.linear_model._score_losses import LinearLoss, Logistic, Multinomial
from scdro.linear_model._worst_case import Array

__all__ = ["KLDROClassifier"]


class KLDROClassifier(ClassifierMixin, KLDROLinearModel):  # type: ignore[misc]
    r"""Logistic regression for the worst case, binary or multinomial, solved to the exact optimum.

    min_{w, b}  max_{KL(p, q) <= rho} sum_i p_i l_i(w, b) - lam0 KL(p, q)  +  |w|^2/(2 C
    sum(sample_weight))

    where l_i is the logistic loss and q are the normalised sample weights. rho = 0 is
    `LogisticRegression(C=C)`.

    Args:
        rho: radius of the KL ball; `scdro.rho_for_group(0.1)` protects every group of at least a
            tenth of the data.
        C: inverse strength of the penalty, as in scikit-learn; np.inf for none.
        lam0: the paper's KL regulariser and the smallest temperature.
        fit_intercept: whether to fit an intercept, which is not penalised.
        tol: the solver, Newton's method with lam eliminated, stops when no entry of the gradient
            exceeds tol.
        max_iter: maximum number of Newton steps.
        warm_start: start from the coefficients of the previous fit.
        class_weight: None, "balanced" or a dictionary, as in scikit-learn; multiplies the sample
            weights.
        batch_size: samples per step of `partial_fit`.
        learning_rate: the initial step size of `partial_fit`; None chooses it from the first rows.
        verbose: 1 prints a line for every Newton step of `fit`.

    Attributes:
        coef_: as in scikit-learn.
        intercept_: as in scikit-learn.
        classes_: as in scikit-learn.
        n_features_in_: as in scikit-learn.
        feature_names_in_: as in scikit-learn.
        n_iter_: number of Newton steps until `tol`, or of batches in a stream. Further
            steps for the certificate, which may improve a solution that met `tol`, are not counted.
        lam_: the temperature; inf if rho = 0.
        robust_value_: the worst-case loss on the training data, without the penalty.
        dual_gap_: the objective is at most this far above its minimum. This certificate also holds
            for fits stopped early; it is inf if C is inf. Not set by `partial_fit`.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> X = (X - X.mean(0)) / X.std(0)
        >>> model = KLDROClassifier(rho=0.5).fit(X, y)
        >>> round(model.robust_value_, 3), model.dual_gap_ < 1e-7, bool(model.score(X, y) > 0.95)
        (0.303, True, True)
        >>> weights = model.worst_case_weights(X, y)  # the worst distribution
    """

    def __init__(
        self,
        rho: float = 0.1,
        C: float = 1.0,
        lam0: float = 1e-3,
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 1000,
        warm_start: bool = False,
        class_weight: Any = None,
        batch_size: int = 256,
        learning_rate: float | None = None,
        verbose: int = 0,
    ) -> None:
        self.rho = rho
        self.C = C
        self.lam0 = lam0
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KLDROClassifier:
        """Fit the model. X: dense or sparse, (n, d); y: labels, (n,)."""
        self._check_settings()
        with unchanged_if_refused(self):
            X, y = self._validate(X, y)
            check_classification_targets(y)
            weight = array_weights(sample_weight, X.shape[0])
            classes, encoded = np.unique(y, return_inverse=True)
            weight = weight * self._class_factors(classes, encoded, weight)
            # A class whose samples all have weight zero is known, but has nothing to be fitted to.
            present = np.flatnonzero(np.bincount(encoded, weight) > 0)
            if len(present) < 2:
                raise DataError(
                    "expected samples of at least two classes, got only one class:"
                    f" {classes[present].tolist()}"
                )
            # Coefficients for other classes are no start for a warm start.
            if not np.array_equal(getattr(self, "classes_", classes), classes):
                self.__dict__.pop("coef_", None)
            self.classes_ = classes
            self._fit(X, encoded, weight)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> KLDROClassifier:
        """One pass of RSCDRO over some rows of a stream, for data that do not fit in memory.

        All state is kept from call to call. The first call needs `classes`, all labels that will
        ever occur.
        """
        self._check_settings()
        with unchanged_if_refused(self):
            first = "_progress" not in self.__dict__
            X, y = self._validate(X, y, reset=first and not hasattr(self, "coef_"))
            if first and not hasattr(self, "classes_"):
                if classes is None:
                    raise DataError(
                        "expected `classes`, all labels that will occur, at the first call of"
                        " partial_fit"
                    )
                known = np.unique(column_or_1d(classes))
                if len(known) < 2:
                    raise DataError(
                        f"expected at least two classes, got one class: {known.tolist()}"
                    )
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise DataError(
                    f"expected the classes of the first call, {self.classes_.tolist()}, got"
                    f" {classes}"
                )
            else:
                known = self.classes_
            if self.class_weight == "balanced":
                raise DataError(
                    'expected class weights known in advance for a stream, got "balanced"; pass a'
                    " dictionary"
                )
            weight = array_weights(sample_weight, X.shape[0])
            encoded = _encode(known, y)
            weight = weight * self._class_factors(known, encoded, weight)
            self.classes_ = known
            self._partial_fit(X, encoded, weight)
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores: (n,) for two classes, (n, k) for more."""
        scores = self._scores(X)
        return scores.ravel() if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """The class of the largest score, (n,)."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        predicted: Array = self.classes_[best]
        return predicted

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes in the order of `classes_`, (n, k)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], 1)
        probabilities: Array = softmax(scores, 1)
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Their logarithms, (n, k), also where a probability rounds to zero."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return -np.stack([np.logaddexp(0, scores), np.logaddexp(0, -scores)], 1)
        logs: Array = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
        return logs

    def worst_case_weights(self, X: Any, y: Any, sample_weight: Any = None) -> Array:
        """The worst distribution p, (n,), over these samples within KL distance rho, for the fitted
        model.
        """
        check_is_fitted(self)
        scores = self._scores(X)
        encoded = _encode(self.classes_, column_or_1d(y))
        if len(encoded) != len(scores):
            raise DataError(
                f"expected one label per sample, got {len(encoded)} labels for {len(scores)}"
                " samples"
            )
        weight = array_weights(sample_weight, len(scores))
        return self._worst_case_weights(
            scores, encoded, weight * self._class_factors(self.classes_, encoded, weight)
        )

    def _class_factors(self, classes: Array, encoded: Array, weight: Array) -> Array:
        """What `class_weight` multiplies each sample weight by, (n,)."""
        if self.class_weight is None:
            return np.ones(len(encoded))
        labels = classes[encoded]
        present = np.unique(labels)
        by_class = compute_class_weight(
            self.class_weight, classes=present, y=labels, sample_weight=weight
        )
        if not (by_class >= 0).all():
            raise DataError(f"expected class weights >= 0, got {self.class_weight}")
        factors: Array = by_class[np.searchsorted(present, labels)]
        return factors

    def _loss(self, y: Array, weight: Array) -> LinearLoss:
        """Logistic for two classes, labels -1 and 1; multinomial for more."""
        k = len(self.classes_)
        return Logistic(np.where(y == 1, 1.0, -1.0)) if k == 2 else Multinomial(y, k)

    def _pack(self) -> Array | None:
        """W from the fitted attributes, (k, d + 1)."""
        if not hasattr(self, "coef_"):
            return None
        coef: Array = np.asarray(self.coef_, dtype=np.float64)
        return np.concatenate([coef, self.intercept_[:, None]], 1) if self.fit_intercept else coef

    def _unpack(self, W: Array, dtype: Any) -> None:
        """The fitted attributes from W. Sets what is determined only up to a common part."""
        k, d = len(W), self.n_features_in_
        if k > 1:
            # Adding the same number to the scores of all classes changes nothing, so what is not
            # penalised is determined only up to a part that is common to all classes. Make it zero.
            free = slice(None) if np.isinf(self.C) else slice(d, None)
            W = W.copy()
            W[:, free] -= W[:, free].mean(0)
        self.coef_ = W[:, :d].astype(dtype)
        self.intercept_ = W[:, d].astype(dtype) if self.fit_intercept else np.zeros(k, dtype)


def _encode(classes: Array, y: Array) -> Array:
    """The position of each label among the classes, (n,); raise for a label that is not among them."""
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise DataError(
            f"expected labels among the classes {classes.tolist()}, got {unknown.tolist()}"
        )
    return np.searchsorted(classes, y)
