"""KLRobustLoss: the robust objective as a module, for any loop and any optimizer, with gradient accumulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scdro._buffers import Watch
from scdro._kl import solve_lam, trimmed_log_weights, value_at
from scdro._scalar import Scalar, exp, host_reads, where
from scdro._state import Batch, RobustState
from scdro._validation import check_beta
from scdro.distributed import Group
from scdro.errors import HyperparameterError
from scdro.functional import check_groups, group_means, group_weights
from scdro.temperature import Advance, Estimate, PrintedTemperature, Temperature, given_or_default

__all__ = [
    "KLRobustLoss",
]


@dataclass(eq=False)
class Part:
    """A part of a batch: the step that its loss was weighted by, and what has become of it."""

    batch: Batch
    beta: float
    step: Advance | None = None
    differentiated: bool = False
    before_zero_grad: bool = False
    marks: list[tuple[int, int]] | None = None  # of the gradients as the part found them, where no hook can tell


class Accumulation:
    """Parts of a batch between two steps of an optimizer, and the gradient of the whole.

    1. `stage` estimates s from all parts so far. Gradients already accumulated are rescaled to it.
    2. `scaled` is the hook of a loss's backward pass: s may have moved since that loss was computed.
    3. The optimizer's step commits; a step that a GradScaler skips commits nothing.
    4. `zero_grad` drops the parts whose gradients it drops; one not yet differentiated stays, as loops may call
       zero_grad between forward and backward.
    """

    def __init__(self, state: RobustState, optimizer: Optimizer, before: Accumulation | None = None) -> None:
        if isinstance(getattr(optimizer.zero_grad, "__self__", None), Accumulation):
            raise HyperparameterError(
                "expected one loss for each optimizer, got a second: it would rescale the gradients of the first; "
                "add up the per-sample losses instead"
            )
        if before is not None:
            before.leave()
        self.state, self.optimizer = state, optimizer
        self._parts: list[Part] = []
        self._staged: Estimate | None = None
        self._zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self.zero_grad  # type: ignore[method-assign]
        self._hooks = [
            optimizer.register_step_pre_hook(self._drop_bad_gradients),
            optimizer.register_step_post_hook(self._commit),
        ]

    def leave(self) -> None:
        """Let go of the optimizer, between two batches."""
        self._drop_abandoned()
        if self._parts:
            raise HyperparameterError(
                "expected to be attached to another optimizer between two batches, got it amid one; call step() or "
                "zero_grad() of the first optimizer before"
            )
        self.optimizer.zero_grad = self._zero_grad  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    @property
    def shares(self) -> list[Scalar]:
        """Of each part's samples, by weight, in the batch so far; of all processes."""
        masses = [exp(part.batch.log_mass) for part in self._parts]
        return [mass / sum(masses) for mass in masses]

    def rescale(self, scale: Scalar) -> None:
        """All gradients so far, times a number."""
        _rescale(self._gradients(), scale)

    def stage(self, batch: Batch, beta: float) -> tuple[Estimate, Part]:
        gradients = self._gradients()
        self._drop_abandoned()
        before, earlier = self._staged, self._parts[-1].batch.finite if self._parts else None
        if batch.finite is not None and earlier is not None:
            batch = batch._replace(finite=batch.finite & earlier)
        part = Part(batch, beta)
        estimate = self._estimate(part, before)
        part.step = estimate.step
        if before is not None:
            _rescale(gradients, _ratio(before.step, estimate.step))
        if torch.compiler.is_compiling():
            part.marks = self._marks()
        self._parts.append(part)
        self._staged = estimate
        return estimate, part

    def scaled(self, part: Part, gradient: Tensor) -> Tensor:
        """A gradient at the s that holds by now."""
        part.differentiated = True
        if self._staged is None or part.step is None:
            return gradient
        return gradient * _ratio(part.step, self._staged.step)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._keep([part for part in self._parts if not self._differentiated(part)])
        for part in self._parts:
            part.before_zero_grad = True
        self._zero_grad(set_to_none)

    def _differentiated(self, part: Part) -> bool:
        return part.differentiated if part.marks is None else part.marks != self._marks()

    def _drop_abandoned(self) -> None:
        """Parts dropped with their gradients by model.zero_grad(), or left before a zero_grad and never used."""
        gradients = self._gradients()
        self._keep([p for p in self._parts if (gradients if self._differentiated(p) else not p.before_zero_grad)])

    def forget(self) -> None:
        """Drop the parts of the present batch; their gradients stay."""
        self._parts, self._staged = [], None

    def _keep(self, parts: list[Part]) -> None:
        """Forget the other parts, and what they did to s."""
        if len(parts) == len(self._parts):
            return
        self._parts, self._staged = parts, None
        for part in parts:
            self._staged = self._estimate(part, self._staged)

    def _estimate(self, part: Part, before: Estimate | None) -> Estimate:
        if self.state.needs_whole_batch:
            return self.state.observe(part.batch)
        return self.state.estimate(part.batch, part.beta, staged=before)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _marks(self) -> list[tuple[int, int]]:
        """What a backward pass changes."""
        return [(id(gradient), gradient._version) for gradient in self._gradients()]

    def _drop_bad_gradients(self, *_: Any) -> None:
        """On an accelerator a bad batch is known to the device alone: its gradients, NaN or not, become zeros."""
        finite = self._parts[-1].batch.finite if self._parts else None
        if finite is None:
            return
        for gradient in self._gradients():
            gradient.copy_(torch.where(finite, gradient, 0.0))

    def _commit(self, optimizer: Optimizer, *_: Any) -> None:
        if self._staged is None:
            return
        # Fused optimizers are called even when a GradScaler found an overflow, and skip the step themselves.
        overflow = getattr(optimizer, "found_inf", None)
        only_if = None if overflow is None else (overflow == 0).to(self.state.scalars.device).reshape(())
        self.state.commit(self._staged, *(part.batch for part in self._parts), only_if=only_if)
        self._parts, self._staged = [], None


def _ratio(then: Advance, now: Advance) -> Scalar:
    """s then over s now; one where everything was trimmed away then, and there is nothing to rescale."""
    return where(then.log_mean > -math.inf, exp(then.log_s - now.log_s), 1.0)


def _rescale(gradients: list[Tensor], scale: Scalar) -> None:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for group in groups.values():
        torch._foreach_mul_(group, scale.to(group[0]) if isinstance(scale, Tensor) else scale)


# -- the loss ---------------------------------------------------------------------------------------------------------


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
            self.state.commit(estimate, batch)
            return _with_gradient(losses, batch, estimate.objective, _of_samples(estimate.weights, batch, shares))
        estimate, part = self.accumulation.stage(batch, self.beta)
        batch = part.batch
        value = _with_gradient(losses, batch, estimate.objective, _of_samples(estimate.weights, batch, shares))
        if not torch.compiler.is_compiling():
            value.register_hook(partial(self.accumulation.scaled, part))  # type: ignore[no-untyped-call]
        return value

    def _exact(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The worst case of these losses alone, and its weights; it leaves no trace in the state."""
        rho, lam0 = self.state.limits.rho, self.state.limits.lam0
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
        Called again, it watches others. Copies of the loss, or of the modules, are not watched: call it for them.

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
        if self.accumulation is not None:
            self.accumulation.forget()

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
        limits, temperature = self.state.limits, type(self.state.temperature).__name__
        return f"rho={limits.rho:g}, beta={self.beta:g}, lam0={limits.lam0:g}, temperature={temperature}"


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
    if isinstance(value, float):
        surrogate.detach().fill_(value)  # the same memory; the gradient does not depend on it
        return surrogate
    return value.to(dtype) + (surrogate - surrogate.detach())


def _result_dtype(losses: Tensor) -> torch.dtype:
    return torch.promote_types(losses.dtype, torch.float32)
