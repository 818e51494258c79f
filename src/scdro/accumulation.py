"""One batch in parts: the state moves with `optimizer.step()`, not with each call of the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from scdro.batch import Batch
from scdro.scalar import Scalar, exp
from scdro.state import Estimate, RobustState

__all__ = ["Accumulation"]

Marks = list[tuple[int, int]]


class Accumulation:
    """Parts of a batch between two steps of an optimizer.

    1. `stage` estimates s from all parts so far, and rescales the gradients already accumulated to it.
    2. The optimizer's step commits; a step that a GradScaler skips commits nothing.
    3. `zero_grad` drops the parts whose gradients it drops. A loss not yet differentiated stays: loops may call
       zero_grad between forward and backward.
    """

    def __init__(self, state: RobustState, optimizer: Optimizer) -> None:
        self.state, self.optimizer = state, optimizer
        self._staged: Estimate | None = None
        self._last: tuple[Batch, float] | None = None  # the newest part, and its beta
        self._marks_at_last: Marks = []
        self._late: Scalar = 1.0  # what the newest part's gradient is too small by, if the parts before were dropped
        optimizer.register_step_pre_hook(self._drop_bad_gradients)
        optimizer.register_step_post_hook(self._commit)
        self._zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self.zero_grad  # type: ignore[method-assign]

    def stage(self, batch: Batch, beta: float) -> Estimate:
        gradients = self._gradients()
        before = self._staged if gradients else None  # Dropped by model.zero_grad(), or by a step that never came.
        if before is not None and batch.finite is not None and before.batch.finite is not None:
            batch = batch._replace(finite=batch.finite & before.batch.finite)
        estimate = self._estimate(batch, beta, before)
        if before is not None and not estimate.calibrating:
            _rescale(gradients, exp(before.step.log_s - estimate.step.log_s))
        self._staged, self._last, self._marks_at_last, self._late = estimate, (batch, beta), self._marks(), 1.0
        return estimate

    def _estimate(self, batch: Batch, beta: float, before: Estimate | None) -> Estimate:
        if self.state.needs_whole_batch:
            return self.state.observe(batch, staged=before)
        return self.state.estimate(batch, beta, staged=before)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._staged is None or self._last is None:
            pass
        elif self._marks() != self._marks_at_last:
            self._staged = None
        else:
            with_parts_before, self._staged = self._staged, self._estimate(*self._last, None)
            self._late = exp(with_parts_before.step.log_s - self._staged.step.log_s)
        self._zero_grad(set_to_none)
        self._marks_at_last = self._marks()

    def corrected(self, gradient: Tensor) -> Tensor:
        """For the newest loss's backward pass: its gradient, at the s that holds by now."""
        return gradient * self._late

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _marks(self) -> Marks:
        """What a backward pass changes."""
        return [(id(gradient), gradient._version) for gradient in self._gradients()]

    def _drop_bad_gradients(self, *_: Any) -> None:
        """On an accelerator a bad batch is known to the device alone: its gradients, NaN or not, become zeros."""
        if self._staged is None or self._staged.batch.finite is None:
            return
        for gradient in self._gradients():
            gradient.copy_(torch.where(self._staged.batch.finite, gradient, 0.0))

    def _commit(self, optimizer: Optimizer, *_: Any) -> None:
        if self._staged is None:
            return
        # Fused optimizers are called even when a GradScaler found an overflow, and skip the step themselves.
        overflow = getattr(optimizer, "found_inf", None)
        only_if = None if overflow is None else (overflow == 0).to(self.state.scalars.device).reshape(())
        self.state.commit(self._staged, only_if=only_if)
        self._staged = None


def _rescale(gradients: list[Tensor], scale: Scalar) -> None:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for group in groups.values():
        torch._foreach_mul_(group, scale.to(group[0]) if isinstance(scale, Tensor) else scale)
