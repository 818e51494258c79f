"""A table as a learning problem: the task, the rows of each part, the groups, and the options of a run on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, StratifiedKFold, train_test_split

from scdro._validation import check_names, check_whole
from scdro.errors import DataError, HyperparameterError
from scdro.tables._columns import describe
from scdro.tables._read import as_table, column_of, listed, polars, shown, where

if TYPE_CHECKING:
    import polars as pl

    from scdro.tables._summary import ColumnSummary, Method, SplitSummary

__all__ = ["Options", "TableProblem", "TrainTest", "make_problem"]

Array = npt.NDArray[Any]
MANY = 20  # different numbers beyond which a target is taken as a quantity
LEAST = 5  # rows that a class must have
TEST = 0.2


class TrainTest(NamedTuple):
    """Row numbers of the training and the test part."""

    train: Array
    test: Array


@dataclass(frozen=True)
class Options:
    """Checked options of a run."""

    model: str
    methods: tuple[Method, ...]
    rho: float
    budget: float
    folds: int
    candidates: int
    seed: int
    seeds: int
    least_group: int
    threads: int
    audit: bool

    def as_json(self) -> dict[str, Any]:
        """What the results depend on: all but the number of threads."""
        known = {name: value for name, value in self.__dict__.items() if name != "threads"}
        return {**known, "methods": list(self.methods)}


@dataclass
class TableProblem:
    """Everything that is known before training."""

    frame: pl.DataFrame
    target: str
    classes: list[str]  # [] for regression
    y: Array  # class numbers, or the target itself
    columns: list[ColumnSummary]
    groups: Array | None  # (rows,) names of combinations, None without group columns
    group: list[str]
    split_by: Array | None  # (rows,) numbers
    split: SplitSummary
    fixed: TrainTest | None  # if the test rows are given, by a file or by time
    warnings: list[str]

    def features(self) -> list[str]:
        return [c["name"] for c in self.columns if c["kind"] in ("number", "category")]

    def counts(self) -> list[int]:
        """Rows of each class; [] for regression."""
        counts: list[int] = np.bincount(self.y, minlength=len(self.classes)).tolist() if self.classes else []
        return counts

    def sample(self, rows: Array, size: int, seed: int) -> Array:
        """That many of these rows, at random, with the same shares of the classes."""
        stratify = self.y[rows] if self.classes else None
        chosen: Array = np.sort(train_test_split(rows, train_size=size, random_state=seed, stratify=stratify)[0])
        return chosen

    def cut(self, seed: int) -> TrainTest:
        """The training and the test rows for a seed."""
        if self.fixed is not None:
            return self.fixed
        rows = np.arange(len(self.y))
        if self.split_by is not None:
            splitter = GroupShuffleSplit(1, test_size=TEST, random_state=seed)
            return TrainTest(*next(iter(splitter.split(rows, groups=self.split_by))))
        stratify = self.y if self.classes else None
        train, test = train_test_split(rows, test_size=TEST, random_state=seed, stratify=stratify)
        return TrainTest(np.sort(train), np.sort(test))

    def folds(self, rows: Array, folds: int, seed: int) -> list[tuple[Array, Array]]:
        """Folds of these rows, as positions in `rows`."""
        if self.split_by is not None:
            splitter: Any = GroupKFold(folds, shuffle=True, random_state=seed)
            return list(splitter.split(rows, groups=self.split_by[rows]))
        if self.classes:
            return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows, self.y[rows]))
        return list(KFold(folds, shuffle=True, random_state=seed).split(rows))


def make_problem(
    data: Any,
    target: str,
    *,
    task: str | None = None,
    group: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ids: Sequence[str] = (),
    split_by: str | None = None,
    split_after: str | tuple[str, Any] | None = None,
    test: Any = None,
    folds: int = 3,
) -> TableProblem:
    """Read the data, find the task, and check everything before training."""
    pl = polars()
    check_whole("folds", folds, 2, 20)
    time = split_after if split_after is None or isinstance(split_after, str) else split_after[0]
    for role, names in (("group", group), ("drop", drop), ("categorical", categorical), ("ids", ids)):
        check_names(role, names)
    _check_roles(target, drop, {
        "group": group, "categorical": categorical, "ids": ids, "split_by": [split_by], "split_after": [time],
    })  # fmt: skip
    frame = as_table(data)
    fixed, split = None, _split("random", None, None, "A fifth of the rows is kept for the test.")
    if test is not None:
        if split_by is not None or split_after is not None:
            raise HyperparameterError("expected test rows from one place, got test and split_by or split_after")
        other = as_table(test, [name for name in frame.columns if frame[name].dtype == pl.String])
        for name in frame.columns:
            if name not in drop:
                column_of(other, name, "which the training data have, in the test data")
        n = frame.height
        frame = _joined(frame, other)
        fixed = TrainTest(np.arange(n), np.arange(n, frame.height))
        split = _split("file", None, None, "The test rows are those of the given file.")
    y = column_of(frame, target, "the target")
    for what, names in (("for groups", group), ("an id", ids)):
        for name in names:
            column_of(frame, name, what)
    special = {**dict.fromkeys(ids, "id"), **dict.fromkeys(group, "group")}
    if y.null_count():
        raise DataError(
            f"expected a value of {shown(target)} in every row, got none in {y.null_count():,}; the first is "
            f"{where(y.is_null())}; remove them"
        )
    groups = _combined(frame, group)
    together = None
    if split_by is not None:
        together = column_of(frame, split_by, "to split by").cast(pl.String).fill_null("").rank("dense").to_numpy()
        special[split_by] = "split"
        split = _split(
            "by", split_by, None, f"Rows with the same {split_by} stay together; a fifth of them is for the test."
        )
    if split_after is not None:
        if split_by is not None:
            raise HyperparameterError("expected split_by or split_after, got both")
        fixed, split = _after(frame, split_after)
        special[str(split["column"])] = "split"
    special[target] = "target"
    warnings: list[str] = []
    classes, labels = _labels(y, task, warnings)
    if classes and split["how"] == "random":
        split["text"] = "A fifth of the rows of each class is kept for the test."
    columns = describe(frame, special, drop, categorical)
    warnings += _notes(columns)
    found = TableProblem(frame, target, classes, labels, columns, groups, list(group), together, split, fixed, warnings)
    _check_sizes(found, folds)
    return found


def _check_roles(target: str, drop: Sequence[str], roles: dict[str, Sequence[str | None]]) -> None:
    """A column with two roles is an error: one of them would be ignored."""
    for role, names in {"drop": drop, **roles}.items():
        if target in names:
            more = "; for classes, ask for classification" if role == "categorical" else ""
            raise HyperparameterError(f"expected columns other than the target in {role}, got {shown(target)}{more}")
        both = [name for name in names if name in drop and role != "drop"]
        if both:
            raise HyperparameterError(f"expected a column in drop or in {role}, got {shown(both[0])} in both")


def _notes(columns: list[ColumnSummary]) -> list[str]:
    """One line for each oddity, with its columns."""
    odd: dict[str, list[str]] = {}
    for column in columns:
        if column["note"] and column["note"] != "as asked":
            what = f"{column['note']}; left out" if column["kind"] == "left out" else column["note"]
            odd.setdefault(what, []).append(column["name"])
    return [
        f"Column {shown(names[0])}: {what}."
        if len(names) == 1
        else f"{len(names):,} columns ({listed(names)}): {what}."
        for what, names in odd.items()
    ][:20]


def _split(how: Any, column: str | None, value: str | None, text: str) -> SplitSummary:
    return {"how": how, "column": column, "value": value, "text": text}


def _joined(frame: Any, other: Any) -> Any:
    """Both, one below the other; a column of numbers in one and texts in the other becomes text."""
    pl = polars()
    absent = [name for name in frame.columns if name not in other.columns]  # of those to leave out
    other = other.with_columns(pl.lit(None).alias(name) for name in absent).select(frame.columns)
    for name in frame.columns:
        if frame[name].dtype != other[name].dtype:
            both = frame[name].dtype.is_numeric() and other[name].dtype.is_numeric()
            kind = pl.Float64 if both else pl.String
            frame, other = frame.with_columns(pl.col(name).cast(kind)), other.with_columns(pl.col(name).cast(kind))
    return pl.concat([frame, other])


def _after(frame: Any, split_after: str | tuple[str, Any]) -> tuple[TrainTest, SplitSummary]:
    """Rows after a value are the test; without a value, the last fifth."""
    pl = polars()
    name, bound = (split_after, None) if isinstance(split_after, str) else split_after
    column = column_of(frame, name, "to split after")
    if column.null_count():
        raise DataError(
            f"expected a value of {shown(name)} in every row to split after, got none in {column.null_count():,}; the "
            f"first is {where(column.is_null())}"
        )
    if column.dtype == pl.String and bound is None:
        raise DataError(
            f"expected numbers or dates in {shown(name)} to split after, got texts such as {shown(column[0])}"
        )
    if bound is None:
        bound = column.sort()[int(len(column) * (1 - TEST)) - 1]
        if bound == column.max() and column.n_unique() > 1:  # the last value has more than a fifth
            bound = column.filter(column < bound).max()
    else:
        text, given = pl.Series([str(bound)]), bound
        try:
            days, times = column.dtype == pl.Date, column.dtype == pl.Datetime
            read = text.str.to_date(strict=False) if days else text.str.to_datetime(strict=False) if times else text
            bound = read.cast(column.dtype)[0]
        except pl.exceptions.PolarsError:
            bound = None
        if bound is None:
            raise DataError(f"expected a value like those of {shown(name)} ({shown(column[0])}), got {shown(given)}")
    late = (column > bound).to_numpy()
    if late.all() or not late.any():
        raise DataError(f"expected rows before and after {shown(name)} = {shown(bound)}, got only one kind")
    text = f"The test rows are those with {name} above {bound}."
    return TrainTest(np.flatnonzero(~late), np.flatnonzero(late)), _split("after", name, str(bound), text)


def _labels(y: Any, task: str | None, warnings: list[str]) -> tuple[list[str], Array]:
    pl = polars()
    if task not in (None, "classification", "regression"):
        raise HyperparameterError(f"expected task to be 'classification' or 'regression', got {task!r}")
    number, distinct = y.dtype.is_numeric(), y.n_unique()
    if task == "regression" and not number:
        raise DataError(f"expected numbers in {shown(y.name)} for regression, got texts such as {shown(y[0])}")
    if distinct < 2:
        raise DataError(f"expected at least two values of {shown(y.name)}, got only {shown(y[0])}")
    if task is None and number and distinct > MANY:
        warnings.append(
            f"{shown(y.name)} has {distinct:,} different numbers: taken as a quantity (regression). For classes, ask "
            "for classification."
        )
        task = "regression"
    if task == "regression":
        values = y.cast(pl.Float64).to_numpy().copy()
        if not 1e-100 < np.ptp(values) < 1e100:
            raise DataError(
                f"expected numbers of {shown(y.name)} that can be squared, got {values.min():g} to {values.max():g}; "
                "use another unit"
            )
        return [], values
    values = y.unique().sort()
    if distinct > max(MANY, len(y) / LEAST):
        raise DataError(
            f"expected classes in {shown(y.name)}, got {distinct:,} different texts in {len(y):,} rows; is it a name?"
        )
    names = [_class_name(value) for value in values]
    codes = y.replace_strict(values.to_list(), list(range(len(values))), return_dtype=pl.Int64).to_numpy().copy()
    return names, codes


def _class_name(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _combined(frame: Any, group: Sequence[str]) -> Array | None:
    """Names such as "sex = Female, race = Black"."""
    if not group:
        return None
    pl = polars()
    parts = [pl.lit(f"{name} = ") + pl.col(name).cast(pl.String).fill_null("missing") for name in group]
    names: Array = frame.select(pl.concat_str(parts, separator=", ").alias("group"))["group"].to_numpy()
    return names


def _check_sizes(problem: TableProblem, folds: int) -> None:
    n = len(problem.y)
    if problem.classes:
        counts = np.bincount(problem.y, minlength=len(problem.classes))
        least = int(counts.argmin())
        if counts[least] < max(LEAST, 2 * folds):
            raise DataError(
                f"expected at least {max(LEAST, 2 * folds)} rows of every class of {shown(problem.target)}, got "
                f"{counts[least]} of {shown(problem.classes[least])}; remove these rows, or join classes"
            )
    if n < 40:
        raise DataError(f"expected at least 40 rows, got {n}")
    if problem.split_by is not None and len(np.unique(problem.split_by)) < 2 * folds:
        raise DataError(
            f"expected at least {2 * folds} different values of {shown(problem.split['column'])} to split by"
        )
    if problem.fixed is not None and len(problem.fixed.test) < 2:
        raise DataError(f"expected at least 2 test rows, got {len(problem.fixed.test)}")
    if problem.fixed is not None and problem.classes:
        seen = set(problem.y[problem.fixed.train].tolist())
        new = [name for k, name in enumerate(problem.classes) if k not in seen]
        if new:
            raise DataError(
                f"expected every class among the training rows, got {shown(new[0])} only among the test rows"
            )
        counts = np.bincount(problem.y[problem.fixed.train], minlength=len(problem.classes))
        if counts.min() < folds:
            raise DataError(
                f"expected at least {folds} training rows of {shown(problem.classes[int(counts.argmin())])}"
            )
