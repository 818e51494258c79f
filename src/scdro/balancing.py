"""What is usually done about unequal classes, per sample: focal loss, and weights from class counts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from scdro.errors import HyperparameterError, LossError

__all__ = ["class_balanced_weights", "focal_loss"]


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0, *, weight: Tensor | None = None) -> Tensor:
    """(1 - p_y)^gamma (-log p_y), one for each sample (Lin et al., ICCV 2017). gamma = 0 is cross-entropy.

    Args:
        logits: shape (samples, classes).
        labels: class numbers, shape (samples,).
        gamma: how fast samples that are already fitted lose their say, >= 0.
        weight: a weight for each class, such as `class_balanced_weights` gives.

    Example:
        >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=1.0)
        tensor([0.3466])
    """
    if not 0.0 <= gamma < math.inf:
        raise HyperparameterError(f"expected gamma >= 0, got {gamma}")
    losses = cross_entropy(logits, labels, reduction="none")
    # 1 - p_y from log p_y: exact also where p_y rounds to one. The smallest number keeps 0^gamma's slope finite.
    missing = -torch.expm1(-losses)
    focal = missing.clamp_min(torch.finfo(losses.dtype).tiny) ** gamma * losses if gamma else losses
    return focal if weight is None else weight.to(focal)[labels.clamp_min(0)] * focal


def class_balanced_weights(counts: Any, beta: float = 1.0) -> Tensor:
    """A weight for each class, (1 - beta)/(1 - beta^n), with mean one (Cui et al., CVPR 2019).

    beta = 1 weighs classes by the inverse of their counts, so that all classes count the same. A smaller one gives
    classes of more than about 1/(1 - beta) samples the same weight each: .999 does nothing about 6,000 and 20,000.

    Args:
        counts: how many samples each class has: `torch.bincount(labels)`. An empty class weighs nothing.
        beta: in [0, 1]; 0 weighs all classes the same, as they come. The paper tries .9, .99, .999 and .9999.

    Example:
        >>> class_balanced_weights([100, 300])
        tensor([1.5000, 0.5000])
    """
    if not 0.0 <= beta <= 1.0:
        raise HyperparameterError(f"expected beta in [0, 1], got {beta}")
    n = torch.as_tensor(counts, dtype=torch.float64)
    if n.ndim != 1 or not bool((n >= 0).all() & torch.isfinite(n).all() & (n > 0).any()):
        raise LossError(f"expected the count of each class, not all zero, got {counts}")
    present = n > 0
    n = n.clamp_min(1)
    weights = (
        1.0 / n if beta == 1.0 else (1.0 - beta) / -torch.expm1(n * math.log(beta)) if beta else torch.ones_like(n)
    )
    return torch.where(present, weights / weights[present].mean(), 0.0).to(torch.get_default_dtype())
