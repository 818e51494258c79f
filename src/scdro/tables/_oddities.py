"""What looks wrong with a table before anything is trained on it, in words.

Each check is cheap, looks at a sample of the rows at most, and only tells: whether a column gives
the target away, or rows are copies of each other, is for a person to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from scdro.tables._columns import Columns
from scdro.tables._read import listed

__all__ = ["find_copies", "find_leaks", "worse_than_constant"]

Array = npt.NDArray[Any]
ROWS = 2000  # that each column is tried on
COLUMNS = 2000  # the first ones that are tried
GIVEN_AWAY = 0.97  # share of a constant's error that one column alone removes
LEAVES = 256
SEVERAL = 0.01  # share of rows that are copies from which on they are told


def find_leaks(
    frame: pl.DataFrame, names: Sequence[str], categorical: Sequence[str], y: Array, classes: int
) -> list[str]:
    """A note on columns that predict the target nearly alone.

    A small tree of one column is fitted on half of at most ROWS rows and judged on the other half:
    by the share of a constant's errors, or of the variance of the target's ranks, that it removes.

    Args:
        frame: the table.
        names: columns to try.
        categorical: those that are categories.
        y: class numbers, or the target itself, (rows,).
        classes: how many; 0 for regression.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(y))[:ROWS])
    frame, y = frame[rows], y[rows]
    if not classes:  # of ranks a tree sees every monotone function of the target
        y = np.argsort(np.argsort(y)).astype(float)
    columns = Columns.fit(frame, names[:COLUMNS], categorical)
    X = np.nan_to_num(columns.encode(frame), nan=-1e30, posinf=1e30, neginf=-1e30)
    order = rng.permutation(len(y))
    fitted, judged = order[::2], order[1::2]
    told = [
        (share, name)
        for name, column in zip(columns.names, X.T, strict=True)
        if (share := _explain_alone(column[:, None], y, fitted, judged, classes)) > GIVEN_AWAY
    ]
    if not told:
        return []
    told.sort(reverse=True)
    who = [name for _, name in told]
    what = "tells" if len(who) == 1 else "each tell"
    drop = " ".join(f"--drop {name}" for name in who[:3])
    return [
        f"Column{'s' * (len(who) > 1)} {listed(who)} {what} the target nearly alone: is that known"
        f" before the target is? If not, leave it out ({drop})."
    ]


def _explain_alone(column: Array, y: Array, fitted: Array, judged: Array, classes: int) -> float:
    """The share of a constant's errors, or of the variance, that a tree of one column removes."""
    kind = DecisionTreeClassifier if classes else DecisionTreeRegressor
    tree = kind(max_leaf_nodes=LEAVES, random_state=0)
    # trees compare in single precision: the order of the values is all that they need
    ranks = np.unique(column, return_inverse=True)[1].reshape(-1, 1)
    predicted = tree.fit(ranks[fitted], y[fitted]).predict(ranks[judged])
    if classes:
        constant = np.bincount(y[fitted]).argmax()
        most = float((y[judged] != constant).mean())
        left = float((y[judged] != predicted).mean())
    else:
        most = float(((y[judged] - y[fitted].mean()) ** 2).mean())
        left = float(((y[judged] - predicted) ** 2).mean())
    return 1.0 - left / most if most > 0 else 0.0


def find_copies(
    frame: pl.DataFrame, names: Sequence[str], target: str, test: Array | None
) -> list[str]:
    """A note on rows that occur more than once, target included, where chance does not explain it.

    In a table of a few categories rows are alike by chance: the note needs columns that, if they
    were independent, would make fewer than one row in a hundred like any other one.
    """
    own = [name for name in (*names, target) if frame[name].dtype != pl.Object]
    part = frame.select(own)
    copied = part.is_duplicated()
    share = float(copied.mean() or 0.0)
    if share < SEVERAL or int(copied.sum()) < 10 or _expect_copies(part.unique()) > 0.01:
        return []
    what = f"{int(copied.sum()):,} of {frame.height:,} rows occur more than once, with the target"
    if test is not None:
        is_test = np.zeros(frame.height, bool)
        is_test[test] = True
        both = part.with_columns(pl.Series("\0test", is_test))
        distinct = both.unique().select(own)
        shared = int(distinct.is_duplicated().sum()) // 2
        if not shared:
            return []
        what += f"; {shared:,} different ones are among the training and the test rows"
    return [
        f"{what}: models are tested on rows that they were trained on, and look too good. Remove"
        " the copies, or keep them together (--split-by COLUMN)."
    ]


def _expect_copies(frame: pl.DataFrame) -> float:
    """Expected number of other rows that a row is like, if the columns were independent."""
    expected = float(frame.height)
    for column in frame.get_columns():
        shares = column.value_counts()["count"].to_numpy() / frame.height
        expected *= float((shares**2).sum())
        if expected < 1e-6:
            break
    return expected


def worse_than_constant(
    train: Array, test: Array, predicted: Array, task: str, split: str
) -> list[str]:
    """A note if the plain model is no better on the test rows than one answer for everybody.

    Args:
        train, test: the target of the training and the test rows: class numbers, or numbers.
        predicted: the model's predictions for the test rows, of the same kind.
        task: "classification" or "regression".
        split: how the test rows were chosen.
    """
    if task == "classification":
        constant = np.bincount(train).argmax()
        model, simple = float((predicted == test).mean()), float((constant == test).mean())
        worse = model < simple
        text = f"{100 * model:.1f}% right, {100 * simple:.1f}% by the most frequent class"
    else:
        errors = [float(np.abs(test - other).mean()) for other in (predicted, np.median(train))]
        squares = [float(((test - other) ** 2).mean()) for other in (predicted, train.mean())]
        worse = squares[0] > squares[1]
        text = f"a mean error of {errors[0]:.4g}, {errors[1]:.4g} by the median"
    if not worse:
        return []
    later = ": what held before does not hold later" if split == "after" else ""
    return [
        f"On the test rows the plain model is worse than one answer for everybody ({text} of the"
        f" training rows){later}. Do not use it there."
    ]
