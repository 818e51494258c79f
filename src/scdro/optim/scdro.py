"""SCDRO (Algorithm 1): one backward pass a step, O(d) a step, any batch size."""

from __future__ import annotations

from torch import Tensor

from scdro.optim.base import Closure
from scdro.optim.robust import RobustOptimizer
from scdro.scalar import Scalar

__all__ = ["SCDRO"]


class SCDRO(RobustOptimizer):
    r"""Stochastic constrained DRO: gradient descent on the KL-constrained worst case, from mini-batches.

    Each `step(closure)`, with l the per-sample losses that the closure returns at w_t:

    1. s_t = (1-beta) s_{t-1} + beta mean exp(l/lam_t)                        (line 6)
    2. v_t = (1-beta) v_{t-1} + beta [mean(exp(l/lam_t)/s_t grad l) + wd w_t]   (line 7, eq. 6)
    3. w_{t+1} = Proj_W(w_t - lr v_t)                                         (line 4)
    4. lam_{t+1} by the `temperature`.

    The first step uses the batch's own estimates. It equals `KLRobustLoss` with SGD(momentum=1-beta,
    dampening=1-beta, weight_decay=wd).

    Args:
        params: parameters or parameter groups.
        lr: step size of the model.
        rho: radius of the KL ball; `rho_for_group(0.1)` guards every group of at least a tenth of the data.
        beta: share of the new batch in the averages, in (0, 1]; 1 - beta is the momentum.
        lam0: the paper's KL regulariser and the smallest lam.
        weight_decay: adds wd |w|^2/2 to the objective.
        temperature: how lam moves; `WindowTemperature()` by default, `PrintedTemperature()` for the paper's update.
        tracker: how s moves; the temperature's choice by default.
        loss_bound: C where all losses lie in [0, C]: gives lam_max = lam0 + C/rho; a loss outside is an error.
        radius: R, keeps all parameters together in the ball |w| <= R.
        trim: leave out the hardest `trim` of the recent losses (wrong labels).
        window: how many recent losses decide lam; enough for rho by default.
        skip_nonfinite: leave out batches with NaN or infinite losses, and count them in `skipped`, instead of raising.
        module: the model (or models) whose buffers the closure moves, BatchNorm's running statistics: a batch that is
            left out, or an error, leaves them as they were. Needed with `skip_nonfinite`, where there are such layers.
        mu: adds mu |x|^2/2 over x = (w, lam) to the objective, as the restarted forms do.
        process_group: the processes that share each batch: None for all, where torch.distributed is initialised; False
            for this one alone.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> opt = SCDRO(model.parameters(), lr=0.1, rho=0.5)
        >>> value = opt.step(lambda: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))

    Reference: Qi, Lyu, Chan, Bai, Yang, "Stochastic Constrained DRO with a Complexity Independent of Sample Size",
    TMLR 2023.
    """

    _vectors = ("v",)

    def _step(self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None) -> Scalar | None:
        beta = self._beta
        losses = self._losses(closure)
        batch = self._robust.read(losses, sample_weight)
        if self._skips(batch.finite):
            return None
        estimate = self._robust.estimate(batch, beta)
        self._backward(losses, batch, estimate.weights)
        if not self._gradients.ready():
            return None
        with self._undone_unless(batch.finite):
            for group in self.param_groups:
                self._follow(group, 1.0 - beta, beta, group["weight_decay"] + self._robust.mu)
            self._project()
        self._robust.commit(estimate, self.param_groups[0]["lr"])
        return estimate.objective
