r"""Newton's method for the convex objective P: directions by preconditioned conjugate gradients, and a line search.

On the line w + t d the scores are z + t (d X'), so a step needs one product with X, however many t are tried, and one
with X' for the new gradient. Each step of conjugate gradients needs one of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scdro.linear_model._preconditioner import ApplyInverse
from scdro.linear_model._problem import LinearProblem, ObjectiveAt
from scdro.linear_model._worst import Array

__all__ = ["Iterate", "iterate_at", "next_iterate"]

MAX_PRODUCTS = 250
_SLOPE = 0.5  # a step is accepted if the slope on the line has fallen to this fraction


class Iterate(NamedTuple):
    W: Array
    evaluation: ObjectiveAt
    gradient: Array

    @property
    def value(self) -> float:
        return self.evaluation.value

    @property
    def largest(self) -> float:
        """The largest entry of the gradient."""
        return float(np.abs(self.gradient).max())


def iterate_at(problem: LinearProblem, W: Array) -> Iterate:
    evaluation = problem.evaluate(W, problem.scores(W))
    return Iterate(W, evaluation, problem.gradient(W, evaluation))


def next_iterate(problem: LinearProblem, now: Iterate, apply_inverse: ApplyInverse, accuracy: float) -> Iterate | None:
    """The next iterate; None if rounding prevents progress.

    `accuracy` is that of the Newton direction; with 1, it comes from the preconditioner alone.
    """
    D = _direction(problem, now, apply_inverse, accuracy) if accuracy < 1 else -apply_inverse(now.gradient)
    found = _line_search(problem, now, D)
    return _line_search(problem, now, -apply_inverse(now.gradient)) if found is None and accuracy < 1 else found


def _direction(problem: LinearProblem, now: Iterate, apply_inverse: ApplyInverse, accuracy: float) -> Array:
    """H D = -G by conjugate gradients, to `accuracy` in the preconditioner's norm."""
    D = np.zeros_like(now.gradient)
    r = -now.gradient
    y = apply_inverse(r)
    s = y
    residual = start = float((r * y).sum())
    for _ in range(MAX_PRODUCTS):
        Hs = problem.hessian_product(now.evaluation, s)
        curvature = float((s * Hs).sum())
        if not curvature > 1e-30 * residual:  # no curvature along s, or none left but rounding
            break
        step = residual / curvature
        D = D + step * s
        r = r - step * Hs
        y = apply_inverse(r)
        residual, before = float((r * y).sum()), residual
        if not residual > accuracy**2 * start:
            break
        s = y + residual / before * s
    return D if D.any() else y


def _line_search(problem: LinearProblem, now: Iterate, D: Array) -> Iterate | None:
    """Search along D for a small slope: first t = 1, then the root of the slope inside a bracket."""
    slope0 = float((now.gradient * D).sum())
    if not slope0 < 0.0:
        return None
    dz, (z, lam) = problem.scores(D), (now.evaluation.z, now.evaluation.worst.lam)
    noise = 1e-14 * (1 + abs(now.value))
    low, high, t, slope_low, slope_high = 0.0, math.inf, 1.0, slope0, math.nan
    best: tuple[Array, ObjectiveAt] | None = None
    for trial in range(60):
        W = now.W + t * D
        e = problem.evaluate(W, z + t * dz, lam)
        slope = float(np.einsum("kn,kn->", e.pull, dz)) + float((problem.penalised(W) * D).sum())
        if e.value <= now.value + noise and (best is None or e.value <= best[1].value):
            best = W, e
        if e.value <= now.value + noise and abs(slope) <= _SLOPE * abs(slope0):
            break
        if slope < 0 and e.value <= now.value + noise:
            low, slope_low = t, slope
        else:
            high, slope_high = t, slope
        t = 4.0 * t if high == math.inf else _between(low, high, slope_low, slope_high, trial)
        if high - low <= 1e-12 * high:
            break
    if best is None:
        return None
    return Iterate(*best, problem.gradient(*best))


def _between(low: float, high: float, slope_low: float, slope_high: float, trial: int) -> float:
    """The root of the line through both slopes, at least a tenth of the bracket from its ends.

    If the curvature at the start is close to zero, the Newton step may be too long by many orders of magnitude. A
    bracket that spans several is divided on a log scale.
    """
    if low == 0.0 and trial > 0:
        return high * (0.1 if trial == 1 else 0.01)
    if low > 0.0 and high > 10.0 * low:
        return math.sqrt(low * high)
    share = 0.5
    if slope_high > 0:
        share = min(max(-slope_low / (slope_high - slope_low), 0.1), 0.9)
    return low + share * (high - low)
