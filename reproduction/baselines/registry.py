"""Every method by name: how to create it, and what it needs to know about a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from reproduction.baselines.accmda import AccMDA
from reproduction.baselines.dual_sgm import DualSGM
from reproduction.baselines.pgsmd2 import PGSMD2
from reproduction.baselines.recover import RECOVER
from reproduction.baselines.spd import SPD
from scdro.errors import HyperparameterError
from scdro.functional import class_balanced_weights, focal_loss
from scdro.optim import (
    ABSGD,
    ASCDRO,
    ERM,
    RASCDRO,
    RSCDRO,
    SCDRO,
    Chi2,
    Chi2Penalty,
    CVaR,
    FastDRO,
    GroupDRO,
    KLBall,
    Multilevel,
    decay_stages,
)
from scdro.optim._base import ClosureOptimizer
from scdro.optim.baselines.fastdro import Geometry
from scdro.printed import PrintedTemperature

__all__ = ["REGISTRY", "Method"]

Maker = Callable[..., ClosureOptimizer]
# Maps logits and labels to per-sample losses.
PerSample = Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        make: creates the optimizer from parameters and keyword arguments.
        needs: what `make` needs to know about the task: "rho", "n" (the number of training
            samples), "all_losses" (a function that returns the losses of all training samples),
            "module" (the model), "groups" (of all training samples), "milestones" (numbers of steps
            after which the step size falls).
        loss: for methods that change the loss: creates it from `class_counts` and the settings in
            `loss_settings`.
        own_schedule: whether the method lowers its own step sizes, so that no scheduler should.

    Example:
        >>> import torch
        >>> method, model = REGISTRY["SCDRO"], torch.nn.Linear(3, 2)
        >>> method.needs
        ('rho',)
        >>> opt = method.build(model.parameters(), {"rho": 0.5}, lr=0.1, beta=0.1)
    """

    name: str
    make: Maker
    needs: tuple[str, ...] = ()
    loss: Callable[..., PerSample] | None = None
    loss_settings: tuple[str, ...] = field(default=())
    own_schedule: bool = False

    def build(self, params: Any, task: Mapping[str, Any], **settings: Any) -> ClosureOptimizer:
        """Create the optimizer for a task, a mapping with at least the keys in `needs`.

        Example:
            >>> import torch
            >>> model = torch.nn.Linear(3, 2)
            >>> type(REGISTRY["SPD"].build(model.parameters(), {"rho": 0.5, "n": 100}, lr=0.1)).__name__
            'SPD'
        """
        missing = [need for need in self.needs if need not in task]
        if missing:
            raise HyperparameterError(
                f"expected a task with {', '.join(missing)} for {self.name}, got {sorted(task)}"
            )
        own = {k: v for k, v in settings.items() if k not in self.loss_settings}
        return self.make(params, **{need: task[need] for need in self.needs}, **own)

    def batches(
        self, optimizer: ClosureOptimizer, n: int, batch_size: int, seed: int = 0
    ) -> Sampler[list[int]]:
        """Return a batch sampler: the method's own if it draws its samples itself, else one that shuffles each epoch.

        With several processes, each gets `batch_size` samples of every joint batch.
        """
        drawn = optimizer.draws(n, batch_size, seed)
        if drawn is not None:
            return drawn
        shuffled = RandomSampler(
            range(n), generator=torch.Generator(device="cpu").manual_seed(seed)
        )
        joint = batch_size * optimizer.ranks.size
        return optimizer.ranks.batches(BatchSampler(shuffled, joint, drop_last=n >= joint))

    def per_sample(self, class_counts: Tensor, **settings: Any) -> PerSample:
        """The per-sample loss to train on, cross-entropy for most methods."""
        if self.loss is None:
            return _cross_entropy
        return self.loss(
            class_counts, **{k: v for k, v in settings.items() if k in self.loss_settings}
        )


def _printed(method: Maker) -> Maker:
    """Use the paper's update of lam, starting at `lam`."""
    return lambda params, *, lam, **settings: method(
        params, temperature=PrintedTemperature(lam), **settings
    )


def _add_decay(method: Maker) -> Maker:
    """Use the paper's stages: lr times .1 after each of the `milestones`."""
    return lambda params, *, lr, beta, milestones, **settings: method(
        params, decay_stages(lr, beta, milestones), **settings
    )


def _fast(geometry: Callable[[float], Geometry], setting: str) -> Maker:
    """FastDRO with a geometry that is created from the setting of that name."""
    return lambda params, **settings: FastDRO(
        params, geometry=geometry(settings.pop(setting)), **settings
    )


def _multilevel(
    params: Any, *, rho: float, smallest: int, largest: int, **settings: Any
) -> FastDRO:
    return FastDRO(
        params, geometry=KLBall(rho), multilevel=Multilevel(smallest, largest), **settings
    )


def _focal(class_counts: Tensor, *, gamma: float) -> PerSample:
    return lambda logits, labels: focal_loss(logits, labels, gamma)


def _class_balanced(class_counts: Tensor, *, balance: float = 1.0) -> PerSample:
    weights = class_balanced_weights(class_counts, balance)

    def weighed(logits: Tensor, labels: Tensor) -> Tensor:
        return weights.to(logits)[labels] * _cross_entropy(logits, labels)

    return weighed


REGISTRY: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("SCDRO", SCDRO, ("rho",)),
        Method("ASCDRO", ASCDRO, ("rho", "module")),
        Method("RSCDRO", _add_decay(RSCDRO), ("rho", "milestones"), own_schedule=True),
        Method("RASCDRO", _add_decay(RASCDRO), ("rho", "milestones", "module"), own_schedule=True),
        Method("SCDRO-printed", _printed(SCDRO), ("rho",)),
        Method("ASCDRO-printed", _printed(ASCDRO), ("rho", "module")),
        Method(
            "RSCDRO-printed", _printed(_add_decay(RSCDRO)), ("rho", "milestones"), own_schedule=True
        ),
        Method(
            "RASCDRO-printed",
            _printed(_add_decay(RASCDRO)),
            ("rho", "milestones", "module"),
            own_schedule=True,
        ),
        Method("ERM", ERM),
        Method("FastDRO", _fast(KLBall, "rho"), ("rho",)),
        Method("FastDRO-MLMC", _multilevel, ("rho",)),
        Method("FastDRO-CVaR", _fast(CVaR, "alpha")),
        Method("FastDRO-chi2", _fast(Chi2, "rho"), ("rho",)),
        Method("FastDRO-chi2-penalty", _fast(Chi2Penalty, "reg")),
        Method("DualSGM", DualSGM, ("rho",)),
        Method("SPD", SPD, ("rho", "n")),
        Method("PGSMD2", PGSMD2, ("rho", "n", "all_losses"), own_schedule=True),
        Method("AccMDA", AccMDA, ("rho", "n", "module"), own_schedule=True),
        Method("RECOVER", RECOVER, ("module",)),
        Method("ABSGD", ABSGD),
        Method("TERM", ABSGD),
        Method("GroupDRO", GroupDRO, ("groups",)),
        Method("Focal", ERM, loss=_focal, loss_settings=("gamma",)),
        Method("ClassBalanced", ERM, loss=_class_balanced, loss_settings=("balance",)),
    )
}
"""Every method by name, such as `REGISTRY["SCDRO"]`, with what it needs to know about a task."""
