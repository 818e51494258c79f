"""How well a classifier does: overall, class by class, on rare and frequent classes, and in the worst case."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scdro.errors import DataError
from scdro.functional import worst_case

__all__ = ["Scores", "halves", "per_class_accuracy", "score", "shots", "top_k_accuracy"]


@dataclass(frozen=True)
class Scores:
    """Accuracies are shares in [0, 1], NaN where there is nothing to average.

    Attributes:
        top1, top5: of all samples, the right class among the 1 and the 5 of the largest scores.
        loss, robust_loss, kl: mean cross-entropy, its worst case within KL distance rho, and the KL that this spends.
        per_class: accuracy on the samples of each class.
        minority, majority: mean over the halves of the classes with fewer and with more training samples.
        many, medium, few: mean over classes of more than 100, of 20 to 100, and of fewer than 20 training samples.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON; None for NaN."""
        found = {key: value for key, value in asdict(self).items() if key != "per_class"}
        return {k: _plain(v) for k, v in found.items()} | {"per_class": [_plain(v) for v in self.per_class]}


def score(logits: Tensor, labels: Tensor, train_counts: Tensor, *, rho: float = 0.5, lam0: float = 1e-3) -> Scores:
    """All of a classifier's scores on a data set.

    Args:
        logits: (n, classes).
        labels: (n,).
        train_counts: training samples of each class, which say what is rare.
        rho, lam0: of the robust loss.

    Example:
        >>> found = score(torch.eye(4), torch.arange(4), torch.tensor([500, 500, 10, 50]))
        >>> found.top1, found.many, found.few
        (1.0, 1.0, 1.0)
    """
    if len(train_counts) != logits.shape[1]:
        raise DataError(f"expected the training samples of {logits.shape[1]} classes, got {len(train_counts)}")
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    worst = worst_case(losses, rho, lam0)
    per_class = per_class_accuracy(logits.argmax(1), labels, logits.shape[1])
    return Scores(
        top_k_accuracy(logits, labels, 1),
        top_k_accuracy(logits, labels, min(5, logits.shape[1])),
        float(losses.mean()),
        float(worst.value),
        float(worst.kl),
        per_class.tolist(),
        *halves(per_class, train_counts),
        *shots(per_class, train_counts),
    )


def top_k_accuracy(logits: Tensor, labels: Tensor, k: int) -> float:
    """Share of samples whose label is among the k largest scores.

    Example:
        >>> top_k_accuracy(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2]), k=2)
        0.5
    """
    return float((logits.topk(k, 1).indices == labels[:, None]).any(1).double().mean())


def per_class_accuracy(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Share of right predictions among the samples of each class, NaN where there are none.

    Example:
        >>> per_class_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
        tensor([0.5000, 1.0000,    nan], dtype=torch.float64)
    """
    right = torch.bincount(labels, (predicted == labels).double(), minlength=classes)
    return right / torch.bincount(labels, minlength=classes)


def halves(per_class: Tensor, train_counts: Tensor) -> tuple[float, float]:
    """Mean accuracy over the half of the classes with the fewest training samples, and over the others."""
    order = torch.argsort(train_counts, stable=True)
    middle = len(order) // 2
    return _mean(per_class[order[:middle]]), _mean(per_class[order[middle:]])


def shots(per_class: Tensor, train_counts: Tensor) -> tuple[float, float, float]:
    """Mean accuracy over classes of many (> 100), a medium number (20 to 100) and few (< 20) training samples."""
    many, few = train_counts > 100, train_counts < 20
    return _mean(per_class[many]), _mean(per_class[~many & ~few]), _mean(per_class[few])


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
