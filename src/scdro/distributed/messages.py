"""One message of each process a step: the losses of its part of a batch, with what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scdro.errors import CheckpointError, LossError

__all__ = ["FAILED", "Messages", "check_counts", "check_marks"]

FAILED, _HEADER = -1, 3


class Room(NamedTuple):
    """What a message holds: so many losses, each with a weight or not, and with a label or not."""

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
