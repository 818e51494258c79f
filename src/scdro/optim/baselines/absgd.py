"""ABSGD, and TERM (gamma = 1): KL-regularised DRO at a fixed temperature.

With lam fixed, the worst case is the tilted mean lam log E exp(l/lam), and only the normalisation
u = E exp(l/lam) has to be tracked, from u_0 = 0:

    u <- (1-gamma) u + gamma mean exp(l/lam)
    v <- momentum v + mean( exp(l/lam)/u grad l )
    w <- w - lr v

It is SCDRO at a fixed lam, with SGD's momentum, and the method to copy when you add one
(CONTRIBUTING.md).

References:
    Qi, Xu, Jin, Yin, Yang, "Attentional Biased Stochastic Gradient for Imbalanced Classification",
    2020. Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021 (TERM).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scdro._buffers import Modules
from scdro._scalar import logaddexp, unpacked
from scdro._state import Batch, MethodState
from scdro._validation import check_number
from scdro.distributed import Group
from scdro.functional import objective
from scdro.optim._settings import check_same_temperature
from scdro.optim.baselines.erm import Weighed, WeightingOptimizer, tilt_at

__all__ = [
    "ABSGD",
]


class _AbsgdState(MethodState):
    """What all methods keep, and log u, which starts at log 0."""

    log_u: Tensor  # (1,)

    def __init__(self, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.register_buffer("log_u", torch.empty(1, dtype=self.dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.log_u.fill_(-math.inf)


class ABSGD(WeightingOptimizer):
    r"""Attentional biased SGD (Qi, Xu, Jin, Yin, Yang, 2020): KL-regularised DRO at a fixed temperature.

    u <- (1-gamma) u + gamma mean exp(l/lam), u_0 = 0; weights exp(l/lam)/(n u). gamma = 1 is TERM
    (Li et al., 2021).

    Args:
        lam: the temperature, in units of the loss; tune it.
        gamma: weight of the new batch in u, in (0, 1].
        params, lr, momentum, weight_decay, radius, skip_nonfinite, module, process_group: as for
        `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = ABSGD(model.parameters(), lr=0.1, lam=1.0, gamma=0.9)
    """

    _method_state: _AbsgdState
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
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        check_number("lam", lam, "> 0", "a temperature")
        check_number("gamma", gamma, "in (0, 1]", "the weight of the new batch in u")
        self._lam, self._gamma = lam, gamma
        method_state = _AbsgdState(skip_nonfinite, process_group)
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
        """exp(l/lam)/(n u), the value lam log u, and the new log u, in the log domain."""
        point = tilt_at(batch, self._lam)
        log_u = point.log_mean
        if self._gamma < 1.0:
            (past,) = unpacked(self._method_state.log_u)
            log_u = logaddexp(past + math.log1p(-self._gamma), log_u + math.log(self._gamma))
        return Weighed(
            point.weights(log_u), self._lam * log_u, [(self._method_state.log_u, [log_u])]
        )

    def _extra_state(self) -> dict[str, Any]:
        """The temperature, without which u has no meaning."""
        return {"lam": self._lam}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        check_same_temperature(own, self._lam)

    def full_objective(self, losses: Tensor) -> Tensor:
        """The tilted mean lam log mean exp(loss/lam) of the losses of all training samples."""
        value: Tensor = objective(losses, self._lam, rho=0.0)
        return value
