"""Worst-group accuracy, the table by group and the robust value as torchmetrics objects.

    GroupTable            three sums for each group: weight of the right, weight, number of samples
    WorstGroupAccuracy    the smallest right/weight of them
    RobustValue           all losses, and their exact worst case at the end

State is declared with `add_state` and how it is reduced, so torchmetrics joins processes and resets
epochs: `self.log("worst", metric)` in Lightning works, and with several processes all of them
count. Needs the extra `torchmetrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from scdro._scalar import scalar_dtype
from scdro._validation import check_radius, check_whole
from scdro.errors import DataError, HyperparameterError
from scdro.functional import worst_case
from scdro.metrics import GroupRow

__all__ = ["GroupTable", "RobustValue", "WorstGroupAccuracy"]


class GroupTable(Metric):
    """Accuracy and size of every group. `compute` returns tensors by name, for `self.log_dict`;
    `rows` the table.

    Args:
        groups: how many there are, or their names. Samples come with group numbers 0, 1, ...
        settings: torchmetrics' own, such as `sync_on_compute`.

    Example:
        >>> table = GroupTable(["hens", "ducks"])
        >>> table.update(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))
        >>> table.rows()
        [GroupRow(group='ducks', size=1, share=0.333..., accuracy=0.0), GroupRow(group='hens',
        size=2, ...accuracy=1.0)]
        >>> {key: float(value) for key, value in table.compute().items()}
        {'accuracy/hens': 1.0, 'size/hens': 2.0, 'accuracy/ducks': 0.0, 'size/ducks': 1.0}
    """

    is_differentiable = False
    full_state_update = False
    right: Tensor  # (groups,) weight of the correct predictions
    weight: Tensor  # (groups,) weight of all predictions
    size: Tensor  # (groups,) number of samples

    def __init__(self, groups: int | Sequence[str], **settings: Any) -> None:
        super().__init__(**settings)
        if isinstance(groups, Sequence):
            self.names: list[Any] = list(groups)
        else:
            check_whole(
                "groups", groups, 1, meaning="the number of groups, or a list of their names"
            )
            self.names = list(range(groups))
        if not self.names or len(set(self.names)) < len(self.names):
            raise HyperparameterError(
                f"expected the number of groups or their different names, got {groups!r}"
            )
        for name in ("right", "weight", "size"):
            self.add_state(name, default=torch.zeros(len(self.names)), dist_reduce_fx="sum")

    def update(
        self, preds: Tensor, target: Tensor, groups: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            preds: class numbers, (n,), or scores of all classes, (n, k).
            target: class numbers, (n,).
            groups: group numbers, (n,).
            sample_weight: at least 0, (n,).
        """
        if preds.ndim == 2:
            preds = preds.argmax(1)
        elif preds.is_floating_point():
            raise DataError(
                "expected class numbers (n,) or scores (n, k), got one float per sample; compare it"
                " first"
            )
        if not preds.shape == target.shape == groups.shape or preds.ndim != 1:
            shapes = [tuple(x.shape) for x in (preds, target, groups)]
            raise DataError(
                f"expected one prediction, target and group per sample, got shapes {shapes}"
            )
        if groups.is_floating_point():
            raise DataError(
                f"expected group numbers, got {groups.dtype}; convert them with .long()"
            )
        groups = groups.long()  # bytes and bools would be a mask
        if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < len(self.names):
            raise DataError(
                f"expected groups 0 to {len(self.names) - 1}, got {int(groups.min())} to"
                f" {int(groups.max())}"
            )
        weight = (
            torch.ones_like(self.size[groups])
            if sample_weight is None
            else sample_weight.to(self.weight)
        )
        if weight.shape != groups.shape or not bool((weight >= 0).all()):
            raise DataError(
                f"expected {len(groups)} sample weights >= 0, got {tuple(weight.shape)} or others"
            )
        self.right.index_add_(0, groups, weight * (preds == target))
        self.weight.index_add_(0, groups, weight)
        self.size.index_add_(0, groups, torch.ones_like(weight))

    def _accuracy(self) -> Tensor:
        """right/weight of each group, (groups,); NaN for groups without weight."""
        return self.right / self.weight

    def compute(self) -> Any:
        """Accuracy and size of each group, by name."""
        found: dict[str, Tensor] = {}
        for name, accuracy, size in zip(self.names, self._accuracy(), self.size, strict=True):
            found |= {f"accuracy/{name}": accuracy, f"size/{name}": size}
        return found

    def rows(self) -> list[GroupRow]:
        """The table of `scdro.metrics.group_table`, over all processes: worst first, without groups
        of weight zero.
        """
        with self.sync_context():
            total, accuracy = self.weight.sum(), self._accuracy()
            rows = [
                GroupRow(name, int(size), float(weight / total), float(share))
                for name, size, weight, share in zip(
                    self.names, self.size, self.weight, accuracy, strict=True
                )
                if weight > 0
            ]
        return sorted(rows, key=lambda row: row.accuracy)


class WorstGroupAccuracy(GroupTable):
    """The lowest accuracy of any group with samples; arguments as for `GroupTable`. For `self.log`.

    Example:
        >>> worst = WorstGroupAccuracy(groups=2)
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> worst(scores, torch.tensor([0, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
        tensor(0.5000)
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """The lowest accuracy; NaN without samples."""
        accuracy = self._accuracy()
        return (
            accuracy[self.weight > 0].min()
            if bool((self.weight > 0).any())
            else accuracy.new_tensor(torch.nan)
        )


class RobustValue(Metric):
    """The exact worst-case mean of per-sample losses within KL distance rho, over the whole epoch.
    For `self.log`.

    Unlike a mean of the values of batches it does not depend on how the data are cut into batches.
    Keeps all losses.

    Args:
        rho: the radius.
        lam0: the least temperature.
        settings: torchmetrics' own.

    Example:
        >>> value = RobustValue(rho=0.5)
        >>> value.update(torch.tensor([0.1, 0.2]))
        >>> value.update(torch.tensor([3.0]))
        >>> value.compute()
        tensor(2.4...)
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better = False
    losses: list[Tensor]  # of each batch, (n,)
    weights: list[Tensor]  # likewise

    def __init__(self, rho: float, lam0: float = 1e-3, **settings: Any) -> None:
        super().__init__(**settings)
        check_radius(rho, lam0)
        self.rho, self.lam0 = rho, lam0
        self.add_state("losses", default=[], dist_reduce_fx="cat")
        self.add_state("weights", default=[], dist_reduce_fx="cat")

    def update(self, losses: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add the losses of a batch, (n,), and their weights."""
        if losses.ndim != 1:
            raise DataError(
                f"expected one loss per sample, (n,), got {tuple(losses.shape)}; use"
                ' reduction="none"'
            )
        losses = losses.detach().to(scalar_dtype(losses.device))
        weight = torch.ones_like(losses) if sample_weight is None else sample_weight.to(losses)
        if weight.shape != losses.shape:
            raise DataError(f"expected {len(losses)} sample weights, got {tuple(weight.shape)}")
        self.losses.append(losses)
        self.weights.append(weight)

    def sync(self, *args: Any, **settings: Any) -> None:
        """Let a process without samples take part; otherwise the others would wait for it."""
        if not len(self.losses):
            self.update(torch.zeros(0, device=self.device))
        super().sync(*args, **settings)

    def compute(self) -> Tensor:
        """The worst case of all losses so far; NaN without samples."""
        losses = dim_zero_cat(self.losses) if len(self.losses) else torch.zeros(0)
        if not len(losses):
            return torch.tensor(torch.nan, device=self.device)
        value: Tensor = worst_case(
            losses, self.rho, self.lam0, sample_weight=dim_zero_cat(self.weights)
        ).value
        return value.to(torch.get_default_dtype())
