"""Confirmed groups: what a person has said matters, as one value a row.

    groups   a finding of the audit, a slice of `find_slices`, a mask, or one value a row
    names    one value a row, None where unknown                            ConfirmedGroups.of
    cells    the groups within each class                                   ConfirmedGroups.cells
    weights  every cell gets the same total                                 Cells.weights

Equal totals mean that within a class each value counts the same, and so do the classes. The slice
against all other rows, equally weighted, would overshoot: a slice of 1% would then count as half of
the data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro._frames import as_array, is_missing
from scdro.errors import DataError
from scdro.fix._weights import FEW, balanced

__all__ = ["Cells", "ConfirmedGroups"]

Array = npt.NDArray[Any]


class Cells(NamedTuple):
    """Classes times groups."""

    numbers: Array  # (n,), the cell of each row; -1 where its group is unknown
    names: list[str]  # of the cells, such as "1, water"
    y: Array  # (n,), class numbers

    def weights(self, base: Array) -> Array:
        """Mean one and equal totals of all cells; rows of an unknown group weigh as their class does on average.

        A cell of fewer than FEW rows gets less, as a class does.
        """
        known = self.numbers >= 0
        weights = np.ones(len(base))
        if known.any():
            weights[known] = balanced(base[known], self.numbers[known], FEW)
        for k in np.unique(self.y[~known]):
            own, rest = (self.y == k) & known, (self.y == k) & ~known
            mean = weights[own].mean() if own.any() else 1.0
            weights[rest] = mean * base[rest] / base[rest].mean()
        scaled: Array = weights * len(weights) / weights.sum()
        return scaled


class ConfirmedGroups(NamedTuple):
    """The groups of the rows, as a person gave them."""

    names: Array  # (n,), of objects; None where unknown

    @classmethod
    def of(cls, groups: Any, X: Any, n: int) -> ConfirmedGroups:
        """Read a finding, a slice, a mask, or one value a row; a Series is looked up by X's index."""
        if getattr(groups, "conditions", None) == ():
            raise DataError(
                f"expected a finding about people, got one about {groups.slice!r}; recalibrate the"
                " model for it, or move its threshold, and audit again"
            )
        # What the group is called: by its finding, by its conditions, or by its own text.
        said = getattr(groups, "slice", None) or " and ".join(getattr(groups, "conditions", ()))
        said = said or (groups.text if isinstance(getattr(groups, "text", None), str) else "")
        members = getattr(groups, "members", None)
        if hasattr(groups, "conditions") and members is None:
            raise DataError(
                f"expected a slice that knows its rows, got {said!r} without members; take it from"
                " find_slices or audit, or pass one value for each row"
            )
        if members is not None:
            said = getattr(members, "text", said)
            groups = np.asarray(members)
        elif hasattr(groups, "reindex") and hasattr(X, "index"):
            groups = groups.reindex(X.index)
        else:
            groups = as_array(groups)
        values = np.asarray(groups)
        if values.shape != (n,):
            raise DataError(
                f"expected one group for each of the {n} rows, got shape {values.shape}; a finding"
                " or slice is of the rows that it was found on: for others pass"
                " finding.rows_of(columns). A Series with X's index is looked up by it"
            )
        if values.dtype == bool:
            inside = said or "group"
            return cls(np.where(values, inside, f"not ({inside})").astype(object))
        names = np.array([None if is_missing(v) else v for v in values.tolist()], dtype=object)
        if all(name is None for name in names):
            raise DataError("expected some known groups, got none; leave groups out")
        return cls(names)

    def cells(self, y: Array, classes: Array | None, base: Array) -> Cells:
        """The groups within each class; for a regression, the groups."""
        # Rows without a known group, or of weight zero, are in no cell.
        known = np.array([name is not None for name in self.names]) & (base > 0)
        values = np.array([str(name) for name in self.names], dtype=object)
        numbers = np.full(len(y), -1)
        names: list[str] = []
        labels = [None] if classes is None else classes.tolist()
        for k, label in enumerate(labels):
            own = known if classes is None else known & (y == k)
            for value in sorted(set(values[own])):
                numbers[own & (values == value)] = len(names)
                names.append(value if label is None else f"{label}, {value}")
        return Cells(numbers, names, np.zeros(len(y), int) if classes is None else y)
