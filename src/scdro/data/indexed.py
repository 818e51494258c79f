"""Wrap any data set so that its items include their index.

Methods that keep a number for each sample, such as the contrastive loss, need to know which samples
a batch holds.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

__all__ = ["Indexed"]


class Indexed(Dataset[tuple[Any, ...]]):
    """Items (x, y, ..., i) of a data set of items (x, y, ...), for methods with `step(closure,
    index=...)`.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> x, y, index = next(iter(DataLoader(Indexed(data), batch_size=3)))
        >>> index
        tensor([0, 1, 2])
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return (*self.dataset[i], i)
