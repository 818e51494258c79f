"""Baselines that weight the losses of a batch and follow the weighted gradient with momentum.

    weights, value = ... of the batch's losses                   `_weigh`, of each method
    v <- momentum v + sum_j weight_j grad l_j + wd w
    w <- Proj_W(w - lr v)

`WeightingOptimizer` is this step. ERM, whose weights are the sample weights, is its simplest
method; ABSGD, FastDRO and GroupDRO are the others.
"""

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
    "tilt_at",
]


class Weighed(NamedTuple):
    """What a method says about a batch."""

    weights: Tensor  # (b,) of the losses' gradients
    value: Scalar  # the method's objective, estimated
    new: list[tuple[Tensor, list[Scalar]]]  # buffers of its state and what to write into them


class WeightingOptimizer(ClosureOptimizer):
    """SGD with momentum on the weighted losses of each batch. Subclasses write `_weigh`."""

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
        """The weights of a batch and the new state, which is written only if the step succeeds."""
        raise NotImplementedError

    def _ids(self, losses: Tensor, index: Tensor | None) -> Callable[[], Tensor] | None:
        """A function that checks and returns one integer per sample, for methods that need it."""
        return None

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        """The step of the module's docstring; nothing has changed when it returns None."""
        losses = self._losses(closure)  # (own,), with their graph
        # Those of all processes, detached, in float64; with a group or position of each, if asked.
        batch = self._method_state.read(losses, sample_weight, read_ids=self._ids(losses, index))
        if self._skips(batch.finite):
            return None
        weights, value, new = self._weigh(batch)  # changes nothing yet
        self._backward(losses, batch, weights)
        if not self._gradients.unscale_and_clip():
            return None  # an overflow in float16
        with self._undo_unless(batch.finite):
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
        """The sample weights, normalised."""
        q = base_weights(batch)
        return Weighed(q, scalar(torch.dot(q, batch.losses)), [])

    def full_objective(self, losses: Tensor) -> Tensor:
        """The mean of the losses of all training samples."""
        return losses.mean()


def base_weights(batch: Batch) -> Tensor:
    """q, (b,): the sample weights of a batch, normalised; 1/b without any."""
    if batch.log_weight is None:
        return torch.full_like(batch.losses, 1.0 / len(batch.losses))
    return torch.exp(batch.log_weight - batch.log_mass)


def tilt_at(batch: Batch, lam: Scalar) -> TiltedBatch:
    """The batch at temperature lam, for methods without a window."""
    joint = batch.losses / lam
    return TiltedBatch.of(
        joint if batch.log_weight is None else joint + batch.log_weight, batch.log_mass
    )
