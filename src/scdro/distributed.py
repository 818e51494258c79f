"""Several processes as one: the only file that knows torch.distributed.

What crosses between processes in a step are the losses of the batch, with weights and positions where there are any,
and a few sums. Every process receives all of it, in the order of the ranks, and computes the same numbers from it: lam
and log s agree to the bit, and nobody has to broadcast them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import Sampler

from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Group", "RankBatches", "gathered", "initialize", "shard"]

Group: TypeAlias = "ProcessGroup | Literal[False] | None"
"""None: all processes, where torch.distributed is initialised; False: each process on its own."""
_FAILED, _HEADER = -1, 3


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


class _Room(NamedTuple):
    """What a message holds: so many losses, each with a weight or not."""

    losses: int
    weighted: bool


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
        self._group, self._room, self._seen_averaged = process_group, _Room(0, False), False

    @property
    def size(self) -> int:
        if self._group is False or not (dist.is_available() and dist.is_initialized()):
            return 1
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        return 0 if self.size == 1 else dist.get_rank(self._group or None)

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
        rows = [losses, torch.zeros_like(losses) if log_weight is None else log_weight]
        if labels is not None:
            rows.append(labels.to(losses))
        own = _Room(len(losses), log_weight is not None)
        parts, counts, weighted = self._exchange(torch.stack(rows), own, mark)
        joined = torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], 1)
        if joined.shape[1] == 0:
            raise LossError("expected at least one loss, got an empty batch on every process; leave it out")
        return Joined(
            joined[0],
            joined[1] if weighted else None,
            None if labels is None else joined[2].to(torch.int64),
            Share(sum(counts[: self.rank]), len(losses), self.size),
        )

    def fail(self, device: torch.device, labelled: bool) -> None:
        """Tell the others, who are joining a batch, that this process has none."""
        if self.size > 1:
            rows = torch.zeros(3 if labelled else 2, 0, dtype=torch.float64, device=device)
            self.gather(self._message(rows, _Room(_FAILED, False), None))

    def _exchange(self, rows: Tensor, own: _Room, mark: Tensor | None) -> tuple[Tensor, list[int], bool]:
        """The rows of each process, how many of their columns count, and whether any has weights.

        A message has room for the largest batch so far: one exchange a step, two where a batch is larger."""
        while True:
            messages = self.gather(self._message(rows, own, mark))
            headers: list[list[float]] = messages[:, :_HEADER].tolist()
            counts = [int(count) for count, *_ in headers]
            if _FAILED in counts:
                bad = [rank for rank, count in enumerate(counts) if count == _FAILED]
                raise LossError(f"expected a batch of losses from every process, got an error on rank {bad}: see there")
            if len({repr(mark) for *_, mark in headers}) > 1:
                marks = [mark for *_, mark in headers]
                raise CheckpointError(f"expected one state on all processes, got {marks}; load it on every one")
            need = _Room(max(counts), any(weighted for _, weighted, _ in headers))
            if need.losses <= self._room.losses and need.weighted <= self._room.weighted:
                return self._unpacked(messages[:, _HEADER:], len(rows)), counts, need.weighted
            self._room = _Room(max(need.losses, self._room.losses), need.weighted or self._room.weighted)

    def _message(self, rows: Tensor, own: _Room, mark: Tensor | None) -> Tensor:
        """Count, whether weighted, the mark, and the rows, as far as there is room for them."""
        room, count = self._room.losses, rows.shape[1]
        body = torch.zeros(len(rows), room, dtype=rows.dtype, device=rows.device)
        if count <= room:
            body[:, :count] = rows
        if not self._room.weighted:
            body = torch.cat([body[:1], body[2:]])
        header = torch.tensor([own.losses, own.weighted], dtype=rows.dtype, device=rows.device)
        state = header.new_zeros(1) if mark is None else mark.reshape(1).to(header)
        return torch.cat([header, state, body.reshape(-1)])

    def _unpacked(self, bodies: Tensor, height: int) -> Tensor:
        sent = height if self._room.weighted else height - 1
        parts = bodies.reshape(self.size, sent, self._room.losses)
        if self._room.weighted:
            return parts
        return torch.cat([parts[:, :1], torch.zeros_like(parts[:, :1]), parts[:, 1:]], 1)

    # -- gradients ----------------------------------------------------------------------------------------------------

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


def initialize(backend: str | None = None, **settings: Any) -> torch.device:
    """`init_process_group` where torchrun started this process; gives the device to work on.

    Example:
        >>> device = initialize()  # without torchrun there is nothing to initialise
    """
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" in os.environ and not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # After a restart the store still holds the addresses of processes that are gone.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = dist.PrefixStore(f"restart {restart}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, **settings)
    return device


def shard(n: int, process_group: Group = None) -> range:
    """This process's part of n samples: contiguous, and all of them where there is one process.

    Example:
        >>> shard(100)
        range(0, 100)
    """
    return Ranks(process_group).part(n)


class RankBatches(Sampler[list[int]]):
    """This process's part of each batch that a batch sampler gives; the sampler gives the same ones on all processes.

    Example:
        >>> from torch.utils.data import BatchSampler
        >>> list(RankBatches(BatchSampler(range(5), 2, drop_last=False)))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, batches: Sampler[list[int]], process_group: Group = None) -> None:
        self.batches, self._ranks = batches, Ranks(process_group)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            mine = self._ranks.part(len(batch))
            yield list(batch[mine.start : mine.stop])

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


# -- parameters that are sharded (FSDP2) ------------------------------------------------------------------------------


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; any other as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(state: Any) -> Any:
    """A state_dict with every sharded tensor whole, to be saved by one process, loaded by any. All must call it.

    Example:
        >>> checkpoint = gathered({"model": torch.nn.Linear(3, 2).state_dict()})
    """
    if isinstance(state, Tensor):
        return full(state.detach())
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(gathered(value) for value in state)
    return copy.deepcopy(state)


def like(value: Any, parameter: Tensor) -> Any:
    """A whole tensor sharded as a parameter is; anything else as it is."""
    if not is_sharded(parameter) or not isinstance(value, Tensor) or is_sharded(value) or value.ndim == 0:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def reshard(modules: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
    """Make FSDP2 gather parameters anew: after a forward pass without a backward one it keeps those of that pass."""
    if not any(is_sharded(p) for p in params):
        return
    sharded = [m for module in modules for m in module.modules() if hasattr(m, "reshard")]
    if not sharded:
        raise HyperparameterError(
            "expected module=model with a model in fully_shard, got none: this method evaluates it at two points"
        )
    for module in sharded:
        module.reshard()  # type: ignore[operator]
