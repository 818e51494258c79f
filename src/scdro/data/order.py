"""The order of a run's batches: a function of its seed and the epoch alone, so that it is the same after a resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from scdro.errors import HyperparameterError

__all__ = ["BatchSampler", "Order", "shuffled"]

BatchSampler = Iterable[Sequence[int] | Tensor]


def shuffled(n: int, seed: int, epoch: int) -> Tensor:
    """The positions 0, ..., n - 1 in the order of an epoch."""
    return torch.from_numpy(np.random.default_rng((seed, 0, epoch)).permutation(n))


class Order:
    """Positions of the samples of each batch.

    Args:
        n: number of samples.
        batch_size: how many to a batch; the last one may have fewer, unless `drop_last`.
        shuffle: a new order each epoch, or always that of the data set.
        sampler: any iterable of batches of positions, in place of all this; iterated anew each epoch.
    """

    def __init__(
        self, n: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool, sampler: BatchSampler | None
    ) -> None:
        if batch_size < 1:
            raise HyperparameterError(f"expected batch_size >= 1, got {batch_size}")
        if seed < 0:
            raise HyperparameterError(f"expected seed >= 0, got {seed}")
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.shuffle, self.drop_last, self.sampler = shuffle, drop_last, sampler

    def __len__(self) -> int:
        if self.sampler is not None:
            return len(self.sampler)  # type: ignore[arg-type]  # TypeError where it has no length, as elsewhere
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[int, Tensor]]:
        """Numbers and positions of the batches from number `start`. A sampler resumes by its own state: it is only
        asked for what is left, and its first batch gets the number `start`."""
        if self.sampler is not None:
            yield from enumerate(map(torch.as_tensor, self.sampler), start)
            return
        order = shuffled(self.n, self.seed, epoch) if self.shuffle else torch.arange(self.n)
        for number in range(start, len(self)):
            yield number, order[number * self.batch_size : (number + 1) * self.batch_size]
