"""Random crops and flips of a whole batch at once."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CropFlip", "crop_flip"]


def crop_flip(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int = 4) -> Tensor:
    """Pad each image with black, crop it to its original size at its own position, and mirror it if `flip` is true.

    Args:
        images: (b, c, h, w). The result has the same dtype, in channels_last order.
        top, left: position of the crop in the padded image, in [0, 2 pad], (b,).
        flip: whether to mirror the columns, bool, (b,).

    Example:
        >>> images, still = torch.arange(9.0).reshape(1, 1, 3, 3), torch.tensor([1])
        >>> crop_flip(images, still, still, torch.tensor([True]), pad=1)[0, 0, 0].tolist()
        [2.0, 1.0, 0.0]
    """
    b, _, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    device = images.device
    columns = torch.arange(width, device=device)
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - columns, columns)
    rows = top[:, None] + torch.arange(height, device=device)
    each = torch.arange(b, device=device)
    return padded[each[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class CropFlip:
    """CIFAR's augmentation: a random crop of the image padded by `pad`, mirrored with probability one half.

    Example:
        >>> CropFlip()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), np.random.default_rng(0)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, pad: int = 4) -> None:
        self.pad = pad

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        places = torch.from_numpy(rng.integers(2 * self.pad + 1, size=(2, len(images)))).to(
            images.device
        )
        flip = torch.from_numpy(rng.random(len(images)) < 0.5).to(images.device)
        return crop_flip(images, places[0], places[1], flip, self.pad)
