"""What both estimators share: checks of settings, the order of a fit and of a stream, attributes.

A fit (`_fit`):

1. State the problem for the encoded targets (`_problem`).
2. Find a start: the coefficients of the last fit, or the solution for every tenth sample.
3. Solve, with a certificate, and set the attributes.

A stream (`_partial_fit`) keeps its first 4,096 rows and solves for them exactly, as above; from
then on it takes a step of RSCDRO for each batch (`_stochastic.Stream`). Rows that do not fill a
batch wait, so that the model depends on the rows and their order only, not on how they are split
into calls.

In shapes, n rows, d features, and k scores per row: 1, or the number of classes.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from scdro._validation import (
    check_flag,
    check_number,
    check_optional,
    check_radius,
    check_whole,
)
from scdro.errors import DataError
from scdro.linear_model._exact import Solution, find_start, solve
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._score_losses import LinearLoss
from scdro.linear_model._stochastic import Samples, Stream, StreamProgress
from scdro.linear_model._worst_case import Array, solve_worst_case

__all__ = ["KLDROLinearModel"]

START_ROWS = 4096  # rows used for the start, coordinates and step size of a stream
START_STEPS = 100  # Newton steps for these rows
# While the first rows arrive they are solved again when their number has grown by this factor, so
# that calls with single rows stay cheap.
REFIT_GROWTH = 1.05
# Settings that may change between two calls of partial_fit.
CHANGEABLE = ("C", "batch_size", "class_weight", "max_iter", "tol", "verbose", "warm_start")


class KLDROLinearModel(BaseEstimator, ABC):  # type: ignore[misc]
    """min over (w, b) of the KL-robust value of the losses, plus |w|^2/(2 C sum(sample_weight)).

    The constructors are written out in the two estimators, because scikit-learn reads the names of
    the parameters from their signatures.
    """

    rho: float
    C: float
    lam0: float
    fit_intercept: bool
    tol: float
    max_iter: Any
    warm_start: bool
    batch_size: Any
    learning_rate: float | None
    verbose: int
    coef_: Array
    intercept_: Any
    _fitted_size: tuple[int, float]  # rows and total weight of the last fit

    @abstractmethod
    def _loss(self, y: Array, weight: Array) -> LinearLoss:
        """The loss for encoded targets y, (n,), with sample weights, (n,)."""

    @abstractmethod
    def _pack(self) -> Array | None:
        """The fitted coefficients and intercept as W, (k, d + 1); None before a fit."""

    @abstractmethod
    def _unpack(self, W: Array, dtype: Any) -> None:
        """Set coef_ and intercept_ from W, (k, d + 1), in the dtype of the data."""

    def _validate(self, X: Any, y: Any, reset: bool = True, **kwargs: Any) -> tuple[Any, Array]:
        """X, dense or CSR, as float32 or float64, and y. `reset` sets the number of features."""
        checked: tuple[Any, Array] = validate_data(
            self, X, y, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32], **kwargs
        )
        return checked

    def _check_settings(self) -> None:
        """Raise unless every setting is valid; at the start of a fit, as scikit-learn does."""
        check_radius(self.rho, self.lam0)
        check_number("C", self.C, "> 0", "the inverse strength of the penalty", infinite=True)
        check_number("tol", self.tol, ">= 0", infinite=True)
        check_whole("max_iter", self.max_iter)
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("warm_start", self.warm_start)
        check_whole("batch_size", self.batch_size)
        check_optional("learning_rate", self.learning_rate, "> 0", "or None to choose one")
        check_whole(
            "verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0
        )

    # -- fitting

    def _fit(self, X: Any, y: Array, weight: Array, offset: float = 0.0) -> None:
        """Fit the model.

        Args:
            X: checked features, (n, d).
            y: encoded targets, (n,).
            weight: sample weights, (n,).
            offset: what was subtracted from y; it is added to the intercept.
        """
        problem = self._problem(X, y, weight)
        # The offset as coefficients: only the intercept moves.
        moved = np.zeros(problem.shape)
        moved[:, -1] = offset
        W = self._pack() if self.warm_start else None
        if W is not None:
            W = W - moved if W.shape == problem.shape else None
        lam = None  # at W; a first guess
        if W is None:
            W, lam = find_start(
                problem, self._first_intercept(problem.loss, problem.q), self.tol, self.max_iter
            )
        tell = self._tell_step if self.verbose else None
        solution = solve(problem, W, self.tol, self.max_iter, tell=tell, lam=lam)
        # Nothing is set before this line: a fit that raises leaves the model as it was.
        self.__dict__.pop("_progress", None)  # a stream that had begun ends here
        self._fitted_size = len(weight), float(weight.sum())
        # Adding the offset to the intercept rounds it.
        lost = float(np.finfo(float).eps) * abs(offset) * problem.loss.unit
        self._set_results(problem, solution._replace(W=solution.W + moved, gap=solution.gap + lost))
        if self.verbose and self.dual_gap_ < math.inf:
            self._tell(f"the objective is at most {self.dual_gap_:.2g} above its minimum")
        self._warn_unless_converged(solution)

    def _tell(self, text: str) -> None:
        """Print a line, if the estimator is verbose."""
        print(f"[{type(self).__name__}] {text}", flush=True)

    def _tell_step(self, step: int, value: float, gradient: float) -> None:
        """What `solve` calls after each Newton step."""
        self._tell(
            f"Newton step {step}: objective {value:.8g}, largest entry of its gradient"
            f" {gradient:.2g}"
        )

    def _problem(self, X: Any, y: Array, weight: Array) -> LinearProblem:
        """What is minimised over these samples: C counts the whole weight, as in scikit-learn."""
        total = float(weight.sum())
        loss = self._loss(y, weight)
        alpha = 1 / (float(self.C) * total)
        return LinearProblem(
            X, loss, weight / total, alpha, float(self.rho), float(self.lam0), self.fit_intercept
        )

    def _first_intercept(self, loss: LinearLoss, q: Array) -> Array:
        """The intercept to start from, (k,)."""
        return np.zeros(loss.k)

    def _set_results(self, problem: LinearProblem, solution: Solution) -> None:
        """Set the fitted attributes. `robust_value_` is P without the penalty."""
        penalty = float((problem.penalty_gradient(solution.W) * solution.W).sum()) / 2
        self._unpack(solution.W, problem.X.dtype)
        self.lam_, self.robust_value_ = solution.lam, solution.value - penalty
        self.dual_gap_, self.n_iter_ = solution.gap, solution.n_iter

    def _warn_unless_converged(self, solution: Solution) -> None:
        """Warn if the solver ended at `max_iter`, and say how far it may be from the minimum."""
        if not solution.converged:
            known = (
                f": the objective is within {solution.gap:.2g} of its minimum"
                if solution.gap < math.inf
                else ""
            )
            warnings.warn(
                f"{type(self).__name__} stopped after {solution.n_iter} Newton steps"
                f" (max_iter={self.max_iter}) before reaching tol={self.tol}{known}. Raise"
                " max_iter, scale the features (sklearn.preprocessing.StandardScaler), or lower C"
                " or rho.",
                ConvergenceWarning,
                stacklevel=4,
            )

    @property
    def _first_rows(self) -> int:
        """The number of rows that a stream solves exactly before it steps."""
        return max(int(self.batch_size), START_ROWS)

    def _solve_first_rows(
        self, first: LinearProblem, W: Array | None
    ) -> tuple[LinearProblem, Solution]:
        """The problem of the first rows of a stream and its solution, starting from W, (k, d + 1).

        If not all classes have occurred, there is none: then the start itself is returned.
        """
        # A few rows may be separable; if there is no penalty, use a weak one.
        problem = first if first.alpha > 0 else replace(first, alpha=1e-4)
        steps = START_STEPS if first.loss.has_all_classes(first.q) else 0
        if W is None or steps == 0:
            W, _ = find_start(problem, self._first_intercept(first.loss, first.q), self.tol, steps)
        return problem, solve(problem, W, self.tol, steps, certify=False)

    def _new_stream(self, first: LinearProblem, W: Array, rows: int) -> Stream:
        """A stream from W, which counts for `rows` rows in its average."""
        return Stream(first, W, rows, self.learning_rate)

    def _open_stream(self, first: LinearProblem) -> Stream:
        """A stream that starts from the solution for the first rows."""
        solved = first.loss.has_all_classes(first.q)
        return self._new_stream(
            first, self._solve_first_rows(first, None)[1].W, len(first.q) if solved else 0
        )

    def _partial_fit(self, X: Any, y: Array, weight: Array) -> None:
        """One pass over the rows in order, in whole batches.

        Args:
            X: checked features, (n, d).
            y: encoded targets, (n,).
            weight: sample weights, (n,).
        """
        progress = self.__dict__.get("_progress")
        if progress is None:
            progress = StreamProgress(self._stream_settings(), getattr(self, "_fitted_size", None))
        if progress.settings != self._stream_settings():
            now = self._stream_settings()
            name = next(name for name, value in progress.settings.items() if now[name] != value)
            raise DataError(
                f"expected {name}={progress.settings[name]!r} as in the first call, got"
                f" {now[name]!r}; only {', '.join(CHANGEABLE)} may change from call to call"
            )
        progress = replace(progress)  # a copy: a refused call leaves the stream as it was
        # The rows to work on: those of weight zero left out, those that waited in front.
        rows = Samples(X, y, weight)
        if not weight.all():
            rows = rows[np.flatnonzero(weight)]
        if progress.waiting is not None:
            rows = progress.waiting.join(rows)
        if progress.stream is None:
            rows = self._begin_stream(progress, rows)
        if progress.stream is not None:
            if len(rows) >= 2 * self.batch_size:  # a refused batch must undo those before it
                progress.stream = copy.deepcopy(progress.stream)
            rows = self._advance_stream(progress.stream, rows)
        progress.waiting = rows.copy()
        self._progress = progress
        self.__dict__.pop("dual_gap_", None)  # no certificate without the earlier data

    def _stream_settings(self) -> dict[str, Any]:
        """The settings that must not change between two calls of partial_fit."""
        return {name: value for name, value in self.get_params().items() if name not in CHANGEABLE}

    def _begin_stream(self, progress: StreamProgress, rows: Samples) -> Samples:
        """Begin the stream once there are enough rows. Returns the rows that are left for it.

        Until then the model is the solution for the rows so far, or the earlier fit if it continues
        from one.
        """
        first = rows[: self._first_rows]  # at most that many
        problem = self._problem(first.X, first.y, first.weight)
        W = self._pack()
        if progress.fitted is not None:
            if len(rows) >= self.batch_size:
                assert W is not None
                progress.stream = self._new_stream(problem, W, progress.fitted[0])
                progress.stream.weight = progress.fitted[1]
            return rows
        if len(rows) >= self._first_rows:
            progress.stream = self._open_stream(problem)
            progress.stream.weight = float(first.weight.sum())
            return rows[self._first_rows :]
        if len(rows) >= REFIT_GROWTH * progress.solved:
            self._set_results(*self._solve_first_rows(problem, W))
            progress.solved = len(rows)
        return rows

    def _advance_stream(self, stream: Stream, rows: Samples) -> Samples:
        """Step over whole batches, with the penalty for the total weight so far. Returns the
        remaining rows.
        """
        whole = len(rows) // self.batch_size * self.batch_size
        for i in range(0, whole, self.batch_size):
            batch = rows[i : i + self.batch_size]
            total = stream.weight + float(batch.weight.sum())  # the penalty is 1/(C total)
            weight = batch.weight if (batch.weight != batch.weight[0]).any() else None
            stream.step(batch.X, self._loss(batch.y, batch.weight), weight, 1 / (self.C * total))
            stream.weight = total
        self._unpack(stream.coefficients(), rows.X.dtype)
        self.lam_, self.robust_value_, self.n_iter_ = (
            float(stream.opt.lam),
            stream.value,
            max(stream.steps, 1),
        )
        return rows[whole:]

    # -- after fitting

    def _scores(self, X: Any) -> Array:
        """The scores of checked rows, (n, k)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        scores: Array = X @ np.atleast_2d(self.coef_).T + self.intercept_
        return scores

    def _worst_case_weights(self, scores: Array, y: Array, weight: Array) -> Array:
        """p, (n,): the worst case of the losses at these scores, (n, k)."""
        losses = self._loss(y, weight).exact(np.ascontiguousarray(scores.T, dtype=np.float64))
        return solve_worst_case(losses, weight / weight.sum(), float(self.rho), float(self.lam0)).p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
