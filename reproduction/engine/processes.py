"""What the processes of a run that torchrun started agree on, share and report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

from scdro.distributed import Ranks
from scdro.errors import HyperparameterError

__all__ = ["agreed", "averaged", "check_same", "first_to_fail", "share_buffers"]

T = TypeVar("T")


def agreed(ranks: Ranks, found: Callable[[], T]) -> T:
    """Call `found` on rank 0 only, and return its result, a plain value, on all processes."""
    if ranks.size == 1:
        return found()
    values: list[Any] = [found() if ranks.first else None]
    dist.broadcast_object_list(values, group=ranks.group, group_src=0)
    value: T = values[0]
    return value


def check_same(ranks: Ranks, own: Any, what: str) -> None:
    """Raise if a plain value differs between processes."""
    if agreed(ranks, lambda: own) != own:
        raise HyperparameterError(
            f"expected the same {what} on all processes, got different ones on rank {ranks.rank}"
            " and rank 0"
        )


def averaged(ranks: Ranks, model: nn.Module) -> nn.Module:
    """Wrap the model for training, so that its gradients are averaged over the processes."""
    return model if ranks.size == 1 else DistributedDataParallel(model, process_group=ranks.group)


def share_buffers(ranks: Ranks, model: nn.Module) -> None:
    """Copy rank 0's buffers, such as BatchNorm's running statistics, to all processes."""
    for buffer in model.buffers() if ranks.size > 1 else ():
        dist.broadcast(buffer, group=ranks.group, group_src=0)


def first_to_fail() -> bool:
    """Whether this is the first process of the group to call this, so that only one reports the error."""
    alone = not (dist.is_available() and dist.is_initialized())
    return alone or int(_get_default_store().add("failed", 1)) == 1
