r"""The weights of a boosting round: the worst case of the current losses, on one machine or
several.

    max_{KL(p, q) <= rho} sum_i p_i l_i,  attained at  p_i = q_i exp(l_i/lam) / sum_j q_j exp(l_j/lam)

lam is solved for from that of the round before, by the same solver as everywhere
(`_kl.solve_root`). Workers that each have a part of the rows exchange a few sums and a maximum for
every trial lam, never losses. That is why the tilt is written here and not taken from `_kl.tilt`:
each of its sums has to pass through `reduce`, and the ratio p/q is wanted, not p. Together with the
reductions the call would be longer than the three lines that it replaces.

References:
    Hu and Hong, Kullback-Leibler divergence constrained distributionally robust optimization, 2013.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from scdro._kl import CANCELS_NINE_DIGITS, divergence, solve_root
from scdro._scalar import Scalar, one_thread_dot
from scdro.boosting._losses import Array, BoostingLoss, LogisticLoss, OneVsAllLoss, SoftmaxLoss
from scdro.errors import NonFiniteLossError

__all__ = [
    "Reduce",
    "RoundWeights",
    "best_constant_shares",
    "choose_first_ratio",
    "one_worker",
    "solve_ratio",
]

# (values, "sum" or "max") -> the same of all workers, entry by entry.
Reduce = Callable[[Array, str], Array]

# lam is no less than this part of (hardest loss - mean loss). When too few samples remain to reach
# KL = rho, it would fall to zero. There is no lam0, because targets come in any unit.
_LEAST_LAM = 1e-9


def one_worker(values: Array, operation: str) -> Array:
    """The reduction over one worker."""
    return values


class RoundWeights(NamedTuple):
    """The worst case of the losses before a round."""

    ratio: Array  # p_i/q_i, (n,): what the worst case multiplies each sample's weight by
    value: float  # the robust value, over all workers
    lam: float  # the temperature; infinite if rho = 0 or all losses are equal


def solve_ratio(
    losses: Array,
    weight: Array | None,
    rho: float,
    *,
    start: float | None = None,
    reduce: Reduce = one_worker,
) -> RoundWeights:
    """The worst case within KL distance rho, exact up to rounding.

    Args:
        losses: those of this worker's rows, (n,).
        weight: their base probabilities q, up to a factor, (n,); None for equal ones.
        rho: radius of the KL ball.
        start: a guess of lam, such as that of the round before.
        reduce: sums or maximises numbers over the workers.
    """
    weight = np.ones(len(losses)) if weight is None else weight.astype(np.float64)
    # Losses of weight zero may have any value.
    live = losses if weight.all() else losses[weight > 0]
    diverged = not np.isfinite(live).all()
    top, somewhere = reduce(
        np.array([live.max(initial=-math.inf), diverged], dtype=np.float64), "max"
    )
    if somewhere:
        raise NonFiniteLossError(
            "expected finite losses, got NaN or infinite ones: the model diverges; lower"
            " learning_rate, or scale y"
        )
    mass = float(reduce(np.array([weight.sum()]), "sum")[0])
    if mass == 0.0:
        return RoundWeights(np.ones_like(losses), math.nan, math.inf)
    q = weight / mass
    x = np.minimum(losses - top, 0.0)  # only samples of weight zero are above the top
    mean, square, q_mass = (
        float(total)
        for total in reduce(
            np.array([one_thread_dot(q, x), one_thread_dot(q, x * x), q.sum()]), "sum"
        )
    )
    if rho == 0.0 or mean == 0.0:
        return RoundWeights(np.ones_like(x), float(top) + mean, math.inf)

    norm, tilted_mean = 1.0, mean  # of the last trial lam: sum q exp(x/lam), and E_p[x/lam]

    def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
        """KL(p_lam, q) and the variance of x/lam under p_lam, over all workers; one pass over the rows."""
        nonlocal norm, tilted_mean
        a = x / float(lam)
        p = q * np.exp(a)
        sums = reduce(np.array([p.sum(), one_thread_dot(p, a), one_thread_dot(p, a * a)]), "sum")
        norm, tilted_mean = float(sums[0]), float(sums[1] / sums[0])
        kl = tilted_mean - math.log(norm)
        if kl < CANCELS_NINE_DIGITS:
            terms = divergence(a - math.log(norm / q_mass), q)
            kl = float(reduce(np.array([terms.sum()]), "sum")[0])
        return kl, max(float(sums[2] / sums[0]) - tilted_mean**2, 0.0)

    std = math.sqrt(max(square - mean**2, 0.0))
    lam = float(solve_root(kl_and_var, mean, std, rho, -_LEAST_LAM * mean, start=start, tol=1e-9))
    kl_and_var(lam)
    return RoundWeights(np.exp(x / lam) / norm, float(top) + lam * tilted_mean, lam)


# -- the first round


def choose_first_ratio(
    loss: BoostingLoss, y: Array, weight: Array | None, rho: float, reduce: Reduce = one_worker
) -> Array | None:
    """p_i/q_i before the first round, (n,), when there are no losses yet; None for ones.

    A library starts from the average of the labels by their weights. With these weights that is,
    for a classifier, the
    constant of least robust value: where a class is rare, starting from its plain share would give
    its samples all the weight and a curvature near zero, and Newton's step would overshoot by
    orders of magnitude.
    """
    weight = np.ones(len(y)) if weight is None else weight
    if isinstance(loss, LogisticLoss) and y.ndim == 1:
        masses = np.array([one_thread_dot(weight, 1.0 - y), one_thread_dot(weight, y)])
        negative, positive = _ratios(reduce(masses, "sum"), rho)
        return np.asarray(negative + (positive - negative) * y)
    if isinstance(loss, SoftmaxLoss | OneVsAllLoss):
        classes = int(reduce(np.array([y.max(initial=0.0)]), "max")[0]) + 1
        masses = np.bincount(y.astype(np.intp), weight, minlength=classes)
        return np.asarray(_ratios(reduce(masses, "sum"), rho)[y.astype(np.intp)])
    return None


def _ratios(masses: Array, rho: float) -> Array:
    """p_k/q_k of every class, (k,), from the weights of the classes."""
    q = masses / masses.sum()
    return np.asarray(best_constant_shares(q, rho) / np.maximum(q, np.finfo(float).tiny))


def best_constant_shares(q: Array, rho: float) -> Array:
    r"""The class shares p with which a constant prediction has its least robust value: p_k ~ q_k^a,
    KL(p, q) = rho.

    The best constant for shares p predicts p, and so has losses -log p_k; their worst case is p_k ~
    q_k p_k^(-1/lam). The two are equal at a = lam/(1 + lam). Where even equal shares, a = 0, are
    within rho, they are the answer.

    Example:
        >>> best_constant_shares(np.array([0.9, 0.1]), rho=0.1).round(3)
        array([0.743, 0.257])
    """
    live = q > 0
    log_q = np.log(q[live])

    def shares(a: float) -> Array:
        """p_k ~ q_k^a of the classes that occur."""
        p = np.exp(a * (log_q - log_q.max()))
        return np.asarray(p / p.sum())

    def excess(a: float) -> float:
        """KL(p, q) - rho, which falls in a."""
        p = shares(a)
        return float(p @ (np.log(np.maximum(p, np.finfo(float).tiny)) - log_q)) - rho

    a = brentq(excess, 0.0, 1.0, xtol=1e-12) if excess(0.0) > 0.0 else 0.0
    p = np.zeros_like(q)
    p[live] = shares(a)
    return p
