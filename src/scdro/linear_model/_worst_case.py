r"""The warm-started worst case of a vector of losses in NumPy, which the exact solver needs at
every evaluation.

    F(lam) = lam log sum_i q_i exp(l_i/lam) + (lam - lam0) rho,      p_i ~ q_i exp(l_i/lam) at its minimiser lam*

The same problem as `scdro.worst_case`, with the same root solver (`_kl.solve_root`) and the same
form of a small KL (`_kl.divergence`). Only the pass over the losses, `_tilt_in_blocks`, is not
`_kl.tilt`: it divides the losses into blocks for parallel threads and fills two vectors in place.
On one thread it takes 14 ms for a million losses where `_kl.tilt` takes 20, on more threads a
fraction of that, and these passes are a large part of a fit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from scdro._kl import CANCELS_NINE_DIGITS, divergence, solve_root
from scdro._scalar import Scalar, one_thread_dot
from scdro.linear_model._threads import map_blocks

__all__ = ["Array", "WorstAt", "solve_worst_case"]

Array = npt.NDArray[Any]


class WorstAt(NamedTuple):
    """The worst case of a vector of losses."""

    value: float  # F(lam*)
    lam: float  # lam*; infinite if rho = 0
    p: Array  # p_i ~ q_i exp(l_i/lam*), (n,)
    kl: float  # KL(p, q)
    mean: float  # of the losses under p
    var: float  # of the losses under p
    active: (
        bool  # whether KL = rho, so that lam depends on the losses; else lam is lam0 or infinite
    )


def solve_worst_case(
    losses: Array, q: Array, rho: float, lam0: float, lam: float | None = None
) -> WorstAt:
    """max over p with KL(p, q) <= rho of sum p l - lam0 KL(p, q).

    Args:
        losses: (n,).
        q: base probabilities, (n,), >= 0, which sum to one. Losses where it is zero do not count.
        rho: radius of the KL ball; 0 gives the mean.
        lam0: the smallest temperature.
        lam: a first guess of lam*; None makes one from the spread of the losses.
    """
    mean = one_thread_dot(q, losses)
    if rho == 0.0:
        return WorstAt(mean, math.inf, q, 0.0, mean, math.nan, False)
    top = float(losses.max() if q.min() > 0 else losses[q > 0].max())
    x = losses - top
    if top < losses.max():  # only samples of weight zero are above
        np.minimum(x, 0.0, out=x)
    guess = lam if lam is not None and lam < math.inf else None
    std = (
        math.sqrt(max(one_thread_dot(q, x * x) - one_thread_dot(q, x) ** 2, 0.0))
        if guess is None
        else 0.0
    )
    at = _Tilted(0.0, 0.0, math.nan, math.nan)
    # Of every trial the same two vectors are filled: memory that was just written is quick to write.
    a, p = np.empty_like(x), np.empty_like(x)

    def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
        nonlocal at
        at = _tilt_in_blocks(x, q, float(lam), a, p)
        return at.kl, at.var

    lam = float(solve_root(kl_and_var, min(mean - top, 0.0), std, rho, lam0, start=guess, tol=1e-9))
    if at.lam != lam:
        at = _tilt_in_blocks(x, q, lam, a, p)
    mean = top + lam * at.mean
    # The error of F(lam) is of second order in that of lam.
    value = mean - lam * at.kl + (lam - lam0) * rho
    return WorstAt(value, lam, p, at.kl, mean, lam * lam * at.var, at.kl >= rho * (1 - 1e-6))


class _Tilted(NamedTuple):
    """Moments of q tilted by exp(x/lam) at one trial lam, for x = l - max l."""

    kl: float  # KL(p, q)
    mean: float  # of x/lam under p
    var: float  # of x/lam under p
    lam: float  # the trial


def _tilt_in_blocks(x: Array, q: Array, lam: float, a: Array, p: Array) -> _Tilted:
    """KL(p, q), and the mean and variance of x/lam under p; x = l - max l <= 0, so that exp cannot
    overflow.

    Writes p, which sums to one, and overwrites a; both (n,).
    """

    def fill(rows: slice) -> tuple[float, float]:
        np.divide(x[rows], lam, out=a[rows])
        np.exp(a[rows], out=p[rows])
        p[rows] *= q[rows]
        return float(p[rows].sum()), one_thread_dot(p[rows], a[rows])

    total, first = (
        sum(parts) for parts in zip(*map_blocks(fill, len(x), 16 * len(x)), strict=True)
    )
    mean = first / total
    kl = mean - math.log(total)
    if kl < CANCELS_NINE_DIGITS:
        # One, up to rounding.
        mass = sum(map_blocks(lambda rows: float(q[rows].sum()), len(x), 16 * len(x)))
        kl = float(
            divergence(torch.from_numpy(a - math.log(total / mass)), torch.from_numpy(q)).sum()
        )
    p /= total
    a -= mean
    a *= a
    return _Tilted(kl, mean, one_thread_dot(p, a), lam)
