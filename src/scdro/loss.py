"""KLRobustLoss: the robust objective as a module, for any loop and any optimizer."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scdro._kl import solve_lam, trimmed_log_weights, value_at
from scdro.accumulation import Accumulation
from scdro.batch import Batch
from scdro.buffers import Watch
from scdro.distributed import Group
from scdro.errors import HyperparameterError
from scdro.groups import check_groups, group_means, group_weights
from scdro.reading import check_beta
from scdro.scalar import Scalar, host_reads, where
from scdro.state import RobustState
from scdro.temperature import PrintedTemperature, Temperature, given_or_default

__all__ = ["KLRobustLoss"]

_DETACHED = (
    "expected losses that require grad, got detached ones; call the loss in eval() mode, or under torch.no_grad(), to "
    "evaluate only"
)


class KLRobustLoss(nn.Module):
    r"""The KL-constrained worst case of per-sample losses, tracked from batch to batch.

    1. lam_t comes from the batches before (the first batch finds its own).
    2. s_t = (1-beta) s_{t-1} + beta mean exp(l/lam_t), in the log domain.
    3. The value is lam_t log s_t + (lam_t - lam0) rho, the running robust objective: a bound of the worst case that is
       loose until about exp(rho) losses were seen, fewer than which cannot show a KL of rho.
    4. Its gradient is mean(exp(l/lam_t)/s_t grad l): hard samples weigh more.
    5. lam_{t+1} follows the losses of the recent batches.

    In training mode each call is one step of the algorithm. In `eval()` mode, and where gradients are off, the value is
    the exact robust value of the losses given, and nothing is remembered. With `SGD(momentum=1-beta, dampening=1-beta)`
    it is the algorithm `SCDRO`.

    Args:
        rho: radius of the KL ball; `rho_for_group(0.1)` guards every group of at least a tenth of the data.
        beta: share of the new batch in s, in (0, 1].
        lam0: the paper's KL regulariser and the smallest lam.
        temperature: how lam moves; `WindowTemperature()` by default.
        loss_bound: C where all losses are known to lie in [0, C]; one outside is an error.
        trim: leave out the hardest `trim` of the recent losses (wrong labels).
        window: how many recent losses decide lam; enough for rho by default.
        skip_nonfinite: leave out batches with NaN or infinite losses, and count them in `skipped`, instead of raising.
            BatchNorm has seen such a batch by the time its losses are known: see `watch`.
        process_group: the processes that share each batch: None for all, where torch.distributed is initialised; False
            for this one alone. Each call is then one step on the losses of all of them. Gradients must be averaged, as
            DistributedDataParallel and fully_shard do. In `eval()` mode each process has its own losses.

    Example:
        >>> robust = KLRobustLoss(rho=0.5)
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> loss = robust(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
        >>> loss.backward()
    """

    def __init__(
        self,
        rho: float,
        *,
        beta: float = 0.1,
        lam0: float = 1e-3,
        temperature: Temperature | None = None,
        loss_bound: float | None = None,
        trim: float = 0.0,
        window: int | None = None,
        skip_nonfinite: bool = False,
        process_group: Group = None,
    ) -> None:
        super().__init__()
        check_beta(beta)
        temperature = given_or_default(temperature)
        if isinstance(temperature, PrintedTemperature) and temperature.lr is None:
            raise HyperparameterError(
                "expected PrintedTemperature(lr=...) with a step size of its own: a loss has no learning rate to borrow"
            )
        self.beta = beta
        self.state = RobustState(
            rho,
            lam0,
            temperature,
            temperature.one_point_tracker(),
            loss_bound=loss_bound,
            trim=trim,
            window=window,
            skip_nonfinite=skip_nonfinite,
            process_group=process_group,
        )
        self.accumulation: Accumulation | None = None
        self._watched: list[Watch] = []

    def forward(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """The running robust objective of per-sample `losses`, ready for `backward`.

        Args:
            losses: a vector, one loss per sample (`reduction="none"`).
            sample_weight: importance weights, >= 0, shape of `losses`.
            mask: True where a loss counts; padding is False.
            groups: the group of each sample, integers: the worst case is then over the groups' mean losses, each with
                the share of its samples. The means are the batch's own, and with `attach` each part's: let them hold
                several samples of each group.
        """
        trains = self.training and torch.is_grad_enabled()
        labels = None if groups is None else partial(_checked_groups, groups, losses)
        graph = _DETACHED if trains else ""
        try:
            batch = self.state.read(losses, sample_weight, mask, labels=labels, alone=not trains, graph=graph)
        except Exception:
            if trains:
                self._judge(False)
            raise
        shares = None if batch.log_weight is None else torch.exp(batch.log_weight - batch.log_mass)
        if batch.labels is not None:
            batch = batch._replace(losses=group_means(batch.losses, batch.labels, shares))
        if not trains:
            value, weights = self._exact(batch)
            return _with_gradient(losses, batch, value, _of_samples(weights, batch, shares))
        if self.state.skip_nonfinite and host_reads(batch.losses) and not bool(batch.finite):
            self.state.count_skipped(True)
            self._judge(False)
            # No graph: gradients stay None, and optimizers stand still.
            return torch.zeros((), dtype=_result_dtype(losses), device=losses.device, requires_grad=True)
        self._judge(True if batch.finite is None or host_reads(batch.finite) else batch.finite)
        if self.accumulation is None:
            estimate = self.state.estimate(batch, self.beta)
            self.state.commit(estimate)
            return _with_gradient(losses, batch, estimate.objective, _of_samples(estimate.weights, batch, shares))
        estimate, part = self.accumulation.stage(batch, self.beta)
        batch = estimate.batch
        value = _with_gradient(losses, batch, estimate.objective, _of_samples(estimate.weights, batch, shares))
        if not torch.compiler.is_compiling():
            value.register_hook(partial(self.accumulation.scaled, part))  # type: ignore[no-untyped-call]
        return value

    def _exact(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The worst case of these losses alone, and its weights; it leaves no trace in the state."""
        rho, lam0, *_ = self.state.limits
        log_q = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        if self.state.trim:
            log_q = trimmed_log_weights(batch.losses, log_q, self.state.trim)
        lam = solve_lam(batch.losses, log_q, rho, lam0, wait=not torch.compiler.is_compiling())
        value, weights, _ = value_at(batch.losses, batch.losses, log_q, lam, lam0)
        return value, weights

    # -- gradient accumulation, mixed precision ---------------------------------------------------------------------

    def attach(self, optimizer: Optimizer) -> KLRobustLoss:
        """Let the state move with `optimizer.step()` instead of with each call.

        For gradient accumulation and mixed precision. Calls between two steps are parts of one batch, and after the
        last one the gradients are those of the one large batch (divide each loss by the number of parts, as for a
        mean). A step that a GradScaler skips moves nothing, and `optimizer.zero_grad()` drops what was accumulated,
        here too. So does `model.zero_grad()`, unless it only fills the gradients with zeros.

        The very first step weighs all samples the same unless the temperature was given an initial value: lam_1 is
        found from the whole first batch, which is not there while its parts pass through.

        Every gradient of the optimizer's parameters is rescaled when a later part changes s: add other terms to the
        loss of the last part only, and attach one loss to an optimizer. With `skip_nonfinite` a bad part is left out
        on a CPU; on an accelerator, where nobody may look, the whole batch. Under torch.compile call `backward` on each
        part before the next.

        Attached to another optimizer, as by a second `fit` of Lightning, the loss leaves the first; not amid a batch.
        """
        inner = getattr(optimizer, "optimizer", None)  # Accelerate and Lightning wrap them.
        optimizer = inner if isinstance(inner, Optimizer) else optimizer
        before = self.accumulation
        if before is None or before.optimizer is not optimizer:
            self.accumulation = Accumulation(self.state, optimizer, before)
        return self

    def watch(self, *modules: nn.Module) -> KLRobustLoss:
        """Let a batch that is left out, or refused, leave no trace in the buffers of `modules` either.

        The loss sees losses, and BatchNorm's running statistics have moved by then. Of the modules named here, in
        training mode, it keeps a copy of the buffers at the first forward pass since its last call, and puts them back
        with a bad batch. Name those that you call: hooks of a module inside of another torch.compile does not run.
        Called again, it watches others.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            >>> robust = KLRobustLoss(rho=0.5, skip_nonfinite=True).watch(model)
        """
        for watched in self._watched:
            watched.leave()
        self._watched = [Watch(module, self) for module in modules]
        return self

    def _judge(self, good: Tensor | bool) -> None:
        if self._watched and not torch.compiler.is_compiling():
            for watched in self._watched:
                watched.settle(good)

    def reset_parameters(self) -> None:
        """Forget every batch: lam, s and the recent losses are those of a new object."""
        self.state.reset_parameters()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is attached to nothing, and watches nothing."""
        return {**self.__dict__, "accumulation": None, "_watched": []}

    # -- monitoring ---------------------------------------------------------------------------------------------------

    @property
    def lam(self) -> Tensor:
        """The temperature the next batch will use; NaN before the first, inf where rho = 0."""
        return self.state.lam

    @property
    def kl(self) -> Tensor:
        """The KL distance that the worst case spends on the recent losses: near rho, or below it at lam0."""
        return self.state.monitor()[0]

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the worst case as a share of the recent samples, in (0, 1]."""
        return self.state.monitor()[1]

    @property
    def skipped(self) -> Tensor:
        """How many batches were left out for NaN or infinite losses."""
        return self.state.skipped[0].clone()

    def extra_repr(self) -> str:
        rho, lam0, *_ = self.state.limits
        return f"rho={rho:g}, beta={self.beta:g}, lam0={lam0:g}, temperature={type(self.state.temperature).__name__}"


def _checked_groups(groups: Tensor, losses: Tensor) -> Tensor:
    check_groups(groups, losses)
    return groups


def _of_samples(weights: Tensor, batch: Batch, shares: Tensor | None) -> Tensor:
    """Weights of the samples' own losses, where those of the batch are the means of their groups."""
    return weights if batch.labels is None else group_weights(weights, batch.labels, shares)


def _with_gradient(losses: Tensor, batch: Batch, value: Scalar, weights: Tensor) -> Tensor:
    """The value with the gradient sum_j weight_j grad l_j; no gradient flows through the weights."""
    dtype = _result_dtype(losses)
    weights = batch.own_weights(weights)
    if batch.log_weight is not None:  # Losses of weight zero may be anything, NaN too.
        losses = torch.where(batch.own(batch.log_weight) > -math.inf, losses, 0.0)
    if batch.finite is not None:
        weights, value = torch.where(batch.finite, weights, 0.0), where(batch.finite, value, 0.0)
        losses = torch.where(batch.finite, losses, 0.0)
    surrogate = torch.dot(weights.to(dtype), losses.to(dtype))
    return torch.as_tensor(value, dtype=dtype, device=losses.device) + (surrogate - surrogate.detach())


def _result_dtype(losses: Tensor) -> torch.dtype:
    return torch.promote_types(losses.dtype, torch.float32)
