"""Tables of any kind: pandas, polars, Arrow, or a dictionary of columns. Only this module tells
them apart.

narwhals recognises the libraries without importing them. Everything else in scdro sees NumPy
arrays: `as_array` keeps the values as they are, `as_vector` makes missing values uniform (NaN,
None), and `frame_of` returns a result in the library of the user.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt

from scdro.errors import DataError

__all__ = [
    "as_array",
    "as_vector",
    "backend_of",
    "columns_of",
    "frame_of",
    "is_missing",
    "name_of",
    "numbers_or_pandas",
    "recognise",
]

Array = npt.NDArray[Any]
# Without a table as input, the first of these that is installed makes the result.
BACKENDS = ("pandas", "polars", "pyarrow")


def as_array(values: Any) -> Array:
    """A column or table of any kind, a tensor, or whatever NumPy reads, as an array.

    Example:
        >>> import polars as pl
        >>> as_array(pl.Series(["a", None]))
        array(['a', None], dtype=object)
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # NumPy has no bfloat16
    known = _recognise(values)
    if not isinstance(known, nw.Series):
        return np.asarray(values)
    if known.implementation.is_pyarrow() and isinstance(known.dtype, nw.Categorical | nw.Enum):
        known = known.cast(nw.String)  # otherwise missing values become the last one before
    array: Array = known.to_numpy()
    return array


def as_vector(values: Any) -> Array:
    """A column of any kind as floats (NaN: missing), dates, or objects (None: missing).

    Example:
        >>> as_vector([1, None]), as_vector(["a", float("nan")])
        (array([ 1., nan]), array(['a', None], dtype=object))
    """
    known = _recognise(
        values.to_series()
        if hasattr(values, "to_series") and hasattr(values, "to_frame")
        else values
    )
    if isinstance(known, nw.Series):  # also from an index of pandas
        if known.dtype.is_numeric():
            return _floats(known.cast(nw.Float64).to_list())
        if known.dtype == nw.Datetime or known.dtype == nw.Date:
            return np.array(
                [_wall_time(value) for value in known.to_list()], dtype="datetime64[us]"
            )
        return _objects(known.to_list())
    typed = isinstance(values, np.ndarray) or hasattr(values, "detach")
    array = as_array(values) if typed else np.array(list(values), dtype=object)
    if array.ndim != 1:
        raise DataError(f"expected columns as vectors, got shape {array.shape}")
    if array.dtype.kind in "fiu":
        return array.astype(float)
    if array.dtype.kind == "M":
        return array.astype("datetime64[us]")
    return _objects(array.tolist())


def columns_of(frame: Any, read: Callable[[Any], Array] = as_array) -> dict[str, Array] | None:
    """The columns by name, each read by `as_array` or `as_vector`; None if it is not a table.

    Example:
        >>> columns_of({"a": [1, 2]}), columns_of(np.zeros((2, 2)))
        ({'a': array([1, 2])}, None)
    """
    if isinstance(frame, Mapping):
        return {str(name): read(values) for name, values in frame.items()}
    known = _recognise(frame)
    if not isinstance(known, nw.DataFrame):
        return None
    return {str(column.name): read(column) for column in known.iter_columns()}


def numbers_or_pandas(frame: Any) -> Any:
    """A polars or Arrow table with other columns than numbers as one of pandas; everything else as
    it is.

    Example:
        >>> import polars as pl
        >>> type(numbers_or_pandas(pl.DataFrame({"a": [1]}))).__module__
        'polars.dataframe.frame'
        >>> numbers_or_pandas(pl.DataFrame({"a": ["x"]}, schema={"a": pl.Categorical})).dtypes["a"].name
        'category'
    """
    known = _recognise(frame)
    if not isinstance(known, nw.DataFrame) or known.implementation.is_pandas_like():
        return frame
    simple = all(kind.is_numeric() or kind == nw.Boolean for kind in known.schema.values())
    return frame if simple else known.to_pandas()


def name_of(column: Any) -> str | None:
    """The name of a column of pandas or polars, if it has one."""
    known = _recognise(column)
    return (
        str(known.name) if isinstance(known, nw.Series) and known.name not in (None, "") else None
    )


def backend_of(*given: Any) -> Any:
    """The library of the first argument that is a table or a column of one; None if there is none."""
    known = (_recognise(thing) for thing in given)
    return next(
        (thing.implementation for thing in known if isinstance(thing, nw.DataFrame | nw.Series)),
        None,
    )


def frame_of(columns: Mapping[str, Sequence[Any] | Array], backend: Any = None) -> Any:
    """A table of these columns, made with this library or the first one installed.

    Example:
        >>> import polars as pl
        >>> type(frame_of({"a": [1, 2]}, backend_of([1, 2], pl.Series([3]))))
        <class 'polars.dataframe.frame.DataFrame'>
    """
    backend = backend or next((name for name in BACKENDS if importlib.util.find_spec(name)), None)
    if backend is None:
        raise ModuleNotFoundError(
            f"expected one of {', '.join(BACKENDS)} to be installed, for a table; pip install"
            " pandas",
            name=BACKENDS[0],
        )
    return nw.from_dict(dict(columns), backend=backend).to_native()


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def recognise(thing: Any) -> Any:
    """A table, lazy ones too, or column as narwhals sees it; anything else as it is."""
    try:
        return nw.from_native(thing, pass_through=True, allow_series=True)
    except nw.exceptions.DuplicateError:
        names = Counter(map(str, thing.columns))
        twice = [name for name, number in names.items() if number > 1]
        raise DataError(
            f"expected columns with different names, got {twice[0]!r} {names[twice[0]]} times;"
            " rename or drop them"
        ) from None


def _recognise(thing: Any) -> Any:
    """A table or column as narwhals sees it; anything else as it is."""
    known = recognise(thing)
    if isinstance(known, nw.LazyFrame):
        raise DataError(
            f"expected rows in memory, got a {type(thing).__name__}; call its collect() first"
        )
    return known


def _floats(values: list[Any]) -> Array:
    """Numbers with NaN for missing values."""
    return np.array([math.nan if is_missing(value) else value for value in values], dtype=float)


def _objects(values: list[Any]) -> Array:
    """Objects with None for missing values; floats if all others are numbers."""
    known = [value for value in values if not is_missing(value)]
    if known and all(
        isinstance(value, int | float | np.number) and not isinstance(value, bool)
        for value in known
    ):
        return _floats(values)
    found = np.empty(len(values), dtype=object)
    found[:] = [None if is_missing(value) else value for value in values]
    return found


def _wall_time(value: Any) -> Any:
    """A date without its time zone, for NumPy."""
    if is_missing(value):
        return None
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
