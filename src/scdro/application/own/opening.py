"""One's own data, whatever they are in, as a task: training, validation and maybe test samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from scdro.application.own.labels import Classes, Groups, set_aside
from scdro.application.own.notes import notes_on_classes, notes_on_table
from scdro.application.own.pictures import Fitted, PicturePreparation
from scdro.application.own.preparation import Matrix, MatrixPreparation, TablePreparation
from scdro.application.own.reading import Inputs, Part, Wanted, read_parts
from scdro.application.own.tables import Table
from scdro.application.task import Samples, Task
from scdro.errors import HyperparameterError

__all__ = ["OwnData", "Preparation", "Wanted", "open_own"]

Array = npt.NDArray[Any]
Preparation = TablePreparation | MatrixPreparation | PicturePreparation


@dataclass(frozen=True)
class OwnData:
    """A task, how it was made, the names of classes, groups and columns, what to tell the user, the training samples as
    they were read, and what the user said."""

    task: Task
    preparation: Preparation
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    notes: list[str]
    inputs: Inputs
    options: dict[str, Any]

    @property
    def part(self) -> str:
        """What scores are of: the test data, where there are any."""
        return "validation" if self.task.test is None else "test"

    def fingerprint(self) -> str:
        """Of the samples, and of whether they are changed in training."""
        plain = self.images and self.options["--no-augment"]
        return self.task.fingerprint() + ("-not-augmented" if plain else "")

    @property
    def evaluated(self) -> Samples:
        return self.task.validation if self.task.test is None else self.task.test

    @property
    def images(self) -> bool:
        return isinstance(self.preparation, PicturePreparation)


def open_own(wanted: Wanted) -> OwnData:
    """Read everything, set validation data aside where there are none, and prepare all parts alike."""
    parts = read_parts(wanted)
    train = parts["train"]
    classes = Classes.fit(train.labels, train.where)
    if "validation" not in parts:
        assert not isinstance(wanted.validation, Path)
        stays, aside = set_aside(classes.encode(train.labels, train.where), wanted.validation)
        parts["train"], parts["validation"] = train.take(stays), train.take(aside)
    preparation = _fitted(parts["train"].inputs, _texts(train.inputs, wanted), wanted)
    order = [name for name in ("train", "validation", "test") if name in parts]
    groups = Groups()
    encoded = {name: _encoded(parts[name], classes, groups) for name in order}
    samples = {
        name: _samples(preparation, parts[name], *found, classes, groups, wanted.augment and name == "train")
        for name, found in encoded.items()
    }
    augment = _augment(preparation, wanted)
    task = Task(samples["train"], samples["validation"], samples.get("test"), augment, wanted.workers)
    notes = notes_on_classes(classes.names, encoded["validation"][0])
    columns: tuple[str, ...] = ()
    if isinstance(train.inputs, Table) and isinstance(preparation, TablePreparation):
        notes += notes_on_table(train.inputs, preparation)
        columns = (*train.inputs.columns, wanted.target or "", *wanted.groups, *wanted.drop)
    inputs = parts["train"].inputs
    return OwnData(task, preparation, classes.names, tuple(groups.names), columns, notes, inputs, wanted.options())


def _encoded(part: Part, classes: Classes, groups: Groups) -> tuple[Array, Array | None]:
    return classes.encode(part.labels, part.where), groups.encode(part.groups) if part.groups else None


def _samples(
    preparation: Any, part: Part, labels: Array, members: Array | None, classes: Classes, groups: Groups, crop: bool
) -> Any:
    about: dict[str, Any] = {"names": classes.names}
    if members is not None:
        about |= {"groups": torch.from_numpy(members), "group_names": groups.names}
    if isinstance(preparation, PicturePreparation):
        about["crop"] = crop
    return preparation.samples(part.inputs, torch.from_numpy(labels), **about)


def _texts(inputs: Inputs, wanted: Wanted) -> list[str]:
    """Columns of texts, by all rows, so that none of them is taken for numbers only by how the parts were drawn."""
    if not isinstance(inputs, Table):
        return []
    for name in wanted.categorical:
        inputs.column(name, "the column of names")
    return [name for name, c in inputs.columns.items() if name in wanted.categorical or c.numbers() is None]


def _fitted(inputs: Inputs, texts: list[str], wanted: Wanted) -> Preparation:
    if isinstance(inputs, Table):
        return TablePreparation.fit(inputs, texts)
    if isinstance(inputs, Matrix):
        return MatrixPreparation.fit(inputs)
    if inputs.pixels is not None:
        return PicturePreparation(*inputs.pixels.shape[2:])
    if wanted.size < 4:
        raise HyperparameterError(f"expected images of at least 4 pixels, got a size of {wanted.size}")
    return PicturePreparation(wanted.size, wanted.size)


def _augment(preparation: Preparation, wanted: Wanted) -> Any:
    if not isinstance(preparation, PicturePreparation) or not wanted.augment:
        return None
    return Fitted(preparation.height, preparation.width).augment
