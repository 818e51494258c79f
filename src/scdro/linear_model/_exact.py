"""The exact solver: Newton from the solution of a subsampled problem, continuation for losses with a kink, and the
certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scdro._scalar import one_thread_dot
from scdro.linear_model._dual import NEAR, lower_bound, rounding, unspent, with_slopes_at_kinks
from scdro.linear_model._losses import Pinball
from scdro.linear_model._newton import Iterate, iterate_at, next_iterate
from scdro.linear_model._preconditioner import ApplyInverse, Preconditioner
from scdro.linear_model._problem import LinearProblem
from scdro.linear_model._threads import one_thread_each
from scdro.linear_model._worst import Array

__all__ = ["Solution", "certificate", "find_start", "solve"]

THIN = 10  # a problem is first solved on every tenth sample
CERTIFYING_STEPS = 100
_TIGHT, _SLACK = 5.0, 8e-9  # a gap of this many times what later steps gained, plus the slack, is tight
_CONTRACTION = 0.25  # a factorisation is used again if its step left no more than this of the gradient
_ROUNDED = 4  # a gap below this many rounding errors of P or D counts as zero
_PATIENCE = 5  # after this many steps without progress, rounding is assumed to prevent any

Tell = Callable[[int, float, float], None]  # the step, the objective, the largest entry of its gradient


class Solution(NamedTuple):
    """W and its certificate: `gap` is an upper bound of P(W) - min P."""

    W: Array
    value: float
    lam: float
    gap: float
    n_iter: int
    converged: bool


class _Path:
    """The iterates of one problem. A loss with a kink is smoothed, less each time the smoothed problem is solved."""

    def __init__(self, problem: LinearProblem, W: Array) -> None:
        self.problem, self.preconditioner = problem, Preconditioner(problem)
        loss = problem.loss
        self.kinked = isinstance(loss, Pinball)
        if isinstance(loss, Pinball):
            self.problem = replace(problem, loss=loss.smoothed(0.1 * loss.spread))
        self.preconditioner.problem = self.problem
        self.now = iterate_at(self.problem, W)
        self.first = max(self.now.largest, 1e-300)
        self.lowest, self.least, self.idle = self.now.value, self.now.largest, 0
        self.bound = -math.inf
        self.reach = -math.inf  # the bound if lam were exact
        self.stuck = False  # rounding prevents progress
        self.exhausted = False  # and no smoothing is left to remove
        self.plain = self.preconditioner.dense  # whether the preconditioner alone gives good directions
        self.apply_inverse: ApplyInverse | None = None

    @property
    def value(self) -> float:
        """P of the original loss at the current iterate."""
        if not self.kinked:
            return self.now.value
        return self.problem.original_value(self.now.W, self.now.evaluation.z, self.now.evaluation.worst.lam)

    def lower_bound(self) -> float:
        """The best D so far."""
        found = lower_bound(self.problem, self.now.W, self.now.evaluation)
        self.bound = max(self.bound, found)
        self.reach = max(self.reach, found + unspent(self.problem, self.now.evaluation))
        return self.bound

    @property
    def squared_gradient(self) -> float:
        """|grad P|^2/(2 alpha), which is P - D up to the intercept. Shows whether D is worth computing."""
        return float((self.now.gradient**2).sum()) / (2 * self.problem.alpha)

    @property
    def decrement(self) -> float:
        """Newton's decrement, g H^-1 g/2: about how far the smoothed P is above its minimum."""
        self.apply_inverse = self.apply_inverse or self.preconditioner.at(self.now.evaluation)
        return float((self.now.gradient * self.apply_inverse(self.now.gradient)).sum()) / 2

    @property
    def remaining(self) -> float:
        """A reliable decrement: at kinks it is not misled by rounding or a wrong vertex."""
        return min(self._decrement_at_kinks(near) for near in (0.0, NEAR))

    def _decrement_at_kinks(self, near: float) -> float:
        """The decrement with corrected slopes at kinks, plus what the loss at the kinks lacks with these slopes."""
        at, loss = with_slopes_at_kinks(self.problem, self.now.W, self.now.evaluation, near), self.problem.loss
        if at is self.now.evaluation:
            return self.decrement
        gradient = self.problem.gradient(self.now.W, at)
        decrement = float((gradient * self.preconditioner.at(at)(gradient)).sum()) / 2
        return decrement + one_thread_dot(at.worst.p, loss.exact(at.z) - at.loss.slope[0] * (at.z - loss.y)[0])

    @property
    def rounding(self) -> float:
        return rounding(self.problem, self.now.W, self.now.evaluation)

    def gap(self) -> tuple[float, float]:
        """P - D for a loss with a kink, and its value if lam were exact. Without a penalty there is no D, and the
        decrement is used instead."""
        if self.problem.alpha > 0:
            self.lower_bound()
            return self.value - self.bound, self.value - self.reach
        excess = self.value - (self.now.value - self.decrement)
        return excess, excess

    def step(self) -> None:
        if self.kinked and (self.stuck or self._nearly_solved()):
            if self._smoothing_error() <= self.rounding:
                self.exhausted = True
                return
            self._sharpen()
        # Rough directions far from the solution, precise ones near it: superlinear convergence without waste.
        accuracy = 1.0 if self.plain else max(min(0.1, math.sqrt(self.now.largest / self.first)), 1e-3)
        fresh = self.apply_inverse is None
        apply_inverse = self.apply_inverse or self.preconditioner.at(self.now.evaluation)
        found = next_iterate(self.problem, self.now, apply_inverse, accuracy)
        good = found is not None and found.largest <= _CONTRACTION * self.now.largest
        # Reuse a factorisation that works well. If a new one works badly, use conjugate gradients.
        blocked = found is None and not self.plain
        self.plain = self.plain and (good or not fresh)
        self.apply_inverse = apply_inverse if good and self.plain else None
        if found is not None:
            self.now = found
        self._watch()
        self.stuck = blocked or self.idle >= _PATIENCE
        self.exhausted = self.stuck and not self.kinked

    def _watch(self) -> None:
        """Count steps that neither lower P nor halve the gradient."""
        lower = self.now.value < self.lowest - 4 * np.finfo(float).eps * abs(self.lowest)
        self.idle = 0 if lower or self.now.largest <= 0.5 * self.least else self.idle + 1
        self.lowest, self.least = min(self.lowest, self.now.value), min(self.least, self.now.largest)

    def _smoothing_error(self) -> float:
        """How much smoothing lowers P at the current slopes."""
        at, loss = self.now.evaluation, self.problem.loss
        assert isinstance(loss, Pinball)
        return loss.smoothing / 2 * one_thread_dot(at.worst.p, at.loss.slope[0] ** 2)

    def _nearly_solved(self) -> bool:
        """Whether the gap of the smoothed problem is small compared with the smoothing error."""
        smoothing = self._smoothing_error()
        if self.problem.alpha == 0:
            return self.decrement <= smoothing
        return self.now.value - (self.lower_bound() - smoothing) <= smoothing

    def _sharpen(self) -> None:
        loss = self.problem.loss
        assert isinstance(loss, Pinball)
        self.problem = replace(self.problem, loss=loss.smoothed(0.2 * loss.smoothing))
        self.preconditioner.problem, self.apply_inverse = self.problem, None
        evaluation = self.problem.evaluate(self.now.W, self.now.evaluation.z, self.now.evaluation.worst.lam)
        self.now = Iterate(self.now.W, evaluation, self.problem.gradient(self.now.W, evaluation))
        self.lowest, self.least, self.idle = self.now.value, self.now.largest, 0


@one_thread_each()
def solve(
    problem: LinearProblem, W: Array, tol: float, max_iter: int, certify: bool = True, tell: Tell | None = None
) -> Solution:
    """Minimise P from W. It has converged if the largest entry of the gradient is at most tol * loss.unit or, for
    losses with a kink, the duality gap is at most tol |P|; or if rounding prevents further progress."""
    path = _Path(problem, W)
    n_iter = 0
    while not (done := _converged(path, tol)) and n_iter < max_iter and not path.exhausted:
        path.step()
        n_iter += 1
        if tell is not None:
            tell(n_iter, path.value, path.now.largest)
    done = done or (path.exhausted and path.remaining <= _ROUNDED * path.rounding)
    if not certify:
        return _solution(path.now, path.value, math.inf, max(n_iter, 1), done)
    return _certified(problem, path, max(n_iter, 1), done)


def _converged(path: _Path, tol: float) -> bool:
    if not path.kinked:
        return path.now.largest <= tol * path.problem.loss.unit
    gap, excess = path.gap()
    rounded = _ROUNDED * path.rounding
    return gap <= tol * abs(path.value) or (excess <= rounded and (path.problem.alpha > 0 or path.remaining <= rounded))


def _certified(problem: LinearProblem, path: _Path, n_iter: int, converged: bool) -> Solution:
    """The solution with its gap. Further Newton steps are made until the bound is tight.

    A later point of value P' shows that the true gap is at least P - P'. Once P - D is at most a few times that, it is
    known to be tight. A converged solution is replaced by the better one.
    """
    answer, value = path.now, path.value
    best_value = value
    for _ in range(CERTIFYING_STEPS if problem.alpha > 0 else 0):
        if path.value < best_value:
            best_value = path.value
            if converged:
                answer, value = path.now, best_value
        enough = _TIGHT * (value - best_value) + _SLACK
        if path.kinked or path.exhausted or path.squared_gradient <= enough:
            path.lower_bound()
        if path.exhausted or value - path.bound <= enough:
            break
        path.step()
    bound = path.bound if path.bound > -math.inf else path.lower_bound()
    return _solution(answer, value, max(value - bound, 0.0), n_iter, converged)


def _solution(at: Iterate, value: float, gap: float, n_iter: int, converged: bool) -> Solution:
    return Solution(at.W, value, at.evaluation.worst.lam, gap, n_iter, converged)


@one_thread_each()
def certificate(problem: LinearProblem, W: Array, n_iter: int, converged: bool) -> Solution:
    """The certificate of a point found by another method, which remains the solution."""
    return _certified(problem, _Path(problem, W), n_iter, False)._replace(converged=converged)


@one_thread_each()
def find_start(problem: LinearProblem, intercept: Array, tol: float, max_iter: int) -> Array:
    """A point near the solution: the solution for every tenth sample, if there are enough samples."""
    k, d = problem.shape
    W = np.zeros((k, d))
    if problem.fit_intercept:
        W[:, -1] = intercept
    thin = len(problem.q) // THIN
    if thin < max(50 * k * d, 2000):
        return W
    # One random row of every ten, since data may be sorted or periodic.
    part = problem.rows(np.arange(thin) * THIN + np.random.default_rng(0).integers(0, THIN, thin))
    if not part.loss.varied(part.q):
        return W
    path = _Path(part, find_start(part, intercept, tol, max_iter))
    goal = max(tol, 0.1 / math.sqrt(thin)) * problem.loss.unit
    for _ in range(min(max_iter, 30)):
        if path.now.largest <= goal or path.stuck:
            break
        path.step()
    return path.now.W
