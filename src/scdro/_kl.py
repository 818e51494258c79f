"""The KL tilt p_i ~ q_i exp(l_i/lam) of a vector of losses, and the lam at which its KL equals rho."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdro._scalar import (
    Scalar,
    Vector,
    as_tensor,
    clamp,
    dot,
    exp,
    expm1,
    host_reads,
    log,
    masked,
    maximum,
    minimum,
    scalar,
    where,
)


class Tilt(NamedTuple):
    """q tilted by exp(l/lam), as a Newton step on lam needs it. `mean` and `var` are those of l/lam under p."""

    weights: Vector
    mean: Scalar
    kl: Scalar
    var: Scalar


# Avoids 0/0 and log 0 in a Newton step; the true KL and Var are either exactly zero or much larger.
_TINY = 1e-300

_LEAST_NORMAL = 1e-307  # smaller float64 numbers have fewer digits

# Below this, E_p[l/lam] - log E_q[exp(l/lam)] loses digits of KL to cancellation; `divergence`
# keeps them. Solvers that stop at nine digits can afford the cheaper form further down.
CANCELS, CANCELS_NINE_DIGITS = 0.1, 1e-3


def tilt(
    centred: Vector, log_q: Vector, lam: Scalar, log_total: Scalar, *, precise: bool = False
) -> Tilt:
    """Weights p_i ~ q_i exp(l_i/lam), KL(p, q) and Var_p(l/lam). `centred` is the losses minus a value near their max.

    `log_total` is the log of sum_i q_i. A small KL is computed without cancellation if the host can
    see that it is small, and always with `precise`.
    """
    x = centred / lam
    p, log_norm, mean, var = _moments(x, x + log_q)
    kl = mean - log_norm + log_total
    if precise or (isinstance(kl, float) and kl < CANCELS):
        kl = scalar(divergence(x - (log_norm - log_total), exp(log_q - log_total), p).sum())
    elif isinstance(kl, Tensor):
        kl = where(kl < 1e-8, var / 2, kl)  # to first order
    return Tilt(p, mean, kl, var)


def _moments(x: Vector, joint: Vector) -> tuple[Vector, Scalar, Scalar, Scalar]:
    """p = exp(joint) divided by its sum, the log of that sum, mean and variance of x under p. Overwrites `joint`."""
    if isinstance(joint, Tensor):
        assert isinstance(x, Tensor)
        p = torch.softmax(joint, 0)
        log_norm = scalar(joint.max()) - log(scalar(p.max()))  # logsumexp at a fraction of its cost
        mean = scalar(torch.dot(p, x))
        deviation = x - mean
        return p, log_norm, mean, scalar(torch.dot(p, deviation * deviation))
    top = np.maximum.reduce(joint).item()
    share = np.exp(np.subtract(joint, top, out=joint), out=joint)
    total = np.add.reduce(share).item()
    share /= total
    terms = share * x
    mean = np.add.reduce(terms).item()
    np.subtract(x, mean, out=terms)
    terms *= terms
    terms *= share
    return share, top + log(total), mean, np.add.reduce(terms).item()


def divergence(log_ratio: Vector, q: Vector, p: Vector | None = None) -> Vector:
    """The terms of KL(p, q) = sum q (t log t - t + 1), t = p/q. None is negative, so small terms are not lost.

    An error in the normalisation of p shifts every log t, but changes the sum only in proportion.
    Shares q below 1e-308
    have lost their digits, and t may overflow: there p, if given, is used instead.
    """
    least = 0.0 if p is None else _LEAST_NORMAL
    bounded = minimum(log_ratio, 700.0)
    terms = masked(q * (bounded * exp(bounded) - expm1(bounded)), q <= least, 0.0)
    return terms if p is None else terms + masked(p * (log_ratio - 1.0), q > least, 0.0)


def newton_step(kl: Scalar, var: Scalar, lam: Scalar, rho: Scalar, mu: float = 0.0) -> Scalar:
    """Change in log lam from one Newton step on log KL(p_lam) - log(rho + mu lam) = 0.

    d KL / d log lam = -Var_p(l/lam). In (log lam, log KL) the equation is nearly a straight line:
    KL ~ Var/(2 lam^2).
    """
    kl = maximum(kl, _TINY)
    target = mu * lam + rho if mu else rho
    slope = var / kl + mu * lam / target if mu else var / kl
    return log(kl / target) / maximum(slope, _TINY)


def mass_and_size(log_weight: Vector) -> tuple[Scalar, Scalar]:
    """log sum w, and the effective number of samples, (sum w)^2 / sum w^2."""
    # The usual case: all weights are one.
    if not isinstance(log_weight, Tensor) and not log_weight.any():
        return math.log(len(log_weight)), float(len(log_weight))
    top = maximum(scalar(log_weight.max()), -1e300)
    w = exp(log_weight - top)  # at most one, so that the squares cannot overflow
    total = scalar(w.sum())
    return log(total) + top, total * total / dot(w, w)


def effective_share(p: Tensor, q: Tensor) -> Tensor:
    """The effective sample size of weights p as a share of the samples, 1 / sum p^2/q, in (0, 1]."""
    return 1.0 / torch.where(q > 0, p * (p / q), 0.0).sum().clamp_min(1.0)


def attainable(rho: float, size: Scalar) -> Scalar:
    """The part of rho that a sample of this size can resolve.

    KL(p, q) is at most log n on n samples, and at that point the worst case is the largest loss, at
    any temperature. Up to rho = log(sqrt(n)) or log(n/8), whichever is larger, the worst case still
    averages over a few samples.
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
    wait: bool = False,
) -> Scalar:
    """lam* of a vector of losses with base weights q: the root of KL(p_lam) = rho + mu lam, or lam0.

    `start` is an optional first guess. `wait` is as in `solve_root`.
    """
    log_total = scalar(torch.logsumexp(log_q, 0))
    live = log_q > -math.inf
    centred = (losses - torch.where(live, losses, -math.inf).amax()).clamp_max(0.0)
    q = torch.exp(log_q - log_total)
    mean = scalar(torch.dot(q, centred))
    std = scalar(torch.sqrt(torch.dot(q, (centred - mean) ** 2)))
    precise = not host_reads(losses)

    def at(lam: Scalar) -> tuple[Scalar, Scalar]:
        found = tilt(centred, log_q, lam, log_total, precise=precise)
        return found.kl, found.var

    return solve_root(
        at, mean, std, rho, lam0, mu=mu, start=start, eps=torch.finfo(losses.dtype).eps, wait=wait
    )


def solve_root(
    kl_and_var: Callable[[Scalar], tuple[Scalar, Scalar]],
    mean: Scalar,
    std: Scalar,
    rho: Scalar,
    lam0: float,
    *,
    mu: float = 0.0,
    start: float | None = None,
    tol: float = 0.0,
    eps: float = torch.finfo(torch.float64).eps,
    wait: bool = False,
    iterations: int | None = None,
) -> Scalar:
    """lam*, the root of KL(p_lam) = rho + mu lam, or lam0 if that is larger.

    The losses enter only through `kl_and_var`, which returns KL(p_lam) and Var_p(l/lam), through
    `mean` (their mean minus their max) and `std`. If these are vectors, many problems are solved at
    once.

    The method is Newton on log KL in log lam, inside a bracket. With one rare hard sample, KL is a
    step function of log lam, and plain Newton jumps back and forth across the step. So if |log
    KL/rho| does not halve within two steps, the bracket is halved instead.

    Seven passes over the losses are usual, more than a dozen are rare. The solver stops at |log
    KL/rho| <= tol, or when rounding errors (relative size `eps`) stop all progress. On an
    accelerator it checks this only with `wait`, because the host has to wait for the device;
    without, it runs all iterations.
    """
    if iterations is None:
        # A compiled graph unrolls the loop.
        iterations = 24 if torch.compiler.is_compiling() else 60
    positive = isinstance(rho, Tensor) or rho > 0.0
    if not positive and mu == 0.0:
        return math.inf
    floor = math.log(lam0)
    # KL(p_lam) <= (max l - mean l)/lam bounds lam* from above (docs/mathematics.md).
    high = log(lam0 - mean / rho) if positive else log(lam0 + exp(0.5 * log(-mean / mu)))
    high = clamp(high, floor, 700.0)
    low: Scalar = high - math.inf
    guess = std / exp(0.5 * log(2 * maximum(rho, 1e-12))) if start is None else start
    if start is None:
        # On a plateau, where the hardest samples have all the weight, only lam0 is exact.
        flat = kl_and_var(lam0)[0] <= rho + mu * lam0
        if flat is True:
            return lam0
        high = where(flat, floor, high)
    theta = clamp(log(maximum(guess, lam0)), floor, high)
    last = before_last = best = maximum(high, math.inf)
    root, done = theta, high != high
    for _ in range(iterations):
        lam = exp(theta)
        kl, var = kl_and_var(lam)
        step = newton_step(kl, var, lam, rho, mu)
        excess = log(maximum(kl, _TINY) / (mu * lam + rho))
        error = maximum(excess, -excess)
        low, high = where(excess > 0.0, theta, low), where(excess > 0.0, high, theta)
        better = error < best
        root, best = where(better, theta, root), where(better, error, best)
        proposal = maximum(theta + step, floor)
        outside = (proposal <= low) | (proposal >= high)
        # An error of e changes the value by at most e (max l - mean l), and eps**0.6 is 4e-10.
        at_rounding = (error <= eps**0.6) & (outside | (error > 0.5 * last))
        done = done | (error <= max(tol, 4 * eps)) | at_rounding | (high <= floor)
        if (
            bool(done.all())
            if isinstance(done, Tensor) and (wait or host_reads(done))
            else done is True
        ):
            break
        slow = (error > 0.5 * before_last) & (proposal > floor)
        theta = where(outside | slow, 0.5 * (maximum(low, floor) + high), proposal)
        last, before_last = error, last
    return where(high <= floor, lam0, maximum(exp(root), lam0))


def trimmed_log_weights(losses: Tensor, log_q: Tensor, trim: float) -> Tensor:
    """log q without the hardest `trim` of its mass, renormalised. The sample at the boundary is kept in part."""
    order = torch.argsort(losses)
    q = torch.exp(log_q - torch.logsumexp(log_q, 0))[order]
    before = torch.cumsum(q, 0) - q
    room = 1.0 - trim - before
    # Rounding must not leave a tiny weight on a trimmed sample: at a small lam it would matter.
    kept = torch.where(room > 1e-12, torch.minimum(q, room), 0.0)
    kept = torch.where(kept > 1e-9 * q, kept, 0.0)
    return torch.empty_like(log_q).scatter_(0, order, torch.log(kept / kept.sum()))


def value_at(
    losses: Tensor, double: Tensor, log_q: Tensor, lam: Scalar, lam0: float
) -> tuple[Tensor, Tensor, Scalar]:
    """Return sum p l - lam0 KL(p), p and KL(p) at p = p_lam. By the envelope theorem, the gradient in l is p."""
    top = torch.where(log_q > -math.inf, double, -math.inf).amax()
    centred = (double - top).clamp_max(0.0)
    at = tilt(centred, log_q, lam, scalar(torch.logsumexp(log_q, 0)))
    p = as_tensor(at.weights)
    # Twice: from the largest loss, which may be far above the mean, all others would lose their
    # last digits.
    kept = double.clamp_max(top)
    mean = torch.dot(p, kept)
    value = mean + torch.dot(p, kept - mean) - lam0 * at.kl
    if losses.requires_grad:
        linear = torch.dot(p, losses.to(double.dtype))
        value = value + (linear - linear.detach())
    return value, p, maximum(at.kl, 0.0)
