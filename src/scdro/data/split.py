"""Hold out a part of a data set, the same share of each class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scdro._validation import as_labels, check_whole

__all__ = ["hold_out"]


def hold_out(labels: Any, every: int) -> tuple[Tensor, Tensor]:
    """Positions of the samples to keep and to hold out. Holds out each `every`-th sample of each
    class, in data order.

    Example:
        >>> stays, aside = hold_out(torch.tensor([0, 0, 1, 1, 1]), every=2)
        >>> stays.tolist(), aside.tolist()
        ([0, 2, 4], [1, 3])
    """
    check_whole("every", every, 2, meaning="one sample in how many to hold out")
    y = as_labels(labels, least=0)
    order = torch.argsort(y, stable=True)  # class by class, in the order of the data
    counts = torch.bincount(y)
    place = torch.empty_like(order)  # of each sample within its class: 0, 1, ...
    place[order] = torch.arange(len(y)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    aside = place % every == every - 1
    return torch.nonzero(~aside)[:, 0], torch.nonzero(aside)[:, 0]
