"""Labelled images in files, decoded on access."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from reproduction.data.memory import as_positions
from scdro.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageFiles", "Transform", "decoded"]

Transform = Callable[["Image", np.random.Generator], Tensor]
Self = TypeVar("Self", bound="ImageFiles")


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images by their paths below `root`; items are (tensor, label).

    Args:
        root: the folder that the paths are relative to.
        paths, labels: one per image; labels are integers in [0, classes).
        classes: number of classes.
        transform: a function of a Pillow image and a NumPy generator that returns a tensor.

    Example:
        >>> from reproduction.data.transforms import EvalTransform
        >>> paths = ["cat/1.jpg", "dog/1.jpg"]  # opened on access
        >>> data = ImageFiles("photos", paths, torch.tensor([0, 1]), classes=2, transform=EvalTransform())
        >>> len(data), data.counts.tolist()
        (2, [1, 1])
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        paths: Sequence[str],
        labels: Tensor,
        *,
        classes: int,
        transform: Transform,
    ) -> None:
        self.root, self.paths, self.labels = Path(root).expanduser(), list(paths), labels
        self.classes, self.transform = classes, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        """Random transforms draw from torch's generator, which a DataLoader seeds. See also `WorkerBatches`."""
        return self.load(i, np.random.default_rng(int(torch.randint(2**62, ())))), int(
            self.labels[i]
        )

    @property
    def counts(self) -> Tensor:
        """Number of images of each class."""
        return torch.bincount(self.labels, minlength=self.classes)

    def load(self, index: int, rng: np.random.Generator) -> Tensor:
        """The image at a position, transformed with the given random generator."""
        return self.transform(decoded(self.root, self.paths[index]), rng)

    def subset(self: Self, index: Any) -> Self:
        """The images at the given positions, in the given order."""
        part, index = copy.copy(self), as_positions(index, len(self))
        part.paths, part.labels = [self.paths[i] for i in index.tolist()], self.labels[index]
        return part

    def with_transform(self: Self, transform: Transform) -> Self:
        """The same images with another transform."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def fingerprint(self) -> str:
        """SHA-256 of the transform, the list, and the file size of each existing image; independent of the root."""
        if " at 0x" in repr(self.transform):
            raise DataError(
                "expected a transform whose repr describes it, such as a dataclass, got"
                f" {self.transform!r}, which differs from process to process"
            )
        digest = hashlib.sha256(f"{self.transform!r}\n".encode())
        for path, label in zip(self.paths, self.labels.tolist(), strict=True):
            digest.update(f"{path} {label} {_size(self.root / path)}\n".encode())
        return digest.hexdigest()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def decoded(root: Path, name: str) -> Any:
    """Decode the image file `name` below `root` to RGB."""
    path = root / name
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDataError(
            "expected Pillow to decode images; pip install scdro[images]"
        ) from error
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise MissingDataError(
            f"expected the image {path.absolute()}, which is in the list; is root,"
            f" {root.absolute()}, the right folder?"
        ) from None
    except OSError as error:
        raise DataError(
            f"expected an image that can be decoded, got {path.absolute()}: {error}"
        ) from error
