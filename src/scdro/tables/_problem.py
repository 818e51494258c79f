"""A table as a learning problem: the task, the test rows, the groups, and what is odd about it.

All that can be wrong with a table or its options is told here, before anything is trained:

    1. read the file; add the rows of a test file                    (_read, _join_test_rows)
    2. leave out rows without a target, if asked                     (_find_targets)
    3. texts such as $5.0 or 35% become numbers                      (_read_numbers)
    4. classes or a quantity? y as class numbers, or as it is        (_read_classes)
    5. which rows are for the test, and which stay together          (_split_rows)
    6. each column: a number, a category, or left out, and why       (describe_columns)
    7. enough rows of every class, in every fold                     (_check_sizes)
    8. notes: columns that tell the target, rows that are copies     (find_leaks, find_copies)

Steps 1 to 7 raise for what cannot work; what only looks odd becomes a sentence in `warnings`.
`make_problem` is these steps in this order, `TableProblem` their result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    StratifiedKFold,
    train_test_split,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from scdro.errors import DataError, HyperparameterError
from scdro.tables._models import MOST_SPLIT_VALUES, Columns, is_category
from scdro.tables._options import TrainOptions
from scdro.tables._read import (
    FileOptions,
    RawTable,
    as_table,
    column_of,
    has_decimal_commas,
    list_names,
    name_first_row,
    quote,
    read_value_like,
    read_written_numbers,
)

if TYPE_CHECKING:
    from scdro.tables._summary import ColumnSummary, SplitSummary

__all__ = ["TableProblem", "TrainTest", "make_problem"]

Array = npt.NDArray[Any]
MOST_CLASS_NUMBERS = 20  # different numbers beyond which a target is taken as a quantity
LEAST_OF_CLASS = 5  # rows that a class must have
ROWS_NEEDED = 40
TEST_SHARE = 0.2  # share of the test rows
DECIMAL_COMMAS = "numbers with a decimal comma: say --decimal , (decimal=',' in Python)"
ROWS_TRIED = 2000  # rows that each column is tried on alone, and the first columns that are
GIVEN_AWAY = 0.97  # a column that alone removes this share of a constant's error may be a leak
MANY_COPIES = 0.01  # share of rows that are copies from which on they are told


class TrainTest(NamedTuple):
    """Row numbers of the training and the test part, each sorted."""

    train: Array  # (n_train,)
    test: Array  # (n_test,)


@dataclass
class TableProblem:
    """Everything that is known before training."""

    frame: pl.DataFrame  # all rows, training and test, with numbers, texts and dates only
    target: str  # the column to predict
    classes: list[str]  # names of the classes, in the order of their numbers; [] for regression
    values: pl.Series | None  # of the classes, as the table has them; None for regression
    given: Any  # the target's type before the table was read; None in a text file
    y: Array  # (rows,) class numbers, or the target itself
    columns: list[ColumnSummary]  # how each one is used
    group: list[str]  # columns of groups; the target's classes are reported anyway
    groups: Array | None  # (rows,) names of combinations, None without group columns
    split_by: Array | None  # (rows,) numbers of what stays together
    split: SplitSummary  # how the test rows are chosen, in words
    fixed: TrainTest | None  # if the test rows are given, by a file or by time
    warnings: list[str]  # what is odd, in sentences; shown before anything else

    @property
    def task(self) -> Literal["classification", "regression"]:
        """Regression is the task without classes."""
        return "classification" if self.classes else "regression"

    def features(self) -> list[str]:
        """Names of the columns that a model sees."""
        return [c["name"] for c in self.columns if c["kind"] in ("number", "category")]

    def categories(self) -> list[str]:
        """Those of them that are categories."""
        return [c["name"] for c in self.columns if c["kind"] == "category"]

    def columns_to_describe(self, rows: Array) -> dict[str, pl.Series]:
        """The columns by which an audit describes some rows: features, and groups asked for."""
        frame, kinds = self.frame[rows], ("number", "category", "group")
        return {c["name"]: frame[c["name"]] for c in self.columns if c["kind"] in kinds}

    def count_classes(self) -> list[int]:
        """Rows of each class; [] for regression."""
        counts: list[int] = np.bincount(self.y, minlength=len(self.classes)).tolist()
        return counts

    def _strata_of(self, rows: Array) -> Array | None:
        """What a random split keeps the shares of: the classes; None for regression."""
        return self.y[rows] if self.classes else None

    def draw_sample(self, rows: Array, size: int, seed: int) -> Array:
        """That many of these rows, at random, with the same shares of the classes."""
        own = {"train_size": size, "random_state": seed, "stratify": self._strata_of(rows)}
        chosen: Array = np.sort(train_test_split(rows, **own)[0])
        return chosen

    def split_rows(self, seed: int) -> TrainTest:
        """The training and the test rows for a seed."""
        if self.fixed is not None:
            return self.fixed
        rows = np.arange(len(self.y))
        own: Any = {"test_size": TEST_SHARE, "random_state": seed}
        if self.split_by is not None:
            return TrainTest(*next(GroupShuffleSplit(1, **own).split(rows, groups=self.split_by)))
        train, test = train_test_split(rows, stratify=self._strata_of(rows), **own)
        return TrainTest(np.sort(train), np.sort(test))

    def make_folds(self, rows: Array, folds: int, seed: int) -> list[tuple[Array, Array]]:
        """Folds of these rows, as pairs of positions in `rows`: to fit on, to predict.

        Rows that stay together are in one fold; otherwise each fold has the same shares of classes.
        """
        own: Any = {"n_splits": folds, "shuffle": True, "random_state": seed}
        if self.split_by is not None:
            return list(GroupKFold(**own).split(rows, groups=self.split_by[rows]))
        splitter = StratifiedKFold(**own) if self.classes else KFold(**own)
        return list(splitter.split(rows, self.y[rows]))


def make_problem(
    data: Any,
    target: str,
    options: TrainOptions = TrainOptions(),  # noqa: B008
) -> TableProblem:
    """Read the data, find the task, and check everything before training.

    The steps are those at the head of this file. Whoever names the target as a group wants the
    classes to be reported, which they are anyway.
    """
    if target in options.group:
        group = [name for name in options.group if name != target]
        found = make_problem(data, target, replace(options, group=group))
        if not found.classes:
            raise HyperparameterError(
                f"expected a target with classes to report them, got the quantity {quote(target)} in group"
            )
        return found
    _check_roles(target, options)
    # 1 and 2. The rows; which of them are of a test file, (rows,).
    file, warnings = FileOptions(options.encoding, options.decimal, options.sheet), list[str]()
    raw = RawTable.read(data, file)
    frame, is_test = _join_test_rows(raw.tidy((), file), options, file)
    known = _find_targets(column_of(frame, target, "the target"), options.drop_missing, warnings)
    if known is not None:
        frame, is_test = frame.filter(known), is_test[known.to_numpy()]
    for what, names in (("for groups", options.group), ("an id", options.ids)):
        for name in names:
            column_of(frame, name, what)
    # 3 to 5. Numbers, classes, and the split.
    frame = _read_numbers(frame, target, options, warnings)
    values, y = _read_classes(frame[target], options.task, warnings)
    split, fixed, split_by = _split_rows(frame, is_test, values is not None, options)
    # 6. The columns. Where roles overlap, the target's counts, then that of the split.
    special = {**dict.fromkeys(options.ids, "id"), **dict.fromkeys(options.group, "group")}
    if split["column"] is not None:
        special[split["column"]] = "split"
    columns = describe_columns(
        frame, {**special, target: "target"}, options.drop, options.categorical
    )
    warnings += _join_notes(columns)
    found = TableProblem(
        frame=frame,
        target=target,
        classes=[] if values is None else [_name_class(value) for value in values],
        values=values,
        given=raw.type_of(target),
        y=y,
        columns=columns,
        group=list(options.group),
        groups=_name_groups(frame, options.group),
        split_by=split_by,
        split=split,
        fixed=fixed,
        warnings=warnings,
    )
    # 7 and 8. Sizes, and what looks odd. Copies are told only where a split could part them.
    _check_sizes(found, options.folds)
    warnings += find_leaks(frame, found.features(), found.categories(), y, len(found.classes))
    if split_by is None:
        tested = None if fixed is None else fixed.test
        warnings += find_copies(frame, found.features(), target, tested)
    return found


# -- the rows


def _check_roles(target: str, options: TrainOptions) -> None:
    """A column with two roles is an error: one of them would be ignored."""
    after = options.split_after
    if options.split_by is not None and after is not None:
        raise HyperparameterError("expected split_by or split_after, got both")
    if options.test is not None and (options.split_by is not None or after is not None):
        raise HyperparameterError(
            "expected test rows from one place, got test and split_by or split_after"
        )
    roles: dict[str, Sequence[str | None]] = {  # columns by what they are asked to be
        "drop": options.drop, "group": options.group, "categorical": options.categorical,
        "ids": options.ids, "split_by": [options.split_by],
        "split_after": [after if after is None or isinstance(after, str) else after[0]],
    }  # fmt: skip
    for role, names in roles.items():
        if target in names:
            advice = "; for classes, ask for classification" if role == "categorical" else ""
            raise HyperparameterError(
                f"expected columns other than the target in {role}, got {quote(target)}{advice}"
            )
        both = [name for name in names if name in options.drop and role != "drop"]
        if both:
            raise HyperparameterError(
                f"expected a column in drop or in {role}, got {quote(both[0])} in both"
            )


def _join_test_rows(
    frame: pl.DataFrame, options: TrainOptions, file: FileOptions
) -> tuple[pl.DataFrame, Array]:
    """The table with the rows of the test file below, if there is one; and which rows these are."""
    if options.test is None:
        return frame, np.zeros(frame.height, bool)
    texts = [name for name, kind in frame.schema.items() if kind == pl.String]
    other = as_table(options.test, texts, file.for_file(options.test))
    for name in frame.columns:
        if name not in options.drop:
            column_of(other, name, "which the training data have, in the test data")
    absent = set(frame.columns) - set(other.columns)  # of those to leave out
    other = other.with_columns(pl.lit(None).alias(name) for name in absent).select(frame.columns)
    # A column of whole numbers in one and of decimals in the other becomes one of decimals; numbers
    # in one and texts in the other become texts.
    kinds = {
        name: pl.Float64 if kind.is_numeric() and other.schema[name].is_numeric() else pl.String
        for name, kind in frame.schema.items()
        if kind != other.schema[name]
    }
    is_test = np.repeat([False, True], [frame.height, other.height])
    return pl.concat([frame.cast(kinds), other.cast(kinds)]), is_test


def _find_targets(y: pl.Series, drop_missing: bool, warnings: list[str]) -> pl.Series | None:
    """Which rows have a target, None for all; an error if some have none, unless they are to be dropped."""
    missing = y.null_count()
    if not missing:
        return None
    if not drop_missing or missing == len(y):
        raise DataError(
            f"expected a value of {quote(y.name)} in every row, got none in {missing:,} of"
            f" {len(y):,} rows; the first is {name_first_row(y.is_null())}; leave these rows out with"
            " --drop-missing (drop_missing=True in Python)"
        )
    warnings.append(
        f"{missing:,} of {len(y):,} rows have no value of {quote(y.name)}: left out, as asked."
    )
    return y.is_not_null()


def _split_rows(
    frame: pl.DataFrame, is_test: Array, classes: bool, options: TrainOptions
) -> tuple[SplitSummary, TrainTest | None, Array | None]:
    """How the test rows are chosen; both parts if they are given; what stays together, (rows,)."""
    if options.test is not None:
        text = "The test rows are those of the given file."
        fixed = TrainTest(np.flatnonzero(~is_test), np.flatnonzero(is_test))
        return {"how": "file", "column": None, "value": None, "text": text}, fixed, None
    if options.split_by is not None:
        name = options.split_by
        units = column_of(frame, name, "to split by").cast(pl.String).fill_null("")
        text = f"Rows with the same {name} stay together; a fifth of them is for the test."
        split: SplitSummary = {"how": "by", "column": name, "value": None, "text": text}
        return split, None, units.rank("dense").to_numpy()
    if options.split_after is not None:
        return *_split_after(frame, options.split_after), None
    of_each = " of each class" if classes else ""
    text = f"A fifth of the rows{of_each} is kept for the test."
    return {"how": "random", "column": None, "value": None, "text": text}, None, None


def _split_after(
    frame: pl.DataFrame, split_after: str | tuple[str, Any]
) -> tuple[SplitSummary, TrainTest]:
    """Rows after a value are the test; without a value, the last fifth."""
    name, given = (split_after, None) if isinstance(split_after, str) else split_after
    column = column_of(frame, name, "to split after")
    if column.null_count():
        raise DataError(
            f"expected a value of {quote(name)} in every row to split after, got none in"
            f" {column.null_count():,}; the first is {name_first_row(column.is_null())}"
        )
    if column.dtype == pl.String and given is None:
        raise DataError(
            f"expected numbers or dates in {quote(name)} to split after, got texts such as"
            f" {quote(column[0])}"
        )
    if given is None:
        # Rows above the bound are the test; equal values are never on both sides.
        bound = column.sort()[int(len(column) * (1 - TEST_SHARE)) - 1]
        if bound == column.max() and column.n_unique() > 1:  # the last value has more than a fifth
            bound = column.filter(column < bound).max()
    else:
        bound = read_value_like(column, str(given))
        if bound is None:
            raise DataError(
                f"expected a value like those of {quote(name)} ({quote(column[0])}), got"
                f" {quote(given)}"
            )
    late = (column > bound).to_numpy()
    if late.all() or not late.any():
        raise DataError(
            f"expected rows before and after {quote(name)} = {quote(bound)}, got only one kind"
        )
    text = f"The test rows are those with {name} above {bound}."
    fixed = TrainTest(np.flatnonzero(~late), np.flatnonzero(late))
    return {"how": "after", "column": name, "value": str(bound), "text": text}, fixed


# -- columns


def describe_columns(
    frame: pl.DataFrame, special: dict[str, str], drop: Sequence[str], categorical: Sequence[str]
) -> list[ColumnSummary]:
    """How every column is used, and what is odd about it.

    Args:
        frame: the table.
        special: the kind of the columns that have a role: "target", "group", "id", "split".
        drop: columns that the user leaves out.
        categorical: numbers that the user takes as categories.
    """
    for name in (*drop, *categorical):
        column_of(frame, name, "to leave out" if name in drop else "to take as categories")
    summaries: list[ColumnSummary] = []
    for column in frame.get_columns():
        name, note, distinct = column.name, "", column.drop_nulls().n_unique()
        kind: Any = special.get(name) or ("left out" if name in drop else None)  # None: a feature
        if kind == "left out":
            note = "as asked"
        elif kind is None:
            category = is_category(column, categorical)
            note = _why_useless(column, distinct, category)
            kind = "left out" if note else "category" if category else "number"
            # Numbers with a decimal comma look like texts that hardly repeat: say what to do instead.
            if note and category and has_decimal_commas(column.cast(pl.String)):
                note = DECIMAL_COMMAS
            if kind == "category" and name not in categorical:
                note = _find_mistakes(column, distinct)
        summaries.append({"name": name, "kind": kind, "missing": column.null_count(),
                      "values": distinct, "note": note})  # fmt: skip
    if not any(column["kind"] in ("number", "category") for column in summaries):
        raise DataError(
            "expected columns to learn from, got none: all are constant, names of rows, or left out"
        )
    return summaries


def _why_useless(column: Any, distinct: int, category: bool) -> str:
    """Why a column should be left out, or "": it is constant, a name or text, or a row number."""
    known = len(column) - column.null_count()  # rows with a value
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
    texts = known.filter(known.cast(pl.Float64, strict=False).is_null())  # what is no number
    if has_decimal_commas(known):
        notes.append(f"{DECIMAL_COMMAS}; taken as categories")
    elif 0 < len(texts) < len(known) / 2:
        notes.append(
            f"{len(known) - len(texts):,} of the {len(known):,} values are numbers, the others"
            f" texts such as {quote(texts[0], 30)}: taken as categories"
        )
    same = find_variants(known)
    if same:
        notes.append(
            f"values that differ only in case or spaces ({list_names(same)}): are they one?"
        )
    if distinct > MOST_SPLIT_VALUES and not has_decimal_commas(
        known
    ):  # one note for all such columns
        notes.append(
            f"{distinct:,} different values: each is replaced by the mean of the target there"
        )
    return "; ".join(notes)


def find_variants(texts: pl.Series) -> list[str]:
    """The first values that differ only in case or spaces, such as ["Oslo", "oslo "]; [] if none do."""
    distinct = texts.drop_nulls().cast(pl.String).unique().sort()
    simple = distinct.str.strip_chars().str.replace_all(r"\s+", " ").str.to_lowercase()
    twice = simple.filter(simple.is_duplicated())
    first: list[str] = distinct.filter(simple == twice[0]).to_list() if len(twice) else []
    return first


def _read_numbers(
    frame: pl.DataFrame, target: str, options: TrainOptions, warnings: list[str]
) -> pl.DataFrame:
    """Texts such as $5.0, 37,000.00 or 35% as numbers, where all values of a column are such.

    Columns that the user asked for as groups, categories or ids stay as they are written.
    """
    kept: Collection[str | None] = {
        *options.group, *options.categorical, *options.ids, *options.drop, options.split_by,
        target if options.task == "classification" else None,
    }  # fmt: skip
    converted = {
        name: numbers
        for name, kind in frame.schema.items()
        if kind == pl.String and name not in kept
        if (numbers := read_written_numbers(frame[name])) is not None
    }
    if not converted:
        return frame
    one = next(iter(converted))
    at = int(frame[one].is_not_null().arg_max() or 0)
    what = (
        f"Column {quote(one)} has"
        if len(converted) == 1
        else f"Columns {list_names(list(converted))} have"
    )
    warnings.append(
        f"{what} numbers with signs or separators of thousands: {quote(frame[one][at])} is read as"
        f" {converted[one][at]:.15g}."
    )
    # not with_columns: a name may be empty
    return pl.DataFrame({c.name: converted.get(c.name, c) for c in frame.get_columns()})


def _join_notes(columns: list[ColumnSummary]) -> list[str]:
    """One line for each oddity, with its columns, at most 20 lines."""
    odd: dict[str, list[str]] = {}  # names of the columns by what is odd about them
    for column in columns:
        if column["note"] and column["note"] != "as asked":
            out = "; left out" if column["kind"] == "left out" else ""
            odd.setdefault(f"{column['note']}{out}", []).append(column["name"])
    notes = []
    for what, names in list(odd.items())[:20]:
        several = f"{len(names):,} columns ({list_names(names)})"
        notes.append(f"{several if len(names) > 1 else f'Column {quote(names[0])}'}: {what}.")
    return notes


def _name_groups(frame: pl.DataFrame, group: Sequence[str]) -> Array | None:
    """For each row the name of its combination of groups, such as "sex = Female, race = Black"."""
    if not group:
        return None
    parts = [
        pl.lit(f"{name} = ") + pl.col(name).cast(pl.String).fill_null("missing") for name in group
    ]
    names: Array = frame.select(group=pl.concat_str(parts, separator=", "))["group"].to_numpy()
    return names


# -- the task


def _read_classes(
    y: pl.Series, task: str | None, warnings: list[str]
) -> tuple[pl.Series | None, Array]:
    """Whether the target is classes or a quantity, and the target as a model sees it.

    Texts are classes; numbers are, if there are at most `MOST_CLASS_NUMBERS` different ones. Where
    this is a guess (more than two numbers), a warning says what was taken, and how to say
    otherwise.

    Returns:
        The different values, sorted, and the number of each row's value among them, (rows,); of a
        quantity None, and the quantity, (rows,).
    """
    number, distinct = y.dtype.is_numeric(), y.n_unique()
    if task == "regression" and not number:
        raise DataError(
            f"expected numbers in {quote(y.name)} for regression, got texts such as {quote(y[0])}"
        )
    if distinct < 2:
        raise DataError(f"expected at least two values of {quote(y.name)}, got only {quote(y[0])}")
    if task is None and number and distinct > MOST_CLASS_NUMBERS:
        warnings.append(
            f"{quote(y.name)} has {distinct:,} different numbers: taken as a quantity (regression)."
            " For classes, ask for classification (--task classification)."
        )
        task = "regression"
    elif task is None and number and distinct > 2:
        warnings.append(
            f"{quote(y.name)} has {distinct:,} different numbers, {y.min():g} to {y.max():g}: taken"
            " as classes. For a quantity, ask for regression (--task regression)."
        )
    # A quantity. Squared errors need numbers that can be squared.
    if task == "regression":
        values = y.cast(pl.Float64).to_numpy().copy()
        if not 1e-100 < np.ptp(values) < 1e100:
            raise DataError(
                f"expected numbers of {quote(y.name)} that can be squared, got {values.min():g} to"
                f" {values.max():g}; use another unit"
            )
        return None, values
    # Classes, numbered in the order of their values.
    values = y.unique().sort()
    same = [] if number else find_variants(y)
    if same:
        warnings.append(
            f"Classes of {quote(y.name)} differ only in case or spaces ({list_names(same)}): are they"
            " one? Then write them in one way."
        )
    if distinct > max(MOST_CLASS_NUMBERS, len(y) / LEAST_OF_CLASS):
        raise DataError(
            f"expected classes in {quote(y.name)}, got {distinct:,} different texts in {len(y):,}"
            " rows; is it a name?"
        )
    return values, y.rank("dense").to_numpy().astype(np.int64) - 1


def _name_class(value: Any) -> str:
    """The name of a class: 1 for 1.0, and as many digits of other floats as tell them apart."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _check_sizes(problem: TableProblem, folds: int) -> None:
    """Raise if there is too little of anything: rows of a class, rows, values to split by, test rows.

    Every class needs two rows in each fold, so that none of the models lacks it.
    """
    n, target, fixed = len(problem.y), quote(problem.target), problem.fixed
    # Rows of every class, rows, and values to split by; then the same of given training rows.
    least = max(LEAST_OF_CLASS, 2 * folds)
    if problem.classes:
        counts = problem.count_classes()
        rare = int(np.argmin(counts))
        if counts[rare] < least:
            same = find_variants(problem.frame[problem.target])
            more = f"; {list_names(same)} differ only in case or spaces" if same else ""
            raise DataError(
                f"expected at least {least} rows of every class of {target}, got {counts[rare]} of"
                f" {quote(problem.classes[rare])}; remove these rows, or join classes{more}"
            )
    if n < ROWS_NEEDED:
        raise DataError(f"expected at least {ROWS_NEEDED} rows, got {n}")
    if problem.split_by is not None and len(np.unique(problem.split_by)) < 2 * folds:
        raise DataError(
            f"expected at least {2 * folds} different values of {quote(problem.split['column'])} to"
            " split by"
        )
    if fixed is not None and len(fixed.test) < 2:
        raise DataError(f"expected at least 2 test rows, got {len(fixed.test)}")
    if fixed is not None and problem.classes:
        counts = np.bincount(problem.y[fixed.train], minlength=len(problem.classes)).tolist()
        rare = int(np.argmin(counts))
        if counts[rare] < folds:
            raise DataError(
                f"expected at least {folds} training rows of every class of {target}, got"
                f" {counts[rare]} of {quote(problem.classes[rare])}: the others are test rows"
            )


# -- what looks wrong, in words. Each check looks at a sample at most, and only tells


def find_leaks(
    frame: pl.DataFrame, names: Sequence[str], categorical: Sequence[str], y: Array, classes: int
) -> list[str]:
    """A note on columns that predict the target nearly alone.

    A small tree of one column is fitted on half of at most ROWS_TRIED rows and judged on the other half:
    by the share of a constant's errors, or of the variance of the target's ranks, that it removes.

    Args:
        frame: the table.
        names: columns to try.
        categorical: those that are categories.
        y: class numbers, or the target itself, (rows,).
        classes: how many; 0 for regression.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(y))[:ROWS_TRIED])  # the sample
    frame, y = frame[rows], y[rows]
    if not classes:  # of ranks a tree sees every monotone function of the target
        y = np.argsort(np.argsort(y)).astype(float)
    columns = Columns.fit(frame, names[:ROWS_TRIED], categorical)
    X = np.nan_to_num(columns.encode(frame), nan=-1e30, posinf=1e30, neginf=-1e30)
    order = rng.permutation(len(y))
    fitted, judged = order[::2], order[1::2]
    told = [
        (share, name)
        for name, column in zip(columns.names, X.T, strict=True)
        if (share := _explain_alone(column[:, None], y, fitted, judged, classes)) > GIVEN_AWAY
    ]
    if not told:
        return []
    told.sort(reverse=True)
    who = [name for _, name in told]
    what = "tells" if len(who) == 1 else "each tell"
    drop = " ".join(f"--drop {name}" for name in who[:3])
    return [
        f"Column{'s' * (len(who) > 1)} {list_names(who)} {what} the target nearly alone: is that known"
        f" before the target is? If not, leave it out ({drop})."
    ]


def _explain_alone(column: Array, y: Array, fitted: Array, judged: Array, classes: int) -> float:
    """The share of a constant's errors, or of the variance, that a tree of one column removes."""
    kind = DecisionTreeClassifier if classes else DecisionTreeRegressor
    tree = kind(max_leaf_nodes=256, random_state=0)
    # trees compare in single precision: the order of the values is all that they need
    ranks = np.unique(column, return_inverse=True)[1].reshape(-1, 1)
    predicted = tree.fit(ranks[fitted], y[fitted]).predict(ranks[judged])
    if classes:
        constant = np.bincount(y[fitted]).argmax()
        most = float((y[judged] != constant).mean())
        left = float((y[judged] != predicted).mean())
    else:
        most = float(((y[judged] - y[fitted].mean()) ** 2).mean())
        left = float(((y[judged] - predicted) ** 2).mean())
    return 1.0 - left / most if most > 0 else 0.0


def find_copies(
    frame: pl.DataFrame, names: Sequence[str], target: str, test: Array | None
) -> list[str]:
    """A note on rows that occur more than once, target included, where chance does not explain it.

    In a table of a few categories rows are equal by chance: the note needs columns that, if they
    were independent, would make fewer than one row in a hundred like any other one.
    """
    own = [name for name in (*names, target) if frame[name].dtype != pl.Object]
    part = frame.select(own)
    copied = part.is_duplicated()
    share = float(copied.mean() or 0.0)
    if share < MANY_COPIES or int(copied.sum()) < 10 or _expect_copies(part.unique()) > 0.01:
        return []
    what = f"{int(copied.sum()):,} of {frame.height:,} rows occur more than once, with the target"
    if test is not None:
        is_test = np.zeros(frame.height, bool)
        is_test[test] = True
        both = part.with_columns(pl.Series("\0test", is_test))
        distinct = both.unique().select(own)
        shared = int(distinct.is_duplicated().sum()) // 2
        if not shared:
            return []
        what += f"; {shared:,} different ones are among the training and the test rows"
    return [
        f"{what}: models are tested on rows that they were trained on, and look too good. Remove"
        " the copies, or keep them together (--split-by COLUMN)."
    ]


def _expect_copies(frame: pl.DataFrame) -> float:
    """Expected number of other rows that a row equals, if the columns were independent.

    Two rows agree in a column with probability sum of squared shares of its values; over
    independent columns these multiply, and there are `height` other rows.
    """
    expected = float(frame.height)
    for column in frame.get_columns():
        shares = column.value_counts()["count"].to_numpy() / frame.height
        expected *= float((shares**2).sum())
        if expected < 1e-6:
            break
    return expected
