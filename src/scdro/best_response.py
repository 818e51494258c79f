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
        # With the k hardest in play, sum_{i <= k} q_i (l_i - eta) = reg.
        k = _in_play(l, lambda above: torch.dot(q, above) >= reg)
        above, q_k = l[:k] - l[k - 1], q[:k]
        gap = (reg - torch.dot(q_k, above)) / q_k.sum()
        return _normalised(q_k * (above + gap), len(l)), l[k - 1] - gap

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
    """p ~ q (l - eta)_+ with sum p^2/q = 1 + 2 rho, l falling.

    sum q (l-eta)_+^2 / (sum q (l-eta)_+)^2 rises with eta, from 1 to 1/q(hardest). Between two losses the k hardest are
    in play, and it is a quadratic equation in eta.
    """

    def enough(above: Tensor) -> Tensor:
        above = above / above[0]  # Squares neither overflow nor vanish.
        mean, square = torch.dot(q, above), torch.dot(q, above * above)
        return square <= (1.0 + 2.0 * rho) * mean * mean

    k = _in_play(l, enough)
    height, q_k = l[0] - l[k - 1], q[:k]
    if not bool(height > 0):  # No p in the ball does better than the hardest loss alone.
        return _normalised(q_k, len(l)), l[0]
    above = (l[:k] - l[k - 1]) / height
    mass, left_out = q_k.sum(), q[k:].sum()
    mean = torch.dot(q_k, above) / mass
    centred = above - mean
    # mass (Var + (mean-eta)^2) = (1 + 2 rho) mass^2 (mean-eta)^2, with Var that of the k hardest.
    variance = torch.dot(q_k, centred * centred) / mass
    gap = torch.sqrt(variance / (2.0 * rho * mass - left_out).clamp_min(1e-300))
    return _normalised(q_k * (centred + gap), len(l)), l[k - 1] + height * (mean - gap)


def _in_play(l: Tensor, enough: Callable[[Tensor], Tensor]) -> int:
    """How many of the losses, hardest first, are above eta: `enough` says of (l - l_j)_+ whether eta >= l_j.

    Sums over it are of numbers >= 0, and of differences of what is in play: nothing cancels. A share of 1e-20 whose
    loss is 1e12 above the others counts for what it is.
    """
    few, many = 0, len(l)
    while many - few > 1:
        j = (few + many) // 2
        above = (l - l[j]).clamp_min(0.0)
        few, many = (few, j) if bool(above[0] > 0) and bool(enough(above)) else (j, many)
    return many


def _normalised(p: Tensor, size: int) -> Tensor:
    """The weights of the hardest, and zeros for the rest."""
    p = p.clamp_min(0.0)
    return torch.nn.functional.pad(p / p.sum(), (0, size - len(p)))


def _answer(
    losses: Any,
    sample_weight: Any,
    hardest_first: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    cost: Callable[[Tensor, Tensor], Tensor],
) -> BestResponse:
    """Sort, solve with the hardest loss first, and put the weights back in their order."""
    vector, double, log_q, as_array = read_losses(losses, sample_weight)
    q = torch.exp(log_q)
    live = q > 0
    order = torch.argsort(torch.where(live, double, -math.inf), descending=True)
    order = order[: int(live.sum())]
    p_sorted, eta = hardest_first(double[order], q[order])
    p = torch.zeros_like(q).scatter(0, order, p_sorted)
    value = torch.dot(p, vector.to(double.dtype)) - cost(p_sorted, q[order])
    if as_array:
        return BestResponse(value.numpy()[()], p.numpy(), float(eta))
    return BestResponse(value.to(vector.dtype), p.to(vector.dtype), eta.to(vector.dtype))


def _chi2(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (q * (p / q - 1.0) ** 2).sum()
