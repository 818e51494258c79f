"""Every check of every argument: settings, losses, weights, positions and labels."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from scdro._scalar import scalar_dtype
from scdro.errors import CheckpointError, ClosureError, DataError, HyperparameterError, LossError, NonFiniteLossError

__all__ = [
    "as_integers",
    "as_labels",
    "as_positions",
    "check_index",
    "check_parameters",
    "check_positions",
    "check_same_temperature",
    "check_samples",
    "check_steps",
]


# The largest loss allowed: squares of l/lam stay finite in float64 for every lam >= 1e-50.
LARGEST = 1e100


def check_number(name: str, value: Any) -> None:
    """Raise unless `value` can be compared with a number; strings and None cannot."""
    try:
        value < 0.0  # noqa: B015
    except TypeError:
        raise HyperparameterError(f"expected a number for {name}, got {value!r}") from None


def check_radius(rho: float, lam0: float) -> None:
    check_number("rho", rho)
    check_number("lam0", lam0)
    if not 0.0 <= rho < math.inf:
        raise HyperparameterError(
            f"expected a radius rho >= 0, got {rho}; rho_for_group(alpha) computes rho from a group's share"
        )
    if not 1e-50 <= lam0 < math.inf:
        raise HyperparameterError(f"expected lam0 > 0, and at least 1e-50 (the paper uses 1e-3), got {lam0}")


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
        raise HyperparameterError(f"expected beta in (0, 1], the weight of the new batch in the averages, got {beta}")


def read_losses(losses: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Check the losses of an exact function.

    Returns the losses with their graph, the losses detached in float64, log q, and whether the input was not a tensor.
    """
    vector = _as_vector(losses)
    log_q = _log_weights(vector, sample_weight)
    absent = log_q == -math.inf
    if bool(absent.any()):
        vector = torch.where(absent, 0.0, vector)  # Losses of weight zero may have any value, even NaN.
    double = vector.detach().to(scalar_dtype(vector.device))
    finite = double.abs() < LARGEST
    if not bool(finite.all()):
        raise NonFiniteLossError(
            f"expected finite losses, got {int((~finite).sum())} NaN or infinite (or beyond 1e100) of {len(double)}; "
            "look for overflow or division by zero in the model"
        )
    return vector, double, log_q, not isinstance(losses, Tensor)


def _as_vector(losses: Any) -> Tensor:
    """Convert to a non-empty vector of float32 or float64 (half precision is promoted)."""
    tensor = losses if isinstance(losses, Tensor) else torch.from_numpy(np.array(np.asarray(losses), dtype=np.float64))
    check_shape(tensor)
    if tensor.is_complex():
        raise LossError(f"expected real losses, got {tensor.dtype}")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_shape(losses: Tensor, may_be_empty: bool = False, second: Any = None) -> None:
    """Check that losses are a vector. `second` is the next argument, which is labels if the user passed logits."""
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
            'sample, instead of logits: cross_entropy(logits, labels, reduction="none")'
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
    return log_weight - torch.logsumexp(log_weight, 0)  # in logs, so that nothing overflows or underflows


def as_weights(values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Convert by way of NumPy, which reads a list of floats as float64; torch would read float32."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(np.asarray(values), dtype=np.float64))
    return tensor.detach().to(device, dtype)


def check_weights(weight: Tensor, losses: Tensor) -> None:
    if weight.shape != losses.shape:
        raise LossError(f"expected one sample weight per loss, shape {tuple(losses.shape)}, got {tuple(weight.shape)}")


# -- positions in a data set ------------------------------------------------------------------------------------------


def check_samples(n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, Integral) or int(n) < 1:
        raise HyperparameterError(f"expected the number n >= 1 of training samples, got {n!r}")


def check_index(index: Tensor | None, n: int, losses: Tensor) -> Tensor:
    """Return the positions of a batch's samples in the data set, on the CPU."""
    if index is None:
        raise ClosureError(
            "expected step(closure, index) with the positions of the batch's samples in the data set, got no index; "
            "let the data set return it with each item"
        )
    index = check_positions(index, n)
    if index.shape != losses.shape:
        raise ClosureError(f"expected one position for each of the {len(losses)} losses, got {len(index)}")
    return index


def check_positions(index: Tensor, n: int) -> Tensor:
    """Return positions in a data set of n samples, on the CPU."""
    index = torch.as_tensor(index).cpu()
    if index.is_floating_point() or index.dtype == torch.bool or index.ndim != 1:
        raise ClosureError(
            f"expected a vector of integer sample positions, got {index.dtype} of shape {tuple(index.shape)}"
        )
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, 0)
    if low < 0 or high >= n:
        raise ClosureError(f"expected positions in [0, n) with n = {n}, got positions from {low} to {high}")
    return index.to(torch.int64)


# -- labels -----------------------------------------------------------------------------------------------------------


def as_labels(values: Any, n: int | None = None, classes: int | None = None, what: str = "labels") -> Tensor:
    """Return labels as an int64 vector on the CPU.

    Args:
        values: integers, one per sample.
        n: the required number of labels; by default at least one.
        classes: labels must be in [0, classes); by default any integer is allowed.

    Example:
        >>> as_labels([0, 1, 1], n=3, classes=2)
        tensor([0, 1, 1])
    """
    labels = as_integers(values, what)
    if len(labels) != n if n is not None else not len(labels):
        raise DataError(f"expected {'some' if n is None else n} {what}, got {len(labels)}")
    if classes is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(f"expected {what} in [0, {classes}), got {int(labels.min())} to {int(labels.max())}")
    return labels


def as_positions(values: Any, n: int) -> Tensor:
    """Return positions in a data set of n samples as an int64 vector on the CPU."""
    index = as_integers(values, "positions")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise DataError(f"expected positions in [0, {n}), got {int(index.min())} to {int(index.max())}")
    return index


def as_integers(values: Any, what: str) -> Tensor:
    """Return integers as an int64 vector on the CPU."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except Exception as error:  # whatever reading `values` raises
        raise DataError(f"expected {what} as a vector of integers, got {_kind(values)}: {error}") from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(
            f"expected {what} as a vector of integers, got {_kind(values)} of {array.dtype} and shape {array.shape}; "
            "flatten them, and number the classes 0, 1, ..."
        )
    return torch.from_numpy(array.astype(np.int64))


def _kind(values: Any) -> str:
    return type(values).__name__


# -- an optimizer's settings ------------------------------------------------------------------------------------------


def check_steps(settings: dict[str, Any]) -> None:
    for name in ("lr", "weight_decay", "dual_lr"):
        if name in settings and not 0.0 <= float(settings[name]) < math.inf:
            raise HyperparameterError(f"expected {name} >= 0, got {settings[name]}")
    if not 0.0 <= settings.get("momentum", 0.0) < 1.0:
        raise HyperparameterError(f"expected a momentum in [0, 1), got {settings['momentum']}")


def check_parameters(group: dict[str, Any]) -> None:
    """Check that the parameters are real and that their dtype can represent lr and weight_decay."""
    dtypes = {p.dtype for p in group["params"]}
    if any(dtype.is_complex for dtype in dtypes):
        raise HyperparameterError(
            "expected real parameters, got complex ones; optimize torch.view_as_real(parameter), or use KLRobustLoss "
            "with an optimizer that supports them"
        )
    most = min((torch.finfo(dtype).max for dtype in dtypes if dtype.is_floating_point), default=math.inf)
    for name in ("lr", "weight_decay"):
        if float(group.get(name, 0.0)) > most:
            raise HyperparameterError(f"expected {name} <= {most:.3g}, the parameters' dtype limit, got {group[name]}")


def check_same_temperature(own: dict[str, Any], lam: float) -> None:
    """The state of a method with a fixed temperature is meaningless at another temperature."""
    if own.get("lam") != lam:
        raise CheckpointError(f"expected a state_dict made with lam = {lam}, got one with lam = {own.get('lam')}")
