"""Rows that a person wants served: conditions on columns, as the audit writes them, and weights that serve them.

"male = 1 and label = 1" names a slice. What is not about the target, "male = 1", divides every class
in two. Training with equal weights of both parts within each class,

    w_i = n_k / (2 n_ks)    for a row of class k, of n_k rows, in part s of it, of n_ks rows,

serves the slice and leaves the shares of the classes as they are: equal weights of the slice and all
other rows would also move the threshold, and overshoot.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from scdro.errors import DataError, HyperparameterError
from scdro.fix import balanced
from scdro.tables._read import list_names, quote, read_value_like

if TYPE_CHECKING:
    from scdro.tables._problem import TableProblem

__all__ = ["Fix", "find_rows", "make_fix"]

Array = npt.NDArray[Any]
LEAST_SERVED = 10  # rows that fulfil the conditions, and rows that do not, at least
# Which totals are made equal: of both parts of each class, or of all cells (class x part).
WAYS = ("within each class", "cells alike")
COMPARISONS = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
BOUND = re.compile(r"[-+.,:\deET]*\d")  # a number or a date
FORM = re.compile(r"\s*(<=|>=|!=|<|>|=|is missing$|has )\s*(.*)")


@dataclass(frozen=True)
class Fix:
    """A slice of the rows that training is to serve."""

    text: str  # the conditions, as given
    condition: str  # those that are not about the target
    members: Array  # (rows,) whether a row fulfils all conditions
    cells: Array  # (rows,) 2 k + s of a row of class k (0 in a regression), in part s of it

    def weights(self, rows: Array, way: str) -> Array:
        """The weights of these rows, with mean 1.

        Args:
            rows: numbers of the rows.
            way: one of `WAYS`. Within each class, the parts get equal totals and the class keeps
                its own; otherwise all cells get equal totals, and rare classes gain too.
        """
        cells = self.cells[rows]
        weights = balanced(np.ones(len(rows)), cells, few=1)
        if way == WAYS[1]:
            return weights
        y = cells // 2
        within: Array = weights * (np.bincount(y) / np.maximum(np.bincount(y, weights), 1e-300))[y]
        return within

    def cell_masks(self, rows: Array) -> Array:
        """Which of these rows are in each cell that they have, (cells, rows), booleans."""
        cells = self.cells[rows]
        masks: Array = np.unique(cells)[:, None] == cells
        return masks

    def worst_cell(self, scores: Array, rows: Array) -> float:
        """The lowest mean of a score over the cells of these rows."""
        return min(float(scores[mask].mean()) for mask in self.cell_masks(rows))


def make_fix(problem: TableProblem, text: str) -> Fix:
    """The slice of a table that conditions on its columns, joined by " and ", describe."""
    conditions = _read_conditions(text, problem.frame.columns)
    about_target = [one for one in conditions if one[0] == problem.target]
    others = [one for one in conditions if one[0] != problem.target]
    if not others:
        raise HyperparameterError(
            f"expected a condition on another column than the target {quote(problem.target)} to"
            f" fix, got {quote(text)}; whole classes are served by class weights"
        )
    part = _find_all(problem.frame, others)
    members = part & _find_all(problem.frame, about_target)
    for what, mask in (("fulfil", part), ("do not fulfil", ~part)):
        if mask.sum() < LEAST_SERVED:
            raise DataError(
                f"expected at least {LEAST_SERVED} rows that {what} {quote(text)}, got {mask.sum():,}"
            )
    if not members.any():
        raise DataError(f"expected rows with {quote(text)}, got none")
    classes = problem.y if problem.classes else np.zeros(len(members), np.int64)
    condition = " and ".join(_write_condition(*one) for one in others)
    return Fix(text, condition, members, 2 * classes + part)


def find_rows(text: str, frame: pl.DataFrame) -> Array:
    """Which rows fulfil conditions such as "age > 52 and city = Oslo", (rows,).

    A condition compares a column with a value (=, !=, <, <=, >, >=), gives a range ("20 < age <=
    30"), or is "income is missing" or 'note has "word"': all that the audit writes.

    Example:
        >>> import polars as pl
        >>> find_rows("age > 52 and city = Oslo", pl.DataFrame({"age": [60, 60, 20], "city": ["Oslo", "Rome", "Oslo"]}))
        array([ True, False, False])
    """
    return _find_all(frame, _read_conditions(text, frame.columns))


def _read_conditions(text: str, names: list[str]) -> list[tuple[str, str, str]]:
    """Conditions as (column, comparison, value); names and values may contain " and " themselves."""
    pieces = re.split(r"\s+and\s+", text.strip())
    conditions = _parse_conditions(pieces, names)
    if conditions is None:
        raise HyperparameterError(
            "expected conditions on columns, such as 'age > 52 and city = Oslo', got"
            f" {quote(text)}; the columns are {list_names(names)}"
        )
    return conditions


def _parse_conditions(pieces: list[str], names: list[str]) -> list[tuple[str, str, str]] | None:
    """The first reading in which all pieces are used, short conditions first; None if there is none.

    "city = A and B and age > 5" has three pieces. "city = A" is a condition, but "B" is none, so
    the first condition takes one piece more: "city = A and B".
    """
    if not pieces:
        return []
    for taken in range(1, len(pieces) + 1):
        first = _parse_condition(" and ".join(pieces[:taken]), names)
        rest = _parse_conditions(pieces[taken:], names) if first else None
        if first and rest is not None:
            return first + rest
    return None


def _parse_condition(piece: str, names: list[str]) -> list[tuple[str, str, str]]:
    """One condition, two for a range, none if this is no condition."""
    for name in sorted(names, key=len, reverse=True):
        if piece.startswith(name):
            form = FORM.fullmatch(piece[len(name) :])
            if form and (form[2] or form[1] == "is missing"):
                return [(name, form[1].strip(), form[2])]
        low, middle, high = piece.partition(f" < {name} <= ")
        if middle and BOUND.fullmatch(low) and BOUND.fullmatch(high):
            return [(name, ">", low), (name, "<=", high)]
    return []


def _write_condition(name: str, comparison: str, value: str) -> str:
    """As a user would write it; "is missing" has no value."""
    return f"{name} {comparison} {value}".rstrip()


def _find_all(frame: pl.DataFrame, conditions: list[tuple[str, str, str]]) -> Array:
    """Which rows fulfil all conditions, (rows,), booleans."""
    mask = np.ones(frame.height, dtype=bool)
    for name, comparison, value in conditions:
        mask &= _find_fulfilling(frame[name], comparison, value)
    return mask


def _find_fulfilling(column: pl.Series, comparison: str, value: str) -> Array:
    """Where a condition is fulfilled; a missing value fulfils only "is missing"."""
    if comparison == "is missing":
        missing: Array = column.is_null().to_numpy()
        return missing
    if comparison == "has":
        word = re.escape(value.strip('"').lower())
        texts = column.cast(pl.String).str.to_lowercase()
        having: Array = (
            texts.str.contains(rf"(^|[^\w']){word}($|[^\w'])").fill_null(False).to_numpy()
        )
        return having
    if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
        if comparison not in ("=", "!="):
            raise HyperparameterError(
                f"expected numbers or dates in {quote(column.name)} for {comparison}, got texts"
            )
        if column.dtype == pl.Boolean:
            value = value.lower()  # as polars writes them
        column = column.cast(pl.String)
        if not (column == value).any():
            raise DataError(
                f"expected a value of {quote(column.name)}, got {quote(value)}; it has"
                f" {list_names(column.drop_nulls().unique().sort().to_list())}"
            )
        bound: Any = value
    else:
        bound = read_value_like(column, value)
        if bound is None:
            kind = "a number" if column.dtype.is_numeric() else "a date such as 2024-12-31"
            raise HyperparameterError(
                f"expected {kind} to compare {quote(column.name)} with, got {quote(value)}"
            )
    held = COMPARISONS[comparison](column, bound)
    fulfilled: Array = held.fill_null(False).to_numpy()
    return fulfilled
