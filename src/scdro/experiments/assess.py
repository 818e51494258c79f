"""What a trained model is worth: scores on a part of the data, and the samples that the worst case weighs most."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro.distributed import ALONE, Ranks
from scdro.experiments.tasks import Samples, Task
from scdro.functional import worst_case
from scdro.scores import score

__all__ = ["assess", "hardest"]


def assess(model: nn.Module, task: Task, samples: Samples, rho: float, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Those of `score`, as plain values; of groups where training data and samples have them."""
    logits, labels = _predictions(model, task, samples, ranks)
    if not bool(logits.isfinite().all()):
        return dict.fromkeys(("top1", "balanced", "loss", "robust_loss"))
    groups, known = getattr(samples, "groups", None), getattr(task.train, "groups", None)
    by_group = {}
    if groups is not None and known is not None:
        by_group = {"groups": groups, "group_counts": torch.bincount(known.cpu(), minlength=int(groups.max()) + 1)}
    return score(logits, labels, task.train.counts, rho=rho, **by_group).as_dict()


def hardest(model: nn.Module, task: Task, rho: float, count: int = 24, ranks: Ranks = ALONE) -> list[dict[str, Any]]:
    """The training samples that the worst case weighs most: position, label, prediction, loss, and n times weight."""
    logits, labels = _predictions(model, task, task.train, ranks)
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
def _predictions(model: nn.Module, task: Task, samples: Samples, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Scores (n, classes) and labels, on the CPU; each process finds a part of them. The model stays in its mode."""
    training, weight = model.training, next(model.parameters())
    ranks.share_buffers(model)
    model.eval()
    logits = torch.zeros(len(samples), len(task.train.counts), dtype=weight.dtype)
    for x, _, index in task.in_order(samples, ranks=ranks):
        logits[index] = model(x.to(weight.device)).cpu()
    model.train(training)
    return ranks.merged(logits), samples.labels.cpu()
