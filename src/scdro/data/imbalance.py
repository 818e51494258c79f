"""Make data sets imbalanced by keeping only the last few samples of some classes, in the order of
the data set.

This is how the paper makes its -ST data sets. Which samples stay depends on the order
alone, so all methods and seeds train on the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from scdro._batches import read_batch
from scdro._validation import as_labels, check_whole
from scdro.errors import DataError

__all__ = ["imbalanced", "keep_last", "labels_of", "step_imbalance"]

Self = TypeVar("Self")


class Divisible(Protocol):
    """A data set with a `subset` method."""

    def subset(self: Self, index: Tensor) -> Self: ...


DivisibleT = TypeVar("DivisibleT", bound=Divisible)


def keep_last(labels: Any, counts: Mapping[int, int] | Sequence[int]) -> Tensor:
    """Positions of the last counts[c] samples of each class c, in the order of the data set.

    Args:
        labels: class of each sample, integers, (n,).
        counts: number of samples to keep of each class. With a mapping, classes that are not in it
            keep all.

    Example:
        >>> keep_last([0, 1, 0, 1, 0], {0: 2}).tolist()
        [1, 2, 3, 4]
    """
    y = as_labels(labels)
    kept = torch.ones(len(y), dtype=torch.bool)
    for label, count in counts.items() if isinstance(counts, Mapping) else enumerate(counts):
        check_whole("a class", label, min(0, int(y.min())))
        own = torch.nonzero(y == int(label)).flatten()
        check_whole(
            f"the number of samples of class {label} to keep",
            count,
            0,
            len(own),
            f"as there are {len(own)}",
        )
        kept[own[: len(own) - int(count)]] = False
    return torch.nonzero(kept).flatten()


def step_imbalance(labels: Any, minority: Sequence[int] | None = None, keep: int = 100) -> Tensor:
    """The paper's -ST rule: positions of the last `keep` samples of each minority class and of all
    other samples.

    Args:
        labels: class of each sample, integers, (n,).
        minority: classes to reduce; by default the first half of 0, ..., max(labels).
        keep: number of samples to keep of each of them.

    Example:
        >>> step_imbalance([0, 0, 0, 1, 1, 1], keep=1).tolist()
        [2, 3, 4, 5]
    """
    y = as_labels(labels)
    cut = range((int(y.max()) + 1) // 2) if minority is None else minority
    return keep_last(y, dict.fromkeys(cut, keep))


@overload
def imbalanced(dataset: DivisibleT, counts: Mapping[int, int] | Sequence[int]) -> DivisibleT: ...
@overload
def imbalanced(
    dataset: Dataset[Any], counts: Mapping[int, int] | Sequence[int]
) -> Dataset[Any]: ...
def imbalanced(dataset: Any, counts: Mapping[int, int] | Sequence[int]) -> Any:
    """The data set with only the last counts[c] samples of each class c.

    The result is `dataset.subset(positions)` if the data set has that method, else a torch
    `Subset`.

    Example:
        >>> data = TensorDataset(torch.arange(5.0), torch.tensor([0, 1, 0, 1, 0]))
        >>> [float(x) for x, _ in imbalanced(data, {0: 1})]
        [1.0, 3.0, 4.0]
    """
    index = keep_last(labels_of(dataset), counts)
    if callable(getattr(dataset, "subset", None)):
        return dataset.subset(index)
    return Subset(dataset, index.tolist())


def labels_of(dataset: Any) -> Tensor:
    """The labels of any data set: its `labels` or `targets`, or those of each item, (x, label, ...)
    or a dictionary.

    Whole numbers may be floats, as the binary cross-entropy takes them.

    Example:
        >>> labels_of([("first", 3), ("second", 5)])
        tensor([3, 5])
    """
    if isinstance(dataset, Subset):
        return labels_of(dataset.dataset)[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return as_labels(_as_classes(dataset.tensors[1]))
    for name in ("labels", "targets"):
        if hasattr(dataset, name):
            return as_labels(_as_classes(getattr(dataset, name)), what=name)
    try:
        found = [read_batch(dataset[i]).labels for i in range(len(dataset))]
    except (TypeError, IndexError, KeyError, DataError) as error:
        raise DataError(
            "expected a data set with `labels`, `targets` or items (x, label), got"
            f" {type(dataset).__name__}: {error}"
        ) from error
    return as_labels(_as_classes(found))


def _as_classes(values: Any) -> Any:
    """Floats that are whole numbers as integers; anything else as it is."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError):
        return values
    return (
        array.astype(np.int64)
        if array.dtype.kind == "f" and (array == np.round(array)).all()
        else values
    )
