"""Learning rates as functions of the step alone, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["Schedule", "one_cycle", "step_decay"]

Schedule = Callable[[int], float]


def step_decay(lr: float, after: int, factor: float = 0.1) -> Schedule:
    """lr, and `factor` times it from step `after` on.

    Example:
        >>> [step_decay(1.0, after=2)(t) for t in range(4)]
        [1.0, 1.0, 0.1, 0.1]
    """
    return lambda t: lr if t < after else factor * lr


def one_cycle(lr: float, steps: int, warm: float = 0.3, start: float = 1 / 25, end: float = 4e-6) -> Schedule:
    """By half cosines from `start * lr` up to lr over a share `warm` of the steps, and down to `end * lr` at the last:
    `torch.optim.lr_scheduler.OneCycleLR` with its defaults."""
    peak = max(warm * steps - 1, 1e-9)

    def at(t: int) -> float:
        if t <= peak:
            return _between(lr * start, lr, t / peak)
        return _between(lr, lr * end, (t - peak) / (steps - 1 - peak))

    return at


def _between(a: float, b: float, share: float) -> float:
    return b + (a - b) / 2 * (1 + math.cos(math.pi * share))
