"""The robust loss for Hugging Face's Trainer: a `compute_loss_func` that is also a callback.

The Trainer calls the loss for each accumulated part of a batch, and the callback once per optimizer
step:

    losses     <-  per-sample losses from the model's outputs and the labels       (self.losses)
    objective  <-  the robust loss of the batch so far, times this part's share    (self.objective)
    step       <-  on_pre_optimizer_step, the optimizer; the attached loss commits its state
    logs       <-  lam, KL, effective sample size, robust value                    (on_log)

Its state is in `trainer_state.json`, as all callbacks' is; `on_train_begin` reads it back.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, ExportableState

from scdro._plateau import RepeatedWarning
from scdro._scalar import Scalar, host_reads
from scdro._validation import check_is
from scdro.errors import CheckpointError, ClosureError, DataError, HyperparameterError
from scdro.integrations.loggers import Logger, recent_losses, recent_value
from scdro.loss import KLRobustLoss

__all__ = ["RobustTrainerLoss", "language_model_losses", "sequence_losses", "token_losses"]

Losses = Tensor | tuple[Tensor, Tensor | None]
_VERSION = 1
_LOG = logging.getLogger(__name__)


def sequence_losses(outputs: Any, labels: Tensor) -> Losses:
    """The loss of each sequence, logits (b, k), as transformers' own models choose it.

    Labels (b,) are class numbers: cross-entropy. One output, k = 1: squared error. Labels (b, k) of
    floats, one for each of several answers: the mean of their binary cross-entropies.

    Example:
        >>> sequence_losses({"logits": torch.zeros(3, 2)}, torch.tensor([0, 1, 1])).tolist()
        [0.693..., 0.693..., 0.693...]
    """
    logits = _require_logits(outputs, 2)
    if logits.shape[1] == 1 and labels.numel() == len(logits):
        return (logits[:, 0] - labels.flatten()).square()
    if labels.is_floating_point() and labels.shape == logits.shape:
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    if labels.is_floating_point() or labels.shape != logits.shape[:1]:
        raise DataError(
            f"expected one class number per sequence, for logits of shape {tuple(logits.shape)},"
            f" got labels of shape {tuple(labels.shape)} and {labels.dtype}; RobustTrainerLoss(...,"
            " losses=...) takes your own function"
        )
    return F.cross_entropy(logits, labels, reduction="none")


def token_losses(outputs: Any, labels: Tensor) -> Losses:
    """Mean cross-entropy over each sequence's tokens: logits (b, t, k), labels (b, t), -100 for
    ignored tokens.

    Example:
        >>> losses, counts = token_losses({"logits": torch.zeros(1, 4, 2)}, torch.tensor([[0, 1, -100, -100]]))
        >>> losses.tolist(), counts.tolist()
        ([0.693...], [True])
    """
    logits = _require_logits(outputs, 3)
    _check_tokens(logits, labels)
    losses = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100
    )
    number = (labels != -100).sum(1)
    return losses.view(labels.shape).sum(1) / number.clamp_min(1), number > 0


def language_model_losses(outputs: Any, labels: Tensor) -> Losses:
    """Mean cross-entropy over each sequence's next tokens. Labels are the input, -100 for ignored
    tokens.

    Example:
        >>> losses, counts = language_model_losses({"logits": torch.zeros(1, 4, 2)}, torch.tensor([[0, 1, 1, -100]]))
        >>> losses.tolist()
        [0.693...]
    """
    logits = _require_logits(outputs, 3)
    _check_tokens(logits, labels)
    return token_losses({"logits": logits[:, :-1]}, labels[:, 1:])


def _find_logits(outputs: Any) -> Tensor | None:
    """The logits in transformers' outputs, a dictionary, or a tuple that begins with them."""
    found = (
        outputs[0]
        if isinstance(outputs, tuple)
        else outputs.get("logits")
        if isinstance(outputs, dict)
        else None
    )
    return (
        found.to(torch.promote_types(found.dtype, torch.float32))
        if isinstance(found, Tensor)
        else None
    )


def _require_logits(outputs: Any, dimensions: int) -> Tensor:
    """The logits, or an error that says which shape the model should return."""
    logits = _find_logits(outputs)
    if logits is None or logits.ndim != dimensions:
        shape = (
            "(b, k), one row per sequence" if dimensions == 2 else "(b, t, k), one row per token"
        )
        got = (
            f"{type(outputs).__name__} without"
            if logits is None
            else f"those of shape {tuple(logits.shape)}"
        )
        raise ClosureError(
            f'expected a model that returns logits {shape}, as {{"logits": ...}} or first in a'
            f" tuple, got {got}; RobustTrainerLoss(..., losses=...) takes token_losses,"
            " language_model_losses or your own function"
        )
    return logits


def _check_tokens(logits: Tensor, labels: Tensor) -> None:
    """Raise unless there is a label for each token."""
    if labels.shape != logits.shape[:2]:
        raise DataError(
            f"expected one label per token, shape {tuple(logits.shape[:2])}, got"
            f" {tuple(labels.shape)}; -100 for tokens that do not count"
        )


def _spread_of_chances(outputs: Any) -> Tensor | None:
    """The largest difference in a class probability between two sequences, on the device, without
    waiting for it.
    """
    logits = _find_logits(outputs)
    if logits is None or logits.ndim != 2 or min(logits.shape) < 2:
        return None
    chances = torch.softmax(logits.detach(), 1)
    return (chances.amax(0) - chances.amin(0)).max()


class RobustTrainerLoss(TrainerCallback, ExportableState):
    """`KLRobustLoss` for `Trainer`. Pass the same object twice:

        robust = RobustTrainerLoss(KLRobustLoss(rho=0.5))
        trainer = Trainer(..., compute_loss_func=robust, callbacks=[robust])

    A sample is a sequence; those with the label -100 do not count. The state is updated at each
    optimizer step, so gradient accumulation is equivalent to one large batch, even if the last part
    is smaller. Evaluation returns the exact robust value of each batch and does not change the
    state. lam, KL and the effective sample size are in the Trainer's logs, the state in its
    checkpoints (`trainer_state.json`).

    The first step gives all samples the same weight, unless the temperature has an initial value.

    Args:
        robust: the loss.
        losses: a function of the model's outputs and the labels that returns per-sample losses, or
            a pair of losses and sample weights, or a mask that is False for ignored samples:
            `sequence_losses`, `token_losses`, `language_model_losses`, or your own. With rho = 0 it
            is a plain loss with these weights.
        best_case: the smallest weighted loss in the KL ball instead of the largest: hard samples
            count less. For wrong labels, as in Dr.DPO.
        loggers: where the first process writes lam, KL, the effective sample size and a histogram
            of the recent losses, each time the Trainer logs; see `scdro.integrations.loggers`.

    Example:
        >>> robust = RobustTrainerLoss(KLRobustLoss(rho=0.5), token_losses)
    """

    def __init__(
        self,
        robust: KLRobustLoss,
        losses: Callable[[Any, Tensor], Losses] = sequence_losses,
        *,
        best_case: bool = False,
        loggers: Sequence[Logger] = (),
    ) -> None:
        check_is(robust, KLRobustLoss, "KLRobustLoss(rho=...)")
        self.robust, self.losses, self.best_case, self.loggers = (
            robust,
            losses,
            best_case,
            tuple(loggers),
        )
        self._attached = False  # whether the Trainer has called the callback
        self._used = False  # whether it has called the loss
        self._averages = False  # whether it multiplies a loss by the number of processes
        self._value = torch.zeros(())  # the objective of the current batch's parts so far
        # Of class probabilities in the last batch, for sequence outputs.
        self._spread: Tensor | None = None
        self._plateau_warning = RepeatedWarning()

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        if self._averages and torch.is_grad_enabled():
            raise HyperparameterError(
                "expected TrainingArguments(average_tokens_across_devices=False) with several"
                " processes, got True; the Trainer would multiply a mean over samples by the number"
                " of processes"
            )
        if labels is None:
            raise DataError(
                'expected a column "labels" in the data, which the Trainer hands to the loss, got'
                ' none; rename yours, and name it in TrainingArguments(label_names=["labels"]) if'
                " the model does not take one"
            )
        # The user's function may return weights, or a mask, as a second value.
        found = self.losses(outputs, labels)
        losses, weights = found if isinstance(found, tuple) else (found, None)
        if weights is None and labels.shape == losses.shape and not labels.is_floating_point():
            weights = labels != -100
        if torch.is_grad_enabled():
            self._spread = _spread_of_chances(outputs)
        return self.objective(losses, weights)

    def objective(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """The robust objective of per-sample losses; in training, its gradient is this part's share
        of the batch's.

        `weights` are sample weights, or a mask.
        """
        if not (self.robust.training and torch.is_grad_enabled()):
            return self._value_of(losses, weights)
        if not self._attached:
            raise ClosureError(
                "expected this object as a callback of the Trainer too, got it only as"
                " compute_loss_func; pass callbacks=[robust] as well"
            )
        self._used = True
        value = self._value_of(losses, weights)
        if value.grad_fn is None:  # a bad batch that was skipped
            return value
        part: Tensor = value * self._share()
        # The Trainer logs the sum over the parts, which should be the objective of the whole batch.
        before, self._value = self._value, value.detach()
        return part + (self._value - before - part).detach()

    def _value_of(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """The robust loss, or for the best case minus the robust loss of the negated losses."""
        value: Tensor = (
            -self.robust(-losses, weights) if self.best_case else self.robust(losses, weights)
        )
        return value

    def _share(self) -> Scalar:
        """This part's share of the batch so far. Rescales the gradients of the earlier parts to
        their shares.
        """
        assert self.robust.accumulation is not None
        # Earlier gradients were weighted as if their parts were the whole batch. With this part
        # they are only 1 - share of it.
        *before, share = self.robust.accumulation.shares
        if before:
            self.robust.accumulation.rescale(1.0 - share)
        else:
            self._value = torch.zeros_like(self._value)
        return share

    # -- what the Trainer calls
    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Resume the state, and attach to the optimizer, which exists only now."""
        if args.label_smoothing_factor:
            raise HyperparameterError(
                f"expected label_smoothing_factor=0, got {args.label_smoothing_factor}: the Trainer"
                " ignores it with a custom loss; smooth in your own losses=... function"
            )
        self._averages = args.world_size > 1 and args.average_tokens_across_devices
        if state.global_step:
            self._resume(state.stateful_callbacks.get(type(self).__name__))
            _LOG.info("resumed the loss at step %d: %s", state.global_step, self.numbers())
        self._log_before_reporters()
        self.robust.attach(known["optimizer"])
        self._attached, self._used = True, False

    def _log_before_reporters(self) -> None:
        """Become the first callback: TensorBoard's and others write what is in the logs when they
        are called.

        The Trainer puts its reporters before all other callbacks and does not hand itself to them,
        so the list of callbacks is found where this one is called from.
        """
        frame = sys._getframe(1)
        while frame is not None and not isinstance(frame.f_locals.get("self"), CallbackHandler):
            frame = frame.f_back  # type: ignore[assignment]
        callbacks = [] if frame is None else frame.f_locals["self"].callbacks
        if self in callbacks:
            callbacks.remove(self)
            callbacks.insert(0, self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Raise if the loss was never called: it was passed as a callback only."""
        if not self._used:
            raise ClosureError(
                "expected this object as the Trainer's compute_loss_func too, got it only as a"
                " callback; pass compute_loss_func=robust as well"
            )

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **known: Any
    ) -> None:
        """Add lam, KL and the effective sample size to what the Trainer logs."""
        robust = self.robust.state
        # On accelerators the state must not wait; logging waits anyway.
        if not host_reads(robust.recent):
            robust.look_for_collapse(state.global_step)
        if self._spread is not None:
            same = (
                "the same one for every sequence of a batch" if float(self._spread) < 1e-3 else None
            )
            self._plateau_warning.check(same, state.global_step)
            self._spread = None
        if logs is None or "loss" not in logs:
            return
        numbers = self.numbers()
        for record in (logs, state.log_history[-1] if state.log_history else {}):
            record.update(numbers)
        if state.is_world_process_zero:
            for logger in self.loggers:
                logger.scalars({"loss": float(logs["loss"]), **numbers}, state.global_step)
                sign = -1.0 if self.best_case else 1.0
                logger.histogram(
                    "robust_losses", sign * recent_losses(self.robust), state.global_step
                )

    def numbers(self) -> dict[str, float]:
        """What the logs get: `robust_lam`, `robust_kl`, `robust_ess`, and `robust_value`, the worst
        case of the recent losses."""
        found = {f"robust_{key}": float(getattr(self.robust, key)) for key in ("lam", "kl", "ess")}
        sign = -1.0 if self.best_case else 1.0
        return {**found, "robust_value": sign * recent_value(self.robust)}

    def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        for logger in self.loggers:
            logger.flush()

    # -- checkpoints
    def state(self) -> dict[str, Any]:
        """The state of the loss for `trainer_state.json`: torch's bytes as text, with a checksum."""
        buffer = io.BytesIO()
        torch.save(self.robust.state_dict(), buffer)
        raw = buffer.getvalue()
        own = {
            "version": _VERSION,
            "robust": base64.b64encode(raw).decode(),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
        return {"args": {}, "attributes": own}

    def _resume(self, saved: Any) -> None:
        """Load what `state` made, after checking that it is whole."""
        own = saved.get("attributes", {}) if isinstance(saved, dict) else {}
        if own.get("version") != _VERSION:
            raise CheckpointError(
                f"expected a checkpoint with the state of {type(self).__name__}, version"
                f" {_VERSION}, got {own.get('version', 'none')}; was it made without"
                " callbacks=[robust]?"
            )
        try:
            raw = base64.b64decode(own["robust"])
        except (KeyError, ValueError):
            raw = b""
        if hashlib.sha256(raw).hexdigest() != own.get("sha256"):
            raise CheckpointError(
                "expected the saved state of the loss, got a damaged one; resume from an older"
                " checkpoint"
            )
        self.robust.load_state_dict(torch.load(io.BytesIO(raw), weights_only=True))
