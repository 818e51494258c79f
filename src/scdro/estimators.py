r"""How s, the running estimate of g = E exp(l/lam), and the estimates built on it move with a batch.

A tracker is a pure rule. It reads log means A = log mean exp(l/lam) of the batch, at the present point and, for STORM,
at the previous one, and answers with the new log s and the coefficients of one rule for numbers and gradients alike:

    estimate <- keep * estimate + share * exp(A - log s) * fresh - old * fresh_at_the_previous_point

where `fresh` is the batch's own answer under its own weights softmax(l/lam), and share is beta for a moving average
and one for STORM. Nothing is exponentiated but differences of logarithms that are bounded by construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from scdro.errors import HyperparameterError
from scdro.scalar import Scalar, clamp, exp, log, logaddexp, maximum, where

__all__ = ["Advance", "MovingAverage", "NormalizedStorm", "Storm", "Tracker"]


class Advance(NamedTuple):
    """One step of a tracker: log s_t, the batch's log mean, the coefficients, and whether it had to start anew."""

    log_s: Scalar
    log_mean: Scalar
    keep: Scalar = 0.0
    old: Scalar = 0.0
    reset: bool | Tensor | None = None


class LamTerms(NamedTuple):
    """What the gradient in lam is made of: drift = log s + rho (+ mu lam), mean losses under softmax(l/lam) at both
    points, and lam_t over the temperature at which the past is expressed."""

    drift: Scalar
    lam: Scalar
    ratio: Scalar
    mean: Scalar
    mean_old: Scalar | None
    bound: float | None


class Tracker(Protocol):
    """The rule that moves log s. On the first step s, v and u are the batch's own: Advance(log_mean, log_mean)."""

    two_points: bool

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance: ...
    def lam_gradient(self, step: Advance, kept: Scalar, at: LamTerms) -> tuple[Scalar, Scalar]: ...


def _averaged(log_s: Scalar, log_mean: Scalar, beta: float) -> Scalar:
    """log((1-beta) s + beta ghat), or log s where that is zero: with beta = 1 and all of the batch trimmed away."""
    if beta == 1.0:
        return where(log_mean > -math.inf, log_mean, log_s)
    return logaddexp(log_s + math.log1p(-beta), log_mean + math.log(beta))


def _subtracted(step: Advance, at: LamTerms) -> Scalar:
    return 0.0 if at.mean_old is None else step.old * at.mean_old


def _check_cap(cap: float | None) -> None:
    if cap is not None and not cap >= 1.0:
        raise HyperparameterError(f"expected cap >= 1, the most batches that one batch may count for, got {cap}")


@dataclass(frozen=True)
class MovingAverage:
    r"""s <- (1-beta) s + beta ghat   (Algorithm 1, line 6), and with `cap`, s <- max(that, ghat / cap).

    The weights of a batch sum to ghat/s <= 1/beta. A batch whose losses have just jumped therefore pushes the model
    up to 1/beta times as hard as a plain one, and does so because s is late, not because it is right; `cap` says how
    many batches one may count for.

    Example:
        >>> from scdro import WindowTemperature
        >>> WindowTemperature(cap=3.0).one_point_tracker()
        MovingAverage(cap=3.0)
    """

    cap: float | None = None
    two_points = False

    def __post_init__(self) -> None:
        _check_cap(self.cap)

    def log_s(self, log_s: Scalar, log_mean: Scalar, beta: float) -> Scalar:
        moved = _averaged(log_s, log_mean, beta)
        return moved if self.cap is None else maximum(moved, log_mean - math.log(self.cap))

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        keep = 1.0 - beta if beta < 1.0 else where(log_mean > -math.inf, 0.0, 1.0)
        return Advance(self.log_s(log_s, log_mean, beta), log_mean, keep)

    def lam_gradient(self, step: Advance, kept: Scalar, at: LamTerms) -> tuple[Scalar, Scalar]:
        """u <- (1-beta) u + beta (log s + rho - mean(exp(l/lam) l)/(s lam))   (eq. 6)."""
        fresh = at.drift - exp(step.log_mean - step.log_s) * at.mean / at.lam
        u = step.keep * kept + (1.0 - step.keep) * fresh
        return u, u


@dataclass(frozen=True)
class Storm:
    r"""s <- ghat(x_t) + (1-beta)(s - ghat(x_{t-1}))   (eq. 7), as printed; v and u alike, unnormalised.

    s can become <= 0, in exact arithmetic too. Where it falls below max(beta ghat, 1e-8 of the largest term), all
    estimators start anew from the batch; `reset` says so. Known bounds 0 <= l <= C confine log s to [0, C/lam] and
    the tracked mean loss to [0, C]: projections that never enlarge the error.

    Example:
        >>> import torch
        >>> from scdro import ASCDRO, PrintedTemperature
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = ASCDRO(model.parameters(), lr=0.1, rho=0.5, temperature=PrintedTemperature(), tracker=Storm())
    """

    two_points = True

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        assert log_mean_old is not None
        top = maximum(maximum(log_mean, log_mean_old), log_s)
        k1, k0, k = (exp(a - top) for a in (log_mean, log_mean_old, log_s))
        s = k1 + (1.0 - beta) * (k - k0)
        reset = s < maximum(beta * k1, 1e-8)
        s = where(reset, 1.0, s)
        moved = where(reset, log_mean, top + log(s))
        keep, old = (where(reset, 0.0, (1.0 - beta) * c / s) for c in (k, k0))
        empty = log_mean == -math.inf  # All of the batch is trimmed away: it says nothing.
        moved, keep, old = (where(empty, a, b) for a, b in ((log_s, moved), (1.0, keep), (0.0, old)))
        return Advance(moved, log_mean, keep, old, reset & (log_mean > -math.inf))

    def lam_gradient(self, step: Advance, kept: Scalar, at: LamTerms) -> tuple[Scalar, Scalar]:
        """lam u/s + log s + rho (eq. 8), by way of y = -lam^2 u/s, the tracked mean loss under p."""
        fresh = exp(step.log_mean - step.log_s) * at.mean
        y = at.ratio**2 * (step.keep * kept - _subtracted(step, at)) + fresh
        if at.bound is not None:
            y = clamp(y, 0.0, at.bound)
        return y, at.drift - y / at.lam


@dataclass(frozen=True)
class NormalizedStorm(MovingAverage):
    r"""STORM on the gradient of F itself rather than on that of g; s by the capped moving average.

    z <- grad(x_t; s_t) + (1-beta)(z - grad(x_{t-1}; s_{t-1})),   grad(x; s) = mean(exp(l/lam)/s grad l).

    The printed form multiplies the past by s_{t-1}/s_t, which exceeds one whenever s falls: rare hard samples then
    amplify old noise without end. Here the past only ever shrinks. `clip` bounds the correction
    grad(x_t) - grad(x_{t-1}) by that multiple of the smaller of |grad(x_t)| and |z|: beyond it, the two points are too
    far apart for their difference to reduce variance.

    Example:
        >>> from scdro import WindowTemperature
        >>> WindowTemperature().two_point_tracker()
        NormalizedStorm(cap=2.0, clip=0.3)
    """

    cap: float | None = 2.0
    clip: float | None = 0.3
    two_points = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not self.clip >= 0.0:
            raise HyperparameterError(f"expected clip >= 0, or None for no bound, got {self.clip}")

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        assert log_mean_old is not None
        moved = self.log_s(log_s, log_mean, beta)
        before = log_s if self.cap is None else maximum(log_s, log_mean_old - math.log(self.cap))
        old = (1.0 - beta) * exp(log_mean_old - before)
        return Advance(moved, log_mean, 1.0 - beta, old)

    def lam_gradient(self, step: Advance, kept: Scalar, at: LamTerms) -> tuple[Scalar, Scalar]:
        y = step.keep * kept + exp(step.log_mean - step.log_s) * at.mean - _subtracted(step, at)
        return y, at.drift - y / at.lam
