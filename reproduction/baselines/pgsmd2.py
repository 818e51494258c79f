"""PG-SMD2: SPD in stages around a proximal centre, for weakly convex losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from reproduction.baselines.dual_variable import NO_LAM0, check_all_losses
from reproduction.baselines.spd import SPD
from scdro._validation import check_number, check_whole
from scdro.errors import HyperparameterError

__all__ = [
    "PGSMD2",
]


class PGSMD2(SPD):
    r"""Proximally guided stochastic mirror descent (Rafique, Liu, Lin, Yang, 2018), for weakly convex losses.

    Stage k = 1, 2, ... minimises over w and maximises over p  sum_i p_i l_i(w) + gamma |w -
    wbar_k|^2/2:

    1. w starts at wbar_k, and p at the exact worst case there, which needs all n losses.
    2. k `stage_steps` steps, as in `SPD` but with lr/k and dual_lr/k; the step of the model
        includes the proximal term.
    3. wbar_{k+1} is the mean of w over the stage.

    p always stays in the KL ball (the authors' code omits this).

    Args:
        all_losses: a function that returns the losses of all n samples at the current parameters.
            It is called with the model in its current mode; with dropout or BatchNorm, let it
            switch to eval() and back. With several processes, each may return the losses of its own
            part, `scdro.distributed.shard(n)`.
        gamma: strength of the proximal term; larger than the weak convexity constant of the losses.
        stage_steps: number of steps in the first stage.
        params, lr, rho, n, dual_lr, uniform, ...: as for `SPD`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> losses = lambda i=slice(None): torch.nn.functional.cross_entropy(model(x[i]), y[i], reduction="none")
        >>> opt = PGSMD2(model.parameters(), lr=0.1, rho=0.5, n=100, all_losses=losses)
        >>> for index in opt.batch_sampler(8, steps=5):
        ...     value = opt.step(lambda: losses(index), torch.tensor(index))
    """

    _vectors = ("anchor", "mean")
    _own_attributes = (
        *SPD._own_attributes,
        "_all_losses",
        "_gamma",
        "_stage_steps",
        "_stage",
        "_done",
    )

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        all_losses: Callable[[], Tensor],
        gamma: float = 0.1,
        stage_steps: int = 100,
        **settings: Any,
    ) -> None:
        check_number("gamma", gamma, ">= 0", "the proximal strength")
        check_whole("stage_steps", stage_steps, meaning="the length of the first stage")
        if not callable(all_losses):
            raise HyperparameterError(
                f"expected all_losses to be a function that returns n losses, got {all_losses!r}"
            )
        self._all_losses, self._gamma, self._stage_steps = all_losses, gamma, stage_steps
        self._stage, self._done = 0, 0
        super().__init__(params, lr, rho, **settings)

    @property
    def stage(self) -> int:
        """The number k of the current stage, starting at 1; 0 before the first step."""
        return self._stage

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        self._begin()  # The very first batch is drawn from the exact p, too.
        return super().draw(size, generator)

    def _begin(self) -> None:
        if self._stage == 0:
            self._next_stage()

    def _after_step(self) -> None:
        if self._done >= self._stage * self._stage_steps:
            for p in self._parameters():
                if self._has_past(p):
                    p.copy_(self.state[p]["mean"])
            self._next_stage()

    def _next_stage(self) -> None:
        """Start a stage with wbar at the model's parameters."""
        with torch.no_grad():
            self._dual.respond(check_all_losses(self._all_losses(), self._dual.parts), NO_LAM0)
        self._anchor(p for p in self._parameters() if p.requires_grad)
        self._stage, self._done = self._stage + 1, 0

    def _anchor(self, params: Iterable[Tensor]) -> None:
        for p in params:
            self._begin_at(p, anchor=p.detach().clone(), mean=p.detach().clone())

    def _rate(self) -> float:
        return super()._rate() / self._stage

    def _descend(self) -> None:
        """w <- argmin over W of <gradient, w> + gamma |w - wbar|^2/2 + |w - w_t|^2/(2 lr/k); updates the mean of w."""
        self._anchor(p for p in self._parameters() if p.grad is not None and not self._has_past(p))
        for group in self.param_groups:
            rate = group["lr"] / self._stage
            for p in group["params"]:
                if p.grad is not None:
                    pull = (
                        self._gamma * self.state[p]["anchor"] - p.grad - group["weight_decay"] * p
                    )
                    p.add_(pull * rate).div_(1.0 + rate * self._gamma)
        self._project()
        self._done += 1
        for p in self._parameters():
            if self._has_past(p):
                mean = self.state[p]["mean"]
                mean.add_(p - mean, alpha=1.0 / self._done)

    def _extra_state(self) -> dict[str, Any]:
        return {**super()._extra_state(), "stage": self._stage, "done": self._done}

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        super()._load_extra_state(own)
        self._stage, self._done = own["stage"], own["done"]
