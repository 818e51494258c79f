"""Sample weights for training: drawn by, or carried along.

    WeightedSampler   sample i comes with probability w_i/sum(w); the loss stays unweighted
    Weighted          each item carries its weight, for a loss with `sample_weight`

On average both minimise sum_i w_i l_i/sum(w). Use one of the two, not both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, WeightedRandomSampler

from scdro._validation import array_weights, check_whole
from scdro.errors import LossError

__all__ = ["Weighted", "WeightedSampler"]


class WeightedSampler(WeightedRandomSampler):
    """torch's WeightedRandomSampler, with an order that depends only on seed and epoch, as after a
    resume.

    Draws sample i with probability w_i / sum(w), for `DataLoader(sampler=...)`. An unweighted loss
    is then, on average, the weighted one; use one of the two. All processes draw the same samples,
    so Lightning and Accelerate can split them. Lightning calls `set_epoch`; otherwise each pass is
    a new epoch.

    Args:
        weights: one per sample, such as `second_look_weights(...)`, or
            `class_balanced_weights(counts)[labels]`.
        size: number of samples in an epoch; None for as many as there are weights.
        seed: seed of the draws.
        replacement: whether a sample can come twice in an epoch.

    Example:
        >>> from scdro.functional import class_balanced_weights
        >>> labels = torch.tensor([0] * 90 + [1] * 10)
        >>> sampler = WeightedSampler(class_balanced_weights(torch.bincount(labels))[labels], size=1000)
        >>> 0.45 < labels[list(sampler)].float().mean() < 0.55
        tensor(True)
    """

    def __init__(
        self, weights: Any, size: int | None = None, *, seed: int = 0, replacement: bool = True
    ) -> None:
        try:
            n = len(weights)
        except TypeError:
            raise LossError(
                f"expected a vector of weights, one per sample, got {weights!r}; for equal weights,"
                " use shuffle=True"
            ) from None
        found = array_weights(weights, n)
        size = len(found) if size is None else size
        most = None if replacement else int((found > 0).sum())
        check_whole(
            "size",
            size,
            1,
            most,
            "the samples in an epoch; without replacement, of positive weight",
        )
        super().__init__(
            torch.from_numpy(found),  # type: ignore[arg-type]
            int(size),
            replacement,
            generator=torch.Generator(device="cpu"),
        )
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        self.epoch += 1
        return super().__iter__()


class Weighted(Dataset[Any]):
    """Items (x, y, ..., w) of a data set of items (x, y, ...); dictionaries get another entry
    "weight".

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> x, y, weight = next(iter(DataLoader(Weighted(data, [1.0, 2.0, 0.5, 0.5]), batch_size=3)))
        >>> weight
        tensor([1.0000, 2.0000, 0.5000])
    """

    def __init__(self, dataset: Dataset[Any], weights: Any) -> None:
        self.dataset = dataset
        found = array_weights(weights, len(dataset))  # type: ignore[arg-type]
        self.weights = torch.from_numpy(found).to(torch.get_default_dtype())

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, i: int) -> Any:
        item = self.dataset[i]
        if isinstance(item, Mapping):
            return {**item, "weight": self.weights[i]}
        return (*item, self.weights[i])
