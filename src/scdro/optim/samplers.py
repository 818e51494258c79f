"""Batch samplers for the methods that choose their own samples, for `DataLoader(batch_sampler=...)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from scdro.distributed import ALONE, Ranks
from scdro.errors import CheckpointError, HyperparameterError

__all__ = [
    "DrawnBatches",
    "GroupsAlike",
]


# What draws a batch: positions in the data set.
Draw = Callable[[torch.Generator], Tensor]


class DrawnBatches(Sampler[list[int]]):
    """Batches that a method draws, one when each is asked for.

    Its state, to be kept beside the optimizer's, is the random numbers' and how far the epoch has got: the first epoch
    after `load_state_dict` goes on where that one stopped. A DataLoader with workers asks ahead: batches are then drawn
    from a distribution that is a few steps older than the one they are weighed by, and the state is ahead of the
    training. For a resume to the bit use num_workers=0.

    Args:
        draw: gives the positions of one batch.
        steps: batches in an epoch.
        seed: of the random numbers.
        ranks: the processes that share each batch; they draw the same ones, and each takes its part.
    """

    def __init__(self, draw: Draw, steps: int, seed: int = 0, ranks: Ranks = ALONE) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise HyperparameterError(f"expected at least one step in an epoch, got {steps!r}")
        self._draw, self._steps, self._ranks, self._done, self._resumed = draw, steps, ranks, 0, False
        self._generator = torch.Generator(device="cpu").manual_seed(seed)

    @classmethod
    def of_size(
        cls,
        batch_size: int,
        draw: Callable[[int, torch.Generator], Tensor],
        n: int,
        steps: int | None,
        seed: int,
        ranks: Ranks,
    ) -> DrawnBatches:
        """Batches of `batch_size` samples for each process, by default as many as cover n samples."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise HyperparameterError(f"expected a batch of at least one sample, got {batch_size!r}")
        size = batch_size * ranks.size
        steps = math.ceil(n / size) if steps is None else steps
        return cls(lambda generator: draw(size, generator), steps, seed, ranks)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        if not self._resumed:
            self._done = 0
        self._resumed = False
        while self._done < self._steps:
            self._done += 1
            batch = self._draw(self._generator)
            yield batch[self._ranks.part(len(batch))].tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "done": self._done, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("steps") != self._steps:
            raise CheckpointError(
                f"expected the state of a sampler of {self._steps} steps an epoch, got {state.get('steps')}; "
                "make it with the same settings"
            )
        self._generator.set_state(state["generator"].cpu())
        self._done = state["done"]
        self._resumed = self._done < self._steps


class GroupsAlike:
    """Draws samples so that no group is in a batch more than once more than any other, whatever the groups' sizes.

    Args:
        groups: the group of every sample.
    """

    def __init__(self, groups: Tensor) -> None:
        _, self._sizes = torch.unique(groups, return_counts=True)
        self._positions = torch.argsort(groups, stable=True)
        self._starts = self._sizes.cumsum(0) - self._sizes

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Positions; within a group with replacement. Costs O(size + groups)."""
        count = len(self._sizes)
        some = torch.randperm(count, generator=generator, device="cpu")[: size % count]
        groups = torch.cat([torch.arange(count, device="cpu").repeat(size // count), some])
        within = torch.rand(size, generator=generator, device="cpu", dtype=torch.float64) * self._sizes[groups]
        return self._positions[self._starts[groups] + within.long()]
