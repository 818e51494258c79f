"""The columns that describe samples, and the conditions on them that can define a slice.

column     conditions
numbers    x <= cut, x > cut, near five quantiles; x = value if there are few values
dates      the same
names      x = name, for the 40 most frequent
texts      x has "word", for the 1,000 most frequent words
any        x is missing
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro._frames import as_vector, backend_of, columns_of, name_of
from scdro.errors import DataError

__all__ = ["Condition", "conditions_of", "read_columns"]

Array = npt.NDArray[Any]
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles at which numbers are split
DISTINCT = 12  # a column with at most this many distinct numbers is split by value
MOST_FREQUENT = 40  # at most this many values of a column
MOST_WORDS = 1000  # at most this many words of a column of texts


class Condition(NamedTuple):
    """A statement about a sample."""

    text: str  # such as "age > 40"
    rows: Array  # (n,), for which samples it is true


def read_columns(frame: Any, n: int) -> dict[str, Array]:
    """Columns of n rows, by name, read by `as_vector`.

    A frame is one of pandas, polars or Arrow, a dictionary of columns, or one column alone, such as
    a list of texts.
    """
    columns = columns_of(frame, as_vector)
    if columns is None and backend_of(frame):
        columns = {name_of(frame) or "value": as_vector(frame)}
    elif columns is None and (isinstance(frame, list | tuple) or getattr(frame, "ndim", 0) == 1):
        columns = {"text": as_vector(frame)}
    if columns is None:
        raise DataError(
            "expected a DataFrame (pandas, polars, Arrow), a dictionary of columns, or one column,"
            f" got {type(frame).__name__}"
            + (f" of shape {frame.shape}" if hasattr(frame, "shape") else "")
        )
    for name, values in columns.items():
        if values.shape != (n,):
            raise DataError(
                f"expected {n} rows in every column, as there are weights, got {values.shape} in"
                f" {name!r}"
            )
    return columns


def conditions_of(name: str, values: Array, min_size: int) -> Iterator[Condition]:
    """The conditions on a column.

    Each is true for at least `min_size` samples, and false for at least as many.
    """
    for text, rows in _statements(name, values):
        if min_size <= rows.sum() <= len(rows) - min_size:
            yield Condition(text, rows)


def _statements(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """All statements about a column, by what it holds."""
    if values.dtype.kind == "f":
        yield from _about_numbers(name, values)
    elif values.dtype.kind == "M":
        yield from _about_dates(name, values)
    else:
        yield from _about_names(name, values)


def _about_numbers(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """Missing; each value if there are few; else both sides of each cut."""
    missing = np.isnan(values)
    yield f"{name} is missing", missing
    distinct = np.unique(values[~missing])
    if len(distinct) <= DISTINCT:
        for value in distinct:
            yield f"{name} = {value:.12g}", values == value
        return
    for cut, shown in _cuts(values[~missing]):
        yield f"{name} <= {shown}", values <= cut
        yield f"{name} > {shown}", values > cut


def _cuts(values: Array) -> list[tuple[float, str]]:
    """Thresholds near the quantiles, rounded to about a fiftieth of the spread, so that the text is exact."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return []
    low, high = np.quantile(finite, (0.1, 0.9))
    spread = float(high - low) or float(finite.max() - finite.min()) or 1.0
    digits = -math.floor(math.log10(spread / 50))  # after the point; negative: tens, hundreds
    if (finite == np.round(finite)).all():
        digits = min(digits, 0)
    cuts = np.unique(np.round(np.quantile(finite, QUANTILES, method="lower"), digits))
    return [(float(cut), f"{cut:,.{max(digits, 0)}f}" if abs(cut) >= 10_000 else f"{cut:.{max(digits, 0)}f}")
            for cut in cuts]  # fmt: skip


def _about_dates(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """Missing; both sides of each cut, to the day, or to the second if all are of one day."""
    missing = np.isnat(values)
    yield f"{name} is missing", missing
    if missing.all():
        return
    days = values.astype("datetime64[D]")
    unit = "D" if days[~missing].max() > days[~missing].min() else "s"
    times = values.astype(f"datetime64[{unit}]")
    order = np.sort(times[~missing])
    for cut in np.unique([order[int(quantile * (len(order) - 1))] for quantile in QUANTILES]):
        yield f"{name} <= {cut}", times <= cut
        yield f"{name} > {cut}", times > cut


def _about_names(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """Missing; each of the most frequent names, or, if these are sentences, words."""
    missing = np.array([value is None for value in values])
    yield f"{name} is missing", missing
    texts = np.array(["" if value is None else str(value) for value in values], dtype=object)
    names, counts = np.unique(texts[~missing].astype(str), return_counts=True)
    if len(names) > 0.5 * len(texts) and np.mean([len(text.split()) for text in names[:200]]) > 2:
        yield from _about_words(name, texts)
        return
    for value in names[np.argsort(-counts, kind="stable")[:MOST_FREQUENT]]:
        yield f"{name} = {value}", ~missing & (texts == value)


def _about_words(name: str, texts: Array) -> Iterator[tuple[str, Array]]:
    """The most frequent words among those in fewer than half of the texts."""
    having: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        for word in set(re.findall(r"[^\W\d_][\w']+", text.lower())):
            having.setdefault(word, []).append(row)
    usual = sorted(
        (word for word in having if len(having[word]) < len(texts) / 2),
        key=lambda w: (-len(having[w]), w),
    )
    for word in usual[:MOST_WORDS]:
        rows = np.zeros(len(texts), bool)
        rows[having[word]] = True
        yield f'{name} has "{word}"', rows
