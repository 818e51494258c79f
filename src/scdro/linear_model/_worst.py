r"""The warm-started worst case of a vector of losses in NumPy, which the exact solver needs at every evaluation.

The same problem as `scdro.worst_case`, with the same root solver; but in blocks over threads, and with the moments of
the losses that the Hessian needs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from scdro._kl import CANCELS_NINE_DIGITS, divergence, solve_root
from scdro._scalar import Scalar, one_thread_dot
from scdro.linear_model._threads import in_blocks

__all__ = ["Array", "Worst", "worst"]

Array = npt.NDArray[Any]


class Worst(NamedTuple):
    """p_i ~ q_i exp(l_i/lam) at lam*, the value F(lam*), and moments of l under p."""

    value: float
    lam: float
    p: Array
    kl: float
    mean: float
    var: float
    active: bool  # whether KL = rho, so that lam depends on the losses; else lam is lam0 or infinite


def worst(losses: Array, q: Array, rho: float, lam0: float, lam: float | None = None) -> Worst:
    """max over p with KL(p, q) <= rho of sum p l - lam0 KL(p, q). `lam` is a guess; q >= 0 sums to one."""
    mean = one_thread_dot(q, losses)
    if rho == 0.0:
        return Worst(mean, math.inf, q, 0.0, mean, math.nan, False)
    top = float(losses.max() if q.min() > 0 else losses[q > 0].max())
    x = losses - top
    if top < losses.max():  # only samples of weight zero are above
        np.minimum(x, 0.0, out=x)
    guess = lam if lam is not None and lam < math.inf else None
    std = math.sqrt(max(one_thread_dot(q, x * x) - one_thread_dot(q, x) ** 2, 0.0)) if guess is None else 0.0
    at = _Tilted(q, 0.0, 0.0, 0.0, math.nan)

    def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
        nonlocal at
        at = _tilt(x, q, float(lam))
        return at.kl, at.var

    lam = float(solve_root(kl_and_var, min(mean - top, 0.0), std, rho, lam0, start=guess, tol=1e-9))
    if at.lam != lam:
        at = _tilt(x, q, lam)
    mean = top + lam * at.mean
    # The error of F(lam) is of second order in that of lam.
    value = mean - lam * at.kl + (lam - lam0) * rho
    return Worst(value, lam, at.p, at.kl, mean, lam * lam * at.var, at.kl >= rho * (1 - 1e-6))


class _Tilted(NamedTuple):
    p: Array
    kl: float
    mean: float
    var: float
    lam: float


def _tilt(x: Array, q: Array, lam: float) -> _Tilted:
    """p, KL, and the mean and variance of (l - max l)/lam under p."""
    a, p = np.empty_like(x), np.empty_like(x)

    def fill(rows: slice) -> tuple[float, float]:
        np.divide(x[rows], lam, out=a[rows])
        np.exp(a[rows], out=p[rows])
        p[rows] *= q[rows]
        return float(p[rows].sum()), one_thread_dot(p[rows], a[rows])

    total, first = (sum(parts) for parts in zip(*in_blocks(fill, len(x), 16 * len(x)), strict=True))
    mean = first / total
    kl = mean - math.log(total)
    if kl < CANCELS_NINE_DIGITS:
        mass = sum(in_blocks(lambda rows: float(q[rows].sum()), len(x), 16 * len(x)))  # one, up to rounding
        kl = float(divergence(torch.from_numpy(a - math.log(total / mass)), torch.from_numpy(q)).sum())
    p /= total
    a -= mean
    a *= a
    return _Tilted(p, kl, mean, one_thread_dot(p, a), lam)
