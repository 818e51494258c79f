"""KLRobustLoss: the robust objective as a module, for any training loop and optimizer.

    loss = robust(losses)       one step of Algorithm 1: s_t and the weights from the batch
    loss.backward()             gradient mean( exp(l/lam)/s_t grad l )
    optimizer.step()            any torch optimizer; SGD with momentum 1 - beta gives SCDRO

By default the state (s, lam, the recent losses) is updated in the call itself. With `attach`, calls
between two optimizer steps are parts of one batch, and the state is updated when the optimizer
steps. `Accumulation` does that. Its difficulty: the weights of all parts are divided by the s of
the whole batch, which is not known before the last part. So each part is weighted with the s so
far, and when a later part changes s, the gradients accumulated so far are multiplied by old s/new
s.

From the top: accumulation; the loss; small functions that give a value its gradient.
"""

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
from scdro._state import Batch, RobustState, state_for
from scdro._validation import check_beta, check_groups, check_is, refuse_arguments
from scdro.distributed import Group
from scdro.errors import HyperparameterError
from scdro.functional import group_means, group_weights
from scdro.temperature import Step, Temperature, given_or_default

__all__ = [
    "KLRobustLoss",
]


@dataclass(eq=False)
class MicroBatch:
    """A part of a batch, the step that determined its weights, and its status."""

    batch: Batch  # its losses, (m,), a copy
    beta: float  # the weight of the whole batch in s
    step: Step | None = None  # of this part and those before; its weights are in this part's graph
    differentiated: bool = False  # whether its backward pass has run
    before_zero_grad: bool = False  # whether zero_grad was called after its forward pass
    # In a compiled graph, which runs no hooks: identity and version of the gradients before this
    # part's backward pass. If they have changed, it has run.
    marks: list[tuple[int, int]] | None = None


class Accumulation:
    """Collects the parts of a batch between two optimizer steps.

    Gradients are then those of the whole batch, and the state changes when the optimizer steps:

    1. `stage` estimates s from all parts so far and rescales the gradients accumulated so far to
        the new s.
    2. `rescale_gradient` is a hook in each loss's backward pass, since s may have changed after
        that loss was computed.
    3. The optimizer's step commits. A step that a GradScaler skips commits nothing.
    4. `zero_grad` drops the parts whose gradients it clears. Parts without a backward pass yet are
        kept, because loops may call zero_grad between forward and backward.

    Attributes:
        _parts: the parts of the current batch, in order.
        _staged: the step of all of them together; None between two batches.
    """

    def __init__(
        self, state: RobustState, optimizer: Optimizer, before: Accumulation | None = None
    ) -> None:
        if isinstance(getattr(optimizer.zero_grad, "__self__", None), Accumulation):
            raise HyperparameterError(
                "expected one loss per optimizer, got a second, which would rescale the gradients"
                " of the first; call detach() of the first, or, to use both, add up the per-sample"
                " losses"
            )
        if before is not None:
            before.detach()
        self.state, self.optimizer = state, optimizer
        self._parts: list[MicroBatch] = []
        self._staged: Step | None = None
        # There is no hook for zero_grad, so the optimizer's own is replaced until `detach`.
        self._zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self.zero_grad  # type: ignore[method-assign]
        self._hooks = [
            optimizer.register_step_pre_hook(self._drop_bad_gradients),
            optimizer.register_step_post_hook(self._commit),
        ]

    def detach(self) -> None:
        """Leave the optimizer; only allowed between two batches."""
        self._drop_abandoned()
        if self._parts:
            raise HyperparameterError(
                "expected attach() with another optimizer, or detach(), between two batches, got it"
                " in the middle of one; call step() or zero_grad() of the first optimizer before"
            )
        self.optimizer.zero_grad = self._zero_grad  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    @property
    def shares(self) -> list[Scalar]:
        """Each part's share of the batch so far, by weight, over all processes."""
        masses = [exp(part.batch.log_mass) for part in self._parts]
        return [mass / sum(masses) for mass in masses]

    def rescale(self, scale: Scalar) -> None:
        """Multiply all gradients so far by a number."""
        _rescale(self._gradients(), scale)

    def stage(self, batch: Batch, beta: float) -> tuple[Step, MicroBatch]:
        """Take a part of the batch: the step of all parts so far, and the part as it is kept.

        Gradients that are there already are rescaled to the new s.
        """
        gradients = self._gradients()
        self._drop_abandoned()
        before = self._staged
        # On an accelerator, one bad part makes the whole batch bad: the flags are joined.
        earlier = self._parts[-1].batch.finite if self._parts else None
        if batch.finite is not None and earlier is not None:
            batch = batch._replace(finite=batch.finite & earlier)
        # The user may write to their losses.
        part = MicroBatch(batch._replace(losses=batch.losses.clone()), beta)
        step = part.step = self._estimate(part, before)
        if before is not None:
            _rescale(gradients, _ratio(before, step))
        if torch.compiler.is_compiling():
            part.marks = self._marks()
        self._parts.append(part)
        self._staged = step
        return step, part

    def rescale_gradient(self, part: MicroBatch, gradient: Tensor) -> Tensor:
        """The gradient that enters a part's backward pass, rescaled to the current s."""
        part.differentiated = True
        if self._staged is None or part.step is None:
            return gradient
        return gradient * _ratio(part.step, self._staged)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and drop the parts that they were made of."""
        self._keep([part for part in self._parts if not self._has_backward(part)])
        for part in self._parts:
            part.before_zero_grad = True
        self._zero_grad(set_to_none)

    def _has_backward(self, part: MicroBatch) -> bool:
        """Whether the part's backward pass has run."""
        return part.differentiated if part.marks is None else part.marks != self._marks()

    def _drop_abandoned(self) -> None:
        """Drop parts whose gradients are gone, or that will have none.

        These are differentiated parts whose gradients model.zero_grad() has cleared, and parts from
        before a zero_grad that were never differentiated.
        """
        gradients = self._gradients()
        self._keep(
            [
                p
                for p in self._parts
                if (gradients if self._has_backward(p) else not p.before_zero_grad)
            ]
        )

    def forget(self) -> None:
        """Drop the parts of the current batch, but keep their gradients."""
        self._parts, self._staged = [], None

    def _keep(self, parts: list[MicroBatch]) -> None:
        """Drop the other parts and undo their effect on s."""
        if len(parts) == len(self._parts):
            return
        self._parts, self._staged = parts, None
        for part in parts:
            self._staged = self._estimate(part, self._staged)

    def _estimate(self, part: MicroBatch, before: Step | None) -> Step:
        """The step of a part and those before; of a first batch, with equal weights (`observe`)."""
        if self.state.needs_whole_batch:
            return self.state.observe(part.batch)
        return self.state.estimate(part.batch, part.beta, staged=before)

    def _gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one."""
        return [
            p.grad
            for group in self.optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

    def _marks(self) -> list[tuple[int, int]]:
        """Identity and version of each gradient; a backward pass changes them."""
        return [(id(gradient), gradient._version) for gradient in self._gradients()]

    def _drop_bad_gradients(self, *_: Any) -> None:
        """On an accelerator only the device knows that a batch is bad, so its gradients are set to zero."""
        finite = self._parts[-1].batch.finite if self._parts else None
        if finite is None:
            return
        for gradient in self._gradients():
            gradient.copy_(torch.where(finite, gradient, 0.0))

    def _commit(self, optimizer: Optimizer, *_: Any) -> None:
        """After the optimizer's step: update the state, unless the step was skipped."""
        if self._staged is None:
            return
        # Fused optimizers are called even when a GradScaler found an overflow, and skip the step
        # themselves.
        overflow = getattr(optimizer, "found_inf", None)
        only_if = (
            None if overflow is None else (overflow == 0).to(self.state.scalars.device).reshape(())
        )
        self.state.commit(self._staged, *(part.batch for part in self._parts), only_if=only_if)
        self._parts, self._staged = [], None


def _ratio(then: Step, now: Step) -> Scalar:
    """s then divided by s now; 1 if everything was trimmed away then, so that there is nothing to rescale."""
    return where(then.log_mean > -math.inf, exp(then.log_s - now.log_s), 1.0)


def _rescale(gradients: list[Tensor], scale: Scalar) -> None:
    """Multiply gradients in place, with one call for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for group in groups.values():
        torch._foreach_mul_(group, scale.to(group[0]) if isinstance(scale, Tensor) else scale)


# -- the loss --------------------------------------------------------------------------------------


_DETACHED = (
    "expected losses that require grad, got detached losses; to evaluate only, call the loss in"
    " eval() mode or under torch.no_grad()"
)


class KLRobustLoss(nn.Module):
    r"""The KL-constrained worst case of per-sample losses, tracked from batch to batch.

    1. lam_t depends on the previous batches; the first batch determines its own.
    2. s_t = (1-r) s_{t-1} + r mean exp(l/lam_t), computed in the log domain. r is beta, or a rate
       that knows the batch (`WindowTemperature.memory`).
    3. The value is lam_t log s_t + (lam_t - lam0) rho, the running robust objective. It bounds the
       worst case, loosely until about exp(rho) losses have been seen: fewer losses cannot reach a
       KL of rho.
    4. Its gradient is mean(exp(l/lam_t)/s_t grad l), so hard samples get more weight.
    5. lam_{t+1} is updated from the recent losses.

    In training mode each call is one step of the algorithm. In `eval()` mode, or with gradients
    disabled, the value is the exact robust value of the given losses, and the state does not
    change. With `SGD(momentum=1-beta, dampening=1-beta)` this is the algorithm `SCDRO`.

    Args:
        rho: radius of the KL ball; `rho_for_group(0.1)` protects every group of at least a tenth of
            the data.
        beta: the least weight of a new batch in s, in (0, 1]; with `PrintedTemperature` its weight.
        lam0: the paper's KL regulariser and the smallest lam.
        temperature: how lam moves; `WindowTemperature()` by default.
        loss_bound: C if all losses are known to be in [0, C]; a loss outside raises an error.
        trim: fraction of the hardest recent losses to leave out, for data with wrong labels.
        window: number of recent losses used to determine lam; by default enough for rho.
        skip_nonfinite: skip batches with NaN or infinite losses and count them in `skipped`,
            instead of raising. BatchNorm's statistics have already changed by then; see `watch`. In
            `eval()` mode the value is then NaN.
        process_group: the processes that share each batch: None for all, if torch.distributed is
            initialised; False for this process only. Each call is then one step on the losses of
            all of them. Gradients must be averaged, as DistributedDataParallel and fully_shard do.
            In `eval()` mode each process uses its own losses.

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
        if temperature.needs_step_size:
            raise HyperparameterError(
                "expected PrintedTemperature(lr=...) with its own step size, since a loss has no"
                " learning rate to use"
            )
        self.beta = beta
        self.state: RobustState = state_for(
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
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    def forward(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        groups: Tensor | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Return the running robust objective of per-sample `losses`; call `backward` on it.

        Args:
            losses: a vector, one loss per sample (`reduction="none"`).
            sample_weight: importance weights, >= 0, same shape as `losses`.
            mask: True for losses that count, False for padding.
            groups: integers, the group of each sample. The worst case is then over the groups' mean
                losses, each weighted by the group's share of the samples. Means are computed within
                the batch, and with `attach` within each part, so these should have several samples
                of each group.
        """
        if unknown:
            refuse_arguments(unknown)
        state, trains = self.state, self.training and torch.is_grad_enabled()
        read_ids = None if groups is None else partial(check_groups, groups, losses)
        try:
            batch = state.read(
                losses,
                sample_weight,
                mask,
                read_ids=read_ids,
                alone=not trains,
                if_detached=_DETACHED if trains else "",
            )
        except Exception:
            if trains:
                self._restore_watched_unless(False)
            raise
        # 1. With groups, each loss is replaced by the mean of its group; the weights that come out
        # are given back to the samples by `_spread_over_samples`.
        shares = None  # (b,) of the batch's weight, if there are weights
        if batch.ids is not None:
            if batch.log_weight is not None:
                shares = torch.exp(batch.log_weight - batch.log_mass)
            batch = batch._replace(losses=group_means(batch.losses, batch.ids, shares))
        # 2. Evaluation: the exact worst case of these losses.
        if not trains:
            value, weights = self._exact(batch)
            value = _with_gradient(
                losses, batch, value, _spread_over_samples(weights, batch, shares)
            )
            return value if batch.finite is None else torch.where(batch.finite, value, math.nan)
        # 3. A bad batch. On the host it ends here; on an accelerator `finite` stays a flag, which
        # the rest of the step multiplies in.
        if batch.finite is not None and host_reads(batch.finite):
            if not bool(batch.finite):
                state.count_skipped(True)
                self._restore_watched_unless(False)
                # No graph: gradients stay None, so optimizers do nothing.
                return torch.zeros(
                    (), dtype=_result_dtype(losses), device=losses.device, requires_grad=True
                )
            batch = batch._replace(finite=None)
        self._restore_watched_unless(True if batch.finite is None else batch.finite)
        # 4. A training step, or a part of one.
        if self.accumulation is None:
            step = state.estimate(batch, self.beta)
            state.commit(step, batch)
            weights = _spread_over_samples(step.weights, batch, shares)
            return _with_gradient(losses, batch, step.objective, weights)
        step, part = self.accumulation.stage(batch, self.beta)
        batch = part.batch
        weights = _spread_over_samples(step.weights, batch, shares)
        value = _with_gradient(losses, batch, step.objective, weights)
        if not torch.compiler.is_compiling():
            value.register_hook(partial(self.accumulation.rescale_gradient, part))  # type: ignore[no-untyped-call]
        return value

    def _exact(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The worst case of these losses alone, and its weights; the state does not change."""
        rho, lam0, *_ = self.state.equation
        log_q = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        if self.state.trim:
            log_q = trimmed_log_weights(batch.losses, log_q, self.state.trim)
        lam = solve_lam(batch.losses, log_q, rho, lam0, wait=not torch.compiler.is_compiling())
        value, weights, _ = value_at(batch.losses, batch.losses, log_q, lam, lam0)
        return value, weights

    # -- gradient accumulation, mixed precision ----------------------------------------------------

    def attach(self, optimizer: Optimizer) -> KLRobustLoss:
        """Update the state at each `optimizer.step()` instead of at each call.

        For gradient accumulation and mixed precision. Calls between two steps are parts of one
        batch. After the last one, the gradients are those of the one large batch (divide each loss
        by the number of parts, as for a mean). A step that a GradScaler skips changes nothing.
        `optimizer.zero_grad()` also drops the parts accumulated here; so does `model.zero_grad()`,
        unless it only fills the gradients with zeros. `load_state_dict` drops them too, as it
        replaces all state; like that of any module, it leaves the gradients, so call `zero_grad()`
        after it.

        The first step gives all samples the same weight unless the temperature has an initial
        value, because lam_1 depends on the whole first batch, which is not known yet while its
        parts are processed.

        When a later part changes s, all gradients of the optimizer's parameters are rescaled. So
        add other loss terms to the last part only, and attach only one loss per optimizer. With
        `skip_nonfinite`, a bad part is skipped on a CPU, and the whole batch on an accelerator,
        where the host cannot check without waiting. Under torch.compile, call `backward` on each
        part before the next.

        Attaching to another optimizer, as a second `fit` in Lightning does, detaches from the
        first. This is an error in the middle of a batch.
        """
        inner = getattr(optimizer, "optimizer", None)  # Accelerate and Lightning wrap optimizers.
        optimizer = inner if isinstance(inner, Optimizer) else optimizer
        if not isinstance(optimizer, Optimizer):
            raise HyperparameterError(
                "expected attach(optimizer) with the torch optimizer that updates the model, got a "
                f"{type(optimizer).__name__}"
            )
        before = self.accumulation
        if before is None or before.optimizer is not optimizer:
            self.accumulation = Accumulation(self.state, optimizer, before)
        return self

    def detach(self) -> KLRobustLoss:
        """Undo `attach`, between two batches: the state is updated at each call again."""
        if self.accumulation is not None:
            self.accumulation.detach()
            self.accumulation = None
        return self

    def watch(self, *modules: nn.Module) -> KLRobustLoss:
        """Restore the buffers of `modules`, such as BatchNorm's statistics, if a batch is skipped or raises an error.

        When the loss sees a bad batch, the forward pass has already changed the running statistics.
        So, in training mode, the loss copies the buffers of these modules at the first forward pass
        since its last call, and restores them after a bad batch. Pass the modules that you call
        yourself: torch.compile does not run the hooks of submodules. Calling `watch` again replaces
        the modules. Copies of the loss or of the modules are not watched; call `watch` on them
        again.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            >>> robust = KLRobustLoss(rho=0.5, skip_nonfinite=True).watch(model)
        """
        for module in modules:
            check_is(module, nn.Module, "modules, as in watch(model) or watch(encoder, head)")
        for watched in self._watched:
            watched.remove()
        self._watched = [Watch(module, self) for module in modules]
        return self

    def _restore_watched_unless(self, good: Tensor | bool) -> None:
        """Restore the buffers of watched modules after a bad batch; forget the copies in any case."""
        if self._watched and not torch.compiler.is_compiling():
            for watched in self._watched:
                watched.restore_unless(good)

    def reset_parameters(self) -> None:
        """Reset lam, s and the recent losses to those of a new object."""
        self.state.reset_parameters()
        if self.accumulation is not None:
            self.accumulation.forget()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is not attached to an optimizer and watches no modules."""
        return {**self.__dict__, "accumulation": None, "_watched": []}

    # -- monitoring --------------------------------------------------------------------------------

    @property
    def rho(self) -> float:
        """The radius of the KL ball."""
        return self.state.equation.rho

    @property
    def lam(self) -> Tensor:
        """The temperature for the next batch; NaN before the first batch, inf if rho = 0."""
        return self.state.lam

    @property
    def kl(self) -> Tensor:
        """KL of the worst case on the recent losses: near rho, or less if lam is at lam0."""
        return self.state.monitor()[0]

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the worst case as a share of the recent samples, in (0, 1]."""
        return self.state.monitor()[1]

    @property
    def skipped(self) -> Tensor:
        """Number of batches skipped because of NaN or infinite losses."""
        return self.state.skipped[0].clone()

    def extra_repr(self) -> str:
        equation, temperature = self.state.equation, type(self.state.temperature).__name__
        return (
            f"rho={equation.rho:g}, beta={self.beta:g}, lam0={equation.lam0:g},"
            f" temperature={temperature}"
        )


def _after_loading(module: nn.Module, _: object) -> None:
    """A loaded state replaces everything.

    Parts of a batch that the old state has seen are not committed to the new one.
    """
    assert isinstance(module, KLRobustLoss)
    if module.accumulation is not None:
        module.accumulation.forget()


def _spread_over_samples(weights: Tensor, batch: Batch, shares: Tensor | None) -> Tensor:
    """Convert weights of the group means into weights of the individual losses."""
    return weights if batch.ids is None else group_weights(weights, batch.ids, shares)


def _with_gradient(losses: Tensor, batch: Batch, value: Scalar, weights: Tensor) -> Tensor:
    """`value` with the gradient sum_j weight_j grad l_j; no gradient flows through the weights.

    Args:
        losses: (own,) this process's losses, with their graph.
        batch: the whole batch, as it was read.
        value: the number to return.
        weights: (b,) of all losses.
    """
    dtype = _result_dtype(losses)
    weights = batch.own_weights(weights)
    if batch.log_weight is not None:  # Losses of weight zero may have any value, even NaN.
        losses = torch.where(batch.own(batch.log_weight) > -math.inf, losses, 0.0)
    if batch.finite is not None:
        weights, value = torch.where(batch.finite, weights, 0.0), where(batch.finite, value, 0.0)
        losses = torch.where(batch.finite, losses, 0.0)
    # Has the right gradient and the wrong value.
    surrogate = torch.dot(weights.to(dtype), losses.to(dtype))
    if isinstance(value, float):
        if not abs(value) <= torch.finfo(dtype).max:
            value *= math.inf  # or NaN
        surrogate.detach().fill_(value)  # the same memory; the gradient does not depend on it
        return surrogate
    return value.to(dtype) + (surrogate - surrogate.detach())


def _result_dtype(losses: Tensor) -> torch.dtype:
    """At least float32: a sum of half-precision losses would overflow."""
    return torch.promote_types(losses.dtype, torch.float32)
