"""What a gain is measured by: the hard rows, if nobody has confirmed a group, else the worst cell.

Both are weighted accuracies of out-of-fold predictions (for regressors, minus absolute errors).
`HardRows` has one vector of weights for each way of the folds. `WorstCell` has one for each cell,
a class times a group, and the worst cell counts. A criterion gives a model's score, the gain of
one model over another with its standard error, and the weights by which the free moves of the
plain model are chosen.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Criterion", "HardRows", "RowScores", "WorstCell", "paired", "surely_right"]

Array = npt.NDArray[Any]
UNSURE = 0.2  # of a model's median log odds: below, a sample counts as partly right
ENOUGH = 5  # rows of a cell that is scored; the standard error of fewer says nothing


class RowScores(NamedTuple):
    """Out-of-fold scores of one model for each row; 0 for rows in no test fold."""

    each: Array  # (n,), 1 if right, else 0, averaged over partitions; regressors: -|error|
    surely: Array  # (ways, n), how surely right, 0 to 1 (`surely_right`); regressors: as `each`
    log_loss: float = math.nan  # mean over the rows, by their weights
    losses: Array | None = None  # (n,), log losses


class HardRows(NamedTuple):
    """Accuracy under the weights of a second look: where the reference is no better than a guess."""

    looked: Array  # (ways, n), made in other folds than those that score
    y: Array  # (n,), class numbers; zeros for a regression

    def score(self, scores: RowScores) -> float:
        """The mean under the weights of each way, averaged over the ways."""
        return float(np.mean(np.sum(self.looked * scores.surely, 1) / self.looked.sum(1)))

    def gain(self, after: RowScores, before: RowScores) -> tuple[float, float]:
        """The difference and its standard error, averaged over the ways: they share all rows."""
        ways = zip(after.surely, before.surely, self.looked, strict=True)
        gain, error = np.mean([paired(*way) for way in ways], axis=0).tolist()
        return gain, error

    def parts(self, way: int) -> Array:
        """The weights that choose thresholds, (classes, n): the hard rows of the worst class count.

        On the mean over classes a threshold can always gain: where all models guess, it gives one
        class all of its hard rows, and takes less than that from the others.
        """
        parts: Array = np.array([self.looked[way] * (self.y == k) for k in np.unique(self.y)])
        present: Array = parts[parts.sum(1) > 0]
        return present


class WorstCell(NamedTuple):
    """Accuracy of the worst cell, a class times a confirmed group, of those with enough rows."""

    weights: Array  # (cells, n), the rows' own weights in a cell, zero elsewhere
    names: tuple[str, ...]  # of the cells

    @classmethod
    def of(cls, groups: Array, names: list[str], base: Array, enough: int = ENOUGH) -> WorstCell:
        """`groups` are numbers of cells, (n,), -1 where unknown; those with `enough` rows count, or the largest."""
        counts = np.bincount(groups[(groups >= 0) & (base > 0)], minlength=len(names))
        scored = [k for k in range(len(names)) if counts[k] >= min(enough, counts.max())]
        weights = np.array([np.where(groups == k, base, 0.0) for k in scored])
        return cls(weights, tuple(names[k] for k in scored))

    @staticmethod
    def of_rows(right: Array) -> RowScores:
        """RowScores of a model when only whether each row is right is known."""
        return RowScores(right, right[None])

    def cells(self, scores: RowScores) -> Array:
        """The accuracy of each cell."""
        means: Array = self.weights @ scores.each / self.weights.sum(1)
        return means

    def score(self, scores: RowScores) -> float:
        """The accuracy of the worst cell."""
        return float(self.cells(scores).min())

    def gain(self, after: RowScores, before: RowScores) -> tuple[float, float]:
        """From worst cell to worst cell. Paired where they are the same, else of independent cells."""
        first, then = (int(self.cells(one).argmin()) for one in (before, after))
        if first == then:
            return paired(after.each, before.each, self.weights[first])
        gain = self.score(after) - self.score(before)
        errors = [
            paired(one.each, np.full_like(one.each, self.score(one)), self.weights[cell])[1]
            for one, cell in ((before, first), (after, then))
        ]
        return gain, math.hypot(*errors)

    def parts(self, way: int) -> Array:
        """The weights that choose thresholds, (cells, n): those of the cells."""
        return self.weights


Criterion = HardRows | WorstCell


def surely_right(proba: Array, y: Array) -> Array:
    """How surely a model is right about each sample, clip(1/2 + m/(2 UNSURE median |m|), 0, 1); NaN where p is.

    m is the log odds of the label against the most likely other class. If a model has hardly a
    preference, being right is a coin toss, and the noise of many tosses would hide the gain.
    Dividing by the median makes models with different penalties comparable.
    """
    p = np.clip(proba, 1e-12, 1.0)
    rows = np.arange(len(y))
    others = p.copy()
    others[rows, y] = 0.0
    odds: Array = np.log(p[rows, y]) - np.log(others.max(1).clip(1e-12))
    unit = UNSURE * float(np.nanmedian(np.abs(odds)))
    surely: Array = (
        np.clip(0.5 + odds / (2 * unit), 0.0, 1.0) if unit > 0 else (1 + np.sign(odds)) / 2
    )
    return surely


def paired(after: Array, before: Array, weights: Array) -> tuple[float, float]:
    """The weighted mean of the differences of two models' scores, (n,), and its standard error."""
    w = weights / weights.sum()
    difference = after - before
    mean = float(w @ difference)
    return mean, math.sqrt(float((w * w) @ (difference - mean) ** 2))
