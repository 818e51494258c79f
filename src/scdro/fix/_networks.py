"""Predictions of networks: one pass over a loader. Everything else in `scdro.fix` sees probabilities, (n, k)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scdro._batches import as_probabilities, in_order, logits_of, read_batch
from scdro._validation import check_is_loader
from scdro.errors import DataError

__all__ = ["is_network", "outputs_of", "predict_loader"]

Array = npt.NDArray[Any]


def is_network(model: Any) -> bool:
    """Whether it is a torch network, and no estimator."""
    return isinstance(model, nn.Module)


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
    outputs, labels = outputs_of(network, in_order(loader))
    return as_probabilities(outputs.double()).numpy(), labels
