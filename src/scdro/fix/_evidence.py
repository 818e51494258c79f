"""The evidence: out-of-fold predictions of every remedy, in the same folds.

Half of the partitions make the weights of a second look and the other half score, both ways: rows
that a model gets wrong by the chance of its folds are right in others, and would look like a gain.

Fits of a verdict with 5 folds, `repeats` = 3 and c settings to choose from: 30 of the reference
(it makes the weights, 3 partitions for each way), 10 of the plain model, 10 for each setting of a
remedy (one partition for each way), 10 more for each setting without its weights, and 30 for the
one that is chosen, if there was a choice: weights are an average over partitions, and so is the
verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from scdro.fix._criteria import Criterion, RowScores, surely_right
from scdro.fix._folds import FoldPlan, Split, predict_out_of_fold
from scdro.fix._free_moves import TINY, best_offsets, best_temperature, chosen_out_of_fold
from scdro.fix._weights import FEW, balanced

__all__ = ["FoldedRows", "Remedy"]

Array = npt.NDArray[Any]
Predictions = list[list[Array]]  # [way][partition], (n, k) or (n,)


class Remedy(NamedTuple):
    """One way to fit: a rung of the ladder, or a setting of one."""

    name: str
    estimator: Any  # not fitted
    settings: dict[str, Any]  # of the estimator
    weights: list[Array]  # of all rows, for each way
    balance: bool  # whether classes get equal totals in every training part


@dataclass
class FoldedRows:
    """The rows, the folds, and how fits are run.

    Attributes:
        X: the rows, of any kind that the estimator takes.
        labels: as given, (n,).
        y: class numbers, or the target as floats, (n,).
        classes: the labels of the class numbers; None for a regression.
        base: weights of the rows, (n,).
        ways: for each way, the partitions that make weights and those that score.
        n_jobs: processes.
        tell: called after each fit with the name of its remedy.
        fits: the number of fits so far, by the name of the remedy.
    """

    X: Any
    labels: Array
    y: Array
    classes: Array | None
    base: Array
    ways: list[tuple[list[list[Split]], list[list[Split]]]]
    n_jobs: int | None = None
    tell: Callable[[str], None] = lambda what: None
    fits: Counter[str] = field(default_factory=Counter)

    def predict(self, remedies: Sequence[Remedy], times: int | None = None) -> list[Predictions]:
        """Predictions in the partitions that score; at most `times` of each way."""
        plans = [
            [
                [self._plan(remedy, folds, way) for folds in scoring[:times]]
                for way, (_, scoring) in enumerate(self.ways)
            ]
            for remedy in remedies
        ]
        flat = [plan for one in plans for way in one for plan in way]
        done = iter(self._run(flat))
        return [[[next(done) for _ in way] for way in one] for one in plans]

    def predict_first(self, remedy: Remedy) -> Predictions:
        """Predictions in the partitions that make weights."""
        plans = [
            [self._plan(remedy, folds, way) for folds in making]
            for way, (making, _) in enumerate(self.ways)
        ]
        if self.ways[0][0] is self.ways[0][1]:  # one partition makes weights and scores
            plans = plans[:1]
        done = iter(self._run([plan for way in plans for plan in way]))
        return [[next(done) for _ in way] for way in plans]

    def _plan(self, remedy: Remedy, folds: list[Split], way: int) -> FoldPlan:
        """A remedy in one partition, with the weights of its way."""
        model = clone(remedy.estimator).set_params(**remedy.settings)
        weights, y, n = remedy.weights[way], self.y, len(self.y)

        def in_balance(rows: Array) -> Array:
            return balanced(weights[rows], y[rows], FEW * len(rows) / n)

        def as_they_are(rows: Array) -> Array:
            part: Array = weights[rows]
            return part

        return FoldPlan(model, folds, in_balance if remedy.balance else as_they_are, remedy.name)

    def _run(self, plans: list[FoldPlan]) -> list[Array]:
        """Predictions of all plans, and their fits counted."""
        for plan in plans:
            self.fits[plan.what] += len(plan.splits)
        return predict_out_of_fold(plans, self.X, self.labels, self.classes, self.n_jobs, self.tell)

    def scores(self, predictions: Predictions) -> RowScores:
        """The scores of a model, averaged over the partitions of each way.

        `each` is averaged over the ways too; `surely` keeps them apart, because each way has hard
        rows of its own.
        """
        y = self.y
        if self.classes is None:
            errors = [np.mean([-np.abs(one - y) for one in way], axis=0) for way in predictions]
            each = np.nan_to_num(np.mean(errors, axis=0))
            return RowScores(each, np.nan_to_num(np.array(errors)))
        right = [np.mean([_right(one, y) for one in way], axis=0) for way in predictions]
        surely = [np.mean([surely_right(one, y) for one in way], axis=0) for way in predictions]
        of_label = np.array([one[np.arange(len(y)), y] for way in predictions for one in way])
        losses = -np.log(np.maximum(of_label, TINY)).mean(0)
        tested = ~np.isnan(losses) & (self.base > 0)
        log_loss = (
            float(np.average(losses[tested], weights=self.base[tested]))
            if tested.any()
            else math.nan
        )
        return RowScores(
            np.nan_to_num(np.mean(right, axis=0)),
            np.nan_to_num(np.array(surely)),
            log_loss,
            np.nan_to_num(losses),
        )

    def with_temperature(self, predictions: Predictions) -> Predictions:
        """The same predictions after the free move for log losses: the temperature that the other folds choose."""

        def choose(proba: Array, rows: Array, way: int) -> dict[str, Any]:
            return {"temperature": best_temperature(proba[rows], self.y[rows], _mean)}

        return self._moved(predictions, choose)

    def with_thresholds(
        self, predictions: Predictions, criterion: Criterion, least_accuracy: float = 0.0
    ) -> Predictions:
        """The same predictions after the free move: offsets that the other folds choose for the criterion.

        Their accuracy over all rows stays at `least_accuracy` or above: two models are compared at
        one price. Without it, one answer for everybody is as good as any on the hard rows, where
        all models guess.
        """
        parts = [criterion.parts(way) for way in range(len(self.ways))]

        def choose(proba: Array, rows: Array, way: int) -> dict[str, Any]:
            own = parts[way][:, rows]
            own = own[own.sum(1) > 0]
            if not len(own):
                return {}
            return {"offsets": best_offsets(proba[rows], self.y[rows], own, least_accuracy)}

        return self._moved(predictions, choose)

    def _moved(
        self, predictions: Predictions, choose: Callable[[Array, Array, int], dict[str, Any]]
    ) -> Predictions:
        """Each fold moved as `choose` says of the tested rows of the other folds, and their way."""

        def move(proba: Array, folds: list[Split], way: int) -> Array:
            tested = ~np.isnan(proba[:, 0])

            def for_fold(seen: Array) -> dict[str, Any]:
                rows = seen[tested[seen]]
                return choose(proba, rows, way) if len(rows) else {}

            found = chosen_out_of_fold(np.where(tested[:, None], proba, 1.0), folds, for_fold)
            found[~tested] = np.nan
            return found

        return [
            [move(proba, folds, way) for folds, proba in zip(scoring, own, strict=False)]
            for way, ((_, scoring), own) in enumerate(zip(self.ways, predictions, strict=True))
        ]


def _mean(losses: Array) -> float:
    """The plain mean, as a criterion."""
    return float(losses.mean())


def _right(proba: Array, y: Array) -> Array:
    """1 if the likeliest class is the label, else 0, (n,); NaN for samples in no test fold."""
    right: Array = (proba.argmax(1) == y).astype(float)
    right[np.isnan(proba[:, 0])] = np.nan
    return right
