r"""The duality gap: an upper bound on how far a solution is from the optimum.

If p is the worst case and u are the slopes of the losses at any point, the minimum of the
Lagrangian over all (w, b) is

    D(p, u) = - sum_i p_i phi_i*(u_i) - lam0 KL(p, q) - |sum_i p_i u_i x_i|^2/(2 alpha)       (sum_i p_i u_i = 0)

a lower bound of P everywhere. The constraint comes from the intercept: slopes are balanced first,
inside the domain of the conjugate. At the point itself P - D = |grad P|^2/(2 alpha) if the slopes
needed no balancing.

At a kink the slope can be any number in an interval, and the score does not determine it. A
smoothed loss computes it from the score's distance to the kink, and loses it to rounding as that
distance falls. So at kinks, the slopes are chosen to make the gradient vanish.

References:
    Boyd and Vandenberghe, Convex Optimization, 2004, sections 3.3 (conjugates) and 5.1 (dual).
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lstsq

from scdro._scalar import one_thread_dot
from scdro.linear_model._linear_problem import LinearProblem, ObjectiveAt
from scdro.linear_model._score_losses import LossAt, Pinball
from scdro.linear_model._worst_case import Array

__all__ = ["NEAR", "choose_slopes_at_kinks", "lam_error", "lower_bound", "rounding_error"]

ROWS_FOR_ROUNDING = 1024  # from which the size of rounding errors is estimated
LARGEST_AT_KINKS = 2**17  # most entries of X at kinks for which slopes are computed
# Rounds of least squares; each leaves out the slopes that have reached an end of their interval.
KINK_ROUNDS = 5
NEAR = 32.0  # a sample this many rounding errors from a kink counts as at it


def lower_bound(problem: LinearProblem, W: Array, at: ObjectiveAt) -> float:
    """D at the p and u of the evaluation at W, minus a bound on its rounding error.

    It is -inf without a penalty: then the last term of D is infinite unless the gradient is zero.
    Costs one product with X', or three if samples are at a kink.
    """
    if problem.alpha == 0.0:
        return -math.inf
    D = _dual(problem, at)
    other = choose_slopes_at_kinks(problem, W, at)
    if other is not at:
        D = max(D, _dual(problem, other))
    return D - rounding_error(problem, W, at)


def _dual(problem: LinearProblem, at: ObjectiveAt) -> float:
    """D(p, u), the formula at the top of this file, at the p and u of an evaluation."""
    p, u = at.worst.p, at.loss.slope
    if problem.fit_intercept:
        u = problem.loss.balance(u, p)
    pull = problem.sum_rows(p * u)[:, : problem.X.shape[1]]  # sum_i p_i u_i x_i
    quadratic = float((pull**2).sum()) / (2 * problem.alpha)
    # KL may exceed rho by rounding; lam is the price per unit of it.
    excess = max(at.worst.kl - problem.rho, 0.0) * at.worst.lam if problem.rho > 0 else 0.0
    return (
        -one_thread_dot(p, problem.loss.conjugate(u))
        - problem.lam0 * at.worst.kl
        - quadratic
        - excess
    )


def choose_slopes_at_kinks(
    problem: LinearProblem, W: Array, at: ObjectiveAt, near: float = NEAR
) -> ObjectiveAt:
    """The evaluation with slopes at kinks that make the gradient as small as possible.

    It is returned as it is if the loss has no kinks, or no sample is at one, or too many are. This
    is a bounded least-squares problem, min |g + sum_i p_i (u_i' - u_i) x_i| over low <= u' <= high,
    solved by dropping the slopes that reach an end of their interval.

    A sample is at a kink if smoothing leaves it there, or if the distance to the kink changes P by
    no more than `near` times rounding. A slope at an end of its interval has no curvature, because
    nothing holds the sample at the kink.
    """
    loss, p = problem.loss, at.worst.p
    if not isinstance(loss, Pinball):
        return at
    distance = np.abs((at.z - loss.y)[0])
    cost = p * np.maximum(distance - 4 * loss.scale * loss.smoothing, 0.0)
    index = np.flatnonzero((p > 0) & (cost <= near * rounding_error(problem, W, at)))
    if not 0 < len(index) * problem.shape[1] <= LARGEST_AT_KINKS:
        return at
    x = problem.X[index]
    x = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)
    if problem.fit_intercept:
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
    size = np.abs(x).max(0)
    size[size == 0] = 1.0  # normalise the equations
    ease = 1 / (1 + distance[index] / (loss.scale * loss.smoothing))  # the nearest are moved first
    pulls = (p[index, None] * x / size).T  # what each slope adds to the gradient, (d + 1, samples)
    g = problem.gradient(W, at)[0] / size
    u, free = at.loss.slope[0, index], np.ones(len(index), dtype=bool)
    for _ in range(KINK_ROUNDS):
        step = lstsq(
            pulls[:, free] * ease[free], -g, cond=1e-12, lapack_driver="gelsy", check_finite=False
        )[0]
        wanted = u[free] + ease[free] * step
        moved = np.clip(wanted, loss.low, loss.high)
        g = g + pulls[:, free] @ (moved - u[free])
        u[free] = moved
        inside = wanted == moved
        free[free] = inside
        if inside.all() or not inside.any():
            break
    slope, curvature = at.loss.slope.copy(), at.loss.curvature.copy()
    slope[0, index], curvature[0, index] = u, free / loss.smoothing
    return at._replace(loss=LossAt(at.loss.value, slope, curvature))


def lam_error(problem: LinearProblem, at: ObjectiveAt) -> float:
    """Error in D from solving lam to 1e-9: first order in D, second order in P."""
    return (
        (at.worst.lam - problem.lam0) * max(problem.rho - at.worst.kl, 0.0)
        if at.worst.active
        else 0.0
    )


def rounding_error(problem: LinearProblem, W: Array, at: ObjectiveAt) -> float:
    """A bound on the rounding errors of P and D: of the scores, and of sums of n terms.

    Errors of sums grow like sqrt(n). Terms are as large as the products of coefficients and
    features, which may cancel. Their size is estimated from some rows.
    """
    n, d = problem.X.shape
    some = problem.X[:: -(-n // ROWS_FOR_ROUNDING)]
    usual = np.asarray(abs(some).mean(0), dtype=np.float64).ravel()
    size = np.abs(W[:, :d]) @ usual + (np.abs(W[:, -1]) if problem.fit_intercept else 0.0)
    p, terms = at.worst.p, size @ np.abs(at.loss.slope) + np.abs(at.loss.value)
    scores = float(np.finfo(problem.X.dtype).eps) * math.sqrt(one_thread_dot(p * terms, p * terms))
    sums = (
        (4 + math.sqrt(n))
        * float(np.finfo(np.float64).eps)
        * (abs(at.value) + one_thread_dot(p, terms))
    )
    return scores + sums
