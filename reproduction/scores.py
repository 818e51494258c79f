"""The scores that the paper's tables print: accuracy, by class, over rare and frequent classes, and the robust loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scdro._validation import as_labels, check_whole
from scdro.errors import DataError
from scdro.functional import worst_case

__all__ = [
    "Scores",
    "halves",
    "per_class_accuracy",
    "score",
    "shots",
    "top_k_accuracy",
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
        rare_groups: mean accuracy over groups with fewer than half as many training samples as the
            median group.

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
        read: dict[str, Any] = {
            field.name: _read(plain[field.name]) for field in fields(cls) if field.name in plain
        }
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
        raise DataError(
            "expected groups together with group_counts, the training samples per group, got"
            " only one"
        )
    logits, labels = _samples(logits, labels)
    train_counts = as_labels(
        train_counts, logits.shape[1], what="counts of training samples, one per class"
    )
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


def _by_group(
    right: Tensor, groups: Any, group_counts: Any
) -> tuple[tuple[float, ...], float, float]:
    """Accuracy of each group, the lowest of these, and the mean over the rare groups."""
    counts = as_labels(group_counts, what="counts of training samples, one per group")
    accuracy = _shares(right, as_labels(groups, len(right), len(counts), "groups"), len(counts))
    known = counts[counts > 0]
    rare = counts < (known.double().median() / 2 if len(known) else 0.0)
    return tuple(accuracy.tolist()), float(accuracy[~accuracy.isnan()].min()), _mean(accuracy[rare])


def _shares(right: Tensor, kinds: Tensor, number: int) -> Tensor:
    """The share of correct predictions for each class or group, NaN if it has no samples."""
    return torch.bincount(kinds, right.double(), minlength=number) / torch.bincount(
        kinds, minlength=number
    )


def _samples(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Check scores and labels and return them on the CPU."""
    try:
        scores = (
            logits.detach().cpu()
            if isinstance(logits, Tensor)
            else torch.from_numpy(np.array(logits))
        )
    except (TypeError, ValueError) as error:
        raise DataError(
            f"expected scores (n, classes) as a tensor or an array, got {type(logits).__name__}"
        ) from error
    if scores.ndim != 2 or not scores.is_floating_point() or 0 in scores.shape:
        raise DataError(
            f"expected scores (n, classes) of floats, got {scores.dtype} of shape"
            f" {tuple(scores.shape)}"
        )
    return scores, as_labels(labels, *scores.shape)


def _classes(per_class: Any, train_counts: Any) -> tuple[Tensor, Tensor]:
    """Check the accuracies and training samples of the classes and return them on the CPU."""
    counts = as_labels(train_counts, what="counts of training samples, one per class")
    try:
        given = (
            per_class.detach().cpu()
            if isinstance(per_class, Tensor)
            else np.array(per_class, float)
        )
        accuracy = torch.as_tensor(given)
    except (TypeError, ValueError) as error:
        kind = type(per_class).__name__
        raise DataError(
            f"expected accuracies as a vector of numbers, one per class, got {kind}: {error}"
        ) from error
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
