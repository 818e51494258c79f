"""One batch in parts: the state moves with `optimizer.step()`, not with each call of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from scdro.batch import Batch
from scdro.errors import HyperparameterError
from scdro.estimate import Estimate
from scdro.estimators import Advance
from scdro.scalar import Scalar, exp, where
from scdro.state import RobustState

__all__ = ["Accumulation"]


@dataclass(eq=False)
class Part:
    """A part of a batch: the step that its loss was weighted by, and what has become of it."""

    batch: Batch
    beta: float
    step: Advance | None = None
    differentiated: bool = False
    before_zero_grad: bool = False
    marks: list[tuple[int, int]] | None = None  # of the gradients as the part found them, where no hook can tell


class Accumulation:
    """Parts of a batch between two steps of an optimizer, and the gradient of the whole.

    1. `stage` estimates s from all parts so far. Gradients already accumulated are rescaled to it.
    2. `scaled` is the hook of a loss's backward pass: s may have moved since that loss was computed.
    3. The optimizer's step commits; a step that a GradScaler skips commits nothing.
    4. `zero_grad` drops the parts whose gradients it drops; one not yet differentiated stays, as loops may call
       zero_grad between forward and backward.
    """

    def __init__(self, state: RobustState, optimizer: Optimizer, before: Accumulation | None = None) -> None:
        if isinstance(getattr(optimizer.zero_grad, "__self__", None), Accumulation):
            raise HyperparameterError(
                "expected one loss for each optimizer, got a second: it would rescale the gradients of the first; "
                "add up the per-sample losses instead"
            )
        if before is not None:
            before.leave()
        self.state, self.optimizer = state, optimizer
        self._parts: list[Part] = []
        self._staged: Estimate | None = None
        self._zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self.zero_grad  # type: ignore[method-assign]
        self._hooks = [
            optimizer.register_step_pre_hook(self._drop_bad_gradients),
            optimizer.register_step_post_hook(self._commit),
        ]

    def leave(self) -> None:
        """Let go of the optimizer, between two batches."""
        self._drop_abandoned()
        if self._parts:
            raise HyperparameterError(
                "expected to be attached to another optimizer between two batches, got it amid one; call step() or "
                "zero_grad() of the first optimizer before"
            )
        self.optimizer.zero_grad = self._zero_grad  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    @property
    def shares(self) -> list[Scalar]:
        """Of each part's samples, by weight, in the batch so far; of all processes."""
        masses = [exp(part.batch.log_mass) for part in self._parts]
        return [mass / sum(masses) for mass in masses]

    def rescale(self, scale: Scalar) -> None:
        """All gradients so far, times a number."""
        _rescale(self._gradients(), scale)

    def stage(self, batch: Batch, beta: float) -> tuple[Estimate, Part]:
        gradients = self._gradients()
        self._drop_abandoned()
        before = self._staged
        if before is not None and batch.finite is not None and before.batch.finite is not None:
            batch = batch._replace(finite=batch.finite & before.batch.finite)
        part = Part(batch, beta)
        estimate = self._estimate(part, before)
        part.step = estimate.step
        if before is not None:
            _rescale(gradients, _ratio(before.step, estimate.step))
        if torch.compiler.is_compiling():
            part.marks = self._marks()
        self._parts.append(part)
        self._staged = estimate
        return estimate, part

    def scaled(self, part: Part, gradient: Tensor) -> Tensor:
        """A gradient at the s that holds by now."""
        part.differentiated = True
        if self._staged is None or part.step is None:
            return gradient
        return gradient * _ratio(part.step, self._staged.step)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._keep([part for part in self._parts if not self._differentiated(part)])
        for part in self._parts:
            part.before_zero_grad = True
        self._zero_grad(set_to_none)

    def _differentiated(self, part: Part) -> bool:
        return part.differentiated if part.marks is None else part.marks != self._marks()

    def _drop_abandoned(self) -> None:
        """Parts dropped with their gradients by model.zero_grad(), or left before a zero_grad and never used."""
        gradients = self._gradients()
        self._keep([p for p in self._parts if (gradients if self._differentiated(p) else not p.before_zero_grad)])

    def _keep(self, parts: list[Part]) -> None:
        """Forget the other parts, and what they did to s."""
        if len(parts) == len(self._parts):
            return
        self._parts, self._staged = parts, None
        for part in parts:
            self._staged = self._estimate(part, self._staged)

    def _estimate(self, part: Part, before: Estimate | None) -> Estimate:
        if self.state.needs_whole_batch:
            return self.state.observe(part.batch, staged=before)
        return self.state.estimate(part.batch, part.beta, staged=before)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _marks(self) -> list[tuple[int, int]]:
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
        self._parts, self._staged = [], None


def _ratio(then: Advance, now: Advance) -> Scalar:
    """s then over s now; one where everything was trimmed away then, and there is nothing to rescale."""
    return where(then.log_mean > -math.inf, exp(then.log_s - now.log_s), 1.0)


def _rescale(gradients: list[Tensor], scale: Scalar) -> None:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for group in groups.values():
        torch._foreach_mul_(group, scale.to(group[0]) if isinstance(scale, Tensor) else scale)
