r"""The mathematics, stateless: the worst case of a vector of losses, the objective F, and what rho means.

    max_{p: KL(p, q) <= rho}  sum_i p_i l_i - lam0 KL(p, q)
        =  min_{lam >= lam0}  F(lam) = lam log sum_i q_i exp(l_i / lam) + (lam - lam0) rho        (paper, eq. 4)

q is uniform (1/n) unless `sample_weight` says otherwise.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scdro.errors import HyperparameterError, LossError, NonFiniteLossError
from scdro.scalar import Scalar, clamp, exp, log, maximum, minimum, scalar, where

__all__ = ["WorstCase", "objective", "rho_for_confidence", "rho_for_group", "worst_case"]

Array = npt.NDArray[Any]


class WorstCase(NamedTuple):
    """The worst distribution within the KL ball, and what it costs.

    `value` is differentiable in the losses (its gradient is `weights`); the other fields are constants.
    """

    value: Any
    lam: Any
    weights: Any
    kl: Any

    @property
    def ess(self) -> Any:
        """Effective sample size of the weights, 1 / sum p_i^2: how many samples the worst case looks at."""
        return 1.0 / (self.weights**2).sum()


class Tilt(NamedTuple):
    """q tilted by exp(l/lam): what a Newton step on lam needs. `var` is that of l/lam."""

    weights: Tensor
    kl: Scalar
    var: Scalar


# Constants that keep 0 log 0 and 0/0 out of the Newton step; the true KL and Var are either exact zeros or far larger.
_TINY = 1e-300


def scalar_dtype(device: torch.device) -> torch.dtype:
    """float64 for everything that is exponentiated, where the device has it (docs/mathematics.md, "Numerics")."""
    return torch.float32 if device.type == "mps" else torch.float64


def tilt(centred: Tensor, log_q: Tensor, lam: Scalar, log_total: Scalar) -> Tilt:
    """Weights p_i ~ q_i exp(l_i/lam), KL(p, q) and Var_p(l/lam); `centred` are losses less a value near their top.

    `log_total` is the log of sum_i q_i.
    """
    x = centred / lam
    joint = x + log_q
    p = torch.softmax(joint, 0)
    log_norm = scalar(joint.max()) - log(scalar(p.max()))  # logsumexp(joint), at a fraction of its cost
    mean = scalar(torch.dot(p, x))
    deviation = x - mean
    kl = mean - log_norm + log_total
    return Tilt(p, kl, scalar(torch.dot(p, deviation * deviation)))


def newton_step(at: Tilt, lam: Scalar, rho: Scalar, mu: float = 0.0) -> Scalar:
    """Change of log lam by one Newton step on log KL(p_lam) - log(rho + mu lam) = 0.

    d KL / d log lam = -Var_p(l/lam). In (log lam, log KL) the equation is nearly a straight line: KL ~ Var/(2 lam^2).
    """
    # Where KL is lost in rounding it is Var/2 to first order.
    kl = maximum(where(at.kl < 1e-8, at.var / 2, at.kl), _TINY)
    target = mu * lam + rho if mu else rho
    slope = at.var / kl + mu * lam / target if mu else at.var / kl
    return log(kl / target) / maximum(slope, _TINY)


def effective_size(log_weight: Tensor) -> Scalar:
    """How many equally weighted samples these are worth, (sum w)^2 / sum w^2."""
    return mass_and_size(log_weight)[1]


def mass_and_size(log_weight: Tensor) -> tuple[Scalar, Scalar]:
    """log sum w, and (sum w)^2 / sum w^2."""
    w = torch.exp(log_weight)
    total = scalar(w.sum())
    return log(total), total * total / scalar(torch.dot(w, w))


def attainable(rho: float, size: Scalar) -> Scalar:
    """The part of rho that a sample of this size can show.

    KL(p, q) is at most log n on n samples: there the worst case is the largest of them, at whatever temperature. Up to
    rho of the size's square root, or of an eighth of it, the worst case still averages over a few.
    """
    log_n = log(maximum(size, 2.0))
    return minimum(maximum(0.5 * log_n, log_n - math.log(8.0)), rho)


def solve_lam(
    losses: Tensor,
    log_q: Tensor,
    rho: Scalar,
    lam0: float,
    *,
    mu: float = 0.0,
    iterations: int = 100,
    exact: bool = True,
) -> Scalar:
    """lam* = the root of KL(p_lam) = rho + mu lam, or lam0: Newton in log lam, kept inside a bisection bracket.

    It stops when the equation holds to rounding. Where the host would have to wait to see that, it does so only with
    `exact`; without, it makes all its steps.
    """
    positive = isinstance(rho, Tensor) or rho > 0.0
    if not positive and mu == 0.0:
        return math.inf
    log_total = scalar(torch.logsumexp(log_q, 0))
    q = torch.exp(log_q - log_total)
    top = torch.where(log_q > -math.inf, losses, -math.inf).amax()
    centred = losses - top
    mean = scalar(torch.dot(q, centred))
    std = scalar(torch.sqrt(torch.dot(q, (centred - mean) ** 2)))
    # lam0 + (max l - mean l)/rho bounds lam* from above (docs/mathematics.md).
    low: Scalar = math.log(lam0)
    high = maximum(log(lam0 - mean / rho), low) if positive else low + 700.0
    theta = clamp(log(maximum(std / exp(0.5 * log(2 * maximum(rho, 1e-12))), lam0)), low, high)
    solved = tilt(centred, log_q, lam0, log_total).kl <= rho + mu * lam0
    for _ in range(iterations):
        lam = exp(theta)
        at = tilt(centred, log_q, lam, log_total)
        too_sharp = at.kl > rho + mu * lam
        low, high = where(too_sharp, theta, low), where(too_sharp, high, theta)
        proposal = theta + newton_step(at, lam, rho, mu)
        # At the root the proposal may fall beside the bracket by rounding: it must not be sent to the middle for that.
        slack = 1e-12 * (1 + maximum(theta, -theta))
        inside = (proposal >= low - slack) & (proposal <= high + slack)
        previous, theta = theta, where(inside, proposal, 0.5 * (low + high))
        change = theta - previous
        done = solved | (maximum(change, -change) <= 1e-2 * slack)
        if (exact or isinstance(done, bool)) and bool(done):
            break
    return where(solved, lam0, maximum(exp(theta), lam0))


def trimmed_log_weights(losses: Tensor, log_q: Tensor, trim: float) -> Tensor:
    """log q without the hardest `trim` of its mass, renormalised; the sample on the edge is kept in part."""
    order = torch.argsort(losses)
    q = torch.exp(log_q - torch.logsumexp(log_q, 0))[order]
    before = torch.cumsum(q, 0) - q
    room = 1.0 - trim - before
    # Rounding must leave no sample in: at a small lam it would count.
    kept = torch.where(room > 1e-12, torch.minimum(q, room), 0.0)
    kept = torch.where(kept > 1e-9 * q, kept, 0.0)
    return torch.empty_like(log_q).scatter_(0, order, torch.log(kept / kept.sum()))


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
    lam = solve_lam(double, log_q, rho, lam0)
    value, weights, kl = value_at(vector, double, log_q, lam, lam0)
    if as_array:
        return WorstCase(float(value), float(lam), weights.numpy(), float(kl))
    lam, kl = (torch.as_tensor(x, dtype=vector.dtype, device=vector.device) for x in (lam, kl))
    return WorstCase(value.to(vector.dtype), lam, weights.to(vector.dtype), kl)


def value_at(losses: Tensor, double: Tensor, log_q: Tensor, lam: Scalar, lam0: float) -> tuple[Tensor, Tensor, Scalar]:
    """sum p l - lam0 KL(p), p, KL(p) for p = p_lam. By the envelope theorem the gradient in l is p, held constant."""
    top = torch.where(log_q > -math.inf, double, -math.inf).amax()
    at = tilt(double - top, log_q, lam, scalar(torch.logsumexp(log_q, 0)))
    value = torch.dot(at.weights, losses.to(double.dtype)) - lam0 * at.kl
    return value, at.weights, maximum(at.kl, 0.0)


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
    if not 0.0 < alpha <= 1.0:
        raise HyperparameterError(f"expected a group's share of the data in (0, 1], got {alpha}")
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


def check_radius(rho: float, lam0: float) -> None:
    if not 0.0 <= rho < math.inf:
        raise HyperparameterError(
            f"expected a radius rho >= 0, got {rho}; rho_for_group(alpha) gives one from the size of a group"
        )
    if not 1e-100 <= lam0 < math.inf:
        raise HyperparameterError(f"expected lam0 > 0, and no less than 1e-100 (the paper uses 1e-3), got {lam0}")


def check_trim(trim: float) -> None:
    if not 0.0 <= trim < 1.0:
        raise HyperparameterError(f"expected trim in [0, 1), the fraction of hardest samples to leave out, got {trim}")


def read_losses(losses: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Losses of an exact function: with their graph, in float64 without, log q, and whether they were not torch's."""
    vector = _as_vector(losses)
    log_q = _log_weights(vector, sample_weight)
    absent = log_q == -math.inf
    if bool(absent.any()):
        vector = torch.where(absent, 0.0, vector)  # Losses of weight zero may be anything, NaN too.
    double = vector.detach().to(scalar_dtype(vector.device))
    if not bool(torch.isfinite(double).all()):
        raise NonFiniteLossError(
            f"expected finite losses, got {int((~torch.isfinite(double)).sum())} NaN or infinite of {len(double)}; "
            "look for overflow or division by zero in the model"
        )
    return vector, double, log_q, not isinstance(losses, Tensor)


def _as_vector(losses: Any) -> Tensor:
    """A non-empty vector of float32 or float64 (halves promoted)."""
    tensor = losses if isinstance(losses, Tensor) else torch.from_numpy(np.array(losses, dtype=np.float64))
    check_shape(tensor)
    if tensor.is_complex():
        raise LossError(f"expected real losses, got {tensor.dtype}")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_shape(losses: Tensor) -> None:
    if losses.ndim == 0:
        raise LossError(
            "expected one loss per sample, got a single number: the loss is already reduced; "
            'compute it with reduction="none"'
        )
    if losses.ndim > 1:
        raise LossError(
            f"expected a vector with one loss per sample, got shape {tuple(losses.shape)}; "
            "average over the other dimensions first, or flatten and pass the padding as a mask"
        )
    if losses.numel() == 0:
        raise LossError("expected at least one loss, got an empty batch; skip empty batches (drop_last=True)")


def _log_weights(losses: Tensor, sample_weight: Any) -> Tensor:
    """log q, normalised, in the scalar dtype."""
    dtype = scalar_dtype(losses.device)
    if sample_weight is None:
        return torch.full(losses.shape, -math.log(len(losses)), dtype=dtype, device=losses.device)
    weight = torch.as_tensor(sample_weight, device=losses.device).detach().to(dtype)
    check_weights(weight, losses)
    if not bool((weight >= 0).all() & torch.isfinite(weight).all() & (weight.sum() > 0)):
        raise LossError(
            "expected sample weights >= 0 with a positive sum, got negative, non-finite or only zero weights"
        )
    return torch.log(weight / weight.sum())


def check_weights(weight: Tensor, losses: Tensor) -> None:
    if weight.shape != losses.shape:
        raise LossError(f"expected one sample weight per loss, shape {tuple(losses.shape)}, got {tuple(weight.shape)}")
