"""Data sets and networks by their names on the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from reproduction.data import (
    CIFAR10ST,
    CIFAR100ST,
    CIFAR100Hidden,
    DigitsHidden,
    DigitsST,
    ImageNetLT,
    PlacesLT,
    iNaturalist18,
)
from reproduction.data.files import PathLike
from reproduction.data.images import ImageData
from reproduction.data.transforms import EvalTransform
from reproduction.engine.networks import DEPTHS, CifarResNet, Network, ResNet50
from reproduction.engine.study import chosen
from reproduction.engine.task import Samples

__all__ = ["EMBEDDED", "IMAGES", "LISTS", "MODELS", "PRETRAINED", "open_image_data", "open_splits"]

EMBEDDED = ("digits-st", "digits-hidden")  # need no files


IMAGES: Mapping[str, Callable[[PathLike | None, bool], ImageData]] = {
    "cifar10-st": CIFAR10ST,
    "cifar100-st": CIFAR100ST,
    "cifar100-hidden": CIFAR100Hidden,
    "digits-st": DigitsST,
    "digits-hidden": DigitsHidden,
}
LISTS: Mapping[str, type[ImageNetLT] | type[PlacesLT] | type[iNaturalist18]] = {
    "imagenet-lt": ImageNetLT,
    "places-lt": PlacesLT,
    "inaturalist18": iNaturalist18,
}
MODELS: Mapping[str, Callable[[int], Network]] = {
    name: functools.partial(CifarResNet, depth) for name, depth in DEPTHS.items()
}
PRETRAINED: Mapping[str, Callable[[int], Network]] = {"resnet50": ResNet50}


def open_image_data(name: str, root: PathLike | None) -> tuple[ImageData, ImageData]:
    """Training and test images."""
    dataset = chosen(IMAGES, name, "a data set")
    return dataset(root, True), dataset(root, False)


def open_splits(
    name: str, root: PathLike | None, only: Iterable[str] | None = None
) -> dict[str, Samples]:
    """All splits of a data set, or those in `only`, with images transformed as in evaluation."""
    chosen({**IMAGES, **LISTS}, name, "a data set")
    openers: dict[str, Callable[[], Samples]]
    if name in LISTS:
        kind = LISTS[name]
        plain = EvalTransform(*kind.normalisation)
        openers = {
            split: functools.partial(kind, root, split, transform=plain) for split in kind.sizes
        }
    else:
        openers = {
            split: functools.partial(IMAGES[name], root, split == "train")
            for split in ("train", "test")
        }
    return {
        split: chosen(openers, split, "a split")() for split in (openers if only is None else only)
    }
