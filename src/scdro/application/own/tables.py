"""Tables from CSV files, as texts: each column is its distinct texts and a number for every row."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.data.files import open_text
from scdro.errors import DataError

__all__ = ["Column", "Table", "as_number", "has_decimal_comma", "is_missing", "read_table"]

Array = npt.NDArray[Any]
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
DELIMITERS = ",;\t|"
MOST_SHOWN, MOST_TEXT = 30, 80  # values of a row that are told, and characters of each


def is_missing(text: str) -> bool:
    """Whether a text stands for no number."""
    return text.lower() in MISSING


def as_number(text: str) -> float | None:
    """The number that a text is, NaN where it is missing or infinite, None where it is none."""
    if is_missing(text):
        return np.nan
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else np.nan


def has_decimal_comma(text: str) -> bool:
    """Whether a text would be a number but for its comma."""
    return text.count(",") == 1 and as_number(text) is None and as_number(text.replace(",", ".")) is not None


class Column(NamedTuple):
    """The text of row i is values[codes[i]]."""

    values: list[str]
    codes: Array

    @classmethod
    def of(cls, texts: Sequence[str]) -> Column:
        codes = _Codes()
        numbers = np.array([codes[text] for text in texts], np.int64)
        return cls(list(codes), numbers)

    def take(self, index: Array) -> Column:
        return Column(self.values, self.codes[index])

    def counts(self) -> Array:
        """Rows of each value."""
        return np.bincount(self.codes, minlength=len(self.values))

    def numbers(self) -> Array | None:
        """The column as numbers with NaN for what is missing, or None where it holds other texts or nothing at all."""
        present = self.counts() > 0
        known = [as_number(value) for value in self.values]
        if any(number is None for number, here in zip(known, present, strict=True) if here):
            return None
        each = np.array([np.nan if number is None else number for number in known])
        return each[self.codes] if bool(np.isfinite(each[present]).any()) else None

    def mostly_decimal_commas(self) -> bool:
        """Whether most of its texts that are there are numbers with a comma."""
        counts = self.counts()
        rows = [sum(counts[[test(v) for v in self.values]]) for test in (has_decimal_comma, is_missing)]
        return bool(rows[0] > (len(self.codes) - rows[1]) / 2)

    def where(self, wanted: Sequence[bool]) -> Array:
        """Positions of the rows whose value is wanted."""
        return np.flatnonzero(np.asarray(wanted, bool)[self.codes])


@dataclass(frozen=True)
class Table:
    """Columns of one length, by name; `lines` says in which line of the file each row begins."""

    path: Path
    columns: Mapping[str, Column]
    lines: Array

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, index: Array) -> Table:
        columns = {name: column.take(index) for name, column in self.columns.items()}
        return Table(self.path, columns, self.lines[index])

    def origin(self, i: int) -> dict[str, Any]:
        """Where to find a row; the line of the column names is 1."""
        return {"line": int(self.lines[i])}

    def values_of(self, i: int) -> dict[str, str]:
        shown = islice(self.columns.items(), MOST_SHOWN)
        return {name: column.values[column.codes[i]][:MOST_TEXT] for name, column in shown}

    def without(self, names: Sequence[str]) -> Table:
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return Table(self.path, kept, self.lines)

    def column(self, name: str, what: str) -> Column:
        if name not in self.columns:
            numbers = any(as_number(column) is not None and not is_missing(column) for column in self.columns)
            headless = "; is the first line, with the columns' names, missing?" if numbers else ""
            raise DataError(
                f"expected {what} {name!r} among the columns of {self.path}, got "
                f"{', '.join(map(repr, self.columns))}{headless}"
            )
        return self.columns[name]


def read_table(path: Path) -> Table:
    """A CSV file with a line of column names, plain or gzip, separated by comma, semicolon, tab or bar.

    Spaces around cells do not count. A first column without a name, as pandas writes its index, is left out.
    """
    try:
        with open_text(path) as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(DELIMITERS, key=first.count), skipinitialspace=True)
            names = _header(next(reader, []), path)
            codes, lines = _cells(reader, len(names), path)
    except (csv.Error, EOFError, OSError) as error:
        raise DataError(f"expected a CSV file that can be read, got {path}: {error}") from error
    if not lines:
        raise DataError(f"expected rows below the column names of {path}, got none")
    columns = {
        name: Column(list(known), np.frombuffer(numbers, np.int32))
        for name, (known, numbers) in zip(names, codes, strict=True)
        if name
    }
    return Table(path, columns, np.array(lines))


class _Codes(dict[str, int]):
    """Numbers texts in the order in which they come."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def _header(row: list[str], path: Path) -> list[str]:
    names = [name.strip().removeprefix("\ufeff") for name in row]
    if not names:
        raise DataError(f"expected a first line with the names of the columns in {path}, got an empty file")
    for name in names:
        if names.count(name) > 1 or (not name and names[0]):
            raise DataError(f"expected every column of {path} to have a name of its own, got {name!r}; rename it")
    return names


def _cells(reader: Iterator[list[str]], width: int, path: Path) -> tuple[list[tuple[_Codes, array[int]]], list[int]]:
    columns = [(_Codes(), array("i")) for _ in range(width)]
    lines: list[int] = []
    begins = reader.line_num + 1  # type: ignore[attr-defined]
    for row in reader:
        line, begins = begins, reader.line_num + 1  # type: ignore[attr-defined]
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != width:
            raise DataError(
                f"expected {width} cells in line {line} of {path}, as in its first, got {len(row)}; is a text with the "
                "separator in it not quoted?"
            )
        for (known, numbers), cell in zip(columns, row, strict=True):
            numbers.append(known[cell.strip()])
        lines.append(line)
    return columns, lines
