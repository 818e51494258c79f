"""Transforms of a large image: a random crop, mirrored, with changed colours, for training, and the centre crop for
evaluation. Need Pillow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reproduction.data.images import Triple, normalised

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["IMAGENET", "EvalTransform", "TrainTransform", "as_normalised", "random_box"]

IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class TrainTransform:
    """A random part of the image at `size`, mirrored every other time, with brightness, contrast and saturation changed
    by factors of up to 1 +- jitter, in random order.

    The part has 8 to 100% of the area and sides of 3:4 to 4:3, as in "Going deeper with
    convolutions".

    Example:
        >>> from PIL import Image
        >>> TrainTransform(size=32)(Image.new("RGB", (64, 48)), np.random.default_rng(0)).shape
        torch.Size([3, 32, 32])
    """

    mean: Triple = IMAGENET[0]
    std: Triple = IMAGENET[1]
    size: int = 224
    jitter: float = 0.4

    def __call__(self, image: Image, rng: np.random.Generator) -> Tensor:
        from PIL import ImageEnhance, ImageOps
        from PIL.Image import Resampling

        image = image.resize(
            (self.size, self.size), Resampling.BILINEAR, box=random_box(*image.size, rng)
        )
        if rng.random() < 0.5:
            image = ImageOps.mirror(image)
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        factors = rng.uniform(1 - self.jitter, 1 + self.jitter, size=3)
        for k in rng.permutation(3):
            image = enhancers[k](image).enhance(float(factors[k]))
        return as_normalised(image, self.mean, self.std)


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
        return as_normalised(
            image.crop((left, top, left + self.size, top + self.size)), self.mean, self.std
        )


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop; the centre after ten crops that do not fit."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def as_normalised(image: Image, mean: Triple, std: Triple) -> Tensor:
    """A Pillow image as a tensor, (3, h, w), minus the mean, divided by the standard deviation."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
    return normalised(pixels, mean, std)
