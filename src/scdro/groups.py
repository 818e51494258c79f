"""Groups of samples: each sample's loss replaced by its group's mean."""

from __future__ import annotations

import torch
from torch import Tensor

from scdro.errors import LossError
from scdro.reading import check_weights

__all__ = ["check_groups", "group_means", "group_weights"]


def group_means(losses: Tensor, groups: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Each loss replaced by the mean over its group, differentiable: a worst case of these is one over groups.

    Args:
        losses: a vector, one loss per sample.
        groups: the group of each sample, any integers.
        sample_weight: weights within the groups, >= 0. Losses of weight zero may be anything.

    Example:
        >>> group_means(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([7, 7, 3]))
        tensor([1.5000, 1.5000, 6.0000])
    """
    check_groups(groups, losses)
    groups = groups.to(losses.device)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))  # Sums of halves are no sums.
    if sample_weight is None:
        weight = torch.ones_like(losses)
    else:
        weight = torch.as_tensor(sample_weight, device=losses.device).to(losses.dtype)
        check_weights(weight, losses)
        losses = torch.where(weight > 0, losses, 0.0)
    total, mass = _group_sums(weight * losses, groups), _group_sums(weight, groups)
    return total / mass.clamp_min(torch.finfo(losses.dtype).tiny)


def group_weights(weights: Tensor, groups: Tensor, sample_weight: Tensor | None) -> Tensor:
    """`group_means` transposed: weights of the groups' means (one for each sample) as weights of the losses."""
    share = torch.ones_like(weights) if sample_weight is None else sample_weight
    mass = _group_sums(share, groups).clamp_min(torch.finfo(weights.dtype).tiny)
    return share / mass * _group_sums(weights, groups)


def _group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Each value replaced by the sum over its group."""
    if torch.compiler.is_compiling():  # The number of groups is not known to the graph: O(batch^2) instead.
        return (groups[:, None] == groups).to(values.dtype) @ values
    names, member = torch.unique(groups, return_inverse=True)
    return torch.zeros(len(names), dtype=values.dtype, device=values.device).index_add(0, member, values)[member]


def check_groups(groups: Tensor, losses: Tensor) -> None:
    """One integer for each loss."""
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.is_complex():
        came = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise LossError(f"expected groups as a tensor of integers, got {came}")
    if groups.shape != losses.shape:
        raise LossError(f"expected one group per loss, shape {tuple(losses.shape)}, got {tuple(groups.shape)}")
