"""What a trained model is worth: scores on a part of the data, and the samples that the worst case weighs most."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro.experiments.tasks import Samples, Task
from scdro.functional import worst_case
from scdro.scores import per_class_accuracy, score

__all__ = ["assess", "hardest"]


def assess(model: nn.Module, task: Task, samples: Samples, rho: float) -> dict[str, Any]:
    """Scores as plain values: those of `score`, the mean over classes ("balanced"), and those of groups.

    `rare_groups` is the mean accuracy of the groups with fewer than half as many training samples as the median group.
    """
    logits, labels = _predictions(model, task, samples)
    if not bool(logits.isfinite().all()):
        return dict.fromkeys(("top1", "balanced", "loss", "robust_loss"))
    found = score(logits, labels, task.train.counts.cpu(), rho=rho).as_dict()
    own = [value for value in found["per_class"] if value is not None]
    found["balanced"] = sum(own) / len(own)
    groups, known = getattr(samples, "groups", None), getattr(task.train, "groups", None)
    if groups is None or known is None:
        return found
    sizes = torch.bincount(known.cpu(), minlength=int(groups.max()) + 1)
    accuracy = per_class_accuracy(torch.where(logits.argmax(1) == labels, groups.cpu(), -1), groups.cpu(), len(sizes))
    rare = sizes < sizes[sizes > 0].double().median() / 2
    present = ~accuracy.isnan()
    found["per_group"] = [None if not here else float(a) for a, here in zip(accuracy, present, strict=True)]
    found["worst_group"] = float(accuracy[present].min())
    found["rare_groups"] = float(accuracy[present & rare].mean()) if bool((present & rare).any()) else None
    return found


def hardest(model: nn.Module, task: Task, rho: float, count: int = 24) -> list[dict[str, Any]]:
    """The training samples that the worst case weighs most: position, label, prediction, loss, and n times weight."""
    logits, labels = _predictions(model, task, task.train)
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    weights = worst_case(losses, rho).weights * len(losses)
    order = torch.argsort(weights, descending=True, stable=True)[:count]
    return [
        {
            "position": int(i),
            "label": int(labels[i]),
            "predicted": int(logits[i].argmax()),
            "loss": float(losses[i]),
            "weight": float(weights[i]),
        }
        for i in order
    ]


@torch.no_grad()
def _predictions(model: nn.Module, task: Task, samples: Samples) -> tuple[Tensor, Tensor]:
    """Scores (n, classes) and labels, on the CPU; the model stays in the mode it is in."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    parts = [(model(x.to(device)).cpu(), y.cpu()) for x, y, _ in task.in_order(samples)]
    model.train(training)
    logits, labels = zip(*parts, strict=True)
    return torch.cat(logits), torch.cat(labels)
