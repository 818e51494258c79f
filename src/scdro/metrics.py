"""Accuracy by class and by group, any metric by group with bootstrap intervals, and worst-case
accuracy.

`worst_group_accuracy` and `robust_accuracy` are functions (y_true, y_pred, ...) for scikit-learn's
`make_scorer`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from sklearn.utils.validation import check_consistent_length, column_or_1d

from scdro._frames import as_array, backend_of, columns_of, frame_of, is_missing, name_of
from scdro._group_metrics import metrics_by_group
from scdro._validation import array_weights, check_no_missing, check_rho
from scdro.errors import DataError

__all__ = [
    "GroupRow",
    "group_table",
    "robust_accuracy",
    "worst_group_accuracy",
]


Array = npt.NDArray[Any]


class GroupRow(NamedTuple):
    """A group's name, number of samples, share of the total weight, and accuracy.

    Example:
        >>> worst = group_table([0, 0, 1, 1], [0, 0, 1, 0], ["a", "a", "b", "b"])[0]
        >>> worst
        GroupRow(group='b', size=2, share=0.5, accuracy=0.5)
    """

    group: Any  # its label, or a tuple of labels, one for each column of groups
    size: int  # number of samples
    share: float  # of the total weight
    accuracy: float  # weighted


@overload
def group_table(
    y_true: Any, y_pred: Any, groups: Any, sample_weight: Any = ...
) -> list[GroupRow]: ...
@overload
def group_table(
    y_true: Any,
    y_pred: Any,
    groups: Any,
    sample_weight: Any = ...,
    *,
    metrics: Any,
    bootstrap: int = ...,
    level: float = ...,
    random_state: Any = ...,
) -> Any: ...
def group_table(
    y_true: Any,
    y_pred: Any,
    groups: Any,
    sample_weight: Any = None,
    *,
    metrics: Any = None,
    bootstrap: int = 200,
    level: float = 0.95,
    random_state: Any = 0,
) -> Any:
    """Accuracy of every group, worst first; with `metrics` a DataFrame of any metrics, with
    intervals.

    Groups whose samples all weigh zero are left out.

    Args:
        y_true, y_pred: labels, (n,). With `metrics`, y_pred may also be probabilities, of the
            second label, (n,), or of all of them, (n, labels); or numbers, for metrics of
            regression.
        groups: the group of each sample: labels, (n,), or several columns, (n, m) or a table of
            pandas, polars or Arrow, for their combinations. Samples whose label is missing (None,
            NaN) are a group of their own, None.
        sample_weight: at least 0, (n,).
        metrics: one or several of "accuracy", "roc_auc", "log_loss", "brier", "calibration_error",
            names of functions in sklearn.metrics such as "f1_score", and functions (y_true, y_pred,
            sample_weight); or a dict of them by name. NaN where a group has no value, such as AUC
            with one class. The first one orders the rows.
        bootstrap: number of bootstrap samples of each group; 0 for no intervals. For groups of more
            than 20,000 rows each has 20,000, and the interval is narrowed to match.
        level: confidence level of the intervals. Those of small groups are too narrow: look at
            `size`.
        random_state: seed of the bootstrap.

    Returns:
        A list of `GroupRow`; with `metrics` a table with the columns of `groups` (or one called
        "group"), size, share, and for each metric its value, `_low` and `_high`. It has the type of
        `groups`, or pandas if that is no table.

    Example:
        >>> for row in group_table([0, 1, 1, 0], [0, 1, 0, 0], ["a", "a", "b", "b"]):
        ...     print(row)
        GroupRow(group='b', size=2, share=0.5, accuracy=0.5)
        GroupRow(group='a', size=2, share=0.5, accuracy=1.0)
        >>> p = [0.2, 0.9, 0.4, 0.3]
        >>> group_table([0, 1, 1, 0], p, ["a", "a", "b", "b"], metrics=["log_loss", "roc_auc"], bootstrap=0).round(3)
          group  size  share  log_loss  roc_auc
        0     b     2    0.5     0.636      1.0
        1     a     2    0.5     0.164      1.0
    """
    known = _read_groups(groups)
    # Any metrics: a table.
    if metrics is not None:
        labels = column_or_1d(as_array(y_true))
        weight = array_weights(sample_weight, len(labels))
        found = metrics_by_group(
            labels, y_pred, known.member, weight, metrics, bootstrap, level, random_state
        )
        rows = [known.names[g] for g in found.pop("group")]
        taken = sorted(set(known.titles) & set(found))
        if taken:
            raise DataError(
                f"expected columns of groups with other names than those of the result, got {taken}"
            )
        titles = {title: [name[k] for name in rows] for k, title in enumerate(known.titles)}
        return frame_of(titles | found, backend_of(groups, y_pred, y_true))
    # Accuracy: a list.
    right, weight = _compare_labels(y_true, y_pred, sample_weight)
    check_consistent_length(right, known.member)
    table = []
    for g in range(len(known.names)):
        own = weight[known.member == g]
        if own.sum() > 0:
            accuracy = float((own * right[known.member == g]).sum() / own.sum())
            table.append(
                GroupRow(known.name(g), len(own), float(own.sum() / weight.sum()), accuracy)
            )
    return sorted(table, key=lambda row: row.accuracy)


def worst_group_accuracy(y_true: Any, y_pred: Any, groups: Any, sample_weight: Any = None) -> float:
    """The lowest accuracy of any group. Arguments as for `group_table`.

    To choose by it, let scikit-learn route the groups to it: the model never sees them.

    Example:
        >>> worst_group_accuracy([0, 1, 1, 0], [0, 1, 0, 0], ["a", "a", "b", "b"])
        0.5
        >>> import sklearn
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.metrics import make_scorer
        >>> from sklearn.model_selection import GridSearchCV
        >>> from scdro.linear_model import KLDROClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> with sklearn.config_context(enable_metadata_routing=True):
        ...     scorer = make_scorer(worst_group_accuracy).set_score_request(groups=True)
        ...     search = GridSearchCV(KLDROClassifier(), {"rho": [0.0, 0.1]}, scoring=scorer)
        ...     search = search.fit(X, y, groups=X[:, 0] > 5.8)
    """
    return group_table(y_true, y_pred, groups, sample_weight)[0].accuracy


def robust_accuracy(y_true: Any, y_pred: Any, rho: float, sample_weight: Any = None) -> float:
    r"""The lowest accuracy over all reweightings of the samples within KL distance rho; rho = 0 is
    plain accuracy.

    With an error rate e it is 1 - e', where e' >= e is the largest number with

        e' log(e'/e) + (1 - e') log((1 - e')/(1 - e)) <= rho

    It is a function of accuracy, so it ranks models as accuracy does, but shows how bad a shift can
    make them. Every group with at least a share exp(-rho) of the data has at least this accuracy.
    As a scorer: `make_scorer(robust_accuracy, rho=0.1)`.

    Example:
        >>> round(robust_accuracy([0, 1, 1, 0, 1], [0, 1, 1, 0, 0], rho=0.1), 4)
        0.6048
    """
    check_rho(rho)
    right, weight = _compare_labels(y_true, y_pred, sample_weight)
    # Sums of the same terms, so that all right is exactly one. With a small rate of errors, 1 -
    # accuracy loses digits.
    accuracy, error = (float((weight * part).sum() / weight.sum()) for part in (right, 1.0 - right))
    if rho == 0.0 or accuracy == 0.0 or error == 0.0:
        return accuracy
    if rho >= -math.log(error):
        return 0.0

    def excess(e: float) -> float:
        """KL(e, error) - rho, which rises in e."""
        return (
            e * math.log(e / error)
            + ((1 - e) * math.log((1 - e) / accuracy) if e < 1 else 0.0)
            - rho
        )

    return 1.0 - float(brentq(excess, error, 1.0, xtol=1e-14))


def _compare_labels(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Array, Array]:
    """Whether each prediction is correct, (n,) of 0.0 and 1.0, and the weights, (n,)."""
    y_true, y_pred = column_or_1d(y_true), column_or_1d(y_pred)
    check_consistent_length(y_true, y_pred)
    texts = []
    for name, y in (("y_true", y_true), ("y_pred", y_pred)):
        check_no_missing(y, name)
        texts.append(
            y.dtype.kind in "US"
            or (y.dtype.kind == "O" and all(isinstance(label, str) for label in y))
        )
    if texts[0] != texts[1]:
        raise DataError(
            "expected labels of one type in y_true and y_pred, got strings and other types, which"
            f" never match: {y_true.dtype}, {y_pred.dtype}"
        )
    return (y_true == y_pred).astype(np.float64), array_weights(sample_weight, len(y_true))


class _Groups(NamedTuple):
    """The groups of the samples, numbered."""

    member: Array  # the number of each sample's group, (n,)
    names: list[tuple[Any, ...]]  # by number: one label for each column of groups
    titles: list[str]  # of the columns
    single: bool  # one column, so that a group is called by its label

    def name(self, g: int) -> Any:
        return self.names[g][0] if self.single else self.names[g]


def _read_groups(groups: Any) -> _Groups:
    """Groups of any kind: one label per sample, or several columns, whose combinations are the
    groups.
    """
    table = columns_of(groups)
    if table is None:
        columns = as_array(groups)
        if columns.dtype.kind in "US" and not hasattr(groups, "dtype"):
            # A list of numbers and strings stays one: NumPy would make strings of the numbers.
            columns = np.asarray(groups, dtype=object)
        if columns.ndim == 1:
            names, member = _number_labels(columns)
            return _Groups(member, [(name,) for name in names], [name_of(groups) or "group"], True)
        if columns.ndim != 2:
            raise DataError(
                "expected groups as one label per sample, or several columns, got shape"
                f" {columns.shape}"
            )
        table = {f"group {k}": column for k, column in enumerate(columns.T)}
    parts = [_number_labels(column) for column in table.values()]
    codes, member = np.unique(np.stack([code for _, code in parts], 1), axis=0, return_inverse=True)
    combinations = [
        tuple(names[j] for (names, _), j in zip(parts, row, strict=True)) for row in codes
    ]
    return _Groups(member.ravel(), combinations, list(table), False)


def _number_labels(column: Array) -> tuple[list[Any], Array]:
    """The distinct labels, and the number of each sample's label, (n,).

    Objects, which may not be comparable, are in order of appearance.
    """
    if column.dtype.kind != "O":
        names, member = np.unique(column, return_inverse=True)
        return [None if is_missing(name) else name for name in names.tolist()], member
    numbers_of: dict[Any, int] = {}
    labels = (None if is_missing(label) else label for label in column.tolist())
    member = np.array([numbers_of.setdefault(label, len(numbers_of)) for label in labels])
    return list(numbers_of), member
