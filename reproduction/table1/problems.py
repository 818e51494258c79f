r"""Small smooth problems for the theorems of table 1, where every quantity over all samples is exact.

A linear model in float64 with residuals r = x.w - y on features of one length, labels of which some
follow other coefficients, and x = (w, lam) in {|w| <= R} x [lam0, lam_max], as the paper assumes:

    bounded   l = r^2/(1 + r^2): non-convex
    curved    l = sqrt(1 + r^2) - 1: convex, and F strongly convex around its minimum
    flat      the same + softplus(-2 w_0): convex, and along w_0 F only ever approaches its infimum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from scdro.errors import ScdroError
from scdro.functional import objective, worst_case

__all__ = ["PROBLEMS", "Optimum", "Problem", "dist_squared"]

SAMPLES, FEATURES, LENGTH, ODD, NOISE = 300, 5, 2.0, 0.15, 0.8
STEEPNESS = 2.0  # of the tail
NO_LAM0 = 1e-9  # of a worst case without a regulariser: nothing, and still enough to divide by
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Optimum:
    """A minimiser of F + mu |x|^2/2, and F there."""

    w: Tensor
    lam: float
    value: float


@dataclass(frozen=True, eq=False)
class Problem:
    """The per-sample losses of w, and exact properties of F(w, lam) over all samples."""

    name: str
    x: Tensor
    y: Tensor
    loss: Callable[[Tensor], Tensor]
    largest: Callable[[float], float]  # loss of the largest |residual|
    convex: bool
    tail: bool = False
    rho: float = 0.1
    lam0: float = 0.5
    first_lam: float = 1.0
    radius: float = 5.0

    @property
    def n(self) -> int:
        return len(self.x)

    def start(self) -> Tensor:
        """w_1: nothing, and the tail one unit along."""
        w = torch.zeros(FEATURES + self.tail, dtype=torch.float64)
        if self.tail:
            w[-1] = 1.0
        return w

    def losses(self, w: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        losses = self.loss(self.x[index] @ (w[:FEATURES] if self.tail else w) - self.y[index])
        return losses + softplus(-STEEPNESS * w[-1]) if self.tail else losses

    @property
    def loss_bound(self) -> float:
        """C, above every loss for |w| <= R."""
        rest = math.log1p(math.exp(STEEPNESS * self.radius)) if self.tail else 0.0
        return self.largest(LENGTH * self.radius + float(self.y.abs().max())) + rest

    @property
    def lam_max(self) -> float:
        return self.lam0 + self.loss_bound / self.rho

    def value(self, w: Tensor, lam: float) -> float:
        """F(w, lam)."""
        return float(objective(self.losses(w.detach()), lam, self.rho, self.lam0))

    def robust_value(self, w: Tensor) -> float:
        """min over lam >= lam0 of F(w, lam), which is the worst case at w."""
        return float(worst_case(self.losses(w.detach()), self.rho, self.lam0).value)

    def gradient(self, w: Tensor, lam: float) -> tuple[Tensor, float]:
        """grad_w F = sum p_i grad l_i and dF/dlam = rho - KL(p), p ~ exp(l/lam)."""
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.losses(w)
        log_p = torch.log_softmax(losses.detach() / lam, 0)
        p = torch.exp(log_p)
        (of_w,) = torch.autograd.grad(losses, w, p)
        return of_w, self.rho - float(torch.dot(p, log_p + math.log(self.n)))

    def stationarity(self, w: Tensor, lam: float, mu: float = 0.0) -> float:
        """dist(0, subgradient of F + mu |x|^2/2 + indicator of X)^2 at (w, lam)."""
        w = w.detach()
        of_w, of_lam = self.gradient(w, lam)
        of_w, of_lam = of_w + mu * w, of_lam + mu * lam
        if lam <= self.lam0:
            of_lam = min(of_lam, 0.0)
        elif lam >= self.lam_max:
            of_lam = max(of_lam, 0.0)
        return dist_squared(of_w, w, self.radius) + of_lam**2

    def robust_stationarity(self, w: Tensor) -> float:
        """dist(0, subgradient)^2 of the worst case as a function of w alone, for methods that keep no lam."""
        lam = float(worst_case(self.losses(w.detach()), self.rho, NO_LAM0).lam)
        return dist_squared(self.gradient(w, lam)[0], w.detach(), self.radius)

    @cache  # noqa: B019  (a handful of problems, made once)
    def optimum(self, mu: float = 0.0) -> Optimum:
        """The minimiser of F + mu |x|^2/2 over X, for the convex problems, certified by its stationarity."""
        start = self.start()
        found = minimize(
            self._regularised,
            np.append(start.numpy(), self.first_lam),
            args=(mu,),
            jac=True,
            method="SLSQP",
            bounds=[(None, None)] * len(start) + [(self.lam0, self.lam_max)],
            constraints={"type": "ineq", "fun": self._inside},
            options={"maxiter": 1000, "ftol": 1e-16},
        )
        w, lam = torch.from_numpy(found.x[:-1].copy()), float(found.x[-1])
        if w.norm() > self.radius * (1 - 1e-6):
            w *= self.radius / w.norm()
        rest = self.stationarity(w, lam, mu)
        if rest > 1e-8:
            raise ScdroError(
                f"expected a stationary point of {self.name} at mu = {mu}, got a residual of"
                f" {rest:.1e}"
            )
        return Optimum(w, lam, self.value(w, lam))

    def _regularised(self, point: Floats, mu: float) -> tuple[float, Floats]:
        """F + mu |x|^2/2 and its gradient."""
        w, lam = torch.from_numpy(point[:-1]), float(point[-1])
        of_w, of_lam = self.gradient(w, lam)
        return (
            self.value(w, lam) + 0.5 * mu * float(point @ point),
            np.append(of_w.numpy(), of_lam) + mu * point,
        )

    def _inside(self, point: Floats) -> float:
        return float(self.radius**2 - point[:-1] @ point[:-1])


def dist_squared(gradient: Tensor, w: Tensor, radius: float) -> float:
    """dist(0, gradient + normal cone of the ball |w| <= radius)^2."""
    outward = float(torch.dot(gradient, w))
    square = float(torch.dot(gradient, gradient))
    norm = float(torch.linalg.vector_norm(w))
    if norm < radius * (1 - 1e-12) or outward >= 0.0:
        return square
    return max(square - (outward / norm) ** 2, 0.0)


def _made(
    name: str, loss: Callable[[Tensor], Tensor], largest: Callable[[float], float], **settings: bool
) -> Problem:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(SAMPLES, FEATURES)
    x = LENGTH * x / x.norm(dim=1, keepdim=True)
    directions = normal(2, FEATURES)
    directions = directions / directions.norm(dim=1, keepdim=True)
    odd = torch.rand(SAMPLES, generator=generator) < ODD
    y = (x * directions[odd.long()]).sum(1) + NOISE * normal(SAMPLES).clamp(-2.5, 2.5)
    return Problem(name, x, y, loss, largest, **settings)


def _saturating(r: Tensor) -> Tensor:
    return r**2 / (1 + r**2)


def _pseudo_huber(r: Tensor) -> Tensor:
    return torch.sqrt(1 + r**2) - 1


def _size(r: float) -> float:
    return math.hypot(1.0, r) - 1.0


PROBLEMS: Mapping[str, Problem] = {
    problem.name: problem
    for problem in (
        _made("bounded", _saturating, lambda r: 1.0, convex=False),
        _made("curved", _pseudo_huber, _size, convex=True),
        _made("flat", _pseudo_huber, _size, convex=True, tail=True),
    )
}
