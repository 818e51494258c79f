"""Anchors and embeddings over several processes: the one file of the contrastive loss that knows torch.distributed.

Each process keeps the numbers of n/world anchors, and sees embeddings and positions of the joined batch. A step costs
one gather of the embeddings (and one reduction of their gradients), and two small exchanges of a few numbers an anchor.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["Shards"]


class Shards:
    """Rows 0, ..., n - 1 in blocks over the processes of a group; all in this one where there is none."""

    def __init__(self, n: int, group: ProcessGroup | None) -> None:
        self.n, self.group = n, group
        self.world = 1 if group is None else dist.get_world_size(group)
        rank = 0 if group is None else dist.get_rank(group)
        self.each = -(-n // self.world)
        self.start = min(rank * self.each, n)
        self.length = min(self.each, n - self.start)

    def joined(self, x: Tensor) -> Tensor:
        """The rows of all processes' tensors, in the order of ranks; gradients find their way back."""
        if self.group is None:
            return x
        y: Tensor = _Joined.apply(x, self.group)  # type: ignore[no-untyped-call]
        return y

    def total(self, x: Tensor) -> Tensor:
        """The sum over the processes."""
        return x if self.group is None else _summed(x, self.group)

    def fetch(self, shard: Tensor, rows: Tensor, everybody: Tensor) -> Tensor:
        """The given rows, whoever keeps them; `everybody` are those that all processes ask for, in order of ranks."""
        if self.group is None:
            return shard[rows]
        mine, place = self._mine(everybody)
        found = torch.zeros(len(everybody), *shard.shape[1:], dtype=shard.dtype, device=shard.device)
        found[mine] = shard[place]
        found = _summed(found, self.group)
        start = sum(_sizes(rows, self.group)[: dist.get_rank(self.group)])
        return found[start : start + len(rows)]

    def store(self, shard: Tensor, everybody: Tensor, new: Tensor) -> None:
        """Write rows back to who keeps them; of a row that comes twice the last one stays."""
        new = self.joined(new)
        mine, place = self._mine(everybody)
        shard.index_copy_(0, place, new[mine])

    def part(self, full: Tensor) -> Tensor:
        """This process's rows of all."""
        return full[self.start : self.start + self.length]

    def _mine(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        place = rows - self.start
        mine = (place >= 0) & (place < self.length)
        return mine, place[mine]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        sizes = _sizes(x, group)
        ctx.group, ctx.start, ctx.length = group, sum(sizes[: dist.get_rank(group)]), len(x)
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group)[ctx.start : ctx.start + ctx.length], None


def _sizes(x: Tensor, group: ProcessGroup) -> list[int]:
    """How many rows each process has."""
    sizes = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(x)], device=x.device), group=group)
    return torch.cat(sizes).tolist()


def _summed(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x
