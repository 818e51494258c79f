"""Detect a collapsed model: all losses stay at log k, as if it predicted k classes with equal probability."""

from __future__ import annotations

import math
import warnings

import torch

from scdro.errors import ScdroWarning
from scdro.temperature import Window

__all__ = [
    "EVERY",
    "Plateau",
    "RepeatedWarning",
]


EVERY = 100  # steps between two checks
_LONG = 500  # steps on the plateau before the warning
_FEWEST = 100  # losses needed for a check


class RepeatedWarning:
    """Warns once about something that was found at every check for a while."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._warned = False

    def check(self, found: str | None, step: int) -> None:
        if found is None:
            self._since = None
        elif self._since is None:
            self._since = step
        elif step - self._since >= _LONG and not self._warned:
            self._warned = True
            warnings.warn(
                f"the last {step - self._since} steps had {found}: the model seems to predict the same for all "
                "samples; lower rho or weight decay, try another learning rate, or start from a model trained with "
                "rho=0",
                ScdroWarning,
                stacklevel=2,
            )


class Plateau:
    """Warns when nearly all recent losses have been close to log k for a while.

    With a large rho or strong regularisation, the best robust model predicts all classes with equal probability, and
    training finds it. The sign: 98% of the losses are within a band around log k, at most a tenth of log k wide. From
    k = 20 on, where log k and log(k+1) are close, the band may be only half their distance wide. Otherwise any equal
    losses would count as a plateau, because every number is close to some log k.
    """

    def __init__(self) -> None:
        self._warning = RepeatedWarning()

    def check(self, window: Window, step: int) -> None:
        """Check the recent losses. This waits for their device."""
        k = plateau_of(window)
        found = None if k is None else f"losses near log {k} = {math.log(k):.3g}, as for {k} equally likely classes"
        self._warning.check(found, step)


def plateau_of(window: Window) -> int | None:
    """Return k if nearly all losses of the window are close to log k, else None."""
    losses = window.losses[window.log_weight > -math.inf]
    if len(losses) < _FEWEST:
        return None
    low, high = torch.quantile(losses, losses.new_tensor([0.01, 0.99])).tolist()
    if not 0.6 < low <= high < 7.0:  # From log 2 to log 1,000; beyond, every number is close to some log k.
        return None
    k = max(round(math.exp((low + high) / 2)), 2)
    width = 0.1 * math.log(k) if k < 20 else 0.5 / k
    holds = low <= math.log(k) * (1 + 1e-6) and high >= math.log(k) * (1 - 1e-6)
    return k if holds and high - low <= width else None
