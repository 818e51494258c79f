"""What a user's files hold: samples as they are, with the texts of their classes and groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from scdro.application.own.arrays import as_column, as_inputs, read_arrays
from scdro.application.own.labels import check_present
from scdro.application.own.pictures import Pictures, read_folder, read_image_list
from scdro.application.own.preparation import Matrix
from scdro.application.own.tables import Column, Table, read_table
from scdro.errors import DataError, HyperparameterError, MissingDataError

__all__ = ["Inputs", "Part", "Wanted", "kind_of", "read_parts"]

Array = npt.NDArray[Any]
Inputs = Table | Matrix | Pictures
KINDS = {".csv": "table", ".tsv": "table", ".npz": "arrays", ".txt": "list", ".lst": "list"}


@dataclass(frozen=True)
class Wanted:
    """What a user says about the data.

    Attributes:
        data, test: a CSV or .npz file, a folder of images or a list of them; `test` of the same kind.
        validation: a file or folder as well, or the share of the data to set aside.
        target, groups, drop, categorical: columns of a CSV: the class, what serves evaluation alone, what is left out,
            and numbers that are mere names.
        root: the folder that a list's paths are relative to.
        size: of images in files.
        augment: whether images are cropped and mirrored in training.
        workers: processes that decode images that do not fit into memory.
    """

    data: Path
    validation: Path | float = 0.2
    test: Path | None = None
    target: str | None = None
    groups: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    root: Path | None = None
    size: int = 32
    augment: bool = True
    workers: int = 0

    def options(self) -> dict[str, Any]:
        """What decides the samples, by the names of the options."""
        paths = {"DATA": self.data, "--test": self.test, "--root": self.root, "--validation": self.validation}
        columns = {"--group": self.groups, "--drop": self.drop, "--categorical": self.categorical}
        return (
            {name: str(path) if isinstance(path, Path) else path for name, path in paths.items()}
            | {name: list(value) for name, value in columns.items()}
            | {"--target": self.target, "--size": self.size, "--no-augment": None if self.augment else True}
        )


@dataclass(frozen=True)
class Part:
    """Samples as they were read."""

    inputs: Inputs
    labels: Column
    groups: tuple[Column, ...]
    where: str

    def take(self, index: Array) -> Part:
        groups = tuple(column.take(index) for column in self.groups)
        return Part(self.inputs.take(index), self.labels.take(index), groups, self.where)


def kind_of(path: Path) -> str:
    """What a path holds: "table", "arrays", "list" or "folder"."""
    if path.is_dir():
        return "folder"
    if not path.is_file():
        raise MissingDataError(f"expected a file or a folder {path.absolute()}, found none")
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in KINDS:
        raise DataError(f"expected a .csv, .tsv or .npz file, a .txt list of images or a folder of images, got {path}")
    return KINDS[ending]


def read_parts(wanted: Wanted) -> dict[str, Part]:
    """The parts that the user names or that are in the data: "train" at least."""
    parts = _read(wanted.data, wanted)
    for name, path in (("validation", wanted.validation), ("test", wanted.test)):
        if isinstance(path, Path):
            parts[name] = _same_kind(wanted, path)
    return parts


def _read(path: Path, wanted: Wanted) -> dict[str, Part]:
    """The parts that a path holds, "train" at least."""
    kind = kind_of(path)
    if kind != "table" and (wanted.target or wanted.drop or wanted.categorical):
        raise HyperparameterError(f"expected --target, --drop and --categorical for a CSV file alone, got {path}")
    if kind != "table" and wanted.groups:
        raise HyperparameterError(
            f"expected --group for a CSV file alone, got it for {path}; an .npz file brings its own as the array groups"
        )
    if kind == "table":
        return {"train": _table(path, wanted)}
    if kind == "arrays":
        return _arrays(path)
    if kind == "list":
        return {"train": Part(*read_image_list(path, wanted.root), (), f"in {path}")}
    return _folders(path)


def _same_kind(wanted: Wanted, path: Path) -> Part:
    if kind_of(path) != kind_of(wanted.data):
        raise DataError(f"expected data of the same kind as {wanted.data}, got {path}")
    return _read(path, wanted)["train"]


def _table(path: Path, wanted: Wanted) -> Part:
    table = read_table(path)
    if wanted.target is None:
        raise HyperparameterError(
            f"expected --target, the column with the class, for {path}; its columns are "
            f"{', '.join(map(repr, table.columns))}"
        )
    if wanted.target in wanted.groups:
        raise HyperparameterError(f"expected groups by other columns than the target, got {wanted.target!r} as both")
    labels = table.column(wanted.target, "the target")
    where = f"in column {wanted.target!r} of {path}"
    check_present(labels, where, table.lines)
    groups = tuple(table.column(name, "the group column") for name in wanted.groups)
    if path == wanted.data:
        for name in wanted.drop:
            table.column(name, "the column to drop")
    features = table.without([wanted.target, *wanted.groups, *wanted.drop])
    return Part(features, labels, groups, where)


def _arrays(path: Path) -> dict[str, Part]:
    arrays = read_arrays(path)
    parts = {}
    for name, end in (("train", ""), ("validation", "_validation"), ("test", "_test")):
        if f"X{end}" not in arrays and name != "train":
            continue
        for needed in (f"X{end}", f"y{end}"):
            if needed not in arrays:
                raise DataError(f"expected an array {needed} in {path}, got {', '.join(arrays) or 'none'}")
        inputs = as_inputs(arrays[f"X{end}"], f"X{end}", path)
        labels = as_column(arrays[f"y{end}"], f"y{end}", len(inputs), path)
        groups = arrays.get(f"groups{end}")
        members = () if groups is None else (as_column(groups, f"groups{end}", len(inputs), path),)
        parts[name] = Part(inputs, labels, members, f"in y{end} of {path}")
    return parts


def _folders(path: Path) -> dict[str, Part]:
    """A folder of classes; or one of train, and maybe val or validation and test, each with classes."""
    inside = {p.name: p for p in path.iterdir() if p.is_dir()}
    named = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
    if "train" not in inside or not set(inside) <= set(named):
        inside = {"train": path}
    return {named[name]: Part(*_labelled(folder), (), f"in {folder}") for name, folder in inside.items()}


def _labelled(folder: Path) -> tuple[Pictures, Column]:
    pictures, labels = read_folder(folder)
    assert labels is not None
    return pictures, labels
