"""Baselines that weight the losses of a batch and follow the weighted gradient with SGD and momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdro._buffers import Modules
from scdro._scalar import Scalar, scalar, vector
from scdro._state import Batch, MethodState, TiltedBatch
from scdro.distributed import Group
from scdro.optim._base import Closure, ClosureOptimizer

__all__ = [
    "ERM",
    "Weighed",
    "WeightingOptimizer",
    "base_weights",
    "tilted_at",
]


class Weighed(NamedTuple):
    """The weights of a batch's losses, the method's objective, and the new values of its buffers."""

    weights: Tensor
    value: Scalar
    new: list[tuple[Tensor, list[Scalar]]]


class WeightingOptimizer(ClosureOptimizer):
    """v <- momentum v + sum_j weight_j grad l_j + wd w;  w <- Proj_W(w - lr v)."""

    _vectors = ("v",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        method_state: MethodState,
        *,
        momentum: float,
        weight_decay: float,
        radius: float | None,
        module: Modules,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults, method_state, radius=radius, module=module)

    def _weigh(self, batch: Batch) -> Weighed:
        raise NotImplementedError

    def _ids(self, losses: Tensor, index: Tensor | None) -> Callable[[], Tensor] | None:
        """A function that checks and returns one integer per sample, for methods that need it."""
        return None

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        losses = self._losses(closure)
        batch = self._method_state.read(losses, sample_weight, read_ids=self._ids(losses, index))
        if self._skips(batch.finite):
            return None
        weights, value, new = self._weigh(batch)
        self._backward(losses, batch, weights)
        if not self._gradients.unscale_and_clip():
            return None
        with self._undone_unless(batch.finite):
            for group in self.param_groups:
                self._momentum_step(group, group["momentum"], 1.0, group["weight_decay"])
            self._project()
        self._method_state.store(
            [(buffer, vector(values, buffer)) for buffer, values in new], batch
        )
        return value


class ERM(WeightingOptimizer):
    """Empirical risk minimisation: SGD with momentum on the mean loss, with the interface of the other methods.

    Args:
        params: parameters or parameter groups.
        lr, momentum, weight_decay: as for `torch.optim.SGD`.
        radius, skip_nonfinite, module, process_group: as for `SCDRO`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> opt = ERM(model.parameters(), lr=0.1)
        >>> value = opt.step(lambda: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        method_state = MethodState(skip_nonfinite=skip_nonfinite, process_group=process_group)
        super().__init__(
            params,
            lr,
            method_state,
            momentum=momentum,
            weight_decay=weight_decay,
            radius=radius,
            module=module,
        )

    def _weigh(self, batch: Batch) -> Weighed:
        q = base_weights(batch)
        return Weighed(q, scalar(torch.dot(q, batch.losses)), [])

    def full_objective(self, losses: Tensor) -> Tensor:
        """The mean of the losses of all training samples."""
        return losses.mean()


def base_weights(batch: Batch) -> Tensor:
    """q."""
    if batch.log_weight is None:
        return torch.full_like(batch.losses, 1.0 / len(batch.losses))
    return torch.exp(batch.log_weight - batch.log_mass)


def tilted_at(batch: Batch, lam: Scalar) -> TiltedBatch:
    joint = batch.losses / lam
    return TiltedBatch.of(
        joint if batch.log_weight is None else joint + batch.log_weight, batch.log_mass
    )
