"""Batches, read in one way by everything that takes a loader or a data set.

A batch, or an item of a data set, is one of two things:

- `(inputs, labels, ...)`: the network is called as `network(inputs)`, with the inputs as they are.
  What follows the labels, such as an index (`scdro.data.Indexed`) or a weight
  (`scdro.data.Weighted`), is left out.
- a dictionary with "labels" (or "label"), as Hugging Face's are: the network is called as
  `network(**others)`. This is also how a network gets several arguments.

A network's result may be a tensor, a dictionary, Hugging Face's output or a tuple, and its numbers
logits or probabilities: `logits_of` and `as_probabilities` tell them apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from scdro.errors import DataError, ScdroWarning

__all__ = ["LabelledBatch", "as_probabilities", "in_order", "logits_of", "on_device", "read_batch"]

LABELS = ("labels", "label")
EXPECTED = 'expected batches (inputs, labels, ...), or dictionaries with "labels"'


class LabelledBatch(NamedTuple):
    """A batch, or an item, told apart into inputs and labels, both as they came."""

    inputs: Any  # one positional argument, or a dictionary of arguments
    by_name: bool  # whether it is a dictionary
    labels: Any

    def call(self, network: nn.Module, device: torch.device | str) -> Any:
        """The network's result on this device."""
        inputs = on_device(self.inputs, device)
        try:
            return network(**inputs) if self.by_name else network(inputs)
        except TypeError as error:
            if self.by_name or "required positional argument" not in str(error):
                raise
            raise DataError(
                f"{EXPECTED}, and a network that takes the inputs as one argument: {error}. The"
                " labels are the second item; if the network takes several arguments, pass"
                ' dictionaries of them, with "labels"'
            ) from error


def read_batch(batch: Any) -> LabelledBatch:
    """Tell inputs from labels, of a batch or of a single item."""
    if isinstance(batch, Mapping):
        key = next((name for name in LABELS if name in batch), None)
        if key is None:
            raise DataError(
                f"{EXPECTED}, got a dictionary with {', '.join(map(str, batch)) or 'nothing'}"
            )
        inputs = {name: value for name, value in batch.items() if name != key}
        return LabelledBatch(inputs, True, batch[key])
    if isinstance(batch, Tensor) or not isinstance(batch, list | tuple) or len(batch) < 2:
        came = (
            f"{type(batch).__name__} of {len(batch)}"
            if isinstance(batch, list | tuple)
            else type(batch).__name__
        )
        raise DataError(f"{EXPECTED}, got a {came}")
    return LabelledBatch(batch[0], False, batch[1])


def on_device(thing: Any, device: torch.device | str) -> Any:
    """Move a batch to the device: a tensor, anything with a `to` method, or lists, tuples and
    dictionaries of these.
    """
    if hasattr(thing, "to"):
        return thing.to(device)
    if isinstance(thing, Mapping):
        return {key: on_device(value, device) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        parts = [on_device(part, device) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
    return thing


def in_order(loader: Any) -> Any:
    """The batches of a shuffling DataLoader in the order of its data set; any others as they come."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    data: Any = loader.dataset
    by_batch = loader.batch_size is None and loader.batch_sampler is not None
    sampler = getattr(loader.batch_sampler, "sampler", None) if by_batch else loader.sampler
    size = getattr(loader.batch_sampler, "batch_size", None) if by_batch else loader.batch_size
    if isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(data):
        order: Any = range(len(data))
    elif isinstance(sampler, SubsetRandomSampler):
        order = sorted(sampler.indices)
    else:
        if not isinstance(sampler, SequentialSampler):
            warnings.warn(
                "expected a loader that returns each sample once, in the order of the data or"
                " shuffled; a"
                f" {type(sampler if sampler is not None else loader.batch_sampler).__name__} may"
                " repeat samples, whose copies then look known, and rows are in its order",
                ScdroWarning,
                stacklevel=4,
            )
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=order,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
    )


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
        if within and torch.allclose(out.sum(1), torch.ones_like(out[:, 0]), atol=1e-2)
        else out.softmax(1)
    )
