"""How images are read."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scdro.errors import CheckpointError, DataError, MissingDataError
from scdro.tables._read import polars, shown

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Pictures", "as_floats", "images_below", "printable"]

Array = npt.NDArray[Any]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
LARGEST = 50_000_000  # pixels of an image
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of each channel


@dataclass(frozen=True)
class Pictures:
    """How images are read: RGB, the shorter side scaled to `size`, the longer one cropped to its middle."""

    size: int

    def open(self, data: Any) -> tuple[pl.DataFrame, Array]:
        """All images below a folder, or one image."""
        path = Path(data)
        if path.is_file():
            paths, root = [path], path.parent
        elif path.is_dir():
            paths, root = images_below(path), path
        else:
            raise MissingDataError(f"expected an image or a folder of images, found none, {shown(path)}")
        if not paths:
            raise DataError(f"expected images ({', '.join(sorted(ENDINGS))}) in {shown(path)}, got none")
        names = [printable(p.relative_to(root)) for p in paths]
        return polars().DataFrame({"path": names}), self.read(paths)

    def read(self, paths: list[Path]) -> Array:
        """(n, 3, size, size), uint8."""
        found = np.empty((len(paths), 3, self.size, self.size), np.uint8)
        for k, path in enumerate(paths):
            found[k] = _decoded(path, self.size)
        return found

    def as_json(self) -> dict[str, Any]:
        return {"size": self.size}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Pictures:
        size = about["size"]
        if not isinstance(size, int) or not 8 <= size <= 1024:
            raise CheckpointError(f"expected images of 8 to 1,024 pixels, got {shown(size)}")
        return cls(size)


def printable(path: Path) -> str:
    """A path that can be printed: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def images_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())


def _decoded(path: Path, size: int) -> Array:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise MissingDataError("expected Pillow, to decode images; pip install 'scdro[images]'") from error
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > LARGEST:
                raise DataError(f"expected at most {LARGEST:,} pixels, got {image.width} x {image.height}")
            image.draft("RGB", (2 * size, 2 * size))
            fitted = ImageOps.fit(image.convert("RGB"), (size, size))
            return np.array(fitted, np.uint8).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, MemoryError, EOFError, Image.DecompressionBombError) as error:
        # Pillow's own errors, DataError above among them: what a damaged or hostile file can do
        raise DataError(
            f"expected an image, got {shown(printable(path), 200)}: {error}; remove or replace it"
        ) from error


def as_floats(X: Array) -> Tensor:
    shift, scale = (torch.tensor(v).mul(255).view(3, 1, 1) for v in (MEAN, STD))
    return torch.from_numpy(X).float().sub_(shift).div_(scale)
