"""The evaluation transform of a large image: the centre crop. Needs Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from scdro.data.images import Triple, normalised

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["IMAGENET", "EvalTransform", "as_normalised"]

IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class EvalTransform:
    """Resize the shorter side of the image to `resize`, and crop the central `size` x `size`.

    Example:
        >>> from PIL import Image
        >>> EvalTransform(resize=40, size=32)(Image.new("RGB", (64, 48)), np.random.default_rng(0)).shape
        torch.Size([3, 32, 32])
    """

    mean: Triple = IMAGENET[0]
    std: Triple = IMAGENET[1]
    size: int = 224
    resize: int = 256

    def __call__(self, image: Image, rng: np.random.Generator) -> Tensor:
        from PIL.Image import Resampling

        scale = self.resize / min(image.size)
        width, height = (max(self.resize, int(side * scale)) for side in image.size)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        image = image.resize((width, height), Resampling.BILINEAR)
        return as_normalised(image.crop((left, top, left + self.size, top + self.size)), self.mean, self.std)


def as_normalised(image: Image, mean: Triple, std: Triple) -> Tensor:
    """A Pillow image as a tensor, (3, h, w), minus the mean, divided by the standard deviation."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
    return normalised(pixels, mean, std)
