"""Who it is: the few descriptions, in the user's own columns, that hold most of the weight a second look adds.

Descriptions are found on one half of the samples and tested on the other, for many halves. The test is by ranks of the
weights inside each class, so that equal totals of unequal classes explain nothing, and no single weight decides.
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
from scdro._validation import array_weights, check_choice, check_number, check_whole
from scdro.errors import DataError
from scdro.second_look._conditions import Condition, conditions_of, read_columns

__all__ = ["Slice", "Slices", "find_slices"]

Array = npt.NDArray[Any]
CANDIDATES = 5  # descriptions that one half sends to the other: the test is corrected for these
SIMPLER = 1.2  # a further condition must raise the added weight over the root of the share by this factor
SPLITS, QUANTILE, ENOUGH = 10, 0.25, 200_000  # halvings; what is asked of them; samples from which fewer will do
PAIRED = 300  # conditions that are tried in conjunctions: those that stand out most by themselves
LONGER = 50  # conjunctions that are tried with one condition more
EXACT = 12  # members up to which the test is exact
BLOCK = 65_536  # samples at a time in the products that count pairs


class Slice(NamedTuple):
    """One description. Weights and scores are measured on samples that it was not found on.

    Attributes:
        conditions: such as ("place = water", "label = 0").
        size: samples.
        share: of the samples.
        lift: mean weight over what is usual in their classes, so that equal totals of unequal classes explain nothing.
        added: share of all weight beyond what their classes' mean weights give: what the second look adds.
        p_value: of the rank test, corrected for how many descriptions were tested.
        before: accuracy of the first model, or mean absolute error for regressors; NaN where unknown.
        after: that of the new model.
        loss: whether before and after are errors.

    Example:
        >>> print(Slice(("place = water", "label = 0"), 184, 0.038, 4.9, 0.15, 1e-12, 0.74, 0.9))
        place = water and label = 0: 184 samples (3.8%) with 4.9 times the weight usual in their class; accuracy 74%
        before, 90% after.
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

    def __str__(self) -> str:
        text = f"{' and '.join(self.conditions)}: {self.size:,} samples ({100 * self.share:.2g}%) with "
        text += f"{self.lift:.1f} times the {'usual weight' if self.loss else 'weight usual in their class'}"
        known = [
            f"{100 * value:.0f}% {when}"
            if not self.loss
            else f"{value:,.0f} {when}"
            if value >= 1000
            else f"{value:.3g} {when}"
            for value, when in ((self.before, "before"), (self.after, "after"))
            if not math.isnan(value)
        ]
        if known:
            text += f"; {'mean error' if self.loss else 'accuracy'} " + ", ".join(known)
        return text + "."


class Slices(tuple[Slice, ...]):
    """Slices, the one that stands out most first; printed, one sentence each.

    Example:
        >>> print(Slices())
        No description of these samples holds more weight than chance would give it.
    """

    backend: Any = None

    def __str__(self) -> str:
        if not self:
            return "No description of these samples holds more weight than chance would give it."
        return "\n".join(str(one) for one in self)

    def to_frame(self, backend: Any = None) -> Any:
        """A DataFrame, one row each, of the library whose columns were described; or "pandas", "polars", "pyarrow"."""
        columns = {name: [getattr(one, name) for one in self] for name in Slice._fields[:-1]}
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
    most: int = 5,
    least: int = 3,
    alpha: float = 0.01,
    seed: int = 0,
) -> Slices:
    """Conditions on columns that hold most of the added weight, each tested on samples that did not find it.

    `SecondLook` and what `repair` returns have a method of this name that fills in weights, labels and scores.

    Args:
        weights: of a second look, (n,).
        frame: columns that describe the samples, best ones that no model was trained on: a DataFrame of pandas, polars
            or Arrow, a dictionary of columns, or one column. Numbers and dates are cut at quantiles, values of names
            are conditions, and so are the words of texts. For images see `gallery`.
        y: labels; they become a column "label", and weights are compared inside classes.
        proba: the reference's out-of-fold probabilities of the labels, (n,), or of all classes, (n, k); or whether
            it is right, as booleans.
        after: the same of the new model.
        errors: whether `proba` and `after` are errors of a regressor, one number per sample.
        depth: conditions in a conjunction, 1 to 3.
        most: slices to return.
        least: members that a slice must have in each half.
        alpha: the chance of any false description where weights and columns have nothing to do with each other.
        seed: of the halves.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> place = rng.choice(["land", "water"], 400, p=[0.9, 0.1])
        >>> weights = np.where(place == "water", 3.0, 0.5) * rng.uniform(0.8, 1.2, 400)
        >>> print(find_slices(weights, {"place": place, "age": rng.integers(20, 60, 400)}))
        place = water: ... samples (...%) with ... times the weight usual in their class.

        Of texts, the words:

        >>> texts = [f"number {k} and finna" if k % 9 == 0 else f"number {k} and more" for k in range(400)]
        >>> weights = np.where(np.arange(400) % 9 == 0, 3.0, 0.5) * rng.uniform(0.8, 1.2, 400)
        >>> print(find_slices(weights, texts)[0].conditions)
        ('text has "finna"',)
    """
    w = as_array(weights).astype(float)
    labels = None if y is None else as_array(y)
    scores = [_errors(p, len(w)) if errors else _right(p, labels, len(w)) for p in (proba, after)]
    return described(
        w, frame, labels, *scores, loss=errors, depth=depth, most=most, least=least, alpha=alpha, seed=seed
    )


def described(
    weights: Array, frame: Any, labels: Array | None, before: Array | None, after: Array | None, *, loss: bool = False,
    depth: int = 2, most: int = 5, least: int = 3, alpha: float = 0.01, seed: int = 0,
) -> Slices:  # fmt: skip
    """`find_slices` with a score of each sample, before and after."""
    if weights.ndim != 1:
        raise DataError(f"expected weights as a vector, got shape {weights.shape}")
    n = len(weights)
    w = array_weights(weights, n) * (n / weights.sum())
    check_number("alpha", alpha, "in (0, 1)", "the chance of a false description")
    check_choice("depth", depth, (1, 2, 3))
    check_whole("least", least, 2, meaning="the least number of members of a slice")
    check_whole("most", most, meaning="slices to return")
    columns = read_columns(frame, n)
    if labels is not None:
        name = next(name for name in ("label", "given label", "label of the model") if name not in columns)
        columns |= read_columns({name: as_names(labels) if _are_classes(labels) else labels}, n)
    conditions = [one for name, values in columns.items() for one in conditions_of(name, values, 2 * least)]
    classes = labels if labels is not None and _are_classes(labels) else np.zeros(n)
    ranks, usual = _in_classes(w, classes)
    more = w - usual
    tried: dict[tuple[int, ...], _Tried] = {}
    halves = _halves(ranks, max(1, min(SPLITS, ENOUGH // n)), seed)
    for here in halves:
        candidates = _search(conditions, more, ranks, here, depth, least)
        for numbers in candidates:
            rows = _rows(conditions, numbers) & ~here
            p = _p_value(ranks[rows], int((~here).sum())) if least <= rows.sum() and more[rows].sum() > 0 else 1.0
            known = tried.setdefault(numbers, _Tried([], np.zeros(n)))
            known.p_values.append(min(1.0, p * len(candidates)))
            known.counts[rows] += 1
    found = []
    for numbers, (p_values, counts) in tried.items():
        p_value = _joined(p_values, len(halves))
        if p_value > alpha:
            continue
        rows = _rows(conditions, numbers)
        held_out = len(p_values) * n / 2
        added, lift = float(counts @ more) / held_out, float(counts @ w / (counts @ usual))
        first, then = (_mean(each, counts) for each in (before, after))
        names = tuple(conditions[k].text for k in numbers)
        one = Slice(names, int(rows.sum()), float(rows.mean()), lift, added, p_value, first, then, loss)
        found.append((added / math.sqrt(one.share), one, rows))
    slices = Slices(_distinct(sorted(found, key=lambda entry: -entry[0]), more)[:most])
    slices.backend = backend_of(frame)
    return slices


def as_names(labels: Array) -> Array:
    """Classes as names: class 10 is not "more than" class 9."""
    names = np.empty(len(labels), dtype=object)
    names[:] = [f"{label:.12g}" if isinstance(label, float) else str(label) for label in labels.tolist()]
    return names


def _are_classes(labels: Array) -> bool:
    """Classes, not numbers to be predicted: few enough for comparisons inside them."""
    kind = type_of_target(labels)
    return kind in ("binary", "multiclass") and len(np.unique(labels)) <= max(2, len(labels) / 10)


def _in_classes(w: Array, labels: Array) -> tuple[Array, Array]:
    """Ranks inside the classes, in (0, 1), uniform where nothing describes the weights; the classes' mean weights."""
    ranks, usual = np.zeros(len(w)), np.zeros(len(w))
    for label in np.unique(labels):
        rows = labels == label
        ranks[rows] = (rankdata(w[rows]) - 0.5) / rows.sum()
        usual[rows] = w[rows].mean()
    return ranks, usual


def _halves(ranks: Array, splits: int, seed: int) -> list[Array]:
    """Random halves, and the other halves. Of any two neighbours by rank one is in each: both have hard samples."""
    order, halves = np.argsort(ranks, kind="stable"), []
    for first in np.random.default_rng(seed).random((splits, (len(ranks) + 1) // 2)) < 0.5:
        half = np.zeros(len(ranks), bool)
        half[order] = np.stack([first, ~first], 1).ravel()[: len(ranks)]
        halves += [half, ~half]
    return halves


class _Tried(NamedTuple):
    """A description: its p-values on the halves that did not find it, and how often they held each member."""

    p_values: list[float]
    counts: Array


def _joined(p_values: list[float], splits: int) -> float:
    """One p-value of those on many halves, where the description is among the candidates of some: at a fixed quantile
    of all, over that quantile (Meinshausen, Meier and Bühlmann, JASA 2009). No single half decides."""
    at = math.ceil(QUANTILE * splits)
    return min(1.0, sorted(p_values)[at - 1] / QUANTILE) if len(p_values) >= at else 1.0


def _mean(each: Array | None, counts: Array) -> float:
    if each is None:
        return math.nan
    known = (counts > 0) & ~np.isnan(each)
    return float(np.average(each[known], weights=counts[known])) if known.any() else math.nan


def _rows(conditions: list[Condition], numbers: tuple[int, ...]) -> Array:
    rows: Array = np.logical_and.reduce([conditions[k].rows for k in numbers])
    return rows


class _Half(NamedTuple):
    """What a search may look at: weights beyond those usual in the class, and ranks."""

    more: Array
    ranks: Array
    least: int

    def scores(self, sizes: Any, more: Any, ranks: Any) -> Any:
        """Added weight over the root of the share, for sums over members; 0 where the rank test sees little.

        Up to a constant, that is how many standard errors the mean weight is above what is usual.
        """
        n = len(self.more)
        with np.errstate(divide="ignore", invalid="ignore"):
            added = more / n
            good = (sizes >= self.least) & (added > 0) & (_z(ranks, sizes, n) > 2)
            return np.where(good, added / np.sqrt(sizes / n), 0.0)

    def sums(self, left: Array, right: Array) -> Any:
        """Scores of all conjunctions of a row of `left` with a row of `right`."""
        total = np.zeros((3, len(left), len(right)))
        for at in range(0, len(self.more), BLOCK):
            part = slice(at, at + BLOCK)
            A, B = left[:, part].astype(float), right[:, part].astype(float)
            total += [A @ B.T, (A * self.more[part]) @ B.T, (A * self.ranks[part]) @ B.T]
        return self.scores(*total)


def _search(
    conditions: list[Condition], more: Array, ranks: Array, half: Array, depth: int, least: int
) -> list[tuple[int, ...]]:
    """The conjunctions that score highest; each beats the shorter ones inside it by the factor SIMPLER."""
    if not conditions:
        return []
    on = _Half(more[half], ranks[half], least)
    masks = np.stack([condition.rows[half] for condition in conditions])
    alone = on.scores(masks.sum(1), masks @ on.more, masks @ on.ranks)
    scored: dict[tuple[int, ...], float] = {(int(i),): float(alone[i]) for i in np.flatnonzero(alone > 0)}
    if depth > 1:
        away = np.abs(np.nan_to_num(_z(masks @ on.ranks, masks.sum(1), len(on.more))))
        kept = np.sort(np.argsort(-away, kind="stable")[:PAIRED])
        pairs = on.sums(masks[kept], masks[kept])
        for i, j in zip(*np.nonzero(np.triu(pairs, 1)), strict=True):
            if pairs[i, j] > SIMPLER * max(alone[kept[i]], alone[kept[j]]):
                scored[int(kept[i]), int(kept[j])] = float(pairs[i, j])
        if depth > 2:
            best = sorted((numbers for numbers in scored if len(numbers) == 2), key=lambda p: -scored[p])[:LONGER]
            if best:
                triples = on.sums(np.stack([masks[i] & masks[j] for i, j in best]), masks[kept])
            for (i, j), row in zip(best, triples if best else (), strict=True):
                for k, score in zip(kept.tolist(), row, strict=True):
                    inside = (scored.get(tuple(sorted(pair)), 0.0) for pair in ((i, j), (i, k), (j, k)))
                    if k not in (i, j) and score > SIMPLER * max(*inside, alone[k]):
                        a, b, c = sorted((i, j, k))
                        scored[a, b, c] = float(score)
    ordered = sorted(scored, key=lambda numbers: (-scored[numbers], len(numbers), numbers))
    return [tuple(int(k) for k in numbers) for numbers in ordered[:CANDIDATES]]


def _z(rank_sum: Any, size: Any, n: int) -> Any:
    """z of the mean rank of `size` of n samples, drawn without replacement from ranks with mean 1/2, variance 1/12."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (rank_sum / size - 0.5) / np.sqrt((1 / size - 1 / n) / 12)


def _p_value(ranks: Array, n: int) -> float:
    """Probability of a sum of ranks this large, for members drawn at random from n samples.

    Few members: the sum of m uniform numbers is at least s with probability sum_k (-1)^k (m - s - k)_+^m/(k! (m - k)!).
    Many: the normal distribution, with the variance of draws without replacement.
    """
    m, left = len(ranks), float((1 - ranks).sum())
    if m > EXACT:
        return float(norm.sf(_z(ranks.sum(), m, n)))
    terms = ((-1) ** k * max(left - k, 0.0) ** m / math.factorial(k) / math.factorial(m - k) for k in range(m + 1))
    return min(1.0, max(math.fsum(terms), 0.0))


def _distinct(found: list[tuple[float, Slice, Array]], more: Array) -> list[Slice]:
    """Without those most of whose samples, or of whose added weight, are in a slice before."""
    kept: list[Slice] = []
    seen: Any = False
    for _, one, rows in found:
        if (rows & seen).sum() <= rows.sum() / 2 and more[rows & seen].sum() <= more[rows].sum() / 2:
            kept.append(one)
            seen = rows | seen
    return kept


def _errors(values: Any, n: int) -> Array | None:
    if values is None:
        return None
    found: Array = as_array(values).astype(float)
    if found.shape != (n,):
        raise DataError(f"expected one error per sample, ({n},), got shape {found.shape}")
    return found


def _right(proba: Any, labels: Array | None, n: int) -> Array | None:
    """Whether the label has the largest probability; of the label's alone, whether it is more than one half."""
    if proba is None:
        return None
    p = as_array(proba)
    if p.dtype == bool and p.shape == (n,):
        return p.astype(float)
    if p.ndim == 2 and labels is not None and len(p) == n:
        names = np.unique(labels)
        if len(names) > p.shape[1]:
            raise DataError(f"expected probabilities of {len(names)} classes, got {p.shape[1]} columns")
        numbers = labels if labels.dtype.kind in "iu" and labels.max() < p.shape[1] else np.searchsorted(names, labels)
        right: Array = (p.argmax(1) == numbers).astype(float)
        return right
    if p.shape != (n,):
        raise DataError(f"expected one probability per sample, ({n},), got shape {p.shape}; y is needed for (n, k)")
    sure: Array = np.where(np.isnan(p), np.nan, p > 0.5)
    return sure
