r"""What is kept of each anchor, and how its temperature moves.

An anchor is a KL-constrained problem of its own: tau_i solves min over tau >= tau0 of

    tau log( mean_j exp(h_ij/tau) ) + (tau - tau0) rho,        the root of KL_i(tau) = rho.

It is seen once an epoch, with the negatives of one batch. As elsewhere in this library, a batch is weighted at the
temperature that the batches before have left, and then decides the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scdro._kl import attainable, newton_step
from scdro.contrastive.negatives import Negatives, Tilts
from scdro.errors import HyperparameterError
from scdro.estimators import MovingAverage

__all__ = ["Anchors", "FixedTemperatures", "NewtonTemperatures", "PrintedTemperatures", "Seen", "Temperatures"]


class Anchors(NamedTuple):
    """Numbers of some anchors, (b,) each; NaN before an anchor has been seen.

    `soft` is tau log u, with u the moving average of mean exp(h/tau); `kl` what the worst case spends; `var` that of
    h/tau under it; `size` how many negatives these numbers are worth.
    """

    tau: Tensor
    soft: Tensor
    kl: Tensor
    var: Tensor
    size: Tensor

    @classmethod
    def unpacked(cls, rows: Tensor) -> Anchors:
        return cls(*rows.unbind(1))

    def packed(self) -> Tensor:
        return torch.stack(self, 1)

    @property
    def new(self) -> Tensor:
        return torch.isnan(self.soft)


class Seen(NamedTuple):
    """A batch of anchors at their temperatures: as they were, their negatives, and log u with this batch in it."""

    before: Anchors
    tau: Tensor
    at: Tilts
    log_u: Tensor
    number: Tensor
    beta: float
    rho: float
    tau0: float

    def kept(self, kl: Tensor, var: Tensor) -> Anchors:
        """The anchors with this batch in their numbers, and their temperatures as they were."""
        b, new = self.beta, self.before.new
        size = 1.0 / ((1.0 - b) ** 2 / self.before.size + b**2 / self.number)
        first = (self.at.kl, self.at.var, self.number)
        kl, var, size = (torch.where(new, x, y) for x, y in zip(first, (kl, var, size), strict=True))
        return Anchors(self.tau, self.tau * self.log_u, kl, var, size)


class Temperatures:
    """How the temperatures of anchors move; `tracker` says how u does."""

    @property
    def tracker(self) -> MovingAverage:
        return MovingAverage()

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """Where an anchor has not been seen."""
        raise NotImplementedError

    def advance(self, seen: Seen) -> Anchors:
        """After each batch."""
        raise NotImplementedError

    def alone(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """Where the batch is all that is known."""
        return negatives.solve(rho, tau0)


@dataclass(frozen=True)
class NewtonTemperatures(Temperatures):
    r"""One safeguarded Newton step a visit towards KL_i(tau_i) = rho. The default; nothing to tune.

    1. First visit: solved on the anchor's negatives.
    2. KL_i and Var_i are pooled over the visits, each by its share of u_i.
    3. log tau_i += clip(KL log(KL/rho)/Var, -1, 1).
    4. tau log u, KL and Var are carried to the new tau, by the line in (log tau, log KL) that the Newton step took.
       Otherwise the averages would ask again for what has just been done, and tau would swing.

    Of n negatives the worst case can show a KL of log n at most; where rho is larger, a smaller one takes its place
    until enough have been seen (`attainable`).

    Args:
        cap: the most visits that a single one may count for in u (`MovingAverage`); None for no bound.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5, temperature=NewtonTemperatures(cap=None))
    """

    cap: float | None = 2.0

    @property
    def tracker(self) -> MovingAverage:
        return MovingAverage(self.cap)

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return negatives.solve(attainable(rho, negatives.number), tau0, iterations=8)

    def advance(self, seen: Seen) -> Anchors:
        pooled = seen.kept(*_pooled(seen))
        kl = torch.where(pooled.kl < 1e-8, pooled.var / 2, pooled.kl).clamp_min(1e-300)
        change = newton_step(kl, pooled.var, pooled.tau, attainable(seen.rho, pooled.size))
        tau = (pooled.tau * torch.exp(torch.as_tensor(change).clamp(-1.0, 1.0))).clamp_min(seen.tau0)
        scale = torch.exp(-torch.log(tau / pooled.tau) * pooled.var / kl)
        # d(tau log u)/dtau = -KL, by the trapezoid.
        soft = pooled.soft - 0.5 * (1.0 + scale) * kl * (tau - pooled.tau)
        return Anchors(tau, soft, kl * scale, pooled.var * scale, pooled.size)


@dataclass(frozen=True)
class PrintedTemperatures(Temperatures):
    r"""The update of iSogCLR (Qiu et al. 2023, Algorithm 1): tau_i <- clip(tau_i - lr v_i, tau0, tau_max), where
    v_i <- (1-beta) v_i + beta (log u_i + rho - mean(exp(h/tau) h)/(u_i tau)). log u_i is kept as it is.

    Args:
        initial: tau_i before the first visit.
        lr: the step size of all tau_i, with no division by n.
        tau_max: the largest tau_i.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5, temperature=PrintedTemperatures(initial=0.1, lr=0.01))
    """

    initial: float = 0.1
    lr: float = 0.01
    tau_max: float = math.inf

    def __post_init__(self) -> None:
        check_temperature(self.initial)
        if not 0.0 <= self.lr < math.inf:
            raise HyperparameterError(f"expected a step size lr >= 0 for the temperatures, got {self.lr}")
        if not self.initial <= self.tau_max:
            raise HyperparameterError(f"expected tau_max >= initial = {self.initial}, got {self.tau_max}")

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, max(self.initial, tau0))

    def advance(self, seen: Seen) -> Anchors:
        # v = rho - KL, with the batch's KL as u has it.
        fresh = torch.exp(seen.at.log_mean - seen.log_u) * (seen.at.kl + seen.at.log_mean) - seen.log_u
        kept = seen.kept(seen.before.kl + seen.beta * (fresh - seen.before.kl), seen.at.var)
        tau = (kept.tau - self.lr * (seen.rho - kept.kl)).clamp(seen.tau0, self.tau_max)
        return kept._replace(tau=tau, soft=tau * seen.log_u)


@dataclass(frozen=True)
class FixedTemperatures(Temperatures):
    """One temperature for all anchors and for good: the global contrastive loss of SogCLR (Yuan et al. 2022).

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.0, temperature=FixedTemperatures(0.1))
    """

    tau: float

    def __post_init__(self) -> None:
        check_temperature(self.tau)

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, self.tau)

    alone = first

    def advance(self, seen: Seen) -> Anchors:
        return seen.kept(*_pooled(seen))


def _pooled(seen: Seen) -> tuple[Tensor, Tensor]:
    """KL and Var of the visits so far under their worst case, each visit by its share of u."""
    before, at = seen.before, seen.at
    log_past = before.soft / seen.tau
    now, past = torch.exp(at.log_mean - seen.log_u), torch.exp(log_past - seen.log_u).clamp_max(1e300)
    # The batch's weight w in u = (1-w) past + w now is beta, or more where `cap` has raised u above that.
    capped = 1.0 - (1.0 - seen.beta) * past - seen.beta * now > 1e-9
    share = now * torch.where(capped, (1.0 - past) / (now - past), seen.beta)
    old, fresh = before.kl + log_past, at.kl + at.log_mean  # means of h/tau: KL = mean - log u
    mean = old + share * (fresh - old)
    var = before.var + share * (at.var - before.var) + share * (1.0 - share) * (fresh - old) ** 2
    return (mean - seen.log_u).clamp_min(0.0), var


def check_temperature(tau: float, name: str = "a temperature") -> None:
    """Similarities over tau, and their squares, must be finite in float32."""
    if not 1e-15 <= tau < math.inf:
        raise HyperparameterError(f"expected {name} > 0, and no less than 1e-15, got {tau}")
