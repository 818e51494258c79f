"""The data of a study in three parts, and its initial model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reproduction.data import LongTailList
from reproduction.data.loading import Batches, MemoryBatches, WorkerBatches
from reproduction.data.memory import Augmentation, InMemory, Rows
from reproduction.data.order import BatchSampler
from reproduction.engine.networks import image_model, row_model
from reproduction.engine.study import Study
from scdro.distributed import ALONE, Ranks

__all__ = ["Samples", "Task", "in_order", "make_model"]

Samples = InMemory | LongTailList


@dataclass(frozen=True)
class Task:
    """The data of a study in three parts.

    Attributes:
        train, validation, test: parts of the data that do not overlap.
        augment: the augmentation of images in memory.
        workers: the number of processes that decode image files.
    """

    train: Samples
    validation: Samples
    test: Samples
    augment: Augmentation | None = None
    workers: int = 0

    def batches(
        self, batch_size: int, seed: int, sampler: BatchSampler | None = None, ranks: Ranks = ALONE
    ) -> Batches:
        """Training batches, or this process's part of them; an incomplete last batch is dropped."""
        own: dict[str, Any] = {
            "drop_last": len(self.train) >= batch_size,
            "seed": seed,
            "sampler": sampler,
        }
        own["ranks"] = ranks
        if isinstance(self.train, LongTailList):
            return WorkerBatches(self.train, batch_size, workers=self.workers, **own)
        return MemoryBatches(self.train, batch_size, augment=self.augment, **own)

    def in_order(
        self, samples: Samples, batch_size: int = 1000, ranks: Ranks = ALONE
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All samples in evaluation mode; with several processes, each gets a part of every batch."""
        if isinstance(samples, LongTailList):
            samples = samples.as_evaluated()
        return iter(in_order(samples, batch_size, self.workers, ranks))

    def fingerprint(self) -> str:
        return "-".join(
            part.fingerprint()[:16] for part in (self.train, self.validation, self.test)
        )


def in_order(samples: Samples, batch_size: int, workers: int = 0, ranks: Ranks = ALONE) -> Batches:
    """Batches for evaluation: in the order of the data set, without augmentation."""
    if isinstance(samples, InMemory):
        return MemoryBatches(samples, batch_size, shuffle=False, ranks=ranks)
    return WorkerBatches(samples, batch_size, shuffle=False, workers=workers, ranks=ranks)


def make_model(study: Study, task: Task, seed: int) -> nn.Module:
    """The model of a study, with initial weights that depend only on the seed."""
    train = task.train
    features = train.inputs[0].numel() if isinstance(train, InMemory) else 0
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(train, Rows):
            return row_model(study.model, features, train.classes, study.width)
        return image_model(study.model, features, train.classes, study.width, study.part)
