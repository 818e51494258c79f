"""The columns that describe people, as small whole numbers, and the conditions that can define a slice.

Every column becomes one code per row: the number of a quantile range, of a value, or of "missing".
A condition ("age > 52", "city = Oslo", "income is missing") is then a set of codes. That makes a
search cheap: all slices of two columns follow from one table of counts over pairs of codes,
whatever the number of rows (see `_scan`), and a table of ten million rows needs one byte per cell.

Numbers are cut about a hundred times, so that one byte says which ends a range may have. The
search looks at a few dozen of the five thousand ranges: tails of every size, and windows of 5 to
40% of the rows that overlap by half, so that any range has much in common with one of them. The
ends of what it finds are then moved over all the cuts (see `refine` in `_scan`).

    read_frame     a table of any kind -> {name: array}: floats, dates, or objects
    fit_coder      a column -> `Coder`: its cuts, or its most frequent values or words
    Coder.encode   a column -> `CodedColumn`: codes, (n,), and which codes fulfil each condition
    Coder.adapt    the same column of another table, for `SliceCondition.rows`

For example age, cut at 20, 40 and 60, has the codes 0 (up to 20), 1, 2, 3 (above 60) and 4
(missing), and the condition "age > 40" is the set of codes {2, 3}.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt

from scdro._frames import as_vector, backend_of, is_missing, name_of, recognise
from scdro.errors import DataError

__all__ = [
    "CodedColumn",
    "Coder",
    "SliceCondition",
    "code_columns",
    "code_lazy",
    "fit_coder",
    "is_lazy",
    "read_frame",
    "value_numbers",
]

Array = npt.NDArray[Any]
Windows = Sequence[tuple[float, float]]
NUMBER = (int, float, np.number)
CUTS = (0.005, *(k / 100 for k in range(1, 100)), 0.995)  # quantiles where numbers may be cut
TENTHS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TAILS = (0.005, 0.01, 0.02, *TENTHS, 0.98, 0.99, 0.995)  # ends of the tails that are looked at
WINDOWS = ((0.05, 0.05), (0.1, 0.05), (0.2, 0.1), (0.4, 0.2))  # widths of ranges, and their steps
FIFTHS = ((0.2, 0.2),)  # the same for tables with many columns of numbers
MANY_NUMBERS = 25  # with more columns of numbers than this, `FIFTHS` replace `WINDOWS`
DISTINCT = 12  # a column with at most this many different numbers is split by value
VALUES = 40  # values of a column that become conditions, the most frequent ones
ROWS_FOR_CODER = 1_000_000  # rows of a LazyFrame that decide how its columns are coded
ROWS_CODED_AT_ONCE = 1_000_000  # rows of a LazyFrame that are coded at once
WORDS_CODED = 300  # words of a text column that become conditions, the most frequent ones


@dataclass(frozen=True)
class CodedColumn:
    """One column, coded.

    Attributes:
        name: its name.
        codes: one code per row, (n,), of an unsigned type as small as possible.
        conditions: the texts of its conditions.
        members: which codes fulfil each condition, (conditions, codes), booleans.
        coder: what coded it, and codes the same column of another table.
        paired: whether its conditions are also combined with those of other columns.
    """

    name: str
    codes: Array
    conditions: tuple[str, ...]
    members: Array
    coder: Coder
    paired: bool = True

    def rows(self, condition: int) -> Array:
        """For which rows a condition holds, (n,)."""
        rows: Array = self.members[condition][self.codes]
        return rows

    def condition(self, number: int) -> SliceCondition:
        """One of its conditions, which can be applied to another table."""
        return SliceCondition(self.conditions[number], self.coder, self.members[number])

    def is_range(self, number: int) -> bool:
        """Whether a condition is a range of numbers or dates, whose ends could be moved.

        "is missing" is none: it is the only one that holds for the last code.
        """
        movable = self.coder.kind in ("numbers", "dates") and not self.coder.exact
        return movable and not bool(self.members[number, -1])

    def between(self, low: int, high: int) -> SliceCondition:
        """The condition that a code is `low` or more, and less than `high`."""
        coder, last = self.coder, len(self.coder.cuts)
        shown = _write_cuts(coder.cuts, coder.kind)
        if low == 0:
            text = f"{self.name} <= {shown[high - 1]}"
        elif high == last + 1:
            text = f"{self.name} > {shown[low - 1]}"
        else:
            text = f"{shown[low - 1]} < {self.name} <= {shown[high - 1]}"
        codes = np.arange(last + 2)
        return SliceCondition(text, coder, (codes >= low) & (codes < high))


@dataclass(frozen=True)
class SliceCondition:
    """One condition on one column, such as "age > 52", which can be applied to any table.

    Attributes:
        text: the condition in words.
        coder: how the column was coded in the table that was audited.
        codes: which codes fulfil it, booleans.

    Example:
        >>> import scdro
        >>> p, city = np.full(1000, 0.5), np.array(["Oslo"] * 500 + ["Rome"] * 500)
        >>> y = np.r_[np.arange(500) % 10 == 0, np.arange(500) % 10 != 0]
        >>> condition = scdro.audit(y, p, {"city": city}).findings[0].where[0]
        >>> condition.column, condition.text, condition.rows({"city": ["Rome", "Oslo"]}).tolist()
        ('city', 'city = Oslo', [False, True])
    """

    text: str
    coder: Coder
    codes: Array  # (codes of the column,)

    @property
    def column(self) -> str:
        """The name of the column that it is about."""
        return self.coder.name

    def rows(self, frame: Any) -> Array:
        """For which rows of a table it holds, (n,), booleans."""
        columns = read_frame(frame)
        if self.column not in columns:
            raise DataError(
                f"expected a table with the column {self.column!r}, since {self.text!r} is about"
                f" it, got {', '.join(columns) or 'no columns'}"
            )
        (coded,) = self.coder.encode(self.coder.adapt(columns[self.column]))
        rows: Array = self.codes[coded.codes]
        return rows


@dataclass(frozen=True)
class Coder:
    """How the values of one column become codes. Fitted on some rows, it codes any others.

    Attributes:
        name: of the column.
        kind: "numbers", "dates", "values" or "words".
        cuts: upper ends of the ranges of numbers or dates; for few different numbers, the numbers.
        exact: whether the numbers in `cuts` are values, not ends of ranges.
        values: the values, or the words, that have a code.
        tails: positions in `cuts` of the ends of tails that are conditions.
        ranges: pairs of positions in `cuts`: low < value <= high.
    """

    name: str
    kind: str
    cuts: Array
    exact: bool = False
    values: tuple[str, ...] = ()
    tails: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()

    def encode(self, column: Array) -> list[CodedColumn]:
        """The coded column; a column of texts gives one for each word."""
        if self.kind == "words":
            return self._encode_words(column)
        if self.kind == "values":
            return [self._encode_values(column)]
        return [self._encode_numbers(column)]

    def adapt(self, column: Array) -> Array:
        """The same column of another table, as the type that this coder was fitted on."""
        kinds: dict[str, tuple[str, Any]] = {
            "numbers": ("f", float),
            "dates": ("M", "datetime64[us]"),
        }
        letter, wanted = kinds.get(self.kind, ("O", object))  # NumPy's kind of type, and a type
        if column.dtype.kind == letter:
            return column
        # A column without any value comes as objects from one reader and as floats from another.
        if column.dtype == object and all(value is None for value in column):
            adapted: Array = column.astype(wanted)
            return adapted
        if letter == "O" and column.dtype.kind == "f" and not np.isfinite(column).any():
            return np.full(len(column), None, dtype=object)
        came = {"f": "numbers", "M": "dates"}.get(column.dtype.kind, "texts or other values")
        had = {"f": "numbers", "M": "dates"}.get(letter, "texts or other values")
        raise DataError(
            f"expected {had} in column {self.name!r}, as in the table that was audited, got {came};"
            " convert the column first"
        )

    def _encode_numbers(self, column: Array) -> CodedColumn:
        """Code k: in (cuts[k-1], cuts[k]]; then one for values above all cuts, one for missing."""
        gone = np.isnat(column) if self.kind == "dates" else np.isnan(column)
        k = len(self.cuts)
        if self.exact:
            codes = np.minimum(np.searchsorted(self.cuts, column), k - 1)
            codes = np.where(self.cuts[codes] == column, codes, k)
        else:
            codes = np.searchsorted(self.cuts, column, side="left")
        codes[gone] = k + 1
        texts, sets = [], []  # of each condition its words, and which codes fulfil it
        shown = _write_cuts(self.cuts, self.kind)
        ranks = np.arange(k + 2)
        if self.exact:
            texts += [f"{self.name} = {text}" for text in shown]
            sets += [ranks == code for code in range(k)]
        for code in self.tails:
            texts += [f"{self.name} <= {shown[code]}", f"{self.name} > {shown[code]}"]
            sets += [ranks <= code, (ranks > code) & (ranks <= (k - 1 if self.exact else k))]
        for low, high in self.ranges:
            texts.append(f"{shown[low]} < {self.name} <= {shown[high]}")
            sets.append((ranks > low) & (ranks <= high))
        texts.append(f"{self.name} is missing")
        sets.append(ranks == k + 1)
        return CodedColumn(
            self.name, _use_small_integers(codes, k + 2), tuple(texts), np.array(sets), self
        )

    def _encode_values(self, column: Array) -> CodedColumn:
        """Code k: the k-th value; then one for all other values, one for missing."""
        k = len(self.values)
        lookup: dict[Any, int] = {value: code for code, value in enumerate(self.values)}
        rows = column.tolist()
        code_of = {v: k + 1 if v is None else lookup.get(str(v), k) for v in set(rows)}
        codes = np.fromiter(map(code_of.__getitem__, rows), dtype=np.int64, count=len(rows))
        texts = [f"{self.name} = {value}" for value in self.values] + [f"{self.name} is missing"]
        sets = [np.arange(k + 2) == code for code in (*range(k), k + 1)]
        return CodedColumn(
            self.name, _use_small_integers(codes, k + 2), tuple(texts), np.array(sets), self
        )

    def _encode_words(self, column: Array) -> list[CodedColumn]:
        """One column for each word, with code 1 where a text has it."""
        having: dict[str, list[int]] = {word: [] for word in self.values}
        for row, text in enumerate(column):
            for word in _find_words(text):
                if word in having:
                    having[word].append(row)
        coded = []
        for word, rows in having.items():
            codes = np.zeros(len(column), np.uint8)
            codes[rows] = 1
            text = f'{self.name} has "{word}"'
            own = replace(self, values=(word,))
            has = np.array([[False, True]])
            coded.append(CodedColumn(self.name, codes, (text,), has, own, paired=False))
        return coded


def read_frame(frame: Any, n: int | None = None) -> dict[str, Array]:
    """The columns of a table by name, each floats (NaN: missing), dates, or objects (None: missing).

    A table is a DataFrame of pandas, polars or Arrow, a dictionary of columns, or one column.
    """
    if frame is None:
        return {}
    known = recognise(frame)
    if isinstance(known, nw.LazyFrame):
        raise DataError(
            "expected rows in memory, got a LazyFrame; call its collect(), or give the path"
        )
    if isinstance(known, nw.DataFrame):
        columns = {str(one.name): _read_column(one, one.name) for one in known.iter_columns()}
    elif isinstance(frame, dict):
        columns = {str(name): _read_column(values, name) for name, values in frame.items()}
    elif isinstance(known, nw.Series) or backend_of(frame):
        columns = {name_of(frame) or "value": _read_column(known, name_of(frame) or "value")}
    elif isinstance(frame, list | tuple) or getattr(frame, "ndim", 0) == 1:
        columns = {"value": _read_column(frame, "value")}
    elif getattr(frame, "ndim", 0) == 2:
        array = np.asarray(frame)
        columns = {f"column {k}": _read_column(array[:, k], k) for k in range(array.shape[1])}
    else:
        raise DataError(
            "expected a DataFrame (pandas, polars, Arrow), a dictionary of columns, or one column,"
            f" got {type(frame).__name__}"
        )
    for name, values in columns.items():
        if n is not None and len(values) != n:
            raise DataError(
                f"expected {n:,} rows in every column, one for each label, got {len(values):,} in"
                f" {name!r}"
            )
    return columns


def _read_column(values: Any, name: Any) -> Array:
    """A column as floats (NaN: missing), dates, or objects (None: missing), (n,).

    As `as_vector`, but without looking at every single value where that can be avoided.
    """
    if isinstance(values, nw.Series):
        if values.dtype.is_nested():
            raise _nested_value_error(name, str(values.dtype))
        if values.dtype.is_numeric():
            array = values.cast(nw.Float64).to_numpy()
            if array.dtype.kind == "f":
                return np.asarray(array, dtype=float)
        if values.dtype in (nw.String, nw.Boolean, nw.Categorical, nw.Enum, nw.Object):
            return _read_objects(values.to_list(), name)
        values = values.to_native()
    elif isinstance(values, list | tuple):
        return _read_objects(list(values), name)
    elif isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "OUSb":
        return _read_objects(values.tolist(), name)
    if getattr(values, "ndim", 1) != 1:
        raise _nested_value_error(name, f"an array of shape {values.shape}")
    try:
        vector = as_vector(values)
    except (DataError, ValueError, TypeError) as error:
        raise _nested_value_error(name, str(error)) from error
    return _read_objects(vector.tolist(), name) if vector.dtype == object else vector


def _read_objects(values: list[Any], name: Any) -> Array:
    """Objects with None for missing values; floats if all others are numbers."""
    try:
        distinct = set(values)
    except TypeError:
        odd = next(value for value in values if not isinstance(value, Hashable))
        raise _nested_value_error(name, f"a {type(odd).__name__}") from None
    odd = next((value for value in distinct if isinstance(value, tuple | frozenset)), None)
    if odd is not None:
        raise _nested_value_error(name, f"a {type(odd).__name__}")
    known = [value for value in distinct if not is_missing(value)]
    numbers = [isinstance(value, NUMBER) and not isinstance(value, bool) for value in known]
    if len(known) < len(distinct):
        values = [None if is_missing(value) else value for value in values]
    if known and all(numbers):
        return np.array(values, dtype=float)  # None becomes NaN
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def value_numbers(column: Array) -> tuple[list[str], Array]:
    """The different values of a column as texts, sorted, and the number of each row's, (n,)."""
    values = column.tolist()
    texts = {
        value: "missing" if is_missing(value) else _write_value_as_text(value)
        for value in dict.fromkeys(values)
    }
    names = sorted(set(texts.values()))
    numbers = {text: number for number, text in enumerate(names)}
    place = {value: numbers[text] for value, text in texts.items()}
    return names, np.fromiter(map(place.__getitem__, values), dtype=np.intp, count=len(values))


def _write_value_as_text(value: Any) -> str:
    """A value as the name of a group: floats to 12 digits, so that 0.1 + 0.2 is 0.3."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _nested_value_error(name: Any, what: str) -> DataError:
    """The error for a column with lists, dictionaries or other containers in its rows."""
    return DataError(
        f"expected one number, text or date in each row of column {str(name)!r}, got {what}; split "
        "it into columns, or leave it out"
    )


def fit_coder(name: str, column: Array, windows: Windows = WINDOWS) -> Coder | None:
    """How to code a column; None if all of its values are the same, so that nothing can be told by it.

    Dates and numbers are cut; texts of several words that hardly ever repeat are coded by their
    words; anything else by its most frequent values.

    Args:
        name: of the column.
        column: floats, dates or objects, from `read_frame`, (n,).
        windows: widths of the ranges that are conditions, and their steps, as shares of the rows.
    """
    if column.dtype.kind == "M":
        known = np.sort(column[~np.isnat(column)])
        return _fit_dates(name, known, windows) if len(known) else None
    if column.dtype.kind == "f":
        known = np.sort(column[np.isfinite(column)])
        same = len(known) == 0 or (len(known) == len(column) and known[0] == known[-1])
        return None if same else _fit_numbers(name, known, windows)
    counts: Counter[str] = Counter()
    for value, times in Counter(column.tolist()).items():
        if value is not None:
            counts[str(value)] += times
    total = sum(counts.values())
    if len(counts) > 0.5 * total and _mean_words(list(counts)[:200]) > 2:
        return _fit_words(name, column)
    if not counts or (len(counts) == 1 and total == len(column)):
        return None
    frequent = sorted(counts, key=lambda value: (-counts[value], value))[:VALUES]
    return Coder(name, "values", np.array([]), values=tuple(frequent))


def _fit_numbers(name: str, known: Array, windows: Windows) -> Coder:
    """The coder of numbers: each by itself if there are few different ones, else ranges.

    known: sorted and finite, (values,).
    """
    distinct = known[np.r_[True, known[1:] != known[:-1]]]
    if len(distinct) <= DISTINCT:
        tails = tuple(range(len(distinct) - 1)) if len(distinct) > 3 else ()
        return Coder(name, "numbers", distinct, exact=True, tails=tails)
    return _fit_ranges(name, "numbers", _round_cuts(_quantiles(known), known), windows)


def _fit_dates(name: str, known: Array, windows: Windows) -> Coder:
    """Ranges of days, or of seconds if all are on one day. `known` is sorted."""
    unit = "D" if known[-1].astype("datetime64[D]") > known[0].astype("datetime64[D]") else "s"
    at = _quantiles(known).astype(f"datetime64[{unit}]").astype("datetime64[us]")
    return _fit_ranges(name, "dates", at, windows)


def _quantiles(known: Array) -> Array:
    """The values at the quantiles `CUTS` of sorted ones."""
    at: Array = known[[int(q * (len(known) - 1)) for q in CUTS]]
    return at


def _fit_ranges(name: str, kind: str, at: Array, windows: Windows) -> Coder:
    """The coder of ranges between cuts, with tails and windows as conditions.

    Args:
        name, kind: of the column.
        at: the cuts at the quantiles `CUTS`; some may be the same.
        windows: (width, step) of the windows, as shares of the rows.
    """
    cuts = np.unique(at)
    # From a quantile to the position of its cut.
    place = dict(zip(CUTS, np.searchsorted(cuts, at).tolist(), strict=True))
    ranges = set()  # pairs of positions: low < value <= high
    for width, step in windows:
        for k in range(1, round((1 - width) / step)):
            low, high = round(k * step, 2), round(k * step + width, 2)
            if high < 1 and place[low] < place[high]:
                ranges.add((place[low], place[high]))
    tails = tuple(sorted({place[q] for q in TAILS}))
    return Coder(name, kind, cuts, tails=tails, ranges=tuple(sorted(ranges)))


def _fit_words(name: str, column: Array) -> Coder:
    """The most frequent words among those in fewer than half of the texts."""
    counts: Counter[str] = Counter()
    for text in column:
        counts.update(_find_words(text))
    usual = [word for word in counts if counts[word] < len(column) / 2]
    return Coder(
        name,
        "words",
        np.array([]),
        values=tuple(sorted(usual, key=lambda word: (-counts[word], word))[:WORDS_CODED]),
    )


def _find_words(text: Any) -> set[str]:
    """The different words of a text of two letters or more, in lower case."""
    return set() if is_missing(text) else set(re.findall(r"[^\W\d_][\w']+", str(text).lower()))


def _mean_words(texts: Sequence[str]) -> float:
    """How many words texts have on average: names of things have one or two, notes have more."""
    return float(np.mean([len(text.split()) for text in texts])) if texts else 0.0


def _round_cuts(cuts: Array, known: Array) -> Array:
    """Cuts rounded to about a fiftieth of the spread, so that what is printed is what was tested."""
    low, high = known[int(0.1 * (len(known) - 1))], known[int(0.9 * (len(known) - 1))]
    spread = float(high - low) or float(known[-1] - known[0]) or 1.0
    digits = -math.floor(math.log10(spread / 50))
    whole = bool((known[:: max(len(known) // 1000, 1)] % 1 == 0).all())
    rounded: Array = np.round(cuts, min(digits, 0) if whole else digits) + 0.0  # no "-0"
    return rounded


def _write_cuts(cuts: Array, kind: str) -> list[str]:
    """Cuts as conditions show them: dates without a time if no cut has one, numbers to 12 digits."""
    if kind == "dates":
        whole = bool((cuts == cuts.astype("datetime64[D]")).all())
        return [str(cut.astype("datetime64[D]" if whole else "datetime64[s]")) for cut in cuts]
    return [f"{cut:,.12g}" if abs(cut) >= 10_000 else f"{cut:.12g}" for cut in cuts.tolist()]


def _use_small_integers(codes: Array, number: int) -> Array:
    """Codes in one byte each, or in two if there are more than 256 different ones (`number`)."""
    return codes.astype(np.uint8 if number <= 256 else np.uint16)


def code_columns(
    columns: dict[str, Array], tell: Callable[[str], None] | None = None
) -> list[CodedColumn]:
    """Every column that has at least two different values, coded."""
    coded: list[CodedColumn] = []
    windows = _choose_windows(sum(column.dtype.kind in "fM" for column in columns.values()))
    for number, (name, column) in enumerate(columns.items(), 1):
        if tell is not None:
            tell(f"column {number} of {len(columns)}")
        coder = fit_coder(name, column, windows)
        coded += [] if coder is None else coder.encode(column)
    return coded


def _choose_windows(numbers: int) -> Windows:
    """Fewer ranges where there are many columns of numbers, whose pairs would be too many."""
    return WINDOWS if numbers <= MANY_NUMBERS else FIFTHS


def code_lazy(frame: Any, n: int, tell: Callable[[str], None] | None = None) -> list[CodedColumn]:
    """The columns of a LazyFrame of polars, coded one by one: only one of them is in memory.

    Coders are fitted on every k-th row, at most `ROWS_FOR_CODER` of them.
    """
    schema = frame.collect_schema()
    names = schema.names()
    windows = _choose_windows(
        sum(kind.is_numeric() or kind.is_temporal() for kind in schema.dtypes())
    )
    coded: list[CodedColumn] = []
    for number, name in enumerate(names, 1):
        if tell is not None:
            tell(f"column {number} of {len(names)}")
        # The only column in memory; coded in parts, since Python's objects of texts take much more.
        series = frame.select(name).collect(engine="streaming").to_series()
        if len(series) != n:
            raise DataError(
                f"expected {n:,} rows in every column, one for each label, got {len(series):,} in"
                f" {name!r}"
            )
        coder = fit_coder(name, _read_polars(series.gather_every(-(-n // ROWS_FOR_CODER))), windows)
        if coder is None:
            continue
        parts = [
            coder.encode(coder.adapt(_read_polars(series.slice(at, ROWS_CODED_AT_ONCE))))
            for at in range(0, n, ROWS_CODED_AT_ONCE)
        ]
        coded += [
            replace(same[0], codes=np.concatenate([one.codes for one in same]))
            for same in zip(*parts, strict=True)
        ]
    return coded


def _read_polars(series: Any) -> Array:
    """A column of polars as `read_frame` would read it."""
    return _read_column(nw.from_native(series, series_only=True), series.name)


def is_lazy(frame: Any) -> bool:
    """Whether it is a LazyFrame of polars; polars is not imported to find out."""
    return type(frame).__name__ == "LazyFrame" and type(frame).__module__.startswith("polars")
