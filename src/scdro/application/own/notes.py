"""What a user should know about the data before believing a model of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scdro.application.own.preparation import TablePreparation
from scdro.application.own.tables import Column, Table, as_number

__all__ = ["notes_on_classes", "notes_on_table"]

Array = npt.NDArray[Any]


def notes_on_classes(names: Sequence[str], labels: Array) -> list[str]:
    """On the classes of the validation data."""
    counts = np.bincount(labels, minlength=len(names))
    unseen = [name for name, count in zip(names, counts, strict=True) if not count]
    return [f"too few to validate on: {_some(unseen)}"] if unseen else []


def notes_on_table(table: Table, preparation: TablePreparation) -> list[str]:
    """On the columns of the training data."""
    notes = []
    commas = [name for name, column in table.columns.items() if column.mostly_decimal_commas()]
    if commas:
        notes.append(f"numbers with a decimal comma are read as texts; write them with a point: {_some(commas)}")
    left_out = [name for name in table.columns if name not in (*preparation.names, *commas)]
    if left_out:
        notes.append(f"left out, since rows do not differ in them or no text is frequent: {_some(left_out)}")
    ids = [name for name in preparation.numbers.names if _counts_rows(table.columns[name])]
    if ids:
        notes.append(f"another whole number in every row; if it only names the row, --drop it: {_some(ids)}")
    texts = [name for name in table.columns if name not in preparation.numbers.names]
    return notes + [note for name in texts if (note := _nearly_numbers(name, table))]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _counts_rows(column: Column) -> bool:
    numbers = column.numbers()
    if numbers is None or not bool((numbers == np.round(numbers)).all()):
        return False
    return len(np.unique(numbers)) == len(numbers)


def _nearly_numbers(name: str, table: Table) -> str | None:
    """A note on a column that would be of numbers but for a few texts."""
    column = table.columns[name]
    strange = [as_number(value) is None for value in column.values]
    texts = [column.values[j] for j in np.unique(column.codes[column.where(strange)])]
    if not texts or len(texts) > 3 or len(column.where(strange)) > len(table) / 20:
        return None
    why = _some([repr(text) for text in texts])
    return f"{name} is read as texts, because of {why}; leave such cells empty to make it numbers"
