"""scikit-learn's handwritten digits made imbalanced as the paper's data are: what is there without any file."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scdro.data.images import ImageData
from scdro.data.imbalance import step_imbalance
from scdro.data.split import hold_out

__all__ = ["DigitsST"]


class DigitsST(ImageData):
    """Digits of 8 x 8 pixels; of 0 to 4 only the last 10 training images. Every third of each digit is for testing.

    Example:
        >>> DigitsST().counts.tolist()
        [10, 10, 10, 10, 10, 122, 121, 120, 116, 120]
    """

    def __init__(self, root: object = None, train: bool = True, *, keep: int = 10) -> None:
        pixels, labels = _digits()
        stays, aside = hold_out(labels, 3)
        super().__init__(
            pixels.view(-1, 1, 8, 8).expand(-1, 3, -1, -1),
            labels,
            mean=(0.305,) * 3,
            std=(0.376,) * 3,
            names=[str(digit) for digit in range(10)],
        )
        self._keep(stays[step_imbalance(labels[stays], range(5), keep)] if train else aside)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(np.round(x * (255 / 16)).astype(np.uint8)), torch.from_numpy(y.astype(np.int64))
