r"""The worst case of the current losses, warm-started from the round before, on one machine or several.

    max_{KL(p, q) <= rho} sum_i p_i l_i,  attained at  p_i = q_i exp(l_i/lam) / sum_j q_j exp(l_j/lam)

Workers that each have a part of the rows exchange a few sums and a maximum for every trial lam, never losses.
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

__all__ = ["Reduce", "WorstRatio", "best_constant_shares", "first_ratio", "one_worker", "worst_ratio"]

# (values, "sum" or "max") -> the same of all workers, entry by entry.
Reduce = Callable[[Array, str], Array]

# lam is no less than this part of (hardest loss - mean loss): where so few samples are left that no p spends rho,
# lam would fall to zero. There is no lam0: targets come in any unit.
_LEAST = 1e-9


def one_worker(values: Array, operation: str) -> Array:
    """The reduction over one worker."""
    return values


class WorstRatio(NamedTuple):
    """`ratio` is p_i/q_i: what the worst case multiplies a sample's weight by."""

    ratio: Array
    value: float
    lam: float


def worst_ratio(
    losses: Array, weight: Array | None, rho: float, *, start: float | None = None, reduce: Reduce = one_worker
) -> WorstRatio:
    """Exact, up to rounding; `weight` is q up to a factor, `start` a guess of lam, `reduce` joins workers."""
    weight = np.ones(len(losses)) if weight is None else weight.astype(np.float64)
    live = losses if weight.all() else losses[weight > 0]
    diverged = not np.isfinite(live).all()
    top, somewhere = reduce(np.array([live.max(initial=-math.inf), diverged], dtype=np.float64), "max")
    if somewhere:
        raise NonFiniteLossError(
            "expected finite losses, got NaN or infinite ones: the model diverges; lower learning_rate, or scale y"
        )
    mass = float(reduce(np.array([weight.sum()]), "sum")[0])
    if mass == 0.0:
        return WorstRatio(np.ones_like(losses), math.nan, math.inf)
    q, x = weight / mass, np.minimum(losses - top, 0.0)  # above the top are only samples of weight zero
    mean, square, q_mass = (
        float(total) for total in reduce(np.array([one_thread_dot(q, x), one_thread_dot(q, x * x), q.sum()]), "sum")
    )
    if rho == 0.0 or mean == 0.0:
        return WorstRatio(np.ones_like(x), float(top) + mean, math.inf)

    norm, tilted_mean = 1.0, mean

    def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
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
    lam = float(solve_root(kl_and_var, mean, std, rho, -_LEAST * mean, start=start, tol=1e-9))
    kl_and_var(lam)
    return WorstRatio(np.exp(x / lam) / norm, float(top) + lam * tilted_mean, lam)


# -- the first round --------------------------------------------------------------------------------------------------


def first_ratio(
    loss: BoostingLoss, y: Array, weight: Array | None, rho: float, reduce: Reduce = one_worker
) -> Array | None:
    """p_i/q_i before there are losses; None for ones.

    A library starts from the average of the labels by their weights. With these weights that is, for a classifier, the
    constant of least robust value: where a class is rare, starting from its plain share would give its samples all the
    weight and a curvature near zero, and Newton's step would overshoot by orders of magnitude.
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
    q = masses / masses.sum()
    return np.asarray(best_constant_shares(q, rho) / np.maximum(q, np.finfo(float).tiny))


def best_constant_shares(q: Array, rho: float) -> Array:
    r"""The class shares p with which a constant prediction has its least robust value: p_k ~ q_k^a, KL(p, q) = rho.

    The best constant for shares p predicts p, and so has losses -log p_k; their worst case is p_k ~ q_k p_k^(-1/lam).
    The two are equal at a = lam/(1 + lam). Where even equal shares, a = 0, are within rho, they are the answer.

    Example:
        >>> best_constant_shares(np.array([0.9, 0.1]), rho=0.1).round(3)
        array([0.743, 0.257])
    """
    live = q > 0
    log_q = np.log(q[live])

    def shares(a: float) -> Array:
        p = np.exp(a * (log_q - log_q.max()))
        return np.asarray(p / p.sum())

    def excess(a: float) -> float:
        p = shares(a)
        return float(p @ (np.log(np.maximum(p, np.finfo(float).tiny)) - log_q)) - rho

    a = brentq(excess, 0.0, 1.0, xtol=1e-12) if excess(0.0) > 0.0 else 0.0
    p = np.zeros_like(q)
    p[live] = shares(a)
    return p
