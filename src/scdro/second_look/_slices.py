"""Who it is: the few descriptions, in the user's own columns, that hold most of the weight a second look adds.

Descriptions are found on one half of the samples and tested on the other, and the other way round. The test is by ranks
of the weights inside each class, so that equal totals of unequal classes explain nothing, and no single weight decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from scdro._validation import array_weights, check_choice, check_number, check_whole
from scdro.errors import DataError
from scdro.second_look._weights import _as_array

__all__ = ["Slice", "Slices", "find_slices"]

Array = npt.NDArray[Any]
CUTS = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles at which numbers are cut
FEW = 12  # distinct numbers that are values of their own
VALUES = 40  # most frequent values, or words, of a column
CANDIDATES = 5  # descriptions that one half sends to the other: the test is corrected for these
SIMPLER = 1.2  # a second condition must raise the added weight over the root of the share by this factor


class Slice(NamedTuple):
    """One description. All numbers are of the half that it was not found on.

    Attributes:
        conditions: such as ("place = water", "label = 0").
        size: samples.
        share: of the samples.
        lift: share of the weight over share of the samples, classes counting as they do in the weights.
        added: share of the weight less share of the samples: what the second look adds.
        p_value: of the rank test, corrected for how many descriptions were tested.
        before: accuracy of the reference; NaN where unknown.
        after: accuracy of the new model; NaN where unknown.

    Example:
        >>> print(Slice(("place = water", "label = 0"), 92, 0.04, 4.9, 0.15, 1e-12, 0.74, 0.9))
        place = water and label = 0: 4.0% of the samples, 4.9 times their share of the weight; accuracy 74.0% -> 90.0%
    """

    conditions: tuple[str, ...]
    size: int
    share: float
    lift: float
    added: float
    p_value: float
    before: float
    after: float

    def __str__(self) -> str:
        text = f"{' and '.join(self.conditions)}: {100 * self.share:.1f}% of the samples, "
        text += f"{self.lift:.1f} times their share of the weight"
        if not math.isnan(self.before):
            text += f"; accuracy {100 * self.before:.1f}%"
            if not math.isnan(self.after):
                text += f" -> {100 * self.after:.1f}%"
        return text


class Slices(tuple[Slice, ...]):
    """Slices, the one that stands out most first; printed, one sentence each.

    Example:
        >>> print(Slices())
        No description of these samples holds more weight than chance would give it.
    """

    def __str__(self) -> str:
        if not self:
            return "No description of these samples holds more weight than chance would give it."
        return "\n".join(str(one) for one in self)

    def to_frame(self) -> Any:
        """As a pandas DataFrame, one row each."""
        import pandas as pd

        rows = [{**one._asdict(), "conditions": " and ".join(one.conditions)} for one in self]
        return pd.DataFrame(rows, columns=list(Slice._fields))

    def _repr_html_(self) -> str:
        html: str = self.to_frame().to_html(index=False, float_format=lambda v: f"{v:.3g}")
        return html


class _Condition(NamedTuple):
    text: str
    column: str
    rows: Array


def find_slices(
    weights: Any,
    frame: Any,
    *,
    y: Any = None,
    proba: Any = None,
    after: Any = None,
    depth: int = 2,
    most: int = 5,
    least: int = 3,
    alpha: float = 0.01,
    seed: int = 0,
) -> Slices:
    """Conditions on columns that hold most of the added weight, each tested on samples that did not find it.

    Args:
        weights: of a second look, (n,).
        frame: columns that describe the samples and were never trained on: a DataFrame, or a dictionary of columns.
            Numbers are cut at quantiles; of texts, words are conditions; for images, give clusters of the features.
        y: labels; they become a column "label", and weights are compared inside classes.
        proba: the reference's out-of-fold probabilities of the labels, (n,), or of all classes, (n, k).
        after: the same of the new model.
        depth: conditions in a conjunction, 1 or 2.
        most: slices to return.
        least: members that a slice must have in each half.
        alpha: the chance of any false description where weights and columns have nothing to do with each other.
        seed: of the halves.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> place = rng.choice(["land", "water"], 400, p=[0.9, 0.1])
        >>> weights = np.where(place == "water", 3.0, 0.5) * rng.uniform(0.8, 1.2, 400)
        >>> print(find_slices(weights, {"place": place, "age": rng.integers(20, 60, 400)}))
        place = water: ...% of the samples, ... times their share of the weight
    """
    w = _as_array(weights).astype(float)
    if w.ndim != 1:
        raise DataError(f"expected weights as a vector, got shape {w.shape}")
    w = array_weights(w, len(w)) * (len(w) / w.sum())
    check_number("alpha", alpha, "in (0, 1)", "the chance of a false description")
    check_choice("depth", depth, (1, 2))
    check_whole("least", least, 2, meaning="the least number of members of a slice")
    labels = None if y is None else _as_array(y)
    columns = _columns(frame, labels, len(w))
    conditions = [condition for name, values in columns.items() for condition in _conditions(name, values, 2 * least)]
    if not conditions:
        return Slices()
    ranks = _ranks(w, np.zeros(len(w)) if labels is None else labels)
    right = [_right(p, labels, len(w)) for p in (proba, after)]
    half = _halves(ranks, seed)
    found: dict[frozenset[str], Slice] = {}
    for here, there in ((half, ~half), (~half, half)):
        candidates = _search(conditions, w, ranks, here, depth, least)
        for one in _tested(candidates, conditions, w, ranks, there, right, least, alpha / 2):
            key = frozenset(one.conditions)
            if key not in found or found[key].p_value > one.p_value:
                found[key] = one
    return Slices(
        _distinct(sorted(found.values(), key=lambda one: -one.added / math.sqrt(one.share)), conditions)[:most]
    )


def _columns(frame: Any, labels: Array | None, n: int) -> dict[str, Array]:
    if not hasattr(frame, "keys"):
        raise DataError(f"expected a DataFrame or a dictionary of columns, got {type(frame).__name__}")
    columns = {str(name): np.asarray(frame[name]) for name in frame.keys()}  # noqa: SIM118
    if labels is not None:
        columns["label"] = labels
    for name, values in columns.items():
        if values.shape != (n,):
            raise DataError(f"expected {n} rows in every column, as there are weights, got {values.shape} in {name!r}")
    return columns


def _conditions(name: str, values: Array, least: int) -> Iterator[_Condition]:
    """What can be said about a column, each covering at least `least` samples and leaving out at least as many."""
    for text, rows in _statements(name, values):
        if least <= rows.sum() <= len(rows) - least:
            yield _Condition(text, name, rows)


def _statements(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    if values.dtype.kind in "fiu":
        distinct = np.unique(values[~np.isnan(values)] if values.dtype.kind == "f" else values)
        if len(distinct) > FEW:
            for cut in np.unique(np.nanquantile(values.astype(float), CUTS)):
                yield f"{name} <= {cut:.4g}", values <= cut
                yield f"{name} > {cut:.4g}", values > cut
            return
        for value in distinct:
            yield f"{name} = {value:g}", values == value
        return
    texts = np.array(["" if _missing(value) else str(value) for value in values], dtype=object)
    names, counts = np.unique(texts.astype(str), return_counts=True)
    if len(names) > 0.5 * len(texts) and np.mean([len(text.split()) for text in names[:200]]) > 2:
        yield from _words(name, texts)
        return
    for value in names[np.argsort(-counts, kind="stable")[:VALUES]]:
        yield (f"{name} = {value}" if value else f"{name} is missing"), texts == value


def _words(name: str, texts: Array) -> Iterator[tuple[str, Array]]:
    """The words that most texts have, and fewer than half."""
    sets = [set(re.findall(r"[a-z']{2,}", text.lower())) for text in texts]
    counts: dict[str, int] = {}
    for words in sets:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    usual = [word for word, count in counts.items() if count < len(texts) / 2]
    for word in sorted(usual, key=lambda word: (-counts[word], word))[: 5 * VALUES]:
        yield f'{name} has "{word}"', np.array([word in words for words in sets])


def _missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _ranks(w: Array, labels: Array) -> Array:
    """Inside each class, in (0, 1): uniform where nothing describes the weights."""
    ranks = np.zeros(len(w))
    for label in np.unique(labels):
        rows = labels == label
        ranks[rows] = (rankdata(w[rows]) - 0.5) / rows.sum()
    return ranks


def _halves(ranks: Array, seed: int) -> Array:
    """A random half, with one of any two neighbours by rank: both halves have hard samples."""
    first = np.random.default_rng(seed).random((len(ranks) + 1) // 2) < 0.5
    half = np.zeros(len(ranks), bool)
    half[np.argsort(ranks, kind="stable")] = np.stack([first, ~first], 1).ravel()[: len(ranks)]
    return half


def _search(
    conditions: list[_Condition], w: Array, ranks: Array, half: Array, depth: int, least: int
) -> list[tuple[int, ...]]:
    """The conjunctions with most added weight for their size, of those that stand out by rank as well.

    Added weight over the root of the share is, up to a constant, how many standard errors the mean weight is above one.
    """
    M = np.stack([condition.rows[half] for condition in conditions]).astype(float)
    n, mean = int(half.sum()), float(w[half].mean())
    sizes, weights, by_rank = M @ M.T, (M * w[half]) @ M.T, (M * ranks[half]) @ M.T
    with np.errstate(divide="ignore", invalid="ignore"):
        added = (weights / mean - sizes) / n
        z = _z(by_rank, sizes, n)
        score = added / np.sqrt(sizes / n)
    good = (sizes >= least) & (added > 0) & (z > 2)
    single = np.diag(np.where(good, score, 0.0)).copy()
    pairs: list[tuple[float, tuple[int, ...]]] = []
    for i in range(len(conditions)):
        if single[i] > 0:
            pairs.append((float(single[i]), (i,)))
        others = range(i + 1, len(conditions)) if depth == 2 else ()
        better = [j for j in others if good[i, j] and score[i, j] > SIMPLER * max(single[i], single[j])]
        pairs.extend((float(score[i, j]), (i, j)) for j in better)
    pairs.sort(key=lambda pair: (-pair[0], len(pair[1]), pair[1]))
    return [numbers for _, numbers in pairs[:CANDIDATES]]


def _z(rank_sum: Any, size: Any, n: int) -> Any:
    """Of the mean rank of `size` of n samples, drawn without replacement from ranks with mean 1/2, variance 1/12."""
    return (rank_sum / size - 0.5) / np.sqrt((1 / size - 1 / n) / 12)


def _tested(
    candidates: list[tuple[int, ...]],
    conditions: list[_Condition],
    w: Array,
    ranks: Array,
    half: Array,
    right: list[Array | None],
    least: int,
    alpha: float,
) -> Iterator[Slice]:
    """Those that stand out on the other half as well: Holm's correction over all candidates."""
    n, total = int(half.sum()), float(w[half].sum())
    rows_of = [np.logical_and.reduce([conditions[k].rows for k in numbers]) & half for numbers in candidates]
    raw = [float(norm.sf(_z(ranks[rows].sum(), rows.sum(), n))) if least <= rows.sum() < n else 1.0 for rows in rows_of]
    corrected = 0.0
    for position, k in enumerate(np.argsort(raw, kind="stable")):
        corrected = max(corrected, min(1.0, raw[k] * (len(raw) - position)))
        rows = rows_of[k]
        share = float(rows.sum()) / n
        added = float(w[rows].sum()) / total - share
        if corrected > alpha or added <= 0:
            continue
        before, after = (math.nan if r is None else float(r[rows].mean()) for r in right)
        names = tuple(conditions[i].text for i in candidates[k])
        yield Slice(names, int(rows.sum()), share, 1 + added / share, added, 2 * corrected, before, after)


def _distinct(found: list[Slice], conditions: list[_Condition]) -> list[Slice]:
    """Without those most of whose samples are in a slice before."""
    rows = {condition.text: condition.rows for condition in conditions}
    kept: list[Slice] = []
    seen = np.zeros(len(conditions[0].rows), bool)
    for one in found:
        here = np.logical_and.reduce([rows[text] for text in one.conditions])
        if (here & seen).sum() <= here.sum() / 2:
            kept.append(one)
            seen |= here
    return kept


def _right(proba: Any, labels: Array | None, n: int) -> Array | None:
    """Whether the label has the largest probability; of the label's alone, whether it is more than one half."""
    if proba is None:
        return None
    p = _as_array(proba)
    if p.ndim == 2 and labels is not None and len(p) == n:
        names = np.unique(labels)
        if len(names) > p.shape[1]:
            raise DataError(f"expected probabilities of {len(names)} classes, got {p.shape[1]} columns")
        numbers = labels if labels.dtype.kind in "iu" and labels.max() < p.shape[1] else np.searchsorted(names, labels)
        right: Array = (p.argmax(1) == numbers).astype(float)
        return right
    if p.shape != (n,):
        raise DataError(f"expected one probability per sample, ({n},), got shape {p.shape}; y is needed for (n, k)")
    sure: Array = (p > 0.5).astype(float)
    return sure
