"""Evaluating a batch at two points as if it were once: same random numbers, buffers moved once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

from scdro.batch import Batch
from scdro.distributed.sharded import reshard
from scdro.errors import ClosureError
from scdro.optim.base import ClosureOptimizer

__all__ = ["Replay", "TwoPoints", "matched"]


class Replay:
    """Knows the modules whose buffers a closure moves."""

    def __init__(self, module: nn.Module | Iterable[nn.Module] | None) -> None:
        self.modules = () if module is None else (module,) if isinstance(module, nn.Module) else tuple(module)
        self.inspected = False

    @contextmanager
    def rehearsal(self, device: torch.device) -> Iterator[None]:
        """Run something, then put torch's random state and the modules' buffers back as they were."""
        restore = self._snapshot()
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type
        try:
            with torch.random.fork_rng(devices=devices, device_type=kind):
                yield
        finally:
            restore(None)

    @contextmanager
    def restored_on_error(self) -> Iterator[Callable[[Tensor | None], None]]:
        """Put the buffers back if something goes wrong; yields how to do so later, unless a flag holds."""
        restore = self._snapshot()
        try:
            yield restore
        except BaseException:
            restore(None)
            raise

    def _snapshot(self) -> Callable[[Tensor | None], None]:
        buffers = list({id(b): b for module in self.modules for b in module.buffers()}.values())
        before = [b.clone() for b in buffers]

        def restore(unless: Tensor | None) -> None:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value if unless is None else torch.where(unless, buffer, value))

        return restore

    @contextmanager
    def inspection(self) -> Iterator[None]:
        """On first use, refuse a normalisation layer whose running statistics would move twice unseen."""
        if self.inspected:
            yield
            return
        hidden: list[nn.Module] = []
        known = {id(m) for module in self.modules for m in module.modules()}

        def refuse_hidden_statistics(module: nn.Module, _: Any) -> None:
            for part in module.modules():
                if not isinstance(part, _NormBase) or not part.track_running_stats or id(part) in known:
                    continue
                hidden.append(part)
                if part.training:
                    raise ClosureError(
                        f"expected every layer with running statistics to be known, got a {type(part).__name__} "
                        "outside of `module`; this method evaluates each batch twice and would move its statistics "
                        "twice: pass module=model"
                    )

        hook = register_module_forward_pre_hook(refuse_hidden_statistics)
        try:
            yield
        finally:
            hook.remove()
        self.inspected = not hidden  # A layer in eval mode is harmless now, and may train later.


class TwoPoints(ClosureOptimizer):
    """An optimizer that keeps the `previous` point of each parameter, and evaluates each batch there as well."""

    _replay: Replay

    @contextmanager
    def _at_previous_point(self) -> Iterator[None]:
        params = [p for p in self._parameters() if self._has_past(p)]
        present = [p.clone() for p in params]
        self._move(params, [self.state[p]["previous"] for p in params])
        try:
            with self._replay.rehearsal(self._first_parameter().device), self._replay.inspection():
                yield
        finally:
            self._move(params, present)

    def _move(self, params: list[Tensor], values: list[Tensor]) -> None:
        reshard(self._replay.modules, params)
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
