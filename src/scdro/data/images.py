"""Labelled images that live in memory as one uint8 tensor."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scdro.errors import DataError

__all__ = ["ImageData"]

Self = TypeVar("Self", bound="ImageData")
Triple = tuple[float, float, float]


class ImageData(Dataset[tuple[Tensor, int]]):
    """Images (n, 3, h, w), uint8 in channels_last order, with labels; items are (normalised float image, label).

    Args:
        images: uint8, (n, 3, h, w).
        labels: integers in [0, classes), (n,).
        mean, std: of the channels, with values in [0, 1].
        names: of the classes; their number is the number of classes.
        groups: integers, (n,), that serve evaluation alone, such as fine labels.
        group_names: of the groups.

    `positions` says where each image was in the data set that this one is a part of.

    Example:
        >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> data = ImageData(images, torch.tensor([0, 1, 1, 1]), mean=(0.5,) * 3, std=(0.5,) * 3, names=("a", "b"))
        >>> data.counts.tolist(), data.subset(torch.tensor([0, 3])).counts.tolist()
        ([1, 3], [1, 1])
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Triple,
        std: Triple,
        names: Sequence[str],
        groups: Tensor | None = None,
        group_names: Sequence[str] = (),
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise DataError(f"expected uint8 images (n, 3, h, w), got {images.dtype} of shape {tuple(images.shape)}")
        _check_labels(labels, len(images), len(names), "labels")
        if groups is not None:
            _check_labels(groups, len(images), len(group_names), "groups")
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = labels
        self.groups = groups
        self.mean, self.std = mean, std
        self.names, self.group_names = tuple(names), tuple(group_names)
        self.positions = torch.arange(len(images))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.normalised(self.images[i]), int(self.labels[i])

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> Tensor:
        """Images of each class."""
        return torch.bincount(self.labels, minlength=self.classes)

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 images as floats less the mean over the standard deviation; the order in memory stays."""
        mean, std = (torch.tensor(v, device=images.device).mul(255).view(3, 1, 1) for v in (self.mean, self.std))
        return images.float().sub_(mean).div_(std)

    def subset(self: Self, index: Tensor) -> Self:
        """The images of the given positions, in the given order."""
        part = copy.copy(self)
        part._keep(index)
        return part

    def to(self: Self, device: torch.device | str) -> Self:
        """The same data on a device; batches are then made there."""
        moved = copy.copy(self)
        moved.images, moved.labels = self.images.to(device), self.labels.to(device)
        moved.groups = None if self.groups is None else self.groups.to(device)
        return moved

    def fingerprint(self) -> str:
        """SHA-256 of everything that a model or its evaluation sees."""
        digest = hashlib.sha256(repr((tuple(self.images.shape), self.mean, self.std, self.names)).encode())
        for part in (self.images.permute(0, 2, 3, 1), self.labels, self.groups):
            digest.update(b"none" if part is None else part.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def _keep(self, index: Tensor) -> None:
        index = index.to(self.images.device)
        self.images = self.images[index].contiguous(memory_format=torch.channels_last)
        self.labels = self.labels[index]
        self.groups = None if self.groups is None else self.groups[index]
        self.positions = self.positions[index.cpu()]


def _check_labels(labels: Tensor, n: int, classes: int, what: str) -> None:
    if labels.dtype != torch.int64 or tuple(labels.shape) != (n,):
        raise DataError(f"expected int64 {what} of shape ({n},), got {labels.dtype} of shape {tuple(labels.shape)}")
    if n and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"expected {what} in [0, {classes}), by the names given, got {int(labels.min())} to {int(labels.max())}"
        )
