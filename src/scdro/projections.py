"""Projections: of the model onto a ball, and of distributions onto the KL ball around the uniform one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import wrightomega
from torch import Tensor

from scdro.errors import HyperparameterError
from scdro.scalar import scalar_dtype
from scdro.tilt import solve_lam

__all__ = ["Ball", "euclidean_kl_ball", "global_norm", "tempered"]

Floats = npt.NDArray[np.float64]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, in a dtype in which it does not overflow."""
    dtype = scalar_dtype(tensors[0].device)
    norms = torch._foreach_norm(tensors, dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


class Ball:
    """The Euclidean ball of radius R around zero, over all parameters together (the paper's W)."""

    def __init__(self, radius: float) -> None:
        if not 0.0 < radius < math.inf:
            raise HyperparameterError(f"expected a radius R > 0 for the ball of the model, got {radius}")
        self.radius = radius

    @torch.no_grad()
    def project_(self, params: Sequence[Tensor]) -> None:
        """Scale the parameters into the ball, in place, without asking the device whether they were outside."""
        if not params:
            return
        scale = (self.radius / global_norm(list(params))).clamp_max(1.0)
        for p in params:
            p.mul_(scale.to(p.device, p.dtype))


def tempered(log_weights: Tensor, rho: float) -> Tensor:
    """log p of the distribution in {KL(p, 1/n) <= rho} that is nearest to q ~ exp(log_weights) in KL(p, q).

    It is q tempered, p ~ q^(1/(1+nu)), nu >= 0. So 1 + nu is the temperature of a worst case whose losses are log q,
    and no smaller than one.

    Example:
        >>> log_p = tempered(torch.log(torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)), rho=0.1)
        >>> log_p.exp()
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    if rho == 0.0:
        return torch.full_like(log_weights, -math.log(len(log_weights)))
    nu_plus_one = solve_lam(log_weights, torch.zeros_like(log_weights), rho, 1.0, start=1.0)
    return torch.log_softmax(log_weights / nu_plus_one, 0)


class _Spread(NamedTuple):
    """p at (m, nu), and sums over it with weights p/(nu + p): of 1, log p and (log p)^2."""

    p: Floats
    log_p: Floats
    a: float
    b: float
    c: float

    @property
    def kl(self) -> float:
        return float(self.p @ self.log_p) + math.log(len(self.p))


def euclidean_kl_ball(z: Tensor, rho: float, *, nu: float | None = None) -> tuple[Tensor, float]:
    r"""The point of the simplex with KL(p, 1/n) <= rho that is nearest to z, and the multiplier nu of that bound.

    p_i + nu log p_i = z_i - m, so p_i = nu W(exp((z_i - m)/nu)/nu) with Lambert's W; m makes p sum to one, and nu >= 0
    makes KL(p) = rho unless the plain projection onto the simplex is inside.

    Args:
        z: any vector.
        rho: radius of the KL ball around 1/n.
        nu: a guess of the multiplier, such as the last answer.

    Example:
        >>> p, nu = euclidean_kl_ball(torch.tensor([0.0, 0.0, 0.9], dtype=torch.float64), rho=0.1)
        >>> p
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    values: Floats = z.numpy()
    n = len(values)
    if rho == 0.0:
        return torch.full_like(z, 1.0 / n), math.inf
    p = _onto_simplex(values)
    if float(np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0.0).sum()) + math.log(n) <= rho:
        return torch.from_numpy(p), 0.0
    values = values - values.max()
    low, high = -math.inf, math.inf  # of log nu
    theta = math.log(nu) if nu is not None and 0.0 < nu < math.inf else math.log(max(float(p.std()), 1.0 / n))
    m = -1.0
    for _ in range(200):
        at, m = _summing_to_one(values, math.exp(theta), m)
        kl = max(at.kl, 1e-300)
        low, high = (theta, high) if kl > rho else (low, theta)
        # Newton on log KL, nearly a straight line in log nu; m follows nu.
        slope = math.exp(theta) * (at.c - at.b * at.b / at.a) / kl
        step = min(max(math.log(kl / rho) / max(slope, 1e-300), -3.0), 3.0)
        small = abs(step) <= 1e-14 * (1.0 + abs(theta))
        inside = low < theta + step < high
        previous, theta = theta, theta + step if inside or small else 0.5 * (low + high)
        if small or high - low <= 1e-14 * (1.0 + abs(theta)):
            break
        m -= at.b / at.a * (math.exp(theta) - math.exp(previous))  # Stay at sum p = 1, to first order.
    return torch.from_numpy(at.p / at.p.sum()), math.exp(theta)


def _summing_to_one(z: Floats, nu: float, m: float) -> tuple[_Spread, float]:
    """p_i = nu omega((z_i - m)/nu - log nu), where omega + log omega = x (Wright), with the m that makes it sum to one.

    max z is 0, and the largest p in [1/n, 1], so m = -p - nu log p there is bounded. sum p is convex in m: Newton from
    the left never passes the root. log sum p is steeper the larger m: nor does Newton on it from the right.
    """
    log_n, log_nu = math.log(len(z)), math.log(nu)
    m = min(max(m, -1.0), nu * log_n - 1.0 / len(z))
    for _ in range(200):
        x = (z - m) / nu - log_nu
        omega = wrightomega(x)
        share = omega / (1.0 + omega)
        total, a = nu * float(omega.sum()), float(share.sum())
        step = (total - 1.0) / a if total > 1.0 else math.log(total) * total / a
        if abs(total - 1.0) <= 1e-14 or abs(step) <= 1e-16 * abs(m):
            break
        m += step
    p, log_p = nu * omega, x - omega + log_nu
    return _Spread(p, log_p, a, float(share @ log_p), float(share @ (log_p * log_p))), m


def _onto_simplex(z: Floats) -> Floats:
    """The nearest point of the simplex, by sorting."""
    falling = np.sort(z)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(z) + 1)
    last = np.nonzero(falling > excess)[0][-1]
    nearest: Floats = np.maximum(z - excess[last], 0.0)
    return nearest
