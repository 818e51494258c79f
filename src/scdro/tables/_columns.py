"""Columns as models see them: numbers and category codes; which are left out, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from scdro.errors import DataError
from scdro.tables._read import as_table, column_of, polars, shown, where

if TYPE_CHECKING:
    import polars as pl

    from scdro.tables._summary import ColumnSummary

__all__ = ["Columns", "describe"]

Array = npt.NDArray[Any]
MOST_VALUES = 254  # categories of a column; all others share one more
FEW = 20  # rows of a category that gets a feature of its own in linear models and networks


@dataclass(frozen=True)
class Columns:
    """The columns that a model sees, and the values of those that are categories: plain data, saved as JSON.

    Attributes:
        numbers: names of columns.
        categories: for each column its known values, most frequent first; all others share one more.
    """

    numbers: list[str]
    categories: dict[str, list[str]]

    @classmethod
    def fit(cls, frame: pl.DataFrame, names: Sequence[str], categorical: Sequence[str]) -> Columns:
        """From training rows."""
        numbers = [name for name in names if not _is_category(frame[name], name, categorical)]
        categories = {}
        for name in names:
            if name not in numbers:
                counts = _texts(frame[name]).drop_nulls().value_counts(sort=True)
                counts = counts.sort(["count", name], descending=[True, False])
                categories[name] = counts[name].head(MOST_VALUES).to_list()
        return cls(numbers, categories)

    @property
    def names(self) -> list[str]:
        return [*self.numbers, *self.categories]

    @property
    def categorical(self) -> list[int]:
        """Positions of categories in what `encode` returns."""
        return list(range(len(self.numbers), len(self.numbers) + len(self.categories)))

    def open(self, data: Any) -> tuple[pl.DataFrame, Array]:
        """The table, and what a model sees of it."""
        frame = as_table(data, list(self.categories))
        return frame, self.encode(frame)

    def as_json(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "categories": self.categories}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Columns:
        categories = {str(name): [str(value) for value in values] for name, values in about["categories"].items()}
        return cls([str(name) for name in about["numbers"]], categories)

    def encode(self, frame: pl.DataFrame) -> Array:
        """(rows, columns), NaN where a value is missing."""
        pl = polars()
        found = np.empty((frame.height, len(self.names)), order="F")
        for k, name in enumerate(self.numbers):
            column = column_of(frame, name, "which the model was trained on")
            if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
                bad = column.is_not_null() & column.cast(pl.Float64, strict=False).is_null()
                if bad.any():
                    raise DataError(
                        f"expected numbers in column {shown(name)}, as in training, got "
                        f"{shown(column.filter(bad)[0])} in {where(bad)}"
                    )
            if column.dtype.is_temporal():
                column = _instants(column)
            found[:, k] = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for k, (name, values) in enumerate(self.categories.items(), len(self.numbers)):
            texts = _texts(column_of(frame, name, "which the model was trained on"))
            distinct = texts.drop_nulls().unique()
            codes = texts.replace_strict(distinct, _codes(distinct, values), default=None, return_dtype=pl.Float64)
            found[:, k] = codes.fill_null(float("nan")).to_numpy()
        return found

    def features(self) -> ColumnTransformer:
        """For linear models and networks: numbers scaled, gaps marked, categories one-hot."""
        scaled = make_pipeline(SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler())
        one_hot = OneHotEncoder(min_frequency=FEW, handle_unknown="infrequent_if_exist", sparse_output=False)
        parts = [("numbers", scaled, list(range(len(self.numbers)))), ("categories", one_hot, self.categorical)]
        return ColumnTransformer([part for part in parts if part[2]])


def _texts(column: Any) -> Any:
    return column.cast(polars().String)


def _codes(texts: Sequence[str], values: Sequence[str]) -> list[int]:
    """The number of each text; 01 read as 1, or True as true, still gets its category."""
    known = {value: code for code, value in enumerate(values)}
    by_meaning: dict[float | str, int] = {}
    for value, code in known.items():
        by_meaning.setdefault(_meant(value), code)
    return [known.get(text, by_meaning.get(_meant(text), len(values))) for text in texts]


def _meant(text: str) -> float | str:
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text


def _instants(column: Any) -> Any:
    """Microseconds, whatever the unit of the reader: days of a CSV file, nanoseconds of pandas."""
    pl = polars()
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    elif column.dtype != pl.Time:
        column = column.dt.cast_time_unit("us")
    return column.to_physical()


def _is_category(column: Any, name: str, categorical: Sequence[str]) -> bool:
    return name in categorical or not (column.dtype.is_numeric() or column.dtype.is_temporal())


def describe(
    frame: pl.DataFrame, special: dict[str, str], drop: Sequence[str], categorical: Sequence[str]
) -> list[ColumnSummary]:
    """How every column is used. `special` says which are the target, groups, ids and those of the split."""
    for name in (*drop, *categorical):
        column_of(frame, name, "to leave out" if name in drop else "to take as categories")
    found: list[ColumnSummary] = []
    for column in frame.get_columns():
        name, note, distinct = column.name, "", column.drop_nulls().n_unique()
        kind: Any = special.get(name)
        category = _is_category(column, name, categorical)
        if kind is None and name in drop:
            kind, note = "left out", "as asked"
        elif kind is None:
            note = _useless(column, distinct, category)
            kind = "left out" if note else "category" if category else "number"
            if category and not note and name not in categorical:
                note = _odd(column, distinct)
        found.append({"name": name, "kind": kind, "missing": column.null_count(), "values": distinct, "note": note})
    if not any(column["kind"] in ("number", "category") for column in found):
        raise DataError("expected columns to learn from, got none: all are constant, names of rows, or left out")
    return found


def _useless(column: Any, distinct: int, category: bool) -> str:
    """Why a column should be left out, or ""."""
    known = len(column) - column.null_count()
    if distinct <= 1:
        return "the same value in every row" if known == len(column) else "one value, or none"
    if category and distinct > max(50, known / 2):
        return "a different value in nearly every row: a name or a text?"
    if not category and column.dtype.is_integer() and distinct == len(column) > 20:
        steps = column.diff().drop_nulls()
        if abs(steps[0]) == 1 and (steps == steps[0]).all():
            return "a different value in every row, in order: a row number?"
    return ""


def _odd(column: Any, distinct: int) -> str:
    """What looks like a mistake in a column of texts."""
    pl = polars()
    known = column.drop_nulls().cast(pl.String)
    numbers = known.cast(pl.Float64, strict=False).is_not_null().mean()
    if numbers > 0.5:
        return f"{100 * numbers:.0f}% of the values are numbers, the others texts: taken as categories"
    comma = known.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False).is_not_null().mean()
    if comma > 0.9 and distinct > FEW:
        return "numbers with a decimal comma: taken as categories"
    return ""
