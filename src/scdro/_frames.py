"""Tables of any kind: pandas, polars, Arrow, or a dictionary of columns. The one place that asks which."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt

from scdro.errors import DataError

__all__ = ["as_array", "columns_of", "frame_like", "is_missing", "name_of"]

Array = npt.NDArray[Any]
BACKENDS = ("pandas", "polars", "pyarrow")  # for a table where none came in: the first that is installed


def columns_of(frame: Any) -> dict[str, Array] | None:
    """The columns by name; None if this is no table. Missing values are None or NaN.

    Example:
        >>> columns_of({"a": [1, 2]}), columns_of(np.zeros((2, 2)))
        ({'a': array([1, 2])}, None)
    """
    if isinstance(frame, Mapping):
        return {str(name): as_array(values) for name, values in frame.items()}
    known = _known(frame)
    if not isinstance(known, nw.DataFrame):
        return None
    return {str(column.name): _numpy(column) for column in known.iter_columns()}


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
    known = _known(values)
    if isinstance(known, nw.Series):
        return _numpy(known)
    return np.asarray(values)


def name_of(column: Any) -> str | None:
    """The name of a column of pandas or polars, if it has one."""
    known = _known(column)
    return str(known.name) if isinstance(known, nw.Series) and known.name not in (None, "") else None


def frame_like(columns: Mapping[str, Sequence[Any] | Array], *given: Any) -> Any:
    """A table of these columns, of the kind of the first of `given` that is a table or a column of one.

    Example:
        >>> import polars as pl
        >>> type(frame_like({"a": [1, 2]}, [1, 2], pl.Series([3])))
        <class 'polars.dataframe.frame.DataFrame'>
    """
    for thing in given:
        known = _known(thing)
        if isinstance(known, nw.DataFrame | nw.Series):
            return nw.from_dict(dict(columns), backend=known.implementation).to_native()
    installed: Any = next((name for name in BACKENDS if importlib.util.find_spec(name)), None)
    if installed is None:
        raise ModuleNotFoundError(
            f"expected one of {', '.join(BACKENDS)} to be installed, for a table; pip install pandas", name=BACKENDS[0]
        )
    return nw.from_dict(dict(columns), backend=installed).to_native()


def is_missing(value: Any) -> bool:
    """None, NaN, or pandas' NA and NaT."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _known(thing: Any) -> Any:
    known = nw.from_native(thing, pass_through=True, allow_series=True)
    if isinstance(known, nw.LazyFrame):
        raise DataError(f"expected rows in memory, got a {type(thing).__name__}; call its collect() first")
    return known


def _numpy(column: Any) -> Array:
    if column.implementation.is_pyarrow() and isinstance(column.dtype, nw.Categorical | nw.Enum):
        column = column.cast(nw.String)  # otherwise missing values become the last one before
    array: Array = column.to_numpy()
    return array
