"""RECOVER: KL-regularised DRO with STORM estimates, at a fixed temperature."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scdro.functional import objective
from scdro.optim._settings import check_same_temperature
from scdro.optim.ascdro import ASCDRO
from scdro.printed import PrintedTemperature

__all__ = [
    "RECOVER",
]


class RECOVER(ASCDRO):
    r"""Minimises lam log mean exp(l/lam) with STORM estimates (Qi, Guo, Xu, Jin, Yang, NeurIPS 2021).

    This is the w part of `ASCDRO` as printed, with lam fixed: s and its gradient are tracked by
    evaluating each batch at the current and at the previous point.

    Args:
        lam: the temperature, in units of the loss; tune it.
        beta: weight of the new batch in the estimates, in (0, 1].
        params, lr, module, weight_decay, loss_bound, radius, skip_nonfinite, process_group: as for
        `ASCDRO`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> opt = RECOVER(model.parameters(), lr=0.1, lam=1.0)
        >>> value = opt.step(lambda: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
    """

    _own_attributes = (*ASCDRO._own_attributes, "_frozen_lam")

    def __init__(
        self, params: Any, lr: float | Tensor = 0.1, lam: float = 1.0, **settings: Any
    ) -> None:
        self._frozen_lam = lam
        # lam0 is only a lower bound of lam, and has no effect at rho = 0.
        super().__init__(
            params, lr, 0.0, lam0=1e-9, temperature=PrintedTemperature(lam, lr=0.0), **settings
        )

    def _extra_state(self) -> dict[str, Any]:
        return {"lam": self._frozen_lam}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        check_same_temperature(own, self._frozen_lam)

    def full_objective(self, losses: Tensor) -> Tensor:
        """The tilted mean lam log mean exp(loss/lam) of the losses of all training samples."""
        value: Tensor = objective(losses, self._frozen_lam, rho=0.0)
        return value
