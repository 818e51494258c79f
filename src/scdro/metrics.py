"""Accuracy by class and by group, any metric by group with bootstrap intervals, and worst-case accuracy.

`worst_group_accuracy` and `robust_accuracy` are functions (y_true, y_pred, ...) for scikit-learn's `make_scorer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor

from scdro._frames import as_array, backend_of, columns_of, frame_of, is_missing, name_of
from scdro._group_metrics import metrics_by_group
from scdro._validation import array_weights, as_labels, check_no_missing, check_rho, check_whole
from scdro.errors import DataError
from scdro.functional import worst_case

__all__ = [
    "GroupRow",
    "Scores",
    "group_table",
    "halves",
    "per_class_accuracy",
    "robust_accuracy",
    "score",
    "shots",
    "top_k_accuracy",
    "worst_group_accuracy",
]


@dataclass(frozen=True)
class Scores:
    """The scores of a classifier. Accuracies are in [0, 1], and NaN if there is nothing to average.

    Attributes:
        top1: share of samples whose class has the largest score.
        top5: share of samples whose class is among the five largest scores.
        loss: mean cross-entropy.
        robust_loss: worst-case cross-entropy within KL distance rho.
        kl: KL of this worst case.
        per_class: accuracy on the samples of each class.
        minority: mean accuracy over the half of the classes with fewer training samples.
        majority: mean accuracy over the other half.
        many: mean accuracy over classes with more than 100 training samples.
        medium: the same for 20 to 100 training samples.
        few: the same for fewer than 20.
        balanced: mean accuracy over classes.
        per_group: accuracy on the samples of each group; empty without groups.
        worst_group: the lowest of these.
        rare_groups: mean accuracy over groups with fewer than half as many training samples as the median group.

    Example:
        >>> found = score([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1], train_counts=[100, 10])
        >>> round(found.top1, 3), found.per_class, found.minority
        (0.667, [1.0, 0.5], 0.5)
    """

    top1: float
    top5: float
    loss: float
    robust_loss: float
    kl: float
    per_class: list[float]
    minority: float
    majority: float
    many: float
    medium: float
    few: float
    balanced: float = math.nan
    per_group: tuple[float, ...] = ()
    worst_group: float = math.nan
    rare_groups: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Plain types for JSON, with None for NaN, and without the group scores if there are no groups."""
        found = {key: _plain(value) for key, value in asdict(self).items()}
        return found if self.per_group else {k: v for k, v in found.items() if "group" not in k}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Scores:
        """The inverse of `as_dict`."""
        read: dict[str, Any] = {field.name: _read(plain[field.name]) for field in fields(cls) if field.name in plain}
        return cls(**read | {"per_group": tuple(read.get("per_group", ()))})


def score(
    logits: Any,
    labels: Any,
    train_counts: Any,
    *,
    groups: Any = None,
    group_counts: Any = None,
    rho: float = 0.5,
    lam0: float = 1e-3,
) -> Scores:
    """Compute all scores of a classifier on a data set, from tensors, arrays or lists.

    Args:
        logits: (n, classes).
        labels: (n,).
        train_counts: number of training samples of each class; these determine the minority.
        groups: the group of each sample, (n,), if the data have groups.
        group_counts: number of training samples of each group, together with `groups`.
        rho, lam0: parameters of the robust loss.

    Example:
        >>> found = score(torch.eye(4), torch.arange(4), torch.tensor([500, 500, 10, 50]))
        >>> found.top1, found.many, found.few
        (1.0, 1.0, 1.0)
    """
    if (groups is None) != (group_counts is None):
        raise DataError("expected groups together with group_counts, the training samples per group, got only one")
    logits, labels = _samples(logits, labels)
    train_counts = as_labels(train_counts, logits.shape[1], what="counts of training samples, one per class")
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    worst = worst_case(losses, rho, lam0)
    right = logits.argmax(1) == labels
    per_class = _shares(right, labels, logits.shape[1])
    return Scores(
        top_k_accuracy(logits, labels, 1),
        top_k_accuracy(logits, labels, min(5, logits.shape[1])),
        float(losses.mean()),
        float(worst.value),
        float(worst.kl),
        per_class.tolist(),
        *halves(per_class, train_counts),
        *shots(per_class, train_counts),
        _mean(per_class),
        *(() if groups is None else _by_group(right, groups, group_counts)),
    )


def top_k_accuracy(logits: Any, labels: Any, k: int) -> float:
    """The share of samples whose label is among the k largest scores.

    Example:
        >>> top_k_accuracy(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2]), k=2)
        0.5
    """
    logits, labels = _samples(logits, labels)
    check_whole("k", k, 1, logits.shape[1], f"since there are {logits.shape[1]} classes")
    return float((logits.topk(k, 1).indices == labels[:, None]).any(1).double().mean())


def per_class_accuracy(predicted: Any, labels: Any, classes: int) -> Tensor:
    """Accuracy on the samples of each class, NaN for classes without samples.

    Example:
        >>> per_class_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
        tensor([0.5000, 1.0000,    nan], dtype=torch.float64)
    """
    check_whole("classes", classes)
    labels = as_labels(labels, classes=classes)
    return _shares(as_labels(predicted, len(labels), what="predictions") == labels, labels, classes)


def halves(per_class: Any, train_counts: Any) -> tuple[float, float]:
    """Mean accuracy over the half of the classes with the fewest training samples, and over the others.

    Both are NaN if all classes have the same number.

    Example:
        >>> halves(torch.tensor([1.0, 0.5, 0.5, 0.0]), torch.tensor([500, 400, 30, 20]))
        (0.25, 0.75)
    """
    per_class, train_counts = _classes(per_class, train_counts)
    if int(train_counts.min()) == int(train_counts.max()):
        return math.nan, math.nan
    order = torch.argsort(train_counts, stable=True)
    middle = len(order) // 2
    return _mean(per_class[order[:middle]]), _mean(per_class[order[middle:]])


def shots(per_class: Any, train_counts: Any) -> tuple[float, float, float]:
    """Mean accuracy over classes with many (> 100), a medium number (20 to 100) and few (< 20) training samples.

    Example:
        >>> shots(torch.tensor([0.75, 0.5, 0.25]), torch.tensor([500, 50, 5]))
        (0.75, 0.5, 0.25)
    """
    per_class, train_counts = _classes(per_class, train_counts)
    many, few = train_counts > 100, train_counts < 20
    return _mean(per_class[many]), _mean(per_class[~many & ~few]), _mean(per_class[few])


def _by_group(right: Tensor, groups: Any, group_counts: Any) -> tuple[tuple[float, ...], float, float]:
    """Accuracy of each group, the lowest of these, and the mean over the rare groups."""
    counts = as_labels(group_counts, what="counts of training samples, one per group")
    accuracy = _shares(right, as_labels(groups, len(right), len(counts), "groups"), len(counts))
    known = counts[counts > 0]
    rare = counts < (known.double().median() / 2 if len(known) else 0.0)
    return tuple(accuracy.tolist()), float(accuracy[~accuracy.isnan()].min()), _mean(accuracy[rare])


def _shares(right: Tensor, kinds: Tensor, number: int) -> Tensor:
    """The share of correct predictions for each class or group, NaN if it has no samples."""
    return torch.bincount(kinds, right.double(), minlength=number) / torch.bincount(kinds, minlength=number)


def _samples(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Check scores and labels and return them on the CPU."""
    try:
        scores = logits.detach().cpu() if isinstance(logits, Tensor) else torch.from_numpy(np.array(logits))
    except (TypeError, ValueError) as error:
        raise DataError(f"expected scores (n, classes) as a tensor or an array, got {type(logits).__name__}") from error
    if scores.ndim != 2 or not scores.is_floating_point() or 0 in scores.shape:
        raise DataError(f"expected scores (n, classes) of floats, got {scores.dtype} of shape {tuple(scores.shape)}")
    return scores, as_labels(labels, *scores.shape)


def _classes(per_class: Any, train_counts: Any) -> tuple[Tensor, Tensor]:
    """Check the accuracies and training samples of the classes and return them on the CPU."""
    counts = as_labels(train_counts, what="counts of training samples, one per class")
    try:
        given = per_class.detach().cpu() if isinstance(per_class, Tensor) else np.array(per_class, float)
        accuracy = torch.as_tensor(given)
    except (TypeError, ValueError) as error:
        kind = type(per_class).__name__
        raise DataError(f"expected accuracies as a vector of numbers, one per class, got {kind}: {error}") from error
    if accuracy.shape != counts.shape:
        raise DataError(
            f"expected the accuracies of {len(counts)} classes, as many as train_counts, got shape "
            f"{tuple(accuracy.shape)}; per_class_accuracy computes them"
        )
    return accuracy, counts


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if math.isnan(value) else value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(entry) for entry in value]
    return math.nan if value is None else value


# -- by group, and scorers --------------------------------------------------------------------------------------------


Array = npt.NDArray[Any]


class GroupRow(NamedTuple):
    """A group's name, number of samples, share of the total weight, and accuracy.

    Example:
        >>> worst = group_table([0, 0, 1, 1], [0, 0, 1, 0], ["a", "a", "b", "b"])[0]
        >>> worst
        GroupRow(group='b', size=2, share=0.5, accuracy=0.5)
    """

    group: Any
    size: int
    share: float
    accuracy: float


@overload
def group_table(y_true: Any, y_pred: Any, groups: Any, sample_weight: Any = ...) -> list[GroupRow]: ...
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
    """Accuracy of every group, worst first; with `metrics` a DataFrame of any metrics, with intervals.

    Groups whose samples all weigh zero are left out.

    Args:
        y_true, y_pred: labels, (n,). With `metrics`, y_pred may also be probabilities, of the second label, (n,), or of
            all of them, (n, labels); or numbers, for metrics of regression.
        groups: the group of each sample: labels, (n,), or several columns, (n, m) or a table of pandas,
            polars or Arrow, for their combinations. Samples whose label is missing (None, NaN) are a group of their
            own, None.
        sample_weight: at least 0, (n,).
        metrics: one or several of "accuracy", "roc_auc", "log_loss", "brier", "calibration_error", names of functions
            in sklearn.metrics such as "f1_score", and functions (y_true, y_pred, sample_weight); or a dict of them by
            name. NaN where a group has no value, such as AUC with one class. The first one orders the rows.
        bootstrap: number of bootstrap samples of each group; 0 for no intervals. For groups of more than 20,000 rows
            each has 20,000, and the interval is narrowed to match.
        level: confidence level of the intervals. Those of small groups are too narrow: look at `size`.
        random_state: seed of the bootstrap.

    Returns:
        A list of `GroupRow`; with `metrics` a table with the columns of `groups` (or one called "group"), size, share,
        and for each metric its value, `_low` and `_high`. It has the type of `groups`, or pandas if that is no table.

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
    if metrics is not None:
        labels = column_or_1d(as_array(y_true))
        weight = array_weights(sample_weight, len(labels))
        found = metrics_by_group(labels, y_pred, known.member, weight, metrics, bootstrap, level, random_state)
        rows = [known.names[g] for g in found.pop("group")]
        taken = sorted(set(known.titles) & set(found))
        if taken:
            raise DataError(f"expected columns of groups with other names than those of the result, got {taken}")
        titles = {title: [name[k] for name in rows] for k, title in enumerate(known.titles)}
        return frame_of(titles | found, backend_of(groups, y_pred, y_true))
    right, weight = _right(y_true, y_pred, sample_weight)
    check_consistent_length(right, known.member)
    table = []
    for g in range(len(known.names)):
        own = weight[known.member == g]
        if own.sum() > 0:
            accuracy = float((own * right[known.member == g]).sum() / own.sum())
            table.append(GroupRow(known.name(g), len(own), float(own.sum() / weight.sum()), accuracy))
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
    r"""The lowest accuracy over all reweightings of the samples within KL distance rho; rho = 0 is plain accuracy.

    With an error rate e it is 1 - e', where e' >= e is the largest number with

        e' log(e'/e) + (1 - e') log((1 - e')/(1 - e)) <= rho

    It is a function of accuracy, so it ranks models as accuracy does, but shows how bad a shift can make them. Every
    group with at least a share exp(-rho) of the data has at least this accuracy. As a scorer:
    `make_scorer(robust_accuracy, rho=0.1)`.

    Example:
        >>> round(robust_accuracy([0, 1, 1, 0, 1], [0, 1, 1, 0, 0], rho=0.1), 4)
        0.6048
    """
    check_rho(rho)
    right, weight = _right(y_true, y_pred, sample_weight)
    # Sums of the same terms, so that all right is exactly one. With a small rate of errors, 1 - accuracy loses digits.
    accuracy, error = (float((weight * part).sum() / weight.sum()) for part in (right, 1.0 - right))
    if rho == 0.0 or accuracy == 0.0 or error == 0.0:
        return accuracy
    if rho >= -math.log(error):
        return 0.0

    def excess(e: float) -> float:
        return e * math.log(e / error) + ((1 - e) * math.log((1 - e) / accuracy) if e < 1 else 0.0) - rho

    return 1.0 - float(brentq(excess, error, 1.0, xtol=1e-14))


def _right(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Array, Array]:
    """Whether each prediction is correct, and the weights."""
    y_true, y_pred = column_or_1d(y_true), column_or_1d(y_pred)
    check_consistent_length(y_true, y_pred)
    texts = []
    for name, y in (("y_true", y_true), ("y_pred", y_pred)):
        check_no_missing(y, name)
        texts.append(y.dtype.kind in "US" or (y.dtype.kind == "O" and all(isinstance(label, str) for label in y)))
    if texts[0] != texts[1]:
        raise DataError(
            "expected labels of one type in y_true and y_pred, got strings and other types, which never match: "
            f"{y_true.dtype}, {y_pred.dtype}"
        )
    return (y_true == y_pred).astype(np.float64), array_weights(sample_weight, len(y_true))


class _Groups(NamedTuple):
    """The number of each sample's group; by number, its name: one label for each column of groups."""

    member: Array
    names: list[tuple[Any, ...]]
    titles: list[str]  # of the columns
    single: bool  # one column, so that a group is called by its label

    def name(self, g: int) -> Any:
        return self.names[g][0] if self.single else self.names[g]


def _read_groups(groups: Any) -> _Groups:
    table = columns_of(groups)
    if table is None:
        columns = as_array(groups)
        if columns.dtype.kind in "US" and not hasattr(groups, "dtype"):
            columns = np.asarray(groups, dtype=object)  # a list of numbers and strings is not converted
        if columns.ndim == 1:
            names, member = _factorised(columns)
            return _Groups(member, [(name,) for name in names], [name_of(groups) or "group"], True)
        if columns.ndim != 2:
            raise DataError(f"expected groups as one label per sample, or several columns, got shape {columns.shape}")
        table = {f"group {k}": column for k, column in enumerate(columns.T)}
    parts = [_factorised(column) for column in table.values()]
    codes, member = np.unique(np.stack([code for _, code in parts], 1), axis=0, return_inverse=True)
    found = [tuple(names[j] for (names, _), j in zip(parts, row, strict=True)) for row in codes]
    return _Groups(member.ravel(), found, list(table), False)


def _factorised(column: Array) -> tuple[list[Any], Array]:
    """The distinct labels, and the number of each sample's label. Objects, which may not be comparable, are in order of
    appearance."""
    if column.dtype.kind != "O":
        names, member = np.unique(column, return_inverse=True)
        return [None if is_missing(name) else name for name in names.tolist()], member
    numbers_of: dict[Any, int] = {}
    labels = (None if is_missing(label) else label for label in column.tolist())
    member = np.array([numbers_of.setdefault(label, len(numbers_of)) for label in labels])
    return list(numbers_of), member
