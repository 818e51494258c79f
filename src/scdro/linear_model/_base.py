r"""What both estimators share: checks of the settings, the choice of solver, fitted attributes, the worst case."""

from __future__ import annotations

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from scdro.errors import HyperparameterError
from scdro.linear_model._exact import Solution, certificate, solve, start
from scdro.linear_model._losses import Loss
from scdro.linear_model._problem import Problem
from scdro.linear_model._stochastic import ALGORITHMS, Stream, batches
from scdro.linear_model._worst import Array, worst
from scdro.reading import check_radius

__all__ = ["KLDROLinearModel"]

_FIRST = 4096  # rows that give a stream its start, its coordinates and its step size
_PATIENCE = 5  # epochs without progress after which a stochastic fit ends


class KLDROLinearModel(BaseEstimator, ABC):  # type: ignore[misc]
    """min over (w, b) of the KL-robust value of the losses, plus |w|^2/(2 C sum(sample_weight))."""

    rho: float
    C: float
    lam0: float
    fit_intercept: bool
    solver: str
    tol: float
    max_iter: Any
    warm_start: bool
    random_state: Any
    batch_size: Any
    learning_rate: float | None
    coef_: Array
    intercept_: Any

    @abstractmethod
    def _losses(self, y: Array, weight: Array) -> Loss:
        """The loss of targets as encoded for the solvers."""

    @abstractmethod
    def _packed(self) -> Array | None:
        """The fitted W, (k, d + 1), or None."""

    @abstractmethod
    def _unpack(self, W: Array, dtype: Any) -> None:
        """Set coef_ and intercept_."""

    def _validated(self, X: Any, y: Any, reset: bool = True, **kwargs: Any) -> tuple[Any, Array]:
        checked: tuple[Any, Array] = validate_data(
            self, X, y, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32], **kwargs
        )
        return checked

    def _check_settings(self) -> None:
        for name in ("rho", "C", "lam0", "tol"):
            if not isinstance(getattr(self, name), numbers.Real):
                raise HyperparameterError(f"expected {name} to be a number, got {getattr(self, name)!r}")
        check_radius(self.rho, self.lam0)
        if not self.C > 0:
            raise HyperparameterError(f"expected C > 0, the inverse strength of the penalty, got {self.C}")
        if not self.tol >= 0:
            raise HyperparameterError(f"expected tol >= 0, got {self.tol}")
        if not isinstance(self.max_iter, numbers.Integral) or self.max_iter < 1:
            raise HyperparameterError(f"expected max_iter, a whole number of at least 1, got {self.max_iter}")
        if self.solver not in ("exact", *ALGORITHMS):
            raise HyperparameterError(f"expected solver to be one of {('exact', *ALGORITHMS)}, got {self.solver!r}")
        if not isinstance(self.batch_size, numbers.Integral) or self.batch_size < 1:
            raise HyperparameterError(f"expected batch_size, a whole number of at least 1, got {self.batch_size}")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise HyperparameterError(f"expected learning_rate > 0, or None to find one, got {self.learning_rate}")

    def _weights(self, sample_weight: Any, X: Any) -> Array:
        weight: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.sum() > 0:
            raise ValueError("expected sample weights with a positive sum, got only zeros")
        return weight

    # -- fitting ------------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Array, weight: Array) -> None:
        problem = self._problem(X, y, weight)
        W = self._packed() if self.warm_start else None
        if W is not None and W.shape != problem.shape:
            W = None
        if self.solver == "exact":
            if W is None:
                W = start(problem, self._origin(problem.loss, problem.q), self.tol, self.max_iter)
            solution = solve(problem, W, self.tol, self.max_iter)
        else:
            solution = self._fit_stochastic(problem, W)
        self.__dict__.pop("_stream", None)
        self._report(problem, solution)

    def _problem(self, X: Any, y: Array, weight: Array) -> Problem:
        total = float(weight.sum())
        loss = self._losses(y, weight)
        alpha = 1 / (float(self.C) * total)
        return Problem(X, loss, weight / total, alpha, float(self.rho), float(self.lam0), self.fit_intercept)

    def _origin(self, loss: Loss, q: Array) -> Array:
        """The intercept to start from, (k,)."""
        return np.zeros(loss.k)

    def _report(self, problem: Problem, solution: Solution) -> None:
        penalty = float((problem.penalised(solution.W) * solution.W).sum()) / 2
        self._unpack(solution.W, problem.X.dtype)
        self.lam_, self.robust_value_ = solution.lam, solution.value - penalty
        self.dual_gap_, self.n_iter_ = solution.gap, solution.n_iter
        if not solution.converged:
            warnings.warn(
                f"{self.solver} stopped after {solution.n_iter} iterations (max_iter={self.max_iter}) before reaching "
                f"tol={self.tol}: the objective is within {solution.gap:.2g} of its least value. Raise max_iter, scale "
                "the features (sklearn.preprocessing.StandardScaler), or lower C or rho.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _fit_stochastic(self, problem: Problem, W: Array | None) -> Solution:
        """Epochs in random order until the exact objective stops falling; the best epoch's end is the answer."""
        X, loss, n = problem.X, problem.loss, len(problem.q)
        rng = check_random_state(self.random_state)
        order = rng.permutation(n)
        stream = self._new_stream(problem.rows(order[: max(self.batch_size, _FIRST)]), W)
        best_W, best, since, epoch = stream.coefficients(), math.inf, 0, 0
        uniform = bool((problem.q == problem.q[0]).all())
        while epoch < self.max_iter and since < _PATIENCE:
            epoch += 1
            for i in batches(n, self.batch_size, rng.permutation(n)):
                weight = None if uniform else problem.q[i]
                if weight is None or weight.any():
                    stream.step(X[i], loss.rows(i), weight, problem.alpha)
            W = stream.coefficients()
            value = problem.original_value(W, problem.scores(W))
            since = 0 if value < best - self.tol * abs(best) else since + 1
            if value < best:
                best_W, best = W, value
        return certificate(problem, best_W, epoch, since >= _PATIENCE)

    def _new_stream(self, first: Problem, W: Array | None) -> Stream:
        """Starts at W, or else at the solution for the first rows; at zero if those do not have one."""
        if W is None or W.shape != first.shape:
            W = start(first, self._origin(first.loss, first.q), 1e-3, 50)
            if first.loss.varied(first.q):
                # A few rows may be separable: without a penalty they get a weak one.
                penalised = first if first.alpha > 0 else replace(first, alpha=1e-4)
                W = solve(penalised, W, 1e-3, 50).W
        return Stream("rscdro" if self.solver == "exact" else self.solver, first, W, self.learning_rate)

    def _stream_settings(self) -> dict[str, Any]:
        names = ("rho", "lam0", "solver", "learning_rate", "fit_intercept")
        return {name: getattr(self, name) for name in names}

    def _partial_fit(self, X: Any, y: Array, weight: Array, weighted: bool) -> None:
        """One pass over the rows, in their order. The penalty is that of all the weight seen so far."""
        problem = self._problem(X, y, weight)
        if "_stream" not in self.__dict__:
            self._stream = self._new_stream(problem.rows(slice(0, _FIRST)), self._packed())
            self._stream.settings = self._stream_settings()
        stream = self._stream
        if stream.settings != self._stream_settings():
            raise ValueError(
                f"expected the settings that the stream began with, {stream.settings}, got {self._stream_settings()}; "
                "only C may change from call to call"
            )
        stream.weight += float(weight.sum())
        for i in batches(X.shape[0], self.batch_size):
            if weight[i].any():
                alpha = 1 / (self.C * stream.weight)
                stream.step(X[i], problem.loss.rows(i), weight[i] if weighted else None, alpha)
        self._unpack(stream.coefficients(), X.dtype)
        self.lam_, self.robust_value_, self.n_iter_ = float(stream.opt.lam), stream.value, stream.steps
        self.__dict__.pop("dual_gap_", None)  # of data that are gone nothing can be certified

    # -- after fitting ------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> Array:
        """(n, k)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        scores: Array = X @ np.atleast_2d(self.coef_).T + self.intercept_
        return scores

    def _worst_case_weights(self, scores: Array, y: Array, weight: Array) -> Array:
        losses = self._losses(y, weight).exact(np.ascontiguousarray(scores.T, dtype=np.float64))
        return worst(losses, weight / weight.sum(), self.rho, self.lam0).p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
