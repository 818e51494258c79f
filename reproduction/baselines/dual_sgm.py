"""Dual SGM: plain stochastic gradient steps on the dual of the KL-constrained problem."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scdro._buffers import Modules
from scdro._scalar import maximum, scalar, unpacked
from scdro._state import Batch, MethodState
from scdro._validation import check_number, check_optional, check_radius
from scdro.distributed import Group
from scdro.functional import worst_case
from scdro.optim.baselines.erm import Weighed, WeightingOptimizer, base_weights, tilt_at

__all__ = [
    "DualSGM",
]


class _DualState(MethodState):
    duals: Tensor  # eta, lam
    capped: Tensor

    def __init__(self, lam: float, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self._first_lam = lam
        self.register_buffer("duals", torch.empty(2, dtype=self.dtype))
        self.register_buffer("capped", torch.empty(1, dtype=torch.int64))
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_note_started)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.duals[0], self.duals[1] = math.nan, self._first_lam
        self.capped.zero_()


def _note_started(module: torch.nn.Module, _: object) -> None:
    assert isinstance(module, _DualState)
    module.started = not math.isnan(module.duals[0])


class DualSGM(WeightingOptimizer):
    r"""Stochastic gradient steps on the dual problem (Levy et al., 2020) for the KL ball:

        min over w, eta, lam >= lam0 of  lam E[exp((l - eta)/lam) - 1] + eta + (lam - lam0) rho.

    With a = (l - eta)/lam: grad_w = E[e^a grad l], d_eta = 1 - E e^a, d_lam = E[e^a (1 - a)] - 1 +
    rho. e^a is not normalised, so a is capped, and `capped` counts the samples where this happened.

    Args:
        rho, lam0: as for `SCDRO`.
        lam: the initial temperature; eta starts at the first batch's lam log mean exp(l/lam).
        dual_lr: step size of eta and lam; None uses the model's current lr.
        cap: the largest a. It keeps numbers finite but not steps small, since e^a is a sample's
            weight.
        params, lr, momentum, weight_decay, radius, skip_nonfinite, module, process_group: as for
        `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = DualSGM(model.parameters(), lr=0.1, rho=0.5, lam=1.0)
    """

    _method_state: _DualState
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
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        check_radius(rho, lam0)
        check_number("lam", lam, f">= lam0 = {lam0}", "the first temperature")
        check_optional("dual_lr", dual_lr, ">= 0")
        check_number("cap", cap, "in (0, 700)", "a bound on (l - eta)/lam")
        self._rho, self._lam0, self._dual_lr, self._cap = rho, lam0, dual_lr, cap
        method_state = _DualState(lam, skip_nonfinite, process_group)
        super().__init__(
            params,
            lr,
            method_state,
            momentum=momentum,
            weight_decay=weight_decay,
            radius=radius,
            module=module,
        )

    @property
    def lam(self) -> Tensor:
        """The temperature for the next batch."""
        return self._method_state.duals[1].clone()

    @property
    def eta(self) -> Tensor:
        """The dual variable of sum p = 1; NaN before the first batch."""
        return self._method_state.duals[0].clone()

    @property
    def capped(self) -> Tensor:
        """Number of samples whose weight was capped."""
        return self._method_state.capped[0].clone()

    def _weigh(self, batch: Batch) -> Weighed:
        method_state, q = self._method_state, base_weights(batch)
        eta, lam = unpacked(method_state.duals)
        if not method_state.started:
            eta = lam * tilt_at(batch, lam).log_mean
        free = (batch.losses - eta) / lam
        a = free.clamp_max(self._cap)
        weights = q * torch.exp(a)
        mass, tilted = scalar(weights.sum()), scalar(torch.dot(weights, 1.0 - a))
        value = lam * (mass - 1.0) + eta + (lam - self._lam0) * self._rho
        lr = float(self.param_groups[0]["lr"]) if self._dual_lr is None else self._dual_lr
        moved = [
            eta - lr * (1.0 - mass),
            maximum(lam - lr * (tilted - 1.0 + self._rho), self._lam0),
        ]
        count = method_state.capped[0] + ((free > self._cap) & (q > 0)).sum()
        return Weighed(
            weights, value, [(method_state.duals, moved), (method_state.capped, [count])]
        )

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples."""
        value: Tensor = worst_case(losses, self._rho, self._lam0).value
        return value
