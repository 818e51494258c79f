"""Answers found by other means than the library's: scipy, cvxpy, and mpmath with 50 digits. Imports nothing of scdro.

Everywhere l is a sequence of losses, q the base probabilities (uniform if None, any positive factor
is divided out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import cvxpy as cp
import mpmath
import numpy as np
from scipy.optimize import brentq, minimize_scalar

DIGITS = 50
Vector = Sequence[float] | np.ndarray


class Robust(NamedTuple):
    value: float
    lam: float
    weights: np.ndarray
    kl: float


def base(l: Vector, q: Vector | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Losses and normalised base probabilities, without the samples of weight zero."""
    losses = np.asarray(l, dtype=np.float64)
    probabilities = np.ones_like(losses) if q is None else np.asarray(q, dtype=np.float64)
    keep = probabilities > 0
    return losses[keep], probabilities[keep] / probabilities[keep].sum()


def tilted(l: Vector, lam: float, q: Vector | None = None) -> np.ndarray:
    losses, q = base(l, q)
    if math.isinf(lam):
        return q
    w = q * np.exp((losses - losses.max()) / lam)
    return w / w.sum()


def kl_divergence(p: Vector, q: Vector | None = None) -> float:
    p = np.asarray(p, dtype=np.float64)
    q = np.full(len(p), 1 / len(p)) if q is None else np.asarray(q, dtype=np.float64) / np.sum(q)
    keep = p > 0
    return math.fsum(p[keep] * np.log(p[keep] / q[keep]))


def objective(l: Vector, lam: float, rho: float, lam0: float, q: Vector | None = None) -> float:
    losses, q = base(l, q)
    top = losses.max()
    return top + lam * math.log(math.fsum(q * np.exp((losses - top) / lam))) + (lam - lam0) * rho


def lam_bounds(l: Vector, rho: float, lam0: float, q: Vector | None = None) -> tuple[float, float]:
    losses, q = base(l, q)
    return lam0, 1.01 * (lam0 + (losses.max() - q @ losses) / rho)


def by_root(l: Vector, rho: float, lam0: float = 1e-3, q: Vector | None = None) -> Robust:
    """The root of KL(p_lam) = rho by brentq in log lam, or lam0."""
    losses, q = base(l, q)
    if rho == 0:
        return Robust(float(q @ losses), math.inf, q, 0.0)

    def excess(log_lam: float) -> float:
        return kl_divergence(tilted(losses, math.exp(log_lam), q), q) - rho

    low, high = (math.log(b) for b in lam_bounds(losses, rho, lam0, q))
    lam = lam0 if excess(low) <= 0 else math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    p = tilted(losses, lam, q)
    kl = kl_divergence(p, q)
    return Robust(math.fsum(p * losses) - lam0 * kl, lam, p, kl)


def by_minimising(l: Vector, rho: float, lam0: float = 1e-3, q: Vector | None = None) -> float:
    """min over lam in [lam0, lam_max] of F, by Brent's method in log lam: never looks at KL or at p."""
    low, high = (math.log(b) for b in lam_bounds(l, rho, lam0, q))

    def f(log_lam: float) -> float:
        return objective(l, math.exp(log_lam), rho, lam0, q)

    inner = minimize_scalar(
        f, bounds=(low, high), method="bounded", options={"xatol": 1e-10, "maxiter": 500}
    )
    return float(min(inner.fun, f(low), f(high)))


def by_cone_program(l: Vector, rho: float, lam0: float = 1e-3, q: Vector | None = None) -> Robust:
    """max p.l - lam0 KL(p, q) over p with KL <= rho, sum p = 1: exponential cones, the problem as it is stated."""
    losses, q = base(l, q)
    p = cp.Variable(len(losses), nonneg=True)
    kl = cp.sum(cp.rel_entr(p, q))
    problem = cp.Problem(cp.Maximize(p @ losses - lam0 * kl), [kl <= rho, cp.sum(p) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert problem.status == cp.OPTIMAL, problem.status
    return Robust(float(problem.value), math.nan, np.asarray(p.value), float(kl.value))


def trimmed(l: Vector, trim: Fraction, q: Sequence[Fraction | int] | None = None) -> np.ndarray:
    """Base probabilities less the hardest `trim` of their mass, in exact arithmetic; the edge sample keeps the rest."""
    mass = [Fraction(1)] * len(l) if q is None else [Fraction(w) for w in q]
    total = sum(mass)
    mass, to_drop = [m / total for m in mass], Fraction(trim)
    for i in sorted(range(len(l)), key=lambda i: -l[i]):
        dropped = min(mass[i], to_drop)
        mass[i], to_drop = mass[i] - dropped, to_drop - dropped
    return np.array([float(m / (1 - trim)) for m in mass])


# -- 50 digits
# --------------------------------------------------------------------------------------------------------


class HighPrecision(NamedTuple):
    """F, log g, dF/dl_i (which are p_i), dF/dlam and KL(p), rounded to float at the very end."""

    value: float
    log_g: float
    d_losses: np.ndarray
    d_lam: float
    kl: float


def _mp_base(l: Vector, q: Vector | None) -> tuple[list, list]:
    losses = [mpmath.mpf(float(x)) for x in l]
    weights = [
        mpmath.mpf(1 if q is None else float(w)) for w in ([1] * len(losses) if q is None else q)
    ]
    total = mpmath.fsum(weights)
    return losses, [w / total for w in weights]


def _mp_tilt(losses: list, q: list, lam: mpmath.mpf) -> tuple[mpmath.mpf, list, mpmath.mpf]:
    g_i = [w * mpmath.exp(x / lam) for x, w in zip(losses, q, strict=True)]
    g = mpmath.fsum(g_i)
    p = [x / g for x in g_i]
    kl = mpmath.fsum(a * mpmath.log(a / w) for a, w in zip(p, q, strict=True) if a > 0 and w > 0)
    return mpmath.log(g), p, kl


def high_precision(
    l: Vector, lam: float, rho: float, lam0: float = 1e-3, q: Vector | None = None
) -> HighPrecision:
    """F and its gradients by the formulas of g = mean exp(l/lam), the naive way: 50 digits and no overflow."""
    with mpmath.workdps(DIGITS):
        losses, q = _mp_base(l, q)
        lam = mpmath.mpf(float(lam))
        log_g, p, kl = _mp_tilt(losses, q, lam)
        d_lam_g_over_g = -mpmath.fsum(a * x for a, x in zip(p, losses, strict=True)) / lam**2
        value = lam * log_g + (lam - mpmath.mpf(lam0)) * mpmath.mpf(rho)
        d_lam = lam * d_lam_g_over_g + log_g + mpmath.mpf(rho)
        return HighPrecision(
            float(value), float(log_g), np.array([float(a) for a in p]), float(d_lam), float(kl)
        )


def high_precision_solution(
    l: Vector, rho: float, lam0: float = 1e-3, q: Vector | None = None
) -> Robust:
    """lam* by bisection in log lam to 40 digits."""
    with mpmath.workdps(DIGITS):
        losses, q = _mp_base(l, q)
        target, floor = mpmath.mpf(float(rho)), mpmath.mpf(float(lam0))

        def at(lam: mpmath.mpf) -> Robust:
            _, p, kl = _mp_tilt(losses, q, lam)
            value = mpmath.fsum(a * x for a, x in zip(p, losses, strict=True)) - floor * kl
            return Robust(float(value), float(lam), np.array([float(a) for a in p]), float(kl))

        if _mp_tilt(losses, q, floor)[2] <= target:
            return at(floor)
        mean = mpmath.fsum(w * x for w, x in zip(q, losses, strict=True))
        low, high = mpmath.log(floor), mpmath.log(floor + (max(losses) - mean) / target)
        for _ in range(130):
            middle = (low + high) / 2
            too_sharp = _mp_tilt(losses, q, mpmath.exp(middle))[2] > target
            low, high = (middle, high) if too_sharp else (low, middle)
        return at(mpmath.exp((low + high) / 2))


def long_double(l: Vector, rho: float, lam0: float = 1e-3, q: Vector | None = None) -> Robust:
    """lam* by bisection in log 1/lam to the last bit of a long double, KL as a sum of non-negative terms. For any n."""
    losses = np.asarray(l, dtype=np.longdouble)
    weights = np.ones_like(losses) if q is None else np.asarray(q, dtype=np.longdouble)
    atoms, member = np.unique(losses[weights > 0], return_inverse=True)
    mass = np.zeros_like(atoms)
    np.add.at(mass, member, weights[weights > 0])
    mass, top = mass / mass.sum(), atoms[-1]

    def at(log_sharpness: np.longdouble) -> tuple[np.ndarray, np.longdouble]:
        x = (atoms - top) * np.exp(log_sharpness)
        log_ratio = x - np.log((mass * np.exp(x)).sum())
        ratio = np.exp(log_ratio)
        return mass * ratio, (mass * (log_ratio * ratio - np.expm1(log_ratio))).sum()

    low, high = np.longdouble(-800), -np.log(np.longdouble(lam0))
    if at(high)[1] > rho:
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if at(middle)[1] > rho else (middle, high)
    p, kl = at(high)
    value = (p * (atoms - top)).sum() - np.longdouble(lam0) * kl
    return Robust(float(top + value), float(np.exp(-high)), np.asarray(p, np.float64), float(kl))


def kl_of_weights(p: Vector, q: Vector | None = None) -> float:
    """KL of given weights without the cancellation of float64, after normalising them exactly."""
    with mpmath.workdps(DIGITS):
        _, q = _mp_base(p, q)
        weights = [mpmath.mpf(float(a)) for a in p]
        total = mpmath.fsum(weights)
        return float(
            mpmath.fsum(
                a / total * mpmath.log(a / total / w)
                for a, w in zip(weights, q, strict=True)
                if a > 0
            )
        )
