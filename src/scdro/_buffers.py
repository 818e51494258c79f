"""Buffers that a forward pass moves, such as BatchNorm's running statistics, and how to put them back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

from scdro.errors import ClosureError

__all__ = [
    "Buffers",
    "Modules",
    "Watch",
]


Modules = nn.Module | Iterable[nn.Module] | None


class Snapshot:
    """The buffers of some modules as they are now."""

    def __init__(self, modules: Iterable[nn.Module], without: Iterable[Tensor] = ()) -> None:
        others = {id(b) for b in without}
        buffers = {id(b): b for module in modules for b in module.buffers() if id(b) not in others}
        self._pairs = [(b, b.detach().clone()) for b in buffers.values()]

    @torch.no_grad()
    def restore(self, unless: Tensor | None = None) -> None:
        """Put them back; where a flag is given, and only the device knows it, unless it holds."""
        for buffer, value in self._pairs:
            # By way of `data`: a backward pass still to come need not know. BatchNorm's does not read its statistics.
            buffer.data.copy_(value if unless is None else torch.where(unless, buffer, value))


class Buffers:
    """Those of the modules that an optimizer was given, during a step."""

    def __init__(self, module: Modules) -> None:
        self.modules = () if module is None else (module,) if isinstance(module, nn.Module) else tuple(module)
        self._inspected = False
        self._before: Snapshot | None = None

    @contextmanager
    def during_step(self) -> Iterator[None]:
        """What `restore` goes back to, and what an error goes back to."""
        self._before = Snapshot(self.modules)
        try:
            yield
        except BaseException:
            self.restore()
            raise
        finally:
            self._before = None

    def restore(self, unless: Tensor | None = None) -> None:
        if self._before is not None:
            self._before.restore(unless)

    @contextmanager
    def inspection(self, why: str) -> Iterator[None]:
        """Until nothing was found, refuse a normalisation layer whose running statistics would move unseen.

        A model that was not given can only be met by a hook on all modules. It looks at those that this thread runs.
        """
        if self._inspected:
            yield
            return
        hidden: list[nn.Module] = []
        known = {id(m) for module in self.modules for m in module.modules()}
        thread = threading.get_ident()

        def refuse_hidden_statistics(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling() or threading.get_ident() != thread:
                return
            for part in module.modules():
                if not isinstance(part, _NormBase) or not part.track_running_stats or id(part) in known:
                    continue
                hidden.append(part)
                if part.training:
                    raise ClosureError(
                        f"expected every layer with running statistics to be known, got a {type(part).__name__} "
                        f"outside of `module`; {why}: pass module=model"
                    )

        hook = register_module_forward_pre_hook(refuse_hidden_statistics)
        try:
            yield
        finally:
            hook.remove()
        self._inspected = not hidden  # A layer in eval mode is harmless now, and may train later.


class Watch:
    """A model whose losses somebody else judges: its buffers before the forward passes that led to them."""

    _judge: nn.Module | None

    def __init__(self, module: nn.Module, judge: nn.Module) -> None:
        self._judge = judge
        self._before: Snapshot | None = None
        self._hook = module.register_forward_pre_hook(self._remember)

    def leave(self) -> None:
        self._hook.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied module brings its hooks along; this one then does nothing."""
        return _asleep, ()

    def _remember(self, module: nn.Module, _: Any) -> None:
        if self._judge is None:
            return
        if self._before is None and module.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._before = Snapshot([module], without=self._judge.buffers())

    def settle(self, good: Tensor | bool) -> None:
        """Put the buffers back unless the losses were good."""
        if self._before is not None and good is not True:
            self._before.restore(None if good is False else good)
        self._before = None


def _asleep() -> Watch:
    watch = Watch.__new__(Watch)
    watch._judge = watch._before = None
    return watch
