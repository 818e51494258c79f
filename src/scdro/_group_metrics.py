"""Any metric for every group, with bootstrap intervals, for `scdro.metrics.group_table(...,
metrics=...)`.

    metrics      <-  functions (labels, predictions, weights) -> a number        (_functions_by_name)
    for each group:
        value    <-  the metric on its rows
        interval <-  quantiles of the metric over rows drawn again from the group

The bootstrap is that of Efron, percentiles within each group. Where the metric is undefined for
most draws, such as AUC in a group with one positive, there is no interval.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length

from scdro._frames import as_array
from scdro._validation import check_no_missing, check_number, check_whole
from scdro.errors import DataError, HyperparameterError

__all__ = ["brier", "calibration_error", "metrics_by_group", "roc_auc"]

Array = npt.NDArray[Any]
Metric = Callable[[Array, Array, Array], float]  # labels, predictions, weights

# What a metric's name ends with, if less of it is better.
LOWER_IS_BETTER = ("loss", "error", "deviance", "brier")
# Arguments by which scikit-learn's metrics take scores or probabilities, and no labels.
TAKES_SCORES = ("y_score", "y_proba", "y_prob", "pred_decision")
MOST_DRAWN = 20_000  # largest number of rows of a bootstrap sample
KNOWN_SHARE = 0.5  # share of bootstrap samples that must have a value for an interval to be given


def metrics_by_group(
    y_true: Array,
    y_pred: Array,
    member: Array,
    weight: Array,
    metrics: Any,
    bootstrap: int,
    level: float,
    random_state: Any,
) -> dict[str, list[Any]]:
    """Columns with one row per group, sorted by the first metric, worst first and NaN last.

    Args:
        y_true: labels, (n,).
        y_pred: labels or probabilities, (n,) or (n, labels).
        member: the number of each sample's group, (n,).
        weight: sample weights, (n,); groups of weight zero are left out.
        metrics: as for `group_table`.
        bootstrap: number of samples drawn for the intervals of each group.
        level: confidence level of the intervals.
        random_state: seed of the draws.

    Returns:
        "group", "size", "share", and for each metric its name, `_low` and `_high`.
    """
    check_whole("bootstrap", bootstrap, 0, meaning="the number of bootstrap samples")
    check_number("level", level, "in (0, 1)", "a confidence level")
    y_pred = as_array(y_pred)
    check_consistent_length(y_true, y_pred, member)
    if not len(y_true):
        raise DataError("expected samples, got none")
    check_no_missing(y_true, "y_true")
    check_no_missing(y_pred, "y_pred")
    functions = _functions_by_name(metrics, y_true, y_pred)
    known = weight > 0  # (n,)
    # What fails on all rows is an error; what fails on some is undefined there.
    for name, function in functions.items():
        _check_one_number(name, function(y_true[known], y_pred[known], weight[known]))
    rng = check_random_state(random_state)
    rows = []
    for g in np.unique(member[weight > 0]).tolist():
        own = np.flatnonzero((member == g) & (weight > 0))  # positions of the group's rows
        row = {
            "group": g,
            "size": int((member == g).sum()),
            "share": float(weight[own].sum() / weight.sum()),
        }
        # One line of positions within `own` for each bootstrap sample, the same for all metrics.
        draws = rng.randint(len(own), size=(bootstrap, min(len(own), MOST_DRAWN)))
        for metric, function in functions.items():
            row[metric] = middle = _measure(function, y_true, y_pred, weight, own)
            if bootstrap:
                values = np.array(
                    [_measure(function, y_true, y_pred, weight, own[draw]) for draw in draws]
                )
                if len(own) > MOST_DRAWN:  # the interval of fewer rows is too wide
                    values = middle + math.sqrt(MOST_DRAWN / len(own)) * (values - middle)
                row[f"{metric}_low"], row[f"{metric}_high"] = _bootstrap_interval(values, level)
        rows.append(row)
    first = next(iter(functions))
    sign = -1.0 if first.endswith(LOWER_IS_BETTER) else 1.0
    rows.sort(key=lambda row: (math.isnan(row[first]), sign * row[first]))
    return {column: [row[column] for row in rows] for column in rows[0]}


def _check_one_number(name: str, found: Any) -> None:
    """Raise for a metric that returns a table or one number for each class."""
    if isinstance(found, str | tuple | list | dict) or np.ndim(found):
        raise HyperparameterError(
            f"expected metrics that give one number, got {name}, which gives a"
            f" {type(found).__name__}"
        )


def _measure(function: Metric, y_true: Array, y_pred: Array, weight: Array, rows: Array) -> float:
    """The metric on some rows, given by position; NaN if it is undefined there.

    AUC is, if all rows are of one class. Metrics of scikit-learn say so by a ValueError.
    """
    try:
        return float(function(y_true[rows], y_pred[rows], weight[rows]))
    except (ValueError, ZeroDivisionError):
        return math.nan


def _bootstrap_interval(values: Array, level: float) -> tuple[float, float]:
    """The percentiles of the values, (draws,); NaN if too many of them are undefined."""
    known = values[np.isfinite(values)]
    if len(known) < KNOWN_SHARE * len(values):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# -- metrics by name
def calibration_error(
    y_true: Array, probabilities: Array, sample_weight: Array | None = None, bins: int = 10
) -> float:
    """Mean distance between confidence and accuracy, over equal bins of the confidence (expected
    calibration error).

    For two classes, confidence is the probability of the second, (n,) or the last column of (n, 2),
    and right is its label; for more, the largest probability, and whether its class is the label.
    Labels are class numbers. In a small group the bins are nearly empty, and the error of even a
    calibrated model is large.

    Example:
        >>> round(calibration_error(np.array([0, 1, 1, 1]), np.array([0.25, 0.75, 0.75, 0.75])), 3)
        0.25

    References:
        Guo et al., On calibration of modern neural networks, ICML 2017.
    """
    y_true, probabilities = np.asarray(y_true), np.asarray(probabilities, dtype=np.float64)
    weight = (
        np.ones(len(y_true))
        if sample_weight is None
        else np.asarray(sample_weight, dtype=np.float64)
    )
    if probabilities.ndim == 2 and probabilities.shape[1] == 2:
        probabilities = probabilities[:, 1]
    confidence, right = probabilities, y_true == 1
    if probabilities.ndim == 2:
        confidence, right = probabilities.max(1), probabilities.argmax(1) == y_true
    which = np.minimum((confidence * bins).astype(int), bins - 1)  # the bin of each sample
    # Weight of the bin times (accuracy - confidence) within it.
    gaps = np.bincount(which, weight * (right - confidence), bins)
    return float(np.abs(gaps).sum() / weight.sum())


def roc_auc(y_true: Array, probabilities: Array, sample_weight: Array | None = None) -> float:
    """Area under the ROC curve of the second class if there are two, else the mean over classes
    against the others.

    Labels are class numbers, probabilities (n, classes); without a sample of every class the area
    is undefined.
    """
    classes = probabilities.shape[1]
    if len(np.unique(y_true)) < classes:
        raise ValueError("expected samples of all classes for the AUC")
    if classes == 2:
        return float(
            sklearn.metrics.roc_auc_score(y_true, probabilities[:, 1], sample_weight=sample_weight)
        )
    settings = {"multi_class": "ovr", "labels": np.arange(classes), "sample_weight": sample_weight}
    return float(sklearn.metrics.roc_auc_score(y_true, probabilities, **settings))


def brier(y_true: Array, probabilities: Array, sample_weight: Array | None = None) -> float:
    """Squared error of the probabilities, (n, classes): of the second class if there are two, else
    summed over classes.

    Labels are class numbers.
    """
    errors = probabilities.copy()
    errors[np.arange(len(errors)), y_true] -= 1.0
    squares = (errors**2).sum(1) if errors.shape[1] > 2 else errors[:, 1] ** 2
    return float(np.average(squares, weights=sample_weight))


def _functions_by_name(metrics: Any, y_true: Array, y_pred: Array) -> dict[str, Metric]:
    """The metrics by name: our names, names in sklearn.metrics, or functions (y_true, y_pred[,
    sample_weight]).
    """
    if isinstance(metrics, str) or callable(metrics):
        metrics = [metrics]
    if not isinstance(metrics, Mapping):
        metrics = [
            (metric if isinstance(metric, str) else _name_of_metric(metric), metric)
            for metric in metrics
        ]
        if len(dict(metrics)) < len(metrics):
            raise HyperparameterError(
                f"expected metrics with different names, got {[name for name, _ in metrics]}; give"
                " a dict"
            )
        metrics = dict(metrics)
    if not metrics:
        raise HyperparameterError("expected at least one metric, got none")
    probabilities = _Probabilities(y_true, y_pred)  # reads from all rows what the classes are
    functions = {}
    for name, metric in metrics.items():
        if callable(metric):
            functions[name] = _pass_weights(metric)
        elif metric in probabilities.known:
            functions[name] = probabilities.known[metric]
        elif isinstance(metric, str) and callable(getattr(sklearn.metrics, metric, None)):
            functions[name] = probabilities.by_name(getattr(sklearn.metrics, metric))
        else:
            known = ", ".join(probabilities.known)
            raise HyperparameterError(
                f"expected a metric among {known}, the name of a function in sklearn.metrics, or a"
                f" function, got {metric!r}"
            )
    return functions


def _name_of_metric(metric: Any) -> str:
    """A function's own name, which must be there."""
    name = getattr(metric, "__name__", None)
    if not isinstance(name, str):
        raise HyperparameterError(
            f"expected metrics with a name, got {metric!r}; give a dict such as {{'f1': metric}}"
        )
    return name


def _pass_weights(metric: Callable[..., float]) -> Metric:
    """Pass weights to a metric that takes them. Any other metric is an error unless all weights are
    equal.
    """
    takes = "sample_weight" in inspect.signature(metric).parameters

    def value(y_true: Array, y_pred: Array, weight: Array) -> float:
        if takes:
            return metric(y_true, y_pred, sample_weight=weight)
        if (weight != weight[0]).any():
            raise HyperparameterError(
                f"expected a metric with sample_weight, since there are weights, got {metric}"
            )
        return metric(y_true, y_pred)

    return value


class _Probabilities:
    """Metrics of a classifier's probabilities, of the second class, (n,), or of all, (n, classes).

    Classes are read from all rows, because a group may lack some.

    Attributes:
        classes: the labels in order, (classes,); empty if labels are numbers to predict.
        given: whether predictions are probabilities.
        known: our own metrics by name.
    """

    def __init__(self, y_true: Array, y_pred: Array) -> None:
        discrete = y_true.dtype.kind in "biuOUS" or bool(np.equal(np.mod(y_true, 1), 0).all())
        self.classes = np.unique(y_true) if discrete else np.empty(0)
        # Predicted labels 0.0 and 1.0 count as probabilities too: the likeliest class is the same.
        self.given = (
            discrete and y_pred.dtype.kind == "f" and bool(((y_pred >= 0) & (y_pred <= 1)).all())
        )
        if self.given and y_pred.ndim == 2 and y_pred.shape[1] != len(self.classes):
            raise DataError(
                f"expected a probability for each of the {len(self.classes)} labels in y_true, got"
                f" {y_pred.shape[1]}; give a function as metric that knows the others"
            )
        self.known: dict[str, Metric] = {
            "accuracy": self.of_labels(_pass_weights(sklearn.metrics.accuracy_score)),
            "roc_auc": self._auc,
            "log_loss": self._log_loss,
            "brier": self._brier,
            "calibration_error": self._calibration_error,
        }

    def by_name(self, metric: Any) -> Metric:
        """A function of sklearn.metrics, with the arguments that it needs for these labels.

        It gets probabilities if it takes scores, numbers as they are if it is one of regression,
        else the likeliest labels. The second label is the positive one, unless there is a label 1.
        """
        if metric.__module__.endswith("_regression"):
            return _pass_weights(metric)
        takes = inspect.signature(metric).parameters
        scores = metric.__name__ == "d2_log_loss_score" or not takes.keys().isdisjoint(TAKES_SCORES)
        settings: dict[str, Any] = {}
        if (
            "pos_label" in takes
            and len(self.classes) == 2
            and (scores or 1 not in self.classes.tolist())
        ):
            settings["pos_label"] = self.classes[1]
        if scores and "labels" in takes and len(self.classes) > 1 and "pos_label" not in settings:
            settings["labels"] = self.classes  # those that a group does not have too
        if "multi_class" in takes and len(self.classes) > 2:
            settings["multi_class"] = "ovr"
        value = _pass_weights(functools.partial(metric, **settings))
        if not scores:
            return self.of_labels(value)
        return lambda y_true, y_pred, weight: value(
            y_true, y_pred[:, 1] if y_pred.ndim == 2 and len(self.classes) == 2 else y_pred, weight
        )

    def of_labels(self, metric: Metric) -> Metric:
        """A metric of labels; if predictions are probabilities, it gets the most likely labels."""

        def value(y_true: Array, y_pred: Array, weight: Array) -> float:
            if self.given:
                y_pred = self.classes[self._all(y_pred).argmax(1)]
            return metric(y_true, y_pred, weight)

        return value

    def _all(self, y_pred: Array) -> Array:
        """The probabilities of all classes, (n, classes)."""
        if not self.given:
            raise DataError(
                "expected probabilities as y_pred, (n,) of the second label or (n, labels), for"
                " AUC, log loss, Brier score and calibration error, got labels or other numbers;"
                " give predict_proba(X)"
            )
        return y_pred if y_pred.ndim == 2 else np.stack([1.0 - y_pred, y_pred], 1)

    def _auc(self, y_true: Array, y_pred: Array, weight: Array) -> float:
        """`roc_auc` of labels as they came; and so on below."""
        return roc_auc(self._numbers(y_true), self._all(y_pred), weight)

    def _log_loss(self, y_true: Array, y_pred: Array, weight: Array) -> float:
        """Mean of -log of the probability of the label."""
        p = self._all(y_pred)
        own = np.maximum(p[np.arange(len(p)), self._numbers(y_true)], np.finfo(p.dtype).eps)
        return float(np.average(-np.log(own), weights=weight))

    def _brier(self, y_true: Array, y_pred: Array, weight: Array) -> float:
        """Mean squared error of the probabilities."""
        return brier(self._numbers(y_true), self._all(y_pred), weight)

    def _calibration_error(self, y_true: Array, y_pred: Array, weight: Array) -> float:
        """Mean distance between confidence and accuracy."""
        return calibration_error(self._numbers(y_true), self._all(y_pred), weight)

    def _numbers(self, y_true: Array) -> Array:
        """Class numbers of labels."""
        return np.searchsorted(self.classes, y_true)
