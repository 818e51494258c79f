r"""The exact solver: Newton from the solution of a subsampled problem, and the certificate.

    W  <-  solution for every tenth sample, if there are many                    (find_start)
    until the gradient is small:
        W  <-  W - t H^-1 grad P(W),    with a line search for t                 (_Path.step)
    until the bound is tight:
        D  <-  a lower bound of min P, and a further step                        (_certify)
    return W and P(W) - D

A loss with a kink (absolute, quantile) has no Newton step. It is replaced by a smoothed loss, less
smoothed each time that the smoothed problem is solved about as well as smoothing allows
(continuation). The bound D is that of the original loss at every smoothing, so the certificate
tells when to stop.

The directions cost little: an inverse of the Hessian of a well-chosen part of the samples is used
again as long as steps with it shrink the gradient by four; conjugate gradients are the fallback.

References:
    Boyd and Vandenberghe, Convex Optimization, 2004: Newton's method and decrement, chapter 9;
    the duality gap as a stopping rule, section 5.5.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scdro._scalar import one_thread_dot
from scdro.linear_model._dual import (
    NEAR,
    choose_slopes_at_kinks,
    lam_error,
    lower_bound,
    rounding_error,
)
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._newton import Iterate, iterate_at, next_iterate, update_inverse
from scdro.linear_model._preconditioner import ApplyInverse, Preconditioner
from scdro.linear_model._score_losses import Pinball
from scdro.linear_model._threads import limit_blas_threads
from scdro.linear_model._worst_case import Array

__all__ = ["Solution", "find_start", "solve"]

THIN = 10  # a problem is first solved on every tenth sample,
# or on this many for each parameter and in all, if that is no more than a third.
_LEAST_PER_PARAMETER, _LEAST = 30, 1000
CERTIFYING_STEPS = 100  # at most, after the answer has been found
# The gap is tight if it is at most _TIGHT times what later steps gained, plus _SLACK.
_TIGHT, _SLACK = 5.0, 8e-9
# A factorisation is used again if its step left no more than this part of the gradient.
_CONTRACTION = 0.25
_POOR = 0.5  # a new one that leaves more than this needs conjugate gradients from then on
_ROUNDED = 4  # a gap below this many rounding errors of P or D counts as zero
_PATIENCE = 5  # after this many steps without progress, rounding is assumed to prevent any

# Called with the step, the objective and the largest entry of its gradient.
Tell = Callable[[int, float, float], None]


class Solution(NamedTuple):
    """W and its certificate."""

    W: Array  # (k, d + 1)
    value: float  # P(W)
    lam: float  # the temperature of the worst case at W
    gap: float  # an upper bound of P(W) - min P; infinite if there is none
    n_iter: int  # Newton steps until W, without those for the certificate
    converged: bool


class _Path:
    """The iterates of one problem, with what decides about the next step and about the end.

    A loss with a kink is smoothed, less each time the smoothed problem is solved; `value` and the
    bounds are always those of the loss that was given.
    """

    def __init__(self, problem: LinearProblem, W: Array, lam: float | None = None) -> None:
        """Start at W, (k, d + 1), with a first guess of lam there."""
        self.problem, self.preconditioner = problem, Preconditioner(problem)
        loss = problem.loss
        self.kinked = isinstance(loss, Pinball)
        if isinstance(loss, Pinball):
            self.problem = replace(problem, loss=loss.with_smoothing(0.1 * loss.spread))
        self.preconditioner.problem = self.problem
        self.now = iterate_at(self.problem, W, lam)
        self.first = max(self.now.largest, 1e-300)  # largest entry of the first gradient
        # The lowest P and the least gradient so far, and the number of steps that improved neither.
        self.lowest, self.least, self.idle = self.now.value, self.now.largest, 0
        self.bound = -math.inf  # the best lower bound D of min P so far
        self.bound_at_exact_lam = -math.inf  # what it would be if lam were exact
        self.stuck = False  # rounding prevents progress
        self.exhausted = False  # and no smoothing is left to remove
        # Whether the preconditioner alone gives good directions, without conjugate gradients.
        self.plain = self.preconditioner.dense
        # The approximate inverse of the Hessian that the next step uses; None asks for a new one.
        self.apply_inverse: ApplyInverse | None = None

    @property
    def value(self) -> float:
        """P of the original loss at the current iterate."""
        if not self.kinked:
            return self.now.value
        return self.problem.original_value(
            self.now.W, self.now.evaluation.z, self.now.evaluation.worst.lam
        )

    def lower_bound(self) -> float:
        """The best D so far, including that of the current iterate."""
        found = lower_bound(self.problem, self.now.W, self.now.evaluation)
        self.bound = max(self.bound, found)
        self.bound_at_exact_lam = max(
            self.bound_at_exact_lam, found + lam_error(self.problem, self.now.evaluation)
        )
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
        """The decrement, the smaller of two estimates for a loss with kinks.

        They differ in which samples count as being at a kink: those that the smoothed loss puts
        there, or also those within rounding errors of it. Either may miss: the first because of
        rounding, the second because it holds on to a wrong vertex.
        """
        return min(self._decrement_at_kinks(near) for near in (0.0, NEAR))

    def _decrement_at_kinks(self, near: float) -> float:
        """The decrement with corrected slopes at kinks, plus the Fenchel gap at the kinks.

        The gap of a sample is phi(z) - u (z - y), by which a slope u that is not quite the slope at
        z underestimates the loss there.
        """
        loss = self.problem.loss
        at = choose_slopes_at_kinks(self.problem, self.now.W, self.now.evaluation, near)
        if at is self.now.evaluation:
            return self.decrement
        gradient = self.problem.gradient(self.now.W, at)
        decrement = float((gradient * self.preconditioner.at(at)(gradient)).sum()) / 2
        fenchel_gaps = loss.exact(at.z) - at.loss.slope[0] * (at.z - loss.y)[0]
        return decrement + one_thread_dot(at.worst.p, fenchel_gaps)

    @property
    def rounding(self) -> float:
        """A bound on the rounding errors of P and D at the current iterate."""
        return rounding_error(self.problem, self.now.W, self.now.evaluation)

    def gap(self) -> tuple[float, float]:
        """P - D for a loss with a kink, and its value if lam were exact.

        Without a penalty there is no D, and the decrement is used instead.
        """
        if self.problem.alpha > 0:
            self.lower_bound()
            return self.value - self.bound, self.value - self.bound_at_exact_lam
        excess = self.value - (self.now.value - self.decrement)
        return excess, excess

    def step(self) -> None:
        """One Newton step, after less smoothing if the smoothed problem is solved.

        Sets `exhausted` if no further step can improve the result.
        """
        if self.kinked and (self.stuck or self._is_nearly_solved()):
            if self._smoothing_error() <= self.rounding:
                self.exhausted = True
                return
            self._sharpen()
        # Rough directions far from the solution, precise ones near it: superlinear convergence
        # without waste.
        accuracy = (
            1.0 if self.plain else max(min(0.1, math.sqrt(self.now.largest / self.first)), 1e-3)
        )
        fresh = self.apply_inverse is None
        apply_inverse = self.apply_inverse or self.preconditioner.at(self.now.evaluation)
        found = next_iterate(self.problem, self.now, apply_inverse, accuracy)
        good = found is not None and found.largest <= _CONTRACTION * self.now.largest
        # Reuse a factorisation that works well, improved by what this step has shown of the
        # Hessian, and replace it otherwise. If even a new one works badly, use conjugate gradients.
        blocked = found is None and not self.plain
        poor = found is None or found.largest > _POOR * self.now.largest
        self.plain = self.plain and not (fresh and poor)
        self.apply_inverse = None
        if found is not None:
            if good and self.plain:
                self.apply_inverse = update_inverse(
                    apply_inverse, found.W - self.now.W, found.gradient - self.now.gradient
                )
            self.now = found
        self._watch()
        self.stuck = blocked or self.idle >= _PATIENCE
        self.exhausted = self.stuck and not self.kinked

    def _watch(self) -> None:
        """Count steps that neither lower P nor halve the gradient; after some, rounding is to blame."""
        lower = self.now.value < self.lowest - 4 * np.finfo(float).eps * abs(self.lowest)
        self.idle = 0 if lower or self.now.largest <= 0.5 * self.least else self.idle + 1
        self.lowest, self.least = (
            min(self.lowest, self.now.value),
            min(self.least, self.now.largest),
        )

    def _smoothing_error(self) -> float:
        """How much smoothing lowers P at the current slopes."""
        at, loss = self.now.evaluation, self.problem.loss
        assert isinstance(loss, Pinball)
        return loss.smoothing / 2 * one_thread_dot(at.worst.p, at.loss.slope[0] ** 2)

    def _is_nearly_solved(self) -> bool:
        """Whether the gap of the smoothed problem is small compared with the smoothing error."""
        smoothing = self._smoothing_error()
        if self.problem.alpha == 0:
            return self.decrement <= smoothing
        return self.now.value - (self.lower_bound() - smoothing) <= smoothing

    def _sharpen(self) -> None:
        """Divide the smoothing by five and continue from the same point, whose scores are known."""
        loss = self.problem.loss
        assert isinstance(loss, Pinball)
        self.problem = replace(self.problem, loss=loss.with_smoothing(0.2 * loss.smoothing))
        self.preconditioner.problem, self.apply_inverse = self.problem, None
        evaluation = self.problem.evaluate(
            self.now.W, self.now.evaluation.z, self.now.evaluation.worst.lam
        )
        self.now = Iterate(self.now.W, evaluation, self.problem.gradient(self.now.W, evaluation))
        self.lowest, self.least, self.idle = self.now.value, self.now.largest, 0


@limit_blas_threads()
def solve(
    problem: LinearProblem,
    W: Array,
    tol: float,
    max_iter: int,
    certify: bool = True,
    tell: Tell | None = None,
    lam: float | None = None,
) -> Solution:
    """Minimise P from W.

    It has converged if the largest entry of the gradient is at most tol * loss.unit or, for losses
    with a kink, the duality gap is at most tol |P|; or if rounding prevents further progress.

    Args:
        problem: what is minimised.
        W: where to start, (k, d + 1).
        tol: tolerance of the gradient or the gap.
        max_iter: maximum number of steps.
        certify: whether to bound the distance from the minimum; otherwise the gap is infinite.
        tell: called after every step.
        lam: a first guess of the temperature at W.
    """
    path = _Path(problem, W, lam)
    n_iter = 0
    while not (done := _has_converged(path, tol)) and n_iter < max_iter and not path.exhausted:
        path.step()
        n_iter += 1
        if tell is not None:
            tell(n_iter, path.value, path.now.largest)
    done = done or (path.exhausted and path.remaining <= _ROUNDED * path.rounding)
    if not certify:
        return _solution(path.now, path.value, math.inf, max(n_iter, 1), done)
    return _certify(problem, path, max(n_iter, 1), done)


def _has_converged(path: _Path, tol: float) -> bool:
    """Whether the iterate meets the tolerance, or is as good as rounding allows for a loss with
    kinks.
    """
    if not path.kinked:
        return path.now.largest <= tol * path.problem.loss.unit
    gap, excess = path.gap()
    rounded = _ROUNDED * path.rounding
    return gap <= tol * abs(path.value) or (
        excess <= rounded and (path.problem.alpha > 0 or path.remaining <= rounded)
    )


def _certify(problem: LinearProblem, path: _Path, n_iter: int, converged: bool) -> Solution:
    """The solution with its gap, after further Newton steps that make the bound tight.

    D is far too low a few steps before the minimum, because it falls short by
    |grad P|^2/(2 alpha), with a small alpha. But a later point of value P' shows that the true gap
    of the answer is at least P - P': once P - D is at most a few times that, it is known to be
    tight. A converged solution is replaced by the better one; one that was stopped early stays.
    """
    answer, value = path.now, path.value
    best_value = value
    for _ in range(CERTIFYING_STEPS if problem.alpha > 0 else 0):
        if path.value < best_value:
            best_value = path.value
            if converged:
                answer, value = path.now, best_value
        # D costs up to three products with X, so it is computed only where it may be good enough.
        enough = _TIGHT * (value - best_value) + _SLACK
        if path.kinked or path.exhausted or path.squared_gradient <= enough:
            path.lower_bound()
        if path.exhausted or value - path.bound <= enough:
            break
        path.step()
    bound = path.bound if path.bound > -math.inf else path.lower_bound()
    return _solution(answer, value, max(value - bound, 0.0), n_iter, converged)


def _solution(at: Iterate, value: float, gap: float, n_iter: int, converged: bool) -> Solution:
    """A solution from an iterate and what is known of it."""
    return Solution(at.W, value, at.evaluation.worst.lam, gap, n_iter, converged)


@limit_blas_threads()
def find_start(
    problem: LinearProblem, intercept: Array, tol: float, max_iter: int
) -> tuple[Array, float | None]:
    """A point near the solution, (k, d + 1), and its lam: the solution for every tenth sample,
    found the same way.

    With too few samples for that it is zero, with the given intercept, (k,), and lam is not known.
    """
    k, d = problem.shape
    W = np.zeros((k, d))
    if problem.fit_intercept:
        W[:, -1] = intercept
    n = len(problem.q)
    thin = max(n // THIN, _LEAST_PER_PARAMETER * k * d, _LEAST)
    if 3 * thin > n:
        return W, None
    # One random row of each of so many equal parts, since data may be sorted or periodic.
    places = np.arange(thin) + np.random.default_rng(0).random(thin)
    part = problem.take_rows((places * (n / thin)).astype(int))
    if not part.loss.has_all_classes(part.q):
        return W, None
    path = _Path(part, *find_start(part, intercept, tol, max_iter))
    # The two solutions differ by about 1/sqrt(samples), so that more precision would be wasted.
    goal = max(tol, 0.1 / math.sqrt(thin)) * problem.loss.unit
    for _ in range(min(max_iter, 30)):
        if path.now.largest <= goal or path.stuck:
            break
        path.step()
    return path.now.W, path.now.evaluation.worst.lam
