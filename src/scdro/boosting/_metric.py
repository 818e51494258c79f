"""The robust value as a metric: "robust" at the radius of the model, "robust@0.5" at another.

A metric is max over KL(p, q) <= rho of sum p l, on the rows that the library hands to it, usually
held-out ones. It decides early stopping if it comes last among the metrics.

    name of the metric   radius
    "robust"             the model's rho
    "robust@0.5"         0.5
    none given           rho/5, beside the library's own metric (`default_metric`)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scdro._validation import check_rho
from scdro.boosting._losses import Array, BoostingLoss
from scdro.boosting._round_weights import Reduce, one_worker, solve_ratio
from scdro.errors import HyperparameterError

__all__ = ["RobustMetric", "default_metric", "radius", "split_metrics"]


class RobustMetric:
    """max over KL(p, q) <= rho of sum p l, as a function of labels, predictions and weights; lower
    is better.

    Args:
        name: what the library prints.
        rho: radius of the KL ball.
        loss: that of the model's objective.
        raw: whether predictions are raw scores, as they are if the objective is a function.
        reduce: joins numbers over the workers.
    """

    def __init__(
        self,
        name: str,
        rho: float,
        loss: BoostingLoss,
        *,
        raw: bool = False,
        reduce: Reduce = one_worker,
    ) -> None:
        self.__name__ = name
        self.rho, self.loss, self.raw, self.reduce = rho, loss, raw, reduce

    def __call__(self, y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
        """The robust value of predictions for some rows, (n,) or (n, classes)."""
        y, prediction = np.asarray(y_true), np.asarray(y_pred)
        if self.raw:
            prediction = self.loss.prediction(prediction.astype(np.float64))
        weight = (
            None
            if sample_weight is None or not len(sample_weight)
            else np.asarray(sample_weight, np.float64)
        )
        # What the library multiplies gradients by in training counts here too.
        factor = self.loss.factor(y)
        if factor is not None:
            weight = factor if weight is None else weight * factor
        return solve_ratio(
            self.loss.of_samples(y, prediction), weight, self.rho, reduce=self.reduce
        ).value


def default_metric(rho: float) -> str:
    """The robust value at a fifth of the radius of training.

    Held-out rows show overconfident errors first in the robust value: at the full radius it stops
    trees that still gain accuracy, round by round (docs/boosting.md, "When to stop").
    """
    return f"robust@{rho / 5:g}"


def radius(name: Any, rho: float) -> float | None:
    """The radius in the name of a metric; None if it is not one of ours."""
    if not isinstance(name, str) or name.partition("@")[0] != "robust":
        return None
    if name == "robust":
        return rho
    try:
        asked = float(name.partition("@")[2])
    except ValueError:
        raise HyperparameterError(
            f'expected a metric "robust" or "robust@0.5", got {name!r}'
        ) from None
    check_rho(asked)
    return asked


def split_metrics(metrics: Any, rho: float) -> tuple[dict[str, float], list[Any]]:
    """Split an `eval_metric` into our metrics, with their radii, and the library's own."""
    given = (
        []
        if metrics is None
        else list(metrics)
        if isinstance(metrics, list | tuple | set)
        else [metrics]
    )
    ours, others = {}, []
    for metric in given:
        asked = radius(metric, rho)
        if asked is None:
            others.append(metric)
        else:
            ours[metric] = asked
    return ours, others
