"""Parameters that FSDP2 has cut over the processes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from scdro.errors import HyperparameterError

__all__ = ["full", "gathered", "is_sharded", "like", "reshard"]


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; any other as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(state: Any) -> Any:
    """A state_dict with every sharded tensor whole, to be saved by one process, loaded by any. All must call it.

    Example:
        >>> checkpoint = gathered({"model": nn.Linear(3, 2).state_dict()})
    """
    if isinstance(state, Tensor):
        return full(state.detach())
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(gathered(value) for value in state)
    return copy.deepcopy(state)


def like(value: Any, parameter: Tensor) -> Any:
    """A whole tensor sharded as a parameter is; anything else as it is."""
    if not is_sharded(parameter) or not isinstance(value, Tensor) or is_sharded(value) or value.ndim == 0:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def reshard(modules: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
    """Make FSDP2 gather parameters anew: after a forward pass without a backward one it keeps those of that pass."""
    if not any(is_sharded(p) for p in params):
        return
    sharded = [m for module in modules for m in module.modules() if hasattr(m, "reshard")]
    if not sharded:
        raise HyperparameterError(
            "expected module=model with a model in fully_shard, got none: this method evaluates it at two points"
        )
    for module in sharded:
        module.reshard()  # type: ignore[operator]
