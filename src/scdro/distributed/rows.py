"""Rows of tensors, such as embeddings, of which each process has some: joined, and with gradients on their way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

__all__ = ["Cut"]


class Cut(NamedTuple):
    """How many rows each process has, and which process this is; no group where there is one process."""

    sizes: list[int]
    rank: int
    group: Any = None

    def joined(self, x: Tensor) -> Tensor:
        """The rows of all processes, in the order of the ranks."""
        if len(self.sizes) == 1:
            return x
        y: Tensor = _Joined.apply(x, self)  # type: ignore[no-untyped-call]
        return y

    def own(self, joined: Tensor) -> Tensor:
        """This process's rows of all."""
        start = sum(self.sizes[: self.rank])
        return joined[start : start + self.sizes[self.rank]]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Cut) -> Tensor:
        ctx.cut = cut
        padded = x.new_zeros(max(cut.sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in cut.sizes]
        dist.all_gather(parts, padded, group=cut.group)
        return torch.cat([part[:size] for part, size in zip(parts, cut.sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.cut.group)
        return ctx.cut.own(total), None
