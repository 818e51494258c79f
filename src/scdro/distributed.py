"""Everything that uses torch.distributed: several processes work as one.

In each step the processes exchange the losses of the batch, with weights and positions if there are
any, and a few sums. Every process receives all of it in rank order and computes the same numbers
from it, so lam and log s agree bit for bit without a broadcast.

    one step of a robust optimizer, on every process         what is exchanged
    1. losses of this process's part of the batch
    2. `Ranks.join`: the losses of the whole batch           one all_gather of a `Messages` message
    3. lam, log s and the weights of all samples             nothing: all compute the same
    4. gradient of this part's weighted losses               DDP's or FSDP's own average

A process that finds an error of its own before step 2 must not leave the others waiting: it sends a
message that says so (`Ranks.joining`, `Ranks.cutting`), and all raise.

From the top: sharded tensors; rows of a matrix, joined (`Cut`), for the contrastive loss; messages;
the processes of a batch (`Ranks`); batches for a loader; starting and ending.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import BatchSampler, Sampler

from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError, ScdroError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "Group",
    "RankBatches",
    "finish",
    "gathered",
    "initialize",
    "shard",
]


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor, as FSDP2's parameters are."""
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """The full tensor if it is sharded, else the tensor itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(state: Any) -> Any:
    """A state_dict with full instead of sharded tensors. All processes must call it; one saves it,
    any can load it.

    Example:
        >>> checkpoint = gathered({"model": nn.Linear(3, 2).state_dict()})
    """
    if isinstance(state, Tensor):
        return full(state.detach())
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(gathered(value) for value in state)
    return copy.deepcopy(state)


def like(value: Any, parameter: Tensor) -> Any:
    """Shard a full tensor like the parameter; return anything else unchanged."""
    if (
        not is_sharded(parameter)
        or not isinstance(value, Tensor)
        or is_sharded(value)
        or value.ndim == 0
    ):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def reshard(modules: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
    """Make FSDP2 gather the parameters again. After a forward pass without backward it would reuse
    the old ones.
    """
    if not any(is_sharded(p) for p in params):
        return
    sharded = [m for module in modules for m in module.modules() if hasattr(m, "reshard")]
    if not sharded:
        raise HyperparameterError(
            "expected module=model for a model in fully_shard, got none; this method evaluates the"
            " model at two points"
        )
    for module in sharded:
        module.reshard()  # type: ignore[operator]


# -- rows of a matrix, joined
class Cut(NamedTuple):
    """How the rows of a matrix are distributed over the processes."""

    sizes: list[int]  # number of rows of each process, by rank
    rank: int  # the number of this process
    group: Any = None  # the process group; None if there is only one process

    def joined(self, x: Tensor) -> Tensor:
        """The rows of all processes, in rank order."""
        if len(self.sizes) == 1:
            return x
        y: Tensor = _Joined.apply(x, self)  # type: ignore[no-untyped-call]
        return y

    def own(self, joined: Tensor) -> Tensor:
        """This process's rows of the joined matrix."""
        start = sum(self.sizes[: self.rank])
        return joined[start : start + self.sizes[self.rank]]


class _Joined(torch.autograd.Function):
    """all_gather of rows whose gradient is summed over the processes: each has a part of every
    row's.
    """

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


# -- contents of one exchange
FAILED, _HEADER = -1, 3


class Room(NamedTuple):
    """The capacity of a message."""

    losses: int  # how many there is room for
    weighted: bool  # whether there is room for the logs of their weights
    has_ids: bool  # whether there is room for ids of their groups

    def grow(self, other: Room) -> Room:
        """Room for both."""
        return Room(
            max(self.losses, other.losses),
            self.weighted or other.weighted,
            self.has_ids or other.has_ids,
        )


class Parts(NamedTuple):
    """The losses of one process or of all, with weights and ids if there are any."""

    losses: Tensor  # (m,)
    log_weight: Tensor | None  # (m,)
    ids: Tensor | None  # integers, (m,): the group of each loss

    @property
    def room(self) -> Room:
        return Room(len(self.losses), self.log_weight is not None, self.ids is not None)


class Messages:
    """Messages with room for the largest batch so far: one exchange per step, two if a batch needs
    more room.

    A message is a vector

        count, 1 if weighted + 2 if it has ids, mark of the state | losses, log weights, ids

    where the part after the bar has a length that all processes know, because all_gather needs
    equal lengths. If a batch does not fit, its sender leaves that part empty; everybody sees the
    count, makes room, and sends again. The room, and so the length of the messages, is the same on
    all processes, whatever their batch sizes.
    """

    def __init__(self, gather: Callable[[Tensor], Tensor]) -> None:
        self._gather, self._room = gather, Room(0, False, False)

    def exchange(self, own: Parts, mark: Tensor | None) -> tuple[Parts, list[int]]:
        """The losses of all processes, and the number from each."""
        # One round if the batch fits, else two: after the first, everybody has made room.
        while True:
            messages = self._gather(self._message(own, len(own.losses), mark))
            # (processes, length); the headers are the same in either round, so errors are too.
            headers: list[list[float]] = messages[:, :_HEADER].tolist()
            counts = [int(count) for count, *_ in headers]
            check_counts(counts)
            check_marks([mark for *_, mark in headers])
            kinds = [int(kind) for _, kind, _ in headers]
            if len({kind & 2 for kind in kinds}) > 1:
                raise LossError(
                    "expected groups on all processes or on none, got them on some; pass them"
                    " on all"
                )
            need = Room(max(counts), any(kind & 1 for kind in kinds), bool(kinds[0] & 2))
            if self._room.grow(need) == self._room:
                return self._unpack(messages[:, _HEADER:], counts, need), counts
            self._room = self._room.grow(need)

    def _message(self, own: Parts, count: int, mark: Tensor | None) -> Tensor:
        """This process's message: the header, and the data itself if there is room."""
        losses, room = own.losses, self._room
        header = losses.new_tensor([count, own.room.weighted + 2 * own.room.has_ids])
        state = losses.new_zeros(1) if mark is None else mark.reshape(1).to(losses)
        body = losses.new_zeros(1 + room.weighted + room.has_ids, room.losses)
        if 0 < len(losses) <= room.losses:
            rows = [
                losses,
                *([own.log_weight] if room.weighted else []),
                *([own.ids] if room.has_ids else []),
            ]
            for place, row in zip(body, rows, strict=True):
                if row is not None:
                    place[: len(row)] = row.to(losses)
        return torch.cat([header, state, body.reshape(-1)])

    def _unpack(self, bodies: Tensor, counts: list[int], need: Room) -> Parts:
        """The parts of all processes in one vector each, in rank order."""
        room = self._room
        bodies = bodies.reshape(len(bodies), 1 + room.weighted + room.has_ids, room.losses)
        rows = torch.cat([body[:, :count] for body, count in zip(bodies, counts, strict=True)], 1)
        return Parts(
            rows[0],
            rows[1] if need.weighted else None,
            rows[-1].to(torch.int64) if need.has_ids else None,
        )

    def fail(self, device: torch.device) -> None:
        """Send a message that says that this process has failed."""
        none = Parts(torch.zeros(0, dtype=torch.float64, device=device), None, None)
        self._gather(self._message(none, FAILED, None))


def check_counts(counts: Sequence[int]) -> None:
    """Raise if a process reports that it has failed."""
    if FAILED in counts:
        bad = [rank for rank, count in enumerate(counts) if count == FAILED]
        raise LossError(
            f"expected a batch from every process, got an error on rank {bad}; see the error there"
        )


def check_marks(marks: Sequence[float]) -> None:
    """Raise if the states of the processes differ."""
    if len({repr(mark) for mark in marks}) > 1:
        raise CheckpointError(
            "expected the same state on all processes, got different ones; load it on all of them"
        )


# -- the processes of a batch
Group: TypeAlias = "ProcessGroup | Literal[False] | None"
"""None: all processes, if torch.distributed is initialised. False: each process on its own."""


class OwnPart(NamedTuple):
    """This process's part of a joined batch."""

    start: int  # position of its first loss
    length: int  # number of its losses
    ranks: int  # number of processes that average their gradients

    def of(self, joined: Tensor) -> Tensor:
        """This process's entries of a vector over the joined batch."""
        return joined[self.start : self.start + self.length]


class Joining:
    """A context that reports an error in this process to the others, which wait for its losses.

    A class, and not a generator: it is entered at every step.
    """

    __slots__ = ("_device", "_ranks")

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ScdroError):
            self._ranks.fail(self._device)


class Ranks:
    """The processes that share a batch: those of a process group, or only this one.

    Args:
        process_group: None for all processes if torch.distributed is initialised, else only this
            one; False for only this one in any case.
    """

    def __init__(self, process_group: Group = None) -> None:
        known = process_group is None or process_group is False
        if not known and not (dist.is_available() and isinstance(process_group, dist.ProcessGroup)):
            raise HyperparameterError(
                "expected a process group that this process belongs to, None for all processes, or"
                f" False for none, got {process_group!r}"
            )
        self._group, self._messages, self._seen_averaged = (
            process_group,
            Messages(self.gather),
            False,
        )

    # Whether `size` may be more than one. On the path of every step, where `size` would be slow.
    may_have_others = staticmethod(dist.is_initialized if dist.is_available() else bool)

    @property
    def group(self) -> ProcessGroup | None:
        """For the functions of torch.distributed, where None is all processes. Only meaningful if
        size > 1.
        """
        return self._group or None

    @property
    def size(self) -> int:
        """The number of processes."""
        if self._group is False or not (dist.is_available() and dist.is_initialized()):
            return 1
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return 0 if self.size == 1 else dist.get_rank(self.group)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes what is the same on all processes."""
        return self.rank == 0

    def gather(self, local: Tensor) -> Tensor:
        """One row per process, from tensors of the same shape."""
        if self.size == 1:
            return local.unsqueeze(0)
        rows = torch.empty(self.size, *local.shape, dtype=local.dtype, device=local.device)
        dist.all_gather(list(rows.unbind()), local.contiguous(), group=self.group)
        return rows

    def merged(self, local: Tensor) -> Tensor:
        """The sum of tensors over the processes. At most one process is nonzero in each entry, so
        the sum is exact.
        """
        if self.size > 1:
            dist.all_reduce(local, group=self.group)
        return local

    def total(self, local: Tensor) -> Tensor:
        """The sum over the processes."""
        return (
            self.merged(local.clone(memory_format=torch.contiguous_format))
            if self.size > 1
            else local
        )

    def cut(self, own: int, device: torch.device, width: int = 0, mark: float = 0.0) -> Cut:
        """How rows are distributed; this process has `own` rows. `width` and `mark` must be equal
        on all processes.
        """
        if self.size == 1:
            return Cut([own], 0)
        header = torch.tensor([own, width, mark], dtype=torch.float64, device=device)
        sizes, widths, marks = self.gather(header).T.tolist()
        check_counts(sizes)
        if len(set(widths)) > 1:
            raise LossError(
                f"expected rows of the same length on all processes, got {[int(w) for w in widths]}"
            )
        check_marks(marks)
        return Cut([int(size) for size in sizes], self.rank, self.group)

    @contextmanager
    def cutting(self, device: torch.device) -> Iterator[None]:
        """Before a `cut`: report an error in this process to the others, which are waiting there."""
        try:
            yield
        except ScdroError:
            if self.size > 1:
                self.gather(torch.tensor([FAILED, 0, 0], dtype=torch.float64, device=device))
            raise

    def part(self, n: int) -> range:
        """This process's contiguous part of n items; all parts have nearly the same size."""
        return range(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def batches(self, sampler: Sampler[list[int]]) -> Sampler[list[int]]:
        """This process's part of each batch from a sampler that yields the same batches on all
        processes.
        """
        return sampler if self.size == 1 else RankBatches(sampler, self._group)

    # -- batches
    def join(
        self,
        losses: Tensor,
        log_weight: Tensor | None,
        ids: Tensor | None,
        mark: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, OwnPart | None]:
        """The losses, log weights and ids of all processes, in rank order, and this process's part
        of them.

        `mark` is a hash of the state, which must be the same on all processes.
        """
        if self.size == 1:
            return losses, log_weight, ids, None
        parts, counts = self._messages.exchange(Parts(losses, log_weight, ids), mark)
        if not sum(counts):
            raise LossError(
                "expected at least one loss, got an empty batch on every process; skip empty"
                " batches"
            )
        return *parts, OwnPart(sum(counts[: self.rank]), len(losses), self.size)

    def joining(self, device: torch.device) -> Joining:
        """Before a `join`: report an error in this process to the others, which are waiting there."""
        return Joining(self, device)

    def fail(self, device: torch.device) -> None:
        """Report to the others, which are joining a batch, that this process has failed."""
        if self.size > 1:
            self._messages.fail(device)

    # -- gradients
    def check_averaged(self, gradients: Sequence[Tensor]) -> None:
        """Check once that gradients are averaged over the processes, since the weights are scaled
        for that.
        """
        if self._seen_averaged or self.size == 1:
            return
        self._seen_averaged = True
        whole = [g.detach() for g in gradients if not is_sharded(g)]
        if not whole:
            return
        sums = self.gather(torch.stack([g.double().abs().sum() for g in whole]).sum())
        if bool(torch.isfinite(sums).all()) and bool(
            (sums - sums[0]).abs().max() > 1e-6 * sums.abs().max()
        ):
            raise ClosureError(
                "expected gradients averaged over the processes, got different ones; wrap the model"
                " in DistributedDataParallel or fully_shard, or pass process_group=False to train"
                " each process on its own"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """A copy has the same group, and has checked nothing yet."""
        return Ranks(self._group)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process group cannot be pickled; it is replaced by all processes."""
        return Ranks, (False if self._group is False else None,)


ALONE = Ranks(False)


def shard(n: int, process_group: Group = None) -> range:
    """This process's contiguous part of n samples; all of them if there is only one process.

    Example:
        >>> shard(100)
        range(0, 100)
    """
    return Ranks(process_group).part(n)


class RankBatches(Sampler[list[int]]):
    """This process's part of each batch from a batch sampler, which must yield the same batches on
    all processes.

    A batch with fewer samples than processes raises an error on all of them, since a loader cannot
    make an empty batch. If the last batch of a `BatchSampler` would be that small, the error is
    raised at the start of the epoch.

    Example:
        >>> from torch.utils.data import BatchSampler
        >>> list(RankBatches(BatchSampler(range(5), 2, drop_last=False)))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, batches: Sampler[list[int]], process_group: Group = None) -> None:
        self.batches, self._ranks = batches, Ranks(process_group)

    def __iter__(self) -> Iterator[list[int]]:
        if isinstance(self.batches, BatchSampler) and not self.batches.drop_last:
            samples: Any = self.batches.sampler
            self._check(len(samples) % self.batches.batch_size or self.batches.batch_size)
        for batch in self.batches:
            self._check(len(batch))
            mine = self._ranks.part(len(batch))
            yield list(batch[mine.start : mine.stop])

    def _check(self, size: int) -> None:
        if size < self._ranks.size:
            raise HyperparameterError(
                f"expected batches of at least {self._ranks.size} samples, one for each process,"
                f" got one of {size}; drop the last batch (drop_last=True), or choose another size"
            )

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


# -- starting and ending
_starts = 0


def initialize(
    backend: str | None = None, *, device: str | None = None, **settings: Any
) -> torch.device:
    """Call `init_process_group` if torchrun started this process, and return the device to use.

    Args:
        backend: as for `init_process_group`; by default gloo for CPU tensors and NCCL for GPU
            tensors.
        device: "cpu", or "cuda" for this process's GPU; None uses a GPU if there is one.
        settings: more arguments for `init_process_group`.

    Example:
        >>> device = initialize()  # without torchrun there is nothing to initialise
    """
    global _starts
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name)
    if chosen.type == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(chosen)
    if "RANK" in os.environ and not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # The store may still hold addresses of dead processes or of a group that was destroyed.
        _starts += 1
        own = dist.PrefixStore(f"restart {_restart(rank, size)} start {_starts}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, **settings)
    return chosen


def _restart(rank: int, size: int) -> str:
    """The restart count of all processes. With several agents, each counts only the failures of its
    own workers.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size:
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        warnings.warn(
            "several torchrun agents share one store, so their processes may not find each other"
            " after a restart; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for all agents, so that"
            " each start gets its own store",
            stacklevel=3,
        )
    return "of several agents"


def finish() -> None:
    """Destroy the process group that `initialize` created, once all processes are done.

    Example:
        >>> finish()  # without torchrun there is nothing to destroy
    """
    if dist.is_available() and dist.is_initialized():
        # gloo's threads release the tensors of the last collective after it has ended, and need the
        # GIL for that. Code that frees the group while holding the GIL, as DDP does with its
        # reference, waits for those threads forever.
        dist.barrier()
        time.sleep(0.1)
        dist.destroy_process_group()
