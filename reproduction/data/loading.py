"""Batches (inputs, labels, index) that depend only on the seed, from memory or decoded by worker processes.

The order of an epoch depends on (seed, epoch), the augmentation of a batch on (seed, epoch, its
number), that of an image decoded by a worker on (seed, epoch, number of the batch, position in it).
Nothing else is random and no state is carried over, so `epoch(e, start=k)` yields the same batches
in interrupted and uninterrupted runs, for any number of workers. With a sampler, the order is the
sampler's. With several processes, each gets its part of every batch; together they get the samples
that one process would get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from reproduction.data.memory import Augmentation, InMemory
from reproduction.data.order import BatchSampler, Order
from scdro._validation import check_whole
from scdro.distributed import ALONE, Ranks
from scdro.errors import DataError, ScdroError

__all__ = ["Batches", "LoadedBatch", "MemoryBatches", "WorkerBatches"]

LoadedBatch = tuple[Tensor, Tensor, Tensor]
Numbered = Iterator[tuple[int, Tensor]]


class Batches(ABC):
    """Batches for a training loop: `for x, y, index in batches` is one epoch.

    Attributes:
        next_epoch: the epoch of the next `iter`, which increments it; set it to resume.

    Example:
        >>> from reproduction.data.memory import Rows
        >>> data = Rows(torch.randn(500, 2), torch.zeros(500, dtype=torch.int64), names=("a",))
        >>> batches = MemoryBatches(data, 128, seed=3)
        >>> rest = list(batches.epoch(5, start=3))  # epoch 5, from its fourth batch on
        >>> x, y, index = rest[0]
    """

    order: Order
    next_epoch = 0

    def epoch(self, epoch: int, start: int = 0) -> Iterator[LoadedBatch]:
        """The batches of an epoch from number `start`, which is at most the number of batches."""
        return self._batches(epoch, self.order.epoch(epoch, start))

    @abstractmethod
    def _batches(self, epoch: int, numbered: Numbered) -> Iterator[LoadedBatch]:
        """The batches with these numbers and positions."""

    def __iter__(self) -> Iterator[LoadedBatch]:
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(epoch)

    def __len__(self) -> int:
        return len(self.order)


class MemoryBatches(Batches):
    """Batches of `ImageData` or `Rows`, taken from their tensor, then augmented and normalised as a whole on the data's
    device.

    Args:
        data: the samples.
        batch_size: number of samples per batch.
        augment: an augmentation such as `CropFlip()`; None for none.
        shuffle, drop_last: as in a DataLoader.
        seed: seed of order and augmentation.
        sampler: an iterable of batches of positions, such as one that draws from a primal-dual
            method's distribution.
        ranks: the processes that share each batch. A part without samples is skipped.

    Example:
        >>> from reproduction.data.memory import Rows
        >>> data = Rows(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), names=("a",))
        >>> [len(index) for x, y, index in MemoryBatches(data, 2)]
        [2, 2, 1]
    """

    def __init__(
        self,
        data: InMemory,
        batch_size: int = 128,
        *,
        augment: Augmentation | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        sampler: BatchSampler | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.data, self.augment, self.seed, self.ranks = data, augment, seed, ranks
        self.order = Order(len(data), batch_size, seed, shuffle, drop_last, sampler)

    def _batches(self, epoch: int, numbered: Numbered) -> Iterator[LoadedBatch]:
        for number, index in numbered:
            mine = self.ranks.part(len(index))
            if not mine:
                continue
            yield (
                self._inputs(epoch, number, index, mine),
                self.data.labels[self._there(index[mine])],
                index[mine],
            )

    def _inputs(self, epoch: int, number: int, index: Tensor, mine: range) -> Tensor:
        if self.augment is None:
            return self.data.batch(self._there(index[mine]))
        rng = np.random.default_rng((self.seed, 1, epoch, number))  # of the whole batch
        return self.data.batch(self._there(index), self.augment, rng)[mine.start : mine.stop]

    def _there(self, index: Tensor) -> Tensor:
        return index.to(self.data.device)


class Loads(Protocol):
    """A data set that creates each item with a random generator, such as `ImageFiles`."""

    labels: Tensor

    def load(self, index: int, rng: np.random.Generator) -> Tensor: ...


class WorkerBatches(Batches):
    """Batches of a data set whose images are decoded by `workers` processes, which live as long as this object.

    Further arguments as for `MemoryBatches`.

    Args:
        data: has `labels` and `load(index, rng)`, like `ImageFiles`.
        workers: number of processes that decode; 0 decodes in this one. The batches are the same
            for any number, unless a sampler changes during the epoch, since it is read two batches
            per worker ahead.

    Only one epoch at a time: once the next one begins, an unfinished one yields no more batches.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from reproduction.data.image_files import ImageFiles
        >>> from reproduction.data.transforms import EvalTransform
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in "ab":
        ...     Image.new("RGB", (300, 300)).save(folder / f"{name}.png")
        >>> small = EvalTransform(size=32)
        >>> data = ImageFiles(folder, ["a.png", "b.png"], torch.tensor([0, 1]), classes=2, transform=small)
        >>> [tuple(x.shape) for x, y, index in WorkerBatches(data, 2)]
        [(2, 3, 32, 32)]
    """

    def __init__(
        self,
        data: Loads,
        batch_size: int = 512,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        sampler: BatchSampler | None = None,
        workers: int = 0,
        pin_memory: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        check_whole("workers", workers, 0)
        self.order = Order(len(data.labels), batch_size, seed, shuffle, drop_last, sampler)
        self._tickets, self._ranks = _Tickets(), ranks
        self._loader = DataLoader(
            _Decoded(data, seed),
            batch_sampler=self._tickets,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pin_memory,
            collate_fn=_collated,
            # otherwise each epoch would draw from torch's default generator
            generator=torch.Generator(),
        )

    def _batches(self, epoch: int, numbered: Numbered) -> Iterator[LoadedBatch]:
        tickets = self._tickets.current = _numbered_tickets(epoch, numbered, self._ranks)
        for batch in self._loader:
            if isinstance(batch, ScdroError):
                raise batch
            yield batch
            if self._tickets.current is not tickets:
                raise DataError(
                    f"expected one epoch at a time, got a request for epoch {epoch} after a newer"
                    " epoch began; finish one first, or use one WorkerBatches for each"
                )


Ticket = tuple[int, int, int, int]


def _numbered_tickets(epoch: int, numbered: Numbered, ranks: Ranks) -> Iterator[list[Ticket]]:
    for number, index in numbered:
        mine = ranks.part(len(index))
        if mine:
            yield [(epoch, number, place, int(index[place])) for place in mine]


class _Tickets:
    """A batch sampler whose entries contain everything that an item depends on, so that workers need no state."""

    current: Iterator[list[Ticket]] = iter(())

    def __iter__(self) -> Iterator[list[Ticket]]:
        return self.current


class _Decoded(Dataset[Any]):
    def __init__(self, data: Loads, seed: int) -> None:
        self.data, self.seed = data, seed

    def __getitem__(self, ticket: Ticket) -> LoadedBatch | ScdroError:
        epoch, number, place, index = ticket
        rng = np.random.default_rng((self.seed, 2, epoch, number, place))
        try:
            return self.data.load(index, rng), self.data.labels[index], torch.tensor(index)
        except (
            ScdroError
        ) as error:  # Raised later in the main process, without the worker's traceback.
            return error


def _collated(items: list[Any]) -> Any:
    wrong = [item for item in items if isinstance(item, ScdroError)]
    return wrong[0] if wrong else default_collate(items)
