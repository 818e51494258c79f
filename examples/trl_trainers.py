r"""The KL worst case over preference pairs and sequences in TRL's trainers: a file to copy.

    from trl_trainers import RobustDPOTrainer, RobustSFTTrainer

It is an example and no part of the library, because TRL (1.16) does not return the losses of
pairs: `RobustPairs` reads them where the trainer averages them, by watching `Tensor.mean`. Another
version of TRL may do it otherwise; then the first step says so (`tests/integrations/test_trl.py`
tests every loss).

With l_i the loss of pair i (DPO's -log sigmoid, or any other that TRL averages), the mean over
pairs becomes

    max over p with KL(p || uniform) <= rho of sum_i p_i l_i,

with a temperature of its own that finds rho. The papers' forms, which fix the temperature t
instead, are `fixed_temperature(t)`: KLDPO, and with `best_case=True` Dr.DPO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from trl import DPOTrainer, SFTTrainer

from scdro.errors import ClosureError, HyperparameterError
from scdro.integrations.loggers import Logger
from scdro.integrations.transformers import RobustTrainerLoss
from scdro.loss import KLRobustLoss
from scdro.printed import PrintedTemperature

__all__ = ["RobustDPOTrainer", "RobustPairs", "RobustSFTTrainer", "fixed_temperature"]


def fixed_temperature(t: float) -> KLRobustLoss:
    r"""t log mean exp(l/t) of each batch, for a fixed temperature instead of a radius.

    Its gradient is sum_i softmax(l/t)_i grad l_i, that of KLDPO (Xu et al., NeurIPS 2025), whose
    weights are exp((l_i - mean l)/t) up to a factor. With `best_case=True` the trainers negate
    losses and value: that is Dr.DPO (Wu et al., ICLR 2025), -t log mean exp(-l/t).

    Example:
        >>> robust = fixed_temperature(0.5)
        >>> losses = torch.tensor([0.2, 0.7, 1.0], requires_grad=True)
        >>> bool(torch.isclose(robust(losses), 0.5 * (losses / 0.5).exp().mean().log()))
        True
    """
    if not 0 < t < math.inf:
        raise HyperparameterError(f"expected t > 0, the temperature, got {t}")
    return KLRobustLoss(
        rho=100.0, beta=1.0, lam0=t, temperature=PrintedTemperature(t, lr=0.0), window=256
    )


class _Robust:
    """What both trainers share: the loss object, which is also a callback, and its numbers in all logs."""

    loss_is_scaled_for_ga = True  # the Trainer must not divide by the number of accumulated parts

    def __init__(
        self,
        *args: Any,
        robust: KLRobustLoss,
        best_case: bool = False,
        loggers: Sequence[Logger] = (),
        callbacks: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        self.robust_loss = RobustTrainerLoss(robust, best_case=best_case, loggers=loggers)
        super().__init__(*args, callbacks=[*(callbacks or ()), self.robust_loss], **settings)  # type: ignore[call-arg]

    def log(self, logs: dict[str, float], *args: Any, **settings: Any) -> None:
        if "loss" in logs:  # before the other callbacks see it
            logs.update(self.robust_loss.numbers())
        super().log(logs, *args, **settings)  # type: ignore[misc]


class RobustPairs(_Robust):
    """A mix-in for trainers whose loss is a mean over preference pairs: the worst case over pairs instead.

    For DPO there is `RobustDPOTrainer`. Without a reference, put it before TRL's CPOTrainer (CPO,
    SimPO):

        from trl.experimental.cpo import CPOConfig, CPOTrainer

        class RobustCPOTrainer(RobustPairs, CPOTrainer): ...

        settings = CPOConfig(loss_type="simpo", cpo_alpha=0.0, ...)
        RobustCPOTrainer(..., args=settings, robust=KLRobustLoss(rho=0.5))

    Before TRL's RewardTrainer it gives reward models the worst case over pairs.

    The trainer's own code computes the loss of each pair, so every `loss_type` works, and so do
    `loss_weights` (the worst case of the weighted sum), `f_divergence_type`, `ld_alpha` and
    precomputed reference log-probabilities. Not possible: "aot" and "aot_unpaired", which sort the
    batch, "sft" alone, which is one number for all of it (with others it adds the same to each
    pair), and terms that are not means over pairs (`cpo_alpha`, `center_rewards_coefficient`, the
    router loss of mixtures of experts); all are errors.

    The state is in the trainer's checkpoints. Gradient accumulation and several processes equal one
    large batch. `eval_loss` is the mean of the exact robust values of the batches.

    Args:
        robust: the loss, `KLRobustLoss(rho=...)`.
        best_case: the smallest weighted loss in the KL ball instead: hard pairs count less, as in
            Dr.DPO. For wrong preferences.
        loggers: see `scdro.integrations.loggers`.

    Example:
        >>> from trl.experimental.cpo import CPOTrainer
        >>> class RobustCPOTrainer(RobustPairs, CPOTrainer): ...
    """

    # of the losses in the mean that TRL takes: its reward trainer negates afterwards; 0 before the
    # first
    _sign = 0

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        kinds = set(getattr(self, "loss_types", ()))
        if kinds & {"aot", "aot_unpaired"} or kinds == {
            "sft"
        }:  # sorted, or one number for the whole batch
            raise HyperparameterError(
                f"expected a loss_type with a loss of its own for each pair, got {sorted(kinds)}"
            )
        both, chosen = inputs.get("input_ids"), inputs.get("chosen_input_ids")
        weights: Sequence[float] = getattr(self, "loss_weights", None) or [1.0]
        with _Means(len(both) // 2 if chosen is None else len(chosen), len(weights)) as means:
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[misc]
        mean, outputs = found if return_outputs else (found, None)
        if len(means.seen) != len(weights):
            raise ClosureError(
                f"expected a trainer that averages {len(weights)} vectors of losses over the pairs,"
                f" got {len(means.seen)} from {type(self).__name__}; this version of TRL may do it"
                " otherwise"
            )
        losses = sum(weight * vector for weight, vector in zip(weights, means.seen, strict=True))
        assert isinstance(losses, Tensor)
        if not self._sign:
            self._sign = _sign_of(mean.detach(), losses.detach().mean())
        value = self.robust_loss.objective(self._sign * losses)
        return (value, outputs) if return_outputs else value


class _Means(TorchFunctionMode):
    """Records the first vectors with one entry per pair that are averaged, because TRL does not return them."""

    def __init__(self, pairs: int, number: int) -> None:
        super().__init__()
        self.pairs, self.number = pairs, number
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is torch.Tensor.mean
            and len(args) == 1
            and not kwargs
            and len(self.seen) < self.number
        ):
            (values,) = args
            if values.shape == (self.pairs,) and values.requires_grad == torch.is_grad_enabled():
                self.seen.append(values)
        return func(*args, **(kwargs or {}))


def _sign_of(loss: Tensor, mean: Tensor) -> int:
    """The sign of the mean over pairs in the trainer's loss. Raise if the loss has other terms, which would be lost."""
    for sign in (1, -1):
        if bool((loss - sign * mean).abs() <= 100 * torch.finfo(mean.dtype).eps * (1 + mean.abs())):
            return sign
    raise HyperparameterError(
        f"expected a loss that is the mean over pairs, {float(mean):.6g}, got {float(loss):.6g},"
        " with other terms; leave off cpo_alpha, router_aux_loss_coef and"
        " center_rewards_coefficient"
    )


class RobustDPOTrainer(RobustPairs, DPOTrainer):
    """TRL's DPOTrainer with the worst case over preference pairs; see `RobustPairs` for what is possible.

    Args:
        robust: the loss, `KLRobustLoss(rho=...)`.
        best_case: the smallest weighted loss in the KL ball instead: hard pairs count less, as in
            Dr.DPO. For wrong preferences.
        loggers: see `scdro.integrations.loggers`.

    Example:
        >>> import inspect
        >>> robust = KLRobustLoss(rho=0.5)
        >>> # trainer = RobustDPOTrainer(model, args=DPOConfig(...), train_dataset=pairs, robust=robust)
        >>> issubclass(RobustDPOTrainer, DPOTrainer)
        True

    References: KLDPO and Dr.DPO fix the temperature instead; see `fixed_temperature`.
    """


class RobustSFTTrainer(_Robust, SFTTrainer):
    """TRL's SFTTrainer with the worst case over sequences: a sample is a sequence, its loss the mean over its tokens.

    Each sequence counts once, whatever its length; TRL's own loss is a mean over all tokens of a
    batch. Packing, `padding_free`, `compute_loss_func`, label smoothing and the router loss of
    mixtures of experts are errors.

    Args:
        robust: the loss, `KLRobustLoss(rho=...)`.
        best_case: the smallest weighted loss in the KL ball instead: hard sequences count less.
        loggers: see `scdro.integrations.loggers`.

    Example:
        >>> # trainer = RobustSFTTrainer(model, args=SFTConfig(...), train_dataset=texts, robust=KLRobustLoss(rho=0.5))
        >>> issubclass(RobustSFTTrainer, SFTTrainer)
        True
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        given = {
            "packing": self.args.packing,
            "padding_free": self.args.padding_free,
            "compute_loss_func": callable(self.compute_loss_func),
            "router_aux_loss_coef": self.aux_loss_enabled,
        }
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise HyperparameterError(
                "expected SFT with one row per sequence and no other terms in its loss, got"
                f" {', '.join(wrong)}; leave it off"
            )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        seen: list[Any] = []
        keep: Callable[..., None] = lambda _, __, outputs: seen.append(outputs)  # noqa: E731
        hook = model.register_forward_hook(keep)
        try:
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            hook.remove()
        log_probs, counts = seen[0].log_probs, seen[0].label_mask.sum(1)
        token_losses = -log_probs
        if self.args.loss_type == "dft":
            token_losses = token_losses * log_probs.exp().detach()
        value = self.robust_loss.objective(token_losses.sum(1) / counts.clamp_min(1), counts > 0)
        return (value, found[1]) if return_outputs else value
