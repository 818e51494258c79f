"""The exact robust value of a model over a data set, for choosing models without group labels.

    losses  <-  one per sample, batch by batch, in eval() mode; those of all processes, joined
    worst   <-  worst_case(losses, rho)
    report  <-  value, mean, temperature, and the hardest samples

Training follows the worst case from batch to batch; this is its exact value for a fixed model, so
values of different methods, settings and epochs compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scdro._batches import on_device, read_batch
from scdro._validation import check_is, check_is_loader, check_radius, check_trim, check_whole
from scdro.distributed import Group, Ranks
from scdro.errors import DataError, HyperparameterError, LossError
from scdro.functional import worst_case

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    `ess` is the effective sample size of the worst case as a share of the samples, in (0, 1].
    `hardest` are positions in the order of the loader, hardest first: they are positions in the
    data set if the loader does not shuffle.

    Example:
        >>> model, loss_fn = torch.nn.Identity(), torch.nn.MSELoss(reduction="none")
        >>> report = evaluate(model, [(torch.tensor([0.0, 0.0, 0.0, 2.0]), torch.zeros(4))], loss_fn, rho=0.5)
        >>> int(report.hardest[0]), round(float(report.mean), 3), round(float(report.value), 3)
        (3, 1.0, 2.907)
    """

    value: float  # the robust value, sum p l - lam0 KL(p, q)
    mean: float  # the average loss
    lam: float  # the temperature of the worst case
    kl: float  # KL(p, q), at most rho
    ess: float  # effective sample size, as a share
    hardest: Tensor = field(repr=False)  # positions, (at most `hardest`,)
    losses: Tensor = field(repr=False)  # (n,), float64, on the CPU
    weights: Tensor = field(repr=False)  # p, (n,)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: Callable[[Any, Any], Tensor],
    rho: float,
    *,
    lam0: float = 1e-3,
    trim: float = 0.0,
    hardest: int = 100,
    device: torch.device | str | None = None,
    process_group: Group = None,
) -> Evaluation:
    """Compute the exact robust value of a model on a data set, and its hardest samples, in one
    pass.

    The model runs batch by batch, and only the losses are kept (8 bytes per sample).

    Args:
        model: evaluated in eval() mode; its mode is restored afterwards.
        loader: batches (inputs, target, ...), as a DataLoader's are; what follows the target is
            ignored. Or dictionaries with the model's arguments and "labels", as Hugging Face's are.
        loss_fn: loss_fn(model(input), target) with one loss per sample (`reduction="none"`). For
            dictionaries loss_fn(model(**arguments), labels), such as
            `scdro.integrations.transformers.sequence_losses`.
        rho, lam0, trim: as in `worst_case`.
        hardest: number of hardest samples to report.
        device: the model's device; by default that of its first parameter.
        process_group: the processes whose loaders each yield a part of the data set: None for all,
            if torch.distributed is initialised (all must then call this function); False for this
            process only. All get the same result, for all the data: rank 0's samples first, then
            rank 1's. If their parts are contiguous (`scdro.distributed.shard`), positions are
            positions in the data set.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]
        >>> report = evaluate(model, data, lambda out, y: (out - y).square().squeeze(1), rho=0.5)
        >>> report.mean <= report.value
        True
    """
    if isinstance(loader, (list, tuple)) and any(isinstance(batch, Tensor) for batch in loader):
        raise DataError(
            "expected batches (x, y), such as [(x, y)] or a DataLoader, got a"
            f" {type(loader).__name__} of tensors"
        )
    check_is(model, nn.Module, "a network as model")
    if not callable(loss_fn):
        raise HyperparameterError(
            f"expected loss_fn(output, target), a function of one loss per sample, got {loss_fn!r}"
        )
    check_is_loader(loader)
    check_radius(rho, lam0)
    check_trim(trim)
    check_whole("hardest", hardest, 0, meaning="the number of samples to report")
    if device is None:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
    # Each module's own mode: some may have been frozen in eval mode on purpose.
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        parts = [
            _losses_of_batch(model, batch, loss_fn, device).to("cpu", torch.float64)
            for batch in loader
        ]
    finally:
        for module, mode in training.items():
            module.training = mode
    # (n,), of all processes, so that all of them find the same worst case.
    losses = _join_losses(parts, Ranks(process_group))
    worst = worst_case(losses, rho, lam0, trim=trim)
    order = torch.argsort(losses, descending=True, stable=True)[:hardest]
    return Evaluation(
        float(worst.value),
        float(losses.mean()),
        float(worst.lam),
        float(worst.kl),
        float(worst.ess),
        order,
        losses,
        worst.weights,
    )


def _losses_of_batch(
    model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Tensor], device: torch.device | str
) -> Tensor:
    """The losses of one batch, (m,), on the model's device."""
    read = read_batch(batch)
    return loss_fn(read.call(model, device), on_device(read.labels, device))


def _join_losses(parts: list[Tensor], ranks: Ranks) -> Tensor:
    """The losses of all batches of all processes, (n,).

    A process whose losses are not vectors tells the others before it raises: they wait for it.
    """
    bad = next((tuple(part.shape) for part in parts if part.ndim != 1), None)
    if bad is not None:
        ranks.fail(torch.device("cpu"))
        advice = "average over the other dimensions" if bad else 'compute it with reduction="none"'
        raise LossError(
            f"expected loss_fn to return one loss per sample, a vector, got shape {bad}; {advice}"
        )
    losses = torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)
    if not parts and ranks.size == 1:
        raise LossError("expected at least one batch, got an empty loader")
    return ranks.join(losses, None, None)[0]
