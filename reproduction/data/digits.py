"""scikit-learn's handwritten digits, made imbalanced; they need no files. Every third sample of each digit is for
testing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from reproduction.data.images import ImageData
from scdro.data import hold_out, step_imbalance

__all__ = ["DigitsHidden", "DigitsST"]

NAMES = tuple(str(digit) for digit in range(10))


class _Digits(ImageData):
    """Images of 8 x 8 pixels."""

    def __init__(
        self, labels: Callable[[Tensor], Tensor], names: Sequence[str], groups: bool
    ) -> None:
        pixels, digits = _digits()
        super().__init__(
            pixels.view(-1, 1, 8, 8).expand(-1, 3, -1, -1),
            labels(digits),
            mean=(0.305,) * 3,
            std=(0.376,) * 3,
            names=names,
            groups=digits if groups else None,
            group_names=NAMES if groups else (),
        )

    def _part(self, digits: Tensor, train: bool, few: Sequence[int], keep: int) -> None:
        stays, aside = hold_out(digits, 3)
        self._keep(stays[step_imbalance(digits[stays], few, keep)] if train else aside)


class DigitsHidden(_Digits):
    """Odd or even; of 2, 3, 8 and 9 only the last `keep` training images. The digits are groups, for evaluation alone.

    Example:
        >>> DigitsHidden().counts.tolist()
        [377, 380]
    """

    def __init__(self, root: object = None, train: bool = True, *, keep: int = 8) -> None:
        super().__init__(lambda digits: digits % 2, ("even", "odd"), groups=True)
        assert self.groups is not None
        self._part(self.groups, train, (2, 3, 8, 9), keep)


class DigitsST(_Digits):
    """Of 0 to 4 only the last `keep` training images.

    Example:
        >>> DigitsST().counts.tolist()
        [10, 10, 10, 10, 10, 122, 121, 120, 116, 120]
    """

    def __init__(self, root: object = None, train: bool = True, *, keep: int = 10) -> None:
        super().__init__(lambda digits: digits, NAMES, groups=False)
        self._part(self.labels, train, range(5), keep)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(np.round(x * (255 / 16)).astype(np.uint8)), torch.from_numpy(
        y.astype(np.int64)
    )
