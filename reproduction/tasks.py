"""From a study to data in three parts.

Training, validation and test data never overlap. Settings are chosen on the validation data,
results come from the test data. CIFAR has no validation images, so every other test image is used
for validation and the others for testing. With hidden groups, every fifth training sample is used,
so that validation knows no more than training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reproduction.baselines import REGISTRY
from reproduction.catalog import EMBEDDED, IMAGES, LISTS, open_image_data
from reproduction.data import Table, adult, data_folder
from reproduction.data.augment import CropFlip
from reproduction.data.images import ImageData
from reproduction.data.memory import Augmentation, Rows
from reproduction.engine.study import Study, chosen
from reproduction.engine.task import Task
from reproduction.features import load_features
from scdro.data import hold_out
from scdro.errors import DataError, HyperparameterError, MissingDataError

__all__ = ["Sources", "check_methods", "open_task", "pooled"]

HIDDEN = ("cifar100-hidden", "adult", "digits-hidden")  # validation comes from the training data


@dataclass(frozen=True)
class Sources:
    """Where the files are. `data` is as in `data_folder`; `features` has one folder per data set, with its features, or
    with the run that made them, in features/."""

    data: Path | None = None
    features: Path | None = None
    workers: int = 0


@cache
def open_task(inputs: str, dataset: str, pool: int, sources: Sources) -> Task:
    """The data of a study, read once per process."""
    return chosen(_OPENERS, inputs, "inputs")(dataset, pool, sources)


def check_methods(study: Study, task: Task) -> None:
    """Check that the data have what the methods of a study need."""
    if getattr(task.train, "groups", None) is None:
        for method in study.methods:
            if "groups" in REGISTRY[method].needs:
                raise HyperparameterError(
                    f"expected data with groups for {method}, got {study.dataset}, which has none;"
                    " omit the method"
                )


def _features(dataset: str, pool: int, sources: Sources) -> Task:
    if dataset in EMBEDDED:
        return _parted(dataset, {"train": _pixels(dataset, True), "test": _pixels(dataset, False)})
    place = (sources.features or data_folder(sources.data) / "features") / dataset
    folder = next((at for at in (place, place / "features") if (at / "train.json").exists()), None)
    if folder is None:
        chosen({**IMAGES, **LISTS}, dataset, "a data set")
        raise MissingDataError(
            f"expected features in {place.absolute()}, or in features/ there, found no train.json;"
            f" make them with {_how_to_make(dataset, place)}, or pass the folder that contains"
            f" {dataset}/ as --features"
        )
    splits = [split for split in ("train", "val", "test") if (folder / f"{split}.json").exists()]
    return _parted(dataset, {split: _feature_rows(folder, split) for split in splits})


def _how_to_make(dataset: str, place: Path) -> str:
    if dataset in LISTS:
        return (
            f"`python -m reproduction features --model resnet50 --dataset {dataset} --out {place}`"
        )
    return (
        f"`python -m reproduction pretrain {dataset} --out {place}` and `python -m reproduction"
        f" features {place}`"
    )


def _feature_rows(folder: Path, split: str) -> Rows:
    found = load_features(folder, split)
    x, y = (
        torch.from_numpy(np.array(found.x, np.float32)),
        torch.from_numpy(found.y.astype(np.int64)),
    )
    groups = None if found.groups is None else torch.from_numpy(found.groups.astype(np.int64))
    return Rows(
        x,
        y,
        names=_numbers(y),
        groups=groups,
        group_names=() if groups is None else _numbers(groups),
    )


def _numbers(labels: Tensor) -> list[str]:
    return [str(k) for k in range(int(labels.max()) + 1)]


def _pixels(dataset: str, train: bool) -> Rows:
    data = IMAGES[dataset](None, train)
    pixels = data.images[:, 0].flatten(1).float() / 255
    return Rows(
        pixels, data.labels, names=data.names, groups=data.groups, group_names=data.group_names
    )


def _images(dataset: str, pool: int, sources: Sources) -> Task:
    if dataset in LISTS:
        kind = LISTS[dataset]
        return _parted(
            dataset,
            {split: kind(sources.data, split) for split in kind.sizes},
            None,
            sources.workers,
        )
    chosen({**IMAGES, **LISTS}, dataset, "a data set")
    train, test = (
        pooled(part, pool) if pool > 1 else part for part in open_image_data(dataset, sources.data)
    )
    side = train.images.shape[-1]
    return _parted(dataset, {"train": train, "test": test}, CropFlip(max(side // 8, 1)))


def pooled(data: ImageData, factor: int) -> ImageData:
    """The images shrunk by an integer factor, by averaging squares of pixels."""
    if factor < 1 or any(side % factor for side in data.images.shape[2:]):
        raise DataError(
            f"expected a factor that divides {tuple(data.images.shape[2:])}, got {factor}"
        )
    smaller = data.subset(torch.arange(len(data)))
    parts = [
        F.avg_pool2d(part.float(), factor).round().to(torch.uint8)
        for part in torch.split(data.images, 5000)
    ]
    smaller.inputs = torch.cat(parts).contiguous(memory_format=torch.channels_last)
    return smaller


def _rows(dataset: str, pool: int, sources: Sources) -> Task:
    tables = chosen({"adult": adult}, dataset, "a table")(sources.data)
    return _parted(dataset, dict(zip(("train", "test"), map(_census_rows, tables), strict=True)))


def _census_rows(table: Table) -> Rows:
    """Groups by sex, race and income: eight, of 13,027 down to 167 rows of Adult."""
    female, white = table.groups[:, 0] == "Female", table.groups[:, 1] == "White"
    names = [
        f"{sex}, {race}, {y}"
        for sex in ("men", "women")
        for race in ("other", "white")
        for y in ("low", "high")
    ]
    groups = 4 * female.astype(np.int64) + 2 * white.astype(np.int64) + table.y
    x = torch.from_numpy(np.asarray(table.X.todense(), np.float32))
    known: dict[str, Any] = {
        "groups": torch.from_numpy(groups),
        "group_names": names,
        "feature_names": table.names,
    }
    return Rows(x, torch.from_numpy(table.y), names=("low", "high"), **known)


def _parted(
    dataset: str, splits: Mapping[str, Any], augment: Augmentation | None = None, workers: int = 0
) -> Task:
    """The three parts, with validation data held out if there are none."""
    if {"train", "val", "test"} <= set(splits):
        return Task(splits["train"], splits["val"], splits["test"], augment, workers)
    train, test = splits["train"], splits.get("test", splits.get("val"))
    if test is None:
        raise DataError(
            f"expected training and test data of {dataset}, got {', '.join(splits)} alone; run "
            "`python -m reproduction features`"
        )
    if dataset in HIDDEN:
        stays, aside = hold_out(train.labels, 5)
        return Task(train.subset(stays), train.subset(aside), test, augment, workers)
    stays, aside = hold_out(test.labels, 2)
    return Task(train, test.subset(aside), test.subset(stays), augment, workers)


_OPENERS: Mapping[str, Callable[[str, int, Sources], Task]] = {
    "features": _features,
    "images": _images,
    "rows": _rows,
}
