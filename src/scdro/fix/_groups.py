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

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro._frames import as_array, is_missing
from scdro.errors import DataError
from scdro.fix._criteria import ENOUGH
from scdro.fix._weights import FEW, balanced

__all__ = ["Cells", "ConfirmedGroups", "name_of_group"]

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
    def of(cls, groups: Any, X: Any, labels: Array, classifier: bool = True) -> ConfirmedGroups:
        """Read what a person gave, and raise unless it divides the rows.

        Args:
            groups: a finding, a slice, a mask, or one value a row; a Series is looked up by X's
                index.
            X: the rows, or None.
            labels: of the rows, (n,).
            classifier: whether the labels are classes. Groups are within each class, so they must
                divide one of them.
        """
        _check_one_group(groups)
        if hasattr(groups, "conditions"):
            values = np.asarray(groups.members)
        elif hasattr(groups, "reindex") and hasattr(X, "index"):
            values = np.asarray(groups.reindex(X.index))
        else:
            values = np.asarray(as_array(groups))
        n = len(labels)
        if values.shape != (n,):
            raise DataError(
                f"expected one group for each of the {n} rows, got shape {values.shape}; a finding"
                " or slice is of the rows that it was found on: for others pass"
                " finding.rows_of(columns). A Series with X's index is looked up by it"
            )
        if values.dtype == bool:
            inside = name_of_group(groups)
            names = np.where(values, inside, f"not ({inside})").astype(object)
        else:
            names = np.array([None if is_missing(v) else v for v in values.tolist()], dtype=object)
        found = cls(names)
        found._check_division(labels if classifier else np.zeros(n, int))
        return found

    def _check_division(self, classes: Array) -> None:
        """Raise unless some class has two groups, and some group of a class ENOUGH rows."""
        rows = [
            (label, str(name))
            for label, name in zip(classes.tolist(), self.names, strict=True)
            if name is not None
        ]
        if not rows:
            raise DataError("expected some known groups, got none; leave groups out")
        sizes = Counter(rows)
        values = sorted({name for _, name in sizes})
        if len(sizes) == len({label for label, _ in sizes}):
            what = f"{values[0]!r} only" if len(values) == 1 else "one group in each class"
            raise DataError(
                f"expected groups that divide a class, or the rows of a regression, got {what};"
                " leave groups out: whole classes are served by class weights"
            )
        if max(sizes.values()) < ENOUGH:
            raise DataError(
                f"expected groups with at least {ENOUGH} rows of a class, got {len(values)} values"
                f" for {len(rows)} rows; cut numbers into ranges first"
            )

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


def name_of_group(groups: Any) -> str:
    """What a person confirmed, in words: the conditions on columns, those on the label left out."""
    if isinstance(groups, str):
        return groups
    text = getattr(getattr(groups, "members", groups), "text", None)
    said = text if isinstance(text, str) else getattr(groups, "slice", "")
    return said or " and ".join(getattr(groups, "conditions", ())) or "group"


def _check_one_group(groups: Any) -> None:
    """Raise if this is no finding, slice, mask or column, and say what to pass in its place."""
    if hasattr(groups, "conditions"):
        if not groups.conditions:
            raise DataError(
                f"expected a finding about people, got one about {groups.slice!r}; recalibrate the"
                " model for it, or move its threshold, and audit again"
            )
        if getattr(groups, "members", None) is None:
            raise DataError(
                f"expected a slice that knows its rows, got {name_of_group(groups)!r} without"
                " members; take it from find_slices or audit, or pass one value for each row"
            )
        return
    if hasattr(groups, "findings"):
        raise DataError("expected one finding, got a whole audit; pass audit.findings[0], ...")
    if isinstance(groups, list | tuple) and any(hasattr(one, "conditions") for one in groups):
        raise DataError(
            f"expected one finding or slice, got {len(groups)} in a {type(groups).__name__}; pass one"
            " of them, or the rows of any: np.any([np.asarray(one.members) for one in ...], axis=0)"
        )
    if isinstance(groups, str):
        raise DataError(
            f"expected a finding, a slice, a mask or one value a row, got the text {groups!r}; pass"
            ' the column itself, or a mask such as frame["place"] == "water"'
        )
