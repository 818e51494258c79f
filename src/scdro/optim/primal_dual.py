"""What the primal-dual methods share: a distribution over all n samples beside the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scdro.buffers import Modules
from scdro.distributed import Group
from scdro.errors import LossError
from scdro.functional import worst_case
from scdro.optim.base import Closure, ClosureOptimizer, check_steps
from scdro.reading import check_radius
from scdro.scalar import Scalar
from scdro.sharding import Sharding
from scdro.tracked import Tracked

__all__ = ["NO_LAM0", "PrimalDual"]

# The regulariser of a worst case that has none: small enough to be nothing, large enough to divide by.
NO_LAM0 = 1e-9


class PrimalDual(ClosureOptimizer):
    """min over w, max over {KL(p, 1/n) <= rho} of sum_i p_i l_i(w), with p kept for all n samples, on the host."""

    _own_attributes = (*ClosureOptimizer._own_attributes, "_rho", "_dual_lr")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        rho: float,
        dual_lr: float,
        *,
        weight_decay: float,
        radius: float | None,
        skip_nonfinite: bool,
        process_group: Group,
        module: Modules = None,
    ) -> None:
        check_radius(rho, NO_LAM0)
        check_steps({"dual_lr": dual_lr})
        self._rho, self._dual_lr = rho, dual_lr
        tracked = Tracked(skip_nonfinite=skip_nonfinite, process_group=process_group)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, tracked, radius=radius, module=module)

    def _step(self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None) -> Scalar | None:
        if sample_weight is not None:
            raise LossError(f"expected no sample_weight, got one: {type(self).__name__} weighs by its own p")
        self._sharding.check()
        return self._primal_dual_step(closure, index)

    @property
    def _sharding(self) -> Sharding:
        """How p is cut over the processes."""
        raise NotImplementedError

    def _primal_dual_step(self, closure: Closure, index: Tensor | None) -> Scalar | None:
        raise NotImplementedError

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples, without lam0."""
        value: Tensor = worst_case(losses, self._rho, NO_LAM0).value
        return value

    # -- monitoring ---------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Tensor:
        """p, of all n samples."""
        raise NotImplementedError

    @property
    def kl(self) -> Tensor:
        """KL(p, 1/n)."""
        p = self.weights
        kl: Tensor = torch.special.xlogy(p, p * len(p)).sum()
        return kl

    @property
    def ess(self) -> Tensor:
        """Effective sample size of p as a share of n."""
        p = self.weights
        return torch.reciprocal(len(p) * torch.dot(p, p))
