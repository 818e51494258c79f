"""Predictions of networks: logits in a result, probabilities from logits, a pass over a loader.

A network's result may be a tensor, a dictionary, Hugging Face's output or a tuple, and its numbers
logits or probabilities. Only this module tells them apart: everything else in `scdro.fix` sees
probabilities, (n, k).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scdro._batches import read_batch
from scdro._validation import check_is_loader
from scdro.errors import DataError

__all__ = ["as_probabilities", "is_network", "logits_of", "outputs_of", "predict_loader"]

Array = npt.NDArray[Any]


def is_network(model: Any) -> bool:
    """Whether it is a torch network, and no estimator."""
    return isinstance(model, nn.Module)


def logits_of(result: Any) -> Tensor | None:
    """The logits in a model's result: a tensor, Hugging Face's outputs, a dictionary, or the first of several."""
    if isinstance(result, Tensor):
        return result
    if isinstance(getattr(result, "logits", None), Tensor):
        logits: Tensor = result.logits
        return logits
    values = (
        list(result.values())
        if isinstance(result, dict)
        else result
        if isinstance(result, list | tuple)
        else []
    )
    if isinstance(result, dict) and isinstance(result.get("logits"), Tensor):
        values = [result["logits"]]
    return next((value for value in values if isinstance(value, Tensor)), None)


def as_probabilities(out: Tensor) -> Tensor:
    """Probabilities, (n, k), from logits or from probabilities.

    A single output is that of the second of two classes. Outputs within [0, 1] that sum to one in
    each row are probabilities.
    """
    within = bool(((out >= 0) & (out <= 1)).all())
    if out.shape[1] == 1:
        second = out if within else out.sigmoid()
        return torch.cat([1 - second, second], 1)
    return (
        out
        if within and torch.allclose(out.sum(1), torch.ones(len(out)), atol=1e-2)
        else out.softmax(1)
    )


@torch.no_grad()
def outputs_of(network: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Array]:
    """Outputs on the CPU, (n, outputs), and labels, (n,), of one pass in evaluation mode; the mode is restored."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    training = network.training
    network.eval()
    outputs: list[Tensor] = []
    labels: list[Array] = []
    try:
        for batch in batches:
            read = read_batch(batch)
            y = np.asarray(torch.as_tensor(read.labels).cpu()).reshape(-1)
            result = logits_of(read.call(network, device))
            if result is None or result.ndim not in (1, 2) or len(result) != len(y):
                got = "none" if result is None else f"shape {tuple(result.shape)}"
                raise DataError(
                    f"expected outputs ({len(y)}, classes) for {len(y)} samples, got {got}"
                )
            if not bool(result.isfinite().all()):
                raise DataError(
                    "expected finite outputs of the network, got NaN or infinite ones; did training"
                    " diverge?"
                )
            outputs.append(result.cpu().reshape(len(y), -1))
            labels.append(y)
    finally:
        network.train(training)
    if not labels:
        raise DataError("expected a loader with samples, got an empty one")
    return torch.cat(outputs), np.concatenate(labels)


def predict_loader(network: Any, loader: Any) -> tuple[Array, Array]:
    """Probabilities, (n, k), and labels, (n,), of a network on a loader's batches."""
    if not is_network(network):
        raise DataError(
            f"expected two networks, or two of the same kind, got a {type(network).__name__}"
        )
    check_is_loader(loader)
    outputs, labels = outputs_of(network, loader)
    return as_probabilities(outputs.double()).numpy(), labels
