"""Groups from the mistakes that two models make about each other's samples (XRM), for any estimator.

Two models, the twins, are each fitted to one half of the data. Each then predicts the other half,
and every label there is replaced by the prediction with a probability that grows with the model's
confidence. This amplifies what the twins learned from the easy majority. In the end, a sample is a
mistake if the twin that has not seen it predicts its *given* label wrong. Class x mistake are the
inferred groups, and all get the same weight.

Reference: Pezeshki et al., Discovering environments with XRM, ICML 2024. There the twins are
networks that take one step between two moves of the labels; here they are fitted again in each of a
few rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils._indexing import _safe_indexing

from scdro.fix._folds import fit_weighted
from scdro.fix._weights import balanced, effective_size

__all__ = ["cross_mistakes", "mistake_weights"]

Array = npt.NDArray[Any]
MISTAKE_ROUNDS = 5


def cross_mistakes(
    estimator: Any,
    X: Any,
    y: Array,
    weights: Array,
    halves: tuple[Array, Array],
    rng: np.random.RandomState,
) -> Array:
    """Whether the twin that has not seen a sample predicts it wrong, (n,). y: 0 to k - 1, all in both halves."""
    n, k = len(y), int(y.max()) + 1
    moved = y.copy()
    predicted = y.copy()
    for _ in range(MISTAKE_ROUNDS):
        confidence = np.zeros(n)
        for seen, unseen in (halves, halves[::-1]):
            if len(np.unique(moved[seen])) < 2:  # only one class is left
                return np.not_equal(predicted, y)
            twin = fit_weighted(estimator, _safe_indexing(X, seen), moved[seen], weights[seen])
            proba = twin.predict_proba(_safe_indexing(X, unseen))
            predicted[unseen] = twin.classes_[proba.argmax(1)]
            confidence[unseen] = (proba.max(1) - 1 / k) * k / (k - 1)
        moved = np.where(rng.random_sample(n) < confidence, predicted, moved)
    return np.not_equal(predicted, y)


def mistake_weights(
    mistakes: Array, y: Array, base: Array, balance_classes: bool, min_effective_size: int
) -> tuple[Array, dict[int, str]]:
    """Equal totals for right and wrong in each class that has enough of both, and the classes left alone, with why."""
    weights, left_alone, totals = base.astype(float), {}, np.bincount(y, base)
    for label in np.unique(y):
        parts = [
            np.flatnonzero((y == label) & (mistakes == wrong) & (base > 0))
            for wrong in (False, True)
        ]
        if min(len(rows) and effective_size(base[rows]) for rows in parts) < min_effective_size:
            few = f"fewer than {min_effective_size}"
            left_alone[int(label)] = f"{few} mistakes, or {few} samples predicted correctly"
            continue
        for rows in parts:
            weights[rows] *= totals[label] / 2 / base[rows].sum()
    weights = balanced(weights, y) if balance_classes else weights * len(y) / weights.sum()
    return weights, left_alone
