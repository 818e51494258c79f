"""The KL tilt p_i ~ q_i exp(l_i/lam) of a vector of losses, and the lam at which its KL equals rho.

The worst case of losses l over all p with KL(p, q) <= rho is

    max_p  sum_i p_i l_i - lam0 KL(p, q)   =   lam log sum_i q_i exp(l_i/lam) + (lam - lam0) rho

at the lam that minimises the right side, and there p_i ~ q_i exp(l_i/lam): hard samples get more
weight, the more the smaller lam is. So two things are needed, and both are here:

    tilt         p at a given lam, with what a Newton step on lam needs: KL(p, q) and Var_p(l/lam)
    solve_root   lam*, where KL(p_lam) = rho. KL falls as lam grows, d KL / d log lam =
                 -Var_p(l/lam), so there is one root; if even KL(p_lam0) <= rho, lam* = lam0

Everything is in the log domain: exp(20/1e-3) overflows any float, but only differences from the
largest loss are exponentiated.

All worst cases of the library use `solve_root` and, where a small KL matters, `divergence`. The
pass over the losses that gives KL and Var is written four times, because the sums run differently:

    tilt                            one vector, on the host or on a device
    linear_model/_worst_case.py     blocks of rows on parallel threads, in place
    boosting/_round_weights.py      rows divided over workers, every sum through their `reduce`
    contrastive.py                  the rows of a matrix, each with its own temperature

References:
    Qi, Lyu, Chan, Bai, Yang, "Stochastic Constrained DRO with a Complexity Independent of Sample
    Size", TMLR 2023, section 3, for the duality; docs/mathematics.md for the solver.
"""

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
    """q tilted by exp(l/lam), with what a Newton step on lam needs."""

    weights: Vector  # (n,) p, sums to one
    mean: Scalar  # mean of x = (l - shift)/lam under p, where `shift` is the caller's
    kl: Scalar  # KL(p, q), q normalised
    var: Scalar  # variance of x under p, which is -d KL / d log lam


# Avoids 0/0 and log 0 in a Newton step; the true KL and Var are either exactly zero or much larger.
_TINY = 1e-300

# Smaller float64 numbers are stored with fewer digits.
_LEAST_NORMAL = 1e-307

# Below this, E_p[l/lam] - log E_q[exp(l/lam)] loses digits of KL to cancellation; `divergence`
# keeps them. Solvers that stop at nine digits can afford the cheaper form further down.
CANCELS, CANCELS_NINE_DIGITS = 0.1, 1e-3


def tilt(
    centred: Vector, log_q: Vector, lam: Scalar, log_total: Scalar, *, precise: bool = False
) -> Tilt:
    """Weights p_i ~ q_i exp(l_i/lam), KL(p, q) and Var_p(l/lam).

    With x = l/lam, Z = sum q exp(x) and q normalised, log(p/q) = x - log Z, so

        KL(p, q) = sum p log(p/q) = E_p[x] - log Z

    Both terms can be large and nearly equal. If the host sees that the KL is small, and always with
    `precise`, it is computed by `divergence` instead, which loses no digits.

    Args:
        centred: the losses minus a value near their maximum, (n,), so that exp cannot overflow.
        log_q: logs of the base weights, (n,), not necessarily normalised; -inf for samples left
            out.
        lam: the temperature.
        log_total: log sum_i q_i.
        precise: compute the KL without cancellation, whatever its size. For solvers on a device,
            where the host must not look at the KL to choose the formula.
    """
    x = centred / lam
    p, log_norm, mean, var = _moments(x, x + log_q)
    kl = mean - log_norm + log_total
    if precise or (isinstance(kl, float) and kl < CANCELS):
        kl = scalar(divergence(x - (log_norm - log_total), exp(log_q - log_total), p).sum())
    elif isinstance(kl, Tensor):
        # For small x, KL(p_lam) = Var(l)/(2 lam^2) to first order; no digits cancel there.
        kl = where(kl < 1e-8, var / 2, kl)
    return Tilt(p, mean, kl, var)


def _moments(x: Vector, joint: Vector) -> tuple[Vector, Scalar, Scalar, Scalar]:
    """What a tilt consists of: p, log of its norm, and mean and variance of x under p.

    p = exp(joint)/sum exp(joint), where `joint` is x + log q. The NumPy branch overwrites `joint`
    and reuses one more vector: this runs several times in each training step.
    """
    if isinstance(joint, Tensor):
        assert isinstance(x, Tensor)
        p = torch.softmax(joint, 0)
        # The largest entry is exp(max joint)/norm, so this is logsumexp at a fraction of its cost.
        log_norm = scalar(joint.max()) - log(scalar(p.max()))
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
    """The terms of KL(p, q) = sum_i q_i (t_i log t_i - t_i + 1) with t = p/q; (n,).

    Because p and q both sum to one, this equals sum p log(p/q). But here no term is negative, so
    small terms are not lost in the difference of large ones. An error in the normalisation of p
    shifts every log t, but changes the sum only in proportion.

    Args:
        log_ratio: log t, (n,).
        q: base weights that sum to one, (n,).
        p: the tilted weights, if there may be q below 1e-307. Such q have lost digits and their t
            may overflow, so for them the term is p (log t - 1), which is the same but for q.
    """
    least = 0.0 if p is None else _LEAST_NORMAL
    bounded = minimum(log_ratio, 700.0)
    terms = masked(q * (bounded * exp(bounded) - expm1(bounded)), q <= least, 0.0)
    return terms if p is None else terms + masked(p * (log_ratio - 1.0), q > least, 0.0)


def newton_step(kl: Scalar, var: Scalar, lam: Scalar, rho: Scalar, mu: float = 0.0) -> Scalar:
    """Change in log lam from one Newton step on f = log KL(p_lam) - log(rho + mu lam) = 0.

        d f / d log lam = -Var_p(l/lam)/KL - mu lam/(rho + mu lam)

    In the coordinates (log lam, log KL) the curve is nearly a straight line, KL ~ Var(l)/(2 lam^2),
    so a few steps suffice from almost anywhere. `mu` > 0 is the strong convexity that RSCDRO and
    RASCDRO add to lam; everybody else has mu = 0.
    """
    kl = maximum(kl, _TINY)
    target = mu * lam + rho if mu else rho
    slope = var / kl + mu * lam / target if mu else var / kl  # -d f / d log lam
    return log(kl / target) / maximum(slope, _TINY)


def mass_and_size(log_weight: Vector) -> tuple[Scalar, Scalar]:
    """log sum w, and the effective number of samples (sum w)^2 / sum w^2, from the logs of w.

    n equal weights count as n samples, one weight far above the others as one.
    """
    # The usual case: all weights are one.
    if not isinstance(log_weight, Tensor) and not log_weight.any():
        return math.log(len(log_weight)), float(len(log_weight))
    top = maximum(scalar(log_weight.max()), -1e300)
    # At most one, so that the squares cannot overflow.
    w = exp(log_weight - top)
    total = scalar(w.sum())
    return log(total) + top, total * total / dot(w, w)


def effective_share(p: Tensor, q: Tensor) -> Tensor:
    """The effective sample size of weights p as a share of the samples, 1 / sum p^2/q, in (0, 1].

    q are the base weights; with q = 1/n this is the usual (sum p)^2 / (n sum p^2).
    """
    return 1.0 / torch.where(q > 0, p * (p / q), 0.0).sum().clamp_min(1.0)


def attainable(rho: float, size: Scalar) -> Scalar:
    """The part of rho that a sample of this size can resolve.

    On n samples KL(p, q) is at most log n, and there p has all its weight on the largest loss, at
    any small temperature: lam would fall without end. Up to max(log(n)/2, log(n/8)) the worst case
    still averages over a few samples, so rho is limited to that.
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

    Args:
        losses: (n,), finite.
        log_q: logs of the base weights, (n,), not necessarily normalised; -inf leaves a sample out.
        rho, lam0, mu: as in `solve_root`.
        start: a first guess, for instance the root of similar losses.
        wait: whether the host may wait for the device to stop early, as in `solve_root`.
    """
    log_total = scalar(torch.logsumexp(log_q, 0))
    live = log_q > -math.inf
    # Losses left out may lie above the maximum of the others; they have no weight, but must not
    # overflow either.
    centred = (losses - torch.where(live, losses, -math.inf).amax()).clamp_max(0.0)
    q = torch.exp(log_q - log_total)
    mean = scalar(torch.dot(q, centred))
    std = scalar(torch.sqrt(torch.dot(q, (centred - mean) ** 2)))
    precise = not host_reads(losses)  # a device cannot choose the formula by the size of the KL

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

    The method is Newton on log KL in log lam, inside a bracket:

        theta = log lam, between low = log lam0 and high = log(lam0 + (max l - mean l)/rho)
        repeat  theta <- theta + newton_step    if that is in the bracket and makes progress
                theta <- its middle             if not
                the sign of log(KL/rho) moves one end of the bracket to theta
        until   |log KL/rho| is at the tolerance or at rounding errors

    With one rare hard sample, KL is a step function of log lam, and plain Newton jumps back and
    forth across the step. So if |log KL/rho| does not halve within two steps, the bracket is halved
    instead. Seven passes over the losses are usual, more than a dozen are rare.

    Args:
        kl_and_var: returns KL(p_lam) and Var_p(l/lam) at a lam. The losses enter only here, so they
            may be in blocks, on several workers, or rows of a matrix with one lam each. Then all
            scalars are vectors with one entry per problem, solved at once.
        mean: the mean loss minus the largest loss (at most zero), under the base weights.
        std: the standard deviation of the losses under the base weights, for the first guess.
        rho: the radius, > 0; or 0, whose root is infinite unless mu > 0.
        lam0: the smallest lam.
        mu: strong convexity in lam, 0 for none.
        start: a first guess of lam; by default std/sqrt(2 rho), the root for small rho.
        tol: stop at |log KL/rho| <= tol; 0 goes on until rounding errors stop all progress.
        eps: relative size of these rounding errors.
        wait: on an accelerator, check for the end after each pass, which makes the host wait.
            Without it all iterations run. On the host it makes no difference.
        iterations: the most passes; by default 60, or 24 in a compiled graph, which unrolls the
            loop.

    Returns:
        lam*, in the kind of scalar that came (float, 0-d tensor or vector).
    """
    if iterations is None:
        # A compiled graph unrolls the loop.
        iterations = 24 if torch.compiler.is_compiling() else 60
    positive = isinstance(rho, Tensor) or rho > 0.0
    if not positive and mu == 0.0:
        return math.inf
    floor = math.log(lam0)
    # The bracket. KL(p_lam) <= (max l - mean l)/lam bounds lam* from above (docs/mathematics.md).
    # The lower end is unknown: -inf, in the shape of `high`.
    high = log(lam0 - mean / rho) if positive else log(lam0 + exp(0.5 * log(-mean / mu)))
    high = clamp(high, floor, 700.0)
    low: Scalar = high - math.inf
    # For small rho, KL ~ Var/(2 lam^2) gives the root.
    guess = std / exp(0.5 * log(2 * maximum(rho, 1e-12))) if start is None else start
    if start is None:
        # On a plateau, where the hardest samples have all the weight, only lam0 is exact.
        flat = kl_and_var(lam0)[0] <= rho + mu * lam0
        if flat is True:
            return lam0
        high = where(flat, floor, high)
    theta = clamp(log(maximum(guess, lam0)), floor, high)
    # |log KL/rho| of the last pass, of the one before it, and the smallest so far; infinite at
    # first.
    last = before_last = best = maximum(high, math.inf)
    # `root` is the theta of the smallest error so far; `done` is False, in the shape of `high`.
    root, done = theta, high != high
    for _ in range(iterations):
        lam = exp(theta)
        kl, var = kl_and_var(lam)
        step = newton_step(kl, var, lam, rho, mu)
        excess = log(maximum(kl, _TINY) / (mu * lam + rho))  # positive where lam is too small
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
    """log q without the hardest `trim` of its mass, renormalised; (n,), -inf for what is left out.

    The sample at the boundary is kept in part, so that the mass is exact for any weights.
    """
    order = torch.argsort(losses)
    q = torch.exp(log_q - torch.logsumexp(log_q, 0))[order]
    before = torch.cumsum(q, 0) - q  # mass of all easier samples
    room = 1.0 - trim - before  # what is left for this one
    # Rounding must not leave a tiny weight on a trimmed sample: at a small lam it would matter.
    kept = torch.where(room > 1e-12, torch.minimum(q, room), 0.0)
    kept = torch.where(kept > 1e-9 * q, kept, 0.0)
    return torch.empty_like(log_q).scatter_(0, order, torch.log(kept / kept.sum()))


def value_at(
    losses: Tensor, double: Tensor, log_q: Tensor, lam: Scalar, lam0: float
) -> tuple[Tensor, Tensor, Scalar]:
    """The value sum p l - lam0 KL(p) at p = p_lam, with p and KL(p).

    By the envelope theorem p may be held fixed in the gradient: d value / d l = p.

    Args:
        losses: (n,), in the caller's dtype, with a gradient or without.
        double: the same losses in float64, detached. The value is computed from these.
        log_q: logs of the base weights, (n,).
        lam: the temperature; lam* for the exact worst case.
        lam0: the paper's regulariser.
    """
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
        # Adds zero to the value, and the gradient p.
        linear = torch.dot(p, losses.to(double.dtype))
        value = value + (linear - linear.detach())
    return value, p, maximum(at.kl, 0.0)
