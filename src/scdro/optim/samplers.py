"""Batch samplers for methods that choose their own samples, for `DataLoader(batch_sampler=...)`.

`DrawnBatches` asks a function for the positions of one batch after another; `EqualGroupDraws` is
such a function, for GroupDRO. On several processes all draw the same batch from the same seed, and
each takes its part: no positions are exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from scdro._validation import check_whole
from scdro.distributed import ALONE, Ranks
from scdro.errors import CheckpointError

__all__ = [
    "DrawnBatches",
    "EqualGroupDraws",
]


# Draws a batch: returns positions in the data set, (b,).
Draw = Callable[[torch.Generator], Tensor]


class DrawnBatches(Sampler[list[int]]):
    """Batches drawn by a method, each at the moment it is requested.

    Save its state together with the optimizer's. It holds the random generator and the position in
    the epoch: the first epoch after `load_state_dict` continues where the saved one stopped. A
    DataLoader with workers prefetches: batches are then drawn from a distribution a few steps older
    than the one that weights them, and the state is ahead of training. To resume bit for bit, use
    num_workers=0.

    Args:
        draw: returns the positions of one batch.
        steps: number of batches in an epoch.
        seed: seed of the random generator.
        ranks: the processes that share each batch; all draw the same batch, and each takes its
            part.
    """

    def __init__(self, draw: Draw, steps: int, seed: int = 0, ranks: Ranks = ALONE) -> None:
        check_whole("steps", steps, meaning="the number of batches in an epoch")
        self._draw, self._steps, self._ranks, self._done, self._resumed = (
            draw,
            steps,
            ranks,
            0,
            False,
        )
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
        """Batches of `batch_size` samples per process, by default enough to cover n samples."""
        check_whole("batch_size", batch_size)
        size = batch_size * ranks.size
        steps = math.ceil(n / size) if steps is None else steps
        return cls(lambda generator: draw(size, generator), steps, seed, ranks)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        # A new epoch, unless a state has just been loaded in the middle of one.
        if not self._resumed:
            self._done = 0
        self._resumed = False
        while self._done < self._steps:
            self._done += 1
            batch = self._draw(self._generator)
            yield batch[self._ranks.part(len(batch))].tolist()

    def state_dict(self) -> dict[str, Any]:
        """The generator and the position in the epoch."""
        return {"generator": self._generator.get_state(), "done": self._done, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved sampler was; the next epoch is a whole one again."""
        if state.get("steps") != self._steps:
            raise CheckpointError(
                f"expected the state of a sampler of {self._steps} steps per epoch, got"
                f" {state.get('steps')}; create it with the same settings"
            )
        self._generator.set_state(state["generator"].cpu())
        self._done = state["done"]
        self._resumed = self._done < self._steps


class EqualGroupDraws:
    """Draws all groups equally often, whatever their sizes: counts in a batch differ by at most one.

    Args:
        groups: the group of every sample.
    """

    def __init__(self, groups: Tensor) -> None:
        # `_positions` lists the samples group by group; group g begins at `_starts[g]`.
        _, self._sizes = torch.unique(groups, return_counts=True)
        self._positions = torch.argsort(groups, stable=True)
        self._starts = self._sizes.cumsum(0) - self._sizes

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Positions, drawn with replacement within each group. Costs O(size + groups)."""
        count = len(self._sizes)
        # `size // count` samples of every group, and one more of some groups chosen at random.
        some = torch.randperm(count, generator=generator, device="cpu")[: size % count]
        groups = torch.cat([torch.arange(count, device="cpu").repeat(size // count), some])
        within = (
            torch.rand(size, generator=generator, device="cpu", dtype=torch.float64)
            * self._sizes[groups]
        )
        return self._positions[self._starts[groups] + within.long()]
