"""Labelled samples in memory, as one tensor."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from scdro._validation import as_integers, as_labels
from scdro.errors import DataError

__all__ = ["Augmentation", "InMemory", "Rows", "as_positions", "tensor_of"]

Self = TypeVar("Self", bound="InMemory")
Augmentation = Callable[[Tensor, np.random.Generator], Tensor]


class InMemory(Dataset[tuple[Tensor, int]], ABC):
    """One tensor of inputs, (n, ...), with labels and optional groups.

    Args:
        inputs: the stored inputs; `batch` turns them into the model's input.
        labels: integers in [0, classes), (n,), as a tensor, array or list.
        names: names of the classes; their number is the number of classes.
        groups: integers, (n,), used for evaluation, such as fine labels.
        group_names: names of the groups.

    `positions` are the positions of the samples in the data set that this one is a part of.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Any,
        *,
        names: Sequence[str],
        groups: Any = None,
        group_names: Sequence[str] = (),
    ) -> None:
        self.inputs = inputs
        self.groups: Tensor | None = None
        self.labels = as_labels(labels, len(inputs), len(names)).to(inputs.device)
        if groups is not None:
            self.groups = as_labels(groups, len(inputs), len(group_names), "groups").to(
                inputs.device
            )
        self.names, self.group_names = tuple(names), tuple(group_names)
        self.positions = torch.arange(len(inputs))

    @abstractmethod
    def batch(self, index: Tensor, augment: Augmentation | None = None, rng: Any = None) -> Tensor:
        """The model's input for the samples at these positions."""

    @abstractmethod
    def _preparation(self) -> tuple[Any, ...]:
        """Everything besides the inputs that determines the model's input."""

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.batch(torch.tensor([i], device=self.device))[0], int(self.labels[i])

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class."""
        return torch.bincount(self.labels, minlength=self.classes)

    def subset(self: Self, index: Any) -> Self:
        """The samples at the given positions, in the given order."""
        part = copy.copy(self)
        part._keep(as_positions(index, len(self)))
        return part

    def to(self: Self, device: torch.device | str) -> Self:
        """The same data on a device, where batches are then created."""
        moved = copy.copy(self)
        moved.inputs, moved.labels = self.inputs.to(device), self.labels.to(device)
        moved.groups = None if self.groups is None else self.groups.to(device)
        return moved

    def fingerprint(self) -> str:
        """SHA-256 of everything that a model or its evaluation uses."""
        digest = hashlib.sha256(
            repr((tuple(self.inputs.shape), *self._preparation(), self.names)).encode()
        )
        for part in (self._bytes_first(), self.labels, self.groups):
            digest.update(b"none" if part is None else part.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def _bytes_first(self) -> Tensor:
        """The inputs in the order of their bytes in memory."""
        return self.inputs

    def _keep(self, index: Tensor) -> None:
        index = index.to(self.device)
        self.inputs = self.inputs[index]
        self.labels = self.labels[index]
        self.groups = None if self.groups is None else self.groups[index]
        self.positions = self.positions[index.cpu()]


class Rows(InMemory):
    """Rows of numbers, (n, d), such as features or a table. `feature_names` are for display only.

    Example:
        >>> rows = Rows(torch.eye(3), torch.tensor([0, 1, 1]), names=("a", "b"))
        >>> rows.counts.tolist(), rows.batch(torch.tensor([2])).tolist()
        ([1, 2], [[0.0, 0.0, 1.0]])
    """

    def __init__(
        self, inputs: Any, labels: Any, *, feature_names: Sequence[str] = (), **about: Any
    ) -> None:
        inputs = tensor_of(inputs, "rows")
        if not inputs.is_floating_point() or inputs.ndim != 2:
            raise DataError(
                f"expected rows of floats (n, d), got {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if not bool(inputs.isfinite().all()):
            raise DataError(
                "expected rows of finite numbers, got NaN or infinity; fill in or drop missing"
                " values"
            )
        if len(feature_names) not in (0, inputs.shape[1]):
            raise DataError(
                f"expected names of {inputs.shape[1]} features, or none, got {len(feature_names)}"
            )
        self.feature_names = tuple(feature_names)
        super().__init__(inputs, labels, **about)

    def batch(self, index: Tensor, augment: Augmentation | None = None, rng: Any = None) -> Tensor:
        rows = self.inputs[index]
        return rows if augment is None else augment(rows, rng)

    def _preparation(self) -> tuple[Any, ...]:
        return ()


def tensor_of(values: Any, what: str) -> Tensor:
    """Convert torch or NumPy data to a tensor."""
    try:
        return values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"expected {what} as a tensor or an array, got {type(values).__name__}: {error}"
        ) from error


def as_positions(values: Any, n: int) -> Tensor:
    """Return positions in a data set of n samples as an int64 vector on the CPU."""
    index = as_integers(values, "positions")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise DataError(
            f"expected positions in [0, {n}), got {int(index.min())} to {int(index.max())}"
        )
    return index
