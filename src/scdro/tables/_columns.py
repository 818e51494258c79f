"""Columns as models see them: numbers and category codes; which are left out, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

from scdro.errors import DataError
from scdro.tables._read import (
    NUMBER_AS_WRITTEN,
    FileOptions,
    column_of,
    has_decimal_commas,
    listed,
    numbers_as_written,
    shown,
    table_and_ids,
    where,
)

if TYPE_CHECKING:
    from scdro.tables._summary import ColumnSummary

__all__ = ["MOST_VALUES", "Columns", "describe", "variants"]

Array = npt.NDArray[Any]
# Categories of a column that trees split and linear models get a feature for; a column with more
# is replaced by the means of the target (scikit-learn's TargetEncoder).
MOST_VALUES = 254
DECIMAL_COMMAS = "numbers with a decimal comma: say --decimal , (decimal=',' in Python)"
FEW = 20  # rows of a category that gets a feature of its own in linear models and networks


@dataclass(frozen=True)
class Columns:
    """The columns that a model sees, and the values of those that are categories: plain data, saved as JSON.

    Attributes:
        numbers: names of columns.
        categories: for each column its known values, most frequent first; all others share one
            more code.
    """

    numbers: list[str]
    categories: dict[str, list[str]]

    @classmethod
    def fit(cls, frame: pl.DataFrame, names: Sequence[str], categorical: Sequence[str]) -> Columns:
        """From training rows."""
        numbers, categories, chosen = [], {}, set(categorical)
        for name in names:
            if not _is_category(frame[name], name, chosen):
                numbers.append(name)
                continue
            counts = _as_texts(frame[name]).drop_nulls().value_counts(sort=True)
            counts = counts.sort(["count", name], descending=[True, False])
            categories[name] = counts[name].to_list()
        return cls(numbers, categories)

    @property
    def names(self) -> list[str]:
        return [*self.numbers, *self.categories]

    @property
    def categorical(self) -> list[int]:
        """Positions, in what `encode` returns, of categories with few enough values."""
        return self._positions(many=False)

    @property
    def many_valued(self) -> list[int]:
        """Positions of categories with more than MOST_VALUES values, for a TargetEncoder."""
        return self._positions(many=True)

    def _positions(self, many: bool) -> list[int]:
        sizes = enumerate(self.categories.values(), len(self.numbers))
        return [k for k, values in sizes if (len(values) > MOST_VALUES) == many]

    def open(
        self,
        data: Any,
        ids: Sequence[str] = (),
        options: FileOptions = FileOptions(),  # noqa: B008
    ) -> tuple[pl.DataFrame, Array]:
        """The table, with columns of ids as they are written, and what a model sees of it."""
        frame, copied = table_and_ids(data, list(self.categories), ids, options)
        return frame.with_columns(copied.get_columns()), self.encode(frame)

    def as_json(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "categories": self.categories}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Columns:
        categories = {
            str(name): [str(value) for value in values]
            for name, values in about["categories"].items()
        }
        return cls([str(name) for name in about["numbers"]], categories)

    def encode(self, frame: pl.DataFrame) -> Array:
        """(rows, columns), NaN where a value is missing."""
        found = np.empty((frame.height, len(self.names)), order="F")
        for k, name in enumerate(self.numbers):
            column = column_of(frame, name, "which the model was trained on")
            if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
                column = _read_as_numbers(column)
            if column.dtype.is_temporal():
                column = _to_microseconds(column)
            found[:, k] = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for k, (name, values) in enumerate(self.categories.items(), len(self.numbers)):
            texts = _as_texts(column_of(frame, name, "which the model was trained on"))
            distinct = texts.drop_nulls().unique()
            codes = texts.replace_strict(
                distinct, _number_texts(distinct, values), default=None, return_dtype=pl.Float64
            )
            found[:, k] = codes.fill_null(float("nan")).to_numpy()
        return found

    def features(self, classes: int) -> ColumnTransformer:
        """For linear models and networks: numbers scaled, gaps marked, categories one-hot.

        A category with many values becomes the mean target of its value, of each class (`classes`
        is 0 for regression): fit it with `fit_transform`, which means over other rows.
        """
        scaled = make_pipeline(
            SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()
        )
        one_hot = OneHotEncoder(
            min_frequency=FEW, handle_unknown="infrequent_if_exist", sparse_output=False
        )
        parts = [
            ("numbers", scaled, list(range(len(self.numbers)))),
            ("categories", one_hot, self.categorical),
            ("means", make_pipeline(_encode_means(classes), StandardScaler()), self.many_valued),
        ]
        return ColumnTransformer([part for part in parts if part[2]])

    def without_many_values(self, classes: int) -> tuple[ColumnTransformer | None, list[int]]:
        """For trees: replaces categories with many values by mean targets, last; None if there are none.

        Beside it the positions of the other categories after that.
        """
        if not self.many_valued:
            return None, self.categorical
        many = self.many_valued
        rest = [k for k in range(len(self.names)) if k not in many]
        parts = [("rest", "passthrough", rest), ("means", _encode_means(classes), many)]
        return ColumnTransformer(parts), [rest.index(k) for k in self.categorical]


def _encode_means(classes: int) -> TargetEncoder:
    """Values that were not seen, and missing ones that were not, get the overall mean."""
    kind = "auto" if classes else "continuous"
    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
        return TargetEncoder(target_type=kind, random_state=0)
    splits = (StratifiedKFold if classes else KFold)(5, shuffle=True, random_state=0)
    return TargetEncoder(target_type=kind, cv=splits)


def _read_as_numbers(column: Any) -> Any:
    """Texts where training had numbers."""
    written = numbers_as_written(column)
    if written is not None:
        return written
    bad = column.is_not_null() & column.cast(pl.Float64, strict=False).is_null()
    if not bad.any():
        return column
    no_number = bad & ~column.str.contains(NUMBER_AS_WRITTEN)
    bad = no_number if no_number.any() else bad
    comma = has_decimal_commas(column)
    more = "; for a decimal comma, say --decimal , (decimal=',' in Python)" if comma else ""
    raise DataError(
        f"expected numbers in column {shown(column.name)}, as in training, got "
        f"{shown(column.filter(bad)[0])} in {where(bad)}{more}"
    )


def _as_texts(column: Any) -> Any:
    return column.cast(pl.String)


def _number_texts(texts: Sequence[str], values: Sequence[str]) -> list[int]:
    """The number of each text; 01 read as 1, or True as true, still gets its category."""
    known = {value: code for code, value in enumerate(values)}
    by_meaning: dict[float | str, int] = {}
    for value, code in known.items():
        by_meaning.setdefault(_meaning(value), code)
    return [known.get(text, by_meaning.get(_meaning(text), len(values))) for text in texts]


def _meaning(text: str) -> float | str:
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text


def _to_microseconds(column: Any) -> Any:
    """Microseconds, whatever the unit of the reader: days of a CSV file, nanoseconds of pandas."""
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    elif column.dtype != pl.Time:
        column = column.dt.cast_time_unit("us")
    return column.to_physical()


def _is_category(column: Any, name: str, categorical: Collection[str]) -> bool:
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
            note = _why_useless(column, distinct, category)
            kind = "left out" if note else "category" if category else "number"
            if note and category and has_decimal_commas(column.cast(pl.String)):
                note = DECIMAL_COMMAS
            if category and not note and name not in categorical:
                note = _find_mistakes(column, distinct)
        found.append(
            {
                "name": name,
                "kind": kind,
                "missing": column.null_count(),
                "values": distinct,
                "note": note,
            }
        )
    if not any(column["kind"] in ("number", "category") for column in found):
        raise DataError(
            "expected columns to learn from, got none: all are constant, names of rows, or left out"
        )
    return found


def _why_useless(column: Any, distinct: int, category: bool) -> str:
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


def _find_mistakes(column: Any, distinct: int) -> str:
    """What looks like a mistake in a column of texts, or is done about it; "" for nothing."""
    known = column.drop_nulls().cast(pl.String)
    notes = []
    texts = known.filter(known.cast(pl.Float64, strict=False).is_null())
    if has_decimal_commas(known):
        notes.append(f"{DECIMAL_COMMAS}; taken as categories")
    elif 0 < len(texts) < len(known) / 2:
        notes.append(
            f"{len(known) - len(texts):,} of the {len(known):,} values are numbers, the others"
            f" texts such as {shown(texts[0], 30)}: taken as categories"
        )
    same = variants(known)
    if same:
        notes.append(f"values that differ only in case or spaces ({listed(same)}): are they one?")
    if distinct > MOST_VALUES and not has_decimal_commas(known):  # one note for all such columns
        notes.append(
            f"{distinct:,} different values: each is replaced by the mean of the target there"
        )
    return "; ".join(notes)


def variants(texts: pl.Series) -> list[str]:
    """The first values that differ only in case or spaces."""
    distinct = texts.drop_nulls().cast(pl.String).unique().sort()
    plain = distinct.str.strip_chars().str.replace_all(r"\s+", " ").str.to_lowercase()
    again = distinct.filter(plain.is_duplicated())
    if not len(again):
        return []
    first = plain.filter(plain.is_duplicated())[0]
    found: list[str] = distinct.filter(plain == first).to_list()
    return found
