"""Settings that the algorithms share, checked."""

from __future__ import annotations

import math
from typing import Any

import torch

from scdro.errors import CheckpointError, HyperparameterError

__all__ = ["check_parameters", "check_same_temperature", "check_steps"]


def check_steps(settings: dict[str, Any]) -> None:
    for name in ("lr", "weight_decay", "dual_lr"):
        if name in settings and not 0.0 <= float(settings[name]) < math.inf:
            raise HyperparameterError(f"expected {name} >= 0, got {settings[name]}")
    if not 0.0 <= settings.get("momentum", 0.0) < 1.0:
        raise HyperparameterError(f"expected a momentum in [0, 1), got {settings['momentum']}")


def check_parameters(group: dict[str, Any]) -> None:
    """Real numbers, whose dtype can hold lr and weight_decay."""
    dtypes = {p.dtype for p in group["params"]}
    if any(dtype.is_complex for dtype in dtypes):
        raise HyperparameterError(
            "expected real parameters, got complex ones; optimize torch.view_as_real(parameter), or use KLRobustLoss "
            "with an optimizer that takes them"
        )
    most = min((torch.finfo(dtype).max for dtype in dtypes if dtype.is_floating_point), default=math.inf)
    for name in ("lr", "weight_decay"):
        if float(group.get(name, 0.0)) > most:
            raise HyperparameterError(f"expected {name} <= {most:.3g}, all that parameters can hold, got {group[name]}")


def check_same_temperature(own: dict[str, Any], lam: float) -> None:
    """What a method tracks at one fixed temperature means nothing at another."""
    if own.get("lam") != lam:
        raise CheckpointError(f"expected a state_dict made with lam = {lam}, got one of lam = {own.get('lam')}")
