"""Which samples of the data set a batch holds: their positions, checked, on the host."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from scdro.errors import ClosureError, HyperparameterError

__all__ = ["check_index", "check_positions", "check_samples"]


def check_samples(n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, Integral) or int(n) < 1:
        raise HyperparameterError(f"expected the number n >= 1 of training samples, got {n!r}")


def check_index(index: Tensor | None, n: int, losses: Tensor) -> Tensor:
    """Positions of a batch's samples in the data set, on the host."""
    if index is None:
        raise ClosureError(
            "expected step(closure, index) with the positions of the batch's samples in the data set, got no index; "
            "let the data set give it with each item"
        )
    index = check_positions(index, n)
    if index.shape != losses.shape:
        raise ClosureError(f"expected one position for each of the {len(losses)} losses, got {len(index)}")
    return index


def check_positions(index: Tensor, n: int) -> Tensor:
    """Positions in a data set of n samples, on the host."""
    index = torch.as_tensor(index).cpu()
    if index.is_floating_point() or index.dtype == torch.bool or index.ndim != 1:
        raise ClosureError(
            f"expected integer positions of the samples, a vector, got {index.dtype} of shape {tuple(index.shape)}"
        )
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, 0)
    if low < 0 or high >= n:
        raise ClosureError(f"expected positions in [0, n) with n = {n}, got some from {low} to {high}")
    return index.to(torch.int64)
