r"""The duality gap: how far, at most, an answer is from the optimum.

With p the worst case and u the slopes of the losses at any point, the least of the Lagrangian over all (w, b) is

    D(p, u) = - sum_i p_i phi_i*(u_i) - lam0 KL(p, q) - |sum_i p_i u_i x_i|^2/(2 alpha)       (sum_i p_i u_i = 0)

a lower bound of P everywhere. The constraint belongs to the intercept: slopes are balanced first, inside the domain
of the conjugate. At the point itself P - D = |grad P|^2/(2 alpha) where the slopes needed no balancing.
"""

from __future__ import annotations

import math

import numpy as np

from scdro.linear_model._problem import Evaluation, Problem
from scdro.linear_model._worst import Array, dot

__all__ = ["lower_bound", "rounding"]

_ROWS = 1024


def lower_bound(problem: Problem, W: Array, at: Evaluation) -> float:
    """D at the dual point of the evaluation at W, less what rounding may have added; -inf where there is no penalty.

    One product with X'.
    """
    if problem.alpha == 0.0:
        return -math.inf
    p, u = at.worst.p, at.at.slope
    if problem.fit_intercept:
        u = problem.loss.balanced(u, p)
    gathered = problem.gathered(p * u)[:, : problem.X.shape[1]]
    quadratic = float((gathered**2).sum()) / (2 * problem.alpha)
    # KL may lie above rho by rounding: lam is what a unit of it is worth.
    excess = max(at.worst.kl - problem.rho, 0.0) * at.worst.lam if problem.rho > 0 else 0.0
    D = -dot(p, problem.loss.conjugate(u)) - problem.lam0 * at.worst.kl - quadratic - excess
    return D - rounding(problem, W, at)


def rounding(problem: Problem, W: Array, at: Evaluation) -> float:
    """How far P and D may be off for rounding: scores each by themselves, and sums of n terms like sqrt(n).

    Terms are as large as the products of coefficients and features, which may cancel. Some rows tell how large.
    """
    n, d = problem.X.shape
    some = problem.X[:: -(-n // _ROWS)]
    usual = np.asarray(abs(some).mean(0), dtype=np.float64).ravel()
    size = np.abs(W[:, :d]) @ usual + (np.abs(W[:, -1]) if problem.fit_intercept else 0.0)
    p, terms = at.worst.p, size @ np.abs(at.at.slope) + np.abs(at.at.value)
    scores = float(np.finfo(problem.X.dtype).eps) * math.sqrt(dot(p * terms, p * terms))
    sums = (4 + math.sqrt(n)) * float(np.finfo(np.float64).eps) * (abs(at.value) + dot(p, terms))
    return scores + sums
