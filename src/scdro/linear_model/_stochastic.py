r"""RSCDRO for linear models: a stream of batches whose state is kept between calls, for data that
do not fit in memory.

    W   start: the exact solution for the first rows
    T   their whitening, T' H T ~ I, so that one step size fits all directions;  w = T v
    for each batch:
        v, b  <-  a step of RSCDRO on  l_i(T v, b) + alpha/2 |T v|^2
        mean  <-  mean + share (v - mean)      share ~ 3 x batch / rows so far
    result: T mean

The stream starts at the exact solution for the first rows. Their Hessian determines the step size,
and coordinates in which features are whitened, w = T v, so that one step size fits all directions.
The penalty on w is added to every loss, which adds it to the robust value and does not change the
worst case.

The result is an average in which the start counts as much as the rows it was computed from. lam is
computed from many losses, because only a few of them determine it; in the optimizer's default
window of 1,024 that would be a handful.

References: RSCDRO is Algorithm 3 of the paper (`scdro.optim.RSCDRO`); the average with weights that
grow with a power of the step is Shamir and Zhang, Stochastic gradient descent for non-smooth
optimization, ICML 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from scdro.errors import NonFiniteLossError
from scdro.linear_model._linear_problem import LinearProblem, ObjectiveAt
from scdro.linear_model._preconditioner import LARGEST_DENSE
from scdro.linear_model._score_losses import (
    Huber,
    LinearLoss,
    Logistic,
    Multinomial,
    Pinball,
    Squared,
)
from scdro.linear_model._worst_case import Array
from scdro.optim import RSCDRO, factor_stages
from scdro.temperature import default_size

__all__ = ["Samples", "Stream", "StreamProgress"]

_BETA, _HORIZON = 0.2, 400  # weight of a new batch in the averages; steps of the first stage
_POWER = 3  # power of the number of rows that weights later iterates more
_WINDOW = 16_384  # least number of recent losses that determine lam


@dataclass(frozen=True)
class Samples:
    """Some rows of a stream: features, targets and weights, cut and joined together."""

    X: Any  # features, (n, d), dense or CSR
    y: Array  # targets encoded for the losses, (n,)
    weight: Array  # sample weights, (n,)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> Samples:
        return Samples(self.X[index], self.y[index], self.weight[index])

    def copy(self) -> Samples:
        """A copy that does not keep the caller's arrays alive."""
        return Samples(self.X.copy(), self.y.copy(), self.weight.copy())

    def join(self, more: Samples) -> Samples:
        """A copy with `more` appended."""
        if sp.issparse(self.X) or sp.issparse(more.X):
            X = sp.vstack([sp.csr_array(self.X), sp.csr_array(more.X)], "csr")
        else:
            X = np.concatenate([self.X, more.X])
        return Samples(
            X, np.concatenate([self.y, more.y]), np.concatenate([self.weight, more.weight])
        )


@dataclass
class StreamProgress:
    """The state of `partial_fit`: rows that wait, and the stream once it has begun."""

    settings: dict[str, Any]  # of the estimator when the stream began
    fitted: tuple[int, float] | None  # rows and total weight of the fit that it continues from
    waiting: Samples | None = None
    solved: int = 0  # number of waiting rows that the model is the solution for
    stream: Stream | None = None


class Stream:
    """One model under training: parameters in whitened features, and the optimizer with all of its
    state.
    """

    def __init__(self, problem: LinearProblem, W: Array, rows: int, lr: float | None) -> None:
        """Start a stream.

        Args:
            problem: that of the first rows, which determine coordinates and step size.
            W: the starting point, (k, d + 1).
            rows: the number of rows that W is the solution for, which it counts for in the average.
            lr: the step size; None chooses it from the curvature.
        """
        # 1. What the coordinates depend on: the worst case and the curvature at the start.
        X = problem.X
        if isinstance(problem.loss, Pinball):
            problem = replace(problem, loss=problem.loss.with_smoothing(0.3 * problem.loss.spread))
        sparse = sp.issparse(X)
        self.fit_intercept = problem.fit_intercept
        centred = self.fit_intercept and not sparse
        self.shift = X.mean(0, dtype=np.float64) if centred else np.zeros(X.shape[1])
        at = problem.evaluate(W, problem.scores(W))
        # The mean curvature of the losses, which the penalty is compared with.
        bend = max(
            float(at.worst.p @ problem.loss.second_derivative(at.loss, 0, 0)),
            1e-3 / problem.loss.unit,
        )
        # 2. Coordinates, w = T v, and the parameters in them: v is (k, d), b is (k,).
        self.map = _whitening(X, self.shift, at.worst.p, problem.alpha / bend)
        self.v = torch.zeros(len(W), X.shape[1], dtype=torch.float64, requires_grad=True)
        self.b = torch.zeros(len(W), dtype=torch.float64, requires_grad=True)
        white = replace(problem, X=self._features(X), alpha=0.0)
        # The penalty is part of the whitened moments, so its curvature is no larger than that of
        # the loss.
        self.lr = 0.2 / (_largest_curvature(white, at) + bend) if lr is None else lr
        self._begin_at(W)
        # 3. The averages, which are the result; the number of rows that they stand for; the total
        # weight of the rows so far, for the penalty.
        self.mean_v, self.mean_b = self.v.detach().clone(), self.b.detach().clone()
        self.steps, self.rows, self.weight = 0, rows, 0.0
        # Each stage is twice as long as the one before, as in the lemmas, so the step size falls
        # like 1/t.
        self.opt = RSCDRO(
            [self.v, self.b],
            factor_stages(self.lr, _BETA, _HORIZON, 24, beta_factor=0.7),
            problem.rho,
            lam0=problem.lam0,
            window=max(_WINDOW, default_size(problem.rho)),
        )
        with self._without_steps():  # initialise s, lam and the gradient from all the first rows
            self._move(problem.X, problem.loss, problem.q, problem.alpha)

    def _begin_at(self, W: Array) -> None:
        """Set v and b from coefficients of the original features."""
        coef = W[:, : len(self.shift)]
        v = coef / self.map if self.map.ndim == 1 else np.linalg.solve(self.map, coef.T).T
        with torch.no_grad():
            self.v.copy_(torch.from_numpy(v))
            if self.fit_intercept:
                self.b.copy_(torch.from_numpy(W[:, -1] + coef @ self.shift))

    def coefficients(self) -> Array:
        """W, (k, d + 1), for the original features: the average of the iterates."""
        v = self.mean_v.numpy()
        coef: Array = v * self.map if self.map.ndim == 1 else v @ self.map.T
        if not self.fit_intercept:
            return coef
        return np.concatenate([coef, (self.mean_b.numpy() - coef @ self.shift)[:, None]], 1)

    def step(self, x: Any, loss: LinearLoss, weight: Array | None, alpha: float) -> None:
        """Take one batch: a step of RSCDRO, and the average of the iterates.

        Args:
            x: features, (m, d).
            loss: that of the batch.
            weight: sample weights, (m,); None if they are equal.
            alpha: strength of the penalty, for all the weight so far.
        """
        self._move(x, loss, weight, alpha)
        count = x.shape[0]
        self.steps += 1
        self.rows += count
        # The objective is convex, and averaging reduces the noise.
        share = _POWER * count / (self.rows + (_POWER - 1) * count)
        self.mean_v.lerp_(self.v.detach(), share)
        self.mean_b.lerp_(self.b.detach(), share)

    def _move(self, x: Any, loss: LinearLoss, weight: Array | None, alpha: float) -> None:
        """A step of RSCDRO on one batch; `value` is then the robust value without the penalty."""
        features, back = torch.from_numpy(self._features(x)), torch.from_numpy(self.map)
        per_sample = _torch_loss(loss)

        def penalty() -> Tensor:
            w = self.v * back if back.ndim == 1 else self.v @ back.T
            return alpha / 2 * (w * w).sum()

        def closure() -> Tensor:
            return per_sample(features @ self.v.T + self.b) + penalty()

        self.b.requires_grad_(self.fit_intercept)
        offset = penalty().item()
        weights = None if weight is None else torch.from_numpy(weight)
        try:
            self.value = self.opt.step(closure, sample_weight=weights).item() - offset
        except NonFiniteLossError as error:
            raise NonFiniteLossError(
                "expected features and targets of a usual size, got losses that are not finite or"
                " far too large; scale them (sklearn.preprocessing.StandardScaler)"
            ) from error

    @contextmanager
    def _without_steps(self) -> Iterator[None]:
        """Set the step size to zero."""
        groups = self.opt.param_groups
        sizes = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = 0.0
        yield
        for group, size in zip(groups, sizes, strict=True):
            group["lr"] = size

    def _features(self, x: Any) -> Array:
        """The whitened features, (m, d), dense, in float64."""
        dense = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64) - self.shift
        features: Array = dense * self.map if self.map.ndim == 1 else dense @ self.map
        return features


def _whitening(X: Any, shift: Array, p: Array, ridge: float) -> Array:
    """T with T' (S + ridge I) T ~ I, where S are the second moments of X - shift under p.

    (d, d), or for many features the diagonal, (d,), from the diagonal of S.
    """
    d = X.shape[1]
    if sp.issparse(X) or d > LARGEST_DENSE:
        second = np.asarray(
            X.multiply(X).T @ p if sp.issparse(X) else p @ (X - shift) ** 2, dtype=np.float64
        )
        usual = float(second.mean()) or 1.0
        return 1 / np.sqrt(np.where(second > 1e-6 * usual, second, usual) + ridge)
    x = X.astype(np.float64) - shift
    scale = np.sqrt(p @ x**2)
    # Features that do not vary yet.
    scale = np.where(scale > 1e-10 * (1 + np.abs(shift)), scale, 1.0)
    x /= scale
    # Do not amplify directions in which the first rows hardly vary.
    S = (x.T * p) @ x + np.diag(0.03 + ridge / scale**2)
    inverse: Array = np.linalg.inv(np.linalg.cholesky(S)).T / scale[:, None]
    return inverse


def _largest_curvature(problem: LinearProblem, at: ObjectiveAt) -> float:
    """The largest eigenvalue of the Hessian, by power iteration."""
    V = np.random.default_rng(0).standard_normal(problem.shape)
    size = 1.0
    for _ in range(20):
        V = problem.hessian_product(at, V / np.sqrt((V * V).sum()))
        size = float(np.sqrt((V * V).sum()))
        if size == 0.0:
            return 1.0
    return size


def _torch_loss(loss: LinearLoss) -> Callable[[Tensor], Tensor]:
    """The per-sample losses of scores (n, k), for autograd."""
    y = torch.from_numpy(np.ascontiguousarray(loss.y))
    if isinstance(loss, Multinomial):
        return lambda z: F.cross_entropy(z, y, reduction="none")
    if isinstance(loss, Logistic):
        return lambda z: F.softplus(-y * z[:, 0])
    if isinstance(loss, Squared):
        return lambda z: (z[:, 0] - y) ** 2 / 2
    if isinstance(loss, Huber):
        return lambda z: F.huber_loss(z[:, 0], y, reduction="none", delta=loss.epsilon)
    assert isinstance(loss, Pinball)
    tau, scale = loss.tau, loss.scale
    return lambda z: scale * torch.maximum(tau * (y - z[:, 0]), (1 - tau) * (z[:, 0] - y))
