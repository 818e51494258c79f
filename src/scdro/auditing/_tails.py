"""How unlikely a sum of coin flips is: the tail of sum_i w_i (b_i - p_i), with b_i = 1 with probability p_i.

The normal approximation is far off where it matters here: at probabilities of 1e-7, in slices of a
few hundred rows, with rare events. Lugannani and Rice's formula (1980) has a small *relative* error
there. With K(t) = sum_i [log(1 - p_i + p_i e^{t w_i}) - t w_i p_i], the cumulant generating
function, and t solving K'(t) = x:

    P(S >= x) = 1 - Phi(r) + phi(r) (1/u - 1/r),  r = sign(t) sqrt(2 (t x - K(t))),  u = t
    sqrt(K''(t))

Sums of whole numbers have steps: x is then half a step lower, and u = 2 sinh(t/2) sqrt(K''(t))
(Daniels 1987, the second continuity correction).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr, ndtr

__all__ = ["bernoulli_tail", "normal_tail"]

Array = npt.NDArray[Any]
BINS = 2048  # probabilities are grouped into this many ranges where there are more rows


def normal_tail(z: float) -> float:
    """P(|Z| >= |z|) of a standard normal Z."""
    return float(2 * ndtr(-abs(z)))


def bernoulli_tail(total: float, p: Array, weights: Array | None = None) -> float:
    """Two-sided: twice the probability of a sum of w_i (b_i - p_i) at least as extreme as `total`.

    Args:
        total: the observed sum.
        p: probabilities, (n,).
        weights: (n,), none negative; None: all 1. A sum of whole numbers then gets half a step of
            continuity correction.
    """
    sign = 1.0 if total >= 0 else -1.0
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=float)
    if len(p) > 2 * BINS:
        p, w, count = _group(np.asarray(p, dtype=float), w)
    else:
        p, count = np.asarray(p, dtype=float), np.ones(len(p))
    x = abs(total) - (0.5 if weights is None else 0.0)
    most = float((count * w * ((1 - p) if sign > 0 else p)).sum())
    if x <= 0:
        return 1.0
    if abs(total) >= most * (1 - 1e-12):  # every flip fell on the same side
        sure = (p if sign > 0 else 1 - p) > 0
        side = np.where(sure, p if sign > 0 else 1 - p, 1.0)
        return float(min(1.0, 2 * math.exp(float((count * np.log(side)).sum()))))
    return min(1.0, 2 * _upper(x, p if sign > 0 else 1 - p, w, count, weights is None))


def _group(p: Array, w: Array) -> tuple[Array, Array, Array]:
    """Rows with nearly the same log odds, and the same weight on average, as one with a count."""
    order = np.argsort(p, kind="stable")
    starts = np.linspace(0, len(p), BINS, endpoint=False).astype(int)
    count = np.diff(np.r_[starts, len(p)]).astype(float)
    mass = np.add.reduceat(w[order], starts)
    mean = np.add.reduceat((w * p)[order], starts) / np.maximum(mass, 1e-300)
    # the root of the mean square, so that the variance is right
    size = np.sqrt(np.add.reduceat((w * w)[order], starts) / count)
    return np.clip(mean, 0.0, 1.0), size, count


def _upper(x: float, p: Array, w: Array, count: Array, steps: bool) -> float:
    """P(S >= x) for 0 < x < the largest possible sum."""
    t = _saddlepoint(x, p, w, count)
    k = float((count * (_log_mean_exp(t * w, p) - t * w * p)).sum())
    tilted = _tilt(t * w, p)
    variance = float((count * w * w * tilted * (1 - tilted)).sum())
    r = math.sqrt(max(2 * (t * x - k), 0.0))
    u = (2 * math.sinh(min(t / 2, 300.0)) if steps else t) * math.sqrt(variance)
    if r < 1e-3:
        return float(ndtr(-r))
    log_density = -r * r / 2 - math.log(2 * math.pi) / 2
    tail = math.exp(float(log_ndtr(-r)))
    return min(1.0, max(0.0, tail + math.exp(log_density) * (1 / u - 1 / r)))


def _saddlepoint(x: float, p: Array, w: Array, count: Array) -> float:
    """t > 0 with K'(t) = x. K' rises, so a bracket and Newton's steps inside it."""

    def slope(t: float) -> tuple[float, float]:
        tilted = _tilt(t * w, p)
        first = float((count * w * (tilted - p)).sum())
        return first - x, float((count * w * w * tilted * (1 - tilted)).sum())

    low, high = 0.0, 1.0 / max(float(w.max()), 1e-300)
    while slope(high)[0] < 0 and high < 1e6:
        low, high = high, 2 * high
    t = (low + high) / 2
    for _ in range(60):
        value, curvature = slope(t)
        low, high = (low, t) if value > 0 else (t, high)
        step = t - value / curvature if curvature > 0 else math.inf
        new = step if low < step < high else (low + high) / 2
        if abs(new - t) <= 1e-10 * max(t, 1e-10):
            return new
        t = new
    return t


def _tilt(a: Array, p: Array) -> Array:
    """p e^a/(1 - p + p e^a)."""
    with np.errstate(divide="ignore"):
        tilted: Array = expit(a + np.log(p) - np.log1p(-p))
    return tilted


def _log_mean_exp(a: Array, p: Array) -> Array:
    """log(1 - p + p e^a)."""
    with np.errstate(divide="ignore"):
        mixed: Array = np.logaddexp(np.log1p(-p), np.log(p) + a)
    return mixed
