"""Checks of what an optimizer is constructed with: stages, step sizes, parameters, a temperature.

As in `scdro._validation`, every check raises before anything changes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from scdro._arguments import check_number, check_whole
from scdro.errors import CheckpointError, HyperparameterError

__all__ = [
    "check_parameters",
    "check_same_temperature",
    "check_stages",
    "check_steps",
]


def check_stages(stages: Any) -> None:
    """Raise unless `stages` are rows (lr, beta, steps). The last one may have steps = 0: it never ends."""
    try:
        rows = [tuple(stage) for stage in stages]
        if not all(len(row) == 3 for row in rows):
            raise TypeError
    except TypeError:
        raise HyperparameterError(
            f"expected stages as a list of Stage(lr, beta, steps), got {stages!r}; decay_stages(lr,"
            " beta, milestones) makes one"
        ) from None
    if not rows:
        raise HyperparameterError(
            "expected at least one stage, got none; decay_stages(lr, beta, []) is one"
        )
    # The last stage may have any number of steps: it goes on as long as `step` is called.
    for k, (lr, beta, steps) in enumerate(rows):
        check_number("lr", lr, "> 0", f"in stage {k}")
        check_number("beta", beta, "in (0, 1]", f"in stage {k}")
        check_whole("steps", steps, 0 if k == len(rows) - 1 else 1, meaning=f"in stage {k}")


def check_steps(settings: dict[str, Any]) -> None:
    """The step sizes and the momentum among an optimizer's settings, if they are there."""
    for name in ("lr", "weight_decay", "dual_lr"):
        check_number(name, settings.get(name, 0.0), ">= 0")
    check_number("momentum", settings.get("momentum", 0.0), "in [0, 1)")


def check_parameters(group: dict[str, Any]) -> None:
    """Check that the parameters are real and that their dtype can represent lr and weight_decay."""
    dtypes = {p.dtype for p in group["params"]}
    if any(dtype.is_complex for dtype in dtypes):
        raise HyperparameterError(
            "expected real parameters, got complex ones; optimize torch.view_as_real(parameter), or"
            " use KLRobustLoss with an optimizer that supports them"
        )
    # A larger lr would become infinite when it is cast to the parameters' dtype.
    most = min(
        (torch.finfo(dtype).max for dtype in dtypes if dtype.is_floating_point), default=math.inf
    )
    for name in ("lr", "weight_decay"):
        if float(group.get(name, 0.0)) > most:
            raise HyperparameterError(
                f"expected {name} <= {most:.3g}, the parameters' dtype limit, got {group[name]}"
            )


def check_same_temperature(own: dict[str, Any], lam: float) -> None:
    """The state of a method with a fixed temperature is meaningless at another temperature."""
    if own.get("lam") != lam:
        raise CheckpointError(
            f"expected a state_dict made with lam = {lam}, got one with lam = {own.get('lam')}"
        )
