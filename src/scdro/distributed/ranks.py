"""The processes that work on one batch, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, Sampler

from scdro.distributed.messages import FAILED, Messages, Parts, check_counts, check_marks
from scdro.distributed.rows import Cut
from scdro.distributed.sharded import is_sharded
from scdro.errors import ClosureError, HyperparameterError, LossError, ScdroError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ALONE", "Group", "Joined", "RankBatches", "Ranks", "Share", "shard"]

Group: TypeAlias = "ProcessGroup | Literal[False] | None"
"""None: all processes, where torch.distributed is initialised; False: each process on its own."""
T = TypeVar("T")


class Share(NamedTuple):
    """The part of a joined batch that is this process's, and how many processes average their gradients."""

    start: int
    length: int
    ranks: int

    def of(self, joined: Tensor) -> Tensor:
        return joined[self.start : self.start + self.length]


class Joined(NamedTuple):
    """The losses of all processes, in the order of the ranks."""

    losses: Tensor
    log_weight: Tensor | None
    labels: Tensor | None
    share: Share | None


class Ranks:
    """The processes that work on one batch: those of a process group, or this one alone.

    Args:
        process_group: None for all processes where torch.distributed is initialised, and this one where it is not;
            False for this one in any case.
    """

    def __init__(self, process_group: Group = None) -> None:
        known = process_group is None or process_group is False
        if not known and not (dist.is_available() and isinstance(process_group, dist.ProcessGroup)):
            raise HyperparameterError(
                "expected a process group that this process belongs to, None for all processes, or False for none, "
                f"got {process_group!r}"
            )
        self._group, self._messages, self._seen_averaged = process_group, Messages(self.gather), False

    @property
    def size(self) -> int:
        if self._group is False or not (dist.is_available() and dist.is_initialized()):
            return 1
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        return 0 if self.size == 1 else dist.get_rank(self._group or None)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes what all have."""
        return self.rank == 0

    def gather(self, local: Tensor) -> Tensor:
        """One row for each process, from tensors of one shape."""
        if self.size == 1:
            return local.unsqueeze(0)
        rows = torch.empty(self.size, *local.shape, dtype=local.dtype, device=local.device)
        dist.all_gather(list(rows.unbind()), local.contiguous(), group=self._group or None)
        return rows

    def merged(self, local: Tensor) -> Tensor:
        """The sum of tensors in each entry of which all processes but one have zero: it is exact in any order."""
        if self.size > 1:
            dist.all_reduce(local, group=self._group or None)
        return local

    def total(self, local: Tensor) -> Tensor:
        """The sum over the processes."""
        return self.merged(local.clone(memory_format=torch.contiguous_format)) if self.size > 1 else local

    def cut(self, own: int, device: torch.device, width: int = 0, mark: float = 0.0) -> Cut:
        """How rows lie over the processes, of which this one has `own`; `width` and `mark` must be alike on all."""
        if self.size == 1:
            return Cut([own], 0)
        header = torch.tensor([own, width, mark], dtype=torch.float64, device=device)
        sizes, widths, marks = self.gather(header).T.tolist()
        check_counts(sizes)
        if len(set(widths)) > 1:
            raise LossError(f"expected rows of one length on all processes, got {[int(w) for w in widths]}")
        check_marks(marks)
        return Cut([int(size) for size in sizes], self.rank, self._group or None)

    @contextmanager
    def cutting(self, device: torch.device) -> Iterator[None]:
        """Before a `cut`: an error of this process is told to the others, who wait there."""
        try:
            yield
        except ScdroError:
            if self.size > 1:
                self.gather(torch.tensor([FAILED, 0, 0], dtype=torch.float64, device=device))
            raise

    def agreed(self, found: Callable[[], T]) -> T:
        """What the first process finds, a plain value, on all of them; the others do not look."""
        if self.size == 1:
            return found()
        values: list[Any] = [found() if self.first else None]
        dist.broadcast_object_list(values, group=self._group or None, group_src=0)
        value: T = values[0]
        return value

    def same(self, own: Any, what: str) -> None:
        """Refuse plain values that differ from one process to another."""
        if self.agreed(lambda: own) != own:
            raise HyperparameterError(
                f"expected the same {what} on all processes, got others on rank {self.rank} than on rank 0"
            )

    def part(self, n: int) -> range:
        """This process's part of n things: as even as can be, one after the other."""
        return range(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def batches(self, sampler: Sampler[list[int]]) -> Sampler[list[int]]:
        """This process's part of each batch that a sampler gives, the same ones on all processes."""
        return sampler if self.size == 1 else RankBatches(sampler, self._group)

    # -- batches ------------------------------------------------------------------------------------------------------

    def join(
        self, losses: Tensor, log_weight: Tensor | None, labels: Tensor | None, mark: Tensor | None = None
    ) -> Joined:
        """All losses of a batch whose parts the processes hold. `mark` is a number of their state, the same on all."""
        if self.size == 1:
            return Joined(losses, log_weight, labels, None)
        parts, counts = self._messages.exchange(Parts(losses, log_weight, labels), mark)
        if not sum(counts):
            raise LossError("expected at least one loss, got an empty batch on every process; leave it out")
        return Joined(*parts, Share(sum(counts[: self.rank]), len(losses), self.size))

    @contextmanager
    def joining(self, device: torch.device) -> Iterator[None]:
        """Before a `join`: an error of this process is told to the others, who wait there."""
        try:
            yield
        except ScdroError:
            self.fail(device)
            raise

    def fail(self, device: torch.device) -> None:
        """Tell the others, who are joining a batch, that this process has none."""
        if self.size > 1:
            self._messages.fail(device)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def averaged(self, model: nn.Module) -> nn.Module:
        """The model to call in training: it averages its gradients over the processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, process_group=self._group or None)

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the first one's buffers, such as the running statistics of BatchNorm."""
        for buffer in model.buffers() if self.size > 1 else ():
            dist.broadcast(buffer, group=self._group or None, group_src=0)

    def check_averaged(self, gradients: Sequence[Tensor]) -> None:
        """Once: each process's weights are scaled for gradients that are averaged, so somebody must average them."""
        if self._seen_averaged or self.size == 1:
            return
        self._seen_averaged = True
        whole = [g.detach() for g in gradients if not is_sharded(g)]
        if not whole:
            return
        sums = self.gather(torch.stack([g.double().abs().sum() for g in whole]).sum())
        if bool(torch.isfinite(sums).all()) and bool((sums - sums[0]).abs().max() > 1e-6 * sums.abs().max()):
            raise ClosureError(
                "expected gradients that are averaged over the processes, got different ones; wrap the model in "
                "DistributedDataParallel or fully_shard, or pass process_group=False to train each process on its own"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return Ranks(self._group)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process group does not survive pickling: all processes take its place."""
        return Ranks, (False if self._group is False else None,)


ALONE = Ranks(False)


def shard(n: int, process_group: Group = None) -> range:
    """This process's part of n samples: contiguous, and all of them where there is one process.

    Example:
        >>> shard(100)
        range(0, 100)
    """
    return Ranks(process_group).part(n)


class RankBatches(Sampler[list[int]]):
    """This process's part of each batch that a batch sampler gives; the sampler gives the same ones on all processes.

    A batch has a sample for each process, or all of them refuse it, as no loader can make a batch of nothing; where a
    `BatchSampler` would end an epoch with a smaller one, at once.

    Example:
        >>> from torch.utils.data import BatchSampler
        >>> list(RankBatches(BatchSampler(range(5), 2, drop_last=False)))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, batches: Sampler[list[int]], process_group: Group = None) -> None:
        self.batches, self._ranks = batches, Ranks(process_group)

    def __iter__(self) -> Iterator[list[int]]:
        if isinstance(self.batches, BatchSampler) and not self.batches.drop_last:
            self._check(len(self.batches.sampler) % self.batches.batch_size or self.batches.batch_size)  # type: ignore[arg-type]
        for batch in self.batches:
            self._check(len(batch))
            mine = self._ranks.part(len(batch))
            yield list(batch[mine.start : mine.stop])

    def _check(self, size: int) -> None:
        if size < self._ranks.size:
            raise HyperparameterError(
                f"expected batches of at least {self._ranks.size} samples, one for each process, got one of {size}; "
                "drop the last batch (drop_last=True), or choose another size"
            )

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]
