r"""How s, the running estimate of g = E exp(l/lam), and the estimates built on it move with a batch.

A tracker is a pure rule. It reads log means A = log mean exp(l/lam) of the batch, at the present point and, for STORM,
at the previous one, and answers with the new log s and three coefficients, so that one rule serves numbers and
gradients alike:

    estimate <- keep * estimate + new * fresh - old * fresh_at_the_previous_point

where `fresh` is the batch's own answer under its own weights softmax(l/lam). Nothing is ever exponentiated but
differences of logarithms that are bounded by construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from scdro.errors import HyperparameterError

__all__ = ["Advance", "MovingAverage", "NormalizedStorm", "Storm", "Tracker"]


class Advance(NamedTuple):
    """One step of a tracker: log s_t, the coefficients of its estimates, and whether it had to start anew."""

    log_s: Tensor
    keep: Tensor | float
    new: Tensor
    old: Tensor
    reset: Tensor | None = None


class LamTerms(NamedTuple):
    """What the gradient in lam is made of: drift = log s + rho (+ mu lam), mean losses under softmax(l/lam) at both
    points, and lam_t over the temperature at which the past is expressed."""

    drift: Tensor
    lam: Tensor
    ratio: Tensor
    mean: Tensor
    mean_old: Tensor
    bound: float | None


class Tracker(Protocol):
    """The rule that moves log s; `start` is its first step, `advance` every later one."""

    two_points: bool

    def start(self, log_mean: Tensor) -> Advance: ...
    def advance(self, log_s: Tensor, log_mean: Tensor, log_mean_old: Tensor | None, beta: float) -> Advance: ...
    def lam_gradient(self, step: Advance, kept: Tensor, at: LamTerms) -> tuple[Tensor, Tensor]: ...


def _start(log_mean: Tensor) -> Advance:
    """s, v and u are the batch's own (Algorithms 1 and 2, line 2)."""
    one = torch.ones_like(log_mean)
    return Advance(log_mean, 0.0, one, torch.zeros_like(one))


def _averaged(log_s: Tensor, log_mean: Tensor, beta: float) -> Tensor:
    """log((1-beta) s + beta ghat)."""
    if beta == 1.0:
        return log_mean
    return torch.logaddexp(log_s + math.log1p(-beta), log_mean + math.log(beta))


def _check_cap(cap: float | None) -> None:
    if cap is not None and not cap >= 1.0:
        raise HyperparameterError(f"expected cap >= 1, the most batches that one batch may count for, got {cap}")


@dataclass(frozen=True)
class MovingAverage:
    r"""s <- (1-beta) s + beta ghat   (Algorithm 1, line 6), and with `cap`, s <- max(that, ghat / cap).

    The weights of a batch sum to ghat/s <= 1/beta. A batch whose losses have just jumped therefore pushes the model
    up to 1/beta times as hard as a plain one, and does so because s is late, not because it is right; `cap` says how
    many batches one may count for.
    """

    cap: float | None = None
    two_points = False

    def __post_init__(self) -> None:
        _check_cap(self.cap)

    def start(self, log_mean: Tensor) -> Advance:
        return _start(log_mean)

    def log_s(self, log_s: Tensor, log_mean: Tensor, beta: float) -> Tensor:
        moved = _averaged(log_s, log_mean, beta)
        return moved if self.cap is None else torch.maximum(moved, log_mean - math.log(self.cap))

    def advance(self, log_s: Tensor, log_mean: Tensor, log_mean_old: Tensor | None, beta: float) -> Advance:
        moved = self.log_s(log_s, log_mean, beta)
        new = torch.exp(log_mean - moved)
        return Advance(moved, 1.0 - beta, beta * new, torch.zeros_like(new))

    def lam_gradient(self, step: Advance, kept: Tensor, at: LamTerms) -> tuple[Tensor, Tensor]:
        """u <- (1-beta) u + beta (log s + rho - mean(exp(l/lam) l)/(s lam))   (eq. 8)."""
        u = step.keep * kept + (1.0 - step.keep) * at.drift - step.new * at.mean / at.lam
        return u, u


@dataclass(frozen=True)
class Storm:
    r"""s <- ghat(x_t) + (1-beta)(s - ghat(x_{t-1}))   (eq. 10), as printed; v and u alike, unnormalised.

    s can become <= 0, in exact arithmetic too. Where it falls below max(beta ghat, 1e-8 of the largest term), all
    estimators start anew from the batch; `reset` says so. Known bounds 0 <= l <= C confine log s to [0, C/lam] and
    the tracked mean loss to [0, C]: projections that never enlarge the error.
    """

    two_points = True

    def start(self, log_mean: Tensor) -> Advance:
        return _start(log_mean)

    def advance(self, log_s: Tensor, log_mean: Tensor, log_mean_old: Tensor | None, beta: float) -> Advance:
        assert log_mean_old is not None
        top = torch.maximum(torch.maximum(log_mean, log_mean_old), log_s)
        k1, k0, k = (torch.exp(a - top) for a in (log_mean, log_mean_old, log_s))
        s = k1 + (1.0 - beta) * (k - k0)
        reset = s < torch.clamp(beta * k1, min=1e-8)
        moved = torch.where(reset, log_mean, top + torch.log(torch.where(reset, 1.0, s)))
        keep, new, old = ((1.0 - beta) * k / s, k1 / s, (1.0 - beta) * k0 / s)
        keep, old = (torch.where(reset, 0.0, c) for c in (keep, old))
        return Advance(moved, keep, torch.where(reset, 1.0, new), old, reset)

    def lam_gradient(self, step: Advance, kept: Tensor, at: LamTerms) -> tuple[Tensor, Tensor]:
        """lam u/s + log s + rho (eq. 11), by way of y = -lam^2 u/s, the tracked mean loss under p."""
        y = at.ratio**2 * (step.keep * kept - step.old * at.mean_old) + step.new * at.mean
        if at.bound is not None:
            y = y.clamp(0.0, at.bound)
        return y, at.drift - y / at.lam


@dataclass(frozen=True)
class NormalizedStorm(MovingAverage):
    r"""STORM on the gradient of F itself rather than on that of g; s by the capped moving average.

    z <- grad(x_t; s_t) + (1-beta)(z - grad(x_{t-1}; s_{t-1})),   grad(x; s) = mean(exp(l/lam)/s grad l).

    The printed form multiplies the past by s_{t-1}/s_t, which exceeds one whenever s falls: rare hard samples then
    amplify old noise without end. Here the past only ever shrinks. `clip` bounds the correction
    grad(x_t) - grad(x_{t-1}) by that multiple of the smaller of |grad(x_t)| and |z|: beyond it, the two points are too
    far apart for their difference to reduce variance.
    """

    cap: float = 2.0
    clip: float | None = 0.3
    two_points = True

    def advance(self, log_s: Tensor, log_mean: Tensor, log_mean_old: Tensor | None, beta: float) -> Advance:
        assert log_mean_old is not None
        moved = self.log_s(log_s, log_mean, beta)
        before = torch.maximum(log_s, log_mean_old - math.log(self.cap))
        old = (1.0 - beta) * torch.exp(log_mean_old - before)
        return Advance(moved, 1.0 - beta, torch.exp(log_mean - moved), old)

    def lam_gradient(self, step: Advance, kept: Tensor, at: LamTerms) -> tuple[Tensor, Tensor]:
        y = step.keep * kept + step.new * at.mean - step.old * at.mean_old
        return y, at.drift - y / at.lam
