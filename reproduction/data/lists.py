"""Large images named by list files, one line `relative/path label` each: ImageNet-LT, Places-LT, iNaturalist 2018."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from reproduction.data.files import PathLike, data_folder, find, open_text
from reproduction.data.image_files import ImageFiles, Transform
from reproduction.data.images import Triple
from reproduction.data.transforms import IMAGENET, EvalTransform, TrainTransform
from scdro.errors import DataError

__all__ = ["ImageNetLT", "LongTailList", "PlacesLT", "Size", "iNaturalist18"]

MOST = 10_000_000  # classes


@dataclass(frozen=True)
class Size:
    """What a list must have: the number of lines, and of images in its largest and its smallest class.

    Example:
        >>> Size(115_846, 1280, 5)
        Size(lines=115846, largest=1280, smallest=5)
    """

    lines: int
    largest: int
    smallest: int


class LongTailList(ImageFiles):
    r"""Images named by a list file; items are (tensor, label), decoded on access.

    Args:
        list_file: lines `relative/path label`, plain or gzip.
        root: the folder that the paths are relative to; by default that of the list. Images are not
            looked for before they are asked for.
        transform: a function of a Pillow image and a NumPy generator that gives a tensor; by
            default `EvalTransform()`.
        classes: how many there are; by default the largest label plus one.
        size: checked where given.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "train.txt")
        >>> _ = path.write_text("cat/1.jpg 0\ncat/2.jpg 0\ndog/1.jpg 1\n")
        >>> LongTailList(path, root="photos").counts.tolist()
        [2, 1]
    """

    normalisation: ClassVar[tuple[Triple, Triple]] = IMAGENET

    def __init__(
        self,
        list_file: PathLike,
        root: PathLike | None = None,
        *,
        transform: Transform | None = None,
        classes: int | None = None,
        size: Size | None = None,
    ) -> None:
        file = Path(list_file).expanduser()
        path = find(
            (file.parent,), file.name, "name an existing list of lines `relative/path label`"
        )
        paths, labels = _read_list(path)
        classes = int(labels.max()) + 1 if classes is None else classes
        super().__init__(
            path.parent if root is None else root,
            paths,
            labels,
            classes=classes,
            transform=EvalTransform() if transform is None else transform,
        )
        _check(path, self.counts, self.classes, size)

    def as_evaluated(self) -> LongTailList:
        """The same images with the evaluation transform."""
        return self.with_transform(EvalTransform(*self.normalisation))


class _Preset(LongTailList):
    """A known list."""

    stem: ClassVar[str]
    number: ClassVar[int]
    sizes: ClassVar[dict[str, Size]]
    source: ClassVar[str]

    def __init__(
        self,
        root: PathLike | None = None,
        split: str = "train",
        *,
        lists: PathLike | None = None,
        transform: Transform | None = None,
    ) -> None:
        if split not in self.sizes:
            raise DataError(f"expected a split of {', '.join(self.sizes)}, got {split!r}")
        folder = data_folder(root)
        place = folder if lists is None else Path(lists).expanduser()
        path = find((place,), f"{self.stem}_{split}.txt", f"see {self.source}")
        if transform is None:
            transform = (TrainTransform if split == "train" else EvalTransform)(*self.normalisation)
        super().__init__(
            path, folder, transform=transform, classes=self.number, size=self.sizes[split]
        )


class ImageNetLT(_Preset):
    """ImageNet-LT: 1,000 classes of 1,280 down to 5 training images.

    Args:
        root: the folder with the images; by default $SCDRO_DATA, or ./data.
        split: "train", "val" or "test".
        lists: the folder with the list files; by default root.
        transform: by default random parts for training, the middle for the others.

    Example:
        >>> ImageNetLT("data", "train").counts  # doctest: +SKIP
        >>> ImageNetLT("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    stem, number = "ImageNet_LT", 1000
    sizes: ClassVar = {
        "train": Size(115_846, 1280, 5),
        "val": Size(20_000, 20, 20),
        "test": Size(50_000, 50, 50),
    }
    source = (
        "https://github.com/zhmiao/OpenLongTailRecognition-OLTR for lists, https://image-net.org"
        " for images"
    )


class PlacesLT(_Preset):
    """Places-LT: 365 classes of 4,980 down to 5 training images. Arguments as for `ImageNetLT`.

    Example:
        >>> PlacesLT("data", "val").counts  # doctest: +SKIP
        >>> PlacesLT("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    stem, number = "Places_LT", 365
    sizes: ClassVar = {
        "train": Size(62_500, 4980, 5),
        "val": Size(7_300, 20, 20),
        "test": Size(36_500, 100, 100),
    }
    source = (
        "https://github.com/zhmiao/OpenLongTailRecognition-OLTR for lists,"
        " http://places2.csail.mit.edu for images"
    )


class iNaturalist18(_Preset):
    """iNaturalist 2018: 8,142 classes of 1,000 down to 2 training images. Arguments as for `ImageNetLT`; there is no
    "test".

    Example:
        >>> iNaturalist18("data").counts  # doctest: +SKIP
        >>> iNaturalist18("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    stem, number = "iNaturalist18", 8142
    sizes: ClassVar = {"train": Size(437_513, 1000, 2), "val": Size(24_426, 3, 3)}
    normalisation = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))
    source = (
        "https://github.com/facebookresearch/classifier-balancing for lists, visipedia/inat_comp"
        " for images"
    )


def _check(path: Path, counts: Tensor, classes: int, size: Size | None) -> None:
    if len(counts) > classes:
        raise DataError(f"expected labels in [0, {classes}) in {path}, got {len(counts) - 1}")
    if size is not None:
        found = Size(int(counts.sum()), int(counts.max()), int(counts.min()))
        if found != size:
            raise DataError(
                f"expected {size} in {path}, got {found}; download it again, or use LongTailList"
                " for your own"
            )


def _read_list(path: Path) -> tuple[list[str], Tensor]:
    """Paths and labels of a list file."""
    paths, labels = [], []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            name, _, label = line.strip().rpartition(" ")
            if (
                not name
                or not label.isdecimal()
                or len(label) > len(str(MOST))
                or int(label) >= MOST
            ):
                raise DataError(
                    f"expected `relative/path label`, label from 0 to {MOST - 1}, in line {number}"
                    f" of {path}, got {line.strip()!r}"
                )
            paths.append(name)
            labels.append(int(label))
    if not paths:
        raise DataError(f"expected lines `relative/path label` in {path}, got an empty file")
    return paths, torch.tensor(labels)
