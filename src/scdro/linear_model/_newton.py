r"""Newton's method for the convex objective P: directions by preconditioned conjugate gradients,
and a line search.

    D  <-  -H^-1 grad P(W)           exactly enough, by conjugate gradients      (_direction)
    W  <-  W + t D,   t such that |slope of P along D| has halved                (_line_search)

On the line w + t d the scores are z + t (d X'), so a step needs one product with X, however many t
are tried, and one with X' for the new gradient. Each step of conjugate gradients needs one of each.

References:
    Nocedal and Wright, Numerical Optimization, 2006: line-search Newton-CG, section 7.1;
    preconditioned conjugate gradients, algorithm 5.3; BFGS, equation 6.17.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scdro.linear_model._linear_problem import LinearProblem, ObjectiveAt
from scdro.linear_model._preconditioner import ApplyInverse
from scdro.linear_model._worst_case import Array

__all__ = ["Iterate", "iterate_at", "next_iterate", "update_inverse"]

MAX_PRODUCTS = 250  # steps of conjugate gradients for one direction, at most
_SLOPE = 0.5  # a step is accepted if the slope on the line has fallen to this fraction


class Iterate(NamedTuple):
    """A point with everything known about P there."""

    W: Array  # (k, d + 1)
    evaluation: ObjectiveAt  # P, losses and worst case
    gradient: Array  # grad P, (k, d + 1)

    @property
    def value(self) -> float:
        return self.evaluation.value

    @property
    def largest(self) -> float:
        """The largest entry of the gradient."""
        return float(np.abs(self.gradient).max())


def iterate_at(problem: LinearProblem, W: Array, lam: float | None = None) -> Iterate:
    """Evaluate P and its gradient at W: one product with X, and one with X'. `lam` is a first guess."""
    evaluation = problem.evaluate(W, problem.scores(W), lam)
    return Iterate(W, evaluation, problem.gradient(W, evaluation))


def next_iterate(
    problem: LinearProblem, now: Iterate, apply_inverse: ApplyInverse, accuracy: float
) -> Iterate | None:
    """One Newton step: the next iterate, or None if rounding prevents progress.

    Args:
        problem: what is minimised.
        now: the current iterate.
        apply_inverse: the approximate inverse of the Hessian at `now`.
        accuracy: relative error allowed in the direction; with 1, it comes from the preconditioner
            alone, without products with X.
    """
    if accuracy < 1:
        moved = _line_search(problem, now, _direction(problem, now, apply_inverse, accuracy))
        if moved is not None:
            return moved
    return _line_search(problem, now, -apply_inverse(now.gradient))


def update_inverse(apply_inverse: ApplyInverse, step: Array, change: Array) -> ApplyInverse:
    """The BFGS update of an approximate inverse Hessian B, with s = `step` of W and y = `change` of
    the gradient, both (k, d + 1):

        B+ = (1 - s y'/s'y) B (1 - y s'/s'y) + s s'/s'y

    B comes from the Hessian of some of the samples. B+ agrees with the Hessian of all of them along
    s, at no further product with X: directions from a factorisation that is used again converge
    superlinearly instead of linearly.
    """
    along = float((step * change).sum())
    size = math.sqrt(float((step * step).sum()) * float((change * change).sum()))
    if not along > 1e-12 * size:  # nothing but rounding
        return apply_inverse

    def apply(r: Array) -> Array:
        share = float((step * r).sum()) / along
        z = apply_inverse(r - share * change)
        return z + (share - float((change * z).sum()) / along) * step

    return apply


def _direction(
    problem: LinearProblem, now: Iterate, apply_inverse: ApplyInverse, accuracy: float
) -> Array:
    """Solve H D = -G by conjugate gradients, to `accuracy` in the preconditioner's norm."""
    D = np.zeros_like(now.gradient)
    r = -now.gradient  # what is left of the equation: -G - H D
    y = apply_inverse(r)  # r in the coordinates of the preconditioner
    s = y  # the next direction of search
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
    """Search along D for a small slope: first t = 1, then the root of the slope inside a bracket.

    P is convex, so its slope along D rises with t, and P falls until the slope is zero. Returns
    the best point seen, or None if D does not lead down or no trial is below the current value.
    """
    slope0 = float((now.gradient * D).sum())
    if not slope0 < 0.0:
        return None
    dz, (z, lam) = problem.scores(D), (now.evaluation.z, now.evaluation.worst.lam)
    noise = 1e-14 * (1 + abs(now.value))
    # The minimum is between t = low, where the slope is negative, and t = high.
    low, high, t, slope_low, slope_high = 0.0, math.inf, 1.0, slope0, math.nan
    best: tuple[Array, ObjectiveAt] | None = None
    for trial in range(60):
        W = now.W + t * D
        e = problem.evaluate(W, z + dz if t == 1.0 else z + t * dz, lam)
        slope = float(np.einsum("n,kn,kn->", e.worst.p, e.loss.slope, dz)) + float(
            (problem.penalty_gradient(W) * D).sum()
        )
        if e.value <= now.value + noise and (best is None or e.value <= best[1].value):
            best = W, e
        if e.value <= now.value + noise and abs(slope) <= _SLOPE * abs(slope0):
            break
        if slope < 0 and e.value <= now.value + noise:
            low, slope_low = t, slope
        else:
            high, slope_high = t, slope
        t = (
            4.0 * t
            if high == math.inf
            else _divide_bracket(low, high, slope_low, slope_high, trial)
        )
        if high - low <= 1e-12 * high:
            break
    if best is None:
        return None
    return Iterate(*best, problem.gradient(*best))


def _divide_bracket(
    low: float, high: float, slope_low: float, slope_high: float, trial: int
) -> float:
    """The root of the line through both slopes, at least a tenth of the bracket from its ends.

    If the curvature at the start is close to zero, the Newton step may be too long by many orders
    of magnitude. A bracket that spans several is divided on a log scale.
    """
    if low == 0.0 and trial > 0:
        return high * (0.1 if trial == 1 else 0.01)
    if low > 0.0 and high > 10.0 * low:
        return math.sqrt(low * high)
    share = 0.5
    if slope_high > 0:
        share = min(max(-slope_low / (slope_high - slope_low), 0.1), 0.9)
    return low + share * (high - low)
