"""What any classifier can have without being trained again: a temperature, and an offset for each class.

    p' = softmax(log(p) / T + b)

T changes how sure the model is and never which class comes first; b moves the thresholds between
the classes. Both are free: two models are compared fairly once each could have made these moves for
the criterion of the comparison, chosen on rows that did not train the model.

The worst case, or the tail, of log losses falls if a model is less sure of everything (T > 1), the
accuracy of a rare class rises if its offset does. A gain in either that a free move also has is no
reason to train another model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin

from scdro.functional import worst_case

__all__ = [
    "MovedClassifier",
    "best_offsets",
    "best_temperature",
    "chosen_out_of_fold",
    "moved",
    "robust_log_loss",
]

Array = npt.NDArray[Any]
TINY = 1e-15  # a probability below this counts as this
SHARPEST = 10.0  # largest 1 / T
OFFSET_ROUNDS = 10  # over all classes, at most
ROUNDING = 1e-12  # differences of accuracies below this are none


def moved(proba: Array, temperature: float = 1.0, offsets: Array | None = None) -> Array:
    """softmax(log(p) / T + b), for probabilities (rows, classes); T may be infinite.

    Example:
        >>> moved(np.array([[0.8, 0.2]]), temperature=2.0).round(3).tolist()  # odds of 4 become odds of 2
        [[0.667, 0.333]]
    """
    scores = np.log(np.maximum(proba, TINY)) / temperature
    found: Array = softmax(scores if offsets is None else scores + offsets, axis=1)
    return found


def robust_log_loss(rho: float) -> Callable[[Array], float]:
    """The criterion max_{KL(p) <= rho} sum p_i l_i of log losses l."""

    def criterion(losses: Array) -> float:
        return float(worst_case(losses, rho).value)

    return criterion


def best_temperature(
    proba: Array, y: Array, criterion: Callable[[Array], float], most_loss: float = np.inf
) -> float:
    """The T of the lowest criterion of the log losses, of those with a mean log loss of at most `most_loss`.

    A bound on the mean lets two models be compared at one price. Without it the T of a worst case
    may be infinite: equal probabilities of all classes have no worst losses. If no T keeps to it,
    the T of the lowest mean is returned.

    Each log loss is convex in 1 / T. A criterion that is convex and increasing in the losses, as
    the mean, the worst case and the tail are, is convex in 1 / T too, and the T within the bound
    are an interval: one bounded search finds the minimum. y are class numbers.

    Example:
        >>> y = np.array([0, 0, 0, 1])
        >>> sure = np.tile([0.99, 0.01], (4, 1))  # right for three in four: odds of 99 should be odds of 3
        >>> round(best_temperature(sure, y, np.mean), 2)
        4.18
    """
    scores, rows = np.log(np.maximum(proba, TINY)), np.arange(len(y))

    def losses(inverse: float) -> Array:
        found: Array = -log_softmax(inverse * scores, axis=1)[rows, y]
        return found

    low, high = 0.0, SHARPEST
    if np.isfinite(most_loss):
        middle = _lowest(lambda inverse: float(losses(inverse).mean()), low, high)

        def over(inverse: float) -> float:
            return float(losses(inverse).mean()) - most_loss

        if over(middle) >= 0:
            return 1.0 / middle if middle else np.inf
        low = float(brentq(over, low, middle)) if over(low) > 0 else low
        high = float(brentq(over, middle, high)) if over(high) > 0 else high
    best = _lowest(lambda inverse: criterion(losses(inverse)), low, high)
    return 1.0 / best if best else np.inf


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function is lowest; the bounded search itself never tries its bounds, nor 1, no move at all."""
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    tried = [low, high, float(found.x)]
    return min([1.0, *tried] if low <= 1.0 <= high else tried, key=function)


def best_offsets(proba: Array, y: Array, serves: Array, least_accuracy: float = 0.0) -> Array:
    """Offsets, one for each class, for the most right answers among the rows that count.

    `serves` says which rows count: a mask or weights, (rows,), or several of them, (parts, rows).
    With several, the accuracy of the worst part decides. Over all rows the accuracy stays at or
    above `least_accuracy`, so that two models can be compared at one price. Of equally good
    offsets the most accurate ones win.

    One class after the other: its offset only matters relative to the best other class. The rows
    are sorted by the offset at which they change their answer to this class, so cumulative sums
    give the accuracies of all thresholds at once. This goes on until no class gains.

    Example:
        >>> proba, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.55, 0.45]]), np.array([0, 0, 1, 1])
        >>> moved(proba, offsets=best_offsets(proba, y, y == 1, 0.5)).argmax(1).tolist()
        [0, 0, 1, 1]
    """
    scores = np.log(np.maximum(proba, TINY))  # (rows, classes)
    # Each part sums to one; all rows are the last part, which gives the accuracy over all.
    parts = np.atleast_2d(serves).astype(float)
    parts = np.concatenate([parts / parts.sum(1, keepdims=True), np.full((1, len(y)), 1 / len(y))])
    offsets = np.zeros(scores.shape[1])
    right = (scores.argmax(1) == y).astype(float)
    # Accuracy of the worst part and of all rows, with the best offsets so far.
    best = (float((parts[:-1] @ right).min()), float(right.mean()))
    for _ in range(OFFSET_ROUNDS):
        before = best
        for k in range(len(offsets)):
            others = scores + offsets
            others[:, k] = -np.inf
            needed = others.max(1) - scores[:, k]  # class k answers where its offset exceeds this
            found = _thresholds(needed, y == k, others.argmax(1) == y, parts)
            worst, accuracy = found.accuracies[:-1].min(0), found.accuracies[-1]
            worst = np.where(accuracy >= least_accuracy - ROUNDING, worst, -np.inf)
            first = int(np.lexsort((accuracy, worst))[-1])
            value = float(worst[first]), float(accuracy[first])
            if value > (best[0] + ROUNDING, 0.0) or (
                value[0] > best[0] - ROUNDING and value[1] > best[1] + ROUNDING
            ):
                best, offsets[k] = value, found.offsets[first]
        if best == before:
            break
    centred: Array = offsets - offsets.mean()
    return centred


class _Thresholds(NamedTuple):
    """All different thresholds of one class."""

    offsets: Array  # (t,), between the values at which an answer changes
    accuracies: Array  # (parts, t)


def _thresholds(needed: Array, if_chosen: Array, if_not: Array, parts: Array) -> _Thresholds:
    """All thresholds of one class, with the accuracy of each part at each of them.

    Args:
        needed: the offset above which a row changes its answer to this class, (rows,).
        if_chosen, if_not: whether the row is right if the class answers it, and if another does.
        parts: weights of the rows, (parts, rows).
    """
    order = np.argsort(needed, kind="stable")
    edges = needed[order]
    change = parts[:, order] * (if_chosen[order].astype(float) - if_not[order])
    sums = np.cumsum(np.pad(change, ((0, 0), (1, 0))), axis=1) + (parts @ if_not)[:, None]
    # after row i of the order: only where the next row needs more
    last = np.flatnonzero(np.append(edges[1:] > edges[:-1], True))
    between = np.append((edges[1:] + edges[:-1]) / 2, edges[-1] + 1.0)[last]
    return _Thresholds(np.append(edges[0] - 1.0, between), sums[:, np.append(0, last + 1)])


def chosen_out_of_fold(
    proba: Array, folds: Sequence[tuple[Array, Array]], choose: Callable[[Array], dict[str, Any]]
) -> Array:
    """Each fold moved as the rows outside of it choose: `choose(rows)` gives the arguments of `moved`."""
    found = np.empty_like(proba)
    for seen, unseen in folds:
        found[unseen] = moved(proba[unseen], **choose(seen))
    return found


class MovedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier with other thresholds: offsets of the log probabilities of its classes.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
        >>> fitted = LogisticRegression().fit(X, y)
        >>> MovedClassifier(fitted, np.array([5.0, -5.0])).predict(X).tolist()
        [0, 0, 0, 0]
    """

    def __init__(self, estimator: Any, offsets: Array) -> None:
        self.estimator = estimator
        self.offsets = offsets

    @property
    def classes_(self) -> Array:
        """Those of the classifier."""
        classes: Array = self.estimator.classes_
        return classes

    def fit(self, X: Any, y: Any) -> MovedClassifier:
        """Fit the classifier; the offsets stay."""
        self.estimator.fit(X, y)
        return self

    def predict_proba(self, X: Any) -> Array:
        """The probabilities after the move, (n, classes)."""
        return moved(self.estimator.predict_proba(X), offsets=self.offsets)

    def predict_log_proba(self, X: Any) -> Array:
        """Their logarithms."""
        logs: Array = np.log(np.maximum(self.predict_proba(X), TINY))
        return logs

    def decision_function(self, X: Any) -> Array:
        """Log odds of the second of two classes, or log probabilities."""
        logs = self.predict_log_proba(X)
        scores: Array = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
        return scores

    def predict(self, X: Any) -> Array:
        """The class that comes first after the move, (n,)."""
        answers: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return answers
