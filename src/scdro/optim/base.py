"""What the KL-constrained optimizers share: the closure's contract, the robust state, monitoring and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError
from scdro.estimators import Tracker
from scdro.numbers import Number, vector
from scdro.projections import Ball
from scdro.state import RobustState, check_beta
from scdro.temperature import Temperature, WindowTemperature

__all__ = ["Closure", "RobustOptimizer", "descend"]

Closure = Callable[[], Tensor]
_KEY, _VERSION = "scdro", 1


class RobustOptimizer(Optimizer):
    """Base of the optimizers over x = (w, lam). Its state beyond `torch.optim`'s is one `RobustState`."""

    _robust: RobustState
    _two_points: ClassVar[bool]
    _own_attributes: ClassVar[tuple[str, ...]] = ("_robust", "_ball")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        beta: float = 0.1,
        lam0: float = 1e-3,
        weight_decay: float = 0.0,
        temperature: Temperature | None = None,
        tracker: Tracker | None = None,
        loss_bound: float | None = None,
        radius: float | None = None,
        trim: float = 0.0,
        window: int | None = None,
        skip_nonfinite: bool = False,
        mu: float = 0.0,
    ) -> None:
        if not 0.0 <= float(lr) < math.inf:
            raise HyperparameterError(f"expected a learning rate lr >= 0, got {lr}")
        if not 0.0 <= weight_decay < math.inf:
            raise HyperparameterError(f"expected weight_decay >= 0, got {weight_decay}")
        check_beta(beta)
        temperature = WindowTemperature() if temperature is None else temperature
        if tracker is None:
            tracker = temperature.two_point_tracker() if self._two_points else temperature.one_point_tracker()
        if tracker.two_points != self._two_points:
            raise HyperparameterError(
                f"expected a tracker of {2 if self._two_points else 1} point(s) for {type(self).__name__}, "
                f"got {type(tracker).__name__}"
            )
        self._ball = None if radius is None else Ball(radius)
        robust = RobustState(
            rho,
            lam0,
            temperature,
            tracker,
            loss_bound=loss_bound,
            trim=trim,
            window=window,
            skip_nonfinite=skip_nonfinite,
            mu=mu,
        )
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})
        self._robust = robust.to(self._first_parameter().device)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, index: Tensor | None = None, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """One step on one batch.

        Args:
            closure: computes and returns the per-sample losses of a batch fixed outside of it; does not call backward.
            index: positions of the samples in the data set; not needed here, part of the common interface.
            sample_weight: importance weights of the samples, >= 0.

        Returns:
            The running robust objective, a 0-d tensor.
        """
        if closure is None or not callable(closure):
            raise ClosureError(
                "expected step(closure) with a closure that returns per-sample losses, got none; for loops that call "
                "backward() themselves use KLRobustLoss with any torch optimizer"
            )
        value = self._step(closure, self._beta, sample_weight)
        if value is None:
            return self._robust.objective
        self._after_step()
        return vector([value], self._robust.scalars)[0]

    def _step(self, closure: Closure, beta: float, sample_weight: Tensor | None) -> Number | None:
        """The algorithm: the objective, or None where a bad batch was left out."""
        raise NotImplementedError

    def _after_step(self) -> None:
        """For the restarted forms: change of stage."""

    # -- the closure --------------------------------------------------------------------------------------------------

    def _losses(self, closure: Closure) -> Tensor:
        """Per-sample losses of the batch at the present parameters, with their graph, and no gradients left over."""
        for p in self._parameters():
            p.grad = None
        with torch.enable_grad():
            losses = closure()
        if any(p.grad is not None for p in self._parameters()):
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one that called backward(); "
                "remove the call: step() makes its own"
            )
        if isinstance(losses, Tensor) and losses.is_floating_point() and losses.ndim == 1 and not losses.requires_grad:
            raise LossError(
                "expected losses that require grad, got detached ones; is the closure under torch.no_grad(), or the "
                "model frozen?"
            )
        return losses

    def _backward(self, losses: Tensor, weights: Tensor) -> None:
        """Gradients of sum_j weight_j l_j, by the loss's own graph."""
        try:
            torch.autograd.backward(losses, weights.to(losses.dtype))
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one whose graph was already used; "
                "remove its call of backward()"
            ) from error

    def _skips(self, finite: Tensor | None) -> bool:
        """Whether to leave the step out, where the host may look; elsewhere the flag stays on the device."""
        if finite is None or (finite.device.type != "cpu" and self._robust.started) or bool(finite):
            return False
        self._robust.count_skipped(True)
        return True

    def _undone_unless(self, finite: Tensor | None) -> AbstractContextManager[None]:
        """Take back what happened to parameters and vectors if the batch was bad, by the device's own knowledge."""
        return nullcontext() if finite is None or finite.device.type == "cpu" else self._undo_on_device(finite)

    @contextmanager
    def _undo_on_device(self, finite: Tensor) -> Iterator[None]:
        tensors = [t for p in self._parameters() for t in (p, *self.state[p].values()) if isinstance(t, Tensor)]
        before = [t.clone() for t in tensors]
        for p in self._parameters():
            if p.grad is not None:
                p.grad = torch.where(finite, p.grad, 0.0)
        yield
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(finite, tensor, old))

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _first_parameter(self) -> Tensor:
        return next(self._parameters())

    @property
    def _beta(self) -> float:
        """s is one number, and so is beta, whatever the parameter groups."""
        beta: float = self.param_groups[0]["beta"]
        if any(group["beta"] != beta for group in self.param_groups):
            raise HyperparameterError("expected the same beta in all parameter groups, got different ones")
        return beta

    def _decayed(self, vectors: list[Tensor], params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Vectors plus weight decay; the restarted forms' mu |x|^2/2 is one too."""
        decay = group["weight_decay"] + self._robust.limits.mu
        if not params or not decay:
            return vectors
        return list(torch._foreach_add(vectors, params, alpha=decay))

    def _project(self) -> None:
        if self._ball is not None:
            self._ball.project_(list(self._parameters()))

    # -- monitoring ---------------------------------------------------------------------------------------------------

    @property
    def lam(self) -> Tensor:
        """The temperature the next batch will use; NaN before the first, inf where rho = 0."""
        return self._robust.lam

    @property
    def log_s(self) -> Tensor:
        """log of the tracked mean of exp(l/lam), at the temperature of the last batch."""
        return self._robust.log_s

    @property
    def kl(self) -> Tensor:
        """The KL distance that the worst case spends on the recent losses: near rho, or below it at lam0."""
        return self._robust.monitor()[0]

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the worst case as a share of the recent samples, in (0, 1]."""
        return self._robust.monitor()[1]

    @property
    def resets(self) -> Tensor:
        """How often STORM's estimates had to start anew (printed form only)."""
        return self._robust.counts[0].clone()

    @property
    def skipped(self) -> Tensor:
        """How many batches were left out for NaN or infinite losses."""
        return self._robust.counts[1].clone()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """torch's own, and under "scdro" what must not be cast with the parameters: lam, log s, recent losses."""
        own = {"algorithm": type(self).__name__, "version": _VERSION, "robust": dict(self._robust.state_dict())}
        return {**super().state_dict(), _KEY: {**own, **self._extra_state()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = state_dict.get(_KEY)
        name = type(self).__name__
        if not isinstance(own, dict) or own.get("algorithm") != name:
            came = own.get("algorithm") if isinstance(own, dict) else "another optimizer"
            raise CheckpointError(f"expected a state_dict of {name}, got one of {came}; load it into that optimizer")
        if own["version"] != _VERSION:
            raise CheckpointError(f"expected a state_dict of version {_VERSION}, got {own['version']}; upgrade scdro")
        self._check_vectors(state_dict)
        self._check_extra_state(own)
        before = {k: v.clone() for k, v in self._robust.state_dict().items()}
        self._robust.load_state_dict(own["robust"])  # Refuses another window or temperature, unchanged.
        try:
            super().load_state_dict({k: v for k, v in state_dict.items() if k != _KEY})
        except Exception:
            self._robust.load_state_dict(before)
            raise
        self._load_extra_state(own)

    def _check_vectors(self, state_dict: dict[str, Any]) -> None:
        groups = state_dict["param_groups"]
        sizes, came = ([len(group["params"]) for group in g] for g in (self.param_groups, groups))
        if sizes != came:
            raise CheckpointError(
                f"expected parameter groups of {sizes} parameters, got {came}; is it another model's?"
            )
        for p, number in zip(self._parameters(), (i for group in groups for i in group["params"]), strict=True):
            for value in state_dict["state"].get(number, {}).values():
                if isinstance(value, Tensor) and value.shape != p.shape:
                    raise CheckpointError(
                        f"expected the state of a parameter of shape {tuple(p.shape)}, got {tuple(value.shape)}; "
                        "is it another model's?"
                    )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay"):
            if name in param_group and not 0.0 <= float(param_group[name]) < math.inf:
                raise HyperparameterError(f"expected {name} >= 0 in a parameter group, got {param_group[name]}")
        if "beta" in param_group:
            check_beta(param_group["beta"])
        super().add_param_group(param_group)

    def _extra_state(self) -> dict[str, Any]:
        return {}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        pass

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        pass

    def __getstate__(self) -> dict[str, Any]:
        """torch keeps three attributes when an optimizer is copied or pickled; lam and log s are not among them."""
        own = {k: v for k, v in self.__dict__.items() if k in self._own_attributes}
        return {**super().__getstate__(), **own}


def descend(params: list[Tensor], direction: list[Tensor], lr: Tensor | float) -> None:
    """w <- w - lr direction."""
    if not params:
        return
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(direction, lr.to(direction[0].device)))
    else:
        torch._foreach_add_(params, direction, alpha=-lr)
