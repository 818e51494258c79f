"""The KL tilt p_i ~ q_i exp(l_i/lam) of a vector of losses, and the lam at which it spends rho."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scdro.scalar import Scalar, clamp, exp, log, maximum, minimum, scalar, where


class Tilt(NamedTuple):
    """q tilted by exp(l/lam): what a Newton step on lam needs. `var` is that of l/lam."""

    weights: Tensor
    kl: Scalar
    var: Scalar


# Constants that keep 0 log 0 and 0/0 out of the Newton step; the true KL and Var are either exact zeros or far larger.
_TINY = 1e-300


def tilt(centred: Tensor, log_q: Tensor, lam: Scalar, log_total: Scalar) -> Tilt:
    """Weights p_i ~ q_i exp(l_i/lam), KL(p, q) and Var_p(l/lam); `centred` are losses less a value near their top.

    `log_total` is the log of sum_i q_i.
    """
    x = centred / lam
    joint = x + log_q
    p = torch.softmax(joint, 0)
    log_norm = scalar(joint.max()) - log(scalar(p.max()))  # logsumexp(joint), at a fraction of its cost
    mean = scalar(torch.dot(p, x))
    deviation = x - mean
    kl = mean - log_norm + log_total
    return Tilt(p, kl, scalar(torch.dot(p, deviation * deviation)))


def newton_step(at: Tilt, lam: Scalar, rho: Scalar, mu: float = 0.0) -> Scalar:
    """Change of log lam by one Newton step on log KL(p_lam) - log(rho + mu lam) = 0.

    d KL / d log lam = -Var_p(l/lam). In (log lam, log KL) the equation is nearly a straight line: KL ~ Var/(2 lam^2).
    """
    # Where KL is lost in rounding it is Var/2 to first order.
    kl = maximum(where(at.kl < 1e-8, at.var / 2, at.kl), _TINY)
    target = mu * lam + rho if mu else rho
    slope = at.var / kl + mu * lam / target if mu else at.var / kl
    return log(kl / target) / maximum(slope, _TINY)


def effective_size(log_weight: Tensor) -> Scalar:
    """How many equally weighted samples these are worth, (sum w)^2 / sum w^2."""
    return mass_and_size(log_weight)[1]


def mass_and_size(log_weight: Tensor) -> tuple[Scalar, Scalar]:
    """log sum w, and (sum w)^2 / sum w^2."""
    top = scalar(log_weight.max())
    w = torch.exp(log_weight - top)  # Weights of any size: their squares are those of numbers up to one.
    total = scalar(w.sum())
    return log(total) + top, total * total / scalar(torch.dot(w, w))


def attainable(rho: float, size: Scalar) -> Scalar:
    """The part of rho that a sample of this size can show.

    KL(p, q) is at most log n on n samples: there the worst case is the largest of them, at whatever temperature. Up to
    rho of the size's square root, or of an eighth of it, the worst case still averages over a few.
    """
    log_n = log(maximum(size, 2.0))
    return minimum(maximum(0.5 * log_n, log_n - math.log(8.0)), rho)


def solve_lam(
    losses: Tensor,
    log_q: Tensor,
    rho: Scalar,
    lam0: float,
    *,
    mu: float = 0.0,
    start: float | None = None,
    iterations: int = 100,
    exact: bool = True,
) -> Scalar:
    """lam* = the root of KL(p_lam) = rho + mu lam, or lam0: Newton in log lam, kept inside a bisection bracket.

    `start` is a guess, where one is known.
    It stops when the equation holds to rounding. Where the host would have to wait to see that, it does so only with
    `exact`; without, it makes all its steps.
    """
    log_total = scalar(torch.logsumexp(log_q, 0))
    q = torch.exp(log_q - log_total)
    top = torch.where(log_q > -math.inf, losses, -math.inf).amax()
    centred = losses - top
    mean = scalar(torch.dot(q, centred))
    std = scalar(torch.sqrt(torch.dot(q, (centred - mean) ** 2)))

    def at(lam: Scalar) -> Tilt:
        return tilt(centred, log_q, lam, log_total)

    return solve_root(at, mean, std, rho, lam0, mu=mu, start=start, iterations=iterations, exact=exact)


def solve_root(
    tilt_at: Callable[[Scalar], Tilt],
    mean: Scalar,
    std: Scalar,
    rho: Scalar,
    lam0: float,
    *,
    mu: float = 0.0,
    start: float | None = None,
    iterations: int = 100,
    exact: bool = True,
) -> Scalar:
    """lam* of losses known by their tilt, their mean less their top, and their spread; of many vectors of losses at
    once where these are vectors."""
    positive = isinstance(rho, Tensor) or rho > 0.0
    if not positive and mu == 0.0:
        return math.inf
    # lam0 + (max l - mean l)/rho bounds lam* from above (docs/mathematics.md).
    low: Scalar = math.log(lam0)
    high = maximum(log(lam0 - mean / rho), low) if positive else low + 700.0
    guess = std / exp(0.5 * log(2 * maximum(rho, 1e-12))) if start is None else start
    theta = clamp(log(maximum(guess, lam0)), low, high)
    solved = tilt_at(lam0).kl <= rho + mu * lam0
    for _ in range(iterations):
        lam = exp(theta)
        at = tilt_at(lam)
        too_sharp = at.kl > rho + mu * lam
        low, high = where(too_sharp, theta, low), where(too_sharp, high, theta)
        proposal = theta + newton_step(at, lam, rho, mu)
        # At the root the proposal may fall beside the bracket by rounding: it must not be sent to the middle for that.
        slack = 1e-12 * (1 + maximum(theta, -theta))
        inside = (proposal >= low - slack) & (proposal <= high + slack)
        previous, theta = theta, where(inside, proposal, 0.5 * (low + high))
        change = theta - previous
        done = solved | (maximum(change, -change) <= 1e-2 * slack)
        if done.all() if isinstance(done, Tensor) and exact else done is True:
            break
    return where(solved, lam0, maximum(exp(theta), lam0))


def trimmed_log_weights(losses: Tensor, log_q: Tensor, trim: float) -> Tensor:
    """log q without the hardest `trim` of its mass, renormalised; the sample on the edge is kept in part."""
    order = torch.argsort(losses)
    q = torch.exp(log_q - torch.logsumexp(log_q, 0))[order]
    before = torch.cumsum(q, 0) - q
    room = 1.0 - trim - before
    # Rounding must leave no sample in: at a small lam it would count.
    kept = torch.where(room > 1e-12, torch.minimum(q, room), 0.0)
    kept = torch.where(kept > 1e-9 * q, kept, 0.0)
    return torch.empty_like(log_q).scatter_(0, order, torch.log(kept / kept.sum()))


def value_at(losses: Tensor, double: Tensor, log_q: Tensor, lam: Scalar, lam0: float) -> tuple[Tensor, Tensor, Scalar]:
    """sum p l - lam0 KL(p), p, KL(p) for p = p_lam. By the envelope theorem the gradient in l is p, held constant."""
    top = torch.where(log_q > -math.inf, double, -math.inf).amax()
    at = tilt(double - top, log_q, lam, scalar(torch.logsumexp(log_q, 0)))
    value = torch.dot(at.weights, losses.to(double.dtype)) - lam0 * at.kl
    return value, at.weights, maximum(at.kl, 0.0)
