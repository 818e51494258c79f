"""A Lightning callback that logs the worst case and saves its state in checkpoints.

Training itself needs nothing from here: a `KLRobustLoss` in the LightningModule, or one of the
optimizers, works as it is. The callback only watches, and every `every` steps writes a record.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from scdro._scalar import host_reads
from scdro._validation import check_whole
from scdro.errors import CheckpointError, HyperparameterError, LossError
from scdro.integrations.loggers import Logger, recent_losses, recent_value
from scdro.loss import KLRobustLoss
from scdro.optim._base import RobustOptimizer

__all__ = ["RobustMonitor"]

Robust = KLRobustLoss | RobustOptimizer


class RobustMonitor(Callback):
    """Logs lam, KL, the effective sample size, the robust value and the hardest samples to every
    logger of the Trainer.

    The robust value is the worst case of the recent losses (the window of the loss). Records have
    Lightning's own step numbers, so that they are in one row with what `self.log` logs.

    It finds a `KLRobustLoss` in the LightningModule, or an optimizer such as `ASCDRO`; Lightning
    saves these in its checkpoints. Pass any other loss as `robust`; then this callback saves it in
    the checkpoints.

    To log the hardest samples, return from `training_step` (together with "loss" if optimization is
    automatic):

        {"losses": per-sample losses, "index": positions in the data set}

    With several processes only rank 0 logs, and only the hardest of its own samples.

    Args:
        robust: the loss or optimizer to monitor; None finds it if there is exactly one.
        hardest: number of hardest samples since the last record to log.
        every: steps between records; None uses the Trainer's `log_every_n_steps`.
        name: prefix of the logged names; several monitors need different names.
        loggers: further loggers, which also get a histogram of the recent losses and the hardest
            samples as a table; see `scdro.integrations.loggers`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> monitor = RobustMonitor(every=4)
        >>> trainer = Trainer(callbacks=[monitor], accelerator="cpu", logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        robust: Robust | None = None,
        *,
        hardest: int = 3,
        every: int | None = None,
        name: str = "robust",
        loggers: Sequence[Logger] = (),
    ) -> None:
        check_whole("hardest", hardest, 0, meaning="the number of samples to log")
        if every is not None:
            check_whole("every", every, meaning="the steps between records")
        self.robust, self.count, self.every, self.name, self.loggers = (
            robust,
            hardest,
            every,
            name,
            tuple(loggers),
        )
        self.hardest: list[tuple[float, int]] = []  # (loss, position) since the last record
        self._watched: Robust | None = robust  # given or found, and None before a fit
        self._recorded = 0  # the Trainer's step at the last record

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find what to monitor."""
        if self.robust is None:
            self._watched = _find_only_one(pl_module, trainer.optimizers)
        self._recorded = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the hardest samples, and write a record if enough steps have passed.

        Steps and not batches are counted: with gradient accumulation a step has several batches,
        and `step // every` then grows only once.
        """
        self._note(outputs)
        step, every = trainer.global_step, self.every or trainer.log_every_n_steps
        if every and step // every > self._recorded // every:
            self._recorded = step
            self._look_for_collapse(step)
            record = self._record()
            # Lightning counts from 0, and has not counted this batch yet.
            own_step = trainer.fit_loop.epoch_loop._batches_that_stepped
            for logger in trainer.loggers:
                logger.log_metrics(record, step=own_step)
            if trainer.is_global_zero:
                self._log_more(own_step)
            self.hardest = []

    def _log_more(self, step: int) -> None:
        """What our own loggers get in addition: a histogram of the recent losses, and samples."""
        assert self._watched is not None
        numbers = {
            f"{self.name}/{key}": float(value) for key, value in _numbers_of(self._watched).items()
        }
        rows = [{"index": index, "loss": loss} for loss, index in self.hardest]
        for logger in self.loggers:
            logger.scalars(numbers, step)
            logger.histogram(f"{self.name}/losses", recent_losses(self._watched), step)
            if rows:
                logger.table(f"{self.name}/hardest", rows, step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the loggers write what they hold back."""
        for logger in self.loggers:
            logger.flush()

    def _note(self, outputs: Any) -> None:
        """Record the hardest samples of a batch, if `training_step` returns them."""
        if (
            not self.count
            or not isinstance(outputs, Mapping)
            or "losses" not in outputs
            or "index" not in outputs
        ):
            return
        losses, index = (
            torch.as_tensor(outputs[key]).detach().cpu().flatten() for key in ("losses", "index")
        )
        if len(losses) != len(index):
            raise LossError(
                f"expected one position for each of the {len(losses)} losses, got {len(index)}"
            )
        top = losses.topk(min(self.count, len(losses)))
        known = {position: loss for loss, position in self.hardest}
        for loss, position in zip(top.values.tolist(), index[top.indices].tolist(), strict=True):
            known[position] = max(loss, known.get(position, loss))
        self.hardest = heapq.nlargest(
            self.count, ((loss, position) for position, loss in known.items())
        )

    def _look_for_collapse(self, step: int) -> None:
        """For accelerators, where the state does not check because it must not wait. Logging waits
        anyway.
        """
        robust = self._watched
        assert robust is not None
        state = robust.state if isinstance(robust, KLRobustLoss) else robust._method_state
        if not host_reads(state.recent):
            state.look_for_collapse(step)

    def _record(self) -> dict[str, float]:
        """What the Trainer's loggers get: the numbers of the worst case, and the hardest samples."""
        robust = self._watched
        assert robust is not None
        numbers = _numbers_of(robust)
        for place, (loss, index) in enumerate(self.hardest, 1):
            numbers |= {f"hardest_{place}_index": index, f"hardest_{place}_loss": loss}
        return {f"{self.name}/{key}": float(value) for key, value in numbers.items()}

    # -- checkpoints
    @property
    def state_key(self) -> str:
        """The name under which Lightning keeps this callback's state."""
        return f"RobustMonitor[{self.name}]"

    def state_dict(self) -> dict[str, Any]:
        """The hardest samples, and the loss if it is not part of the LightningModule."""
        state: dict[str, Any] = {"hardest": list(self.hardest)}
        if isinstance(self.robust, nn.Module):
            state["robust"] = {
                key: value.clone() for key, value in self.robust.state_dict().items()
            }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it; called after `on_load_checkpoint` has checked."""
        self.hardest = [(float(loss), int(index)) for loss, index in state_dict["hardest"]]
        if isinstance(self.robust, nn.Module):
            self.robust.load_state_dict(state_dict["robust"])

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Raise if this callback saves the loss and it is not in the checkpoint."""
        kept = checkpoint["callbacks"].get(self.state_key, {})
        if isinstance(self.robust, nn.Module) and "robust" not in kept:
            raise CheckpointError(
                f"expected a checkpoint in which {self.state_key} saved its loss, got one without;"
                " resume with the monitor that was used when it was saved"
            )


def _numbers_of(robust: Robust) -> dict[str, Tensor | float]:
    """The numbers of the worst case on the recent losses."""
    return {
        "lam": robust.lam,
        "kl": robust.kl,
        "ess": robust.ess,
        "value": recent_value(robust),
    }


def _find_only_one(module: nn.Module, optimizers: list[Any]) -> Robust:
    """The one loss or robust optimizer of a LightningModule; several are ambiguous."""
    found: list[Robust] = [part for part in module.modules() if isinstance(part, KLRobustLoss)]
    found += [optimizer for optimizer in optimizers if isinstance(optimizer, RobustOptimizer)]
    if len(found) != 1:
        raise HyperparameterError(
            "expected one KLRobustLoss or robust optimizer in the LightningModule, got"
            f" {len(found)}; pass the one to monitor as RobustMonitor(robust=...)"
        )
    return found[0]
