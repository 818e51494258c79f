"""Detect training that has collapsed, from the recent losses alone, and say so once.

Four signs, each of which must hold at every check for a while:

    plateau     nearly all losses are close to log k, as if the model predicted k classes with equal probability
    equal       all losses are the same, so KL = 0 and lam has fallen to lam0: there is nothing to weight
    one sample  the worst case rests on less than one sample of a batch
    diverged    the losses are far above those of the first batch
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch

from scdro.errors import ScdroWarning
from scdro.temperature import Window

__all__ = [
    "CHECK_EVERY",
    "Collapse",
    "Moment",
    "RepeatedWarning",
]


CHECK_EVERY = 50  # steps between two checks
_AFTER = 100  # steps that a sign must last, if training was once without it
_FROM_START = 300  # steps if it was there from the start, as in a warm-up
_FEWEST = 100  # losses needed for a check of the plateau
_FIRST = 16  # losses needed to know what losses were at first
_RISE = 3.0  # how far above the largest of the first losses the mean must be

_SAME_FOR_ALL = (
    "the model seems to predict the same for all samples; lower rho or weight decay, try another"
    " learning rate, or start from a model trained with rho=0"
)


class RepeatedWarning:
    """Warns once about something that was found at every check for a while.

    A while is shorter for training that has come to it than for training that begins there and may
    still leave: at the first steps of a small learning rate, every model predicts about the same
    for all samples.

    Attributes:
        _since: the step at which the sign was first seen; None while it is absent.
        _was_without: whether any check was without it.
        _warned: whether the warning was given.
    """

    def __init__(self, advice: str = _SAME_FOR_ALL) -> None:
        self._advice = advice
        self._since: int | None = None
        self._was_without = False
        self._warned = False

    def check(self, found: str | None, step: int) -> None:
        """`found` describes the sign; None if it is absent at this step."""
        if found is None:
            self._since, self._was_without = None, True
        elif self._since is None:
            self._since = step
        elif (
            step - self._since >= (_AFTER if self._was_without else _FROM_START)
            and not self._warned
        ):
            self._warned = True
            warnings.warn(
                f"the last {step - self._since} steps had {found}: {self._advice}",
                ScdroWarning,
                stacklevel=2,
            )


class Moment(NamedTuple):
    """What a check looks at, after some step."""

    window: Window  # the recent losses
    step: int  # number of batches so far
    rho: float  # the radius
    lam: float  # the temperature
    lam0: float  # the smallest temperature
    kl: float  # of the worst case on the recent losses
    ess: float  # its effective sample size, as a share
    batch_size: int | None  # None if it is not known


class Collapse:
    """Looks for the four signs in the recent losses; warns of each once."""

    def __init__(self) -> None:
        self._plateau = RepeatedWarning()
        self._equal = RepeatedWarning()
        self._one_sample = RepeatedWarning(
            "one sample at a time decides each step; use larger batches, accumulate gradients with"
            ' attach(), or lower rho (docs, "Batch size")'
        )
        self._diverged = RepeatedWarning(
            "training has diverged; lower the learning rate, and clip gradients to a norm of 1"
        )
        self._first: float | None = None  # the largest loss of the first batch, or of the first few

    def check(self, now: Moment) -> None:
        """Check the recent losses. This waits for their device."""
        losses = now.window.losses[now.window.log_weight > -math.inf]
        if not len(losses):
            return
        mean = float(losses.mean())
        if self._first is None:
            self._first = float(losses.max()) if len(losses) >= _FIRST else None
            self._diverged.check(None, now.step)
        else:
            # Diverged. With a first loss of zero or below there is nothing to compare with.
            rose = mean > _RISE * self._first > 0.0
            said = (
                f"a mean loss of {mean:.3g}, where the largest of the first losses was"
                f" {self._first:.3g}"
            )
            self._diverged.check(said if rose else None, now.step)
        if len(losses) >= _FEWEST:
            # Plateau.
            k = plateau_of(now.window)
            said = (
                f"losses near log {k} = {math.log(k or 1):.3g}, as for {k} equally likely classes"
            )
            self._plateau.check(None if k is None else said, now.step)
            if now.rho > 0.0:
                # Equal. Losses near zero are equal too, after training that has fitted everything.
                equal = (
                    now.lam <= now.lam0
                    and now.kl < 1e-3 * now.rho
                    and mean > 10.0 * now.lam0
                    and k is None
                )
                said = (
                    f"only equal losses, {mean:.3g}, and so lam = lam0 = {now.lam0:g} and no KL to"
                    " spend"
                )
                self._equal.check(said if equal else None, now.step)
                # One sample.
                if now.batch_size is not None:
                    share = now.ess * now.batch_size
                    said = f"{share:.2g} effective samples in a batch of {now.batch_size}"
                    self._one_sample.check(said if share < 1.0 else None, now.step)


def plateau_of(window: Window) -> int | None:
    """Return k if nearly all losses of the window are close to log k, else None.

    With a large rho or strong regularisation, the best robust model predicts all classes with equal
    probability, and
    training finds it. The sign: 98% of the losses are within a band around log k, at most a tenth
    of log k wide. From k = 20 on, where log k and log(k+1) are close, the band may be only half
    their distance wide. Otherwise any equal losses would count as a plateau, because every number
    is close to some log k.
    """
    losses = window.losses[window.log_weight > -math.inf]
    if len(losses) < _FEWEST:
        return None
    low, high = torch.quantile(losses, losses.new_tensor([0.01, 0.99])).tolist()
    # From log 2 to log 1,000; beyond, every number is close to some log k.
    if not 0.6 < low <= high < 7.0:
        return None
    k = max(round(math.exp((low + high) / 2)), 2)
    width = 0.1 * math.log(k) if k < 20 else 0.5 / k
    holds = low <= math.log(k) * (1 + 1e-6) and high >= math.log(k) * (1 - 1e-6)
    return k if holds and high - low <= width else None
