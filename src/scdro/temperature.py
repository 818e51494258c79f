r"""Where lam comes from.

The worst case has its own temperature: lam* solves KL(p_lam) = rho. `WindowTemperature` follows it on the losses of the
last batches and has nothing to tune. `PrintedTemperature` is the paper's gradient step, for reproduction.

At step t every method uses lam_t, which depends on the batches before t alone; the batch then decides lam_{t+1}. So
micro-batches equal one large batch, processes equal one, and a step that is skipped leaves no trace.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scdro._kl import attainable, newton_step
from scdro.errors import HyperparameterError
from scdro.estimators import Advance, LamTerms, MovingAverage, NormalizedStorm, Storm, Tracker
from scdro.scalar import Scalar, clamp, exp, scalar, scalar_dtype
from scdro.window import Window

__all__ = ["PrintedTemperature", "Temperature", "WindowTemperature"]


class LamRange(NamedTuple):
    """The problem in lam: KL(p_lam) = rho + mu lam on [lam0, lam_max]."""

    rho: float
    lam0: float
    lam_max: float
    mu: float
    loss_bound: float | None

    def clamp(self, lam: Scalar) -> Scalar:
        return clamp(lam, self.lam0, self.lam_max)


class Moved(NamedTuple):
    """What a finished step tells the temperature."""

    lam: Scalar
    lam_past: Scalar
    step: Advance
    lam_log_s: Scalar
    mean: Scalar | None
    mean_old: Scalar | None
    window: Window
    tracker: Tracker
    lr: Tensor | float | None


class Temperature(nn.Module):
    """Decides lam. `initial` is lam_1, or None to find it from the first batch.

    `carries`: whether the past is read at the new temperature (lam log s, which hardly depends on lam, is kept) or, as
    printed, at its own (log s is kept, which explodes when lam falls). `ceiling`: a loss counts for no more than the
    hardest of the recent ones and so many lam; None for no bound.
    """

    carries: bool
    ceiling: float | None = None
    initial: float | None

    def one_point_tracker(self) -> Tracker:
        """How s moves where each batch is evaluated once (SCDRO, KLRobustLoss)."""
        raise NotImplementedError

    def two_point_tracker(self) -> Tracker:
        """How s moves where each batch is evaluated twice (ASCDRO)."""
        raise NotImplementedError

    def advance(self, moved: Moved, limits: LamRange) -> tuple[Scalar, Scalar, list[tuple[Tensor, list[Scalar]]]]:
        """lam_{t+1}, the most that lam log s may be when batch t+1 comes, and this module's buffers with their new
        values."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Fill this module's buffers as in a new object."""


class WindowTemperature(Temperature):
    r"""One safeguarded Newton step a batch towards KL(p_lam) = rho on the losses of the recent batches. The default.

    log lam += clip(KL log(KL/rho) / Var_p(l/lam), -1, 1). No step size, no starting value, no units. While there are
    too few recent losses to show a KL of rho, a smaller one takes its place (`attainable`).

    Args:
        initial: lam_1; None finds it from the first batch.
        cap: the most batches that a single one may count for (`MovingAverage`); None for no bound.
        ceiling: a loss counts for no more than the hardest of the recent ones and so many lam; None for no bound. When
            a step goes too far, the next losses are far above all that lam knows, and one would take all the weight.
        lag: s is at most this many times the mean of exp(l/lam) over the recent losses; None for no bound. When losses
            fall, lam falls with them, and s alone would follow so slowly that the weights of all samples vanish.
        clip: the bound on STORM's correction (`NormalizedStorm`), used by ASCDRO; None for no bound.

    Example:
        >>> from scdro import KLRobustLoss
        >>> robust = KLRobustLoss(rho=0.5, temperature=WindowTemperature(initial=2.0, ceiling=None))
        >>> float(robust.lam)
        2.0
    """

    carries = True

    def __init__(
        self,
        initial: float | None = None,
        *,
        cap: float | None = 2.0,
        clip: float | None = 0.3,
        ceiling: float | None = 0.0,
        lag: float | None = 1.25,
    ) -> None:
        super().__init__()
        _check_initial(initial)
        NormalizedStorm(cap, clip)  # checks them
        if ceiling is not None and not 0.0 <= ceiling < math.inf:
            raise HyperparameterError(f"expected ceiling >= 0, in units of lam, or None for no bound, got {ceiling}")
        if lag is not None and not lag >= 1.0:
            raise HyperparameterError(f"expected lag >= 1, or None for no bound, got {lag}")
        self.initial, self.cap, self.clip, self.ceiling, self.lag = initial, cap, clip, ceiling, lag

    def one_point_tracker(self) -> Tracker:
        return MovingAverage(self.cap)

    def two_point_tracker(self) -> Tracker:
        return NormalizedStorm(self.cap, self.clip)

    def advance(self, moved: Moved, limits: LamRange) -> tuple[Scalar, Scalar, list[tuple[Tensor, list[Scalar]]]]:
        if limits.rho == 0.0:
            return moved.lam, math.inf, []
        at, size = moved.window.tilt(moved.lam, moved.lam_log_s)
        rho = attainable(limits.rho, size)
        change = clamp(newton_step(at.kl, at.var, moved.lam, rho, limits.mu), -1.0, 1.0)
        lam = limits.clamp(moved.lam * exp(change))
        if self.lag is None:
            return lam, math.inf, []
        # lam log mean exp(l/lam) of the recent losses; like lam log s, it hardly depends on lam.
        soft_max = scalar(torch.dot(at.weights, moved.window.losses)) - moved.lam * at.kl
        return lam, soft_max + lam * math.log(self.lag), []


class PrintedTemperature(Temperature):
    """The paper's update, lam <- clip(lam - eta u, lam0, lam_max), with u as in Algorithm 1 or 2.

    Falls into the small-lam trap on most settings (docs, "Stability"): for reproduction, not for use.

    Args:
        initial: lam_1. The paper tunes it in {.1, 1, 10}.
        lr: lam's own step size; None takes the optimizer's, as the paper does.

    Example:
        >>> from scdro import SCDRO
        >>> opt = SCDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, rho=0.5, temperature=PrintedTemperature(1.0))
        >>> float(opt.lam)
        1.0
    """

    carries = False
    tracked: Tensor

    def __init__(self, initial: float = 1.0, *, lr: float | None = None) -> None:
        super().__init__()
        _check_initial(initial)
        if lr is not None and not 0.0 <= lr < math.inf:
            raise HyperparameterError(f"expected a step size lr >= 0 for lam, got {lr}")
        self.initial, self.lr = initial, lr
        self.register_buffer("tracked", torch.zeros(1, dtype=scalar_dtype(torch.get_default_device())))

    def reset_parameters(self) -> None:
        self.tracked.zero_()

    def one_point_tracker(self) -> Tracker:
        return MovingAverage()

    def two_point_tracker(self) -> Tracker:
        return Storm()

    def advance(self, moved: Moved, limits: LamRange) -> tuple[Scalar, Scalar, list[tuple[Tensor, list[Scalar]]]]:
        lr = moved.lr if self.lr is None else self.lr
        assert lr is not None
        assert moved.mean is not None
        drift = moved.lam_log_s / moved.lam + limits.rho + limits.mu * moved.lam
        terms = LamTerms(drift, moved.lam, moved.lam / moved.lam_past, moved.mean, moved.mean_old, limits.loss_bound)
        tracked, gradient = moved.tracker.lam_gradient(moved.step, scalar(self.tracked[0]), terms)
        return limits.clamp(moved.lam - lr * gradient), math.inf, [(self.tracked, [tracked])]


def given_or_default(temperature: Temperature | None) -> Temperature:
    if temperature is None:
        return WindowTemperature()
    if not isinstance(temperature, Temperature):
        raise HyperparameterError(
            f"expected a temperature such as WindowTemperature() or PrintedTemperature(), got {temperature!r}"
        )
    return temperature


def _check_initial(initial: float | None) -> None:
    if initial is not None and not 0.0 < initial < math.inf:
        raise HyperparameterError(f"expected an initial temperature lam > 0, got {initial}")
