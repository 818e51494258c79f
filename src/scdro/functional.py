r"""The mathematics, stateless: the worst case of a vector of losses, the objective F, and what rho means.

    max_{p: KL(p, q) <= rho}  sum_i p_i l_i - lam0 KL(p, q)
        =  min_{lam >= lam0}  F(lam) = lam log sum_i q_i exp(l_i / lam) + (lam - lam0) rho        (paper, eq. 2)

q is uniform (1/n) unless `sample_weight` says otherwise. The worst cases of the other divergences, and what else
users try on unequal data, are here by name as well.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple, overload

import numpy.typing as npt
import torch
from torch import Tensor

from scdro._kl import solve_lam, trimmed_log_weights, value_at
from scdro.balancing import class_balanced_weights, focal_loss
from scdro.best_response import BestResponse, chi2_constrained, chi2_penalized, cvar
from scdro.errors import HyperparameterError
from scdro.groups import group_means
from scdro.reading import check_number, check_radius, check_trim, read_losses

__all__ = [
    "BestResponse",
    "WorstCase",
    "chi2_constrained",
    "chi2_penalized",
    "class_balanced_weights",
    "cvar",
    "focal_loss",
    "group_means",
    "objective",
    "rho_for_confidence",
    "rho_for_group",
    "worst_case",
]


class WorstCase(NamedTuple):
    """The worst distribution within the KL ball, and what it costs.

    `value` is differentiable in the losses (its gradient is `weights`); the other fields are constants.

    Example:
        >>> wc = worst_case([0.1, 0.2, 0.1, 3.0], rho=0.5)
        >>> int(wc.weights.argmax()), round(wc.kl, 6), round(float(wc.ess), 1)
        (3, 0.5, 1.8)
    """

    value: Any
    lam: Any
    weights: Any
    kl: Any

    @property
    def ess(self) -> Any:
        """Effective sample size of the weights, 1 / sum p_i^2: how many samples the worst case looks at."""
        return 1.0 / (self.weights**2).sum()


@overload
def worst_case(
    losses: Tensor, rho: float, lam0: float = ..., *, sample_weight: Tensor | None = ..., trim: float = ...
) -> WorstCase: ...
@overload
def worst_case(
    losses: npt.ArrayLike,
    rho: float,
    lam0: float = ...,
    *,
    sample_weight: npt.ArrayLike | None = ...,
    trim: float = ...,
) -> WorstCase: ...
def worst_case(
    losses: Any, rho: float, lam0: float = 1e-3, *, sample_weight: Any = None, trim: float = 0.0
) -> WorstCase:
    r"""The worst average of `losses` over all reweightings within KL distance `rho`, exactly.

    max_{KL(p, q) <= rho}  sum p_i l_i - lam0 KL(p, q),  attained at  p_i ~ q_i exp(l_i / lam).

    Args:
        losses: per-sample losses, a vector: torch or NumPy; the answer is of the same kind.
        rho: radius of the KL ball, >= 0. 0 is the plain average (lam = inf).
        lam0: strength of the KL regulariser, > 0; also the smallest lam.
        sample_weight: base probabilities q in place of 1/n, up to a factor; zeros leave samples out.
        trim: leave out the hardest `trim` (in [0, 1)) of the samples first, for data with wrong labels.

    Returns:
        WorstCase(value, lam, weights, kl). With torch, `value` can be differentiated.

    Example:
        >>> wc = worst_case([0.0, 1.0, 2.0, 3.0], rho=0.1)
        >>> round(float(wc.value), 6), round(float(wc.lam), 6)
        (1.994174, 2.413506)
        >>> wc.weights.round(3)
        array([0.121, 0.183, 0.277, 0.419])
    """
    check_radius(rho, lam0)
    check_trim(trim)
    vector, double, log_q, as_array = read_losses(losses, sample_weight)
    if trim:
        log_q = trimmed_log_weights(double, log_q, trim)
    lam = solve_lam(double, log_q, rho, lam0, wait=True)
    value, weights, kl = value_at(vector, double, log_q, lam, lam0)
    if as_array:
        return WorstCase(float(value), float(lam), weights.numpy(), float(kl))
    lam, kl = (torch.as_tensor(x, dtype=vector.dtype, device=vector.device) for x in (lam, kl))
    return WorstCase(value.to(vector.dtype), lam, weights.to(vector.dtype), kl)


def objective(losses: Any, lam: Tensor | float, rho: float, lam0: float = 1e-3, *, sample_weight: Any = None) -> Any:
    r"""F = lam log sum_i q_i exp(l_i/lam) + (lam - lam0) rho, differentiable in the losses and in `lam`.

    Args:
        losses: per-sample losses, torch or NumPy.
        lam: temperature > 0, a number or a 0-d tensor.
        rho, lam0, sample_weight: as in `worst_case`.

    Example:
        >>> losses = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
        >>> lam = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        >>> objective(losses, lam, rho=0.1).backward()
        >>> round(float(lam.grad), 9)
        -0.338757397
    """
    check_radius(rho, lam0)
    vector, detached, log_q, as_array = read_losses(losses, sample_weight)
    dtype = detached.dtype
    temperature = torch.as_tensor(lam, dtype=dtype, device=vector.device)
    if not bool(temperature > 0):
        raise HyperparameterError(f"expected a temperature lam > 0, got {float(temperature.detach())}")
    double = vector.to(dtype)
    if math.isinf(float(temperature.detach())):
        value = torch.dot(torch.exp(log_q), double) + (0.0 if rho == 0 else math.inf)
    else:
        top = torch.where(log_q > -math.inf, detached, -math.inf).amax()
        spread = temperature * torch.logsumexp((double - top) / temperature + log_q, 0)
        value = spread + top + (temperature - lam0) * rho
    return float(value.detach()) if as_array else value.to(vector.dtype)


def rho_for_group(alpha: float) -> float:
    """The radius that guards every group at least a fraction `alpha` of the data: rho = log(1/alpha).

    A group of that size has KL distance log(1/alpha) from the whole, whether or not anybody labelled it.

    Example:
        >>> round(rho_for_group(0.1), 4)
        2.3026
    """
    check_number("a group's share", alpha)
    if not 0.0 < alpha <= 1.0:
        hint = f"; {alpha:g}% is {alpha / 100:g}" if 1.0 < alpha <= 100.0 else ""
        raise HyperparameterError(f"expected a group's share of the data in (0, 1], got {alpha}{hint}")
    return math.log(1.0 / alpha)


def rho_for_confidence(n: int, level: float = 0.95) -> float:
    """The radius that makes the robust value a one-sided upper confidence bound of the mean loss, z^2/(2n).

    Asymptotic, and for one fixed model: z = Phi^-1(level).

    Example:
        >>> round(rho_for_confidence(1000, 0.95), 7)
        0.0013528
    """
    if n < 1:
        raise HyperparameterError(f"expected at least one sample, got n = {n}")
    if not 0.5 <= level < 1.0:
        raise HyperparameterError(f"expected a confidence level in [0.5, 1), got {level}")
    return NormalDist().inv_cdf(level) ** 2 / (2 * n)
