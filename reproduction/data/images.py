"""Labelled images in memory, as one uint8 tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reproduction.data.memory import Augmentation, InMemory, tensor_of
from scdro.errors import DataError

__all__ = ["ImageData", "Triple", "normalised"]

Triple = tuple[float, float, float]


def normalised(images: Tensor, mean: Triple, std: Triple) -> Tensor:
    """uint8 images (..., 3, h, w) as floats in [0, 1], minus the mean, divided by the standard deviation."""
    shift, scale = (
        torch.tensor(v, device=images.device).mul(255).view(3, 1, 1) for v in (mean, std)
    )
    return images.float().sub_(shift).div_(scale)


class ImageData(InMemory):
    """Images (n, 3, h, w), uint8 in channels_last order, with labels; items are (normalised float image, label).

    Args:
        images: uint8, (n, 3, h, w), as a tensor or array.
        labels: integers in [0, classes), (n,).
        mean, std: of each channel, for values in [0, 1].
        names: names of the classes; their number is the number of classes.
        groups: integers, (n,), used only for evaluation, such as fine labels.
        group_names: names of the groups.

    `positions` are the positions of the images in the data set that this one is a part of.

    Example:
        >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> data = ImageData(images, torch.tensor([0, 1, 1, 1]), mean=(0.5,) * 3, std=(0.5,) * 3, names=("a", "b"))
        >>> data.counts.tolist(), data.subset(torch.tensor([0, 3])).counts.tolist()
        ([1, 3], [1, 1])
    """

    def __init__(
        self, images: Any, labels: Any, *, mean: Triple, std: Triple, **about: Any
    ) -> None:
        images = tensor_of(images, "images")
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise DataError(
                f"expected uint8 images (n, 3, h, w), got {images.dtype} of shape"
                f" {tuple(images.shape)}"
            )
        if (
            len(mean) != 3
            or len(std) != 3
            or not all(map(math.isfinite, (*mean, *std)))
            or min(std) <= 0
        ):
            raise DataError(
                f"expected three means and three standard deviations > 0, got {mean} and {std}"
            )
        self.mean, self.std = mean, std
        super().__init__(images.contiguous(memory_format=torch.channels_last), labels, **about)

    @property
    def images(self) -> Tensor:
        return self.inputs

    def batch(self, index: Tensor, augment: Augmentation | None = None, rng: Any = None) -> Tensor:
        # In NHWC, whole images are copied and stay in channels_last order.
        images = self.inputs.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)
        return self.normalised(images if augment is None else augment(images, rng))

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 images as floats, minus the mean, divided by the standard deviation; keeps the memory format."""
        return normalised(images, self.mean, self.std)

    def _preparation(self) -> tuple[Any, ...]:
        return self.mean, self.std

    def _bytes_first(self) -> Tensor:
        return self.inputs.permute(0, 2, 3, 1)

    def _keep(self, index: Tensor) -> None:
        super()._keep(index)
        self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
