"""Convex problems with known optima: imbalanced classes, and a regression with heavy tails and a hidden group.

The first is the ten-class problem on which the default temperature was chosen; the others were not
used for that. Nothing here imports scdro, so that values and optima are independent of the code
under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.optimize import brentq, minimize
from torch import Tensor

LAM0, L2 = 1e-3, 1e-3  # scale * L2/2 |w|^2 is part of the objective
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A linear model with `outputs` columns and per-sample losses; `lr` is a sensible step size for it."""

    name: str
    x: Tensor
    y: Tensor
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    lr: float

    def losses(self, w: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        return self.loss(self.x[index] @ w, self.y[index])


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def _half_square(output: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (output.squeeze(1) - y) ** 2


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def blobs(
    name: str, major: int, minor: int, classes: int, seed: int, d: int = 32, sep: float = 2.0
) -> Problem:
    """Gaussian classes, the first half rare."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.randn(classes, d, generator=g, dtype=torch.float64) * 2 * sep / math.sqrt(d)
    counts = [minor] * (classes // 2) + [major] * (classes - classes // 2)
    x = torch.cat(
        [mu[c] + torch.randn(m, d, generator=g, dtype=torch.float64) for c, m in enumerate(counts)]
    )
    y = torch.cat([torch.full((m,), c) for c, m in enumerate(counts)])
    return Problem(name, _with_ones(x), y, classes, _cross_entropy, 0.05)


def heavy_regression(n: int = 4000, d: int = 10, hidden: float = 0.1, seed: int = 3) -> Problem:
    """Student-t noise (3 degrees of freedom); a tenth of the rows follows other coefficients."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((n, d)), rng.standard_normal(d)
    slopes = np.where(rng.random(n)[:, None] < hidden, w + rng.standard_normal(d), w)
    y = (x * slopes).sum(1) + 0.3 * rng.standard_t(3, n)
    y = (y - y.mean()) / y.std()  # The mean loss at w = 0 is one half, whatever the units.
    return Problem(
        "regression", _with_ones(torch.from_numpy(x)), torch.from_numpy(y), 1, _half_square, 0.02
    )


def problems() -> dict[str, Problem]:
    made = [
        blobs("ten-class", 1000, 20, 10, 1),
        blobs("eight-class", 900, 18, 8, 2),
        heavy_regression(),
    ]
    return {p.name: p for p in made}


def worst_case(losses: Floats, rho: float, lam0: float = LAM0) -> tuple[float, Floats]:
    """max_p p.l - lam0 KL(p) over KL(p) <= rho, and p, by one-dimensional root finding."""
    n, top = len(losses), losses.max()

    def weights(lam: float) -> tuple[Floats, float]:
        a = (losses - top) / lam
        e = np.exp(a)
        return e / e.sum(), float(e @ a / e.sum() - math.log(e.sum()) + math.log(n))

    lam = lam0
    if weights(lam0)[1] > rho:
        high = math.log(lam0 + (top - losses.mean()) / rho) + 1e-9
        lam = math.exp(
            brentq(lambda t: weights(math.exp(t))[1] - rho, math.log(lam0), high, xtol=1e-14)
        )
    p, kl = weights(lam)
    return float(p @ losses - lam0 * kl), p


def robust_value(problem: Problem, w: Tensor, rho: float, scale: float) -> float:
    losses = scale * problem.losses(w.detach()).numpy()
    if not np.isfinite(losses).all():
        return math.inf
    return worst_case(losses, rho)[0] + 0.5 * scale * L2 * float((w.detach() ** 2).sum())


def optimum(problem: Problem, rho: float, scale: float) -> float:
    """The minimum of the robust value, by L-BFGS over w, with the gradient from the envelope theorem."""
    shape = (problem.x.shape[1], problem.outputs)

    def value_and_grad(flat: Floats) -> tuple[float, Floats]:
        w = torch.tensor(flat.reshape(shape), requires_grad=True)
        losses = scale * problem.losses(w)
        value, p = worst_case(losses.detach().numpy(), rho)
        (losses @ torch.from_numpy(p) + 0.5 * scale * L2 * (w**2).sum()).backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        total = value + 0.5 * scale * L2 * float((flat**2).sum())
        return total / scale, (w.grad / scale).numpy().ravel()

    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-14, "gtol": 1e-8, "maxcor": 30}
    found = minimize(
        value_and_grad, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options=options
    )
    return scale * float(found.fun)
