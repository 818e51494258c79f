"""Telling a model that has given up: losses that all rest at log k, those of equal chances for k classes."""

from __future__ import annotations

import math
import warnings

import torch

from scdro.errors import ScdroWarning
from scdro.temperature import Window

__all__ = [
    "EVERY",
    "Plateau",
    "Resting",
]


EVERY = 100  # steps from one look at the losses to the next
_LONG = 500  # steps on the plateau until it is worth a word
_FEWEST = 100  # losses that say something


class Resting:
    """Warns, once, of something that was there at every look for a while."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._told = False

    def look(self, found: str | None, step: int) -> None:
        if found is None:
            self._since = None
        elif self._since is None:
            self._since = step
        elif step - self._since >= _LONG and not self._told:
            self._told = True
            warnings.warn(
                f"expected predictions that differ between samples, got {found}, for {step - self._since} steps: the "
                "model tells no samples apart; lower rho or weight decay, try another learning rate, or start from a "
                "model trained with rho=0",
                ScdroWarning,
                stacklevel=2,
            )


class Plateau:
    """Warns when nearly all recent losses have been close to log k for a while.

    Large radii, or strong regularisation, make equal chances for all classes the best robust model, which is then
    found. Seen from the losses: 98% of them are within a band of a tenth of log k that holds log k. From k = 20 on,
    where log k and log(k+1) are close, the band must be half of what is between them: equal losses are no sign of a
    plateau where any number is close to some log k.
    """

    def __init__(self) -> None:
        self._resting = Resting()

    def look(self, window: Window, step: int) -> None:
        """Read the recent losses: this waits for their device."""
        k = resting_at(window)
        found = (
            None if k is None else f"losses near log {k} = {math.log(k):.3g}, those of equal chances for {k} classes"
        )
        self._resting.look(found, step)


def resting_at(window: Window) -> int | None:
    """k, where nearly all losses of the window are close to log k."""
    losses = window.losses[window.log_weight > -math.inf]
    if len(losses) < _FEWEST:
        return None
    low, high = torch.quantile(losses, losses.new_tensor([0.01, 0.99])).tolist()
    if not 0.6 < low <= high < 7.0:  # From log 2 to log 1,000: beyond, log k is close to any number.
        return None
    k = max(round(math.exp((low + high) / 2)), 2)
    width = 0.1 * math.log(k) if k < 20 else 0.5 / k
    holds = low <= math.log(k) * (1 + 1e-6) and high >= math.log(k) * (1 - 1e-6)
    return k if holds and high - low <= width else None
