"""Images brought to one size: in memory where they fit, else decoded when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scdro.application.own.tables import Column
from scdro.data import CropFlip, ImageData, ImageFiles
from scdro.data.files import open_text
from scdro.data.image_files import decoded, read_list
from scdro.data.images import normalised
from scdro.data.transforms import IMAGENET
from scdro.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PicturePreparation", "Pictures", "read_folder", "read_image_list", "read_images"]

Array = npt.NDArray[Any]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
MEMORY = 2_000_000_000  # bytes that all images of a part may take


@dataclass(frozen=True)
class Pictures:
    """Images by their paths below `root`, or as one array (n, 3, h, w) of uint8.

    `places` are lines of the list that names them, or rows of the array where they are not all of it.
    """

    root: Path
    paths: tuple[str, ...] = ()
    pixels: Array | None = None
    places: Array | None = None

    def __len__(self) -> int:
        return len(self.paths) if self.pixels is None else len(self.pixels)

    def take(self, index: Array) -> Pictures:
        places = None if self.places is None else self.places[index]
        if self.pixels is not None:
            return Pictures(self.root, (), self.pixels[index], index if places is None else places)
        return Pictures(self.root, tuple(self.paths[i] for i in index), None, places)

    def origin(self, i: int) -> dict[str, Any]:
        """Where to find an image: its path, and its line where a list names it; of an array its row, from 0."""
        if self.pixels is not None:
            return {"row": i if self.places is None else int(self.places[i])}
        line = {} if self.places is None else {"line": int(self.places[i])}
        return {"path": self.paths[i]} | line

    def picture(self, i: int) -> Tensor:
        """uint8, (3, h, w), of its own size."""
        if self.pixels is not None:
            return torch.from_numpy(self.pixels[i])
        image = decoded(self.root, self.paths[i])
        return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)


def read_folder(folder: Path, labelled: bool = True) -> tuple[Pictures, Column | None]:
    """The images of a folder, whose subfolders are the classes; without labels, all images below it."""
    if not labelled:
        paths = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if _is_image(p))
        return read_images(folder, paths), None
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise DataError(f"expected a subfolder of images for each class in {folder}, got no subfolders")
    members = {name: sorted(p for p in (folder / name).rglob("*") if _is_image(p)) for name in classes}
    empty = [name for name, own in members.items() if not own]
    if empty:
        raise DataError(f"expected images ({', '.join(sorted(ENDINGS))}) in {folder / empty[0]}, got none; remove it")
    paths = [str(p.relative_to(folder)) for own in members.values() for p in own]
    return read_images(folder, paths), Column.of([name for name, own in members.items() for _ in own])


def read_image_list(path: Path, root: Path | None = None) -> tuple[Pictures, Column]:
    """The images of a list file of lines `relative/path label`, below `root` or the folder of the list."""
    paths, labels = read_list(path)
    with open_text(path) as file:
        lines = np.array([number for number, line in enumerate(file, 1) if line.strip()])
    pictures = replace(read_images(path.parent if root is None else root, paths), places=lines)
    return pictures, Column.of([str(k) for k in labels.tolist()])


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and path.is_file()


def read_images(root: Path, paths: Sequence[str]) -> Pictures:
    """The images of these paths, which must be there."""
    if not paths:
        raise DataError(f"expected images ({', '.join(sorted(ENDINGS))}) in {root}, got none")
    with ThreadPoolExecutor(_threads()) as pool:
        list(pool.map(_check_header, [root / path for path in paths]))
    return Pictures(root, tuple(paths))


def _check_header(path: Path) -> None:
    """Fails before training, and not in the middle of it; what follows the header is seen when decoded."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDataError("expected Pillow, to decode images; pip install scdro[images]") from error
    try:
        with Image.open(path):
            pass
    except FileNotFoundError:
        raise MissingDataError(f"expected the image {path.absolute()}, found none; name its folder by --root") from None
    except OSError as error:
        raise DataError(f"expected an image, got {path.absolute()}: {error}; remove or replace it") from error


@dataclass(frozen=True)
class Fitted:
    """A transform: the image as small as it can be and still cover height x width, and of that the middle.

    With `crop` a random crop of the padded image, mirrored every other time: the augmentation of images in memory.
    """

    height: int
    width: int
    crop: bool = False

    def pixels(self, image: Image) -> Tensor:
        """uint8, (3, height, width)."""
        if image.size != (self.width, self.height):
            from PIL.Image import Resampling

            scale = max(self.width / image.width, self.height / image.height)
            width, height = max(self.width, round(image.width * scale)), max(self.height, round(image.height * scale))
            left, top = (width - self.width) // 2, (height - self.height) // 2
            image = image.resize((width, height), Resampling.BILINEAR, reducing_gap=3.0)
            image = image.crop((left, top, left + self.width, top + self.height))
        return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)

    def __call__(self, image: Image, rng: np.random.Generator) -> Tensor:
        pixels = self.pixels(image)[None]
        return normalised(self.augment(pixels, rng) if self.crop else pixels, *IMAGENET)[0]

    @property
    def augment(self) -> CropFlip:
        return CropFlip(max(min(self.height, self.width) // 8, 1))


class _Decoded(ImageFiles):
    """Images that are fitted when asked for."""

    transform: Fitted

    def as_evaluated(self) -> _Decoded:
        return self.with_transform(replace(self.transform, crop=False))


@dataclass(frozen=True)
class PicturePreparation:
    """Images of one size, normalised by ImageNet's mean and standard deviation."""

    height: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return 3, self.height, self.width

    def samples(
        self, pictures: Pictures, labels: Tensor, *, names: Sequence[str], crop: bool = False, **about: Any
    ) -> Any:
        """What a task is made of; `crop` matters for images that are not in memory."""
        fitted = Fitted(self.height, self.width, crop)
        if pictures.pixels is None and 3 * self.height * self.width * len(pictures) > MEMORY:
            return _Decoded(pictures.root, pictures.paths, labels, classes=len(names), transform=fitted)
        pixels = torch.from_numpy(pictures.pixels) if pictures.pixels is not None else _loaded(pictures, fitted)
        if pixels.shape[2:] != (self.height, self.width):
            raise DataError(
                f"expected images of {self.height} x {self.width} pixels, as in training, got "
                f"{pixels.shape[2]} x {pixels.shape[3]} in {pictures.root}"
            )
        return ImageData(pixels, labels, mean=IMAGENET[0], std=IMAGENET[1], names=names, **about)

    def as_dict(self) -> dict[str, Any]:
        mean, std = IMAGENET
        return {"kind": "images", "height": self.height, "width": self.width, "mean": list(mean), "std": list(std)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> PicturePreparation:
        return cls(saved["height"], saved["width"])


def _loaded(pictures: Pictures, fitted: Fitted) -> Tensor:
    with ThreadPoolExecutor(_threads()) as pool:
        return torch.stack(list(pool.map(lambda p: fitted.pixels(decoded(pictures.root, p)), pictures.paths)))


def _threads() -> int:
    return min(8, os.cpu_count() or 1)
