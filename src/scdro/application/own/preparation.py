"""What becomes of a table before a model sees it: numbers standardised, texts one-hot. Fitted on training rows alone.

Features are, in this order: the numbers, for each number column with gaps in training whether it is missing, and for
each text column one for every value that is frequent in training and one for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scdro.application.own.tables import MOST_SHOWN, Column, Table, as_number
from scdro.data import Rows
from scdro.errors import DataError

__all__ = ["Categories", "Matrix", "MatrixPreparation", "Numbers", "TablePreparation"]

Array = npt.NDArray[Any]
MOST_VALUES = 200  # of one text column that get a feature of their own


@dataclass(frozen=True)
class Numbers:
    """Columns of numbers, less their mean over their standard deviation; a gap is the mean.

    `gaps` says which had gaps in training, and so have a second feature: whether the number is missing.
    """

    names: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    gaps: tuple[bool, ...]

    @classmethod
    def fit(cls, names: Sequence[str], values: Array) -> Numbers:
        """From training rows, (n, d); columns that tell nothing are left out."""
        known = np.isfinite(values)
        sizes = np.maximum(known.sum(0), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.where(known, values, 0.0).sum(0) / sizes
            stds = np.sqrt((np.where(known, values - means, 0.0) ** 2).sum(0) / sizes)
        for name, std in zip(names, stds, strict=True):
            if not np.isfinite(std):
                raise DataError(f"expected numbers that can be squared in column {name!r}, got larger ones; rescale it")
        gaps = known.sum(0) < len(values)
        tell = (stds > 1e-12 * np.abs(means)) | (gaps & known.any(0))
        stds = np.where(stds > 1e-12 * np.abs(means), stds, 1.0)
        kept: list[int] = np.flatnonzero(tell).tolist()
        of = [tuple(values[kept].tolist()) for values in (means, stds, gaps)]
        return cls(tuple(names[j] for j in kept), *of)

    def features(self, values: Array, where: Callable[[int], str]) -> Array:
        """Of rows (n, d) of the same columns; `where` says where a row is from."""
        known = np.isfinite(values)
        with np.errstate(over="ignore"):
            scaled = np.where(known, (values - np.array(self.means)) / np.array(self.stds), 0.0).astype(np.float32)
        for i, j in np.argwhere(~np.isfinite(scaled))[:1]:
            raise DataError(
                f"expected numbers about as large as in training in column {self.names[j]!r}, got {values[i, j]:g} in "
                f"{where(i)}; correct it, or leave it empty if it is not known"
            )
        gaps = ~known[:, np.flatnonzero(self.gaps)]
        return np.hstack([scaled, gaps.astype(np.float32)])

    @property
    def width(self) -> int:
        return len(self.names) + sum(self.gaps)

    def as_list(self) -> list[dict[str, Any]]:
        each = zip(self.names, self.means, self.stds, self.gaps, strict=True)
        return [{"name": name, "mean": mean, "std": std, "gaps": gaps} for name, mean, std, gaps in each]

    @classmethod
    def from_list(cls, columns: Sequence[Mapping[str, Any]]) -> Numbers:
        return cls(*(tuple(c[key] for c in columns) for key in ("name", "mean", "std", "gaps")))


@dataclass(frozen=True)
class Categories:
    """A column of texts: a feature for each of `values`, and one for all other texts, known or not."""

    name: str
    values: tuple[str, ...]

    @classmethod
    def fit(cls, name: str, column: Column) -> Categories:
        counts = column.counts()
        fewest = min(max(len(column.codes) // 1000, 3), 20)
        frequent = [int(j) for j in np.argsort(-counts, kind="stable")[:MOST_VALUES] if counts[j] >= fewest]
        return cls(name, tuple(sorted(column.values[j] for j in frequent)))

    def features(self, column: Column) -> Array:
        place = {value: j for j, value in enumerate(self.values)}
        of_value = np.array([place.get(value, len(self.values)) for value in column.values])
        found: Array = np.eye(len(self.values) + 1, dtype=np.float32)[of_value[column.codes]]
        return found

    def tells(self, column: Column) -> bool:
        """Whether rows differ in it."""
        own = set(self.values)
        others = len(column.where([value not in own for value in column.values])) > 0
        return len(self.values) + others > 1

    @property
    def width(self) -> int:
        return len(self.values) + 1


@dataclass(frozen=True)
class TablePreparation:
    """From a table to rows of features."""

    numbers: Numbers
    categories: tuple[Categories, ...]

    @classmethod
    def fit(cls, table: Table, texts: Sequence[str] = ()) -> TablePreparation:
        """From training rows. Columns that hold more than numbers are texts, and those named so."""
        read = {name: None if name in texts else column.numbers() for name, column in table.columns.items()}
        matrix = {name: values for name, values in read.items() if values is not None}
        numbers = Numbers.fit(list(matrix), _stacked(list(matrix.values()), len(table)))
        rest = {name: table.columns[name] for name in read if name not in matrix}
        found = [(Categories.fit(name, column), column) for name, column in rest.items()]
        made = cls(numbers, tuple(c for c, column in found if c.tells(column)))
        if not made.width:
            commas = any(column.mostly_decimal_commas() for column in table.columns.values())
            why = "; write numbers with a point and not with a comma" if commas else ""
            raise DataError(f"expected columns of {table.path} to learn from, got none in which rows differ{why}")
        return made

    @property
    def width(self) -> int:
        """Number of features."""
        return self.numbers.width + sum(c.width for c in self.categories)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that a table must have."""
        return (*self.numbers.names, *(c.name for c in self.categories))

    def features(self, table: Table) -> Array:
        missing = [name for name in self.names if name not in table.columns]
        if missing:
            others = [name for name in table.columns if name not in self.names]
            raise DataError(
                f"expected the columns that the model was trained on in {table.path}, "
                f"{', '.join(map(repr, missing))} not there; others are: {', '.join(map(repr, others)) or 'none'}"
            )
        numbers = _stacked([_numbers(table, name) for name in self.numbers.names], len(table))
        parts = [c.features(table.columns[c.name]) for c in self.categories]
        scaled = self.numbers.features(numbers, lambda i: f"line {table.lines[i]} of {table.path}")
        return np.hstack([scaled, *parts])

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.width,)

    def samples(self, table: Table, labels: Tensor, **about: Any) -> Rows:
        return Rows(torch.from_numpy(self.features(table)), labels, **about)

    def as_dict(self) -> dict[str, Any]:
        texts = [{"name": c.name, "values": list(c.values)} for c in self.categories]
        return {"kind": "table", "numbers": self.numbers.as_list(), "texts": texts}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TablePreparation:
        texts = tuple(Categories(c["name"], tuple(c["values"])) for c in saved["texts"])
        return cls(Numbers.from_list(saved["numbers"]), texts)


@dataclass(frozen=True)
class Matrix:
    """Rows of numbers without names, (n, d); `rows` are their places in the file, where they are not all of it."""

    path: Path
    values: Array
    rows: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Array) -> Matrix:
        return Matrix(self.path, self.values[index], index if self.rows is None else self.rows[index])

    def origin(self, i: int) -> dict[str, Any]:
        """Where to find a row; the first is 0."""
        return {"row": i if self.rows is None else int(self.rows[i])}

    def values_of(self, i: int) -> dict[str, str]:
        return {str(j): f"{value:.6g}" for j, value in enumerate(self.values[i, :MOST_SHOWN].tolist())}


@dataclass(frozen=True)
class MatrixPreparation:
    """From rows of `columns` numbers to features; the columns' names are their places."""

    columns: int
    numbers: Numbers

    @classmethod
    def fit(cls, matrix: Matrix) -> MatrixPreparation:
        columns = matrix.values.shape[1]
        numbers = Numbers.fit([str(j) for j in range(columns)], matrix.values)
        if not numbers.width:
            raise DataError(f"expected columns of {matrix.path} to learn from, got none in which rows differ")
        return cls(columns, numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.numbers.width,)

    def samples(self, matrix: Matrix, labels: Tensor, **about: Any) -> Rows:
        if matrix.values.shape[1] != self.columns:
            raise DataError(
                f"expected rows of {self.columns} numbers, as in training, got {matrix.values.shape[1]} in "
                f"{matrix.path}"
            )
        kept = matrix.values[:, [int(name) for name in self.numbers.names]]
        features = self.numbers.features(kept, lambda i: f"row {i} of {matrix.path}")
        return Rows(torch.from_numpy(features), labels, **about)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "matrix", "columns": self.columns, "numbers": self.numbers.as_list()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> MatrixPreparation:
        return cls(saved["columns"], Numbers.from_list(saved["numbers"]))


def _numbers(table: Table, name: str) -> Array:
    """A column that was of numbers in training; all gaps is fine now."""
    column = table.columns[name]
    known = [as_number(value) for value in column.values]
    wrong = column.where([number is None for number in known])
    if len(wrong):
        text = column.values[column.codes[wrong[0]]]
        raise DataError(
            f"expected numbers in column {name!r} of {table.path}, as in training, got {text!r} in line "
            f"{table.lines[wrong[0]]}; leave the cell empty if the number is not known"
        )
    return np.array([np.nan if number is None else number for number in known])[column.codes]


def _stacked(columns: Sequence[Array], rows: int) -> Array:
    return np.stack(columns, 1) if columns else np.zeros((rows, 0))
