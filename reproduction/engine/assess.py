"""Scores of a trained model on a part of the data, and the samples with the largest weight in the worst case."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduction.engine.processes import share_buffers
from reproduction.engine.task import Samples, Task
from reproduction.scores import score
from scdro.distributed import ALONE, Ranks
from scdro.functional import worst_case

__all__ = ["Predicted", "assess", "hardest", "predicted"]


class Predicted(NamedTuple):
    """Logits (n, classes) of a model for some samples, and the labels, on the CPU."""

    samples: Samples
    logits: Tensor
    labels: Tensor

    @property
    def finite(self) -> bool:
        return bool(self.logits.isfinite().all())

    def losses(self) -> Tensor:
        return F.cross_entropy(self.logits.double(), self.labels, reduction="none")

    def weights(self, rho: float) -> Tensor:
        """n times the worst-case weights: 1 is the average."""
        weights: Tensor = worst_case(self.losses(), rho).weights
        return weights * len(self.labels)


@torch.no_grad()
def predicted(model: nn.Module, task: Task, samples: Samples, ranks: Ranks = ALONE) -> Predicted:
    """The predictions for all samples; each process computes a part. The model's mode is restored."""
    training, weight, labels = model.training, next(model.parameters()), samples.labels.cpu()
    share_buffers(ranks, model)
    model.eval()
    logits = torch.zeros(len(labels), len(task.train.counts), dtype=weight.dtype)
    for x, _, index in task.in_order(samples, ranks=ranks):
        logits[index] = model(x.to(weight.device)).cpu()
    model.train(training)
    return Predicted(samples, ranks.merged(logits), labels)


def assess(found: Predicted, task: Task, rho: float) -> dict[str, Any]:
    """The scores of `scdro.metrics.score` as plain values, with group scores if the data have groups."""
    if not found.finite:
        return dict.fromkeys(("top1", "balanced", "loss", "robust_loss"))
    groups, known = getattr(found.samples, "groups", None), getattr(task.train, "groups", None)
    by_group = {}
    if groups is not None and known is not None:
        by_group = {
            "groups": groups,
            "group_counts": torch.bincount(known.cpu(), minlength=int(groups.max()) + 1),
        }
    return score(found.logits, found.labels, task.train.counts, rho=rho, **by_group).as_dict()


def hardest(found: Predicted, rho: float, count: int = 24) -> list[dict[str, Any]]:
    """The samples with the largest worst-case weight: position, label, prediction, loss, and n times the weight."""
    losses, weights = found.losses(), found.weights(rho)
    order = torch.argsort(weights, descending=True, stable=True)[:count]
    return [
        {
            "position": int(i),
            "label": int(found.labels[i]),
            "predicted": int(found.logits[i].argmax()),
            "loss": float(losses[i]),
            "weight": float(weights[i]),
        }
        for i in order
    ]
