"""Whether the hard rows lie apart from the rest of their class: a group, or the edge between classes, or wrong labels.

A reference's out-of-fold log odds of the label, f = log p/(1 - p), are a picture of each class. The
hard rows, those with the weights of a second look, are low in it, in three ways:

    classes that overlap   a bell curve: the hard rows are its end, and as many lie as far above
    a hidden group         a few rows beside the bell, below it, about which the reference doubts
    wrong labels           rows as surely wrong as the others are surely right

Three numbers tell them apart:

    share    effective size of the weights over that without them: a hidden group is small
    skew     E[(f - m)^3]/s^3, mean over classes: negative, if something is beside the bell. A tail
             that two classes share has opposite signs in them, and cancels out
    doubt    sum w_i f_i / median(f): near 0 or below, if the hard rows are surely wrong

Classes of fewer than SMALL rows are left out, as rows and as answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.fix._weights import SMALL, effective_size

__all__ = ["Apart", "set_apart"]

Array = npt.NDArray[Any]
TINY = 1e-6  # a probability counts as at least this, and at most one less this

# Each without which a control says "helps" where nobody is overlooked
# (results/second_look_controls).
LARGEST_SHARE = 0.25  # largest share
LARGEST_SKEW = -0.3  # largest skew
LEAST_DOUBT = 0.15  # smallest doubt


class Apart(NamedTuple):
    """How the hard rows lie in their classes."""

    share: float  # effective size of the hard rows, as a share
    skew: float  # of the log odds, mean over classes
    doubt: float  # log odds of the hard rows, divided by the median of all

    @property
    def seen(self) -> bool:
        """Whether they look like a group."""
        return (
            self.share <= LARGEST_SHARE and self.skew <= LARGEST_SKEW and self.doubt >= LEAST_DOUBT
        )


def set_apart(predictions: list[Array], y: Array, weights: Array, even: Array) -> Apart:
    """How the hard rows lie in their classes.

    Args:
        predictions: the reference's probabilities, out of fold, (n, k), one for each partition.
        y: class numbers, (n,).
        weights: of the second look, (n,).
        even: the given weights, (n,), with equal totals of the classes; 0 for rows in no test fold.
    """
    counts = np.bincount(y[even > 0], minlength=predictions[0].shape[1])
    large = np.flatnonzero(counts >= SMALL)
    rows = np.flatnonzero(
        (counts[y] >= SMALL) & (even > 0) & ~np.isnan(np.sum(predictions, axis=0)[:, 0])
    )
    if len(rows) == 0 or weights[rows].sum() == 0:
        return Apart(1.0, 0.0, 0.0)
    member = y[rows]
    odds = np.mean([_log_odds(one[rows], member, large) for one in predictions], axis=0)
    middle = float(np.median(odds))
    return Apart(
        effective_size(weights[rows]) / effective_size(even[rows]),
        float(np.mean([_skew(odds[member == k]) for k in large if (member == k).any()])),
        float(np.average(odds, weights=weights[rows])) / middle if middle > 0 else 0.0,
    )


def _log_odds(proba: Array, y: Array, classes: Array) -> Array:
    """The log odds of the label, (rows,), against the other ones of these classes."""
    of_label = proba[np.arange(len(y)), y] / np.maximum(proba[:, classes].sum(1), TINY)
    p = np.clip(of_label, TINY, 1 - TINY)
    odds: Array = np.log(p) - np.log1p(-p)
    return odds


def _skew(values: Array) -> float:
    """E[(f - m)^3]/s^3; 0 if all values are the same."""
    centred = values - values.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    return float(np.mean(centred**3)) / spread**3 if spread > 0 else 0.0
