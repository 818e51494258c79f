"""Out-of-fold predictions of networks, for a torch training loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scdro._batches import as_probabilities, read_batch
from scdro._frames import as_array
from scdro._validation import (
    check_class_sizes,
    check_is_dataset,
    check_no_missing,
    check_trains,
    check_whole,
)
from scdro.data import labels_of
from scdro.errors import DataError, HyperparameterError
from scdro.fix._folds import stratified
from scdro.fix._networks import outputs_of

__all__ = ["out_of_fold"]

Array = npt.NDArray[Any]


def out_of_fold(
    train: Callable[[Any], nn.Module],
    dataset: Any,
    folds: int = 2,
    *,
    labels: Any = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Tensor:
    """Class probabilities of every sample, (n, classes), by networks that were not trained on it.

    The samples are split into `folds` parts, stratified by class. For each part, `train` gets a
    `torch.utils.data.Subset` of the others and returns a network, which then predicts the part in
    evaluation mode.

    Args:
        train: a function that takes a data set and returns a trained network; it is called `folds`
            times. The network returns logits or probabilities of the classes (or an output with
            `logits`), or one of them for two classes. Outputs that are in [0, 1] for all samples
            (and sum to one, if there are several) are probabilities.
        dataset: a data set of items (input, label, ...), or of dictionaries with "labels", with a
            length; `dataset[i]` must always be the same sample. What follows the label is left out.
            Every class needs two samples or more.
        folds: number of parts, >= 2. Two are enough: the reference need not be as good as the final
            network.
        labels: the labels of the whole data set, of any kind; by default
            `scdro.data.labels_of(dataset)`.
        batch_size: batch size of the predictions.
        seed: seed of the split.

    Example:
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        >>> def train(subset):
        ...     net = nn.Linear(1, 2)
        ...     with torch.no_grad():
        ...         net.weight.copy_(torch.tensor([[-9.0], [9.0]])); net.bias.zero_()
        ...     return net
        >>> proba = out_of_fold(train, data)
        >>> from scdro.second_look import second_look_weights
        >>> proba.shape, second_look_weights(proba, data.tensors[1]).shape
        (torch.Size([40, 2]), torch.Size([40]))
    """
    check_trains(train)
    check_is_dataset(dataset)
    check_whole("batch_size", batch_size)
    n = len(dataset)
    y = as_array(labels_of(dataset) if labels is None else labels)
    if y.shape != (n,):
        raise DataError(f"expected one label for each of the {n} samples, got shape {y.shape}")
    check_no_missing(y, "labels")
    check_class_sizes(y)
    check_whole("folds", folds, 2, n, "at most as many as samples")
    parts: list[Tensor] = []
    order: list[Array] = []
    for seen, unseen in stratified(np.unique(y, return_inverse=True)[1], folds, seed):
        network = train(torch.utils.data.Subset(dataset, seen.tolist()))
        if not isinstance(network, nn.Module):
            raise HyperparameterError(
                f"expected train(subset) to return a torch network, got {type(network).__name__}"
            )
        parts.append(outputs_of(network, _batches(dataset, unseen, batch_size))[0].float())
        order.append(unseen)
        if parts[-1].shape[1] != parts[0].shape[1]:
            raise DataError(
                f"expected networks with {parts[0].shape[1]} outputs for every fold, got"
                f" {parts[-1].shape[1]}"
            )
    probabilities = as_probabilities(
        torch.cat(parts)
    )  # of all folds at once: a guess about each could differ
    found = torch.zeros_like(probabilities)
    found[torch.as_tensor(np.concatenate(order))] = probabilities
    return found


def _batches(dataset: Any, rows: Array, size: int) -> Iterator[Any]:
    """These items in batches, without a DataLoader, which would draw a random number; labels are not read."""
    for at in range(0, len(rows), size):
        items = [read_batch(dataset[i]) for i in rows[at : at + size].tolist()]
        inputs = torch.utils.data.default_collate([item.inputs for item in items])
        unread = torch.zeros(len(items))
        yield {**inputs, "labels": unread} if items[0].by_name else (inputs, unread)
