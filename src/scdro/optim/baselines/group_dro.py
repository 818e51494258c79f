"""GroupDRO: the worst of the given groups, with multiplicative weights.

    L_g   = mean loss of the batch's samples of group g
    q_g  <- q_g exp(dual_lr L_g), normalised                  exponentiated gradient ascent
    v    <- momentum v + grad sum_g q_g L_g;   w <- w - lr v

Unlike the KL methods it needs to know the group of each sample.

References:
    Sagawa, Koh, Hashimoto, Liang, "Distributionally Robust Neural Networks for Group Shifts",
    ICLR 2020, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from scdro._buffers import Modules
from scdro._scalar import scalar
from scdro._state import Batch, MethodState
from scdro._validation import as_labels, check_groups, check_number, check_positions, check_whole
from scdro.distributed import ALONE, Group
from scdro.errors import ClosureError, HyperparameterError
from scdro.optim._base import Closure
from scdro.optim.baselines.erm import Weighed, WeightingOptimizer, base_weights
from scdro.optim.samplers import DrawnBatches, EqualGroupDraws

__all__ = [
    "GroupDRO",
]


class _GroupState(MethodState):
    """What all methods keep, and the logs of the groups' weights, equal at first."""

    log_q: Tensor  # (groups,)

    def __init__(self, count: int, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.register_buffer("log_q", torch.empty(count, dtype=self.dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.log_q.fill_(-math.log(len(self.log_q)))

    def made_with(self) -> str:
        return f"{len(self.log_q)} groups"


class GroupDRO(WeightingOptimizer):
    r"""The largest of the groups' mean losses (Sagawa, Koh, Hashimoto, Liang, ICLR 2020).

    1. L_g is the mean loss of the batch's samples in group g.
    2. q_g <- q_g exp(dual_lr L_g), normalised, in the log domain. L_g = 0 for groups that are not
       in the batch.
    3. The gradient is that of sum_g q_g L_g.

    Batches come from `batch_sampler`, or from your own loader if it draws all groups equally often.
    If it only shuffles, a rare group is often missing, so its q_g is raised too rarely and ends up
    too small.

    Args:
        groups: the group of every training sample, integers starting at 0; call
            `step(closure, index)` to look them up. Or the number of groups; then call
            `step(closure, groups=...)` with those of the batch.
        dual_lr: step size of q. Schedulers change only lr.
        params, lr, momentum, weight_decay, radius, skip_nonfinite, module, process_group: as for
        `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y, group = torch.randn(8, 3), torch.randint(2, (8,)), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
        >>> opt = GroupDRO(model.parameters(), lr=0.1, groups=group)
        >>> for index in opt.batch_sampler(6, steps=5):
        ...     value = opt.step(
        ...         lambda: torch.nn.functional.cross_entropy(model(x[index]), y[index], reduction="none"),
        ...         torch.tensor(index),
        ...     )
    """

    _method_state: _GroupState
    _own_attributes = (*WeightingOptimizer._own_attributes, "_groups", "_dual_lr")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        *,
        groups: Any,
        dual_lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        check_number("dual_lr", dual_lr, ">= 0")
        self._dual_lr = dual_lr
        if isinstance(groups, Integral):
            check_whole(
                "groups", groups, meaning="the number of groups, or the groups of all samples"
            )
            self._groups, count = None, int(groups)
        else:
            self._groups = as_labels(groups, what="the groups of all samples", least=0)
            count = int(self._groups.max()) + 1
        method_state = _GroupState(count, skip_nonfinite, process_group)
        super().__init__(
            params,
            lr,
            method_state,
            momentum=momentum,
            weight_decay=weight_decay,
            radius=radius,
            module=module,
        )

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Closure | None = None,
        index: Tensor | None = None,
        *,
        groups: Tensor | None = None,
        **settings: Any,
    ) -> Tensor:
        """One step on one batch. `groups` are passed or looked up by `index`; the rest is as for every algorithm."""
        if groups is None:
            if index is None or self._groups is None:
                asked = "index" if self._groups is not None else "groups=groups"
                got = (
                    "no groups of the batch"
                    if index is None
                    else "an index, and the optimizer has no groups to look up"
                )
                raise ClosureError(f"expected step(closure, {asked}), got {got}")
            groups = self._groups[check_positions(index, len(self._groups))]
        return super().step(closure, groups, **settings)

    def batch_sampler(
        self, batch_size: int, steps: int | None = None, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches:
        """Batches with all groups equally often, for `DataLoader(batch_sampler=...)`.

        An epoch has `steps` batches, by default enough to cover n samples. With several processes,
        each gets `batch_size` samples of one joint draw; with `joint` all get the same `batch_size`
        samples, to be split later.
        """
        groups = self._all_groups()
        ranks = ALONE if joint else self.ranks
        return DrawnBatches.of_size(
            batch_size, EqualGroupDraws(groups).draw, len(groups), steps, seed, ranks
        )

    def draws(
        self, n: int, batch_size: int, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches | None:
        """One epoch of batches with all groups equally often, if the groups are known."""
        return (
            None if self._groups is None else self.batch_sampler(batch_size, seed=seed, joint=joint)
        )

    def _ids(self, losses: Tensor, index: Tensor | None) -> Callable[[], Tensor]:
        """The groups of the batch are checked where its losses are."""
        return partial(self._group_of_each, losses, index)

    def _group_of_each(self, losses: Tensor, groups: Tensor | None) -> Tensor:
        """The group of each loss, (own,), below the number of groups."""
        assert groups is not None
        groups = check_groups(groups, losses)
        count = len(self._method_state.log_q)
        if bool((groups < 0).any() | (groups >= count).any()):
            raise ClosureError(f"expected groups from 0 to {count - 1}, got values outside")
        return groups

    def _weigh(self, batch: Batch) -> Weighed:
        """q_g within each group by the sample weights, sum_g q_g L_g, and the new log q."""
        log_q = self._method_state.log_q
        assert batch.ids is not None
        member = batch.ids.to(log_q.device, torch.int64)  # (b,) the group of each sample
        shares = base_weights(batch)  # (b,) of the batch's weight
        mass = torch.zeros_like(log_q).index_add(0, member, shares)  # (groups,)
        within = shares / mass.clamp_min(torch.finfo(shares.dtype).tiny)[member]  # of the group's
        means = torch.zeros_like(log_q).index_add(0, member, within * batch.losses)  # L_g
        moved = torch.log_softmax(log_q + self._dual_lr * means, 0)
        weights = torch.exp(moved)[member] * within
        return Weighed(
            weights, scalar(torch.dot(weights, batch.losses)), [(log_q, list(moved.unbind()))]
        )

    def full_objective(self, losses: Tensor) -> Tensor:
        """The largest mean loss of a group, given the losses of all training samples."""
        groups = self._all_groups()
        return torch.stack(
            [losses[(groups == g).to(losses.device)].mean() for g in torch.unique(groups)]
        ).amax()

    def _all_groups(self) -> Tensor:
        """The groups of all samples, which some calls need."""
        if self._groups is None:
            raise HyperparameterError(
                "expected GroupDRO created with the groups of all samples, got only their number"
            )
        return self._groups

    @property
    def group_weights(self) -> Tensor:
        """q, (groups,), a copy."""
        return torch.exp(self._method_state.log_q)
