"""What the exact functions take: settings, losses and weights, checked."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from scdro.errors import HyperparameterError, LossError, NonFiniteLossError
from scdro.scalar import scalar_dtype

# Of a loss, so that squares of l/lam stay finite in float64 for every lam >= 1e-50.
LARGEST = 1e100


def check_number(name: str, value: Any) -> None:
    """Whether it compares as numbers do: a text or None does not."""
    try:
        value < 0.0  # noqa: B015
    except TypeError:
        raise HyperparameterError(f"expected a number for {name}, got {value!r}") from None


def check_radius(rho: float, lam0: float) -> None:
    check_number("rho", rho)
    check_number("lam0", lam0)
    if not 0.0 <= rho < math.inf:
        raise HyperparameterError(
            f"expected a radius rho >= 0, got {rho}; rho_for_group(alpha) gives one from the size of a group"
        )
    if not 1e-50 <= lam0 < math.inf:
        raise HyperparameterError(f"expected lam0 > 0, and no less than 1e-50 (the paper uses 1e-3), got {lam0}")


def check_trim(trim: float) -> None:
    check_number("trim", trim)
    if not 0.0 <= trim < 1.0:
        raise HyperparameterError(f"expected trim in [0, 1), the fraction of hardest samples to leave out, got {trim}")


def check_beta(beta: float) -> None:
    try:
        good = 0.0 < beta <= 1.0
    except TypeError:
        good = False
    if not good:
        raise HyperparameterError(f"expected beta in (0, 1], the share of the new batch in the averages, got {beta}")


def read_losses(losses: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Losses of an exact function: with their graph, in float64 without, log q, and whether they were not torch's."""
    vector = _as_vector(losses)
    log_q = _log_weights(vector, sample_weight)
    absent = log_q == -math.inf
    if bool(absent.any()):
        vector = torch.where(absent, 0.0, vector)  # Losses of weight zero may be anything, NaN too.
    double = vector.detach().to(scalar_dtype(vector.device))
    finite = double.abs() < LARGEST
    if not bool(finite.all()):
        raise NonFiniteLossError(
            f"expected finite losses, got {int((~finite).sum())} NaN or infinite (or beyond 1e100) of {len(double)}; "
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


def check_shape(losses: Tensor, may_be_empty: bool = False, second: Any = None) -> None:
    """`second` is what came with the losses: labels, where they are logits."""
    if losses.ndim == 0:
        raise LossError(
            "expected one loss per sample, got a single number: the loss is already reduced; "
            'compute it with reduction="none"'
        )
    if losses.ndim > 1:
        _refuse_matrix(losses, second)
    if losses.numel() == 0 and not may_be_empty:
        raise LossError("expected at least one loss, got an empty batch; skip empty batches (drop_last=True)")


def _refuse_matrix(losses: Tensor, second: Any) -> NoReturn:
    shape = tuple(losses.shape)
    if isinstance(second, Tensor) and second.dtype in (torch.int64, torch.int32):
        raise LossError(
            f"expected a vector with one loss per sample, got logits, shape {shape}, and labels; pass losses, one per "
            'sample, not logits: cross_entropy(logits, labels, reduction="none")'
        )
    if len(shape) == 2 and shape[1] == 1:
        raise LossError(
            f"expected a vector with one loss per sample, got shape {shape}, a column; pass losses.squeeze(1)"
        )
    raise LossError(
        f"expected a vector with one loss per sample, got shape {shape}; "
        "average over the other dimensions first, or flatten and pass the padding as a mask"
    )


def _log_weights(losses: Tensor, sample_weight: Any) -> Tensor:
    """log q, normalised, in the scalar dtype."""
    dtype = scalar_dtype(losses.device)
    if sample_weight is None:
        return torch.full(losses.shape, -math.log(len(losses)), dtype=dtype, device=losses.device)
    weight = as_weights(sample_weight, losses.device, dtype)
    check_weights(weight, losses)
    if not bool((weight >= 0).all() & torch.isfinite(weight).all() & (weight > 0).any()):
        raise LossError(
            "expected sample weights >= 0 with a positive sum, got negative, non-finite or only zero weights"
        )
    log_weight = torch.log(weight)
    return log_weight - torch.logsumexp(log_weight, 0)  # Neither sums nor shares overflow, or vanish.


def as_weights(values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """torch takes a list of floats for float32, and NumPy for float64."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float64))
    return tensor.detach().to(device, dtype)


def check_weights(weight: Tensor, losses: Tensor) -> None:
    if weight.shape != losses.shape:
        raise LossError(f"expected one sample weight per loss, shape {tuple(losses.shape)}, got {tuple(weight.shape)}")
