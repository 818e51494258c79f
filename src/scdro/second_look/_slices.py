"""Slices: the few descriptions, in the user's own columns, that cover most of the added weight.

A second look gives more weight to samples that the reference fails. Who are they? Descriptions are
conjunctions of conditions on columns ("place = water and label = 0"), found on one half of the
samples and tested on the other, for many random halves:

    weights w, classes         ranks of w within each class; usual = mean weight of the class
    for each random half, and its complement:
        candidates  =  the 5 conjunctions of the highest score on the half    (_search)
        p-values    =  of their rank sums on the other half, times 5          (_p_value)
    p-value of a description  =  from those of all halves                 (_join_p_values)
    slices  =  those with p <= alpha, by score, without repeats           (_leave_out_repeats)

The score of a conjunction is the weight that its members have beyond the usual, over the root of
their share: up to a constant, the number of standard errors. The test compares ranks of the weights
within each class, so it is not misled by class balancing or by a single large weight.

References:
    Meinshausen, Meier and Bühlmann, p-Values for High-Dimensional Regression, JASA 2009: one
    p-value from many random halves.
"""

from __future__ import annotations

import html
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata
from sklearn.utils.multiclass import type_of_target

from scdro._frames import as_array, backend_of, frame_of
from scdro._validation import (
    array_weights,
    as_floats,
    check_choice,
    check_no_missing,
    check_number,
    check_probabilities,
    check_whole,
)
from scdro.errors import DataError
from scdro.second_look._conditions import Condition, conditions_of, read_columns

__all__ = ["Members", "Slice", "Slices", "find_slices"]

Array = npt.NDArray[Any]
# Descriptions from one half that are tested on the other; the test is corrected for their number.
CANDIDATES = 5
# One more condition must raise the added weight over the root of the share by this factor.
SIMPLER = 1.2
SPLITS = 10  # random splits, two halves each
QUANTILE = 0.25  # of the p-values of all halves, which becomes the p-value
ENOUGH = 200_000  # samples times splits, at most: large data need fewer splits
PAIRED = 300  # conditions that are tried in conjunctions: those that stand out most by themselves
LONGER = 50  # conjunctions that are extended by one more condition
EXACT = 12  # the test is exact up to this many members
BLOCK = 65_536  # samples per block of the products that count pairs


class Members:
    """Which rows, (n,) of booleans, as `np.asarray(members)`, and their description; equal if all rows are.

    Example:
        >>> members = Members(np.array([True, False, True]), "place = water")
        >>> members, members.text, np.asarray(members).tolist()
        (<2 of 3 rows>, 'place = water', [True, False, True])
    """

    def __init__(self, rows: Array, text: str) -> None:
        self._rows, self.text = rows, text

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        found: Array = np.array(self._rows, dtype=dtype or bool)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and np.array_equal(self._rows, other._rows)

    def __hash__(self) -> int:
        return hash(self._rows.tobytes())

    def __repr__(self) -> str:
        return f"<{int(self._rows.sum())} of {len(self._rows)} rows>"


class Slice(NamedTuple):
    """One description. Weights and scores are measured on samples that it was not found on.

    Attributes:
        conditions: such as ("place = water", "label = 0").
        size: number of samples.
        share: their share of all samples.
        lift: their mean weight divided by the mean weight of their classes.
        added: the weight that they have beyond the mean weight of their classes, as a share of all
            weight.
        p_value: p-value of the rank test, corrected for the number of descriptions tested.
        before: accuracy of the first model, or mean absolute error for regressors; NaN if unknown.
        after: the same for the new model.
        loss: whether before and after are errors.
        members: which rows meet the conditions on columns, that on the label left out, as
            `Members`; `SecondLook(groups=...)` and `repair(groups=...)` read it.

    Example:
        >>> print(Slice(("place = water", "label = 0"), 184, 0.038, 4.9, 0.15, 1e-12, 0.74, 0.9))
        place = water and label = 0: 184 samples (3.8%) with 4.9 times the weight usual in their
        class; accuracy 74% before, 90% after.
    """

    conditions: tuple[str, ...]
    size: int
    share: float
    lift: float
    added: float
    p_value: float
    before: float
    after: float
    loss: bool = False
    members: Any = None

    def __str__(self) -> str:
        text = (
            f"{' and '.join(self.conditions)}: {self.size:,} samples ({100 * self.share:.2g}%)"
            " with "
        )
        text += (
            f"{self.lift:.1f} times the"
            f" {'usual weight' if self.loss else 'weight usual in their class'}"
        )
        known = [
            (
                f"{100 * value:.0f}% {when}"
                if not self.loss
                else f"{value:,.0f} {when}"
                if value >= 1000
                else f"{value:.3g} {when}"
            )
            for value, when in ((self.before, "before"), (self.after, "after"))
            if not math.isnan(value)
        ]
        if known:
            text += f"; {'mean error' if self.loss else 'accuracy'} " + ", ".join(known)
        return text + "."


class Slices(tuple[Slice, ...]):
    """Slices, the most striking one first; printed as one sentence each.

    Example:
        >>> print(Slices())
        No subgroup found.
    """

    backend: Any = None

    def __str__(self) -> str:
        if not self:
            return "No subgroup found."
        return "\n".join(str(one) for one in self)

    def to_frame(self, backend: Any = None) -> Any:
        """A DataFrame with one row per slice, of the same library as `frame`, or of "pandas", "polars" or "pyarrow"."""
        columns = {name: [getattr(one, name) for one in self] for name in Slice._fields[:-2]}
        columns["conditions"] = [" and ".join(one.conditions) for one in self]
        return frame_of(columns, backend or self.backend)

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{self}</p>"
        error = self[0].loss
        head = ("who", "samples", "share", "weight over usual", "p", *(f"{'error' if error else 'accuracy'} {when}"
                for when in ("before", "after")))  # fmt: skip

        def score(value: float) -> str:
            return "" if math.isnan(value) else f"{value:.3g}" if error else f"{100 * value:.1f}%"

        rows = [
            (" and ".join(one.conditions), f"{one.size:,}", f"{100 * one.share:.1f}%", f"{one.lift:.1f}",
             f"{one.p_value:.1g}", score(one.before), score(one.after))
            for one in self
        ]  # fmt: skip
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        return (
            "<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr></thead><tbody>"
            + "".join(f"<tr>{row}</tr>" for row in cells) + "</tbody></table>"
        )  # fmt: skip


def find_slices(
    weights: Any,
    frame: Any,
    *,
    y: Any = None,
    proba: Any = None,
    after: Any = None,
    errors: bool = False,
    depth: int = 2,
    max_slices: int = 5,
    min_size: int = 3,
    alpha: float = 0.01,
    seed: int = 0,
    label: str = "label",
) -> Slices:
    """Find conditions on columns that cover most of the added weight, each tested on samples not used to find it.

    `SecondLook` and the result of `repair` have a method of this name that fills in weights, labels
    and scores.

    Args:
        weights: the weights of a second look, (n,).
        frame: columns that describe the samples, ideally ones that no model was trained on: a
            DataFrame of pandas, polars or Arrow, a dictionary of columns, or one column. Numbers
            and dates are split at quantiles, names by value, and texts by the words they have. For
            images see `gallery`.
        y: labels; they become a column, named by `label`, and weights are compared within classes.
        proba: the reference's out-of-fold probabilities of the labels, (n,), or of all classes, (n,
            k); or whether it is right, as booleans.
        after: the same for the new model.
        errors: whether `proba` and `after` are errors of a regressor, one number per sample.
        depth: largest number of conditions in a conjunction, 1 to 3.
        max_slices: largest number of slices to return.
        min_size: smallest number of members of a slice in each half.
        alpha: the probability of any false description if weights and columns are independent.
        seed: seed of the halves.
        label: what the labels are called in the descriptions, such as the name of the column that
            they come from.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> place = rng.choice(["land", "water"], 400, p=[0.9, 0.1])
        >>> weights = np.where(place == "water", 3.0, 0.5) * rng.uniform(0.8, 1.2, 400)
        >>> print(find_slices(weights, {"place": place, "age": rng.integers(20, 60, 400)}))
        place = water: ... samples (...%) with ... times the weight usual in their class.

        Texts are described by their words:

        >>> texts = [f"number {k} and finna" if k % 9 == 0 else f"number {k} and more" for k in range(400)]
        >>> weights = np.where(np.arange(400) % 9 == 0, 3.0, 0.5) * rng.uniform(0.8, 1.2, 400)
        >>> print(find_slices(weights, texts)[0].conditions)
        ('text has "finna"',)
    """
    w = as_floats(weights, "weights", as_array)
    labels = read_labels(y)
    before, then = (
        _errors(p, len(w)) if errors else right_or_wrong(p, labels, len(w)) for p in (proba, after)
    )
    rows = WeightedRows(w, labels, before, then, errors)
    return describe_slices(
        rows, frame, SliceSearch(depth, max_slices, min_size, alpha, seed, label)
    )


class WeightedRows(NamedTuple):
    """What is known about each row, (n,), besides its columns."""

    weights: Array  # of the second look
    labels: Array | None  # classes or targets
    before: Array | None  # a score of the first model: right or wrong, or an error
    after: Array | None  # the same of the new model
    loss: bool = False  # whether scores are errors


class SliceSearch(NamedTuple):
    """The options of `find_slices`."""

    depth: int = 2
    max_slices: int = 5
    min_size: int = 3
    alpha: float = 0.01
    seed: int = 0
    label: str = "label"

    def check(self) -> None:
        """Raise unless every option is valid."""
        check_number("alpha", self.alpha, "in (0, 1)", "the chance of a false description")
        check_choice("depth", self.depth, (1, 2, 3))
        check_whole(
            "min_size", self.min_size, 2, meaning="the smallest number of members of a slice"
        )
        check_whole("max_slices", self.max_slices, meaning="slices to return")


def describe_slices(known: WeightedRows, frame: Any, search: SliceSearch) -> Slices:
    """`find_slices` of rows whose scores are known."""
    slices = Slices(one for one, _ in describe_rows(known, frame, search))
    slices.backend = backend_of(frame)
    return slices


def describe_rows(
    known: WeightedRows, frame: Any, search: SliceSearch
) -> list[tuple[Slice, Array]]:
    """The slices, each with its members, as booleans, (n,)."""
    weights, labels, before, after, loss = known
    if weights.ndim != 1:
        raise DataError(f"expected weights as a vector, got shape {weights.shape}")
    search.check()
    n = len(weights)
    w = array_weights(weights, n) * (n / weights.sum())  # with mean one
    conditions, on_columns = _all_conditions(frame, labels, n, search)
    # What is compared: ranks, (n,), and the weight beyond the mean of the class, (n,).
    classes = labels if labels is not None and _are_classes(labels) else np.zeros(n)
    ranks, usual = _rank_in_classes(w, classes)
    more = w - usual
    halves = _halves(ranks, max(1, min(SPLITS, ENOUGH // n)), search.seed)
    tried = _try_on_halves(conditions, more, ranks, halves, search)
    # Those that pass, measured only on samples that they were not found on: `counts` says how often
    # each sample was one of these.
    found = []
    for numbers, (p_values, counts) in tried.items():
        p_value = _join_p_values(p_values, len(halves))
        if p_value > search.alpha:
            continue
        rows = _rows(conditions, numbers)
        held_out = len(p_values) * n / 2
        added, lift = float(counts @ more) / held_out, float(counts @ w / (counts @ usual))
        first, then = (_mean(each, counts) for each in (before, after))
        names = tuple(conditions[k].text for k in numbers)
        confirmed = tuple(k for k in numbers if k < on_columns) or numbers
        members = Members(
            _rows(conditions, confirmed), " and ".join(conditions[k].text for k in confirmed)
        )
        one = Slice(
            names, int(rows.sum()), float(rows.mean()), lift, added, p_value, first, then, loss,
            members,
        )  # fmt: skip
        found.append((added / math.sqrt(one.share), one, rows))
    ordered = sorted(found, key=lambda entry: -entry[0])
    return _leave_out_repeats(ordered, more)[: search.max_slices]


def _all_conditions(
    frame: Any, labels: Array | None, n: int, search: SliceSearch
) -> tuple[list[Condition], int]:
    """The conditions on all columns, and then on the label; and how many are on columns."""
    columns, name, least = read_columns(frame, n), search.label, 2 * search.min_size
    conditions = [c for one, values in columns.items() for c in conditions_of(one, values, least)]
    on_columns = len(conditions)
    if labels is not None:
        while name in columns:
            name = f"given {name}"
        own = read_columns({name: as_names(labels) if _are_classes(labels) else labels}, n)
        conditions += conditions_of(name, own[name], least)
    return conditions, on_columns


def read_labels(y: Any) -> Array | None:
    """Labels as an array without missing values; None if there are none."""
    if y is None:
        return None
    labels = as_array(y)
    check_no_missing(labels, "y")
    return labels


def as_names(labels: Array) -> Array:
    """Classes as names, so that they are not split at quantiles."""
    names = np.empty(len(labels), dtype=object)
    names[:] = [
        f"{label:.12g}" if isinstance(label, float) else str(label) for label in labels.tolist()
    ]
    return names


def _are_classes(labels: Array) -> bool:
    """Whether labels are classes, few enough to compare weights within them, and not numbers to predict."""
    kind = type_of_target(labels)
    return kind in ("binary", "multiclass") and len(np.unique(labels)) <= max(2, len(labels) / 10)


def _rank_in_classes(w: Array, labels: Array) -> tuple[Array, Array]:
    """Ranks of the weights within their classes, in (0, 1), and the classes' means; (n,)."""
    ranks, usual = np.zeros(len(w)), np.zeros(len(w))
    for label in np.unique(labels):
        rows = labels == label
        ranks[rows] = (rankdata(w[rows]) - 0.5) / rows.sum()
        usual[rows] = w[rows].mean()
    return ranks, usual


def _halves(ranks: Array, splits: int, seed: int) -> list[Array]:
    """Random halves and their complements, as booleans, (n,) each.

    Of two neighbours by rank, each half gets one, so that both have hard samples.
    """
    order, halves = np.argsort(ranks, kind="stable"), []
    for first in np.random.default_rng(seed).random((splits, (len(ranks) + 1) // 2)) < 0.5:
        half = np.zeros(len(ranks), bool)
        half[order] = np.stack([first, ~first], 1).ravel()[: len(ranks)]
        halves += [half, ~half]
    return halves


class _Tried(NamedTuple):
    """A description, on the halves that were not used to find it."""

    p_values: list[float]  # one for each half that proposed it
    counts: Array  # (n,), how often each member was in such a half


def _try_on_halves(
    conditions: list[Condition], more: Array, ranks: Array, halves: list[Array], search: SliceSearch
) -> dict[tuple[int, ...], _Tried]:
    """The best descriptions of each half, tested on the other; each is the numbers of its conditions."""
    tried: dict[tuple[int, ...], _Tried] = {}
    for here in halves:
        candidates = _search(conditions, more, ranks, here, search.depth, search.min_size)
        for numbers in candidates:
            rows = _rows(conditions, numbers) & ~here
            p = (
                _p_value(ranks[rows], int((~here).sum()))
                if search.min_size <= rows.sum() and more[rows].sum() > 0
                else 1.0
            )
            attempt = tried.setdefault(numbers, _Tried([], np.zeros(len(more))))
            attempt.p_values.append(min(1.0, p * len(candidates)))
            attempt.counts[rows] += 1
    return tried


def _join_p_values(p_values: list[float], splits: int) -> float:
    """One p-value from many halves: a fixed quantile of them, divided by the quantile.

    Halves that did not propose the description count as 1 (Meinshausen, Meier and Bühlmann).
    """
    at = math.ceil(QUANTILE * splits)
    return min(1.0, sorted(p_values)[at - 1] / QUANTILE) if len(p_values) >= at else 1.0


def _mean(each: Array | None, counts: Array) -> float:
    """The mean score, by how often each sample was held out; NaN if it is not known."""
    if each is None:
        return math.nan
    known = (counts > 0) & ~np.isnan(each)
    return float(np.average(each[known], weights=counts[known])) if known.any() else math.nan


def _rows(conditions: list[Condition], numbers: tuple[int, ...]) -> Array:
    """Which samples meet all conditions of a description, (n,)."""
    rows: Array = np.logical_and.reduce([conditions[k].rows for k in numbers])
    return rows


class _Half(NamedTuple):
    """The half that a search may use, m of the n samples."""

    more: Array  # (m,), weights minus the mean of their class
    ranks: Array  # (m,), in (0, 1) within their class
    min_size: int  # of a description within the half

    def scores(self, sizes: Any, more: Any, ranks: Any) -> Any:
        """Added weight over the root of the share, from sums over the members.

        It is 0 if the description is too small, adds nothing, or if the rank test sees little (z <=
        2). Up to a constant, this is the number of standard errors that the mean weight is above
        its class's.

        Args:
            sizes, more, ranks: the number of members and the sums of `more` and `ranks` over them,
            in any
                shape: one number for each description.
        """
        n = len(self.more)
        with np.errstate(divide="ignore", invalid="ignore"):
            added = more / n
            good = (sizes >= self.min_size) & (added > 0) & (_z(ranks, sizes, n) > 2)
            return np.where(good, added / np.sqrt(sizes / n), 0.0)

    def sums(self, left: Array, right: Array) -> Any:
        """Scores of conjunctions of each row of `left`, (a, m), and of `right`, (b, m): (a, b).

        The three sums are matrix products of the masks, in blocks of samples.
        """
        total = np.zeros((3, len(left), len(right)))
        for at in range(0, len(self.more), BLOCK):
            part = slice(at, at + BLOCK)
            A, B = left[:, part].astype(float), right[:, part].astype(float)
            total += [A @ B.T, (A * self.more[part]) @ B.T, (A * self.ranks[part]) @ B.T]
        return self.scores(*total)


def _search(
    conditions: list[Condition], more: Array, ranks: Array, half: Array, depth: int, min_size: int
) -> list[tuple[int, ...]]:
    """The conjunctions with the highest scores, as the numbers of their conditions.

    Each beats the shorter ones that it contains by the factor SIMPLER. Single conditions are all
    tried; pairs of the 300 that stand out most; triples that extend the 50 best pairs.
    """
    if not conditions:
        return []
    on = _Half(more[half], ranks[half], min_size)
    masks = np.stack([condition.rows[half] for condition in conditions])  # (conditions, m)
    alone = on.scores(masks.sum(1), masks @ on.more, masks @ on.ranks)
    scored: dict[tuple[int, ...], float] = {
        (int(i),): float(alone[i]) for i in np.flatnonzero(alone > 0)
    }
    if depth > 1:
        # Of a condition that stands out downwards, a part may stand out upwards: hence abs.
        away = np.abs(np.nan_to_num(_z(masks @ on.ranks, masks.sum(1), len(on.more))))
        kept = np.sort(np.argsort(-away, kind="stable")[:PAIRED])
        pairs = on.sums(masks[kept], masks[kept])
        for i, j in zip(*np.nonzero(np.triu(pairs, 1)), strict=True):
            if pairs[i, j] > SIMPLER * max(alone[kept[i]], alone[kept[j]]):
                scored[int(kept[i]), int(kept[j])] = float(pairs[i, j])
        if depth > 2:
            best = sorted(
                (numbers for numbers in scored if len(numbers) == 2), key=lambda p: -scored[p]
            )[:LONGER]
            if best:
                triples = on.sums(np.stack([masks[i] & masks[j] for i, j in best]), masks[kept])
            for (i, j), row in zip(best, triples if best else (), strict=True):
                for k, score in zip(kept.tolist(), row, strict=True):
                    inside = (
                        scored.get(tuple(sorted(pair)), 0.0) for pair in ((i, j), (i, k), (j, k))
                    )
                    if k not in (i, j) and score > SIMPLER * max(*inside, alone[k]):
                        a, b, c = sorted((i, j, k))
                        scored[a, b, c] = float(score)
    ordered = sorted(scored, key=lambda numbers: (-scored[numbers], len(numbers), numbers))
    return [tuple(int(k) for k in numbers) for numbers in ordered[:CANDIDATES]]


def _z(rank_sum: Any, size: Any, n: int) -> Any:
    """The z value of a sum of ranks over `size` of n samples.

    Drawn without replacement from ranks of mean 1/2 and variance 1/12.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return (rank_sum / size - 0.5) / np.sqrt((1 / size - 1 / n) / 12)


def _p_value(ranks: Array, n: int) -> float:
    """Probability of a sum of ranks this large, for members drawn at random from n samples.

    Few members: the sum of m uniform numbers is at least s with probability sum_k (-1)^k (m - s -
    k)_+^m/(k! (m - k)!). Many: the normal distribution, with the variance of draws without
    replacement.
    """
    m, left = len(ranks), float((1 - ranks).sum())
    if m > EXACT:
        return float(norm.sf(_z(ranks.sum(), m, n)))
    terms = (
        (-1) ** k * max(left - k, 0.0) ** m / math.factorial(k) / math.factorial(m - k)
        for k in range(m + 1)
    )
    return min(1.0, max(math.fsum(terms), 0.0))


def _leave_out_repeats(
    found: list[tuple[float, Slice, Array]], more: Array
) -> list[tuple[Slice, Array]]:
    """Leave out a slice if most of its samples, or of its added weight, are in earlier slices."""
    kept: list[tuple[Slice, Array]] = []
    seen: Any = False
    for _, one, rows in found:
        if (rows & seen).sum() <= rows.sum() / 2 and more[rows & seen].sum() <= more[
            rows
        ].sum() / 2:
            kept.append((one, rows))
            seen = rows | seen
    return kept


def _errors(values: Any, n: int) -> Array | None:
    """Errors of a regressor, (n,), checked; None if there are none."""
    if values is None:
        return None
    found = as_floats(values, "errors", as_array)
    if found.shape != (n,):
        raise DataError(f"expected one error per sample, ({n},), got shape {found.shape}")
    return found


def right_or_wrong(proba: Any, labels: Array | None, n: int) -> Array | None:
    """Whether the label has the largest probability, (n,); NaN where it is not known.

    If only the label's probability is given: whether it is above one half.
    """
    if proba is None:
        return None
    p = as_floats(proba, "probabilities", as_array)
    if p.ndim == 2 and labels is not None and len(p) == n:
        names = np.unique(labels)
        if len(names) > p.shape[1]:
            raise DataError(
                f"expected probabilities of {len(names)} classes, got {p.shape[1]} columns"
            )
        numbers = (
            labels
            if labels.dtype.kind in "iu" and labels.max() < p.shape[1]
            else np.searchsorted(names, labels)
        )
        right: Array = (p.argmax(1) == numbers).astype(float)
        return right
    if p.shape != (n,):
        raise DataError(
            f"expected one probability per sample, ({n},), got shape {p.shape}; y is needed for"
            " (n, k)"
        )
    check_probabilities(p, may_be_nan=True)
    sure: Array = np.where(np.isnan(p), np.nan, p > 0.5)
    return sure
