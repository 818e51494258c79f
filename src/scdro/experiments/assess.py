"""What a trained model is worth: scores on a part of the data, and the samples that the worst case weighs most."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro.experiments.tasks import Samples, Task
from scdro.functional import worst_case
from scdro.scores import score

__all__ = ["assess", "hardest"]


def assess(model: nn.Module, task: Task, samples: Samples, rho: float) -> dict[str, Any]:
    """Those of `score`, as plain values; of groups where training data and samples have them."""
    logits, labels = _predictions(model, task, samples)
    if not bool(logits.isfinite().all()):
        return dict.fromkeys(("top1", "balanced", "loss", "robust_loss"))
    groups, known = getattr(samples, "groups", None), getattr(task.train, "groups", None)
    by_group = {}
    if groups is not None and known is not None:
        by_group = {"groups": groups, "group_counts": torch.bincount(known.cpu(), minlength=int(groups.max()) + 1)}
    return score(logits, labels, task.train.counts, rho=rho, **by_group).as_dict()


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
