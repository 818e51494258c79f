"""Several processes as one: the only module that knows torch.distributed.

What crosses between processes in a step are the losses of the batch, with weights and positions where there are any,
and a few sums. Every process receives all of it, in the order of the ranks, and computes the same numbers from it: lam
and log s agree to the bit, and nobody has to broadcast them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, Sampler

from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError, ScdroError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
import math
import os
import time
import warnings

import numpy as np

from scdro._kl import CANCELS, divergence, solve_lam, solve_root, tilt
from scdro._scalar import Scalar
from scdro._validation import check_samples

__all__ = [
    "Group",
    "RankBatches",
    "finish",
    "gathered",
    "initialize",
    "shard",
]


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; any other as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(state: Any) -> Any:
    """A state_dict with every sharded tensor whole, to be saved by one process, loaded by any. All must call it.

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
    """A whole tensor sharded as a parameter is; anything else as it is."""
    if not is_sharded(parameter) or not isinstance(value, Tensor) or is_sharded(value) or value.ndim == 0:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def reshard(modules: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
    """Make FSDP2 gather parameters again: after a forward pass without a backward one it keeps those of that pass."""
    if not any(is_sharded(p) for p in params):
        return
    sharded = [m for module in modules for m in module.modules() if hasattr(m, "reshard")]
    if not sharded:
        raise HyperparameterError(
            "expected module=model with a model in fully_shard, got none: this method evaluates it at two points"
        )
    for module in sharded:
        module.reshard()  # type: ignore[operator]


# -- rows of a matrix, joined -----------------------------------------------------------------------------------------


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


# -- what one exchange carries ----------------------------------------------------------------------------------------


FAILED, _HEADER = -1, 3


class Room(NamedTuple):
    """What a message holds: a number of losses, each with a weight or not, and with a label or not."""

    losses: int
    weighted: bool
    labelled: bool

    def grown(self, other: Room) -> Room:
        return Room(max(self.losses, other.losses), self.weighted or other.weighted, self.labelled or other.labelled)


class Parts(NamedTuple):
    """Losses of one process, or of all; with weights and labels where there are any."""

    losses: Tensor
    log_weight: Tensor | None
    labels: Tensor | None

    @property
    def room(self) -> Room:
        return Room(len(self.losses), self.log_weight is not None, self.labels is not None)


class Messages:
    """Has room for the largest batch so far: one exchange a step, two where a batch needs more.

    The room is the same on all processes, and so is the length of their messages, whatever each has to say.
    """

    def __init__(self, gather: Callable[[Tensor], Tensor]) -> None:
        self._gather, self._room = gather, Room(0, False, False)

    def exchange(self, own: Parts, mark: Tensor | None) -> tuple[Parts, list[int]]:
        """The losses of all processes, and how many each has."""
        while True:
            messages = self._gather(self._message(own, len(own.losses), mark))
            headers: list[list[float]] = messages[:, :_HEADER].tolist()
            counts = [int(count) for count, *_ in headers]
            check_counts(counts)
            check_marks([mark for *_, mark in headers])
            kinds = [int(kind) for _, kind, _ in headers]
            if len({kind & 2 for kind in kinds}) > 1:
                raise LossError("expected groups on all processes or on none, got them on some; pass them on every one")
            need = Room(max(counts), any(kind & 1 for kind in kinds), bool(kinds[0] & 2))
            if self._room.grown(need) == self._room:
                return self._unpacked(messages[:, _HEADER:], counts, need), counts
            self._room = self._room.grown(need)

    def _message(self, own: Parts, count: int, mark: Tensor | None) -> Tensor:
        """Count, what there is of weights and labels, the mark, and all of it, as far as there is room."""
        losses, room = own.losses, self._room
        header = losses.new_tensor([count, own.room.weighted + 2 * own.room.labelled])
        state = losses.new_zeros(1) if mark is None else mark.reshape(1).to(losses)
        body = losses.new_zeros(1 + room.weighted + room.labelled, room.losses)
        if 0 < len(losses) <= room.losses:
            rows = [losses, *([own.log_weight] if room.weighted else []), *([own.labels] if room.labelled else [])]
            for place, row in zip(body, rows, strict=True):
                if row is not None:
                    place[: len(row)] = row.to(losses)
        return torch.cat([header, state, body.reshape(-1)])

    def _unpacked(self, bodies: Tensor, counts: list[int], need: Room) -> Parts:
        room = self._room
        bodies = bodies.reshape(len(bodies), 1 + room.weighted + room.labelled, room.losses)
        rows = torch.cat([body[:, :count] for body, count in zip(bodies, counts, strict=True)], 1)
        return Parts(rows[0], rows[1] if need.weighted else None, rows[-1].to(torch.int64) if need.labelled else None)

    def fail(self, device: torch.device) -> None:
        """A message that says there is no batch."""
        none = Parts(torch.zeros(0, dtype=torch.float64, device=device), None, None)
        self._gather(self._message(none, FAILED, None))


def check_counts(counts: Sequence[int]) -> None:
    """Raise where another process says that it has failed."""
    if FAILED in counts:
        bad = [rank for rank, count in enumerate(counts) if count == FAILED]
        raise LossError(f"expected a batch from every process, got an error on rank {bad}: see there")


def check_marks(marks: Sequence[float]) -> None:
    """Raise where the processes' states differ."""
    if len({repr(mark) for mark in marks}) > 1:
        raise CheckpointError("expected one state on all processes, got different ones; load it on every one")


# -- the processes of a batch -----------------------------------------------------------------------------------------


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


class Joining:
    """Tells the other processes of an error of this one."""

    __slots__ = ("_device", "_ranks")

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ScdroError):
            self._ranks.fail(self._device)


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
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Share | None]:
        """Losses, log weights and labels of all processes, in the order of the ranks, and which are this one's.

        `mark` is a number of the processes' state, the same on all.
        """
        if self.size == 1:
            return losses, log_weight, labels, None
        parts, counts = self._messages.exchange(Parts(losses, log_weight, labels), mark)
        if not sum(counts):
            raise LossError("expected at least one loss, got an empty batch on every process; leave it out")
        return *parts, Share(sum(counts[: self.rank]), len(losses), self.size)

    def joining(self, device: torch.device) -> Joining:
        """Before a `join`: an error of this process is told to the others, who wait there."""
        return Joining(self, device)

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


# -- starting and ending ----------------------------------------------------------------------------------------------


_store: Any = None  # where they find each other, and who failed first
_starts = 0


def initialize(backend: str | None = None, *, device: str | None = None, **settings: Any) -> torch.device:
    """`init_process_group` where torchrun started this process; gives the device to work on.

    Args:
        backend: as for `init_process_group`; with none, gloo for tensors on CPUs and NCCL for those on GPUs.
        device: "cpu", or "cuda" for this process's own GPU; None for a GPU where there is one.
        settings: more for `init_process_group`.

    Example:
        >>> device = initialize()  # without torchrun there is nothing to initialise
    """
    global _store, _starts
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name)
    if chosen.type == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(chosen)
    if "RANK" in os.environ and not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # The store still holds the addresses of what was before: processes that are gone, or a group that was left.
        _starts += 1
        _store = dist.PrefixStore(f"restart {_restart(rank, size)} start {_starts}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=_store, rank=rank, world_size=size, **settings)
    return chosen


def _restart(rank: int, size: int) -> str:
    """Which start of all processes this is. Of several agents each counts the failures of its own workers alone."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size:
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        warnings.warn(
            "several torchrun agents share one store: after a restart their processes may not find each other. Set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for all agents, and each start gets a store of its own",
            stacklevel=3,
        )
    return "of several agents"


def first_to_fail() -> bool:
    """Whether no process of `initialize` has asked this before: one of them is to say what went wrong."""
    return _store is None or int(_store.add("failed", 1)) == 1


def finish() -> None:
    """End what `initialize` began, when all processes are done.

    Example:
        >>> finish()  # without torchrun there is nothing to end
    """
    global _store
    if dist.is_available() and dist.is_initialized():
        # gloo's threads drop the last collective's tensors after it has ended, and need the GIL for that. Whoever frees
        # the group holding the GIL, as DDP does with its own reference, waits for those threads for ever.
        dist.barrier()
        time.sleep(0.1)
        dist.destroy_process_group()
    _store = None


# -- vectors over all samples, in parts -------------------------------------------------------------------------------


class Sharding:
    """Which entries of a vector of n are here, and what can be known of all of them by exchanging a few numbers.

    Methods but `check`, `here`, `inside` and `put` are calls that all processes make; of one process each is the plain
    thing.
    """

    def __init__(self, n: int, ranks: Ranks) -> None:
        check_samples(n)
        if n < ranks.size:
            raise HyperparameterError(f"expected n >= {ranks.size} samples, one for each process, got {n}")
        self.n, self.size, self._ranks = n, ranks.size, ranks
        part = ranks.part(n)
        self.start, self.stop, self.count = part.start, part.stop, len(part)

    def check(self) -> None:
        """Refuse other processes than those that it was cut for."""
        if self.size != self._ranks.size:
            raise HyperparameterError(
                f"expected to work in {self.size} processes, as when this was constructed, got {self._ranks.size}; "
                "construct it after initialize() or init_process_group()"
            )

    def here(self, whole: Tensor) -> Tensor:
        """This process's part of a vector."""
        return whole[self.start : self.stop]

    def inside(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some positions are here, and where."""
        mine = (index >= self.start) & (index < self.stop)
        return mine, index[mine] - self.start

    # -- collective ---------------------------------------------------------------------------------------------------

    def numbers(self, *local: float) -> list[list[float]]:
        """The same few numbers of every process, each as a list in the order of the ranks."""
        self.check()
        rows: list[list[float]] = self._ranks.gather(torch.tensor(local, dtype=torch.float64)).T.tolist()
        return rows

    def sums(self, *local: float) -> list[float]:
        return [math.fsum(parts) for parts in self.numbers(*local)] if self._ranks.size > 1 else list(local)

    def top(self, local: float) -> float:
        return max(self.numbers(local)[0])

    def log_softmax(self, local: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return torch.log_softmax(local, 0)
        return local - log_sum(self.numbers(float(torch.logsumexp(local, 0)))[0])

    def at(self, local: Tensor, index: Tensor) -> Tensor:
        """Entries of the whole vector at positions that are the same on all processes."""
        if self._ranks.size == 1:
            return local[index]
        mine, where = self.inside(index)
        found = local.new_zeros(len(index), *local.shape[1:])
        found[mine] = local[where]
        return self._ranks.merged(found)

    def put(self, local: Tensor, index: Tensor, values: Tensor) -> None:
        """Write entries of the whole vector, those that are here; of one that comes twice the last stays."""
        mine, where = self.inside(index)
        local.index_copy_(0, where, values[mine])

    def whole(self, local: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return local
        padded = local.new_zeros(-(-self.n // self._ranks.size), *local.shape[1:])
        padded[: self.count] = local
        parts = self._ranks.gather(padded)
        bounds = [self.n * rank // self._ranks.size for rank in range(self._ranks.size + 1)]
        return torch.cat([part[: b - a] for part, a, b in zip(parts, bounds, bounds[1:], strict=False)])

    def draw(self, log_masses: list[float], size: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """Which of `size` draws fall to this process, by the parts' masses, and a seed for them."""
        masses = np.exp(np.array(log_masses) - max(log_masses))
        uniform = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu").numpy()
        below = masses.cumsum()
        owner = np.searchsorted(below, (1.0 - uniform) * below[-1])  # 0 < 1 - uniform <= 1: never beyond the last.
        mine = torch.from_numpy(owner == self._ranks.rank)
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        return mine, seed + self._ranks.rank

    def collect(self, mine: Tensor, values: Tensor) -> Tensor:
        """Integers of which each process has some, at the places `mine`."""
        found = torch.zeros(len(mine), dtype=torch.int64)
        found[mine] = values
        return self._ranks.merged(found)

    def solve_lam(self, local: Tensor, rho: float, lam0: float, start: float | None = None) -> Scalar:
        """`solve_lam` of the whole vector, with uniform weights: each process tells three numbers an iteration."""
        if self._ranks.size == 1:
            return solve_lam(local, torch.zeros_like(local), rho, lam0, start=start)
        centred = local - self.top(float(local.max()))
        log_q = torch.zeros_like(centred)
        (total,) = self.sums(float(centred.sum()))
        mean = total / self.n
        (square,) = self.sums(float(((centred - mean) ** 2).sum()))

        def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
            here = tilt(centred, log_q, lam, 0.0)
            x = centred / lam
            log_here = float(torch.logsumexp(x, 0))
            logs, means, variances = self.numbers(log_here, float(here.mean), float(here.var))
            log_norm = log_sum(logs)
            shares = [math.exp(a - log_norm) for a in logs]
            joint = math.fsum(p * m for p, m in zip(shares, means, strict=True))
            parts = zip(shares, means, variances, strict=True)
            variance = math.fsum(p * (v + (m - joint) ** 2) for p, m, v in parts)
            kl = joint - log_norm + math.log(self.n)
            if kl < CANCELS:  # on all processes, or on none
                terms = divergence(x - (log_norm - math.log(self.n)), torch.ones_like(x))
                kl = self.sums(float(terms.sum()))[0] / self.n
            return kl, variance

        return solve_root(kl_and_var, mean, math.sqrt(square / self.n), rho, lam0, start=start)


def alone(n: int) -> Sharding:
    """All n in this process."""
    return Sharding(n, ALONE)


def log_sum(logs: list[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(a - top) for a in logs))
