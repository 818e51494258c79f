"""Batches, read in one way by everything that takes a loader or a data set.

A batch, or an item of a data set, is one of two things:

- `(inputs, labels, ...)`: the network is called as `network(inputs)`, with the inputs as they are.
  What follows the labels, such as an index (`scdro.data.Indexed`) or a weight
  (`scdro.data.Weighted`), is left out.
- a dictionary with "labels" (or "label"), as Hugging Face's are: the network is called as
  `network(**others)`. This is also how a network gets several arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scdro.errors import DataError

__all__ = ["LabelledBatch", "on_device", "read_batch"]

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
