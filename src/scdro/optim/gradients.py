"""Between the backward pass and the step: loss scaling, the check for overflow, clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from scdro.errors import HyperparameterError
from scdro.projections import global_norm

__all__ = ["Gradients"]


class Gradients:
    """The gradients of an optimizer during one step.

    `GradScaler.step` refuses closures. So to a scaler this looks like an optimizer of the same parameters, whose step
    only notes that the scaler found no overflow.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._finite = optimizer, False
        self.scaler: GradScaler | None = None
        self.max_norm: float | None = None

    def begin(self, scaler: GradScaler | None, max_norm: float | None) -> None:
        if max_norm is not None and not 0.0 < max_norm < math.inf:
            raise HyperparameterError(f"expected max_grad_norm > 0, or None for no bound, got {max_norm}")
        self.scaler, self.max_norm = scaler, max_norm

    def end(self) -> None:
        self.scaler = self.max_norm = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def step(self) -> None:
        self._finite = True

    def scaled(self, weights: Tensor) -> Tensor:
        """Weights of the losses, for the backward pass."""
        if self.scaler is None:
            return weights
        scaled: Tensor = self.scaler.scale(weights)
        return scaled

    def ready(self, old: dict[Tensor, Tensor] | None = None) -> bool:
        """Unscale and clip the gradients; unscale the `old` ones of an earlier pass. False after an overflow."""
        if self.scaler is not None and not self._unscaled(self.scaler, old or {}):
            return False
        if self.max_norm is not None:
            clip_grad_norm_(self._params(), self.max_norm)
        return True

    def _unscaled(self, scaler: GradScaler, old: dict[Tensor, Tensor]) -> bool:
        if old:
            for p, gradient in old.items():
                if p.grad is not None:  # 0 times infinity is NaN: an overflow of the old is one of the new.
                    p.grad.add_(gradient * 0.0)
            torch._foreach_div_(list(old.values()), float(scaler.scale(torch.ones(()))))
        self._finite = False
        scaler.step(self)  # type: ignore[arg-type]
        return self._finite

    def pass_over(self) -> None:
        """A batch is left out for its losses: the scaler wants to see gradients all the same."""
        if self.scaler is None:
            return
        self.scaler.scale(torch.ones(()))  # It makes its state when first used.
        for p in self._params():
            p.grad = torch.zeros_like(p)
        self.scaler.step(self)  # type: ignore[arg-type]
        for p in self._params():
            p.grad = None

    def clipped(self, coefficient: Any, gradients: list[Tensor], among: float) -> Any:
        """A coefficient of `gradients`, smaller where `coefficient / among` times them would exceed the bound."""
        if self.max_norm is None or not gradients or among == 0.0:
            return coefficient
        size = global_norm(gradients) * abs(coefficient) / among
        return coefficient * (self.max_norm / (size + 1e-6)).clamp_max(1.0)

    def _params(self) -> Iterable[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]
