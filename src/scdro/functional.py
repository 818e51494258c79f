"""Stateless functions: the worst case of a vector of losses, the objective F, and how to choose
rho.

    max_{p: KL(p, q) <= rho}  sum_i p_i l_i - lam0 KL(p, q)
        =  min_{lam >= lam0}  F(lam) = lam log sum_i q_i exp(l_i / lam) + (lam - lam0) rho        (paper, eq. 2)

q is uniform (1/n) unless `sample_weight` is given. The left side is `worst_case`, F is `objective`.
The solver of KL(p_lam) = rho is in `_kl`; here it gets arguments of any kind and a result of the
same kind.

The module also has the worst cases of other divergences, solved by sorting the losses: every p has
the form q (l - eta)_+ or a step function, and eta is found by bisection over the sorted losses.
And other common losses and weights for imbalanced data.

References:
    Hu and Hong, Kullback-Leibler divergence constrained distributionally robust optimization, 2013
    (the dual); Rockafellar and Uryasev, Optimization of conditional value-at-risk, 2000; Namkoong
    and Duchi, Variance-based regularization with convex objectives, 2017 (chi-squared).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple, overload

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from scdro._kl import effective_share, solve_lam, trimmed_log_weights, value_at
from scdro._validation import (
    as_floats,
    as_weights,
    check_groups,
    check_is,
    check_number,
    check_radius,
    check_rho,
    check_share,
    check_trim,
    check_whole,
    read_losses,
)
from scdro.errors import LossError

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


def focal_loss(
    logits: Tensor, labels: Tensor, gamma: float = 2.0, *, weight: Tensor | None = None
) -> Tensor:
    """(1 - p_y)^gamma (-log p_y) for each sample (Lin et al., ICCV 2017). gamma = 0 is
    cross-entropy.

    Args:
        logits: shape (samples, classes).
        labels: class numbers, shape (samples,).
        gamma: how fast the weight of well-classified samples falls, >= 0.
        weight: a weight for each class, such as `class_balanced_weights` returns.

    Example:
        >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=1.0)
        tensor([0.3466])
    """
    check_number("gamma", gamma, ">= 0")
    losses = cross_entropy(logits, labels, reduction="none")
    # 1 - p_y from log p_y is exact even if p_y rounds to one. The clamp keeps the slope of 0^gamma
    # finite.
    missing = -torch.expm1(-losses)
    focal = missing.clamp_min(torch.finfo(losses.dtype).tiny) ** gamma * losses if gamma else losses
    return focal if weight is None else weight.to(focal)[labels.clamp_min(0)] * focal


def class_balanced_weights(counts: Any, beta: float = 1.0) -> Tensor:
    """A weight for each class, (1 - beta)/(1 - beta^n), with mean one (Cui et al., CVPR 2019).

    beta = 1 weights classes by their inverse counts, so that all classes count the same. A smaller
    beta gives all classes with more than about 1/(1 - beta) samples the same weight: .999 treats
    6,000 and 20,000 samples equally.

    Args:
        counts: number of samples of each class: `torch.bincount(labels)`. Empty classes get weight
            zero.
        beta: in [0, 1]; 0 gives all classes the same weight. The paper tries .9, .99, .999 and
            .9999.

    Example:
        >>> class_balanced_weights([100, 300])
        tensor([1.5000, 0.5000])
    """
    check_number("beta", beta, "in [0, 1]")
    n = (
        counts.double()
        if isinstance(counts, Tensor)
        else torch.from_numpy(as_floats(counts, "counts"))
    )
    if n.ndim != 1 or not bool((n >= 0).all() & torch.isfinite(n).all() & (n > 0).any()):
        raise LossError(f"expected the count of each class, not all zero, got {counts}")
    present = n > 0
    n = n.clamp_min(1)
    if beta == 1.0:  # the limit of (1 - beta)/(1 - beta^n), up to a factor
        weights = 1.0 / n
    elif beta == 0.0:
        weights = torch.ones_like(n)
    else:
        weights = (1.0 - beta) / -torch.expm1(n * math.log(beta))
    return torch.where(present, weights / weights[present].mean(), 0.0).to(
        torch.get_default_dtype()
    )


# -- groups
def group_means(losses: Tensor, groups: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Replace each loss by the mean of its group. The worst case of these means is a worst case
    over groups.

    Args:
        losses: a vector, one loss per sample.
        groups: the group of each sample, any integers.
        sample_weight: weights within the groups, >= 0. Losses of weight zero may have any value.

    Example:
        >>> group_means(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([7, 7, 3]))
        tensor([1.5000, 1.5000, 6.0000])
    """
    check_is(losses, Tensor, "losses as a tensor")
    groups = check_groups(groups, losses).to(losses.device)
    # Sums in half precision are too inexact.
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    if sample_weight is None:
        weight = torch.ones_like(losses)
    else:
        weight = as_weights(sample_weight, losses)
        losses = torch.where(weight > 0, losses, 0.0)
    total, mass = _group_sums(weight * losses, groups), _group_sums(weight, groups)
    return total / mass.clamp_min(torch.finfo(losses.dtype).tiny)


def group_weights(weights: Tensor, groups: Tensor, sample_weight: Tensor | None) -> Tensor:
    """The transpose of `group_means`: turn weights of the group means (one per sample) into weights
    of the losses.
    """
    share = torch.ones_like(weights) if sample_weight is None else sample_weight
    mass = _group_sums(share, groups).clamp_min(torch.finfo(weights.dtype).tiny)
    return share / mass * _group_sums(weights, groups)


def _group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Replace each value by the sum of its group."""
    if torch.compiler.is_compiling():
        # The graph does not know the number of groups, so this compares all pairs: O(batch^2).
        return (groups[:, None] == groups).to(values.dtype) @ values
    names, member = torch.unique(groups, return_inverse=True)
    return torch.zeros(len(names), dtype=values.dtype, device=values.device).index_add(
        0, member, values
    )[member]


# -- other divergences
class BestResponse(NamedTuple):
    """A worst case for a divergence other than KL.

    Samples with losses below the threshold eta have no weight.

    Example:
        >>> found = cvar([0.0, 1.0, 2.0, 3.0], alpha=0.5)
        >>> found.value, found.weights.tolist(), found.eta
        (2.5, [0.0, 0.0, 0.5, 0.5], 2.0)
    """

    value: Any  # sum p l, minus the penalty if there is one
    weights: Any  # p, (n,), which sums to one
    eta: Any  # the threshold, in the units of the losses


def cvar(losses: Any, alpha: float, *, sample_weight: Any = None) -> BestResponse:
    """Conditional value at risk: the mean loss of the hardest fraction `alpha` of the samples.

    p = q/alpha on the hardest samples until it sums to one; the sample at the boundary counts in
    part.

    Example:
        >>> cvar([1.0, 2.0, 3.0, 4.0], alpha=0.5).value
        3.5
    """
    check_number("alpha", alpha, "in (0, 1]", "a fraction of the samples")

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        room = (1.0 - (q.cumsum(0) - q) / alpha).clamp_min(0.0)
        p = torch.minimum(q / alpha, room)
        return p, l[(p > 0).sum() - 1]

    return _solve_sorted(losses, sample_weight, hardest_first, lambda p, q: torch.zeros_like(p[0]))


def chi2_penalized(losses: Any, reg: float, *, sample_weight: Any = None) -> BestResponse:
    """max_p sum p l - reg D(p): p_i = q_i (l_i - eta)_+ / reg, with eta such that p sums to one.

    Example:
        >>> chi2_penalized([1.0, 2.0, 3.0, 4.0], reg=2.0).weights.round(4)
        array([0.0625, 0.1875, 0.3125, 0.4375])
    """
    check_number("reg", reg, "> 0", "the strength of the penalty")

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        # If the k hardest have weight, sum_{i <= k} q_i (l_i - eta) = reg.
        k = _count_above_eta(l, lambda above: torch.dot(q, above) >= reg)
        above, q_k = l[:k] - l[k - 1], q[:k]
        gap = (reg - torch.dot(q_k, above)) / q_k.sum()
        return _normalise(q_k * (above + gap), len(l)), l[k - 1] - gap

    return _solve_sorted(losses, sample_weight, hardest_first, lambda p, q: reg * _chi2(p, q))


def chi2_constrained(losses: Any, rho: float, *, sample_weight: Any = None) -> BestResponse:
    """max_p sum p l over D(p) <= rho: p_i ~ q_i (l_i - eta)_+, with eta such that D(p) = rho.

    Example:
        >>> round(chi2_constrained([1.0, 2.0, 3.0, 4.0], rho=0.1).value, 4)
        3.0
    """
    check_rho(rho)

    def hardest_first(l: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        if rho == 0.0 or bool(l[0] == l[-1]):
            return q, torch.full_like(l[0], -math.inf)
        return _solve_chi2_ball(l, q, rho)

    return _solve_sorted(losses, sample_weight, hardest_first, lambda p, q: torch.zeros_like(p[0]))


def _solve_chi2_ball(l: Tensor, q: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """p ~ q (l - eta)_+ with sum p^2/q = 1 + 2 rho, for l in descending order.

    sum q (l-eta)_+^2 / (sum q (l-eta)_+)^2 rises with eta, from 1 to 1/q(hardest). For eta between
    two losses the k hardest have weight, and the equation is quadratic in eta.
    """

    def enough(above: Tensor) -> Tensor:
        above = above / above[0]  # so that squares do not overflow or underflow
        mean, square = torch.dot(q, above), torch.dot(q, above * above)
        return square <= (1.0 + 2.0 * rho) * mean * mean

    k = _count_above_eta(l, enough)
    height, q_k = l[0] - l[k - 1], q[:k]
    if not bool(height > 0):  # rho is so large that only the hardest loss has weight
        return _normalise(q_k, len(l)), l[0]
    above = (l[:k] - l[k - 1]) / height
    mass, left_out = q_k.sum(), q[k:].sum()
    mean = torch.dot(q_k, above) / mass
    centred = above - mean
    # mass (Var + (mean-eta)^2) = (1 + 2 rho) mass^2 (mean-eta)^2, where Var is that of the k
    # hardest.
    variance = torch.dot(q_k, centred * centred) / mass
    gap = torch.sqrt(variance / (2.0 * rho * mass - left_out).clamp_min(1e-300))
    return _normalise(q_k * (centred + gap), len(l)), l[k - 1] + height * (mean - gap)


def _count_above_eta(l: Tensor, enough: Callable[[Tensor], Tensor]) -> int:
    """The number of losses, hardest first, above eta, by bisection.

    Args:
        l: the losses in descending order, (n,).
        enough: whether eta >= l_j, from (l - l_j)_+.

    `enough` sums only numbers >= 0, which are differences of losses above eta, so nothing cancels.
    Even a sample of weight 1e-20 with a loss 1e12 above the others counts correctly.
    """
    few, many = 0, len(l)
    while many - few > 1:
        j = (few + many) // 2
        above = (l - l[j]).clamp_min(0.0)
        few, many = (few, j) if bool(above[0] > 0) and bool(enough(above)) else (j, many)
    return many


def _normalise(p: Tensor, size: int) -> Tensor:
    """Normalise the weights of the hardest samples and append zeros for the rest."""
    p = p.clamp_min(0.0)
    return torch.nn.functional.pad(p / p.sum(), (0, size - len(p)))


def _solve_sorted(
    losses: Any,
    sample_weight: Any,
    hardest_first: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    cost: Callable[[Tensor, Tensor], Tensor],
) -> BestResponse:
    """Sort the losses, hardest first, solve, and return the weights in the original order.

    Args:
        losses, sample_weight: as the user gave them.
        hardest_first: losses and q in descending order of the losses -> p in that order, and eta.
        cost: the penalty that is subtracted from sum p l, from p and q.
    """
    vector, double, log_q, as_array = read_losses(losses, sample_weight)
    q = torch.exp(log_q)
    live = q > 0
    order = torch.argsort(torch.where(live, double, -math.inf), descending=True)
    order = order[: int(live.sum())]
    p_sorted, eta = hardest_first(double[order], q[order])
    p = torch.zeros_like(q).scatter(0, order, p_sorted)
    value = torch.dot(p, vector.to(double.dtype)) - cost(p_sorted, q[order])
    if as_array:
        return BestResponse(float(value), p.numpy(), float(eta))
    return BestResponse(value.to(vector.dtype), p.to(vector.dtype), eta.to(vector.dtype))


def _chi2(p: Tensor, q: Tensor) -> Tensor:
    """D(p) = sum q (p/q - 1)^2/2."""
    return 0.5 * (q * (p / q - 1.0) ** 2).sum()


# -- the KL worst case
class WorstCase(NamedTuple):
    """The worst distribution within the KL ball, and its value.

    `value` is differentiable in the losses (its gradient is `weights`); the other fields are
    constants. `ess`, 1 / sum p^2/q, is a share of the samples, in (0, 1].

    Example:
        >>> wc = worst_case([0.1, 0.2, 0.1, 3.0], rho=0.5)
        >>> int(wc.weights.argmax()), round(wc.kl, 6), round(wc.ess, 2)
        (3, 0.5, 0.45)
    """

    value: Any  # sum p l - lam0 KL(p, q)
    lam: Any  # the temperature; infinite if rho = 0
    weights: Any  # p, (n,), which sums to one
    kl: Any  # KL(p, q), at most rho
    ess: Any  # effective sample size


@overload
def worst_case(
    losses: Tensor,
    rho: float,
    lam0: float = ...,
    *,
    sample_weight: Tensor | None = ...,
    trim: float = ...,
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
    r"""The exact worst average of `losses` over all reweightings within KL distance `rho`.

    max_{KL(p, q) <= rho}  sum p_i l_i - lam0 KL(p, q),  attained at  p_i ~ q_i exp(l_i / lam).

    Args:
        losses: vector of per-sample losses, torch or NumPy. The result is of the same kind.
        rho: radius of the KL ball, >= 0. 0 is the plain average (lam = inf).
        lam0: strength of the KL regulariser, > 0; also the smallest lam.
        sample_weight: base probabilities q instead of 1/n, up to a factor; samples of weight zero
            are left out.
        trim: fraction of the hardest samples, in [0, 1), to leave out first, for data with wrong
            labels.

    Returns:
        WorstCase(value, lam, weights, kl, ess). With torch, `value` can be differentiated.

    Example:
        >>> wc = worst_case([0.0, 1.0, 2.0, 3.0], rho=0.1)
        >>> round(wc.value, 6), round(wc.lam, 6)
        (1.994174, 2.413506)
        >>> wc.weights.round(3)
        array([0.121, 0.183, 0.277, 0.419])
    """
    check_radius(rho, lam0)
    check_trim(trim)
    rho, lam0 = float(rho), float(lam0)
    vector, double, log_q, as_array = read_losses(losses, sample_weight)
    if trim:
        log_q = trimmed_log_weights(double, log_q, trim)
    lam = solve_lam(double, log_q, rho, lam0, wait=True)
    value, weights, kl = value_at(vector, double, log_q, lam, lam0)
    ess = effective_share(weights, torch.softmax(log_q, 0))
    if as_array:
        return WorstCase(float(value), float(lam), weights.numpy(), float(kl), float(ess))
    lam, kl, ess = (
        torch.as_tensor(x, dtype=vector.dtype, device=vector.device) for x in (lam, kl, ess)
    )
    return WorstCase(value.to(vector.dtype), lam, weights.to(vector.dtype), kl, ess)


def objective(
    losses: Any, lam: Tensor | float, rho: float, lam0: float = 1e-3, *, sample_weight: Any = None
) -> Any:
    r"""F = lam log sum_i q_i exp(l_i/lam) + (lam - lam0) rho, differentiable in the losses and in
    `lam`.

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
    rho, lam0 = float(rho), float(lam0)
    vector, detached, log_q, as_array = read_losses(losses, sample_weight)
    dtype = detached.dtype
    check_number(
        "lam",
        lam.detach() if isinstance(lam, Tensor) else lam,
        "> 0",
        "a temperature",
        infinite=True,
    )
    temperature = torch.as_tensor(lam, dtype=dtype, device=vector.device)
    double = vector.to(dtype)
    if math.isinf(float(temperature.detach())):
        value = torch.dot(torch.exp(log_q), double) + (0.0 if rho == 0 else math.inf)
    else:
        top = torch.where(log_q > -math.inf, detached, -math.inf).amax()
        spread = temperature * torch.logsumexp((double - top) / temperature + log_q, 0)
        value = spread + top + (temperature - lam0) * rho
    return float(value.detach()) if as_array else value.to(vector.dtype)


def rho_for_group(alpha: float) -> float:
    """The radius that protects every group with at least a fraction `alpha` of the data: rho =
    log(1/alpha).

    A group of that size has KL distance log(1/alpha) from the whole data, whether or not it is
    labelled.

    Example:
        >>> round(rho_for_group(0.1), 4)
        2.3026
    """
    check_share(alpha)
    return math.log(1.0 / alpha)


def rho_for_confidence(n: int, level: float = 0.95) -> float:
    """The radius z^2/(2n) that makes the robust value a one-sided upper confidence bound on the
    mean loss.

    z = Phi^-1(level). The bound is asymptotic and holds for one fixed model.

    Example:
        >>> round(rho_for_confidence(1000, 0.95), 7)
        0.0013528
    """
    check_whole("n", n, meaning="the number of samples")
    check_number("level", level, "in [0.5, 1)", "a confidence level")
    return NormalDist().inv_cdf(level) ** 2 / (2 * n)
