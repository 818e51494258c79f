"""What a method carries from batch to batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from scdro.batch import Batch, check_losses, checked, read_local
from scdro.distributed import Group
from scdro.distributed.ranks import ALONE, Ranks
from scdro.errors import CheckpointError, HyperparameterError, LossError
from scdro.scalar import scalar_dtype

__all__ = ["Tracked", "check_fits"]


class Tracked(nn.Module):
    """State of a method, all of it buffers; they follow the model to its device, never to its dtype.

    `reset_parameters` fills them. It is called wherever torch leaves buffers without values: on the way from the meta
    device, by `to_empty` or by the first losses.
    """

    skipped: Tensor  # batches left out for NaN or infinite losses

    def __init__(
        self, *, loss_bound: float | None = None, skip_nonfinite: bool = False, process_group: Group = None
    ) -> None:
        super().__init__()
        self.ranks = Ranks(process_group)
        if loss_bound is not None and not 0.0 < loss_bound < math.inf:
            raise HyperparameterError(f"expected loss_bound > 0, an upper bound of every loss, got {loss_bound}")
        self.loss_bound, self.skip_nonfinite = loss_bound, skip_nonfinite
        # Python's view of whether there is a past: the first batch takes another path, without asking the device.
        self.started = False
        self.register_buffer("skipped", torch.zeros(1, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(_before_loading)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Forget every batch: the state is that of a new object."""
        self.started = False
        self.skipped.zero_()

    @property
    def dtype(self) -> torch.dtype:
        """float64, where the device has it."""
        return scalar_dtype(self.skipped.device)

    def made_with(self) -> str:
        """What decides the shapes of the state, for a checkpoint that does not fit."""
        return "this object"

    def check_meaning(self, came: dict[str, Tensor]) -> None:
        """Refuse a state of the same shapes whose numbers mean something else here."""

    def read(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        labels: Callable[[], Tensor] | None = None,
        alone: bool = False,
        graph: str = "",
    ) -> Batch:
        """Check a batch of losses and put it into the log domain, joined over the processes unless `alone`.

        Raises before anything changes, and on all processes; `labels` checks and gives an integer for each sample.
        Where `graph` is given, losses must require grad, or it is the error.
        """
        ranks = ALONE if alone else self.ranks
        with ranks.joining(getattr(losses, "device", self.skipped.device)):
            check_losses(losses, ranks.size > 1, sample_weight)
            if graph and not losses.requires_grad:
                raise LossError(graph)
            if self.skipped.device != losses.device:
                move = self.to_empty if self.skipped.is_meta else self.to
                move(device=losses.device)
            local = read_local(losses, sample_weight, mask, self.dtype)
            joined = (*local, None if labels is None else labels().to(losses.device))
        mark = self._mark() if ranks.size > 1 else None
        return checked(ranks.join(*joined, mark), loss_bound=self.loss_bound, skip_nonfinite=self.skip_nonfinite)

    def _mark(self) -> Tensor | None:
        """A number in which every bit of the state counts: the same on all processes, or their states differ."""
        numbers = [b.detach().reshape(-1) for b in self.buffers() if b.dtype == torch.float64]
        if not numbers:
            return None
        bits = torch.cat(numbers).view(torch.int64)
        odd = torch.arange(1, 2 * len(bits), 2, device=bits.device) * 0x9E3779B97F4A7C1  # it wraps around
        return ((bits ^ (bits >> 29)) * odd).sum() >> 11  # 53 bits, exact in float64

    def count_skipped(self, bad: Tensor | bool) -> None:
        self.skipped += bad

    def store(self, new: list[tuple[Tensor, Tensor]], batch: Batch, only_if: Tensor | None = None) -> None:
        """Write buffers' new values; where `only_if` or the batch's own flag is false, nothing moves."""
        go = _both(only_if, batch.finite)
        self._start(go)
        for buffer, value in new if go is None else [(b, torch.where(go, value, b)) for b, value in new]:
            buffer.copy_(value)
        if batch.finite is not None:
            self.count_skipped(~batch.finite)

    def _start(self, go: Tensor | None) -> None:
        """Note that there is a past from now on, unless this very first step is skipped."""
        if self.started:
            return
        if go is None:
            self.started = True
        elif torch.compiler.is_compiling():
            torch._assert_async(go, "the first batch of a compiled loss must be finite")
            self.started = True
        else:
            self.started = bool(go)  # Waits for the device, until the first good batch and never again.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved is tensor or moved.is_meta or tensor.is_meta:
                return moved
            dtype = scalar_dtype(moved.device) if tensor.is_floating_point() else tensor.dtype
            return tensor.to(moved.device, dtype)  # not `moved`: to_empty() leaves it without values

        was_meta = self.skipped.is_meta
        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        if was_meta and not self.skipped.is_meta:
            self.reset_parameters()
        return self


def _before_loading(module: Tracked, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    came = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    if came:
        check_fits(module, came)


def check_fits(module: Tracked, came: dict[str, Any]) -> None:
    """Refuse a state of another make before any of it is loaded."""
    shapes = {k: getattr(v, "shape", None) for k, v in came.items()}
    if shapes != {k: v.shape for k, v in module.state_dict().items()}:
        raise CheckpointError(
            f"expected the state of {module.made_with()}, got one made with other settings; "
            "construct the object with the same arguments"
        )
    module.check_meaning(came)


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b
