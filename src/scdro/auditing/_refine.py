"""Move the ends of a slice's ranges, to where its people begin and end.

The search looks at a few dozen ranges of a number; whom a model fails has other ends. Let l_a and
v_a be the sums of e_i - m_i and of their variances over the rows with code a in one column, among
the rows that fulfil the slice's other condition. The range of codes [a, b) has

    z(a, b)^2 = (l_a + ... + l_{b-1})^2 / (v_a + ... + v_{b-1})

and cumulative sums give it for all of the five thousand ranges at once. The best one is taken, then
the other condition gets its turn, until nothing changes. An end must be worth it: it has to raise
z^2 / 2, the log likelihood, by `END`.

This describes a slice that was found; it finds none. The p-value stays that of the slice that the
search has tested, and a range that is moved never has less evidence than that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scdro.auditing._codes import CodedColumn, SliceCondition
from scdro.auditing._scan import SliceIndex, sum_table

__all__ = ["refine"]

Array = npt.NDArray[Any]
END = 1.0
TURNS = 6


def refine(index: SliceIndex, k: int, left: Array, variance: Array) -> tuple[SliceCondition, ...]:
    """The conditions of slice k, with better ends.

    Args:
        left: what the expectation leaves of the events, times weights, (n,).
        variance: of each of them, (n,).
    """
    parts = index.parts(k)
    conditions = [index.columns[i].condition(c) for i, c in parts]
    movable = [index.columns[i].is_range(c) for i, c in parts]
    if not any(movable):
        return tuple(conditions)
    columns = [index.columns[i] for i, _ in parts]
    widths = [column.members.shape[1] for column in columns]
    values = np.array([left, variance, np.ones(len(left))])
    table = sum_table([column.codes for column in columns], widths, values)
    total = float(sum_over(table, conditions)[0])
    for _ in range(TURNS):
        before = [one.codes for one in conditions]
        for axis in range(len(parts)):
            if movable[axis]:
                profile = np.moveaxis(table, 1 + axis, 1)
                for other in range(len(parts)):
                    if other != axis:
                        profile = profile @ conditions[other].codes.astype(float)
                best = _best_range(columns[axis], profile, index, 1.0 if total > 0 else -1.0)
                conditions[axis] = best or conditions[axis]
        if all((a == b.codes).all() for a, b in zip(before, conditions, strict=True)):
            break
    return tuple(conditions)


def sum_over(table: Array, conditions: list[SliceCondition]) -> Array:
    """The sums over a slice, from the table of all codes."""
    for condition in reversed(conditions):
        table = table @ condition.codes.astype(float)
    return table


def _best_range(
    column: CodedColumn, profile: Array, index: SliceIndex, sign: float
) -> SliceCondition | None:
    """The range of codes with the most evidence in one direction; the last code is "missing"."""
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(profile[:, :-1], axis=1)], axis=1)
    last = sums.shape[1] - 1
    left, variance, counts = sums[:, None, :] - sums[:, :, None]  # [a, b): from a to below b
    low, high = np.indices(left.shape)
    allowed = (counts >= index.min_rows) & (counts <= index.n - index.min_rows)
    allowed &= (left * sign > 0) & (variance > 0) & (high - low < last)
    if not allowed.any():
        return None
    gain = np.where(allowed, left**2 / (2 * np.where(allowed, variance, 1.0)), -np.inf)
    gain -= END * ((low > 0).astype(float) + (high < last))
    a, b = np.unravel_index(int(np.argmax(gain)), gain.shape)
    return column.between(int(a), int(b))
