"""Scores of predictions, with intervals: of a method, of a group of rows, of the difference of two methods.

The worst case and the worst 5% of losses are no means, but smooth functions of the data. To first
order each moves by the mean of an influence a_i of the rows,

    worst case at rho:  a_i = lam p_i / q_i,        p the worst case, lam its temperature
    worst 5%:           a_i = (l_i - t)_+ / .05,    t the smallest of the worst losses

so an interval of either needs one solution and no bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.metrics import balanced_accuracy_score

from scdro._group_metrics import brier, roc_auc
from scdro.functional import worst_case
from scdro.tables._models import row_losses
from scdro.tables._summary import Difference, Interval

if TYPE_CHECKING:
    from scdro.tables._split_study import SplitStudy

__all__ = [
    "Pooled", "change_of_mean", "change_of_tail", "change_of_worst_case", "estimate", "is_flat", "measure",
    "one_answer", "row_scores", "scores_of",
]  # fmt: skip

Array = npt.NDArray[Any]
TAIL = 0.05
LEAST_SPREAD = 0.04  # a model that varies less than this share of a perfect one is flat
MOST_CLASSES = 50  # for which the AUC is computed

# -- of rows


def row_scores(predicted: Array, y: Array) -> Array:
    """Values whose mean is the accuracy, or R^2."""
    if predicted.ndim == 2:
        right: Array = (predicted.argmax(1) == y).astype(float)
        return right
    variance = float(np.var(y))  # 1 on the training rows; rows that are all the same have none
    explained: Array = 1.0 - (predicted - y) ** 2 / (variance if variance > 1e-12 else 1.0)
    return explained


def measure(losses: Array, rho: float) -> dict[str, float]:
    """The mean loss, the worst case at rho, and the mean of the worst 5%."""
    value = float(worst_case(losses, rho).value)
    return {"loss": float(losses.mean()), "robust_value": value, "tail": _tail(losses)[0]}


def _tail(losses: Array) -> tuple[float, Array]:
    """The mean of the worst 5% of losses, and the influence of each row on it."""
    size = max(math.ceil(TAIL * len(losses)), 1)
    worst = np.partition(losses, len(losses) - size)[-size:]
    return float(worst.mean()), np.maximum(losses - worst[0], 0.0) * len(losses) / size


def is_flat(predicted: Array) -> bool:
    """Whether predictions are nearly the same everywhere.

    A perfect model of a class of share p has probabilities of deviation sqrt(p (1 - p)), one of the
    standardised target 1: a rare class is judged by its own measure.
    """
    share = predicted.mean(0)
    most = np.sqrt(np.maximum(share * (1 - share), 0.0)) if predicted.ndim == 2 else 1.0
    return bool((predicted.std(0) <= LEAST_SPREAD * most + 1e-9).all())


def one_answer(predicted: Array) -> int | None:
    """The class that every row gets, if there is only one."""
    answers = np.unique(predicted.argmax(1)).tolist() if predicted.ndim == 2 else []
    return answers[0] if len(answers) == 1 else None


# -- intervals


def estimate(values: Array, share: bool = False, level: float = 0.95) -> Interval:
    """A mean with its interval: Wilson's for a share of right answers, Student's otherwise."""
    n, mean = len(values), float(values.mean())
    if n < 2:
        return _interval(mean)
    if share:
        bounds = stats.binomtest(round(values.sum()), n).proportion_ci(level, method="wilson")
        return _interval(mean, float(bounds.low), float(bounds.high))
    if np.ptp(values) == 0:
        return _interval(mean, mean, mean)
    return _interval(mean, *map(float, stats.ttest_1samp(values, 0.0).confidence_interval(level)))


def _interval(*numbers: float) -> Interval:
    """A value and its bounds, if there are any; None for what is not finite, since JSON has no NaN."""
    known = [number if math.isfinite(number) else None for number in numbers]
    value, low, high = (*known, None, None)[:3]
    return {"value": value, "low": low, "high": high}


def _change(before: float, after: float, influence: Array, level: float = 0.95) -> Difference:
    """after - before, with the interval of a mean of `influence`, shifted to the difference.

    Rows that all change by the same amount say nothing about others: there is no interval then.
    """
    spread, difference = estimate(influence, level=level), after - before
    low, high = spread["low"], spread["high"]
    if low is None or high is None or not np.ptp(influence):
        low = high = None
    else:
        shift = difference - float(influence.mean())
        low, high = low + shift, high + shift
    return {"before": before, "after": after, "difference": difference, "low": low, "high": high}


def change_of_mean(before: Array, after: Array, level: float = 0.95) -> Difference:
    """Of two means over the same rows."""
    return _change(float(before.mean()), float(after.mean()), after - before, level)


def change_of_worst_case(before: Array, after: Array, rho: float) -> Difference:
    """Of max_{KL(p) <= rho} sum p_i l_i over the same rows."""
    if rho == 0:  # the mean, whose lam is infinite
        return change_of_mean(before, after)
    first, then = worst_case(before, rho), worst_case(after, rho)
    influence = len(before) * (
        float(then.lam) * np.asarray(then.weights) - float(first.lam) * np.asarray(first.weights)
    )
    return _change(float(first.value), float(then.value), influence)


def change_of_tail(before: Array, after: Array) -> Difference:
    """Of the means of the worst 5% of losses over the same rows."""
    (first, of_first), (then, of_then) = _tail(before), _tail(after)
    return _change(first, then, of_then - of_first)


# -- of methods, over all splits


class Pooled:
    """Losses and scores of each test row, averaged over the splits that tested it.

    Attributes:
        rows: numbers of the rows, (n,).
        losses: log losses, or half of the squared errors of the standardised target, (n,).
        scores: their mean is the accuracy, or R^2, (n,).
        served: what groups are compared by, (n,): right answers, or absolute errors in the
            target's own unit.
        flat, one_answer: of the model of the first split, the one that may be kept.
    """

    def __init__(self, splits: Sequence[SplitStudy], predicted: Sequence[Array]) -> None:
        """predicted: for each split its test rows, (rows, k) or (rows,)."""
        rows = np.concatenate([split.test for split in splits])
        self.rows, where = np.unique(rows, return_inverse=True)
        times = np.bincount(where)

        def average(of_rows: Callable[[Array, Array], Array], in_unit: bool = False) -> Array:
            values = np.concatenate([
                of_rows(own, split.y[split.test]) * (split.scale[1] if in_unit else 1.0)
                for split, own in zip(splits, predicted, strict=True)
            ])  # fmt: skip
            averaged: Array = np.bincount(where, values) / times
            return averaged

        self.losses, self.scores = average(row_losses), average(row_scores)
        self.classifier = predicted[0].ndim == 2
        self.served = self.scores
        if not self.classifier:
            self.served = average(lambda own, y: np.abs(own - y), in_unit=True)
        self.flat, self.one_answer = is_flat(predicted[0]), one_answer(predicted[0])


def scores_of(name: str, splits: Sequence[SplitStudy], rho: float) -> dict[str, Interval]:
    """All scores of a method on the test rows."""
    predicted = [split.on_test(name) for split in splits]
    pooled = Pooled(splits, predicted)
    pairs = [(split.y[split.test], own) for split, own in zip(splits, predicted, strict=True)]
    if pooled.classifier:
        balanced = [balanced_accuracy_score(y, p.argmax(1)) for y, p in pairs]
        found = {
            "accuracy": estimate(pooled.scores, share=True),
            "balanced_accuracy": _interval(float(np.mean(balanced))),
            "log_loss": estimate(pooled.losses),
            "roc_auc": _interval(float(np.mean([_auc(y, p) for y, p in pairs]))),
            "brier": _interval(float(np.mean([brier(y, p) for y, p in pairs]))),
        }
    else:
        errors = [
            math.sqrt(np.mean((p - y) ** 2)) * split.scale[1]
            for split, (y, p) in zip(splits, pairs, strict=True)
        ]
        found = {
            "R2": estimate(pooled.scores),
            "mean_absolute_error": estimate(pooled.served),
            "root_mean_squared_error": _interval(float(np.mean(errors))),
        }
    measures = measure(pooled.losses, rho)
    return found | {key: _interval(measures[key]) for key in ("robust_value", "tail")}


def _auc(y: Array, predicted: Array) -> float:
    """NaN if a class is absent or there are too many classes."""
    classes = predicted.shape[1]
    if len(np.unique(y)) < classes or classes > MOST_CLASSES:
        return math.nan
    shares = predicted / predicted.sum(1, keepdims=True) if classes > 2 else predicted
    return roc_auc(y, shares)
