"""Evaluating a batch at two points as if it were once: same random numbers, buffers moved once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from scdro.batch import Batch
from scdro.distributed.sharded import reshard
from scdro.errors import ClosureError
from scdro.optim.base import Closure, ClosureOptimizer

__all__ = ["TwoPoints", "matched"]


class _Draws:
    """What two evaluations draw from a device's default generator: the second the same numbers as the first.

    That generator belongs to the whole process. It is set back only if it has moved, and is left where no number will
    come a second time, whatever another thread drew meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = self._state()
        self._first = self._before

    def rewind(self) -> None:
        """The first evaluation is over."""
        self._first = self._state()
        self._set(self._before)

    def settle(self) -> None:
        """The second evaluation is over. Where there is no other thread, the generator is where it should be."""
        if threading.active_count() == 1 or torch.equal(self._first, self._before):
            return
        second = self._state()
        if torch.equal(second, self._before):  # The closure draws nothing: it was another thread that did.
            self._set(self._first)
        elif not torch.equal(second, self._first):  # Who knows which of the two is further on.
            both = self._first.numpy().tobytes() + second.numpy().tobytes()
            seed = int.from_bytes(hashlib.blake2b(both, digest_size=8).digest(), "little")
            self._set(torch.Generator(self._device).manual_seed(seed).get_state())

    def _state(self) -> Tensor:
        if self._device.type == "cpu":
            return torch.get_rng_state()
        state: Tensor = torch.get_device_module(self._device).get_rng_state(self._device)
        return state

    def _set(self, state: Tensor) -> None:
        if torch.equal(state, self._state()):
            return
        if self._device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self._device).set_rng_state(state, self._device)


class TwoPoints(ClosureOptimizer):
    """An optimizer that keeps the `previous` point of each parameter, and evaluates each batch there as well."""

    _two_points = True
    _draws: tuple[_Draws, ...] = ()

    @contextmanager
    def _at_previous_point(self) -> Iterator[None]:
        params = [p for p in self._parameters() if self._has_past(p)]
        present = [p.clone() for p in params]
        devices = {torch.device("cpu"), self._first_parameter().device}
        self._draws = tuple(_Draws(device) for device in devices)
        self._move(params, [self.state[p]["previous"] for p in params])
        try:
            yield
        finally:
            for draws in self._draws:
                draws.rewind()
            self._buffers.restore()
            self._move(params, present)

    def _replayed_losses(self, closure: Closure) -> Tensor:
        """The losses at the present point, under the random numbers of the previous one."""
        try:
            return self._losses(closure)
        finally:
            for draws in self._draws:
                draws.settle()
            self._draws = ()

    def _move(self, params: list[Tensor], values: list[Tensor]) -> None:
        reshard(self._buffers.modules, params)
        for p, value in zip(params, values, strict=True):
            p.copy_(value)

    def _kept_gradients(self) -> dict[Tensor, Tensor]:
        """The gradients at the previous point. DDP may write the next ones into the same memory: keep copies."""
        shared = self.ranks.size > 1
        return {p: p.grad.clone() if shared else p.grad for p in self._parameters() if p.grad is not None}

    def _remember_point(self) -> None:
        """The present point becomes the previous one, of the parameters that have one."""
        for p in self._parameters():
            if self._has_past(p):
                self.state[p]["previous"].copy_(p)


def matched(batch: Batch, old: Batch) -> Batch:
    """The present batch, bad where either evaluation was."""
    if len(old.losses) != len(batch.losses):
        raise ClosureError(
            f"expected the same batch from both calls of the closure, got {len(old.losses)} losses and then "
            f"{len(batch.losses)}; draw the batch outside of the closure"
        )
    if batch.finite is None or old.finite is None:
        return batch
    return batch._replace(finite=batch.finite & old.finite)
