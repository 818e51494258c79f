"""Save and restore buffers that a forward pass changes, such as BatchNorm's running statistics.

A step that is skipped should leave no trace. But the running statistics change in the forward pass,
before the losses can be looked at. So they are copied before and put back after a bad batch:

    Buffers    for an optimizer, whose `step` calls the closure: it knows when the pass begins
    Watch      for a loss, which sees only its result: a hook before the model's pass copies

`Buffers.inspection` finds layers with running statistics that nobody passed, and raises: a method
that evaluates each batch twice would update them twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

from scdro._validation import check_is
from scdro.errors import ClosureError

__all__ = [
    "Buffers",
    "Modules",
    "Watch",
]


Modules = nn.Module | Iterable[nn.Module] | None


class Snapshot:
    """A copy of the current buffers of some modules, each buffer once.

    `without` are buffers to leave out: those of the loss itself, if it is a submodule of the model.
    """

    def __init__(self, modules: Iterable[nn.Module], without: Iterable[Tensor] = ()) -> None:
        others = {id(b) for b in without}
        buffers = {id(b): b for module in modules for b in module.buffers() if id(b) not in others}
        self._pairs = [(b, b.detach().clone()) for b in buffers.values()]

    @torch.no_grad()
    def restore(self, unless: Tensor | None = None) -> None:
        """Restore the buffers, unless the flag `unless`, a tensor that the host need not read, is true."""
        for buffer, value in self._pairs:
            # Through `data`, so that a later backward pass does not complain. BatchNorm's does not
            # read the statistics.
            buffer.data.copy_(value if unless is None else torch.where(unless, buffer, value))


class Buffers:
    """The buffers of the modules that were passed to an optimizer, during a step.

    Attributes:
        modules: as they were passed. _inspected: whether a whole step has met no unknown
        normalisation layer; then no more checks. _before: the copy of the current step; None
        between steps.
    """

    def __init__(self, module: Modules) -> None:
        modules = () if module is None else (module,) if isinstance(module, nn.Module) else module
        check_is(modules, Iterable, "module=model, or several models")
        self.modules = tuple(modules)
        for part in self.modules:
            check_is(part, nn.Module, "module=model, or several models")
        self._inspected = False
        self._before: Snapshot | None = None

    @contextmanager
    def during_step(self) -> Iterator[None]:
        """Save the buffers for `restore`, and restore them if the step raises."""
        self._before = Snapshot(self.modules)
        try:
            yield
        except BaseException:
            self.restore()
            raise
        finally:
            self._before = None

    def restore(self, unless: Tensor | None = None) -> None:
        """Back to before the step, unless the flag is true."""
        if self._before is not None:
            self._before.restore(unless)

    @contextmanager
    def inspection(self, why: str) -> Iterator[None]:
        """Raise if an unknown normalisation layer would change its running statistics.

        Checks every step until one has met none. A model that was not passed can only be found with
        a global module hook, limited here to the current thread.
        """
        if self._inspected:
            yield
            return
        hidden: list[nn.Module] = []  # unknown layers met in this step, also those in eval mode
        known = {id(m) for module in self.modules for m in module.modules()}
        thread = threading.get_ident()

        def refuse_hidden_statistics(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling() or threading.get_ident() != thread:
                return
            for part in module.modules():
                if (
                    not isinstance(part, _NormBase)
                    or not part.track_running_stats
                    or id(part) in known
                ):
                    continue
                hidden.append(part)
                if part.training:
                    raise ClosureError(
                        "expected every layer with running statistics to be known, got a"
                        f" {type(part).__name__} outside of `module`; {why}: pass module=model"
                    )

        hook = register_module_forward_pre_hook(refuse_hidden_statistics)
        try:
            yield
        finally:
            hook.remove()
        self._inspected = not hidden  # A layer in eval mode is harmless now but may train later.


class Watch:
    """Saves a model's buffers before its forward passes, until `loss` has checked the losses.

    Only the first forward pass since the last check is saved: a batch in several parts, or two
    views, go back to the start together.
    """

    _loss: nn.Module | None

    def __init__(self, module: nn.Module, loss: nn.Module) -> None:
        self._loss = loss
        self._before: Snapshot | None = None
        self._hook = module.register_forward_pre_hook(self._remember)

    def remove(self) -> None:
        self._hook.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copying a module copies its hooks; the copy of this hook does nothing."""
        return _inactive_watch, ()

    def _remember(self, module: nn.Module, _: Any) -> None:
        """The hook: copy the buffers, if this pass may change them and none are kept yet."""
        if self._loss is None:
            return
        if (
            self._before is None
            and module.training
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        ):
            self._before = Snapshot([module], without=self._loss.buffers())

    def restore_unless(self, good: Tensor | bool) -> None:
        """Restore the buffers unless the losses were good."""
        if self._before is not None and good is not True:
            self._before.restore(None if good is False else good)
        self._before = None


def _inactive_watch() -> Watch:
    """What the copy of a hook becomes: it belongs to no loss."""
    watch = Watch.__new__(Watch)
    watch._loss = watch._before = None
    return watch
