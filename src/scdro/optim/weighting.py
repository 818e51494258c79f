"""Baselines that weigh the losses of a batch and follow the weighted gradient by SGD with momentum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdro import best_response
from scdro.batch import Batch, Point
from scdro.errors import HyperparameterError
from scdro.functional import WorstCase, worst_case
from scdro.optim.base import Closure, ClosureOptimizer
from scdro.reading import check_radius
from scdro.scalar import Scalar, logaddexp, maximum, scalar, unpacked, vector
from scdro.tracked import Tracked

__all__ = ["ABSGD", "ERM", "CVaR", "Chi2", "Chi2Penalty", "DualSGM", "FastDRO", "KLBall"]


class Weighed(NamedTuple):
    """Weights of a batch's losses, the method's objective, and what its state becomes: numbers for each buffer."""

    weights: Tensor
    value: Scalar
    new: list[tuple[Tensor, list[Scalar]]]


class WeightingOptimizer(ClosureOptimizer):
    """v <- momentum v + sum_j weight_j grad l_j + wd w;  w <- Proj_W(w - lr v)."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        tracked: Tracked,
        *,
        momentum: float,
        weight_decay: float,
        radius: float | None,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise HyperparameterError(f"expected a momentum in [0, 1), got {momentum}")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults, tracked, radius=radius)

    def _weigh(self, batch: Batch) -> Weighed:
        raise NotImplementedError

    def _step(self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None) -> Scalar | None:
        losses = self._losses(closure)
        batch = self._tracked.read(losses, sample_weight)
        if self._skips(batch.finite):
            return None
        weights, value, new = self._weigh(batch)
        self._backward(losses, weights)
        with self._undone_unless(batch.finite):
            for group in self.param_groups:
                self._follow(group, group["momentum"], 1.0, group["weight_decay"])
            self._project()
        self._tracked.store([(buffer, vector(values, buffer)) for buffer, values in new], batch)
        return value


class ERM(WeightingOptimizer):
    """The mean loss, by SGD with momentum: what everybody does, behind the common interface.

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
    ) -> None:
        tracked = Tracked(skip_nonfinite=skip_nonfinite)
        super().__init__(params, lr, tracked, momentum=momentum, weight_decay=weight_decay, radius=radius)

    def _weigh(self, batch: Batch) -> Weighed:
        q = _base(batch)
        return Weighed(q, scalar(torch.dot(q, batch.losses)), [])


# A geometry is an exact worst case with its setting: it takes losses and `sample_weight`, and gives value and weights.
Geometry = Callable[..., WorstCase | best_response.BestResponse]


def KLBall(rho: float, lam0: float = 1e-3) -> Geometry:
    """max over KL(p, q) <= rho of sum p l - lam0 KL(p, q)."""
    return partial(worst_case, rho=rho, lam0=lam0)


def CVaR(alpha: float) -> Geometry:
    """The mean of the hardest fraction alpha."""
    return partial(best_response.cvar, alpha=alpha)


def Chi2(rho: float) -> Geometry:
    """max over D(p) <= rho, D the chi-square divergence (`best_response`)."""
    return partial(best_response.chi2_constrained, rho=rho)


def Chi2Penalty(reg: float) -> Geometry:
    """max of sum p l - reg D(p)."""
    return partial(best_response.chi2_penalized, reg=reg)


class FastDRO(WeightingOptimizer):
    r"""The exact worst case of each batch alone (Levy, Carmon, Duchi, Sidford, NeurIPS 2020).

    No gradient flows through p. The worst case of a batch is smaller than that of the data on average: biased, by an
    amount that falls with the batch size.

    Args:
        geometry: `KLBall(rho)` (0.5 by default), `CVaR(alpha)`, `Chi2(rho)` or `Chi2Penalty(reg)`.
        params, lr, momentum, weight_decay, radius, skip_nonfinite: as for `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = FastDRO(model.parameters(), lr=0.1, geometry=CVaR(0.2))
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        geometry: Geometry | None = None,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        self.geometry = KLBall(0.5) if geometry is None else geometry
        self.geometry(torch.zeros(1))  # Complains about bad settings now rather than at the first step.
        tracked = Tracked(skip_nonfinite=skip_nonfinite)
        super().__init__(params, lr, tracked, momentum=momentum, weight_decay=weight_decay, radius=radius)

    _own_attributes = (*WeightingOptimizer._own_attributes, "geometry")

    def _weigh(self, batch: Batch) -> Weighed:
        weight = None if batch.log_weight is None else torch.exp(batch.log_weight - batch.log_weight.max())
        found = self.geometry(batch.losses, sample_weight=weight)
        return Weighed(found.weights, scalar(found.value), [])


class _AbsgdState(Tracked):
    log_u: Tensor

    def __init__(self, skip_nonfinite: bool) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite)
        self.register_buffer("log_u", torch.full((1,), -math.inf, dtype=self.dtype))


class ABSGD(WeightingOptimizer):
    r"""Attentional biased SGD (Qi, Xu, Jin, Yin, Yang, 2020): KL-regularised DRO at one fixed temperature.

    u <- (1-gamma) u + gamma mean exp(l/lam), u_0 = 0; weights exp(l/lam)/(n u). gamma = 1 is TERM (Li et al., 2021).

    Args:
        lam: the temperature, in units of the loss; yours to tune.
        gamma: share of the new batch in u, in (0, 1].
        params, lr, momentum, weight_decay, radius, skip_nonfinite: as for `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = ABSGD(model.parameters(), lr=0.1, lam=1.0, gamma=0.9)
    """

    _tracked: _AbsgdState
    _own_attributes = (*WeightingOptimizer._own_attributes, "_lam", "_gamma")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        lam: float = 1.0,
        *,
        gamma: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        if not 0.0 < lam < math.inf:
            raise HyperparameterError(f"expected a temperature lam > 0, got {lam}")
        if not 0.0 < gamma <= 1.0:
            raise HyperparameterError(f"expected gamma in (0, 1], the share of the new batch in u, got {gamma}")
        self._lam, self._gamma = lam, gamma
        tracked = _AbsgdState(skip_nonfinite)
        super().__init__(params, lr, tracked, momentum=momentum, weight_decay=weight_decay, radius=radius)

    def _weigh(self, batch: Batch) -> Weighed:
        point = _point(batch, self._lam)
        log_u = point.log_mean
        if self._gamma < 1.0:
            (past,) = unpacked(self._tracked.log_u)
            log_u = logaddexp(past + math.log1p(-self._gamma), log_u + math.log(self._gamma))
        return Weighed(point.weights(log_u), self._lam * log_u, [(self._tracked.log_u, [log_u])])


class _DualState(Tracked):
    duals: Tensor  # eta, lam
    capped: Tensor

    def __init__(self, lam: float, skip_nonfinite: bool) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite)
        self.register_buffer("duals", torch.tensor([math.nan, lam], dtype=self.dtype))
        self.register_buffer("capped", torch.zeros(1, dtype=torch.int64))
        self.register_load_state_dict_post_hook(_note_started)  # type: ignore[no-untyped-call]


def _note_started(module: torch.nn.Module, _: object) -> None:
    assert isinstance(module, _DualState)
    module.started = not math.isnan(module.duals[0])


class DualSGM(WeightingOptimizer):
    r"""Stochastic gradient steps on the dual (Levy et al., 2020), for the KL ball:

        min over w, eta, lam >= lam0 of  lam E[exp((l - eta)/lam) - 1] + eta + (lam - lam0) rho.

    With a = (l - eta)/lam: grad_w = E[e^a grad l], d_eta = 1 - E e^a, d_lam = E[e^a (1 - a)] - 1 + rho. e^a is not
    normalised, so a is capped, and `capped` counts how many samples it was capped for.

    Args:
        rho, lam0: as for `SCDRO`.
        lam: the first temperature; eta starts at the first batch's lam log mean exp(l/lam).
        dual_lr: step size of eta and lam; None takes the model's.
        cap: the largest a.
        params, lr, momentum, weight_decay, radius, skip_nonfinite: as for `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = DualSGM(model.parameters(), lr=0.1, rho=0.5, lam=1.0)
    """

    _tracked: _DualState
    _own_attributes = (*WeightingOptimizer._own_attributes, "_rho", "_lam0", "_dual_lr", "_cap")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        lam: float = 1.0,
        lam0: float = 1e-3,
        dual_lr: float | None = None,
        cap: float = 30.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_radius(rho, lam0)
        if not lam0 <= lam < math.inf:
            raise HyperparameterError(f"expected a first temperature lam >= lam0 = {lam0}, got {lam}")
        if dual_lr is not None and not 0.0 <= dual_lr < math.inf:
            raise HyperparameterError(f"expected dual_lr >= 0, got {dual_lr}")
        if not 0.0 < cap < 700.0:
            raise HyperparameterError(f"expected a cap in (0, 700) of (l - eta)/lam, got {cap}")
        self._rho, self._lam0, self._dual_lr, self._cap = rho, lam0, dual_lr, cap
        tracked = _DualState(lam, skip_nonfinite)
        super().__init__(params, lr, tracked, momentum=momentum, weight_decay=weight_decay, radius=radius)

    @property
    def lam(self) -> Tensor:
        """The temperature that the next batch will use."""
        return self._tracked.duals[1].clone()

    @property
    def eta(self) -> Tensor:
        """The dual variable of sum p = 1; NaN before the first batch."""
        return self._tracked.duals[0].clone()

    @property
    def capped(self) -> Tensor:
        """How many samples had their weight capped."""
        return self._tracked.capped[0].clone()

    def _weigh(self, batch: Batch) -> Weighed:
        tracked, q = self._tracked, _base(batch)
        eta, lam = unpacked(tracked.duals)
        if not tracked.started:
            eta = lam * _point(batch, lam).log_mean
        free = (batch.losses - eta) / lam
        a = free.clamp_max(self._cap)
        weights = q * torch.exp(a)
        mass, tilted = scalar(weights.sum()), scalar(torch.dot(weights, 1.0 - a))
        value = lam * (mass - 1.0) + eta + (lam - self._lam0) * self._rho
        lr = self.param_groups[0]["lr"] if self._dual_lr is None else self._dual_lr
        moved = [eta - lr * (1.0 - mass), maximum(lam - lr * (tilted - 1.0 + self._rho), self._lam0)]
        count = tracked.capped[0] + ((free > self._cap) & (q > 0)).sum()
        return Weighed(weights, value, [(tracked.duals, moved), (tracked.capped, [count])])


def _base(batch: Batch) -> Tensor:
    """q."""
    if batch.log_weight is None:
        return torch.full_like(batch.losses, 1.0 / len(batch.losses))
    return torch.exp(batch.log_weight - batch.log_mass)


def _point(batch: Batch, lam: Scalar) -> Point:
    joint = batch.losses / lam
    return Point.of(joint if batch.log_weight is None else joint + batch.log_weight, batch.log_mass)
