r"""The worst case of a vector of losses in NumPy, warm-started: what the exact solver asks for at every evaluation.

`scdro.worst_case` answers the same question once, for torch and NumPy; here lam of the evaluation before is at hand.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.linear_model._threads import in_blocks

__all__ = ["Array", "Worst", "dot", "worst"]

Array = npt.NDArray[Any]
_TINY = 1e-300


def dot(a: Array, b: Array) -> float:
    """sum a b, on one thread: BLAS wakes all of them for a vector, and waits for the last."""
    return float(np.einsum("n,n->", a, b))


class Worst(NamedTuple):
    """p_i ~ q_i exp(l_i/lam) at lam*, the value F(lam*), and moments of l under p."""

    value: float
    lam: float
    p: Array
    kl: float
    mean: float
    var: float
    bound: bool  # lam is the root of KL = rho, and so moves with the losses; otherwise it is lam0, or infinite


def worst(losses: Array, q: Array, rho: float, lam0: float, lam: float | None = None) -> Worst:
    """max over p with KL(p, q) <= rho of sum p l - lam0 KL(p, q). `lam` is a guess; q >= 0 sums to one.

    Newton on log KL in log lam, kept inside a bracket (mathematics, section 1).
    """
    mean = dot(q, losses)
    if rho == 0.0:
        return Worst(mean, math.inf, q, 0.0, mean, math.nan, False)
    top = float(losses.max() if q.min() > 0 else losses[q > 0].max())
    x = losses - top
    if top < losses.max():  # only of samples of weight zero
        np.minimum(x, 0.0, out=x)
    low, high = math.log(lam0), math.log(lam0 + max(top - mean, 0.0) / rho)
    theta = _first_guess(x, q, rho, low, high) if lam is None or not lam < math.inf else math.log(lam)
    theta = min(max(theta, low), high)
    for _ in range(60):
        at = _tilt(x, q, math.exp(theta))
        excess = at.kl - rho
        if abs(excess) <= 1e-9 * rho or (theta == low and excess <= 0):
            break
        low, high = (theta, high) if excess > 0 else (low, theta)
        kl = max(at.kl, _TINY)
        proposal = theta + kl * math.log(kl / rho) / max(at.var, _TINY)
        before, theta = theta, proposal if low < proposal < high else _closer(low, high, proposal, lam0)
        if abs(theta - before) <= 1e-15 * (1 + abs(theta)):
            break
    lam = math.exp(theta)
    mean = top + lam * at.mean
    # F(lam), whose error is of second order in that of lam.
    value = mean - lam * at.kl + (lam - lam0) * rho
    return Worst(value, lam, at.p, at.kl, mean, lam * lam * at.var, at.kl >= rho * (1 - 1e-6))


class _Tilted(NamedTuple):
    p: Array
    kl: float
    mean: float
    var: float


def _tilt(x: Array, q: Array, lam: float) -> _Tilted:
    """p, KL, and mean and variance of l/lam under p, less the top."""
    a, p = np.empty_like(x), np.empty_like(x)

    def fill(rows: slice) -> tuple[float, float]:
        np.divide(x[rows], lam, out=a[rows])
        np.exp(a[rows], out=p[rows])
        p[rows] *= q[rows]
        return float(p[rows].sum()), dot(p[rows], a[rows])

    total, first = (sum(parts) for parts in zip(*in_blocks(fill, len(x), 16 * len(x)), strict=True))
    mean = first / total
    p /= total
    a -= mean
    a *= a
    var = dot(p, a)
    kl = mean - math.log(total)
    return _Tilted(p, kl if kl > 1e-8 else var / 2, mean, var)  # Below, KL is lost in rounding: Var/2 to first order.


def _first_guess(x: Array, q: Array, rho: float, low: float, high: float) -> float:
    """lam ~ std(l)/sqrt(2 rho): the root for small rho."""
    std = math.sqrt(max(dot(q, x * x) - dot(q, x) ** 2, 0.0))
    return math.log(max(std / math.sqrt(2 * rho), math.exp(low)))


def _closer(low: float, high: float, proposal: float, lam0: float) -> float:
    """Where Newton leaves the bracket: lam0 itself, if it points there and that was not tried; else the middle."""
    return low if proposal <= low == math.log(lam0) else 0.5 * (low + high)
