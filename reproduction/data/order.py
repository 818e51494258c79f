"""The order of a run's batches. It depends only on the seed and the epoch, so it is the same after a resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from scdro._validation import check_whole
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
        batch_size: samples per batch; the last batch may have fewer, unless `drop_last`.
        shuffle: a new order each epoch, or always that of the data set.
        sampler: any iterable of batches of positions, used instead of the above and iterated again
            each epoch. If it has a `state_dict`, it resumes from that state; otherwise the batches
            before `start` are skipped.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        sampler: BatchSampler | None,
    ) -> None:
        check_whole("batch_size", batch_size)
        check_whole("seed", seed, 0)
        if isinstance(sampler, Iterator):
            raise HyperparameterError(
                "expected a sampler that yields batches in each epoch, got a"
                f" {type(sampler).__name__}, which is exhausted after one; pass a list, or an"
                " object with __iter__"
            )
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.shuffle, self.drop_last, self.sampler = shuffle, drop_last, sampler

    def __len__(self) -> int:
        if self.sampler is not None:
            return len(self.sampler)  # type: ignore[arg-type]  # TypeError where it has no length, as elsewhere
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[int, Tensor]]:
        """Numbers and positions of the batches from number `start`."""
        check_whole("epoch", epoch, 0)
        known = self.sampler is None or hasattr(self.sampler, "__len__")
        check_whole(
            "start", start, 0, len(self) if known else None, "the batch to start the epoch at"
        )
        if known and start == len(self):
            return iter(())  # A sampler that resumes from its state would start over.
        return self._drawn(epoch, start) if self.sampler is None else self._sampled(start)

    def _drawn(self, epoch: int, start: int) -> Iterator[tuple[int, Tensor]]:
        order = shuffled(self.n, self.seed, epoch) if self.shuffle else torch.arange(self.n)
        for number in range(start, len(self)):
            yield number, order[number * self.batch_size : (number + 1) * self.batch_size]

    def _sampled(self, start: int) -> Iterator[tuple[int, Tensor]]:
        assert self.sampler is not None
        passed = 0 if hasattr(self.sampler, "state_dict") else start
        return enumerate(map(torch.as_tensor, islice(self.sampler, passed, None)), start)
