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

from scdro.distributed.sharded import full, is_sharded
from scdro.errors import HyperparameterError
from scdro.scalar import scalar_dtype
from scdro.sharding import Sharding, alone

__all__ = ["Ball", "Multipliers", "euclidean_kl_ball", "global_norm", "tempered"]

Floats = npt.NDArray[np.float64]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, in a dtype in which it does not overflow."""
    kinds = ([t for t in tensors if is_sharded(t)], [t for t in tensors if not is_sharded(t)])
    norm: Tensor = torch.linalg.vector_norm(torch.stack([full(_norm_of_like(kind)) for kind in kinds if kind]))
    return norm


def _norm_of_like(tensors: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(tensors, dtype=scalar_dtype(tensors[0].device))
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


def tempered(log_weights: Tensor, rho: float, parts: Sharding | None = None) -> Tensor:
    """log p of the distribution in {KL(p, 1/n) <= rho} that is nearest to q ~ exp(log_weights) in KL(p, q).

    It is q tempered, p ~ q^(1/(1+nu)), nu >= 0. So 1 + nu is the temperature of a worst case whose losses are log q,
    and no smaller than one. `parts`: where log_weights is one process's part of n.

    Example:
        >>> log_p = tempered(torch.log(torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)), rho=0.1)
        >>> log_p.exp()
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    parts = parts or alone(len(log_weights))
    if rho == 0.0:
        return torch.full_like(log_weights, -math.log(parts.n))
    nu_plus_one = parts.solve_lam(log_weights, rho, 1.0, start=1.0)
    return parts.log_softmax(log_weights / nu_plus_one)


class Multipliers(NamedTuple):
    """Of sum p = 1, and of KL(p) <= rho."""

    m: float
    nu: float


def euclidean_kl_ball(
    z: Tensor, rho: float, guess: Multipliers | None = None, parts: Sharding | None = None
) -> tuple[Tensor, Multipliers]:
    r"""The point of the simplex with KL(p, 1/n) <= rho that is nearest to z, and its multipliers.

    p_i + nu log p_i = z_i - m, so p_i = nu W(exp((z_i - m)/nu)/nu) with Lambert's W; m makes p sum to one, and nu >= 0
    makes KL(p) = rho unless the plain projection onto the simplex is inside.

    Args:
        z: any vector.
        rho: radius of the KL ball around 1/n.
        guess: of the multipliers, such as the last answer's: a few Newton steps then do.
        parts: where z is one process's part of n; so is the answer.

    Example:
        >>> p, _ = euclidean_kl_ball(torch.tensor([0.0, 0.0, 0.9], dtype=torch.float64), rho=0.1)
        >>> p
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    parts = parts or alone(len(z))
    n, top = parts.n, parts.top(float(z.max()))
    values = _Part(z.numpy() - top, parts)
    if rho == 0.0:
        return torch.full_like(z, 1.0 / n), Multipliers(0.0, math.inf)
    if guess is not None and not 1e-14 / n < guess.nu < math.inf:
        guess = None
    if guess is not None:
        at = _polished(values, rho, Multipliers(guess.m - top, guess.nu))
        if at is not None:
            return torch.from_numpy(at.p / at.total), Multipliers(at.m + top, at.nu)
    p = _onto_simplex(values)
    entropy = np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0.0)
    minus_entropy, squares = parts.sums(float(entropy.sum()), float(((p - 1.0 / n) ** 2).sum()))
    if minus_entropy + math.log(n) <= rho:
        return torch.from_numpy(p), Multipliers(0.0, 0.0)
    start = max(math.sqrt(squares / n), 1.0 / n) if guess is None else guess.nu
    at = _bracketed(values, rho, start)
    return torch.from_numpy(at.p / at.total), Multipliers(at.m + top, at.nu)


class _Part(NamedTuple):
    """Some entries of a vector; sums over it are sums over all of them."""

    z: Floats
    parts: Sharding

    @property
    def n(self) -> int:
        return self.parts.n


class _Point:
    """p_i = nu omega((z_i - m)/nu - log nu), where omega + log omega = x (Wright); max z is 0.

    With s_i = p_i/(nu + p_i): dp/dm = -s and dp/dnu = -s log p. a, b, c are the sums of s, s log p and s (log p)^2.
    """

    def __init__(self, of: _Part, m: float, nu: float) -> None:
        self.m, self.nu, self._of = m, nu, of
        x = (of.z - m) / nu - math.log(nu)
        omega = wrightomega(x)
        self._share = omega / (1.0 + omega)
        self.p = nu * omega
        with np.errstate(divide="ignore"):
            # x - omega cancels where omega is large, and log omega underflows where it is small.
            self.log_p = math.log(nu) + np.where(omega > 1.0, np.log(omega), x - omega)
        self.total, self.a = of.parts.sums(float(self.p.sum()), float(self._share.sum()))

    def second_sums(self) -> tuple[float, float, float]:
        """KL, b and c."""
        weighted = self._share * self.log_p
        sums = (float(self.p @ self.log_p), float(weighted.sum()), float(weighted @ self.log_p))
        kl, b, c = self._of.parts.sums(*sums)
        return kl + self.total * math.log(self._of.n), b, c


def _polished(z: _Part, rho: float, guess: Multipliers) -> _Point | None:
    """Newton on both equations at once, nu changing at most fivefold; None unless it converges."""
    at, log_n = _Point(z, *guess), math.log(z.n)
    for _ in range(15):
        kl, b, c = at.second_sums()
        excess, too_far = at.total - 1.0, kl - rho
        if abs(excess) <= 1e-13 and abs(too_far) <= 1e-13 * (1.0 + rho):
            return at
        # (excess, too_far) falls by [[a, b], [a (1 + log n) + b, b (1 + log n) + c]] (dm, dnu).
        determinant = at.a * c - b * b
        if not determinant > 0.0:
            return None
        rest = too_far - (1.0 + log_n) * excess
        nu = min(max(at.nu + (at.a * rest - b * excess) / determinant, 0.2 * at.nu), 5.0 * at.nu)
        m = at.m + (excess - b * (nu - at.nu)) / at.a
        at = _Point(z, min(max(m, -1.0), nu * log_n), nu)
    return None


def _bracketed(z: _Part, rho: float, nu: float) -> _Point:
    """Newton in log nu, kept inside a bisection bracket, with m solved for each nu."""
    low, high, theta, m = -math.inf, math.inf, math.log(nu), -1.0
    for _ in range(200):
        at = _summing_to_one(z, m, math.exp(theta))
        kl, b, c = at.second_sums()
        kl = max(kl, 1e-300)
        low, high = (theta, high) if kl > rho else (low, theta)
        # Newton on log KL, nearly a straight line in log nu; m follows nu.
        slope = at.nu * (c - b * b / at.a) / kl
        step = min(max(math.log(kl / rho) / max(slope, 1e-300), -3.0), 3.0)
        small = abs(step) <= 1e-14 * (1.0 + abs(theta))
        theta = theta + step if small or low < theta + step < high else 0.5 * (low + high)
        if small or high - low <= 1e-14 * (1.0 + abs(theta)):
            break
        m = at.m - b / at.a * (math.exp(theta) - at.nu)  # sum p stays one, to first order.
    return at


def _summing_to_one(z: _Part, m: float, nu: float) -> _Point:
    """The point of this nu with sum p = 1.

    The largest p is in [1/n, 1], so m = -p - nu log p there is bounded. sum p is convex in m: Newton from the left
    never passes the root. log sum p is steeper the larger m: nor does Newton on it from the right.
    """
    m = min(max(m, -1.0), nu * math.log(z.n) - 1.0 / z.n)
    for _ in range(200):
        at = _Point(z, m, nu)
        step = (at.total - 1.0) / at.a if at.total > 1.0 else math.log(at.total) * at.total / at.a
        if abs(at.total - 1.0) <= 1e-14 or abs(step) <= 1e-16 * abs(m):
            break
        m += step
    return at


def _onto_simplex(of: _Part) -> Floats:
    """The nearest point of the simplex: z less what makes the entries that stay positive sum to one (Michelot)."""
    z, excess, staying = of.z, -math.inf, of.n + 1
    while True:
        above = z > excess
        total, count = of.parts.sums(float(z[above].sum()), float(above.sum()))
        if count == staying:
            nearest: Floats = np.maximum(z - excess, 0.0)
            return nearest
        excess, staying = (total - 1.0) / count, int(count)
