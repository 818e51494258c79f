r"""Worst cases of a vector of losses in other geometries than KL: exact, by sorting.

    max_p  sum_i p_i l_i   over   p_i <= q_i/alpha             (cvar)
                                  D(p) <= rho                  (chi2_constrained)
    max_p  sum_i p_i l_i - reg D(p)                            (chi2_penalized)

with D(p) = sum_i q_i (p_i/q_i - 1)^2 / 2, and q uniform unless `sample_weight` says otherwise. Values are
differentiable in the losses; by the envelope theorem the gradient is p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdro.errors import HyperparameterError
from scdro.reading import check_number, read_losses

__all__ = ["BestResponse", "chi2_constrained", "chi2_penalized", "cvar"]


class BestResponse(NamedTuple):
    """The value of a worst case, its weights p, and eta: the loss from which on samples have weight.

    Example:
        >>> found = cvar([0.0, 1.0, 2.0, 3.0], alpha=0.5)
        >>> float(found.value), found.weights.tolist(), found.eta
        (2.5, [0.0, 0.0, 0.5, 0.5], 2.0)
    """

    value: Any
    weights: Any
    eta: Any


def cvar(losses: Any, alpha: float, *, sample_weight: Any = None) -> BestResponse:
    """The mean of the hardest fraction `alpha` of the samples: conditional value at risk.

    p = q/alpha on the hardest samples until it sums to one; the sample on the edge counts in part.

    Example:
        >>> float(cvar([1.0, 2.0, 3.0, 4.0], alpha=0.5).value)
        3.5
    """
    if not 0.0 < alpha <= 1.0:
        raise HyperparameterError(f"expected a fraction alpha in (0, 1] of the samples, got {alpha}")

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        room = (1.0 - (q.cumsum(0) - q) / alpha).clamp_min(0.0)
        p = torch.minimum(q / alpha, room)
        return p, l[(p > 0).sum() - 1]

    return _answer(losses, sample_weight, hardest_first, lambda p, q: torch.zeros_like(p[0]))


def chi2_penalized(losses: Any, reg: float, *, sample_weight: Any = None) -> BestResponse:
    """max_p sum p l - reg D(p): p_i = q_i (l_i - eta)_+ / reg, with eta such that p sums to one.

    Example:
        >>> chi2_penalized([1.0, 2.0, 3.0, 4.0], reg=2.0).weights.round(4)
        array([0.0625, 0.1875, 0.3125, 0.4375])
    """
    if not 0.0 < reg < math.inf:
        raise HyperparameterError(f"expected a penalty reg > 0, got {reg}")

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        # With the k hardest in play, sum_{i <= k} q_i (l_i - eta) = reg; the right k is the last with l_k > eta_k.
        eta = ((q * l).cumsum(0) - reg) / q.cumsum(0)
        edge = eta[_last(l > eta)]
        p = q * (l - edge).clamp_min(0.0)
        return p / p.sum(), edge

    return _answer(losses, sample_weight, hardest_first, lambda p, q: reg * _chi2(p, q))


def chi2_constrained(losses: Any, rho: float, *, sample_weight: Any = None) -> BestResponse:
    """max_p sum p l over D(p) <= rho: p_i ~ q_i (l_i - eta)_+, with eta such that D(p) = rho.

    Example:
        >>> float(chi2_constrained([1.0, 2.0, 3.0, 4.0], rho=0.1).value.round(4))
        3.0
    """
    check_number("rho", rho)
    if not 0.0 <= rho < math.inf:
        raise HyperparameterError(f"expected a radius rho >= 0, got {rho}")

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        if rho == 0.0 or bool(l[0] == l[-1]):
            return q, torch.full_like(l[0], -math.inf)
        return _on_the_sphere(l, q, rho)

    return _answer(losses, sample_weight, hardest_first, lambda p, q: torch.zeros_like(p[0]))


def _on_the_sphere(l: Tensor, q: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """p ~ q (l - eta)_+ with sum p^2/q = 1 + 2 rho, l falling and the largest zero.

    sum q (l-eta)_+^2 / (sum q (l-eta)_+)^2 rises with eta, from 1 to 1/q(hardest). Between two losses the k hardest are
    in play, and it is a quadratic equation in eta.
    """
    mass, first, second = q.cumsum(0), (q * l).cumsum(0), (q * l * l).cumsum(0)
    target, ties = 1.0 + 2.0 * rho, q[l == l[0]].sum()
    if bool(target >= 1.0 / ties):
        return torch.where(l == l[0], q, 0.0) / ties, l[0]
    # The ratio where eta is the next smaller loss, for each k: the right k is the first where it is below the target.
    below = torch.cat([l[1:], l[-1:]])
    linear = first - below * mass
    ratio = (second - 2 * below * first + below * below * mass) / (linear * linear).clamp_min(1e-300)
    enough = (ratio <= target) & (linear > 0)
    enough[-1] = True
    k = int(enough.to(torch.uint8).argmax())
    m, a, b = mass[k], first[k], second[k]
    # b - 2 eta a + eta^2 m = target (a - eta m)^2, centred at the mean: variance about it over (eta - mean)^2.
    mean = a / m
    spread = (b / m - mean * mean).clamp_min(0.0)
    left_out = q[k + 1 :].sum()  # 1 - m, without the rounding of m
    eta = mean - torch.sqrt(spread / (2.0 * rho * m - left_out).clamp_min(1e-300))
    p = q * (l - eta).clamp_min(0.0)
    return p / p.sum(), eta


def _answer(
    losses: Any,
    sample_weight: Any,
    hardest_first: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    cost: Callable[[Tensor, Tensor], Tensor],
) -> BestResponse:
    """Sort, solve with the hardest loss first and at zero, and put the weights back in their order."""
    vector, double, log_q, as_array = read_losses(losses, sample_weight)
    q = torch.exp(log_q)
    live = q > 0
    order = torch.argsort(torch.where(live, double, -math.inf), descending=True)
    order = order[: int(live.sum())]
    top = double[order[0]]
    p_sorted, eta = hardest_first(double[order] - top, q[order])
    p = torch.zeros_like(q).scatter(0, order, p_sorted)
    value = torch.dot(p, vector.to(double.dtype)) - cost(p_sorted, q[order])
    if as_array:
        return BestResponse(value.numpy()[()], p.numpy(), float(eta + top))
    return BestResponse(value.to(vector.dtype), p.to(vector.dtype), (eta + top).to(vector.dtype))


def _chi2(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (q * (p / q - 1.0) ** 2).sum()


def _last(flags: Tensor) -> Tensor:
    return torch.nonzero(flags)[-1, 0]
