"""Labels, groups and counts as they come (tensors, arrays, lists, columns of a table), read as one kind of tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from scdro.errors import DataError

__all__ = ["as_integers", "as_labels", "as_positions"]


def as_labels(values: Any, n: int | None = None, classes: int | None = None, what: str = "labels") -> Tensor:
    """A vector of labels, int64, on the host.

    Args:
        values: integers, one a sample.
        n: how many there must be; by default any number but none.
        classes: labels must lie in [0, classes); by default they may be any.

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
    """Positions in a data set of n samples, int64, on the host."""
    index = as_integers(values, "positions")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise DataError(f"expected positions in [0, {n}), got {int(index.min())} to {int(index.max())}")
    return index


def as_integers(values: Any, what: str) -> Tensor:
    """A vector of integers, int64, on the host."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except Exception as error:  # whatever `values` raises when it is read
        raise DataError(f"expected {what} as a vector of integers, got {_kind(values)}: {error}") from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(
            f"expected {what} as a vector of integers, got {_kind(values)} of {array.dtype} and shape {array.shape}; "
            "flatten them, and number the classes 0, 1, ..."
        )
    return torch.from_numpy(array.astype(np.int64))


def _kind(values: Any) -> str:
    return type(values).__name__
