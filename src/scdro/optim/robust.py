"""What the KL-constrained optimizers share beyond `ClosureOptimizer`: one `RobustState`, and how to watch it."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from scdro.buffers import Modules
from scdro.distributed import Group
from scdro.errors import HyperparameterError
from scdro.estimators import Tracker
from scdro.functional import worst_case
from scdro.optim.base import ClosureOptimizer
from scdro.reading import check_beta
from scdro.scalar import Scalar
from scdro.state import RobustState
from scdro.temperature import Temperature, given_or_default

__all__ = ["RobustOptimizer"]


class RobustOptimizer(ClosureOptimizer):
    """Base of the optimizers over x = (w, lam)."""

    _robust: RobustState
    _own_attributes: ClassVar[tuple[str, ...]] = (*ClosureOptimizer._own_attributes, "_robust")

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
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        check_beta(beta)
        temperature = given_or_default(temperature)
        if tracker is None:
            tracker = temperature.two_point_tracker() if self._two_points else temperature.one_point_tracker()
        if tracker.two_points != self._two_points:
            raise HyperparameterError(
                f"expected a tracker of {2 if self._two_points else 1} point(s) for {type(self).__name__}, "
                f"got {type(tracker).__name__}"
            )
        self._robust = RobustState(
            rho,
            lam0,
            temperature,
            tracker,
            loss_bound=loss_bound,
            trim=trim,
            window=window,
            skip_nonfinite=skip_nonfinite,
            mu=mu,
            process_group=process_group,
        )
        defaults = {"lr": lr, "beta": beta, "weight_decay": weight_decay}
        super().__init__(params, defaults, self._robust, radius=radius, module=module)

    def _value_if_skipped(self) -> Scalar:
        return self._robust.objective

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples: what the method minimises."""
        rho, lam0, *_ = self._robust.limits
        value: Tensor = worst_case(losses, rho, lam0, trim=self._robust.trim).value
        return value

    @property
    def _beta(self) -> float:
        """s is one number, and so is beta, whatever the parameter groups."""
        beta: float = self.param_groups[0]["beta"]
        if any(group["beta"] != beta for group in self.param_groups):
            raise HyperparameterError("expected the same beta in all parameter groups, got different ones")
        return beta

    # -- monitoring ---------------------------------------------------------------------------------------------------

    @property
    def temperature(self) -> Temperature:
        """How lam moves: this optimizer's own copy of what it was given."""
        return self._robust.temperature

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
        return self._robust.resets[0].clone()

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_beta(group["beta"])
        _ = self._beta
