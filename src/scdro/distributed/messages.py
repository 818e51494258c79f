"""One message of each process a step: the losses of its part of a batch, with what belongs to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scdro.errors import CheckpointError, LossError

__all__ = ["FAILED", "Messages", "Room"]

FAILED, _HEADER = -1, 3


class Room(NamedTuple):
    """What a message holds: so many losses, each with a weight or not."""

    losses: int
    weighted: bool


class Messages:
    """Has room for the largest batch so far: one exchange a step, two where a batch is larger."""

    def __init__(self, gather: Callable[[Tensor], Tensor]) -> None:
        self._gather, self._room = gather, Room(0, False)

    def exchange(self, rows: Tensor, own: Room, mark: Tensor | None) -> tuple[Tensor, list[int], bool]:
        """The rows of each process, how many of their columns count, and whether any has weights."""
        while True:
            messages = self._gather(self._message(rows, own, mark))
            headers: list[list[float]] = messages[:, :_HEADER].tolist()
            counts = [int(count) for count, *_ in headers]
            if FAILED in counts:
                bad = [rank for rank, count in enumerate(counts) if count == FAILED]
                raise LossError(f"expected a batch of losses from every process, got an error on rank {bad}: see there")
            if len({repr(mark) for *_, mark in headers}) > 1:
                marks = [mark for *_, mark in headers]
                raise CheckpointError(f"expected one state on all processes, got {marks}; load it on every one")
            need = Room(max(counts), any(weighted for _, weighted, _ in headers))
            if need.losses <= self._room.losses and need.weighted <= self._room.weighted:
                return self._unpacked(messages[:, _HEADER:], len(rows)), counts, need.weighted
            self._room = Room(max(need.losses, self._room.losses), need.weighted or self._room.weighted)

    def _message(self, rows: Tensor, own: Room, mark: Tensor | None) -> Tensor:
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
        parts = bodies.reshape(len(bodies), sent, self._room.losses)
        if self._room.weighted:
            return parts
        return torch.cat([parts[:, :1], torch.zeros_like(parts[:, :1]), parts[:, 1:]], 1)

    def fail(self, device: torch.device, labelled: bool) -> None:
        """A message that says there is no batch."""
        rows = torch.zeros(3 if labelled else 2, 0, dtype=torch.float64, device=device)
        self._gather(self._message(rows, Room(FAILED, False), None))
