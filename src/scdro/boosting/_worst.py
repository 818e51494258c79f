r"""The worst case of the current losses, warm-started from the round before, on one machine or several.

    max_{KL(p, q) <= rho} sum_i p_i l_i,  attained at  p_i = q_i exp(l_i/lam) / sum_j q_j exp(l_j/lam)

Workers that each have a part of the rows exchange a few sums and a maximum for every trial lam, never losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scdro._kl import solve_root
from scdro._scalar import Scalar
from scdro.boosting._losses import Array
from scdro.errors import NonFiniteLossError

__all__ = ["Reduce", "WorstCase", "alone", "worst_case"]

# (values, "sum" or "max") -> the same of all workers, entry by entry.
Reduce = Callable[[Array, str], Array]

# lam is no less than this part of (hardest loss - mean loss): where so few samples are left that no p spends rho,
# lam would fall to zero. There is no lam0: targets come in any unit.
_LEAST = 1e-9

# Below this KL, mean - log(norm) has lost more digits to cancellation than the sum of its terms.
_CANCELS = 1e-3


def alone(values: Array, operation: str) -> Array:
    """The reduction over one worker."""
    return values


class WorstCase(NamedTuple):
    """`ratio` is p_i/q_i: what the worst case multiplies a sample's weight by."""

    ratio: Array
    value: float
    lam: float


def _dot(a: Array, b: Array) -> float:
    """On one thread: BLAS wakes all of them for a vector, and waits for the last."""
    return float(np.einsum("n,n->", a, b))


def worst_case(
    losses: Array, weight: Array | None, rho: float, *, start: float | None = None, reduce: Reduce = alone
) -> WorstCase:
    """Exact, up to rounding; `weight` is q up to a factor, `start` a guess of lam, `reduce` joins workers."""
    weight = np.ones(len(losses)) if weight is None else weight.astype(np.float64)
    live = losses if weight.all() else losses[weight > 0]
    top = float(reduce(np.array([live.max(initial=-math.inf)]), "max")[0])
    mass = float(reduce(np.array([weight.sum()]), "sum")[0])
    q = weight / mass if mass > 0 else weight
    x = np.minimum(losses - top, 0.0)  # above the top are only samples of weight zero
    mean, square, mass = (float(total) for total in reduce(np.array([_dot(q, x), _dot(q, x * x), q.sum()]), "sum"))
    if not math.isfinite(top + mean):
        raise NonFiniteLossError(
            f"expected finite losses, got a hardest one of {top} and a mean of {top + mean}; the model diverges: lower "
            "learning_rate, or scale y"
        )
    if rho == 0.0 or mean == 0.0:
        return WorstCase(np.ones_like(x), top + mean, math.inf)

    norm, tilted_mean = 1.0, mean

    def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
        nonlocal norm, tilted_mean
        a = x / float(lam)
        p = q * np.exp(a)
        sums = reduce(np.array([p.sum(), _dot(p, a), _dot(p, a * a)]), "sum")
        norm, tilted_mean = float(sums[0]), float(sums[1] / sums[0])
        kl = tilted_mean - math.log(norm)
        if kl < _CANCELS:
            log_ratio = a - math.log(norm / mass)
            terms = q * (log_ratio * np.exp(log_ratio) - np.expm1(log_ratio))
            kl = float(reduce(np.array([terms.sum()]), "sum")[0])
        return kl, max(float(sums[2] / sums[0]) - tilted_mean**2, 0.0)

    std = math.sqrt(max(square - mean**2, 0.0))
    lam = float(solve_root(kl_and_var, mean, std, rho, -_LEAST * mean, start=start, tol=1e-9))
    kl_and_var(lam)
    return WorstCase(np.exp(x / lam) / norm, top + lam * tilted_mean, lam)
