r"""The stochastic algorithms on the objective of a linear model: one stream of batches, its state kept between calls.

Features are standardised by the first batch, which is what makes one step size serve them all; the penalty stays that of
the coefficients as given, by its proximal map after each step: v_j <- v_j / (1 + lr alpha/scale_j^2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from scdro.linear_model._losses import Huber, Logistic, Loss, Multinomial, Pinball, Squared
from scdro.linear_model._worst import Array
from scdro.optim import ASCDRO, RASCDRO, RSCDRO, SCDRO, factor_stages
from scdro.optim.base import RobustOptimizer

__all__ = ["ALGORITHMS", "Stream", "batches"]

ALGORITHMS = ("scdro", "ascdro", "rscdro", "rascdro")
_BETA, _HORIZON = 0.2, 400  # share of a new batch in the averages; steps after which the step size begins to fall


class Stream:
    """One model under training: parameters in standardised features, and the optimizer with all of its state."""

    def __init__(self, algorithm: str, x: Array, loss: Loss, rho: float, lam0: float, lr: float | None) -> None:
        sparse = sp.issparse(x)
        x = x.toarray() if sparse else x
        self.shift = np.zeros(x.shape[1]) if sparse else x.mean(0, dtype=np.float64)
        # Features that do not vary yet, but for rounding, are left as they are.
        scale = np.sqrt(np.mean((x - self.shift) ** 2, 0, dtype=np.float64))
        self.scale = np.where(scale > 1e-10 * (1 + np.abs(self.shift)), scale, 1.0)
        self.v = torch.zeros(loss.k, x.shape[1], dtype=torch.float64, requires_grad=True)
        self.b = torch.zeros(loss.k, dtype=torch.float64, requires_grad=True)
        self.lr = _step_size(self._standardised(x), loss, rho) if lr is None else lr
        self.steps, self.weight, self.value = 0, 0.0, float("nan")
        self.restarted = algorithm.startswith("r")
        self.opt = _optimizer(algorithm, [self.v, self.b], self.lr, rho, lam0)

    def set_intercept(self, intercept: Array) -> None:
        with torch.no_grad():
            self.b.copy_(torch.from_numpy(intercept))

    def set_coefficients(self, W: Array, fit_intercept: bool) -> None:
        """Go on from coefficients of features as given."""
        d = len(self.scale)
        v = W[:, :d] * self.scale
        b = W[:, d] + W[:, :d] @ self.shift if fit_intercept else np.zeros(len(W))
        with torch.no_grad():
            self.v.copy_(torch.from_numpy(v))
            self.b.copy_(torch.from_numpy(b))

    def coefficients(self, fit_intercept: bool) -> Array:
        """W, (k, d + 1), for features as given."""
        coef = self.v.detach().numpy() / self.scale
        if not fit_intercept:
            return coef
        return np.concatenate([coef, (self.b.detach().numpy() - coef @ self.shift)[:, None]], 1)

    def step(self, x: Array, loss: Loss, weight: Array | None, alpha: float, fit_intercept: bool) -> None:
        """One batch. Without an intercept nothing may be centred: z = coef x."""
        features = torch.from_numpy(self._standardised(x.toarray() if sp.issparse(x) else x))
        per_sample = _torch_loss(loss)
        offset = torch.from_numpy(self.shift / self.scale)

        def closure() -> Tensor:
            z = features @ self.v.T + (self.b if fit_intercept else self.v @ offset)
            return per_sample(z)

        if not self.restarted:
            for group in self.opt.param_groups:
                group["lr"] = self.lr / (1 + self.steps / _HORIZON) ** 0.5
        lr = self.opt.param_groups[0]["lr"]
        self.value = float(self.opt.step(closure, sample_weight=None if weight is None else torch.from_numpy(weight)))
        self.steps += 1
        with torch.no_grad():
            self.v /= 1 + torch.from_numpy(lr * alpha / self.scale**2)

    def _standardised(self, x: Array) -> Array:
        standardised: Array = (np.asarray(x, dtype=np.float64) - self.shift) / self.scale
        return standardised


def batches(n: int, size: int, order: Array | None = None) -> Iterator[Any]:
    """Positions of the samples of each batch: in the order of the data, or as given. The last two share a remainder."""
    count = max(n // size, 1)
    for part in np.array_split(np.arange(n) if order is None else order, count):
        yield slice(part[0], part[-1] + 1) if order is None else part


def _optimizer(algorithm: str, params: list[Tensor], lr: float, rho: float, lam0: float) -> RobustOptimizer:
    if algorithm == "scdro":
        return SCDRO(params, lr, rho, beta=_BETA, lam0=lam0)
    if algorithm == "ascdro":
        return ASCDRO(params, lr, rho, beta=_BETA, lam0=lam0)
    # Each stage twice as long, at the averages of the lemmas' shape: steps fall like 1/t.
    if algorithm == "rscdro":
        return RSCDRO(params, factor_stages(lr, _BETA, _HORIZON, 24, beta_factor=0.7), rho, lam0=lam0)
    return RASCDRO(params, factor_stages(lr, _BETA, _HORIZON, 24, lr_factor=0.7, beta_factor=0.7), rho, lam0=lam0)


def _step_size(x: Array, loss: Loss, rho: float) -> float:
    """1/L of a batch: the largest eigenvalue of its second moments, times the loss's curvature."""
    features = np.concatenate([x, np.ones((len(x), 1))], 1)
    largest = float(np.linalg.norm(features, 2)) ** 2 / len(x)
    return 1.0 / (_curvature(loss) * largest * (1 + rho) ** 0.5)


def _curvature(loss: Loss) -> float:
    """A bound of phi''; with a kink, that of the loss smoothed over a tenth of the spread of y."""
    if isinstance(loss, Pinball):
        return 10.0 * loss.scale / loss.spread
    return {Logistic: 0.25, Multinomial: 0.5}.get(type(loss), 1.0)


def _torch_loss(loss: Loss) -> Callable[[Tensor], Tensor]:
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
