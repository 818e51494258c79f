"""Vectors with an entry for each training sample, divided over the processes.

The temperatures and averages of `contrastive`, one row per anchor, are such vectors. Process r of R
keeps the entries from n r // R to n (r+1) // R. A step reads and writes the entries of the samples
in its batch, wherever they are:

    at(local, index)           read: each process fills in what it has, and the sum is everything
    put(local, index, values)  write: each process keeps what is its own; nothing is exchanged
"""

from __future__ import annotations

import torch
from torch import Tensor

from scdro._validation import check_samples
from scdro.distributed import Ranks
from scdro.errors import HyperparameterError

__all__ = ["Sharding"]


class Sharding:
    """How a vector of n entries is divided over the processes, and operations on it.

    They exchange only the entries that are asked for. All processes must call each method, except
    `check`, `here`, `inside` and `put`. With one process the methods are the plain operations.

    Attributes:
        n: entries on all processes together.
        size: number of processes.
        start, stop, count: this process's entries, and their number.
    """

    def __init__(self, n: int, ranks: Ranks) -> None:
        check_samples(n)
        if n < ranks.size:
            raise HyperparameterError(
                f"expected n >= {ranks.size} samples, one for each process, got {n}"
            )
        self.n, self.size, self._ranks = n, ranks.size, ranks
        part = ranks.part(n)
        self.start, self.stop, self.count = part.start, part.stop, len(part)

    def check(self) -> None:
        """Raise if the number of processes has changed since construction."""
        if self.size != self._ranks.size:
            raise HyperparameterError(
                f"expected {self.size} processes, as when this object was constructed, got"
                f" {self._ranks.size}; construct it after initialize() or init_process_group()"
            )

    def here(self, whole: Tensor) -> Tensor:
        """This process's part of a vector."""
        return whole[self.start : self.stop]

    def inside(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the positions belong to this process's part, and their positions within it."""
        mine = (index >= self.start) & (index < self.stop)
        return mine, index[mine] - self.start

    # -- collective --------------------------------------------------------------------------------

    def at(self, local: Tensor, index: Tensor) -> Tensor:
        """Entries of the whole vector at positions `index`, the same on all processes."""
        if self._ranks.size == 1:
            return local[index]
        mine, where = self.inside(index)
        found = local.new_zeros(len(index), *local.shape[1:])
        found[mine] = local[where]
        return self._ranks.merged(found)

    def put(self, local: Tensor, index: Tensor, values: Tensor) -> None:
        """Write entries of the whole vector that belong to this process.

        If a position occurs several times, the last value stays.
        """
        mine, where = self.inside(index)
        local.index_copy_(0, where, values[mine])

    def whole(self, local: Tensor) -> Tensor:
        """All entries, on every process."""
        if self._ranks.size == 1:
            return local
        # all_gather needs equal lengths, so the shorter parts are padded, and cut off again.
        padded = local.new_zeros(-(-self.n // self._ranks.size), *local.shape[1:])
        padded[: self.count] = local
        parts = self._ranks.gather(padded)
        bounds = [self.n * rank // self._ranks.size for rank in range(self._ranks.size + 1)]
        return torch.cat(
            [part[: b - a] for part, a, b in zip(parts, bounds, bounds[1:], strict=False)]
        )
